//! Copies of requests, taken as their bodies pass by.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

use super::HttpProxy;
use crate::body::Body;
use crate::error::ProxyError;
use crate::filter::mirror::{MirrorFilter, RequestCopy};
use crate::head::RequestHead;
use crate::table::Policy;

impl HttpProxy {
    /// The request's body, of which a copy is sent elsewhere when all of it has passed. One without a body
    /// is copied at once.
    pub(super) fn mirrored(
        self: &Arc<Self>,
        mirror: &MirrorFilter,
        request: &RequestHead,
        policy: &Policy,
        body: Body,
    ) -> Body {
        let copy = mirror.begin(request, policy, &self.filters().mirrors);
        if body.is_end_stream() {
            copy.send(&self.filters().mirrors);
            return body;
        }
        Mirrored { body, copy: Some(copy), proxy: Arc::clone(self) }.boxed_unsync()
    }
}

struct Mirrored {
    body: Body,
    copy: Option<RequestCopy>,
    proxy: Arc<HttpProxy>,
}

impl Mirrored {
    fn finish(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.send(&self.proxy.filters().mirrors);
        }
    }
}

impl http_body::Body for Mirrored {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                match (frame.data_ref(), &mut self.copy) {
                    (Some(data), Some(copy)) => copy.push(data),
                    // Trailers come last.
                    (None, _) => self.finish(),
                    (Some(_), None) => {}
                }
                // Who knows that this was the last piece does not ask for another.
                if self.body.is_end_stream() {
                    self.finish();
                }
            }
            // Half a request is not copied.
            Poll::Ready(Some(Err(_))) => self.copy = None,
            Poll::Ready(None) => self.finish(),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
