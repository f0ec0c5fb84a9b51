//! What a stored response is found by.
//!
//! A key has two halves. The URI (scheme, host, port, path and query, each normalised) is what
//! invalidation and purging go by. The place (route and backend, and what else steers the origin's
//! answer) keeps apart what different routes make of one URI; and what is asked for by another form of
//! the host's name, as origins see that form. Both are text in which every part ends
//! where a byte stands that the part cannot hold, so different parts never make the same key: a host
//! cannot pass for another's path, nor a path for a query.

use http::HeaderName;
use thiserror::Error;

use super::fields::Fields;
use crate::head::{Scheme, split_quoted};

#[cfg(test)]
mod tests;

/// The longest URI that is kept under.
const URI_BYTES_MAX: usize = 8 << 10;
/// The longest value of a field that steers.
const STEERING_BYTES_MAX: usize = 256;

/// Fields by which a proxy before us tells the origin what was asked for. An origin may build links or
/// redirects from them, so they belong to the key: nobody's host gets into somebody else's page.
const STEERING: [HeaderName; 8] = [
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-scheme"),
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-forwarded-ssl"),
    HeaderName::from_static("x-scheme"),
];

/// The same in RFC 7239's words: of `host` and `proto` in it an origin may build links too.
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");

/// Fields by which a client can have an origin answer something else than what the URI names. With one
/// of them a request is not answered from the cache, and its answer is not kept.
const OVERRIDING: [HeaderName; 6] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-original-host"),
];

/// Why a request has no key, and so is not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The authority is not a host with at most a port.
    #[error("the authority is not a host with at most a port")]
    Authority,
    /// The path does not begin with a slash, or holds what no path may.
    #[error("the target is not a path, or holds what no path may")]
    Path,
    /// It is longer than the cache keeps.
    #[error("the target is longer than {URI_BYTES_MAX} bytes")]
    TooLong,
    /// A field in the request changes what is asked for.
    #[error("a field in the request changes what is asked for")]
    Overridden,
}

/// What a stored response is found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    uri: String,
    place: String,
}

/// What a key is made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// How the client reached us.
    pub scheme: Scheme,
    /// Host and perhaps port.
    pub authority: &'a str,
    /// The normalised path.
    pub path: &'a str,
    /// What follows the question mark, if there is one.
    pub query: Option<&'a str>,
    /// The route's identity.
    pub route: &'a str,
    /// The backend's identity.
    pub backend: &'a str,
}

/// A request's key, and whether the cache may be asked by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyed {
    pub(crate) key: Key,
    pub(crate) usable: bool,
}

impl Keyed {
    /// The key of a request. One that may not be answered from the cache still has a URI, whose stored
    /// responses it may outdate.
    pub fn new(parts: &KeyParts<'_>, headers: &impl Fields) -> Result<Self, KeyError> {
        match Key::new(parts, headers) {
            Ok(key) => Ok(Self { key, usable: true }),
            Err(KeyError::Overridden) => Ok(Self { key: Key::of_uri(parts)?, usable: false }),
            Err(error) => Err(error),
        }
    }
}

impl Key {
    /// The key of a request.
    pub fn new(parts: &KeyParts<'_>, headers: &impl Fields) -> Result<Self, KeyError> {
        if OVERRIDING.iter().any(|name| headers.has(name)) {
            return Err(KeyError::Overridden);
        }
        let uri = uri(parts)?;
        let place = place(parts, &uri, headers)?;
        Ok(Self { uri, place })
    }

    /// The key of a URI alone, under which nothing is stored: to take away what is.
    pub(crate) fn of_uri(parts: &KeyParts<'_>) -> Result<Self, KeyError> {
        Ok(Self { uri: uri(parts)?, place: String::new() })
    }

    /// Scheme, host, port, path and query.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Route, backend, and what else steers.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// The URI that a reference leads to from here (`Location`, `Content-Location`), if that is of the
    /// same origin.
    pub(crate) fn resolve(&self, reference: &str) -> Option<String> {
        let (scheme, rest) = match reference.split_once("://") {
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                (Some(scheme), Some(rest))
            }
            _ => (None, reference.strip_prefix("//")),
        };
        let own_scheme = if self.uri.starts_with("https:") { Scheme::Https } else { Scheme::Http };
        if scheme.is_some_and(|scheme| !scheme.eq_ignore_ascii_case(own_scheme.as_str())) {
            return None;
        }
        let origin_end = self.origin_length();
        let target = match rest {
            Some(rest) => {
                let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let mut origin = format!("{}://", own_scheme.as_str());
                push_authority(&mut origin, own_scheme, &rest[..end]).ok()?;
                if origin != self.uri[..origin_end] {
                    return None;
                }
                rest[end..].to_owned()
            }
            None => relative(&self.uri[origin_end..], reference),
        };
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let mut uri = self.uri[..origin_end].to_owned();
        push_target(&mut uri, if path.is_empty() { "/" } else { path }, query).ok()?;
        Some(uri)
    }

    /// Where the path begins.
    fn origin_length(&self) -> usize {
        let after_scheme = self.uri.find("://").map_or(0, |at| at + 3);
        self.uri[after_scheme..].find('/').map_or(self.uri.len(), |at| after_scheme + at)
    }
}

/// A reference without an origin, seen from a path with its query.
fn relative(base: &str, reference: &str) -> String {
    if reference.starts_with('/') {
        return without_dots(reference);
    }
    let path = base.split('?').next().unwrap_or_default();
    if reference.is_empty() || reference.starts_with('#') {
        return base.to_owned();
    }
    if reference.starts_with('?') {
        return format!("{path}{reference}");
    }
    let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
    without_dots(&format!("{directory}{reference}"))
}

/// RFC 3986 §5.2.4, for a path that begins with a slash; the query stays.
fn without_dots(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    let path = format!("/{}", kept.join("/"));
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

fn uri(parts: &KeyParts<'_>) -> Result<String, KeyError> {
    let query_length = parts.query.map_or(0, str::len);
    let length = 16 + parts.authority.len() + parts.path.len() + query_length;
    if length > URI_BYTES_MAX {
        return Err(KeyError::TooLong);
    }
    let mut uri = String::with_capacity(length);
    uri.push_str(parts.scheme.as_str());
    uri.push_str("://");
    push_authority(&mut uri, parts.scheme, parts.authority)?;
    push_target(&mut uri, parts.path, parts.query)?;
    Ok(uri)
}

/// Writes host and port: in lower case, without the root's dot, always with a port.
fn push_authority(uri: &mut String, scheme: Scheme, authority: &str) -> Result<(), KeyError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(KeyError::Authority)?;
            let valid =
                address.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
            if !valid || !(port.is_empty() || port.starts_with(':')) {
                return Err(KeyError::Authority);
            }
            (&authority[..=address.len() + 1], port.strip_prefix(':').unwrap_or_default())
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte);
    // One dot is the root's; with more of them there is an empty label, and no one name for it.
    let is_name = |name: &str| name.bytes().all(is_host) && !name.ends_with('.');
    if name.is_empty() || !(host.starts_with('[') || is_name(name)) {
        return Err(KeyError::Authority);
    }
    let port = if port.is_empty() {
        scheme.default_port()
    } else {
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        port.parse().ok().filter(|_| digits).ok_or(KeyError::Authority)?
    };
    uri.extend(name.chars().map(|c| c.to_ascii_lowercase()));
    uri.push(':');
    uri.push_str(&port.to_string());
    Ok(())
}

fn push_target(uri: &mut String, path: &str, query: Option<&str>) -> Result<(), KeyError> {
    let clean = |text: &str| text.bytes().all(|byte| byte > b' ' && byte != 0x7f && byte != b'#');
    if !path.starts_with('/') || path.contains('?') || !clean(path) {
        return Err(KeyError::Path);
    }
    uri.push_str(path);
    if let Some(query) = query {
        if !clean(query) {
            return Err(KeyError::Path);
        }
        uri.push('?');
        uri.push_str(query);
    }
    Ok(())
}

fn place(parts: &KeyParts<'_>, uri: &str, headers: &impl Fields) -> Result<String, KeyError> {
    let mut place = String::with_capacity(parts.route.len() + parts.backend.len() + 1);
    for part in [parts.route, parts.backend] {
        place.extend(part.chars().map(|c| if c.is_control() { '?' } else { c }));
        place.push('\n');
    }
    let mut push = |name: &HeaderName, text: &str| {
        place.push_str(name.as_str());
        place.push(':');
        place.extend(text.chars().map(|c| if c.is_control() { '?' } else { c }));
        place.push('\n');
    };
    if !is_usual(parts, uri) {
        push(&http::header::HOST, &parts.authority.to_ascii_lowercase());
    }
    for name in &STEERING {
        for value in headers.values(name) {
            push(name, steering(value)?);
        }
    }
    for value in headers.values(&FORWARDED) {
        let told = forwarded(value)?;
        if !told.is_empty() {
            push(&FORWARDED, steering(told.as_bytes())?);
        }
    }
    Ok(place)
}

/// Whether the authority is written as the URI has it: without the root's dot, and with a port only if it
/// is not the scheme's own. Origins get it as it was written, and may build links of it.
fn is_usual(parts: &KeyParts<'_>, uri: &str) -> bool {
    let Some((_, rest)) = uri.split_once("://") else { return false };
    let Some(normal) = rest.get(..rest.find('/').unwrap_or(rest.len())) else { return false };
    let own_port = normal.rsplit_once(':').filter(|(_, port)| {
        port.parse().is_ok_and(|port: u16| port == parts.scheme.default_port())
    });
    parts.authority.eq_ignore_ascii_case(own_port.map_or(normal, |(host, _)| host))
}

/// What `Forwarded` says of the request. Who the client is steers nothing, and would give each its own
/// entry.
fn forwarded(value: &[u8]) -> Result<String, KeyError> {
    let text = std::str::from_utf8(value).map_err(|_| KeyError::Overridden)?;
    let pairs = split_quoted(text, b',').into_iter().flat_map(|own| split_quoted(own, b';'));
    let steering: Vec<_> = pairs.map(str::trim).filter(|pair| !names_a_node(pair)).collect();
    Ok(steering.join(";"))
}

fn steering(value: &[u8]) -> Result<&str, KeyError> {
    let text = std::str::from_utf8(value).ok();
    text.filter(|text| text.len() <= STEERING_BYTES_MAX).ok_or(KeyError::Overridden)
}

/// Whether a pair of `Forwarded` tells of a client or a proxy.
fn names_a_node(pair: &str) -> bool {
    let name = pair.split_once('=').map(|(name, _)| name.trim());
    name.is_some_and(|name| ["for", "by"].iter().any(|own| name.eq_ignore_ascii_case(own)))
}
