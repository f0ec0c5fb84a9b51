//! TLS on both sides, by rustls with aws-lc-rs.
//!
//! Towards clients: [`store`] has the certificates, found by the name that a client asks for (SNI)
//! and replaced one Secret at a time while connections go on; [`accept`] does the handshake, chooses
//! what a host asks of its clients, and takes connections aside whose hosts are
//! passed through undecrypted ([`hello`] reads the name for that). Towards upstreams: [`upstream`].
//!
//! What always holds:
//! - A handshake ends within its time-out, and no more than a bounded number are under way.
//! - A host without a certificate of its own gets the default one, self-signed when none is given; a
//!   broken Secret never takes the last good certificate away.
//! - A request for a host that the connection was not negotiated for is answered with 421, so a
//!   client certificate asked for by one host cannot be gone around by way of another.

pub mod accept;
pub mod certificate;
mod client_auth;
pub mod hello;
pub mod rewind;
pub mod store;
pub mod upstream;
mod x509;

pub use accept::{AcceptError, Accepted, TlsAcceptor, TlsLimits, TlsProblem};
pub use certificate::{Certificate, CertificateError};
pub use rewind::Rewind;
pub use store::CertificateStore;
pub use upstream::{UpstreamTls, UpstreamTlsError, Verify};

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The protocols offered to clients, the better first.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// HTTP/1.1 by its name in a handshake.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The process's cryptography: aws-lc-rs, also where nobody has installed it.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    match CryptoProvider::get_default() {
        Some(provider) => Arc::clone(provider),
        None => Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
    }
}
