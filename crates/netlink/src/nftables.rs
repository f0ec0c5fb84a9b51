//! nftables by netlink: typed messages, atomic batches, reading back, watching.
//!
//! A [`Batch`] is written message by message and committed by [`Nftables::commit`] as one transaction:
//! the kernel takes all of it or nothing. There is no model of a ruleset here, only the words to say
//! one; whoever uses it keeps its own.
//!
//! ```no_run
//! use telaio_netlink::nftables::{Batch, Chain, Expression, Family, Nftables, Verdict};
//!
//! let mut batch = Batch::new(Family::Ip, "example");
//! batch.add_table();
//! batch.add_chain(&Chain::regular("refuse"));
//! batch.add_rule("refuse", &[Expression::Verdict(Verdict::Drop)], None);
//! Nftables::open()?.commit(&mut [&mut batch])?;
//! # Ok::<(), telaio_netlink::NetlinkError>(())
//! ```

mod batch;
mod decode;
mod expression;
mod numbers;
mod read;
mod rules_watch;
mod transport;
mod watch;

pub use batch::{Batch, Chain, ChainKind, Element, ElementData, Hook, SetSpec};
pub use expression::{
    CompareOp, DynsetOp, Expression, FibAddress, MetaKey, NumgenKind, Payload, Reg, RejectKind,
    Verdict,
};
pub use numbers::{DataType, Family};
pub use read::{ReadChain, ReadElement, ReadRule, ReadSet};
pub use rules_watch::{ChainOfTable, RuleNotices, RulesWatcher};
pub use transport::Nftables;
pub use watch::{Notice, Touched, Watcher};
