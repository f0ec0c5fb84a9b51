//! Request targets and authorities: taken apart, checked, and normalised once.
//!
//! Matching, cache and backend must read one path alike, so it is put into one form before anybody
//! looks at it: escapes of letters that need none are undone, hex digits are in upper case, and `.`
//! and `..` are worked off. An escaped slash stays escaped, because it is no separator; doubled
//! slashes stay, because they are a different path.

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
