//! One question to an agent's own servers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

/// How long an agent may take to answer; it needs no more than a moment.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// How long an answer may be.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The body of a successful answer.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let answer = tokio::time::timeout(ANSWER_TIME_MAX, exchange(address, path)).await;
    answer.unwrap_or_else(|_| bail!("{address} does not answer"))
}

async fn exchange(address: SocketAddr, path: &str) -> Result<String> {
    let stream = tokio::net::TcpStream::connect(address).await.with_context(|| {
        format!(
            "no telaio answers at {address}; start one with telaio run or telaio brain, or name its \
             address with --admin-listen"
        )
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::get(path)
        .header(http::header::HOST, address.to_string())
        .body(Empty::<&[u8]>::new())?;
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        bail!("{address} answers {}: is it telaio's admin address?", response.status());
    }
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
    Ok(String::from_utf8(body.to_vec())?)
}
