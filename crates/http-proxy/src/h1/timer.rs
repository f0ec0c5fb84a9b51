//! One deadline per connection that is moved often and expires seldom.
//!
//! Moving a timer of the runtime for each request would cost more than parsing it. So only a number
//! is moved; the runtime's timer stands where it was last set, and when it rings too early it is set
//! anew.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

/// The deadline of what a connection waits for.
#[derive(Debug)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    at: Instant,
}

impl Timer {
    pub(crate) fn new(at: Instant) -> Self {
        Self { sleep: None, at }
    }

    /// The deadline.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Moves the deadline.
    pub(crate) fn set(&mut self, at: Instant) {
        self.at = at;
    }

    /// Moves the deadline, unless it is earlier already.
    pub(crate) fn set_earlier(&mut self, at: Instant) {
        self.at = self.at.min(at);
    }

    /// Whether the deadline has passed; if not, the task is woken then. To be asked after whatever
    /// is waited for was pending.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> bool {
        let at = self.at;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
        if sleep.deadline().into_std() > at {
            sleep.as_mut().reset(at.into());
        }
        // Twice: a timer that rang too early is set anew and asked again.
        for _ in 0..2 {
            match sleep.as_mut().poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(()) if Instant::now() >= at => return true,
                Poll::Ready(()) => sleep.as_mut().reset(at.into()),
            }
        }
        // The deadline is less than the timer's grain away.
        cx.waker().wake_by_ref();
        false
    }
}

/// A moment that far away, or the far future.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_hours(24))
}
