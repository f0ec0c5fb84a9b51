//! Addresses with a few names in them that a request fills: `https://$host/start?rd=$escaped_request_uri`.
//!
//! ingress-nginx passes such text to nginx, which knows some hundred variables and executes what it
//! is given. Here a text is read once into pieces, only these names mean anything, and what a request
//! fills in is filled in and never read again.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::head::{Known, RequestHead};

/// A name that a request fills.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Scheme,
    Host,
    Authority,
    RequestUri,
    EscapedRequestUri,
    Path,
    Query,
    Method,
    ClientAddress,
    /// The name of `Authorization: Basic`.
    User,
    Header(Box<str>),
    Cookie(Box<str>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Name(Name),
}

/// A text with names in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

/// A name that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "${0} is not known here: known are $scheme, $host, $http_host, $request_uri, \
     $escaped_request_uri, $uri, $args, $request_method, $remote_addr, $remote_user, $http_ with a field's name, and \
     $cookie_ with a cookie's"
)]
pub struct UnknownName(pub String);

/// How much of an unknown name is repeated: it is somebody's text, and goes into logs.
const SHOWN_CHARS_MAX: usize = 60;

impl UnknownName {
    fn new(name: &str) -> Self {
        let mut shown: String =
            name.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
        if name.chars().nth(SHOWN_CHARS_MAX).is_some() {
            shown.push('…');
        }
        Self(shown)
    }
}

/// Who chooses the host of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leads {
    /// Who wrote the address.
    AsWritten,
    /// The request, by its host.
    ToRequestedHost,
    /// The request, by its host and port: a client may write any port.
    ToRequestedPort,
    /// The client, by what it likes.
    Anywhere,
}

impl Name {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "scheme" | "pass_access_scheme" => Self::Scheme,
            "host" | "best_http_host" | "server_name" => Self::Host,
            "http_host" => Self::Authority,
            "request_uri" => Self::RequestUri,
            "escaped_request_uri" => Self::EscapedRequestUri,
            "uri" | "document_uri" => Self::Path,
            "args" | "query_string" => Self::Query,
            "request_method" => Self::Method,
            "remote_addr" | "binary_remote_addr" | "the_real_ip" => Self::ClientAddress,
            "remote_user" => Self::User,
            other => match other.strip_prefix("cookie_") {
                Some(name) if !name.is_empty() => Self::Cookie(name.into()),
                _ => {
                    let name = other.strip_prefix("http_").filter(|name| !name.is_empty())?;
                    Self::Header(name.replace('_', "-").into())
                }
            },
        })
    }

    /// Whether it is the request's host.
    fn is_host(&self) -> bool {
        matches!(self, Self::Host | Self::Authority)
    }

    /// Whether a client can write there what it likes.
    fn is_at_will(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Cookie(_) | Self::User)
    }

    fn write(&self, head: &RequestHead, out: &mut String) {
        match self {
            Self::Scheme => out.push_str(head.scheme.as_str()),
            Self::Host => out.push_str(head.host()),
            Self::Authority => out.push_str(head.authority()),
            Self::RequestUri => out.push_str(&head.asked_target()),
            Self::EscapedRequestUri => escape_into(&head.asked_target(), out),
            Self::Path => out.push_str(head.path()),
            Self::Query => out.push_str(head.query().unwrap_or_default()),
            Self::Method => out.push_str(head.method.as_str()),
            Self::ClientAddress => {
                // Writing to a String cannot fail.
                let _ = write!(out, "{}", head.client.address.to_canonical());
            }
            Self::User => out.push_str(&basic_user(head).unwrap_or_default()),
            Self::Cookie(name) => {
                out.push_str(crate::head::cookie(&head.headers, name).unwrap_or_default());
            }
            Self::Header(name) => {
                for (place, value) in head.headers.get_all(name).enumerate() {
                    out.push_str(if place > 0 { ", " } else { "" });
                    out.push_str(&String::from_utf8_lossy(value));
                }
            }
        }
    }
}

impl Template {
    /// Reads a text; `$name` and `${name}` are names, `$$` is a dollar.
    pub fn parse(text: &str) -> Result<Self, UnknownName> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            if dollar > 0 {
                pieces.push(Piece::Text(rest[..dollar].into()));
            }
            let after = &rest[dollar + 1..];
            if let Some(more) = after.strip_prefix('$') {
                pieces.push(Piece::Text("$".into()));
                rest = more;
                continue;
            }
            let braced = after.strip_prefix('{').and_then(|it| it.split_once('}'));
            let (name, more) = braced.unwrap_or_else(|| {
                let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                after.split_at(after.find(word).unwrap_or(after.len()))
            });
            let parsed = Name::parse(name).ok_or_else(|| UnknownName::new(name))?;
            pieces.push(Piece::Name(parsed));
            rest = more;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        Ok(Self { pieces })
    }

    /// The address for a request. What a client can write at will is escaped, so that it stays one
    /// element of the path or one value of the query.
    pub fn fill(&self, head: &RequestHead) -> String {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Name(name) if name.is_at_will() => {
                    let mut plain = String::new();
                    name.write(head, &mut plain);
                    escape_into(&plain, &mut out);
                }
                Piece::Name(name) => name.write(head, &mut out),
            }
        }
        out
    }

    /// The text for a request, as it is: for what is no address.
    pub fn fill_plain(&self, head: &RequestHead) -> String {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Name(name) => name.write(head, &mut out),
            }
        }
        out
    }

    /// Who chooses the host of the address. The request's own host is the writer's only on a route of
    /// one host: on any other a client can write there what it likes.
    pub fn leads(&self) -> Leads {
        let mut before = String::new();
        let mut leads = Leads::AsWritten;
        let mut may_be_empty = false;
        for piece in &self.pieces {
            // Behind a slash alone another may follow, and then a host.
            let bare = before.bytes().all(|byte| byte == b'/');
            // A path from the root, or behind `https://host/`: all that follows is path and query.
            let of_root = before.starts_with('/') && !before.starts_with("//");
            if !bare && (of_root || before.matches('/').count() >= 3) {
                return leads;
            }
            match piece {
                Piece::Text(text) if may_be_empty && text.starts_with('/') => {
                    return Leads::Anywhere;
                }
                Piece::Text(text) => before.push_str(text),
                // Of one path element, or of none.
                Piece::Name(name) if before == "/" && (name.is_at_will() || name.is_host()) => {
                    may_be_empty = true;
                }
                Piece::Name(Name::Scheme) => before.push('x'),
                Piece::Name(name @ (Name::Host | Name::Authority)) => {
                    let host_only = *name == Name::Host;
                    let to =
                        if host_only { Leads::ToRequestedHost } else { Leads::ToRequestedPort };
                    leads = leads.max(to);
                    before.push('x');
                }
                // These begin with a slash, or two if the client likes.
                Piece::Name(Name::RequestUri | Name::Path)
                    if !bare && !before.trim_end_matches('/').ends_with(':') =>
                {
                    before.push('/');
                }
                Piece::Name(_) => return Leads::Anywhere,
            }
        }
        leads
    }
}

/// The name that a request gives with its password.
fn basic_user(head: &RequestHead) -> Option<String> {
    let value = head.headers.get_known_str(Known::Authorization)?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    pair.split_once(':').map(|(name, _)| name.to_owned())
}

/// Adds text so that it can stand as a value in a query.
pub(crate) fn escape_into(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests;
