//! TLS to upstreams.
//!
//! A service in the cluster seldom has a certificate that anybody can verify, and ingress-nginx does
//! not verify by default; so nor do we, unless the route says whom to trust. Without verification the
//! bytes are encrypted, but whoever stands in between can be anybody.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificate::{Certificate, CertificateError, read_chain};
use super::{ALPN_H2, ALPN_HTTP1, provider};

/// How many sessions are remembered for each upstream's settings.
const SESSIONS_MAX: usize = 256;

/// Whom an upstream must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Verify {
    /// Anybody.
    #[default]
    Off,
    /// Somebody whom the machine trusts.
    System,
    /// Somebody whom this authority signed: a Secret's `ca.crt`, in PEM.
    Authority(Arc<[u8]>),
}

/// What is spoken once it is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offer {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only: gRPC.
    Http2,
    /// Either, HTTP/2 preferred.
    Both,
}

/// Why there is no TLS to an upstream.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamTlsError {
    /// The settings cannot be used.
    #[error("TLS to the upstream: {0}")]
    Settings(#[from] CertificateError),
    /// rustls refused the settings.
    #[error("TLS to the upstream: {0}")]
    Config(#[from] rustls::Error),
    /// No authority is known.
    #[error(
        "TLS to the upstream is to be verified by the system's authorities, and there are none: \
         install ca-certificates, or name a Secret with ca.crt"
    )]
    NoSystemRoots,
    /// The name to ask for is none.
    #[error("TLS to the upstream: {0:?} is not a name that a certificate can be for")]
    Name(String),
    /// The handshake failed.
    #[error("TLS to the upstream: {0}")]
    Handshake(#[from] io::Error),
    /// The handshake did not end.
    #[error("the TLS handshake with the upstream took too long")]
    TimedOut,
    /// It was to be HTTP/2.
    #[error("the upstream does not speak HTTP/2 over TLS")]
    NoHttp2,
}

/// Settings of TLS to one backend; made once, used for each of its connections.
#[derive(Clone)]
pub struct UpstreamTls {
    connector: TlsConnector,
    offer: Offer,
}

impl std::fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamTls").field("offer", &self.offer).finish_non_exhaustive()
    }
}

impl UpstreamTls {
    /// Makes the settings; `identity` is shown to upstreams that ask for one.
    pub fn new(
        verify: &Verify,
        offer: Offer,
        identity: Option<&Certificate>,
    ) -> Result<Self, UpstreamTlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        let builder = match verify {
            Verify::Off => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody::new()))
            }
            Verify::System => builder.with_webpki_verifier(system_verifier()?),
            Verify::Authority(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_chain("ca.crt", pem)? {
                    roots.add(certificate)?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(
                rustls::sign::SingleCertAndKey::from(Arc::clone(identity.key())),
            )),
        };
        config.alpn_protocols = match offer {
            Offer::Http1 => vec![ALPN_HTTP1.to_vec()],
            Offer::Http2 => vec![ALPN_H2.to_vec()],
            Offer::Both => vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()],
        };
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), offer })
    }

    /// Does the handshake; whether HTTP/2 was settled comes with the connection.
    pub async fn connect<IO>(
        &self,
        io: IO,
        name: &str,
        within: Duration,
    ) -> Result<(TlsStream<IO>, bool), UpstreamTlsError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let host = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let server = ServerName::try_from(host).map_err(|_| UpstreamTlsError::Name(name.into()))?;
        let connect = self.connector.connect(server, io);
        let stream = tokio::time::timeout(within, connect)
            .await
            .map_err(|_| UpstreamTlsError::TimedOut)??;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_H2);
        // gRPC servers that know no ALPN speak HTTP/2 all the same; one that chose another does not.
        let none = stream.get_ref().1.alpn_protocol().is_none();
        match self.offer {
            Offer::Http2 if !h2 && !none => Err(UpstreamTlsError::NoHttp2),
            Offer::Http2 => Ok((stream, true)),
            Offer::Http1 | Offer::Both => Ok((stream, h2)),
        }
    }
}

/// The machine's authorities, read once.
fn system_verifier() -> Result<Arc<WebPkiServerVerifier>, UpstreamTlsError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err(UpstreamTlsError::NoSystemRoots);
    }
    WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider())
        .build()
        .map_err(|error| UpstreamTlsError::Config(rustls::Error::General(error.to_string())))
}

/// Takes every certificate whose key the upstream has.
#[derive(Debug)]
struct Anybody {
    algorithms: WebPkiSupportedAlgorithms,
}

impl Anybody {
    fn new() -> Self {
        Self { algorithms: provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
