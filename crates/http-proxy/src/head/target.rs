//! Request targets and authorities: taken apart, checked, and normalised once.
//!
//! Matching, cache and backend must read one path alike, so it is put into one form before anybody
//! looks at it: escapes of letters that need none are undone, hex digits are in upper case, and `.`
//! and `..` are worked off. An escaped slash stays escaped, because it is no separator.
//!
//! Doubled slashes and escapes of other visible characters stay in what a backend is asked for, because
//! they may mean something there. Routes are found by the [matching form](matching_form), in which they
//! do not count: else `//admin` and `/%61dmin@x` would slip past what guards `/admin`.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::Method;
use thiserror::Error;

/// Why a target or an authority is refused; the client gets 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TargetError {
    /// Neither a path nor an absolute URI.
    #[error("the request target is neither a path nor an absolute URI")]
    Form,
    /// A byte that no target may hold.
    #[error("the request target holds a character that must be escaped")]
    Character,
    /// A per cent sign without two hex digits, or an escaped zero byte.
    #[error("the path holds a bad escape")]
    Escape,
    /// `..` leads out of the root.
    #[error("the path leads out of the root")]
    Root,
    /// Not a host with an optional port.
    #[error("the host is not a host name or address with an optional port")]
    Authority,
}

/// A target's parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Set in the absolute form.
    pub authority: Option<&'a str>,
    /// The path as it was written; empty only in the absolute form.
    pub path: &'a str,
    /// What follows the question mark.
    pub query: Option<&'a str>,
}

/// Takes a target apart. A fragment is no part of a target and is refused.
pub fn split<'a>(target: &'a str, method: &Method) -> Result<Parts<'a>, TargetError> {
    if target == "*" && *method == Method::OPTIONS {
        return Ok(Parts { authority: None, path: target, query: None });
    }
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(TargetError::Character);
    }
    let (authority, rest) = if target.starts_with('/') {
        (None, target)
    } else {
        let scheme_end = target.find("://").ok_or(TargetError::Form)?;
        let scheme = &target[..scheme_end];
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return Err(TargetError::Form);
        }
        let rest = &target[scheme_end + 3..];
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        (Some(authority), rest)
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    Ok(Parts { authority, path, query })
}

/// Puts a path into its one form, at the end of `out`, which is empty.
pub fn normalise_into(path: &str, out: &mut String) -> Result<(), TargetError> {
    if path == "*" {
        out.push('*');
        return Ok(());
    }
    if path.is_empty() {
        out.push('/');
        return Ok(());
    }
    // Nearly every path is in its form already.
    let plain = !path.contains('%') && !path.contains("/.");
    if plain {
        out.push_str(path);
        return Ok(());
    }
    unescape_into(path, out)?;
    if out.contains("/.") {
        remove_dots(out)?;
    }
    Ok(())
}

/// A normalised path as routes are compared with it: doubled slashes are one, and visible characters
/// are not escaped, save those that would then mean something else. As nginx compares its locations.
pub fn matching_form(path: &str) -> Cow<'_, str> {
    let bytes = path.as_bytes();
    let doubled = bytes.windows(2).any(|pair| pair == b"//");
    if !doubled && memchr::memchr(b'%', bytes).is_none() {
        return Cow::Borrowed(path);
    }
    let mut form = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(next) = rest.chars().next() {
        let visible = escaped(rest.as_bytes())
            .filter(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%' | b'?' | b'#'));
        match visible {
            Some(byte) => {
                form.push(char::from(byte));
                rest = &rest[3..];
                continue;
            }
            None if next == '/' && form.ends_with('/') => {}
            None => form.push(next),
        }
        rest = &rest[next.len_utf8()..];
    }
    Cow::Owned(form)
}

/// The byte that an escape at the beginning stands for.
fn escaped(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else { return None };
    let hex = |digit: &u8| char::from(*digit).to_digit(16);
    u8::try_from(hex(high)? * 16 + hex(low)?).ok()
}

/// The path of a route as somebody wrote it, in the form that requests are compared in: blanks and
/// letters beyond ASCII are escaped, as clients send them.
pub fn route_path(text: &str) -> Result<String, TargetError> {
    let mut normal = String::new();
    normalise_into(&escape_path(text, b"?#"), &mut normal)?;
    Ok(matching_form(&normal).into_owned())
}

/// Escapes what cannot stand in a path, and `also`.
fn escape_path(text: &str, also: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !also.contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Puts the path that a rewrite came to into its one form. `..` in it comes from what a client wrote
/// into a group, for the request's own were worked off before: it is refused.
pub(super) fn normalise_rewritten(path: &str, out: &mut String) -> Result<(), TargetError> {
    let escaped = escape_path(path, b"\"<>\\^`{|}#");
    let mut plain = String::with_capacity(escaped.len());
    unescape_into(&escaped, &mut plain)?;
    if plain.split('/').any(|element| element == "..") {
        return Err(TargetError::Root);
    }
    normalise_into(&plain, out)
}

/// Undoes the escapes of letters that need none.
fn unescape_into(path: &str, out: &mut String) -> Result<(), TargetError> {
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let digits = rest.as_bytes().get(at + 1..at + 3).ok_or(TargetError::Escape)?;
        let hex = |digit: u8| char::from(digit).to_digit(16).ok_or(TargetError::Escape);
        let byte = (hex(digits[0])? * 16 + hex(digits[1])?) as u8;
        match byte {
            0 => return Err(TargetError::Escape),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                out.push('%');
                out.extend(digits.iter().map(|digit| char::from(digit.to_ascii_uppercase())));
            }
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    Ok(())
}

/// Works off `.` and `..`. A path that leads out of the root is refused: nobody honest sends it.
fn remove_dots(path: &mut String) -> Result<(), TargetError> {
    let mut kept = String::with_capacity(path.len());
    let mut elements = path[1..].split('/').peekable();
    while let Some(element) = elements.next() {
        let last = elements.peek().is_none();
        match element {
            "." if last => kept.push('/'),
            "." => {}
            ".." => {
                let cut = kept.rfind('/').ok_or(TargetError::Root)?;
                kept.truncate(cut);
                if last {
                    kept.push('/');
                }
            }
            element => {
                kept.push('/');
                kept.push_str(element);
            }
        }
    }
    *path = kept;
    Ok(())
}

/// Host and port of an authority; an IPv6 address comes without its brackets.
pub fn split_authority(authority: &str) -> (&str, Option<u16>) {
    if let Some(rest) = authority.strip_prefix('[')
        && let Some((host, port)) = rest.split_once(']')
    {
        return (host, port.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (authority, None),
    }
}

/// Whether an authority is a host name or an address, with an optional port.
pub fn check_authority(authority: &str) -> Result<(), TargetError> {
    let bad = Err(TargetError::Authority);
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else { return bad };
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return bad;
        }
        match port.strip_prefix(':') {
            Some(port) => (None, Some(port)),
            None if port.is_empty() => (None, None),
            None => return bad,
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(authority), None),
        }
    };
    let is_name =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    let host_fits =
        host.is_none_or(|host| !host.is_empty() && host.len() <= 255 && host.bytes().all(is_name));
    let port_fits = port.is_none_or(|port| {
        !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok()
    });
    if host_fits && port_fits { Ok(()) } else { bad }
}
