//! HTTP/2 on both sides, by the h2 crate.
//!
//! - [`server`]: a client's connection, by ALPN or from its first bytes (h2c with prior knowledge);
//! - [`client`]: connections to endpoints, shared by many requests;
//! - [`grpc`]: how our own errors look to gRPC clients;
//! - [`mod@convert`], for heads.
//!
//! All streams of a client's connection run in its task, so a connection that ends takes with it
//! whatever it asked for. Bodies flow by frames with the windows of both sides as back-pressure.
//!
//! Bounds: streams at once, bytes of a head, frames that continue one, resets by the client and by
//! us, windows, time without anything; beyond them the connection ends with ENHANCE_YOUR_CALM.

pub(crate) mod any_bytes;
pub mod client;
pub mod convert;
mod frames;
pub mod grpc;
mod guard;
mod hpack;
mod incoming;
pub mod server;
mod tunnel;
mod upgrade;

/// What an HTTP/2 client sends first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
