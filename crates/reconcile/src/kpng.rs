//! KPNG's interfaces, free of protobuf: how a node view reaches a backend.
//!
//! A source sends [`Op`](telaio_model::Op)s to a [`Sink`]. What is behind the sink is one of:
//! - a [`Decoder`], called for each change, by way of a [`DecoderSink`];
//! - a [`FullStateCallback`], called with the whole view at each `Sync`, by way of a [`FullState`].
//!
//! Before either stands a [`FilterReset`], so that a new connection, which sends everything again,
//! costs the backend only what differs. [`pipe`] puts several callbacks behind one view, and an
//! [`Inbox`] stands between a callback and a sync loop, both held by a [`Syncing`]. A
//! [`Backend`] ties sink, flags and set-up together under a name in a [`Registry`].
//! [`serviceevents`] tells a backend about single addresses and ports.

pub mod backend;
pub mod decoder;
pub mod filter_reset;
pub mod flags;
pub mod full_state;
pub mod inbox;
pub mod pipe;
pub mod serviceevents;
pub mod sink;
pub mod syncing;

#[cfg(test)]
mod testing;

pub use backend::{Backend, Registry, RegistryError};
pub use decoder::{Decoder, DecoderSink};
pub use filter_reset::FilterReset;
pub use flags::{FlagError, FlagSpec, FlagValues};
pub use full_state::{Changed, FullState, FullStateCallback, State};
pub use inbox::{Inbox, News};
pub use pipe::{Pipe, Strategy};
pub use sink::{Sink, SinkError};
pub use syncing::Syncing;
