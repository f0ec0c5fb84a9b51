//! How slowly a client may send a body.
//!
//! A body has to come: whoever sends a byte now and then would hold an endpoint's connection for as long
//! as he likes. So a body has credit. Waiting for the client uses it up, bytes that come give some back,
//! and there is never more than a minute of it: a body below the rate ends with 408 after half a minute,
//! however it is spread over time, and one above it may pause. Only waiting for the client counts. What
//! the endpoint leaves unread costs nothing, and once it has begun to answer the two are in conversation:
//! then only the time-outs of pauses hold. Calls that are streams by nature are left alone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::body::Body;
use crate::error::{ErrorKind, ProxyError};
use crate::h1::timer::{Timer, after};
use crate::h2::grpc::is_grpc;
use crate::head::{Known, RequestHead};

/// What a body may wait for before anything of it comes.
const CREDIT: Duration = Duration::from_secs(30);
/// The most that it can have to its credit.
const CREDIT_MAX: Duration = Duration::from_mins(1);

/// The pace of one body.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_s_min: u32,
    credit: Duration,
    /// Since when the client is waited for.
    since: Option<Instant>,
}

impl Pace {
    /// Of a request's body; 0 asks for nothing.
    pub(crate) fn new(bytes_per_s_min: u32, request: &RequestHead) -> Self {
        if is_stream(request) { Self::none() } else { Self { bytes_per_s_min, ..Self::none() } }
    }

    /// Of no body, or of one that may take its time.
    pub(crate) fn none() -> Self {
        Self { bytes_per_s_min: 0, credit: CREDIT, since: None }
    }

    /// Whether anything is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.bytes_per_s_min > 0
    }

    /// The client is waited for; until when, if there is a bound.
    pub(crate) fn wait(&mut self, now: Instant) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        self.is_asked().then(|| after(since, self.credit))
    }

    /// Somebody else is waited for, or nobody.
    pub(crate) fn pause(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.credit = self.credit.saturating_sub(now.saturating_duration_since(since));
        }
    }

    /// So much came.
    pub(crate) fn came(&mut self, bytes: usize, now: Instant) {
        self.pause(now);
        if self.is_asked() {
            let worth = Duration::from_secs(1)
                .saturating_mul(bytes.try_into().unwrap_or(u32::MAX))
                .checked_div(self.bytes_per_s_min)
                .unwrap_or_default();
            self.credit = self.credit.saturating_add(worth).min(CREDIT_MAX);
        }
    }
}

/// Whether a request's body is a stream of messages, which come when there is something to say.
fn is_stream(request: &RequestHead) -> bool {
    let kind = request.headers.get_known(Known::ContentType).unwrap_or_default();
    is_grpc(request) || kind.starts_with(b"application/connect+")
}

/// Says that the endpoint answers: from then on the body may take its time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answered(Option<Arc<AtomicBool>>);

impl Answered {
    pub(crate) fn set(&self) {
        if let Some(answered) = &self.0 {
            answered.store(true, Relaxed);
        }
    }
}

/// A body that must keep its pace until the request is answered.
pub(crate) fn paced(body: Body, pace: Pace) -> (Body, Answered) {
    if body.is_end_stream() || !pace.is_asked() {
        return (body, Answered::default());
    }
    let (timer, answered) = (Timer::new(Instant::now()), Arc::<AtomicBool>::default());
    let paced = Paced { body, pace, timer, answered: Arc::clone(&answered) };
    (paced.boxed_unsync(), Answered(Some(answered)))
}

struct Paced {
    body: Body,
    pace: Pace,
    timer: Timer,
    answered: Arc<AtomicBool>,
}

impl http_body::Body for Paced {
    type Data = Bytes;
    type Error = ProxyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if this.answered.load(Relaxed) {
            return frame;
        }
        // Who asks takes what comes: whenever he waits, it is for the client.
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                this.pace.came(bytes, Instant::now());
            }
            Poll::Ready(_) => {}
            Poll::Pending => {
                if let Some(at) = this.pace.wait(Instant::now()) {
                    this.timer.set(at);
                    if this.timer.poll_expired(cx) {
                        return Poll::Ready(Some(Err(ErrorKind::RequestTimeout.into())));
                    }
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(kind: &str) -> Pace {
        let mut request = RequestHead::new();
        request.headers.push_known(Known::ContentType, kind);
        Pace::new(240, &request)
    }

    /// Waits so long for a piece of so many bytes; whether it still could.
    fn piece(pace: &mut Pace, now: &mut Instant, seconds: u64, bytes: usize) -> bool {
        let end = pace.wait(*now).unwrap();
        *now += Duration::from_secs(seconds);
        pace.came(bytes, *now);
        *now < end
    }

    #[test]
    fn drops_are_cut_after_half_a_minute_and_slow_bodies_go_on() {
        let (mut drops, mut now) = (pace("text/plain"), Instant::now());
        let count = (0..10_000).take_while(|_| piece(&mut drops, &mut now, 1, 1)).count();
        assert!((29..=31).contains(&count), "{count}");
        let mut slow = pace("text/plain");
        assert!((0..10_000).all(|_| piece(&mut slow, &mut now, 5, 1_300)));
        // A pause may be as long as it would be without a rate, after a while of more.
        assert!(piece(&mut slow, &mut now, 1, 1 << 20));
        assert!(piece(&mut slow, &mut now, 59, 1 << 20));
        assert!(!piece(&mut slow, &mut now, 61, 1 << 20), "what came before is worth a minute");
    }

    #[test]
    fn waiting_for_somebody_else_costs_nothing_and_streams_have_no_pace() {
        let (mut held_up, mut now) = (pace("text/plain"), Instant::now());
        for _ in 0..1_000 {
            assert!(held_up.wait(now).unwrap() > now);
            held_up.pause(now);
            now += Duration::from_secs(59);
        }
        for kind in ["application/grpc", "application/grpc+proto", "application/connect+json"] {
            assert_eq!(pace(kind).wait(now), None, "{kind}");
        }
        assert!(!Pace::new(0, &RequestHead::new()).is_asked());
    }
}
