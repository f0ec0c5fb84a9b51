//! Heads in. A request's head is refused unless every recipient must read it the same way.
//!
//! Stricter than RFC 9112 allows, on purpose: no bare line feeds, no second `Content-Length` even if
//! equal, no `Transfer-Encoding` but `chunked`, none of both together, none in HTTP/1.0, exactly one
//! valid `Host`, no folded lines.

use http::{Method, StatusCode, Version};
use std::mem::MaybeUninit;

use crate::error::ErrorKind;
use crate::head::target::check_authority;
use crate::head::{Headers, Known, RequestHead, ResponseHead};

/// Bounds of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// A head's bytes: 431 above.
    pub head_bytes_max: usize,
    /// A request target's bytes: 414 above.
    pub target_bytes_max: usize,
}

/// A head's fields: 431 above.
pub const FIELDS_MAX: usize = 128;

/// A method's letters.
const METHOD_BYTES_MAX: usize = 32;

impl Default for HeadLimits {
    fn default() -> Self {
        Self { head_bytes_max: 32 << 10, target_bytes_max: 8 << 10 }
    }
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// There is none.
    None,
    /// So many bytes.
    Fixed(u64),
    /// In chunks.
    Chunked,
    /// Until the connection closes; responses only.
    UntilClose,
}

/// What a request's head says about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFraming {
    /// The body.
    pub body: BodyLength,
    /// Whether another request may follow.
    pub keep_alive: bool,
    /// Whether the connection shall change its protocol.
    pub upgrade: bool,
    /// Whether the client waits for `100 Continue`.
    pub expects_continue: bool,
    /// Whether `Connection` names fields of its own to be removed.
    pub names_fields: bool,
}

/// What a response's head says about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseFraming {
    /// The body.
    pub body: BodyLength,
    /// Whether the connection may be used again.
    pub keep_alive: bool,
    /// Whether `Connection` names fields of its own to be removed.
    pub names_fields: bool,
}

/// What a `Connection` field says.
#[derive(Debug, Default, Clone, Copy)]
struct ConnectionOptions {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    others: bool,
}

impl ConnectionOptions {
    fn read(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',') {
            let option = option.trim_ascii();
            if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if !option.is_empty() && !Known::of(option).is_hop_by_hop() {
                self.others = true;
            }
        }
    }
}

/// Looks for the end of a head, line by line, from where the last look ended.
///
/// `Ok(None)` if it is not there yet. Each line must end with CR LF; one empty line before the
/// request is forgiven, as RFC 9112 asks.
pub fn head_end(bytes: &[u8], searched: &mut usize) -> Result<Option<usize>, ErrorKind> {
    while let Some(step) = memchr::memchr(b'\n', &bytes[*searched..]) {
        let at = *searched + step;
        if at == 0 || bytes[at - 1] != b'\r' {
            return Err(ErrorKind::BadRequest("a line ends without a carriage return"));
        }
        *searched = at + 1;
        if at >= 3 && bytes[at - 2] == b'\n' {
            return Ok(Some(at + 1));
        }
    }
    Ok(None)
}

/// Which error it is when a head has grown beyond its bound.
pub fn too_large(bytes: &[u8]) -> ErrorKind {
    match memchr::memchr(b'\n', bytes) {
        Some(_) => ErrorKind::HeaderTooLarge,
        None => ErrorKind::UriTooLong,
    }
}

/// Reads a request's head, which ends where [`head_end`] says.
pub fn request(
    bytes: &[u8],
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<RequestFraming, ErrorKind> {
    // First: a head that cannot be read must not leave another's there.
    head.clear();
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let outcome = parsed.parse_with_uninit_headers(bytes, &mut fields);
    match outcome {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(ErrorKind::BadRequest("the head ends early")),
        Err(httparse::Error::TooManyHeaders) => return Err(ErrorKind::HeaderTooLarge),
        Err(error) => return Err(ErrorKind::BadRequest(reason(error))),
    }
    let target = parsed.path.unwrap_or_default();
    if target.len() > limits.target_bytes_max {
        return Err(ErrorKind::UriTooLong);
    }
    let method = parsed.method.unwrap_or_default();
    head.method = match method {
        "GET" => Method::GET,
        "POST" => Method::POST,
        method if method.len() <= METHOD_BYTES_MAX => Method::from_bytes(method.as_bytes())
            .map_err(|_| ErrorKind::BadRequest("bad method"))?,
        _ => return Err(ErrorKind::BadRequest("the method is too long")),
    };
    if head.method == Method::CONNECT {
        return Err(ErrorKind::NotImplemented);
    }
    head.version = if parsed.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let framing = request_fields(parsed.headers, head)?;
    head.set_target(target).map_err(|_| ErrorKind::BadRequest("bad request target"))?;
    Ok(framing)
}

fn request_fields(
    fields: &[httparse::Header<'_>],
    head: &mut RequestHead,
) -> Result<RequestFraming, ErrorKind> {
    let mut options = ConnectionOptions::default();
    let mut length = None;
    let (mut chunked, mut host, mut upgrade, mut expects_continue) = (false, false, false, false);
    // Whether a protocol is offered that would carry requests past us unseen; then none is.
    let mut hidden = false;
    for field in fields {
        let (name, value) = (field.name.as_bytes(), field.value);
        let known = Known::of(name);
        match known {
            Known::Host => {
                let text = std::str::from_utf8(value).ok().filter(|_| !host);
                let text = text.ok_or(ErrorKind::BadRequest("more than one Host"))?;
                check_authority(text).map_err(|_| ErrorKind::BadRequest("bad Host"))?;
                head.set_authority(text);
                host = true;
                continue;
            }
            Known::ContentLength => {
                let before = length.replace(content_length(value)?);
                if before.is_some() {
                    return Err(ErrorKind::BadRequest("more than one Content-Length"));
                }
            }
            Known::TransferEncoding => {
                if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(ErrorKind::BadRequest("a Transfer-Encoding other than chunked"));
                }
                chunked = true;
                continue;
            }
            Known::Connection => options.read(value),
            Known::Upgrade => {
                for protocol in protocols(value) {
                    upgrade = true;
                    hidden |= is_http(protocol);
                }
            }
            Known::Expect => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(ErrorKind::ExpectationFailed);
                }
                expects_continue = true;
            }
            Known::Proxy => continue,
            Known::Other if is_ambiguous(name) => continue,
            _ => {}
        }
        head.headers.push_checked(known, name, value);
    }
    let old = head.version == Version::HTTP_10;
    if !host && !old {
        return Err(ErrorKind::BadRequest("no Host"));
    }
    if chunked && (length.is_some() || old) {
        return Err(ErrorKind::BadRequest("Transfer-Encoding with Content-Length or HTTP/1.0"));
    }
    let body = match length {
        _ if chunked => BodyLength::Chunked,
        None | Some(0) => BodyLength::None,
        Some(length) => BodyLength::Fixed(length),
    };
    let upgrade = upgrade && options.upgrade && !old && !hidden;
    if upgrade && body != BodyLength::None {
        return Err(ErrorKind::BadRequest("an upgrade with a body"));
    }
    let keep_alive = !options.close && (!old || options.keep_alive);
    Ok(RequestFraming {
        body,
        keep_alive,
        upgrade,
        expects_continue: expects_continue && !old && body != BodyLength::None,
        names_fields: options.others,
    })
}

/// The protocols that an `Upgrade` field names.
fn protocols(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    names.filter(|name| !name.is_empty())
}

/// Whether a protocol is HTTP again, in whatever version, or what may have HTTP within.
fn is_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Whether a request offers to change to WebSocket.
pub(crate) fn asks_for_websocket(request: &Headers) -> bool {
    let mut asked = request.get_all_known(Known::Upgrade).flat_map(protocols);
    asked.any(|own| own.eq_ignore_ascii_case(b"websocket"))
}

/// Whether all that an endpoint changes to is something that the client has asked for.
pub fn is_offered(request: &Headers, response: &Headers) -> bool {
    let mut told = response.get_all_known(Known::Upgrade).flat_map(protocols).peekable();
    let offered = |name: &[u8]| {
        let mut asked = request.get_all_known(Known::Upgrade).flat_map(protocols);
        asked.any(|own| own.eq_ignore_ascii_case(name))
    };
    told.peek().is_some() && told.all(offered)
}

/// What the first line of a head says that cannot be read further, for whoever looks for it in a log:
/// method and target, or `-` where there is none.
pub fn request_line(bytes: &[u8], limits: &HeadLimits, head: &mut RequestHead) {
    let bytes = bytes.strip_prefix(b"\r\n").unwrap_or(bytes);
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = &line[..line.len().min(METHOD_BYTES_MAX + 1 + limits.target_bytes_max)];
    let mut words = line.split(|byte| *byte == b' ').map(<[u8]>::trim_ascii);
    let method = words.next().filter(|word| word.len() <= METHOD_BYTES_MAX).unwrap_or_default();
    let method = Method::from_bytes(method).or_else(|_| Method::from_bytes(b"-"));
    head.method = method.unwrap_or_default();
    let target = words.next().and_then(|word| std::str::from_utf8(word).ok());
    if target.is_none_or(|target| head.set_target(target).is_err()) {
        head.set_path("-");
        head.set_query(None);
    }
}

/// Whether a name has an underscore. To CGI, WSGI and their like `X_User` is `X-User`, so with such a
/// name a client could say what only we or an authenticating server may. They are dropped, as nginx
/// does; so is `Proxy`, which the same programs take for `HTTP_PROXY`.
pub fn is_ambiguous(name: &[u8]) -> bool {
    memchr::memchr(b'_', name).is_some()
}

/// Reads a length: digits, and nothing else.
pub fn content_length(value: &[u8]) -> Result<u64, ErrorKind> {
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    let bad = ErrorKind::BadRequest("bad Content-Length");
    if !digits {
        return Err(bad);
    }
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

fn reason(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::HeaderName => "bad field name",
        httparse::Error::HeaderValue => "bad field value",
        httparse::Error::NewLine => "bad line end",
        httparse::Error::Version => "not HTTP/1.0 or HTTP/1.1",
        _ => "bad request line",
    }
}

/// Reads a response's head: its length and framing, or `None` if it is not all there. `asked` is the
/// request's method, because a response to `HEAD` has no body whatever it says.
pub fn response(
    bytes: &[u8],
    asked: &Method,
    head: &mut ResponseHead,
) -> Result<Option<(usize, ResponseFraming)>, ErrorKind> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let outcome = config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut fields);
    let length = match outcome {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(ErrorKind::BadResponse("too many fields"));
        }
        Err(_) => return Err(ErrorKind::BadResponse("its head cannot be read")),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    head.status = status.ok_or(ErrorKind::BadResponse("bad status"))?;
    let framing = response_fields(parsed.headers, parsed.version == Some(1), asked, head)?;
    Ok(Some((length, framing)))
}

fn response_fields(
    fields: &[httparse::Header<'_>],
    new: bool,
    asked: &Method,
    head: &mut ResponseHead,
) -> Result<ResponseFraming, ErrorKind> {
    head.headers.clear();
    let mut options = ConnectionOptions::default();
    let (mut length, mut chunked) = (None, false);
    for field in fields {
        let (name, value) = (field.name.as_bytes(), field.value);
        let known = Known::of(name);
        match known {
            Known::ContentLength => {
                let bad = ErrorKind::BadResponse("bad Content-Length");
                if length.replace(content_length(value).map_err(|_| bad)?).is_some() {
                    return Err(ErrorKind::BadResponse("more than one Content-Length"));
                }
            }
            Known::TransferEncoding => {
                if chunked || !new || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(ErrorKind::BadResponse("a Transfer-Encoding other than chunked"));
                }
                chunked = true;
                continue;
            }
            Known::Connection => options.read(value),
            _ => {}
        }
        head.headers.push_checked(known, name, value);
    }
    if chunked && length.is_some() {
        return Err(ErrorKind::BadResponse("both Transfer-Encoding and Content-Length"));
    }
    let status = head.status;
    let bodiless = *asked == Method::HEAD
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    // RFC 9110 §8.6: neither has a body, and none may say how long it is. An endpoint that does may
    // have sent one all the same.
    let lengthless = status.is_informational() || status == StatusCode::NO_CONTENT;
    let confused = lengthless && length.is_some_and(|length| length > 0);
    if lengthless && length.is_some() {
        head.headers.remove_known(Known::ContentLength);
    }
    let body = match length {
        _ if bodiless => BodyLength::None,
        _ if chunked => BodyLength::Chunked,
        Some(0) => BodyLength::None,
        Some(length) => BodyLength::Fixed(length),
        None => BodyLength::UntilClose,
    };
    let keep_alive = !options.close
        && (new || options.keep_alive)
        && body != BodyLength::UntilClose
        && !confused;
    Ok(ResponseFraming { body, keep_alive, names_fields: options.others })
}

/// Removes the fields that `Connection` names beside those that never go on.
pub fn remove_named(headers: &mut Headers) {
    let named: Vec<String> = headers
        .get_all_known(Known::Connection)
        .filter_map(|value| std::str::from_utf8(value).ok())
        .flat_map(|value| value.split(','))
        .map(|option| option.trim().to_owned())
        .filter(|option| !option.is_empty())
        .collect();
    for name in named {
        // Framing and what it stands on is not for a client to remove.
        if !matches!(
            Known::of(name.as_bytes()),
            Known::ContentLength | Known::Connection | Known::Upgrade
        ) {
            headers.remove(&name);
        }
    }
}
