//! A request's body that may be sent more than once: its first part is kept until an endpoint has
//! answered, so that a small body survives a try that took some of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use crate::body::{self, Body};
use crate::error::ProxyError;

/// How much is kept, and in how many pieces.
const KEPT_BYTES_MAX: usize = 64 << 10;
const KEPT_PIECES_MAX: usize = 128;

/// A body for as many tries as it lasts.
pub(super) struct Repeatable {
    /// `None` if there is no body, which can be sent for ever.
    source: Option<Arc<Mutex<Source>>>,
    length: SizeHint,
}

/// What the tries have in common. One of them reads at a time.
struct Source {
    /// What nobody has read yet.
    rest: Body,
    over: bool,
    kept: Vec<Piece>,
    bytes: usize,
    /// Whether all that was read is kept, and what is read will be.
    keeps: bool,
}

#[derive(Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Repeatable {
    pub(super) fn new(body: Body) -> Self {
        let length = body.size_hint();
        let source = (!body.is_end_stream()).then(|| {
            let source =
                Source { rest: body, over: false, kept: Vec::new(), bytes: 0, keeps: true };
            Arc::new(Mutex::new(source))
        });
        Self { source, length }
    }

    /// The body for one more try, if it is [whole](Self::is_whole).
    pub(super) fn again(&self) -> Body {
        let Some(source) = &self.source else { return body::empty() };
        let left = self.length.exact();
        Try { source: Arc::clone(source), at: 0, left }.boxed_unsync()
    }

    /// Whether another try would get all of it.
    pub(super) fn is_whole(&self) -> bool {
        self.source.as_ref().is_none_or(|source| source.lock().keeps)
    }

    /// No other try follows.
    pub(super) fn let_go(&self) {
        if let Some(source) = &self.source {
            source.lock().keeps = false;
        }
    }
}

impl Source {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        let piece = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Piece::Data(data.clone()),
            (None, Some(trailers)) => Piece::Trailers(trailers.clone()),
            (None, None) => return,
        };
        self.bytes += frame.data_ref().map_or(0, Bytes::len);
        if self.bytes > KEPT_BYTES_MAX || self.kept.len() >= KEPT_PIECES_MAX {
            self.keeps = false;
        } else {
            self.kept.push(piece);
        }
    }
}

/// The body as one try reads it.
struct Try {
    source: Arc<Mutex<Source>>,
    /// How many of the kept pieces it has read.
    at: usize,
    left: Option<u64>,
}

impl http_body::Body for Try {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let this = &mut *self;
        let mut source = this.source.lock();
        let frame = if let Some(piece) = source.kept.get(this.at) {
            this.at += 1;
            match piece.clone() {
                Piece::Data(data) => Frame::data(data),
                Piece::Trailers(trailers) => Frame::trailers(trailers),
            }
        } else {
            if !source.keeps {
                source.kept = Vec::new();
                this.at = 0;
            }
            if source.over {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut source.rest).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if source.keeps {
                        source.keep(&frame);
                        this.at += 1;
                    }
                    frame
                }
                other => {
                    source.over = true;
                    // A body that broke off is no whole one.
                    source.keeps &= other.is_none();
                    return Poll::Ready(other);
                }
            }
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        this.left = this.left.map(|left| left.saturating_sub(length));
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let source = self.source.lock();
        self.at >= source.kept.len() && (source.over || source.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
