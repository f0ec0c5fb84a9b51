//! Heads from and to the `http` crate's, which h2 speaks.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, Uri, Version};

use crate::error::ErrorKind;
use crate::h1::parse::{BodyLength, HeadLimits, content_length, is_ambiguous};
use crate::h1::write;
use crate::head::target::check_authority;
use crate::head::{Headers, Known, RequestHead, ResponseHead};
use crate::table::Policy;

/// How many fields our own head may come to: a client's and ours.
const FIELDS_MAX: usize = 192;

/// Reads a request's head. h2 has refused fields that HTTP/2 does not have.
pub fn request_head(
    parts: &Parts,
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<(), ErrorKind> {
    head.method = parts.method.clone();
    head.version = Version::HTTP_2;
    let host = parts.headers.get(http::header::HOST);
    let host = host.map(|value| value.to_str()).transpose();
    let host = host.map_err(|_| ErrorKind::BadRequest("bad Host"))?;
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    match (authority, host) {
        (Some(own), Some(host)) if !own.eq_ignore_ascii_case(host) => {
            return Err(ErrorKind::BadRequest(":authority and Host differ"));
        }
        (Some(name), _) | (None, Some(name)) => {
            check_authority(name).map_err(|_| ErrorKind::BadRequest("bad authority"))?;
            head.set_authority(name);
        }
        (None, None) => return Err(ErrorKind::BadRequest("there is no authority")),
    }
    let target = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    if target.len() > limits.target_bytes_max {
        return Err(ErrorKind::UriTooLong);
    }
    head.set_target(target).map_err(|_| ErrorKind::BadRequest("bad path"))?;
    if let Some(length) = parts.headers.get(http::header::CONTENT_LENGTH) {
        // h2 has checked the first against the body; an HTTP/1.1 endpoint may go by another.
        let all = parts.headers.get_all(http::header::CONTENT_LENGTH).iter().count();
        if all > 1 || content_length(length.as_bytes()).is_err() {
            return Err(ErrorKind::BadRequest("bad Content-Length"));
        }
    }
    let mut cookies = Vec::new();
    for (name, value) in &parts.headers {
        let bytes = value.as_bytes();
        let padded = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if padded(bytes.first()) || padded(bytes.last()) {
            return Err(ErrorKind::BadRequest("space around a field's value"));
        }
        match *name {
            http::header::HOST => {}
            // HTTP/2 may cut cookies into crumbs; nobody else understands that.
            http::header::COOKIE => {
                if !cookies.is_empty() {
                    cookies.extend_from_slice(b"; ");
                }
                cookies.extend_from_slice(value.as_bytes());
            }
            _ if is_ambiguous(name.as_str().as_bytes()) || name.as_str() == "proxy" => {}
            _ => {
                if !head.headers.push(name.as_str(), value.as_bytes()) {
                    return Err(ErrorKind::BadRequest("bad field"));
                }
            }
        }
    }
    if !cookies.is_empty() {
        head.headers.push_known(Known::Cookie, cookies);
    }
    Ok(())
}

/// A response's head for the wire.
pub fn response(head: &ResponseHead) -> Response<()> {
    let (mut response, dated) = undated(head);
    if !dated && let Ok(now) = write::with_date(HeaderValue::from_str) {
        response.headers_mut().insert(http::header::DATE, now);
    }
    response
}

/// Likewise, one that another follows.
pub fn interim(head: &ResponseHead) -> Response<()> {
    undated(head).0
}

/// As it came; and whether it says when.
fn undated(head: &ResponseHead) -> (Response<()>, bool) {
    let mut response = Response::new(());
    *response.status_mut() = head.status;
    *response.version_mut() = Version::HTTP_2;
    let headers = response.headers_mut();
    headers.reserve(head.headers.len() + 1);
    let mut dated = false;
    for field in head.headers.iter() {
        if field.known.is_hop_by_hop() {
            continue;
        }
        dated |= field.known == Known::Date;
        let name = HeaderName::from_bytes(field.name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
            headers.append(name, value);
        }
    }
    (response, dated)
}

/// A request for an endpoint. Its fields are those that our HTTP/1.1 code writes, so that endpoints
/// see the same whatever they speak.
pub fn request(head: &RequestHead, policy: &Policy, tls: bool) -> Result<Request<()>, ErrorKind> {
    let bad = |_| ErrorKind::Internal("a head that cannot be written");
    let host = policy.upstream_host.as_deref().unwrap_or(head.authority());
    let scheme = if tls { "https" } else { "http" };
    let target = if head.path() == "*" { "/".to_owned() } else { head.path_and_query() };
    let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(target).build();
    let mut request = Request::new(());
    *request.headers_mut() = request_fields(head, policy)?;
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri.map_err(bad)?;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// The fields that an endpoint sees of a request, beside its host.
pub(crate) fn request_fields(head: &RequestHead, policy: &Policy) -> Result<HeaderMap, ErrorKind> {
    let mut bytes = Vec::with_capacity(1024);
    write::request(&mut bytes, head, policy, false, BodyLength::None);
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut fields);
    parsed.parse(&bytes).map_err(|_| ErrorKind::HeaderTooLarge)?;
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    for field in parsed.headers.iter() {
        let known = Known::of(field.name.as_bytes());
        if known == Known::Host || (known.is_hop_by_hop() && known != Known::Te) {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
            headers.append(name, value);
        }
    }
    Ok(headers)
}

/// Trailers that may be passed on.
pub(crate) fn trailers_of(map: &HeaderMap) -> Headers {
    let mut trailers = Headers::from(map);
    trailers.retain(|field| crate::h1::body::may_trail(field.known));
    trailers
}

/// A request's trailers that may be passed on: what is dropped in a head is dropped here too, as some
/// servers put both together.
pub(crate) fn request_trailers_of(map: &HeaderMap) -> Headers {
    let mut trailers = trailers_of(map);
    trailers.retain(|field| !is_ambiguous(field.name.as_bytes()));
    trailers
}

/// Whether a request asks for a WebSocket by extended CONNECT (RFC 8441).
pub fn is_websocket(parts: &Parts) -> bool {
    let protocol = parts.extensions.get::<h2::ext::Protocol>();
    parts.method == Method::CONNECT && protocol.is_some_and(|it| it.as_str() == "websocket")
}
