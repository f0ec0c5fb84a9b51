//! Questions to an agent's own servers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::cli::AdminClientArgs;
use crate::exit::CommandError;
use crate::gui::TOKEN_FILE;
use crate::state_dir;

/// How long an agent may take to answer; it needs no more than a moment.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long an answer may be.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The body of a successful answer to a question with this token.
pub(crate) async fn get(address: SocketAddr, path: &str, token: &str) -> Result<String> {
    let stream = connect(address).await?;
    let asked = exchange(stream, address, &http::Method::GET, path, token, String::new());
    let (status, body) = within(address, asked).await?;
    if status.is_success() { Ok(body) } else { bail!("{address} answers {status}") }
}

async fn within<T>(address: SocketAddr, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let answer = tokio::time::timeout(ANSWER_TIME_MAX, asked).await;
    answer.unwrap_or_else(|_| bail!("{address} does not answer"))
}

async fn connect(address: SocketAddr) -> Result<TcpStream> {
    TcpStream::connect(address).await.with_context(|| {
        format!(
            "no telaio answers at {address}; start one with telaio run or telaio brain, or name its \
             address with --admin-listen"
        )
    })
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    method: &http::Method,
    path: &str,
    token: &str,
    body: String,
) -> Result<(http::StatusCode, String)> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, address.to_string())
        .header(http::header::AUTHORIZATION, format!("Bearer {token}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(bytes::Bytes::from(body)))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow!("{error}"))?.to_bytes();
    Ok((status, String::from_utf8(body.to_vec())?))
}

/// Asks the admin API of a running agent.
pub(crate) struct AdminClient {
    address: SocketAddr,
    token: String,
    token_file: PathBuf,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
}

impl AdminClient {
    /// Reads the token, and the authority where TLS is asked for.
    pub(crate) fn new(args: &AdminClientArgs) -> Result<Self, CommandError> {
        if args.admin_tls_ca.is_none() && !args.admin_listen.ip().to_canonical().is_loopback() {
            return Err(CommandError::bad_input(format!(
                "--admin-listen {} is not this machine, and the token would go there in the clear: give \
                 the authority of its certificate with --admin-tls-ca, or ask by a port-forward to \
                 loopback",
                args.admin_listen
            )));
        }
        let token_file = args.token_file.clone().unwrap_or_else(|| {
            args.state_dir.clone().unwrap_or_else(state_dir::default_path).join(TOKEN_FILE)
        });
        let token = match telaio_gui::token::read(&token_file) {
            Ok(token) => token,
            // Whether anybody is there is told first; without a token they will say no.
            Err(error) if args.token_file.is_none() => {
                tracing::debug!(%error, file = %token_file.display(), "no token");
                String::new()
            }
            Err(error) => {
                let file = token_file.display();
                return Err(CommandError::bad_input(format!("--token-file {file}: {error}")));
            }
        };
        let tls = args.admin_tls_ca.as_ref().map(|ca| tls(ca, args)).transpose()?;
        Ok(Self { address: args.admin_listen, token, token_file, tls })
    }

    /// Asks, and gives the body of a successful answer.
    pub(crate) fn run(
        &self,
        method: &http::Method,
        path: &str,
        body: String,
    ) -> Result<String, CommandError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(anyhow::Error::from)?;
        let asked = runtime.block_on(within(self.address, self.ask(method, path, body)));
        let (status, body) = asked?;
        if status.is_success() {
            return Ok(body);
        }
        let said = serde_json::from_str::<telaio_gui::values::Problem>(&body);
        let said = said.map_or_else(|_| status.to_string(), |problem| problem.message);
        let file = self.token_file.display();
        Err(match status {
            http::StatusCode::UNAUTHORIZED => CommandError::failed(format!(
                "{} does not take the token of {file}: name the file of its token with --token-file, \
                 or the agent's --state-dir",
                self.address
            )),
            http::StatusCode::BAD_REQUEST | http::StatusCode::NOT_FOUND => {
                CommandError::bad_input(said)
            }
            _ => CommandError::failed(said),
        })
    }

    async fn ask(
        &self,
        method: &http::Method,
        path: &str,
        body: String,
    ) -> Result<(http::StatusCode, String)> {
        let stream = connect(self.address).await?;
        match &self.tls {
            None => exchange(stream, self.address, method, path, &self.token, body).await,
            Some((config, name)) => {
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name.clone(), stream).await;
                let stream = stream.with_context(|| format!("{} is not trusted", self.address))?;
                exchange(stream, self.address, method, path, &self.token, body).await
            }
        }
    }
}

fn tls(
    ca: &std::path::Path,
    args: &AdminClientArgs,
) -> Result<(Arc<rustls::ClientConfig>, ServerName<'static>), CommandError> {
    let bad = |error: &dyn std::fmt::Display| {
        CommandError::bad_input(format!("--admin-tls-ca {}: {error}", ca.display()))
    };
    let bytes = std::fs::read(ca).map_err(|error| bad(&error))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| bad(&error))?;
        roots.add(certificate).map_err(|error| bad(&error))?;
    }
    let config =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = match &args.admin_tls_name {
        Some(name) => ServerName::try_from(name.clone())
            .map_err(|_| CommandError::bad_input(format!("--admin-tls-name {name:?}")))?,
        None => ServerName::IpAddress(args.admin_listen.ip().into()),
    };
    Ok((Arc::new(config), name))
}
