//! A request's body as it comes from a client, and what becomes of the part that nobody reads.
//!
//! A request may be answered before all of it is here: too large, not allowed, nobody to take it. To
//! end its stream then takes RST_STREAM(NO_ERROR), and widespread clients lose the answer over
//! that. So whoever drops the body leaves the rest for [`Rest::drain`], which reads a little more:
//! a small body comes to its own end, and only a large or slow one is cut.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::error::{ErrorKind, ProxyError};

/// How much of a body is read that nobody wants, and for how long.
const DRAINED_BYTES_MAX: usize = 64 << 10;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// Where the rest of a body is left.
#[derive(Debug, Clone, Default)]
pub(super) struct Rest(Option<Arc<Mutex<Option<RecvStream>>>>);

impl Rest {
    /// Reads what was left, within bounds. The stream's other half must be held meanwhile.
    pub(super) async fn drain(self) {
        let rest = self.0.and_then(|place| place.lock().take());
        let Some(mut rest) = rest else { return };
        let reading = async {
            let mut read = 0;
            while let Some(Ok(data)) = rest.data().await {
                read += data.len();
                if read > DRAINED_BYTES_MAX {
                    return;
                }
                let _ = rest.flow_control().release_capacity(data.len());
            }
        };
        // A client that is too slow is cut as one that sends too much.
        let _ = tokio::time::timeout(DRAIN_TIME_MAX, reading).await;
    }
}

/// A request's body as it comes.
pub(super) struct ClientBody {
    /// There until it is taken.
    receive: Option<RecvStream>,
    data_over: bool,
    over: bool,
    left: Option<u64>,
    rest: Rest,
}

impl ClientBody {
    /// With the length that was announced; and where its rest will be.
    pub(super) fn new(receive: RecvStream, length: Option<u64>) -> (Self, Rest) {
        let place = (!receive.is_end_stream()).then(Arc::default);
        let rest = Rest(place);
        let receive = Some(receive);
        (Self { receive, data_over: false, over: false, left: length, rest: rest.clone() }, rest)
    }

    /// The stream itself, for what is no body.
    pub(super) fn into_stream(mut self) -> Option<RecvStream> {
        self.receive.take()
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if !self.over
            && let Some(place) = &self.rest.0
        {
            *place.lock() = self.receive.take();
        }
    }
}

impl http_body::Body for ClientBody {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let gone =
            |error| ProxyError::new(ErrorKind::ClientGone).because(std::io::Error::other(error));
        let this = &mut *self;
        let Some(receive) = this.receive.as_mut().filter(|_| !this.over) else {
            return Poll::Ready(None);
        };
        if !this.data_over {
            match ready!(receive.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Whoever takes it passes it on before asking for more.
                    let _ = receive.flow_control().release_capacity(data.len());
                    this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    this.over = true;
                    return Poll::Ready(Some(Err(gone(error))));
                }
                None => this.data_over = true,
            }
        }
        let mut trailers = ready!(receive.poll_trailers(cx));
        this.over = true;
        if let Ok(Some(trailers)) = &mut trailers {
            // The guard's mark.
            trailers.remove(http::header::HOST);
        }
        Poll::Ready(trailers.map_err(gone).transpose().map(|map| map.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.receive.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
