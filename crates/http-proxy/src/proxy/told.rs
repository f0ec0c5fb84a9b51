//! Requests' trailers, without what only an authenticating server may say: its fields are looked after in the
//! head, and some servers put trailers among them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::body::Body;
use crate::error::ProxyError;
use crate::table::Policy;

/// A request's body, whose trailers say nothing that the policy leaves to somebody else.
pub(super) fn without_told(body: Body, policy: &Arc<Policy>) -> Body {
    if policy.auth.is_empty() || body.is_end_stream() {
        return body;
    }
    WithoutTold { body, policy: Arc::clone(policy) }.boxed_unsync()
}

struct WithoutTold {
    body: Body,
    policy: Arc<Policy>,
}

impl http_body::Body for WithoutTold {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            let told = trailers.keys().filter(|name| !self.policy.may_trail(name.as_str()));
            for name in told.cloned().collect::<Vec<_>>() {
                trailers.remove(name);
            }
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
