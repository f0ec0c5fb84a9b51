//! Asking the cache on a client's connection, and fetching behind a client's back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::Method;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffer::Buffer;
use super::parse::{BodyLength, RequestFraming};
use super::relay::{Client, Exchange};
use super::serve::{Connection, give_back, take_exchange};
use super::timer::{Timer, after};
use crate::cache::{Asked, Fetch, Lookup};
use crate::proxy::Forwarding;
use crate::reply::Reply;
use crate::table::CachePolicy;
use crate::upstream::connect::Io;

impl<S: Io> Connection<S> {
    /// The cache's answer to a request, or the fetch by which it wants the origin asked. The request
    /// is then the fetch's.
    pub(super) async fn ask_cache(
        &mut self,
        exchange: &mut Exchange,
        framing: RequestFraming,
        forwarding: &Forwarding,
    ) -> Result<Reply, Box<Fetch>> {
        let none = CachePolicy::default();
        let asked = Asked {
            method: &exchange.request.method,
            key: forwarding.keyed.as_ref(),
            headers: &exchange.request.headers,
            has_body: framing.body != BodyLength::None || framing.upgrade,
            policy: forwarding.route.route.policy.cache.as_ref().unwrap_or(&none),
        };
        let found = self.proxy.cache().find(&asked).await;
        let mut reply = match found {
            Lookup::Hit(reply) | Lookup::Stale(reply, None) => reply,
            Lookup::Stale(reply, Some(fetch)) => {
                self.fetch_behind(exchange, forwarding, fetch);
                reply
            }
            Lookup::Fetch(fetch) => {
                fetch.prepare(&mut exchange.request.headers);
                return Err(fetch);
            }
            // Nobody waits twice.
            Lookup::Wait(_) => {
                return Ok(Reply::error(crate::ErrorKind::Internal("waited twice"), None));
            }
        };
        forwarding.edit_stored(&mut reply.head);
        Ok(reply)
    }

    /// Asks the origin while the client has its answer.
    fn fetch_behind(&self, exchange: &Exchange, forwarding: &Forwarding, fetch: Box<Fetch>) {
        let mut connection = Connection {
            proxy: self.proxy.clone(),
            client: Client {
                io: Nobody,
                buffer: Buffer::default(),
                timer: Timer::new(after(Instant::now(), self.proxy.settings().timeouts.head)),
            },
            info: self.info.clone(),
            scheme: self.scheme,
            stop: self.stop.clone(),
            quiet: true,
        };
        let mut own = take_exchange(&self.info, self.scheme);
        own.request.clone_from(&exchange.request);
        own.request.method = Method::GET;
        fetch.prepare(&mut own.request.headers);
        let forwarding = forwarding.clone();
        let framing = RequestFraming {
            body: BodyLength::None,
            keep_alive: false,
            upgrade: false,
            expects_continue: false,
            names_fields: false,
        };
        tokio::spawn(async move {
            connection.forward(&mut own, framing, &forwarding, Some(fetch), Instant::now()).await;
            give_back(own);
        });
    }
}

/// A client that takes everything and says nothing.
#[derive(Debug)]
struct Nobody;

impl AsyncRead for Nobody {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Nobody {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
