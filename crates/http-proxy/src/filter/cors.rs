//! Cross-origin requests: what a browser asks before, and what it needs to see after.

use http::{Method, StatusCode};

use crate::head::{Headers, Known, RequestHead, ResponseHead};
use crate::reply::Reply;
use crate::table::Cors;

/// Which origins may.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Any,
    Exact(Box<str>),
    /// `https://*.example.org`: scheme with its slashes, and `.example.org`. One label stands before it.
    Below(Box<str>, Box<str>),
}

impl Origin {
    fn new(text: &str) -> Self {
        match text.split_once("*.") {
            _ if text == "*" => Self::Any,
            Some((scheme, suffix)) => Self::Below(
                scheme.to_ascii_lowercase().into(),
                format!(".{suffix}").to_ascii_lowercase().into(),
            ),
            None => Self::Exact(text.to_ascii_lowercase().into()),
        }
    }

    fn admits(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(own) => own.eq_ignore_ascii_case(origin),
            Self::Below(scheme, suffix) => {
                let origin = origin.to_ascii_lowercase();
                let host = origin.strip_prefix(&**scheme).and_then(|it| it.strip_suffix(&**suffix));
                let label = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                host.is_some_and(|host| !host.is_empty() && host.chars().all(label))
            }
        }
    }
}

/// One route's rule, with its fields made once.
#[derive(Debug)]
pub struct CorsFilter {
    origins: Vec<Origin>,
    credentials: bool,
    methods: String,
    headers: String,
    expose: String,
    max_age_s: String,
}

impl CorsFilter {
    /// Reads a rule.
    pub fn new(settings: &Cors) -> Self {
        Self {
            origins: settings.origins.iter().map(|origin| Origin::new(origin.trim())).collect(),
            credentials: settings.credentials,
            methods: settings.methods.join(", "),
            headers: settings.headers.join(", "),
            expose: settings.expose_headers.join(", "),
            max_age_s: settings.max_age.as_secs().to_string(),
        }
    }

    /// The answer to a browser's question, if the request is one.
    pub fn preflight(&self, head: &RequestHead) -> Option<Reply> {
        if !is_preflight(head) {
            return None;
        }
        let mut reply = Reply::empty(StatusCode::NO_CONTENT);
        let headers = &mut reply.head.headers;
        if self.write_origin(head, headers) {
            headers.push("access-control-allow-methods", &self.methods);
            if !self.headers.is_empty() {
                headers.push("access-control-allow-headers", &self.headers);
            }
            headers.push("access-control-max-age", &self.max_age_s);
        }
        Some(reply)
    }

    /// Adds to a response what a browser needs to see, in place of what the backend said itself.
    pub fn edit(&self, request: &RequestHead, response: &mut ResponseHead) {
        let headers = &mut response.headers;
        headers.retain(|field| {
            let start = field.name.as_bytes().get(..ALLOW.len());
            !start.is_some_and(|start| start.eq_ignore_ascii_case(ALLOW.as_bytes()))
        });
        if self.write_origin(request, headers) && !self.expose.is_empty() {
            headers.remove("access-control-expose-headers");
            headers.push("access-control-expose-headers", &self.expose);
        }
    }

    /// Whether the origin may, and was told so.
    fn write_origin(&self, request: &RequestHead, headers: &mut Headers) -> bool {
        let any = self.origins.contains(&Origin::Any);
        let everybody = any && !self.credentials;
        if !everybody {
            // The answer depends on who asks, also when it is no.
            headers.push("vary", "Origin");
        }
        let Some(origin) = request.headers.get_known_str(Known::Origin) else { return false };
        if !self.origins.iter().any(|own| own.admits(origin)) {
            return false;
        }
        headers.push("access-control-allow-origin", if everybody { "*" } else { origin });
        if self.credentials {
            headers.push("access-control-allow-credentials", "true");
        }
        true
    }
}

/// Whether a request is a browser's question.
pub fn is_preflight(head: &RequestHead) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains(Known::Origin)
        && head.headers.contains(Known::AccessControlRequestMethod)
}

const ALLOW: &str = "access-control-allow-";

#[cfg(test)]
mod tests;
