//! What can go wrong with a request: what it is, on whose side, and whether trying again can help.

use std::io;

use http::StatusCode;
use thiserror::Error;

/// On whose side a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client's: it sent what we refuse, or went away.
    Client,
    /// The backend's.
    Upstream,
    /// Ours: no route, a limit, or a fault.
    Proxy,
}

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum ErrorKind {
    /// The request breaks the protocol or can be read in two ways.
    #[error("the request is malformed: {0}")]
    BadRequest(&'static str),
    /// The head or the body did not come in time.
    #[error("the request did not come in time")]
    RequestTimeout,
    /// The body is larger than the route allows.
    #[error("the request's body is too large")]
    BodyTooLarge,
    /// The request target is too long.
    #[error("the request's address is too long")]
    UriTooLong,
    /// The head is too large or has too many fields.
    #[error("the request's header is too large")]
    HeaderTooLarge,
    /// The expectation is none that we know.
    #[error("the request expects what we do not know")]
    ExpectationFailed,
    /// The method or encoding is one that a proxy does not do.
    #[error("the request asks for what a proxy does not do")]
    NotImplemented,
    /// The host is not one that this connection is for.
    #[error("this connection is not for that host")]
    Misdirected,
    /// The client went away.
    #[error("the client went away")]
    ClientGone,
    /// No route matches.
    #[error("nothing is served here")]
    NoRoute,
    /// No endpoint can take the request.
    #[error("no endpoint of the service is available")]
    NoEndpoint,
    /// The backend's bounds are reached.
    #[error("the service has as many requests as it may")]
    Overloaded,
    /// No connection to the endpoint.
    #[error("the endpoint cannot be reached")]
    Connect,
    /// The endpoint could not be reached in time.
    #[error("the endpoint could not be reached in time")]
    ConnectTimeout,
    /// The connection broke before the response began.
    #[error("the endpoint closed the connection without an answer")]
    UpstreamClosed,
    /// The response did not come in time.
    #[error("the endpoint did not answer in time")]
    UpstreamTimeout,
    /// What came is not a response that can be passed on.
    #[error("the endpoint's response is malformed: {0}")]
    BadResponse(&'static str),
    /// The connection broke amid the response.
    #[error("the endpoint broke off its response")]
    ResponseCut,
    /// A fault of ours.
    #[error("internal error: {0}")]
    Internal(&'static str),
}

impl ErrorKind {
    /// On whose side it is.
    pub fn side(self) -> Side {
        match self {
            Self::BadRequest(_)
            | Self::RequestTimeout
            | Self::BodyTooLarge
            | Self::UriTooLong
            | Self::HeaderTooLarge
            | Self::ExpectationFailed
            | Self::NotImplemented
            | Self::Misdirected
            | Self::ClientGone => Side::Client,
            Self::NoRoute | Self::NoEndpoint | Self::Overloaded | Self::Internal(_) => Side::Proxy,
            Self::Connect
            | Self::ConnectTimeout
            | Self::UpstreamClosed
            | Self::UpstreamTimeout
            | Self::BadResponse(_)
            | Self::ResponseCut => Side::Upstream,
        }
    }

    /// The status that tells the client.
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::HeaderTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            // Nobody reads it; the access log shows what nginx shows.
            Self::ClientGone => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::NoEndpoint | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::Connect | Self::UpstreamClosed | Self::BadResponse(_) | Self::ResponseCut => {
                StatusCode::BAD_GATEWAY
            }
            Self::ConnectTimeout | Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Whether another endpoint, or the same again, may do better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryHint {
    /// It would end the same way, or the client would see it twice.
    Never,
    /// Nothing of the request reached a backend: any request may be sent again.
    Unsent,
    /// The backend may have begun: only idempotent requests may be sent again.
    Idempotent,
}

/// A request's failure.
#[derive(Debug, Error)]
#[error("{kind}")]
pub struct ProxyError {
    /// What it is.
    pub kind: ErrorKind,
    /// Whether trying again may help.
    pub retry: RetryHint,
    /// What the operating system said.
    #[source]
    pub source: Option<io::Error>,
}

impl ProxyError {
    /// A failure that is final.
    pub fn new(kind: ErrorKind) -> Self {
        Self { kind, retry: RetryHint::Never, source: None }
    }

    /// A failure of which nothing reached a backend.
    pub fn unsent(kind: ErrorKind) -> Self {
        Self { kind, retry: RetryHint::Unsent, source: None }
    }

    /// A failure after the request was sent, or part of it.
    pub fn idempotent(kind: ErrorKind) -> Self {
        Self { kind, retry: RetryHint::Idempotent, source: None }
    }

    /// With what the operating system said.
    #[must_use]
    pub fn because(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }

    /// On whose side it is.
    pub fn side(&self) -> Side {
        self.kind.side()
    }

    /// The status that tells the client.
    pub fn status(&self) -> StatusCode {
        self.kind.status()
    }
}

impl From<ErrorKind> for ProxyError {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}
