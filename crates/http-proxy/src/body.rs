//! Bodies as streams, for everything that is not h1 on both sides: h2, the cache, compression.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use tokio::sync::mpsc;

use crate::error::ProxyError;

/// A body of any origin.
pub type Body = UnsyncBoxBody<Bytes, ProxyError>;

/// No body.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is all there.
pub fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The length that a body announces: `Some(0)` if there is none, `None` if nobody knows.
pub fn length(body: &Body) -> Option<u64> {
    if body.is_end_stream() { Some(0) } else { body.size_hint().exact() }
}

/// How many pieces wait between two tasks.
const PIECES_MAX: usize = 2;

/// A body that another task writes. The writer waits while pieces pile up.
pub(crate) fn channel(
    length: Option<u64>,
) -> (mpsc::Sender<Result<Frame<Bytes>, ProxyError>>, Body) {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    (sender, ChannelBody { pieces, left: length }.boxed_unsync())
}

struct ChannelBody {
    pieces: mpsc::Receiver<Result<Frame<Bytes>, ProxyError>>,
    left: Option<u64>,
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let piece = self.pieces.poll_recv(cx);
        if let Poll::Ready(Some(Ok(frame))) = &piece
            && let (Some(left), Some(data)) = (&mut self.left, frame.data_ref())
        {
            *left = left.saturating_sub(data.len() as u64);
        }
        piece
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
