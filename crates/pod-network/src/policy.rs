//! What instances may reach and be reached by: NetworkPolicy, `networking.k8s.io/v1`.
//!
//! ```text
//!  policies, pods, namespaces ─► World ─► Parts ─► compile ─► diff ─► Kernel (nftables)
//!                                settle                               one transaction
//! ```
//!
//! Read it in this order:
//! - `facts`: what policies come down to: facts, classes, profiles;
//! - `world`: the objects as they are, and what follows from them here, kept up to date change by change;
//! - `layout`, `rules`, `compile`: the same in the kernel's terms, purely;
//! - `kernel`: reading and changing the tables;
//! - [`newcomers`](Newcomers): instances that were attached a moment ago;
//! - [`trace`]: what a packet meets in them;
//! - `keeper`: all of it together, with drift repaired.
//!
//! What always holds:
//! - An instance that no policy selects is not limited; one that some policy selects for a direction may do in that
//!   direction what any of those policies allows, and nothing else.
//! - Only the first packet of a connection is judged, at most twice (by the policies of whoever sends it and of
//!   whoever gets it), and what that costs does not depend on how many policies, pods or rules there are. What belongs to a
//!   connection that was allowed passes.
//! - Packets are judged after routing: with the destination that address translation gave them, and before anybody gives
//!   them another source. So a policy holds however a pod was reached: by its address, through a service of any backend
//!   (also IPVS, whose packets no forward hook sees), by a published port, on the same bridge or from another node.
//! - The node itself reaches its own instances: probes pass. An instance reaches itself, and its node.
//! - A pod with the node's own network is the node, for policies too.
//! - An instance whose namespace has policies sends and gets nothing before it is judged: whoever attaches it says so to the kernel
//!   first, and waits for the agent.
//!
//! What Kubernetes leaves open is settled so: what is refused is dropped without a word. A named port of an egress rule is
//! the port of that name that the peer has, also where the peer is told by its address. A rule that names ports
//! allows nothing of protocols without ports. `endPort` with SCTP works like any other.

mod compile;
mod facts;
mod keeper;
mod kernel;
mod layout;
pub(crate) mod newcomers;
mod numbers;
mod ports;
mod rules;
mod selector;
pub mod trace;
mod world;

pub use compile::{ChainItem, Compiled, ElementKey, Item, Items, Key, compile, compile_part};
pub use facts::Direction;
pub use keeper::{Keeper, Told};
pub use kernel::{Kernel, cleanup};
pub use layout::{Map, TABLE};
pub use newcomers::Newcomers;
pub use world::{Part, World};
