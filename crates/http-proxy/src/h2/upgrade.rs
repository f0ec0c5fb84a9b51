//! An upgrade to an HTTP/1.1 endpoint on behalf of a client that asked by extended CONNECT.

use std::time::Instant;

use bytes::{Buf, BytesMut};
use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::balance::peer::Flight;
use crate::body::Body;
use crate::clock;
use crate::error::{ErrorKind, ProxyError};
use crate::h1::parse::{self, BodyLength, ResponseFraming};
use crate::h1::timer::after;
use crate::h1::write;
use crate::head::{RequestHead, ResponseHead};
use crate::proxy::HttpProxy;
use crate::proxy::attempts::Attempts;
use crate::proxy::forward::{Failed, Wire};
use crate::table::UpstreamProtocol;
use crate::tls::Rewind;
use crate::upstream::Connection;
use crate::upstream::connect::Counted;
use crate::upstream::exchange::Exchange;

/// How large the head of the answer may be.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What came of asking.
pub(super) struct Opened {
    pub(super) head: ResponseHead,
    pub(super) way: Way,
}

/// How it goes on.
pub(super) enum Way {
    /// The endpoint agreed.
    Tunnel(Rewind<Counted>),
    /// It did not: its answer's body.
    Refused(Body),
}

/// Asks an endpoint; one that cannot be reached is passed over as often as the route allows.
pub(super) async fn open(
    request: &RequestHead,
    attempts: &mut Attempts<'_>,
) -> Result<Opened, ProxyError> {
    HttpProxy::forward_request(&mut Upgrade { request }, attempts).await
}

/// A request to change the protocol, which has no body.
struct Upgrade<'a> {
    request: &'a RequestHead,
}

impl Wire for Upgrade<'_> {
    type Answer = Opened;

    fn method(&self) -> &Method {
        &self.request.method
    }

    async fn attempt(&mut self, attempts: &mut Attempts<'_>) -> Result<Opened, Failed> {
        let opened = try_once(self.request, attempts).await;
        opened.map_err(|error| Failed { error, whole: true })
    }
}

async fn try_once(
    request: &RequestHead,
    attempts: &mut Attempts<'_>,
) -> Result<Opened, ProxyError> {
    let forwarding = attempts.forwarding;
    let policy = &forwarding.route.route.policy;
    let upstream = &forwarding.upstream;
    if matches!(upstream.settings().protocol, UpstreamProtocol::H2c | UpstreamProtocol::HttpsH2(_))
    {
        return Err(ErrorKind::NotImplemented.into());
    }
    let peer = attempts.select().ok_or(ErrorKind::NoEndpoint)?;
    let flight = Flight::begin(peer.clone(), clock::nanos(Instant::now()));
    let connected = upstream.connect_for(&peer, policy.timeouts.connect, request).await;
    let mut connection = match connected {
        Ok(connection) => connection,
        Err(error) => {
            attempts.failed(&peer, &error, false);
            return Err(error);
        }
    };
    let reused = connection.reused;
    let asked = tokio::time::timeout(
        policy.timeouts.response_header,
        ask(request, attempts, &mut connection),
    );
    let asked = asked.await.unwrap_or_else(|_| Err(ErrorKind::UpstreamTimeout.into()));
    match asked {
        Ok((mut head, framing, rest)) => {
            attempts.answered = Some(Instant::now());
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                attempts.report(&peer, false);
                let gone = ErrorKind::Internal("a connection without a stream");
                let stream = Counted::new(connection).ok_or(gone)?;
                return Ok(Opened { head, way: Way::Tunnel(Rewind::with(rest.freeze(), stream)) });
            }
            attempts.report_answer(&peer, &head);
            forwarding.edit_response(request, &mut head, &peer);
            let overall = policy.timeouts.request.map(|time| after(attempts.begun, time));
            let exchange = Exchange::answered(connection, flight, &rest, policy, overall);
            Ok(Opened { head, way: Way::Refused(exchange.into_body(framing)) })
        }
        Err(error) => {
            attempts.failed(&peer, &error, reused);
            Err(error)
        }
    }
}

async fn ask(
    request: &RequestHead,
    attempts: &Attempts<'_>,
    connection: &mut Connection,
) -> Result<(ResponseHead, ResponseFraming, BytesMut), ProxyError> {
    let closed = |error| ProxyError::idempotent(ErrorKind::UpstreamClosed).because(error);
    let policy = &attempts.forwarding.route.route.policy;
    let mut out = Vec::with_capacity(1024);
    write::request(&mut out, request, policy, true, BodyLength::None);
    let stream = connection.stream().map_err(closed)?;
    stream.write_all(&out).await.map_err(closed)?;
    stream.flush().await.map_err(closed)?;
    let mut input = BytesMut::with_capacity(1024);
    let mut head = ResponseHead::default();
    loop {
        if let Some((length, framing)) = parse::response(&input, &request.method, &mut head)? {
            input.advance(length);
            if framing.names_fields {
                parse::remove_named(&mut head.headers);
            }
            let switching = head.status == StatusCode::SWITCHING_PROTOCOLS;
            if switching && !parse::is_offered(&request.headers, &head.headers) {
                let unasked = "an upgrade that nobody asked for";
                return Err(ErrorKind::BadResponse(unasked).into());
            }
            if switching || !head.status.is_informational() {
                return Ok((head, framing, input));
            }
            continue;
        }
        if input.len() > HEAD_BYTES_MAX {
            return Err(ErrorKind::BadResponse("its head is too large").into());
        }
        if stream.read_buf(&mut input).await.map_err(closed)? == 0 {
            return Err(ProxyError::idempotent(ErrorKind::UpstreamClosed));
        }
    }
}
