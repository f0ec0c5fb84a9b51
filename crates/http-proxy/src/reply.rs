//! Answers that we give ourselves: redirects, refusals, error pages.

use bytes::Bytes;
use http::StatusCode;

use crate::error::{ErrorKind, Side};
use crate::head::{Headers, Known, RequestHead, ResponseHead};

/// A whole response of our own. The wire adds `Content-Length`, `Date` and, where it must close,
/// `Connection`.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status and fields.
    pub head: ResponseHead,
    /// The body; left out for `HEAD`.
    pub body: Bytes,
    /// Whether the connection must not be used any further.
    pub close: bool,
}

impl Reply {
    /// A response without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self { head: ResponseHead::new(status), body: Bytes::new(), close: false }
    }

    /// A response with a body.
    pub fn with_body(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Self {
        let mut reply = Self { body: body.into(), ..Self::empty(status) };
        reply.head.headers.push_known(Known::ContentType, content_type);
        reply
    }

    /// A redirect.
    pub fn redirect(status: StatusCode, location: &str) -> Self {
        let mut reply = Self::empty(status);
        reply.head.headers.push_known(Known::Location, location);
        reply
    }

    /// With one more field.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.head.headers.push(name, value);
        self
    }

    /// The page for an error, in the form that the client likes best.
    pub fn error(kind: ErrorKind, request: Option<&RequestHead>) -> Self {
        let mut reply = Self::page(kind.status(), &kind.to_string(), request.map(|r| &r.headers));
        // Framing can no longer be trusted after the client broke the rules.
        reply.close = kind.side() == Side::Client;
        reply
    }

    /// A short page with a reason, in HTML, JSON or text, by the request's `Accept`.
    pub fn page(status: StatusCode, reason: &str, request: Option<&Headers>) -> Self {
        let accept = request.and_then(|headers| headers.get_known_str(Known::Accept));
        let code = status.as_u16();
        let title = status.canonical_reason().unwrap_or("Error");
        match PageForm::for_accept(accept.unwrap_or_default()) {
            PageForm::Html => {
                let body = format!(
                    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{code} {title}</title></head>\n\
                     <body><h1>{code} {title}</h1><p>{}.</p></body></html>\n",
                    escape_html(reason)
                );
                Self::with_body(status, "text/html; charset=utf-8", body)
            }
            PageForm::Json => {
                let body = format!(
                    "{{\"status\":{code},\"title\":\"{title}\",\"detail\":\"{}\"}}\n",
                    escape_json(reason)
                );
                Self::with_body(status, "application/problem+json", body)
            }
            PageForm::Text => {
                let body = format!("{code} {title}: {reason}\n");
                Self::with_body(status, "text/plain; charset=utf-8", body)
            }
        }
    }
}

/// The forms of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageForm {
    Html,
    Json,
    Text,
}

impl PageForm {
    /// The first form that the client names with the highest quality; text if it names none.
    fn for_accept(accept: &str) -> Self {
        let mut best = (Self::Text, 0.0);
        // The bound keeps a silly field cheap.
        for item in accept.split(',').take(32) {
            let mut parts = item.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(1.0, |quality| quality.parse::<f32>().unwrap_or(0.0));
            let form = match media.as_str() {
                "text/html" | "application/xhtml+xml" => Self::Html,
                "text/plain" | "text/*" | "*/*" => Self::Text,
                media if media == "application/json" || media.ends_with("+json") => Self::Json,
                _ => continue,
            };
            if quality > best.1 {
                best = (form, quality);
            }
        }
        best.0
    }
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn escape_json(text: &str) -> String {
    let plain = |c: char| !c.is_control() && c != '"' && c != '\\';
    text.chars().map(|c| if plain(c) { c } else { '\'' }).collect()
}
