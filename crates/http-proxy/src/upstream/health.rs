//! Active health checks: each endpoint is asked now and then, in the protocol that its backend speaks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Connection, Upstream};
use crate::balance::Peer;
use crate::clock;
use crate::error::{ErrorKind, ProxyError};
use crate::table::{Backend, EndpointAddress, HealthCheck, UpstreamProtocol};

/// How much of an answer is read; its first line is enough.
const ANSWER_BYTES: usize = 64;

/// How large the head of an answer by HTTP/2 may be.
const ANSWER_HEAD_BYTES_MAX: u32 = 64 << 10;

/// Who asks.
const AGENT: &str = "telaio-health-check";

/// Begins the checks that are due. Each runs on its own, one at a time per endpoint.
pub(super) fn begin_checks(upstream: &Arc<Upstream>, now_ns: u64) {
    let settings = upstream.settings().clone();
    let Some(check) = &settings.health else { return };
    for peer in upstream.balancer.get_backends() {
        let due = peer.check_due_ns.load(Relaxed);
        if now_ns < due {
            continue;
        }
        // Not again before this one has ended, whatever comes of it.
        let next = now_ns + clock::nanos_of(check.interval) + clock::nanos_of(check.timeout);
        peer.check_due_ns.store(next, Relaxed);
        let (upstream, check) = (upstream.clone(), check.clone());
        tokio::spawn(async move {
            let asked = tokio::time::timeout(check.timeout, ask(&upstream, &peer, &check)).await;
            let well = matches!(asked, Ok(Ok(status)) if (200..400).contains(&status));
            judge(&peer, &check, well);
            peer.check_due_ns.store(now_ns + clock::nanos_of(check.interval), Relaxed);
        });
    }
}

/// Counts an outcome; enough of the same in a row change what is thought of the endpoint.
pub(super) fn judge(peer: &Peer, check: &HealthCheck, well: bool) {
    if well == peer.is_healthy() {
        peer.checks_in_row.store(0, Relaxed);
        return;
    }
    let needed = if well { check.healthy_after } else { check.unhealthy_after };
    if peer.checks_in_row.fetch_add(1, Relaxed) + 1 >= needed.max(1) {
        peer.checks_in_row.store(0, Relaxed);
        peer.set_healthy(well);
        let address = peer.address();
        tracing::info!(endpoint = ?address, healthy = well, "health check changed its mind");
    }
}

async fn ask(
    upstream: &Arc<Upstream>,
    peer: &Peer,
    check: &HealthCheck,
) -> Result<u16, ProxyError> {
    let multiplexed = upstream.is_multiplexed();
    let host = host(&upstream.settings(), peer, check);
    // What TLS asks for where the backend has no name of its own for it; else the endpoint's address.
    let named = check.host.as_deref().unwrap_or_default();
    let mut connection: Connection = upstream.open_for_check(peer, named).await?;
    if multiplexed {
        ask_h2(connection, &host, check).await
    } else {
        ask_h1(&mut connection, &host, check).await
    }
}

/// The host to name: as the check says, else the backend's, else the endpoint itself.
fn host(settings: &Backend, peer: &Peer, check: &HealthCheck) -> String {
    let of_tls = match &settings.protocol {
        UpstreamProtocol::Https(tls) | UpstreamProtocol::HttpsH2(tls) => tls.server_name.as_deref(),
        UpstreamProtocol::Http1 | UpstreamProtocol::H2c => None,
    };
    match (check.host.as_deref().or(of_tls), peer.address()) {
        (Some(host), _) => host.to_owned(),
        (None, EndpointAddress::Socket(address)) => address.to_string(),
        (None, EndpointAddress::Name(name, port)) => format!("{name}:{port}"),
    }
}

/// Asks by HTTP/2, on a connection of its own.
async fn ask_h2(
    mut connection: Connection,
    host: &str,
    check: &HealthCheck,
) -> Result<u16, ProxyError> {
    let broken = |error: h2::Error| {
        ProxyError::new(ErrorKind::UpstreamClosed).because(std::io::Error::other(error))
    };
    let bad = |_| ProxyError::new(ErrorKind::Internal("a health check that cannot be asked"));
    let scheme = if connection.is_tls() { "https" } else { "http" };
    let stream = connection.take_stream().ok_or(ErrorKind::Internal("no stream"))?;
    let uri =
        http::Uri::builder().scheme(scheme).authority(host).path_and_query(&*check.path).build();
    let mut request = http::Request::new(());
    *request.uri_mut() = uri.map_err(bad)?;
    let agent = http::HeaderValue::from_static(AGENT);
    request.headers_mut().insert(http::header::USER_AGENT, agent);
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(ANSWER_HEAD_BYTES_MAX);
    let (send, driver) = builder.handshake::<_, bytes::Bytes>(stream).await.map_err(broken)?;
    let mut asking = std::pin::pin!(async {
        let mut send = send.ready().await.map_err(broken)?;
        let (answer, _) = send.send_request(request, true).map_err(broken)?;
        Ok::<_, ProxyError>(answer.await.map_err(broken)?.status().as_u16())
    });
    tokio::select! {
        answer = &mut asking => answer,
        // Whatever came before the end is there.
        _ = driver => asking.await,
    }
}

/// Asks by HTTP/1.1.
async fn ask_h1(
    connection: &mut Connection,
    host: &str,
    check: &HealthCheck,
) -> Result<u16, ProxyError> {
    let broken = |error| ProxyError::new(ErrorKind::UpstreamClosed).because(error);
    let stream = connection.stream().map_err(broken)?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {AGENT}\r\nConnection: close\r\n\r\n",
        check.path
    );
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut answer = [0; ANSWER_BYTES];
    let mut length = 0;
    while length < 12 {
        match stream.read(&mut answer[length..]).await.map_err(broken)? {
            0 => break,
            more => length += more,
        }
    }
    let status = answer[..length].strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    let status = status.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    Ok(status.unwrap_or(0))
}
