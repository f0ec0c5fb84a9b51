//! Forward authentication: another server says who may.
//!
//! It is asked with the request's head and no body, and its status decides: 2xx lets the request
//! pass, 401 and 403 refuse it, anything else is its own failure and refuses too.
//!
//! Grants may be remembered, as long as the route says. The server may have looked at anything that
//! the question carries, so a grant holds only for a question that is the same in everything but what
//! is known not to say who asks (`says_nobody`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;

use super::client::{Client, ClientError};
use super::template::{Template, UnknownName, escape_into};
use super::{client_cert, may_edit};
use crate::head::headers::Field;
use crate::head::{Headers, Known, RequestHead};
use crate::reply::Reply;
use crate::table::ForwardAuth;

/// The longest body of a refusal that is passed on.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// How many answers are remembered.
const REMEMBERED_MAX: usize = 16_384;

/// Why a route's settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardAuthError {
    /// A name in an address.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// The method.
    #[error("{0:?} is not a method")]
    Method(String),
}

/// What an answer gives to a request that passes.
#[derive(Debug, Clone, Default)]
pub struct Granted {
    /// Fields for the backend.
    pub request: Headers,
    /// Cookies for the client.
    pub cookies: Vec<Vec<u8>>,
}

type Tag = [u8; 32];

/// Answers that were given lately.
#[derive(Debug, Default)]
pub struct Answers {
    remembered: Mutex<HashMap<Tag, (Granted, Instant)>>,
}

impl Answers {
    fn recall(&self, tag: &Tag, now: Instant) -> Option<Granted> {
        let remembered = self.remembered.lock();
        let (granted, until) = remembered.get(tag)?;
        (now < *until).then(|| granted.clone())
    }

    fn remember(&self, tag: Tag, granted: Granted, until: Instant, now: Instant) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, (_, until)| now < *until);
        }
        if remembered.len() >= REMEMBERED_MAX
            && let Some(any) = remembered.keys().next().copied()
        {
            remembered.remove(&any);
        }
        remembered.insert(tag, (granted, until));
    }
}

/// One route's question, read once.
#[derive(Debug)]
pub struct ForwardFilter {
    /// The route: what one route was granted is nothing to another.
    route: Arc<str>,
    settings: ForwardAuth,
    url: Template,
    method: Method,
    signin: Option<Template>,
    request_redirect: Option<Template>,
    /// How long grants are remembered, and by what beside the question itself.
    memory: Option<(Duration, Option<Template>)>,
}

impl ForwardFilter {
    /// Reads a route's settings; addresses and the cache's key may have [names](Template) in them. If
    /// only the key cannot be read, nothing is remembered, and `problems` says so.
    pub fn new(
        route: &Arc<str>,
        settings: &ForwardAuth,
        problems: &mut Vec<String>,
    ) -> Result<Self, ForwardAuthError> {
        let method = match settings.method.as_deref() {
            None | Some("") => Method::GET,
            Some(text) => Method::from_bytes(text.as_bytes())
                .map_err(|_| ForwardAuthError::Method(text.to_owned()))?,
        };
        let memory = match settings.cache_key.as_deref().map(Template::parse).transpose() {
            Ok(key) => (!settings.cache.is_zero()).then_some((settings.cache, key)),
            Err(unknown) => {
                problems.push(format!("what was granted is not remembered: {unknown}"));
                None
            }
        };
        let mut settings = settings.clone();
        settings.response_headers.retain(|name| {
            let may = may_edit(name);
            if !may {
                problems.push(format!("{name} is not for an authenticating server to tell"));
            }
            may
        });
        Ok(Self {
            route: Arc::clone(route),
            memory,
            url: Template::parse(&settings.url)?,
            signin: settings.signin.as_deref().map(Template::parse).transpose()?,
            request_redirect: settings
                .request_redirect
                .as_deref()
                .map(Template::parse)
                .transpose()?,
            method,
            settings,
        })
    }

    /// Asks whether a request may pass.
    pub async fn ask(
        &self,
        head: &RequestHead,
        client: &Client,
        answers: &Answers,
    ) -> Result<Granted, Reply> {
        let now = Instant::now();
        let memory = self.memory.as_ref();
        let tag = memory.map(|(time, key)| (self.tag(head, key.as_ref()), now + *time));
        if let Some(granted) = tag.as_ref().and_then(|(tag, _)| answers.recall(tag, now)) {
            return Ok(granted);
        }
        let unavailable = |error: &dyn std::fmt::Display| {
            tracing::warn!(%error, url = %self.settings.url, "forward authentication failed");
            let reason = "whether you may cannot be asked";
            Reply::page(StatusCode::INTERNAL_SERVER_ERROR, reason, Some(&head.headers))
        };
        let request = self.question(head).map_err(|error| unavailable(&error))?;
        let within = if self.settings.timeout.is_zero() {
            Duration::from_secs(5)
        } else {
            self.settings.timeout
        };
        // Its status and fields decide; a body is of use only to a page that refuses.
        let answer = client.ask_briefly(request, within, BODY_BYTES_MAX).await;
        let answer = answer.map_err(|error: ClientError| unavailable(&error))?;
        match answer.status() {
            status if status.is_success() => {
                let granted = self.granted(&answer);
                if let Some((tag, until)) = tag {
                    answers.remember(tag, granted.clone(), until, now);
                }
                Ok(granted)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.refusal(head, &answer)),
            status => Err(unavailable(&format!("it answered {status}"))),
        }
    }

    /// The same request by the same client, as far as an answer can depend on it.
    fn tag(&self, head: &RequestHead, key: Option<&Template>) -> Tag {
        let mut context = Context::new(&SHA256);
        let mut add = |part: &[u8]| {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        };
        add(self.route.as_bytes());
        add(self.url.fill(head).as_bytes());
        add(self.method.as_str().as_bytes());
        add(head.method.as_str().as_bytes());
        add(head.scheme.as_str().as_bytes());
        add(head.authority().as_bytes());
        add(head.path_and_query().as_bytes());
        add(head.client.address.to_string().as_bytes());
        add(key.map(|key| key.fill_plain(head)).unwrap_or_default().as_bytes());
        for field in head.headers.iter().filter(|field| !says_nobody(field)) {
            add(field.name.to_ascii_lowercase().as_bytes());
            add(field.value);
        }
        let mut tag = [0; 32];
        tag.copy_from_slice(context.finish().as_ref());
        tag
    }

    fn question(&self, head: &RequestHead) -> Result<Request<Bytes>, String> {
        let url = self.url.fill(head);
        let uri: http::Uri = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
        let host = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        let mut fields = head.headers.clone();
        fields.retain(|field| {
            let body = [Known::ContentLength, Known::ContentEncoding, Known::Expect, Known::Host];
            // What is said about the client is said by us, or by a proxy that we trust.
            let ours = client_cert::FIELDS.iter().any(|own| own.eq_ignore_ascii_case(field.name))
                || (field.known.is_forwarding() && !head.client.trusted);
            !field.known.is_hop_by_hop() && !body.contains(&field.known) && !ours
        });
        let original =
            format!("{}://{}{}", head.scheme.as_str(), head.authority(), head.path_and_query());
        let address = head.client.address.to_canonical().to_string();
        let redirect = self.request_redirect.as_ref();
        let redirect = redirect.map_or_else(|| head.path_and_query(), |it| it.fill(head));
        for (name, value) in [
            ("host", host.as_str()),
            ("x-original-url", original.as_str()),
            ("x-original-method", head.method.as_str()),
            ("x-auth-request-redirect", &redirect),
            ("x-forwarded-for", address.as_str()),
            ("x-forwarded-host", head.authority()),
            ("x-forwarded-method", head.method.as_str()),
            ("x-forwarded-proto", head.scheme.as_str()),
            ("x-forwarded-uri", &head.path_and_query()),
            ("x-real-ip", address.as_str()),
            ("x-sent-from", "telaio"),
        ] {
            fields.set(name, value);
        }
        for (name, value) in &self.settings.set_headers {
            fields.set(name, value.as_bytes());
        }
        *request.headers_mut() = fields.to_map();
        Ok(request)
    }

    /// The fields of which only the server may tell the backend: a client's own are never passed, also
    /// when the server says nothing.
    pub fn told_fields(&self) -> &[Arc<str>] {
        &self.settings.response_headers
    }

    fn granted(&self, answer: &Response<Bytes>) -> Granted {
        let mut granted = Granted::default();
        for name in &self.settings.response_headers {
            for value in answer.headers().get_all(&**name) {
                granted.request.push(&**name, value.as_bytes());
            }
        }
        let cookies = answer.headers().get_all(http::header::SET_COOKIE).iter();
        granted.cookies = cookies.map(|value| value.as_bytes().to_vec()).collect();
        granted
    }

    /// Passes a refusal on: as it is, or as a redirect to where the client can sign in.
    fn refusal(&self, head: &RequestHead, answer: &Response<Bytes>) -> Reply {
        let unauthorised = answer.status() == StatusCode::UNAUTHORIZED;
        let mut reply = match &self.signin {
            Some(signin) if unauthorised => {
                Reply::redirect(StatusCode::FOUND, &self.signin_location(signin, head))
            }
            _ => {
                let reason = "you may not";
                let mut page = Reply::page(answer.status(), reason, Some(&head.headers));
                if !answer.body().is_empty() {
                    page.body = answer.body().clone();
                    page.head.headers.clear();
                    copy(answer, &http::header::CONTENT_TYPE, &mut page.head.headers);
                }
                copy(answer, &http::header::WWW_AUTHENTICATE, &mut page.head.headers);
                page
            }
        };
        if self.settings.always_set_cookie || self.signin.is_some() {
            copy(answer, &http::header::SET_COOKIE, &mut reply.head.headers);
        }
        reply
    }

    fn signin_location(&self, signin: &Template, head: &RequestHead) -> String {
        let mut location = signin.fill(head);
        let parameter = match &*self.settings.signin_redirect_param {
            "" => "rd",
            named => named,
        };
        // Who wrote the way back into the address does not need a second one.
        let written = |mark: char| location.contains(&format!("{mark}{parameter}="));
        if !written('?') && !written('&') {
            location.push(if location.contains('?') { '&' } else { '?' });
            location.push_str(parameter);
            location.push('=');
            let back =
                format!("{}://{}{}", head.scheme.as_str(), head.authority(), head.path_and_query());
            escape_into(&back, &mut location);
        }
        location
    }
}

/// Fields that change from request to request of one client and do not say who it is.
fn says_nobody(field: &Field<'_>) -> bool {
    field.known.is_hop_by_hop()
        || matches!(
            field.known,
            Known::Accept
                | Known::AcceptEncoding
                | Known::CacheControl
                | Known::ContentLength
                | Known::ContentType
                | Known::Expect
                | Known::IfMatch
                | Known::IfModifiedSince
                | Known::IfNoneMatch
                | Known::IfRange
                | Known::IfUnmodifiedSince
                | Known::Pragma
                | Known::Range
                | Known::Referer
                | Known::SecWebsocketKey
                | Known::Traceparent
                | Known::Tracestate
                | Known::UserAgent
                | Known::XRequestId
        )
}

fn copy(answer: &Response<Bytes>, name: &HeaderName, into: &mut Headers) {
    for value in answer.headers().get_all(name).iter().map(HeaderValue::as_bytes) {
        into.push(name.as_str(), value);
    }
}

#[cfg(test)]
mod tests;
