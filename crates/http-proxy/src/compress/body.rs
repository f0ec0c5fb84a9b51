//! Bodies that are compressed while they pass by.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

use super::{Encoder, Plan};
use crate::body::{self, Body};
use crate::error::{ErrorKind, ProxyError};
use crate::head::{RequestHead, ResponseHead};
use crate::table::Compress;

/// Compresses a response, if it is worth it and the client takes it.
pub(crate) fn apply(
    policy: &Compress,
    request: &RequestHead,
    (mut head, body): (ResponseHead, Body),
) -> (ResponseHead, Body) {
    if !policy.enabled {
        return (head, body);
    }
    let before = head.headers.clone();
    let Some(plan) = Plan::make(policy, request, &mut head, body::length(&body)) else {
        return (head, body);
    };
    match Encoder::new(plan.coding) {
        Ok(encoder) => {
            (head, Compressed { body, encoder, trailers: None, done: false }.boxed_unsync())
        }
        Err(error) => {
            tracing::warn!(%error, "a response goes as it is: it cannot be compressed");
            head.headers = before;
            (head, body)
        }
    }
}

struct Compressed {
    body: Body,
    encoder: Encoder,
    /// What follows the end.
    trailers: Option<Frame<Bytes>>,
    done: bool,
}

impl Compressed {
    /// The next piece, if there is one now.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, ProxyError>> {
        let broken = |error: io::Error| {
            ProxyError::new(ErrorKind::Internal("a response could not be compressed"))
                .because(error)
        };
        loop {
            let piece = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.encoder.push(&data),
                    Err(trailers) => {
                        self.trailers = Some(trailers);
                        self.done = true;
                        self.encoder.finish()
                    }
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => {
                    self.done = true;
                    self.encoder.finish()
                }
                // Nothing more for now: what is there must not wait for it.
                Poll::Pending if self.encoder.has_pending() => self.encoder.flush(),
                Poll::Pending => return Poll::Pending,
            };
            let piece = piece.map_err(broken)?;
            if self.done || !piece.is_empty() {
                return Poll::Ready(Ok(piece));
            }
        }
    }
}

impl http_body::Body for Compressed {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        if self.done {
            return Poll::Ready(self.trailers.take().map(Ok));
        }
        self.poll_piece(cx).map(|piece| Some(piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.done && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
