//! Whether a response may be kept (RFC 9111 §3).

use http::header::{CONTENT_LOCATION, CONTENT_RANGE, COOKIE, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};
use thiserror::Error;

use super::conditional;
use super::control::{Reach, ResponseDirectives, Voice};
use super::fields::Fields;
use super::freshness::Freshness;
use super::key::Key;
use super::moment::Moment;

/// Why a response is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotKept {
    /// The request or the response says so.
    #[error("no-store")]
    NoStore,
    /// It is meant for one client.
    #[error("private")]
    Private,
    /// The request said who asks, and the response does not say that others may have it too.
    #[error("authorization")]
    Authorization,
    /// It sets a cookie, and does not say that everybody may have it.
    #[error("set-cookie")]
    SetCookie,
    /// The client was known by its cookie, and how long the response holds would be a guess.
    #[error("cookie")]
    Cookie,
    /// Answers to that method are not kept.
    #[error("method")]
    Method,
    /// Responses with that status are not kept.
    #[error("status")]
    Status,
    /// No other request could get it.
    #[error("vary")]
    Vary,
    /// It could never be used.
    #[error("no-use")]
    NoUse,
    /// It is larger than what is kept.
    #[error("too-large")]
    TooLarge,
    /// Something was changed or purged while it was fetched.
    #[error("outdated")]
    Outdated,
}

impl NotKept {
    /// The word for `Cache-Status`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::SetCookie => "set-cookie",
            Self::Cookie => "cookie",
            Self::Method => "method",
            Self::Status => "status",
            Self::Vary => "vary",
            Self::NoUse => "no-use",
            Self::TooLarge => "too-large",
            Self::Outdated => "outdated",
        }
    }
}

/// A response and the request that it answers.
pub(crate) struct Exchange<'a> {
    pub(crate) key: &'a Key,
    pub(crate) method: &'a Method,
    pub(crate) request: &'a HeaderMap,
    /// It is known who asks.
    pub(crate) authorized: bool,
    /// The request forbids to keep anything of it.
    pub(crate) request_no_store: bool,
    pub(crate) status: StatusCode,
    pub(crate) response: &'a HeaderMap,
    pub(crate) directives: &'a ResponseDirectives,
    pub(crate) freshness: &'a Freshness,
    pub(crate) received: Moment,
}

impl Exchange<'_> {
    /// Whether the response may be kept.
    pub(crate) fn check(&self) -> Result<(), NotKept> {
        self.check_method()?;
        self.check_status()?;
        self.check_privacy()?;
        // Of use are what is fresh for a while and what can be validated.
        if !self.freshness.is_fresh(self.received) && !conditional::has_validator(self.response) {
            return Err(NotKept::NoUse);
        }
        if self.freshness.always_validate && !conditional::has_validator(self.response) {
            return Err(NotKept::NoUse);
        }
        Ok(())
    }

    fn check_method(&self) -> Result<(), NotKept> {
        if *self.method == Method::GET {
            return Ok(());
        }
        // RFC 9110 §9.3.3: what a POST made can be had from where it says it is.
        let told = self.response.get(CONTENT_LOCATION).and_then(|value| value.to_str().ok());
        let own =
            told.and_then(|told| self.key.resolve(told)).is_some_and(|uri| uri == self.key.uri());
        let kept = *self.method == Method::POST
            && own
            && self.freshness.explicit
            && self.status.is_success();
        if kept { Ok(()) } else { Err(NotKept::Method) }
    }

    fn check_status(&self) -> Result<(), NotKept> {
        let code = self.status.as_u16();
        // A part, and what is no answer of its own.
        if matches!(code, 206 | 304) || self.status.is_informational() {
            return Err(NotKept::Status);
        }
        if is_about_the_request(self.status) {
            return Err(NotKept::Status);
        }
        if self.directives.must_understand && !is_understood(self.status) {
            return Err(NotKept::Status);
        }
        // What passes for a whole response to a request for a part may be one.
        if self.response.contains_key(CONTENT_RANGE)
            && self.request.contains_key(http::header::RANGE)
        {
            return Err(NotKept::Status);
        }
        Ok(())
    }

    fn check_privacy(&self) -> Result<(), NotKept> {
        let directives = self.directives;
        // RFC 9111 §5.2.2.3: who understands the status need not heed the no-store beside it.
        let understood = directives.must_understand && is_understood(self.status);
        if (directives.no_store && !understood) || self.request_no_store {
            return Err(NotKept::NoStore);
        }
        if directives.private == Reach::Whole {
            return Err(NotKept::Private);
        }
        if self.authorized && !directives.shares_authorized() {
            return Err(NotKept::Authorization);
        }
        let for_everybody = directives.public
            || directives.s_maxage_s.is_some()
            || directives.voice == Voice::Targeted;
        let withheld = directives.private.headers().contains(&SET_COOKIE)
            || directives.no_cache.headers().contains(&SET_COOKIE);
        if self.response.contains_key(SET_COOKIE) && !for_everybody && !withheld {
            return Err(NotKept::SetCookie);
        }
        if self.request.has(&COOKIE) && !self.freshness.explicit && !for_everybody {
            return Err(NotKept::Cookie);
        }
        Ok(())
    }
}

/// The statuses that say what was wrong with one request: its fields, its body, its client or its time.
/// Kept, one client's bad request would become everybody's answer.
fn is_about_the_request(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        401 | 406
            | 407
            | 408
            | 411
            | 412
            | 413
            | 415
            | 416
            | 417
            | 421
            | 425
            | 426
            | 428
            | 429
            | 431
            | 511
    )
}

/// The statuses whose rules for caches we know and follow.
fn is_understood(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 302 | 303 | 307 | 308 | 400 | 404 | 405 | 410 | 414 | 500
            ..=505
    )
}
