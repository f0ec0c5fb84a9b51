//! Who is told of each request when it is over: access log, metrics, traces.

use std::time::{Duration, Instant};

use http::StatusCode;

use crate::error::ErrorKind;
use crate::head::RequestHead;
use crate::router::Compiled;
use crate::table::EndpointAddress;
use crate::watch::stats::CacheUse;

/// How a request went.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// The status that the client got.
    pub status: StatusCode,
    /// The route that it took.
    pub route: Option<&'a Compiled>,
    /// The endpoint of the last try.
    pub endpoint: Option<&'a EndpointAddress>,
    /// How often it was tried.
    pub tries: u32,
    /// From the head's arrival to the end.
    pub duration: Duration,
    /// Until the endpoint's head was here.
    pub upstream: Option<Duration>,
    /// The response body's bytes.
    pub body_bytes: u64,
    /// What went wrong.
    pub error: Option<ErrorKind>,
    /// What the cache was for it, where the route has one.
    pub cache: Option<CacheUse>,
}

impl<'a> Outcome<'a> {
    /// Of a request that we answered ourselves.
    pub fn answered(status: StatusCode, route: Option<&'a Compiled>, begun: Instant) -> Self {
        Self { status, route, ..Self::new(begun) }
    }

    /// Of a request that could not be served.
    pub fn refused(kind: ErrorKind, route: Option<&'a Compiled>, begun: Instant) -> Self {
        Self { status: kind.status(), error: Some(kind), route, ..Self::new(begun) }
    }

    /// Of a request that began then: no more is known of it.
    pub fn new(begun: Instant) -> Self {
        Self::until(begun, Instant::now())
    }

    /// Of a request that began and ended then: no more is known of it.
    pub fn until(begun: Instant, ended: Instant) -> Self {
        Self {
            status: StatusCode::OK,
            route: None,
            endpoint: None,
            tries: 0,
            duration: ended.saturating_duration_since(begun),
            upstream: None,
            body_bytes: 0,
            error: None,
            cache: None,
        }
    }
}

/// Is told of each request. Called on the serving path: it must be quick and never wait.
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// A request is over.
    fn finished(&self, request: &RequestHead, outcome: &Outcome<'_>);

    /// How many lines and spans were dropped because too many waited.
    fn dropped(&self) -> (u64, u64) {
        (0, 0)
    }
}
