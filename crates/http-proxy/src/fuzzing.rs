//! What must hold for any bytes; run by the fuzz targets and, over seeds, by plain tests.

use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::filter::template::{Leads, Template};
use crate::h1::body::{Decoder, write_chunk, write_end};
use crate::h1::parse::{self, BodyLength, HeadLimits};
use crate::h1::write;
use crate::head::target::check_authority;
use crate::head::target::matching_form;
use crate::head::{Headers, Known, RequestHead, ResponseHead, Scheme};
use crate::proxy::believe::believe;
use crate::router::Router;
use crate::table::{BackendId, HostMatch, PathMatch, Policy, Route};
use crate::upstream::Upstreams;

/// How hyper read a request: method, target, announced length, body.
type Seen = (String, String, Option<u64>, Vec<u8>);

/// Any bytes as a request, a response and a body.
///
/// What we accept, hyper refuses or reads alike; what we write, we read again alike.
///
/// # Panics
/// If that does not hold.
pub fn check_heads(bytes: &[u8]) {
    check_response(bytes);
    check_chunks(bytes);
    let mut searched = 0;
    let Ok(Some(length)) = parse::head_end(bytes, &mut searched) else { return };
    let mut head = RequestHead::new();
    let Ok(framing) = parse::request(&bytes[..length], &HeadLimits::default(), &mut head) else {
        return;
    };
    assert!(head.path() == "*" || head.path().starts_with('/'));
    assert!(!head.headers.contains(Known::Host) && !head.headers.contains(Known::TransferEncoding));
    // What goes upstream is a request that we would take ourselves, and read alike.
    let mut out = Vec::new();
    let body = if framing.upgrade { BodyLength::None } else { framing.body };
    write::request(&mut out, &head, &Policy::default(), framing.upgrade, body);
    if !head.authority().is_empty() && head.path() != "*" {
        let mut again = RequestHead::new();
        let limits = HeadLimits { head_bytes_max: usize::MAX, target_bytes_max: usize::MAX };
        match parse::request(&out, &limits, &mut again) {
            Ok(read) => {
                assert_eq!(
                    (&again.method, again.path(), again.query()),
                    (&head.method, head.path(), head.query())
                );
                assert_eq!((again.authority(), read.body), (head.authority(), framing.body));
            }
            // The fields that we add may be too many.
            Err(kind) => assert_eq!(kind, crate::ErrorKind::HeaderTooLarge),
        }
    }
    let mut decoder = Decoder::new(framing.body);
    let Some((body, rest)) = whole_body(&mut decoder, &bytes[length..]) else { return };
    if let Some((method, target, announced, seen)) = by_hyper(&bytes[..bytes.len() - rest]) {
        assert_eq!(method, head.method.as_str());
        assert_eq!(target.contains('?'), head.query().is_some(), "{target}");
        assert_eq!(seen, body);
        let own = match framing.body {
            BodyLength::Chunked | BodyLength::UntilClose => None,
            BodyLength::None => Some(0),
            BodyLength::Fixed(length) => Some(length),
        };
        assert_eq!(announced, own);
    }
}

/// The data of a body, and how many bytes come behind it; `None` if it is bad or not all there.
fn whole_body(decoder: &mut Decoder, mut bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut body = Vec::new();
    while !decoder.is_done() {
        let (used, data) = decoder.take(bytes).ok()?;
        body.extend_from_slice(&bytes[used - data..used]);
        bytes = &bytes[used..];
        if used == 0 {
            return None;
        }
    }
    Some((body, bytes.len()))
}

/// Lets hyper serve the bytes; what it made of the first request, if it took it whole.
fn by_hyper(bytes: &[u8]) -> Option<Seen> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
    let seen: Arc<Mutex<Option<Seen>>> = Arc::default();
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let seen = seen.clone();
            async move {
                let (parts, body) = request.into_parts();
                let announced = hyper::body::Body::size_hint(&body).exact();
                let Ok(body) = body.collect().await else { return Err("cut") };
                let target = parts.uri.to_string();
                let own = (parts.method.to_string(), target, announced, body.to_bytes().to_vec());
                seen.lock().get_or_insert(own);
                Ok(hyper::Response::new(Empty::<bytes::Bytes>::new()))
            }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service);
        let asking = async {
            client.write_all(bytes).await.ok()?;
            client.shutdown().await.ok()?;
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.ok()
        };
        let _ = tokio::join!(serving, asking);
    });
    Arc::into_inner(seen)?.into_inner()
}

fn check_response(bytes: &[u8]) {
    let mut head = ResponseHead::default();
    if let Ok(Some((length, framing))) = parse::response(bytes, &http::Method::GET, &mut head) {
        assert!(length <= bytes.len());
        let form = write::ResponseForm {
            chunked: framing.body == BodyLength::Chunked,
            keep_alive: framing.keep_alive,
            old_client: false,
        };
        let mut out = Vec::new();
        write::response(&mut out, &head, form);
        let mut again = ResponseHead::default();
        if let Ok(Some((_, read))) = parse::response(&out, &http::Method::GET, &mut again) {
            assert_eq!((again.status, read.body), (head.status, framing.body));
        }
    }
}

/// A body means the same in one piece and byte by byte, and written again.
fn check_chunks(bytes: &[u8]) {
    let mut at_once = Decoder::new(BodyLength::Chunked);
    let whole = whole_body(&mut at_once, bytes);
    let mut slowly = Decoder::new(BodyLength::Chunked);
    let mut data = Vec::new();
    let mut good = true;
    for byte in bytes {
        if slowly.is_done() {
            break;
        }
        let Ok((_, count)) = slowly.take(std::slice::from_ref(byte)) else {
            good = false;
            break;
        };
        data.extend_from_slice(&[*byte][..count]);
    }
    assert_eq!(whole.is_some(), good && slowly.is_done());
    if let Some((body, _)) = whole {
        assert_eq!(body, data);
        let mut out = Vec::new();
        write_chunk(&mut out, &body);
        write_end(&mut out, at_once.trailers().as_ref());
        let again = whole_body(&mut Decoder::new(BodyLength::Chunked), &out);
        assert_eq!(again, Some((body, 0)));
    }
}

/// Any bytes as routes, line by line, and the last line as a request.
///
/// # Panics
/// If a look-up finds a route whose host or path does not fit.
pub fn check_router(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<_> = text.lines().take(64).collect();
    let Some(asked) = lines.pop() else { return };
    let (host, path) = asked.split_once(' ').unwrap_or(("", asked));
    let upstreams = Upstreams::default();
    let mut router = Router::new();
    for (number, line) in lines.iter().enumerate() {
        let (own, path) = line.split_once(' ').unwrap_or(("", line));
        let own = own.to_ascii_lowercase();
        let host = match own.strip_prefix('*') {
            Some(suffix) => HostMatch::Wildcard(suffix.into()),
            None if own.is_empty() => HostMatch::Any,
            None => HostMatch::Exact(own.as_str().into()),
        };
        let path = match path.strip_prefix('=') {
            Some(path) => PathMatch::Exact(path.into()),
            None => match path.strip_prefix('~') {
                Some(pattern) => PathMatch::Regex(pattern.into()),
                None => PathMatch::Prefix(path.into()),
            },
        };
        let id = format!("{number}");
        // A bad regular expression is refused, and that is all.
        let _ = router.add_route(Route::forward(&id, host, path, BackendId::new(&id)), &upstreams);
    }
    let mut request = RequestHead::new();
    request.set_authority(host);
    if request.set_target(path).is_err() {
        return;
    }
    if let Some(found) = router.get_backend(&request) {
        if let PathMatch::Prefix(prefix) = &found.route.path {
            let path = matching_form(request.path());
            let rest = path.strip_prefix(prefix.trim_end_matches('/'));
            assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        }
        if let PathMatch::Exact(path) = &found.route.path {
            assert_eq!(&**path, &*matching_form(request.path()));
        }
        if let Some(target) = found.rewritten(request.path()) {
            let _ = request.rewrite(&target);
        }
    }
}

/// Any bytes as the frames of a client of HTTP/2, behind its preface.
///
/// # Panics
/// If it matters how they are cut, or what we take could be read otherwise by an HTTP/1.1 endpoint.
pub fn check_h2(bytes: &[u8]) {
    crate::h2::any_bytes::check(bytes);
}

/// Any lines as what proxies say about a client. A line's first letter is a field: `x` is `X-Forwarded-For`,
/// `f` `Forwarded`, `p` `X-Forwarded-Proto`, `h` `X-Forwarded-Host`.
///
/// # Panics
/// If somebody is believed who is not trusted, or what is made of it is no request any more.
pub fn check_forwarded(bytes: &[u8]) {
    let mut head = RequestHead::new();
    head.set_authority("own.example");
    head.client.peer = std::net::SocketAddr::from(([10, 0, 0, 9], 4000));
    head.client.address = head.client.peer.ip();
    for line in bytes.split(|byte| *byte == b'\n').take(32) {
        let Some((kind, value)) = line.split_first() else { continue };
        let known = match kind {
            b'x' => Known::XForwardedFor,
            b'f' => Known::Forwarded,
            b'p' => Known::XForwardedProto,
            b'h' => Known::XForwardedHost,
            _ => continue,
        };
        head.headers.push_known(known, value.trim_ascii());
    }
    let fields = |headers: &Headers| {
        let all = headers.iter().map(|field| (field.known, field.value.to_vec()));
        all.collect::<Vec<_>>()
    };
    let own = |text: &str| text.parse::<ipnet::IpNet>().into_iter().collect::<Vec<_>>();
    let mut doubted = head.clone();
    believe(&own("192.0.2.0/24"), &mut doubted);
    assert_eq!(doubted.client, head.client);
    assert_eq!((doubted.scheme, fields(&doubted.headers)), (Scheme::Http, fields(&head.headers)));
    let said = head.headers.contains(Known::XForwardedFor);
    let mut believed = head.clone();
    believe(&own("10.0.0.0/8"), &mut believed);
    assert!(believed.client.trusted);
    assert!(!(said && believed.headers.contains(Known::Forwarded)), "one of the two decides");
    if believed.client.address != head.client.address {
        let list = believed.headers.get_all_known(Known::XForwardedFor);
        assert!(list.count() > 0, "the client is in the list");
    }
    let host = believed.headers.get_known_str(Known::XForwardedHost);
    if !said && host != head.headers.get_known_str(Known::XForwardedHost) {
        assert!(host.is_some_and(|host| check_authority(host).is_ok()), "{host:?}");
    }
    for head in [&doubted, &believed] {
        let mut out = Vec::new();
        write::request(&mut out, head, &Policy::default(), false, BodyLength::None);
        let mut again = RequestHead::new();
        let read = parse::request(&out, &HeadLimits::default(), &mut again);
        assert!(read.is_ok(), "{}", String::from_utf8_lossy(&out));
        assert_eq!((again.authority(), again.path()), ("own.example", "/"));
    }
    let heard = doubted.headers.contains(Known::XForwardedFor);
    assert_eq!(heard, said);
}

/// Any bytes as an address with names in it, and, behind the first line, what a client sends as cookie and
/// field.
///
/// # Panics
/// If the client has a say in where an address leads that is to lead where it is written.
pub fn check_template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (written, value) = text.split_once('\n').unwrap_or((&text, ""));
    let Ok(template) = Template::parse(written) else { return };
    let filled = |value: &str| {
        let mut head = RequestHead::new();
        head.set_authority("own.example");
        head.headers.push("x-a", value);
        head.headers.push_known(Known::Cookie, format!("a={value}"));
        let basic =
            base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("{value}:"));
        head.headers.push_known(Known::Authorization, format!("Basic {basic}"));
        // What may be said as it is must not panic either.
        template.fill_plain(&head);
        template.fill(&head)
    };
    let (without, with) = (filled(""), filled(value));
    if template.leads() == Leads::Anywhere {
        return;
    }
    assert_eq!(leads_to(&without), leads_to(&with), "{without:?} and {with:?}");
}

/// Scheme and authority of an address, as browsers read it.
fn leads_to(address: &str) -> (&str, &str) {
    let (scheme, rest) = match address.split_once("//") {
        Some((scheme, rest)) if !scheme.contains(['/', '?', '#']) => (scheme, rest),
        _ => return ("", ""),
    };
    (scheme, rest.split(['/', '?', '#', '\\']).next().unwrap_or_default())
}
