//! HTTP/1.1 on both sides, our own code on httparse.
//!
//! One task per client connection drives the upstream connection itself: no channel stands between
//! them, heads are parsed into lists that are used again, and a request costs two reads and two
//! writes. Framing is read strictly: whatever can be read in two ways is refused with 400, and the
//! connection closed, before anything reaches a backend.
//!
//! - [`parse`]: heads in, strictly;
//! - [`body`]: lengths and chunks, in and out;
//! - [`mod@write`]: heads out, without what concerns one hop only;
//! - `buffer`, `timer`: memory and deadlines that idle connections do not pay for;
//! - [`relay`]: one request's bytes between client and endpoint;
//! - [`serve`]: a client's connection, request after request;
//! - `streamed`: a request whose bodies must be streams;
//! - `tunnel`: what follows an upgrade.

pub mod body;
pub(crate) mod buffer;
pub mod parse;
pub mod relay;
pub mod serve;
pub(crate) mod streamed;
pub(crate) mod timer;
pub(crate) mod tunnel;
pub mod write;
