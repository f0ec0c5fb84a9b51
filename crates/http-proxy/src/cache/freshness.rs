//! How long a response is fresh, and how old it is (RFC 9111 §4.2).

use std::time::Duration;

use http::header::{AGE, DATE, EXPIRES, LAST_MODIFIED};
use http::{HeaderMap, StatusCode};

use super::control::{self, Reach, ResponseDirectives, Voice};
use super::date::Date;
use super::moment::Moment;

#[cfg(test)]
mod tests;

/// A response without freshness of its own is fresh for this part of the time since it last changed.
const HEURISTIC_PART: u64 = 10;
/// The longest time that we guess.
const HEURISTIC_S_MAX: u64 = 24 * 60 * 60;

/// How long a response can be used, worked out once, when it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Freshness {
    /// How long it is fresh, from when it was made.
    pub(crate) lifetime: Duration,
    /// Whether the origin said so, and we did not guess.
    pub(crate) explicit: bool,
    /// How old it was when it came.
    initial_age: Duration,
    /// When it came.
    received: Moment,
    /// It must be validated before each use.
    pub(crate) always_validate: bool,
    /// It may be used when it is no longer fresh, if there is a reason to.
    pub(crate) may_be_stale: bool,
    /// How long after its end it may be used while it is fetched anew.
    pub(crate) while_revalidating: Duration,
    /// How long after its end it may be used while the origin fails.
    pub(crate) if_error: Option<Duration>,
}

/// What a route says about freshness where a response does not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    pub(crate) lifetime: Option<Duration>,
    pub(crate) while_revalidating: Option<Duration>,
    pub(crate) if_error: Option<Duration>,
}

impl Freshness {
    /// Works it out for a response that was asked for and came at these moments.
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        directives: &ResponseDirectives,
        defaults: Defaults,
        (asked, received): (Moment, Moment),
    ) -> Self {
        let date_s = Date::of(headers, DATE).known().unwrap_or(received.unix_s());
        let explicit = explicit_lifetime_s(headers, directives, date_s);
        let default = defaults.lifetime.filter(|_| takes_default(status));
        let lifetime = explicit.map(Duration::from_secs).or(default).unwrap_or_else(|| {
            Duration::from_secs(heuristic_lifetime_s(status, headers, directives, date_s))
        });
        // An origin that gives leave in so many words knows what s-maxage forbids.
        let told =
            directives.stale_while_revalidate_s.is_some() || directives.stale_if_error_s.is_some();
        let forbidden = directives.must_revalidate
            || directives.proxy_revalidate
            || (directives.s_maxage_s.is_some() && !told);
        let always_validate = directives.no_cache == Reach::Whole;
        let told_s = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        Self {
            lifetime,
            explicit: explicit.is_some(),
            initial_age: initial_age(headers, date_s, asked, received),
            received,
            always_validate,
            may_be_stale: !forbidden && !always_validate,
            while_revalidating: told_s(directives.stale_while_revalidate_s)
                .or(defaults.while_revalidating)
                .unwrap_or_default(),
            if_error: told_s(directives.stale_if_error_s).or(defaults.if_error),
        }
    }

    /// How old it is.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        self.initial_age + now.since(self.received)
    }

    /// How long it stays fresh.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        self.lifetime.saturating_sub(self.age(now))
    }

    /// How long it has been stale; nothing if it is fresh.
    pub(crate) fn staleness(&self, now: Moment) -> Duration {
        self.age(now).saturating_sub(self.lifetime)
    }

    /// Whether it is fresh.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.lifetime > self.age(now)
    }

    /// Whether it may be used while it is fetched anew.
    pub(crate) fn serves_while_revalidating(&self, now: Moment) -> bool {
        self.may_be_stale && self.staleness(now) < self.while_revalidating
    }

    /// When it came.
    pub(crate) fn received(&self) -> Moment {
        self.received
    }
}

/// RFC 9111 §4.2.1, in the order in which it counts for a cache that is shared.
fn explicit_lifetime_s(
    headers: &HeaderMap,
    directives: &ResponseDirectives,
    date_s: u64,
) -> Option<u64> {
    let told = directives.s_maxage_s.or(directives.max_age_s);
    if told.is_some() || directives.voice == Voice::Targeted {
        return told;
    }
    match Date::of(headers, EXPIRES) {
        Date::Absent => None,
        // What is no date is in the past.
        Date::Invalid => Some(0),
        Date::At(expires_s) => Some(expires_s.saturating_sub(date_s)),
    }
}

/// RFC 9111 §4.2.2.
fn heuristic_lifetime_s(
    status: StatusCode,
    headers: &HeaderMap,
    directives: &ResponseDirectives,
    date_s: u64,
) -> u64 {
    if !directives.public && !allows_heuristic(status) {
        return 0;
    }
    let Some(changed_s) = Date::of(headers, LAST_MODIFIED).known() else { return 0 };
    (date_s.saturating_sub(changed_s) / HEURISTIC_PART).min(HEURISTIC_S_MAX)
}

/// The statuses that RFC 9110 §15.1 calls heuristically cacheable, without 206, which we do not keep.
pub(crate) fn allows_heuristic(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// The statuses that a route's own freshness is for: content, and redirects that last. A login's
/// redirect, a refusal or a failure is for one client or one moment, and what is missing may be
/// there soon; they are kept only as they say themselves.
fn takes_default(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 300 | 301 | 308)
}

/// RFC 9111 §4.2.3.
fn initial_age(headers: &HeaderMap, date_s: u64, asked: Moment, received: Moment) -> Duration {
    let apparent = Duration::from_secs(received.unix_s().saturating_sub(date_s));
    let told = Duration::from_secs(age_field_s(headers).unwrap_or(0));
    apparent.max(told + received.since(asked))
}

/// The first member of the first `Age` field; what is no number is as if it were not there
/// (RFC 9111 §5.1).
fn age_field_s(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(AGE)?.as_bytes();
    control::seconds(value.split(|byte| *byte == b',').next()?.trim_ascii())
}
