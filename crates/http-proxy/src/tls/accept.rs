//! The handshake with a client.
//!
//! ```text
//!  TCP ─► (PROXY header) ─► ClientHello ─┬─ host passed through ─► Accepted::Passthrough
//!                                        └─ ours ─► handshake by the host's settings ─► Accepted::Tls
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use rustls::pki_types::UnixTime;
use rustls::server::NoServerSessionStorage;
use rustls::{ProtocolVersion, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate::CertificateError;
use super::client_auth::Judge;
use super::hello::{Hello, HelloReader};
use super::rewind::Rewind;
use super::store::{CertificateStore, CertificatesChange, host_key, parent};
use super::{ALPN_H2, ALPN_HTTP1, provider};
use crate::head::TlsInfo;
use crate::table::{BackendId, ClientTls, HostMatch, RouteId, TableChange};

/// What a client hears who speaks HTTP where TLS is spoken.
const PLAIN_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 54\r\nconnection: close\r\n\r\nThis port speaks HTTPS: use https:// in the address.\r\n";

/// What a ClientHello usually fits in.
const HELLO_BYTES_USUAL: usize = 2048;

/// Bounds for handshakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsLimits {
    /// From the first byte to the end of the handshake.
    pub handshake: Duration,
    /// How many may be under way; more are turned away.
    pub handshakes_max: usize,
}

impl Default for TlsLimits {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(10), handshakes_max: 8192 }
    }
}

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The client was too slow.
    #[error("the TLS handshake took too long")]
    TimedOut,
    /// Too many others.
    #[error("too many TLS handshakes are under way")]
    TooMany,
    /// The client spoke HTTP.
    #[error("the client spoke plain HTTP")]
    PlainHttp,
    /// The handshake failed, or the connection.
    #[error("the TLS handshake failed: {0}")]
    Failed(#[from] io::Error),
}

/// A connection whose first bytes told what it is.
#[derive(Debug)]
pub enum Accepted<IO> {
    /// Decrypted here.
    Tls {
        /// The connection.
        stream: Box<TlsStream<Rewind<IO>>>,
        /// What was settled.
        info: Arc<TlsInfo>,
        /// Whether HTTP/2 was.
        h2: bool,
    },
    /// To be passed on as it is.
    Passthrough {
        /// The name that the client asked for.
        server_name: Arc<str>,
        /// Where its connections go.
        backend: BackendId,
        /// The connection, from its first byte.
        io: Rewind<IO>,
    },
}

/// A host's settings, ready for a handshake.
#[derive(Debug, Clone)]
struct HostAuth {
    config: Arc<ServerConfig>,
    judge: Judge,
    settings: ClientTls,
}

/// A changed route, its host, and what it asks there.
type RouteAuth = (RouteId, Option<(Box<str>, HostAuth)>);

#[derive(Debug, Default)]
struct Hosts {
    /// By host, then by route: the first has its say.
    client_auth: HashMap<Box<str>, BTreeMap<RouteId, HostAuth>>,
    /// Where a route's settings stand.
    routes: HashMap<RouteId, Box<str>>,
    passthrough: HashMap<Box<str>, BackendId>,
}

impl Hosts {
    fn set_auth(&mut self, id: RouteId, auth: Option<(Box<str>, HostAuth)>) {
        if let Some(host) = self.routes.remove(&id)
            && let Some(routes) = self.client_auth.get_mut(&host)
        {
            routes.remove(&id);
            if routes.is_empty() {
                self.client_auth.remove(&host);
            }
        }
        if let Some((host, auth)) = auth {
            self.routes.insert(Arc::clone(&id), host.clone());
            self.client_auth.entry(host).or_default().insert(id, auth);
        }
    }

    /// What is asked of a host's clients. A host that asks nothing itself asks what its wildcard does:
    /// where it has no route for a path, the wildcard's may.
    fn auth(&self, name: &str) -> Option<HostAuth> {
        let own = Some(name).filter(|name| !name.starts_with('.'));
        let found = own.and_then(|name| self.client_auth.get(name));
        let found = found.or_else(|| self.client_auth.get(parent(name)?));
        found?.values().next().cloned()
    }
}

/// Something about TLS that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{object}: {error}")]
pub struct TlsProblem {
    /// The Secret or the route.
    pub object: Arc<str>,
    /// What is wrong with it.
    pub error: CertificateError,
}

/// Accepts TLS connections.
#[derive(Debug)]
pub struct TlsAcceptor {
    store: Arc<CertificateStore>,
    plain: Arc<ServerConfig>,
    hosts: RwLock<Hosts>,
    limits: TlsLimits,
    handshakes: Semaphore,
}

impl TlsAcceptor {
    /// Accepts with the certificates in `store`.
    pub fn new(store: Arc<CertificateStore>, limits: TlsLimits) -> Result<Self, rustls::Error> {
        let plain = server_config(&store, None)?;
        let handshakes = Semaphore::new(limits.handshakes_max.min(Semaphore::MAX_PERMITS));
        Ok(Self { store, plain, hosts: RwLock::default(), limits, handshakes })
    }

    /// The certificates.
    pub fn store(&self) -> &Arc<CertificateStore> {
        &self.store
    }

    /// Takes what a change of the table says about TLS: certificates, hosts that are passed through,
    /// and routes that ask for clients' certificates. What cannot be read is among the problems; a
    /// route whose authority cannot be read trusts nobody.
    pub fn apply(&self, change: &TableChange) -> Vec<TlsProblem> {
        let certificates = CertificatesChange {
            certificates: &change.certificates,
            default: change.default_certificate.as_ref(),
        };
        let problem = |(object, error)| TlsProblem { object, error };
        let mut problems: Vec<_> =
            self.store.apply(certificates).into_iter().map(problem).collect();
        let compiled = self.compile(change, &mut problems);
        let mut hosts = self.hosts.write();
        for (id, auth) in compiled {
            hosts.set_auth(id, auth);
        }
        for (host, backend) in &change.passthrough {
            match backend {
                Some(backend) => hosts.passthrough.insert(host_key(host), backend.clone()),
                None => hosts.passthrough.remove(&host_key(host)),
            };
        }
        problems
    }

    /// Makes the settings of changed routes, before any lock is taken. Routes of any host are left
    /// out: there is no name to ask by.
    fn compile(&self, change: &TableChange, problems: &mut Vec<TlsProblem>) -> Vec<RouteAuth> {
        let mut compiled = Vec::new();
        for (id, route) in &change.routes {
            let settings = route.as_ref().and_then(|route| {
                let host = match &route.host {
                    HostMatch::Any => return None,
                    HostMatch::Wildcard(host) | HostMatch::Exact(host) => host_key(host),
                };
                Some((host, route.policy.client_tls.clone()?))
            });
            let Some((host, settings)) = settings else {
                compiled.push((Arc::clone(id), None));
                continue;
            };
            let judge = Judge::new(&settings).unwrap_or_else(|error| {
                problems.push(TlsProblem { object: Arc::clone(id), error });
                Judge::nobody()
            });
            match server_config(&self.store, Some(&judge)) {
                Ok(config) => {
                    let auth = HostAuth { config, judge, settings };
                    compiled.push((Arc::clone(id), Some((host, auth))));
                }
                Err(error) => {
                    let error = CertificateError::Making(error.to_string());
                    problems.push(TlsProblem { object: Arc::clone(id), error });
                }
            }
        }
        compiled
    }

    /// The backend that a host's connections go to unopened, if they do. A wildcard does not have those
    /// of a host that has routes (`has_routes`) or a certificate by its own name.
    pub fn passes_through(
        &self,
        host: &str,
        has_routes: impl FnOnce(&str) -> bool,
    ) -> Option<BackendId> {
        let (own, wildcard) = {
            let passthrough = &self.hosts.read().passthrough;
            let own = Some(host).filter(|host| !host.starts_with('.'));
            let of = |name: &str| passthrough.get(name).cloned();
            (own.and_then(of), parent(host).and_then(of))
        };
        own.or_else(|| wildcard.filter(|_| !(has_routes(host) || self.store.has(host))))
    }

    /// Whether any host is passed through, so that names must be read before a handshake.
    fn has_passthrough(&self) -> bool {
        !self.hosts.read().passthrough.is_empty()
    }

    /// Does the handshake on a connection of which `front` was read already. `has_routes` says whether
    /// a host has routes by its own name, and not only by a wildcard.
    pub async fn accept<IO>(
        &self,
        front: Bytes,
        io: IO,
        has_routes: impl FnOnce(&str) -> bool,
    ) -> Result<Accepted<IO>, AcceptError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let _permit = self.handshakes.try_acquire().map_err(|_| AcceptError::TooMany)?;
        let deadline = Instant::now() + self.limits.handshake;
        let work = self.accept_in_time(front, io, has_routes);
        timeout_at(deadline, work).await.unwrap_or(Err(AcceptError::TimedOut))
    }

    async fn accept_in_time<IO>(
        &self,
        front: Bytes,
        io: IO,
        has_routes: impl FnOnce(&str) -> bool,
    ) -> Result<Accepted<IO>, AcceptError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (name, mut io) = peek(Rewind::with(front, io), self.has_passthrough()).await?;
        match name {
            Front::Name(name) => {
                if let Some(backend) = self.passes_through(&name, has_routes) {
                    return Ok(Accepted::Passthrough { server_name: name.into(), backend, io });
                }
            }
            Front::PlainHttp => {
                // Best effort: the client may be gone, and is refused in any case.
                let _ = io.write_all(PLAIN_ANSWER).await;
                let _ = io.shutdown().await;
                return Err(AcceptError::PlainHttp);
            }
            Front::Other => {}
        }
        let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), io);
        let start = acceptor.await?;
        let name = start.client_hello().server_name().map(str::to_ascii_lowercase);
        let auth = name.as_ref().and_then(|name| self.hosts.read().auth(name));
        let config = auth.as_ref().map_or(&self.plain, |auth| &auth.config);
        let stream = start.into_stream(Arc::clone(config)).await?;
        let connection = stream.get_ref().1;
        let h2 = connection.alpn_protocol() == Some(ALPN_H2);
        let info = Arc::new(describe(connection, name, auth.as_ref()));
        Ok(Accepted::Tls { stream: Box::new(stream), info, h2 })
    }
}

fn server_config(
    store: &Arc<CertificateStore>,
    judge: Option<&Judge>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
    let builder = match judge {
        Some(judge) => builder.with_client_cert_verifier(judge.asker()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::clone(store) as _);
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    // Tickets keep sessions with the clients; nothing is stored here. The keys roll by themselves.
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ignore_client_order = true;
    Ok(Arc::new(config))
}

fn describe(
    connection: &ServerConnection,
    name: Option<String>,
    auth: Option<&HostAuth>,
) -> TlsInfo {
    let chain = connection.peer_certificates().unwrap_or_default();
    let verdict = auth.filter(|_| !chain.is_empty()).map(|auth| {
        // Once for each connection, also a resumed one: the authority may be another by now.
        auth.judge.verify(chain, UnixTime::now())
    });
    TlsInfo {
        server_name: name.map(Arc::from),
        version: match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLS",
        },
        cipher: connection
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
            .unwrap_or("unknown"),
        client_certificate: chain.first().map(|leaf| Arc::from(leaf.as_ref())),
        client_verified: matches!(verdict, Some(Ok(()))),
        client_authority: auth.map(|auth| Arc::clone(&auth.settings.authorities_pem)),
        client_error: verdict.and_then(Result::err).map(Arc::from),
    }
}

/// What a connection begins with.
enum Front {
    /// A ClientHello for this name.
    Name(String),
    /// A letter, which no TLS client sends first.
    PlainHttp,
    /// Whatever rustls makes of it.
    Other,
}

/// Looks at the front of a connection, as far as it is needed, and gives the connection back as if
/// nothing was read.
async fn peek<IO>(io: Rewind<IO>, wants_name: bool) -> io::Result<(Front, Rewind<IO>)>
where
    IO: AsyncRead + Unpin,
{
    let (front, mut io) = io.into_parts();
    let mut buffer = BytesMut::with_capacity(HELLO_BYTES_USUAL.max(front.len()));
    buffer.extend_from_slice(&front);
    let mut hello = HelloReader::default();
    loop {
        let found = match buffer.first() {
            None => None,
            Some(first) if first.is_ascii_alphabetic() => Some(Front::PlainHttp),
            Some(_) if !wants_name => Some(Front::Other),
            Some(_) => match hello.read(&buffer) {
                Hello::Whole(Some(name)) => Some(Front::Name(name)),
                Hello::Whole(None) | Hello::Other => Some(Front::Other),
                // It is never incomplete for longer than `HELLO_BYTES_MAX`.
                Hello::Incomplete => None,
            },
        };
        if let Some(found) = found {
            return Ok((found, Rewind::with(buffer.freeze(), io)));
        }
        if io.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

#[cfg(test)]
mod tests;
