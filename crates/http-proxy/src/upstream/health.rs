//! Active health checks: each endpoint is asked now and then.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Connection, Upstream};
use crate::balance::Peer;
use crate::clock;
use crate::error::ProxyError;
use crate::table::HealthCheck;

/// How much of an answer is read; its first line is enough.
const ANSWER_BYTES: usize = 64;

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
    let broken = |error| ProxyError::new(crate::ErrorKind::UpstreamClosed).because(error);
    let mut connection: Connection = upstream.open_for_check(peer).await?;
    let stream = connection.stream().map_err(broken)?;
    let host = check.host.as_deref().unwrap_or("health-check");
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: telaio-health-check\r\nConnection: close\r\n\r\n",
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
