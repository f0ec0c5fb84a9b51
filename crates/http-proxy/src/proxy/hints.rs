//! Interim responses (103 Early Hints) of an endpoint, on their way to a client.
//!
//! Whoever waits for the response is polled by whoever answers the client: what the one puts here while
//! it is polled, the other takes out right after.

use http::StatusCode;
use parking_lot::Mutex;

use crate::head::ResponseHead;

/// Interim responses that came and were not passed on yet.
#[derive(Debug, Default)]
pub(crate) struct Hints(Mutex<Vec<ResponseHead>>);

impl Hints {
    /// Puts one in. What is between the endpoint and us alone is left out.
    pub(crate) fn put(&self, head: ResponseHead) {
        if head.status != StatusCode::CONTINUE {
            self.0.lock().push(head);
        }
    }

    /// Takes out what is there.
    pub(crate) fn take(&self) -> Vec<ResponseHead> {
        std::mem::take(&mut *self.0.lock())
    }
}
