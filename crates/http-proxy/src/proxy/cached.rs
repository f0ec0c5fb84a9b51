//! The cache on a request's way: asked before the backend, told of its answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

use super::attempts::Attempts;
use super::{Forwarding, HttpProxy};
use crate::body::{self, Body};
use crate::cache::{Asked, Fetch, Lookup, Moment, Writer};
use crate::error::{ProxyError, Side};
use crate::head::{RequestHead, ResponseHead};
use crate::reply::Reply;
use crate::table::CachePolicy;
use crate::watch::stats::CacheUse;

/// How often the cache is cleaned.
const CLEANING: Duration = Duration::from_mins(1);

impl HttpProxy {
    /// Gets the response to a request from the cache, or by way of it. Whoever may not make the request
    /// has been refused before.
    pub(super) async fn forward_cached(
        self: &Arc<Self>,
        request: &RequestHead,
        body: Body,
        attempts: &mut Attempts<'_>,
    ) -> Result<(ResponseHead, Body), ProxyError> {
        let forwarding = attempts.forwarding;
        let none = CachePolicy::default();
        let asked = Asked {
            method: &request.method,
            key: forwarding.keyed.as_ref(),
            headers: &request.headers,
            has_body: !body.is_end_stream(),
            known: forwarding.knows_client(),
            policy: forwarding.route.route.policy.cache.as_ref().unwrap_or(&none),
        };
        let fetch = match self.cache().find(&asked).await {
            Lookup::Hit(reply) => {
                attempts.cache = Some(CacheUse::Hit);
                return Ok(forwarding.stored(request, reply));
            }
            Lookup::Stale(reply, fetch) => {
                attempts.cache = Some(CacheUse::Stale);
                if let Some(fetch) = fetch {
                    self.fetch_behind(request, forwarding, fetch);
                }
                return Ok(forwarding.stored(request, reply));
            }
            Lookup::Fetch(fetch) => Some(fetch),
            // Who has waited goes on alone.
            Lookup::Wait(_) => None,
        };
        attempts.cache = Some(CacheUse::Miss);
        let mut prepared = request.clone();
        if let Some(fetch) = &fetch {
            fetch.prepare(&mut prepared.headers);
        }
        attempts.fetch = fetch;
        let error = match self.forward_streamed(&prepared, body, attempts).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        // What the cache has left is better than nothing.
        let stale = attempts.fetch.take().and_then(|fetch| fetch.failed(Moment::now()));
        let stale = stale.filter(|_| error.side() != Side::Client);
        let Some(reply) = stale else { return Err(error) };
        attempts.cache = Some(CacheUse::Stale);
        Ok(forwarding.stored(request, reply))
    }

    /// Takes away what is of no use any more, now and then.
    pub(crate) async fn tend_cache(self: Arc<Self>) {
        let mut tick = tokio::time::interval(CLEANING);
        loop {
            tick.tick().await;
            // Who never asked for a cache has none to clean.
            let Some(cache) = self.cache.get().cloned() else { continue };
            let cleaning = tokio::task::spawn_blocking(move || cache.clean_expired(Moment::now()));
            if let Ok(count @ 1..) = cleaning.await {
                tracing::debug!(count, "outdated responses are no longer kept");
            }
        }
    }

    /// Asks the backend while the client has its answer.
    fn fetch_behind(
        self: &Arc<Self>,
        request: &RequestHead,
        forwarding: &Forwarding,
        fetch: Box<Fetch>,
    ) {
        let (proxy, forwarding) = (Arc::clone(self), forwarding.behind());
        let mut request = request.clone();
        request.method = Method::GET;
        fetch.prepare(&mut request.headers);
        tokio::spawn(async move {
            let mut attempts = Attempts::new(&forwarding, Instant::now());
            attempts.fetch = Some(fetch);
            let response = proxy.forward_streamed(&request, body::empty(), &mut attempts).await;
            if let Ok((_, mut body)) = response {
                // It is kept as it passes by; an end of it that is none leaves what was there.
                while let Some(Ok(_)) = body.frame().await {}
            }
        });
    }
}

impl Forwarding {
    /// A response of the cache's as the client gets it.
    pub(super) fn stored(&self, request: &RequestHead, reply: Reply) -> (ResponseHead, Body) {
        let Reply { mut head, body, .. } = reply;
        self.edit_stored(request, &mut head);
        if request.method == Method::HEAD {
            if head.status == StatusCode::NOT_MODIFIED {
                // Its length would be the stored response's (RFC 9110 §8.6), which nobody asked for.
                return (head, body::empty());
            }
            head.headers.set("content-length", body.len().to_string());
            return (head, body::empty());
        }
        (head, body::full(body))
    }
}

/// A body that is kept while it passes by.
pub(super) fn kept(body: Body, writer: Box<Writer>) -> Body {
    if body.is_end_stream() {
        writer.finish(Moment::now());
        return body;
    }
    Kept { body, writer: Some(writer) }.boxed_unsync()
}

struct Kept {
    body: Body,
    writer: Option<Box<Writer>>,
}

impl http_body::Body for Kept {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => match (frame.data_ref(), &mut self.writer) {
                (Some(data), Some(own)) => {
                    own.push(data);
                    // Who knows that this was the last piece does not ask for another.
                    if self.body.is_end_stream() {
                        finish(&mut self.writer);
                    }
                }
                // Trailers come last.
                (None, writer) => finish(writer),
                (Some(_), None) => {}
            },
            // A body that was cut is not kept.
            Poll::Ready(Some(Err(_))) => self.writer = None,
            Poll::Ready(None) => finish(&mut self.writer),
            Poll::Pending => {}
        }
        frame
    }

    /// Not before it is kept: who is told does not ask any more.
    fn is_end_stream(&self) -> bool {
        self.writer.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn finish(writer: &mut Option<Box<Writer>>) {
    if let Some(writer) = writer.take() {
        writer.finish(Moment::now());
    }
}
