//! The head of a request and of a response, as every part of the proxy sees them.
//!
//! A wire (h1, h2) fills a [`RequestHead`]; routing, filters, cache and balancer read and edit it;
//! another wire writes it out. Heads are made to be used again: [`RequestHead::clear`] keeps the
//! memory, so that a connection's second request allocates nothing.
//!
//! What always holds:
//! - the path begins with a slash and is normalised ([`target`]), except for `OPTIONS *`, whose path
//!   is `*`;
//! - the authority is in lower case, without user information, and has its port only if one was given;
//! - header values hold no line ends: [`Headers::push`] refuses them.

pub mod headers;
pub mod known;
pub mod target;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{Method, StatusCode, Version};

pub use headers::Headers;
pub use known::Known;

/// How the client reached us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scheme {
    /// In clear.
    #[default]
    Http,
    /// Over TLS, or by a trusted proxy that says so.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that is meant when none is written.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// What a TLS handshake told us about the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// The host that the client asked for, in lower case.
    pub server_name: Option<Arc<str>>,
    /// The protocol version, such as `TLSv1.3`.
    pub version: &'static str,
    /// The cipher suite's name.
    pub cipher: &'static str,
    /// The client's certificate in DER, if it showed one.
    pub client_certificate: Option<Arc<[u8]>>,
    /// Whether that certificate was verified against [the authority](Self::client_authority).
    pub client_verified: bool,
    /// The authority that was asked for, in PEM: a route of the host may by now want another.
    pub client_authority: Option<Arc<[u8]>>,
    /// Why it was not, if it was shown.
    pub client_error: Option<Arc<str>>,
}

/// Who sends requests on a connection, and how it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The other end of the TCP connection: the client or a proxy before us.
    pub peer: SocketAddr,
    /// The client as we believe it: from the PROXY protocol or a trusted proxy's headers, else the
    /// peer. Filters, hashes and logs go by it.
    pub address: IpAddr,
    /// Our own address that was connected to.
    pub local: SocketAddr,
    /// Set for TLS connections.
    pub tls: Option<Arc<TlsInfo>>,
    /// Whether the peer is in a trusted range, so that its `X-Forwarded-*` were believed.
    pub trusted: bool,
}

impl Default for ClientInfo {
    fn default() -> Self {
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let address = SocketAddr::new(nobody, 0);
        Self { peer: address, address: nobody, local: address, tls: None, trusted: false }
    }
}

/// A request without its body.
#[derive(Debug, Clone)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// How the client reached us.
    pub scheme: Scheme,
    /// The version that the client speaks.
    pub version: Version,
    /// All fields, in order; without `Host`, which is the [authority](Self::authority).
    pub headers: Headers,
    /// Who asks.
    pub client: ClientInfo,
    /// Our part of the trace that it belongs to, if traces are kept.
    pub trace: Option<crate::watch::trace::Trace>,
    /// Path and query as the client asked, where the backend is asked for something else.
    pub rewritten_from: Option<Box<str>>,
    authority: String,
    path: String,
    query: String,
    has_query: bool,
}

impl Default for RequestHead {
    fn default() -> Self {
        Self {
            method: Method::GET,
            scheme: Scheme::Http,
            version: Version::HTTP_11,
            headers: Headers::new(),
            client: ClientInfo::default(),
            trace: None,
            rewritten_from: None,
            authority: String::new(),
            path: String::from("/"),
            query: String::new(),
            has_query: false,
        }
    }
}

impl RequestHead {
    /// A request for `/` of nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`new`](Self::new), with room for a usual head: one that grows as it is read costs more.
    pub fn with_room() -> Self {
        Self {
            headers: Headers::with_room(),
            authority: String::with_capacity(64),
            ..Self::default()
        }
    }

    /// Forgets the last request and keeps the memory and the client.
    pub fn clear(&mut self) {
        self.method = Method::GET;
        self.version = Version::HTTP_11;
        self.headers.clear();
        self.trace = None;
        self.rewritten_from = None;
        self.authority.clear();
        self.path.clear();
        self.path.push('/');
        self.query.clear();
        self.has_query = false;
    }

    /// Host and perhaps port, as in the `Host` field; empty if the client named none.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host alone: without port, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        target::split_authority(&self.authority).0
    }

    /// The port that was named, or the scheme's.
    pub fn port(&self) -> u16 {
        target::split_authority(&self.authority).1.unwrap_or_else(|| self.scheme.default_port())
    }

    /// The normalised path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What follows the question mark, if there is one.
    pub fn query(&self) -> Option<&str> {
        self.has_query.then_some(self.query.as_str())
    }

    /// Path and query as they stand in a request line.
    pub fn path_and_query(&self) -> String {
        match self.query() {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// Path and query as the client asked.
    pub fn asked_target(&self) -> String {
        self.rewritten_from.as_deref().map_or_else(|| self.path_and_query(), str::to_owned)
    }

    /// Sets the authority, in lower case. The caller has checked it ([`target::check_authority`]).
    pub fn set_authority(&mut self, authority: &str) {
        self.authority.clear();
        self.authority.push_str(authority);
        self.authority.make_ascii_lowercase();
    }

    /// Sets the path. The caller has normalised it, or made it from one that was.
    pub fn set_path(&mut self, path: &str) {
        self.path.clear();
        self.path.push_str(path);
    }

    /// Replaces the path by one that a rewrite came to, which may have a query: that goes before the
    /// request's own.
    pub fn rewrite(&mut self, target: &str) -> Result<(), target::TargetError> {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let mut normal = String::with_capacity(path.len());
        target::normalise_rewritten(path, &mut normal)?;
        self.rewritten_from = Some(self.path_and_query().into());
        self.path = normal;
        let Some(query) = query else { return Ok(()) };
        // As in nginx, a question mark at the end leaves the request's own query out.
        let alone = if query.is_empty() { Some(query) } else { query.strip_suffix('?') };
        match (alone, self.query()) {
            (Some(alone), _) => self.set_query((!alone.is_empty()).then_some(alone)),
            (None, None | Some("")) => self.set_query(Some(query)),
            (None, Some(own)) => {
                let both = format!("{query}&{own}");
                self.set_query(Some(&both));
            }
        }
        Ok(())
    }

    /// Sets the query, or removes it.
    pub fn set_query(&mut self, query: Option<&str>) {
        self.query.clear();
        self.has_query = query.is_some();
        self.query.push_str(query.unwrap_or_default());
    }

    /// Reads a request target in origin form (`/a?b`), absolute form (`http://a/b`) or `*`. The
    /// absolute form's authority replaces the one that is set.
    pub fn set_target(&mut self, text: &str) -> Result<(), target::TargetError> {
        let parts = target::split(text, &self.method)?;
        if let Some(authority) = parts.authority {
            target::check_authority(authority)?;
            self.set_authority(authority);
        }
        self.set_query(parts.query);
        self.path.clear();
        target::normalise_into(parts.path, &mut self.path)
    }
}

/// A response without its body.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    /// The status.
    pub status: StatusCode,
    /// All fields, in order.
    pub headers: Headers,
}

impl Default for ResponseHead {
    fn default() -> Self {
        Self { status: StatusCode::OK, headers: Headers::new() }
    }
}

impl ResponseHead {
    /// A response without fields, with room for those of a usual head.
    pub fn with_room() -> Self {
        Self { status: StatusCode::OK, headers: Headers::with_room() }
    }

    /// A response without fields.
    pub fn new(status: StatusCode) -> Self {
        Self { status, headers: Headers::new() }
    }
}

/// Cuts at a byte that is not within quotes, and leaves out what is empty.
pub(crate) fn split_quoted(text: &str, at: u8) -> Vec<&str> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            byte if byte == at && !quoted => {
                parts.push(&text[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// A cookie's value.
pub fn cookie<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let fields =
        headers.get_all_known(Known::Cookie).filter_map(|field| std::str::from_utf8(field).ok());
    let mut pairs = fields.flat_map(|field| field.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}
