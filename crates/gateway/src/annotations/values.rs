//! How the text of an annotation becomes a value.
//!
//! Every reader takes what ingress-nginx takes, says what it expected otherwise, and has a bound on
//! what it takes: annotations are other people's text.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

/// The longest text of an annotation that is read.
pub(crate) const TEXT_BYTES_MAX: usize = 16 * 1024;
/// The most entries of a list.
pub(crate) const LIST_MAX: usize = 512;
/// The longest time that a time-out can be.
const TIME_MAX: Duration = Duration::from_hours(24 * 7);
/// How much of a bad text is repeated in a message.
const SHOWN_CHARS_MAX: usize = 60;

/// Why a text is no value, as the end of a sentence that begins with the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue(pub(crate) String);

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl BadValue {
    /// `text` is not what was `expected`.
    pub(crate) fn new(text: &str, expected: impl fmt::Display) -> Self {
        Self(format!("{} is not right; write {expected}", Shown(text)))
    }
}

/// Another's text within a message: short, on one line, in quotes.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_CHARS_MAX) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// What a reader gives.
pub(crate) type Read<T> = Result<T, BadValue>;

/// `true` or `false`.
pub(crate) fn flag(text: &str) -> Read<bool> {
    match text {
        "true" | "1" | "on" | "yes" => Ok(true),
        "false" | "0" | "off" | "no" => Ok(false),
        _ => Err(BadValue::new(text, "true or false")),
    }
}

/// A whole number within bounds.
pub(crate) fn number(text: &str, min: u32, max: u32) -> Read<u32> {
    let bad = || BadValue::new(text, format_args!("a whole number from {min} to {max}"));
    let number = text.parse().map_err(|_| bad())?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(bad()) }
}

/// A time: seconds, or with a unit (`500ms`, `10s`, `2m`, `1h`, `1d`).
pub(crate) fn time(text: &str) -> Read<Duration> {
    const EXPECTED: &str =
        "a time of at most a week, in seconds or with a unit: 30, 500ms, 10s, 2m";
    let bad = || BadValue::new(text, EXPECTED);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let amount: u64 = amount.parse().map_err(|_| bad())?;
    let unit_ms = match unit.trim() {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    let time = amount.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(bad)?;
    if time <= TIME_MAX { Ok(time) } else { Err(bad()) }
}

/// A number of bytes as nginx writes them (`8m`); zero is no limit.
pub(crate) fn bytes(text: &str) -> Read<u64> {
    let bad = || BadValue::new(text, "a size such as 512k, 8m or 1g; 0 for no limit");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let amount: u64 = amount.parse().map_err(|_| bad())?;
    let shift = match unit {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err(bad()),
    };
    amount.checked_mul(1 << shift).ok_or_else(bad)
}

/// The entries of a list, separated by commas.
pub(crate) fn list(text: &str) -> Read<Vec<&str>> {
    let entries: Vec<&str> =
        text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty()).collect();
    if entries.is_empty() {
        return Err(BadValue::new(text, "at least one entry"));
    }
    if entries.len() > LIST_MAX {
        return Err(BadValue(format!("has more than {LIST_MAX} entries")));
    }
    Ok(entries)
}

/// Networks and addresses, separated by commas.
pub(crate) fn networks(text: &str) -> Read<Vec<IpNet>> {
    let network = |entry: &str| {
        let net = entry.parse::<IpNet>().ok();
        let net = net.or_else(|| entry.parse::<std::net::IpAddr>().ok().map(IpNet::from));
        let net = net.map(|net| net.trunc());
        net.ok_or_else(|| BadValue::new(entry, "networks such as 10.0.0.0/8,2001:db8::/32"))
    };
    list(text)?.into_iter().map(network).collect()
}

/// Status codes, separated by commas.
pub(crate) fn statuses(text: &str) -> Read<Vec<u16>> {
    let status = |entry: &str| match entry.parse() {
        Ok(code @ 400..=599) => Ok(code),
        _ => Err(BadValue::new(entry, "status codes from 400 to 599 such as 404,503")),
    };
    list(text)?.into_iter().map(status).collect()
}

/// A path, beginning with a slash, of visible characters.
pub(crate) fn path(text: &str) -> Read<Arc<str>> {
    if text.starts_with('/') && visible(text) {
        return Ok(text.into());
    }
    Err(BadValue::new(text, "a path that begins with a slash"))
}

/// An absolute URL, or with `relative_ok` a path.
pub(crate) fn url(text: &str, relative_ok: bool) -> Read<Arc<str>> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_absolute = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    if visible(text) && (is_absolute || (relative_ok && text.starts_with('/'))) {
        return Ok(text.into());
    }
    let expected = if relative_ok { "a URL or a path" } else { "a URL: http://… or https://…" };
    Err(BadValue::new(text, expected))
}

/// A header's name.
pub(crate) fn header_name(text: &str) -> Read<http::HeaderName> {
    http::HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| BadValue::new(text, "the name of a header"))
}

/// A header's value.
pub(crate) fn header_value(text: &str) -> Read<http::HeaderValue> {
    http::HeaderValue::from_str(text)
        .map_err(|_| BadValue::new(text, "the value of a header: visible characters, on one line"))
}

/// Names of headers, separated by commas.
pub(crate) fn header_names(text: &str) -> Read<Vec<http::HeaderName>> {
    list(text)?.into_iter().map(header_name).collect()
}

/// Headers by which messages are told apart: nobody may set them by hand.
pub(crate) fn is_framing(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "content-length"
            | "host"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// A cookie's name.
pub(crate) fn cookie_name(text: &str) -> Read<Arc<str>> {
    let is_token = !text.is_empty()
        && text.len() <= 256
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    if is_token { Ok(text.into()) } else { Err(BadValue::new(text, "the name of a cookie")) }
}

/// A DNS name, the first label of which may be `*`.
pub(crate) fn host(text: &str) -> Read<Arc<str>> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let label_ok = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if name.len() <= 253 && name.split('.').all(label_ok) {
        return Ok(text.to_ascii_lowercase().into());
    }
    Err(BadValue::new(text, "a DNS name such as www.example.com"))
}

/// The name of an object, in this or in another namespace.
pub(crate) fn object_name(text: &str) -> Read<Arc<str>> {
    let part_ok = |part: &str| {
        (1..=253).contains(&part.len())
            && part.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
            })
    };
    let mut parts = text.split('/');
    let ok = parts.by_ref().take(2).all(part_ok) && parts.next().is_none() && !text.is_empty();
    if ok { Ok(text.into()) } else { Err(BadValue::new(text, "name or namespace/name")) }
}

/// A regular expression, with bounds on its size and cost.
pub(crate) fn regex(text: &str) -> Read<regex::Regex> {
    regex::RegexBuilder::new(text)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .build()
        .map_err(|error| {
            let why = error.to_string();
            let last = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
            BadValue(format!(
                "{} is no regular expression that we can run ({last}); write RE2 syntax, without \
                 look-around and back references",
                Shown(text)
            ))
        })
}

/// The largest program that a regular expression may become.
pub(crate) const REGEX_BYTES_MAX: usize = 256 * 1024;

fn visible(text: &str) -> bool {
    text.len() <= 4096 && text.bytes().all(|byte| (0x21..0x7f).contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        assert_eq!(time("60"), Ok(Duration::from_mins(1)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_mins(2)));
        for bad in ["", "-1", "5 years", "s", "99999999999999999999", "8d", "1.5"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_as_nginx_writes_them() {
        assert_eq!(bytes("8m"), Ok(8 << 20));
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("1g"), Ok(1 << 30));
        for bad in ["", "m", "8mb", "-1", "99999999999999999g"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_single_address_is_a_network_of_its_own() {
        let nets = networks("10.1.2.3, 192.168.7.9/16,::1").unwrap();
        let shown: Vec<_> = nets.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.1.2.3/32", "192.168.0.0/16", "::1/128"]);
        assert!(networks("10.0.0.0/8, elsewhere").unwrap_err().0.contains("\"elsewhere\""));
        assert!(networks(" , ").is_err());
    }

    #[test]
    fn a_bad_text_is_shown_short_and_on_one_line() {
        let message = flag(&format!("line\nline{}", "x".repeat(500))).unwrap_err().0;
        assert!(message.len() < 200 && !message.contains('\n'), "{message}");
    }

    #[test]
    fn names_are_checked() {
        assert!(object_name("shop/web").is_ok() && object_name("web").is_ok());
        for bad in ["", "/", "a/", "/a", "a/b/c", "A", "a b"] {
            assert!(object_name(bad).is_err(), "{bad}");
        }
        assert_eq!(host("WWW.Example.com").as_deref(), Ok("www.example.com"));
        for bad in ["", "a..b", "-a.com", "a b", "*.*.com", "*"] {
            assert!(host(bad).is_err(), "{bad}");
        }
        assert!(regex("a{1000}{1000}{1000}").is_err());
        assert!(regex("(?=x)").unwrap_err().0.contains("look-around"));
    }
}
