//! The `Cache-Status` field (RFC 9211): what the cache did, for people who wonder.

use std::fmt::Write;

use http::StatusCode;

use crate::head::Headers;

/// Our name in the field.
const NAME: &str = "telaio";
/// The field's name.
const FIELD: &str = "cache-status";

/// Why a request went on to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forwarded {
    /// The cache was not to be asked.
    Bypass,
    /// Requests of that method are not answered from a cache.
    Method,
    /// Nothing is stored for the URI.
    UriMiss,
    /// Nothing that is stored for the URI matches the request.
    VaryMiss,
    /// What is stored is no longer fresh.
    Stale,
    /// The request did not take what is stored.
    Request,
}

impl Forwarded {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Stale => "stale",
            Self::Request => "request",
        }
    }
}

/// What the cache did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStatus {
    /// Why the request went on; it did not if there is no reason.
    pub(crate) forwarded: Option<Forwarded>,
    /// The origin's status, if it is not the one that the client sees.
    pub(crate) origin: Option<StatusCode>,
    /// How long the response stays fresh; less than nothing if it is stale.
    pub(crate) ttl_s: Option<i64>,
    /// The response is being kept.
    pub(crate) stored: bool,
    /// Another request's answer was waited for.
    pub(crate) collapsed: bool,
    /// One word more.
    pub(crate) detail: Option<&'static str>,
}

impl CacheStatus {
    /// A hit with that much time left.
    pub(crate) fn hit(ttl_s: i64) -> Self {
        Self { ttl_s: Some(ttl_s), ..Self::default() }
    }

    /// A request that went on.
    pub(crate) fn forwarded(why: Forwarded) -> Self {
        Self { forwarded: Some(why), ..Self::default() }
    }

    /// Adds the field, after those of caches that are nearer to the origin.
    pub(crate) fn write(self, headers: &mut Headers) {
        let mut text = String::with_capacity(64);
        text.push_str(NAME);
        match self.forwarded {
            None => text.push_str("; hit"),
            Some(why) => {
                text.push_str("; fwd=");
                text.push_str(why.as_str());
            }
        }
        // Writing to a string does not fail.
        if let Some(origin) = self.origin {
            let _ = write!(text, "; fwd-status={}", origin.as_u16());
        }
        if let Some(ttl_s) = self.ttl_s {
            let _ = write!(text, "; ttl={ttl_s}");
        }
        if self.stored {
            text.push_str("; stored");
        }
        if self.collapsed {
            text.push_str("; collapsed");
        }
        if let Some(detail) = self.detail {
            let _ = write!(text, "; detail={detail}");
        }
        headers.push(FIELD, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(status: CacheStatus) -> String {
        let mut headers = Headers::new();
        status.write(&mut headers);
        headers.get_str(FIELD).unwrap().to_owned()
    }

    #[test]
    fn it_says_what_happened() {
        assert_eq!(written(CacheStatus::hit(-5)), "telaio; hit; ttl=-5");
        let validated = CacheStatus {
            origin: Some(StatusCode::NOT_MODIFIED),
            stored: true,
            ..CacheStatus::forwarded(Forwarded::Stale)
        };
        assert_eq!(written(validated), "telaio; fwd=stale; fwd-status=304; stored");
        let waited = CacheStatus { collapsed: true, ..CacheStatus::forwarded(Forwarded::UriMiss) };
        assert_eq!(written(waited), "telaio; fwd=uri-miss; collapsed");
    }
}
