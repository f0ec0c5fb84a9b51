//! Dates in headers, in the three forms of RFC 9110 §5.6.7.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::AsHeaderName;

/// What a header that should hold a date holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Date {
    /// There is no such header.
    Absent,
    /// It is no date, or there are several.
    Invalid,
    /// Seconds since 1970.
    At(u64),
}

impl Date {
    /// The date in a header.
    pub(crate) fn of(headers: &HeaderMap, name: impl AsHeaderName) -> Self {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => parse(value.as_bytes()).map_or(Self::Invalid, Self::At),
            (Some(_), Some(_)) => Self::Invalid,
        }
    }

    /// The seconds, if it is a date.
    pub(crate) fn known(self) -> Option<u64> {
        match self {
            Self::At(seconds) => Some(seconds),
            Self::Absent | Self::Invalid => None,
        }
    }
}

/// Reads a date.
pub(crate) fn parse(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let time = httpdate::parse_http_date(text.trim()).ok()?;
    Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}

/// Writes a date.
pub(crate) fn format(unix_s: u64) -> String {
    // What no calendar of ours can write is as good as the end of time.
    const LAST: u64 = 253_402_300_799;
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s.min(LAST)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_read_and_one_is_written() {
        let dates = [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ];
        for date in dates {
            assert_eq!(parse(date.as_bytes()), Some(784_111_777), "{date}");
        }
        assert_eq!(format(784_111_777), dates[0]);
        assert_eq!(parse(format(u64::MAX).as_bytes()), Some(253_402_300_799));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in ["", "0", "-1", "tomorrow", "Sun, 32 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"\xff\xfe"), None);
    }
}
