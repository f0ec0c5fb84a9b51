//! KPNG's Global and Local gRPC API: the wire, and nothing but the wire.
//!
//! [`local`] carries one node's view, [`global`] the raw cluster. Both are streams of operations:
//! the server sends `Reset` once, then differences, each ended by `Sync`; the client asks for each
//! difference with one request. Field numbers are KPNG's; ours begin at 100, so that a KPNG peer
//! ignores what it does not know and we live without what it does not send.
//!
//! Only this crate knows protobuf. Whatever arrives is checked here: a peer's bad bytes become a
//! [`DecodeError`] that names the operation and field, never a panic.
//!
//! ```
//! use telaio_api::local;
//! use telaio_model::{ObjectKey, Op};
//!
//! let op = Op::DeleteService(ObjectKey::new("default", "web"));
//! let wire = local::encode_op(&op)?;
//! assert_eq!(local::decode_op(wire)?, Some(op));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod error;
pub mod global;
pub mod local;
pub mod sets;
mod values;

pub use error::{DecodeError, EncodeError};

/// The generated messages, clients and servers.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    /// The Local API.
    pub mod localv1 {
        tonic::include_proto!("localv1");
    }
    /// The Global API.
    pub mod globalv1 {
        tonic::include_proto!("globalv1");
    }
}

/// The port on which brains serve both APIs.
pub const DEFAULT_PORT: u16 = 12090;
