//! Heads out: what concerns one hop only is left out, and what the next one must know is put in.

use std::cell::RefCell;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{StatusCode, Version};

use super::parse::BodyLength;
use crate::clock;
use crate::head::{Headers, Known, RequestHead, ResponseHead};
use crate::table::Policy;

/// How we call ourselves in `Via`.
const PSEUDONYM: &str = "telaio";

/// Longer names of requests are replaced by one of ours.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Writes a field.
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether we say something ourselves, or nothing, in place of what a client said with this field.
fn is_replaced(known: Known, head: &RequestHead, policy: &Policy) -> bool {
    match known {
        Known::Forwarded
        | Known::XForwardedFor
        | Known::XRealIp
        | Known::Via
        | Known::XRequestId => true,
        Known::XForwardedPrefix => policy.forwarded_prefix.is_some() || !head.client.trusted,
        _ => known.is_forwarding() && !head.client.trusted,
    }
}

/// Writes the head of a request as it goes to an endpoint.
pub fn request(
    out: &mut Vec<u8>,
    head: &RequestHead,
    policy: &Policy,
    upgrade: bool,
    body: BodyLength,
) {
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.path().as_bytes());
    if let Some(query) = head.query() {
        out.push(b'?');
        out.extend_from_slice(query.as_bytes());
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let host = policy.upstream_host.as_deref().unwrap_or(head.authority());
    field(out, b"Host", host.as_bytes());
    for own in head.headers.iter() {
        if own.known == Known::Other
            || !(own.known.is_hop_by_hop() || is_replaced(own.known, head, policy))
        {
            field(out, own.name.as_bytes(), own.value);
        }
    }
    forwarded(out, head);
    if let Some(prefix) = &policy.forwarded_prefix {
        field(out, b"X-Forwarded-Prefix", prefix.as_bytes());
    }
    if body == BodyLength::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if upgrade {
        out.extend_from_slice(b"Connection: upgrade\r\n");
        for value in head.headers.get_all_known(Known::Upgrade) {
            field(out, b"Upgrade", value);
        }
    } else if has_trailers_option(&head.headers) {
        out.extend_from_slice(b"Connection: TE\r\nTE: trailers\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

fn has_trailers_option(headers: &Headers) -> bool {
    let mut options =
        headers.get_all_known(Known::Te).flat_map(|value| value.split(|byte| *byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Says who the client is and how it came: to a trusted proxy's words ours are added, anybody
/// else's are replaced.
fn forwarded(out: &mut Vec<u8>, head: &RequestHead) {
    let client = &head.client;
    let believed = |known| client.trusted.then(|| head.headers.get_known(known)).flatten();
    out.extend_from_slice(b"X-Forwarded-For: ");
    if believed(Known::XForwardedFor).is_some() {
        // Several lines are one list.
        for before in head.headers.get_all_known(Known::XForwardedFor) {
            out.extend_from_slice(before);
            out.extend_from_slice(b", ");
        }
        address(out, client.peer.ip());
    } else {
        address(out, client.address);
    }
    out.extend_from_slice(b"\r\nX-Real-IP: ");
    address(out, client.address);
    out.extend_from_slice(b"\r\n");
    if believed(Known::XForwardedProto).is_none() {
        field(out, b"X-Forwarded-Proto", head.scheme.as_str().as_bytes());
    }
    if believed(Known::XForwardedHost).is_none() && !head.authority().is_empty() {
        field(out, b"X-Forwarded-Host", head.authority().as_bytes());
    }
    if believed(Known::XForwardedPort).is_none() {
        out.extend_from_slice(b"X-Forwarded-Port: ");
        let port = client.local.port();
        decimal(out, u64::from(if port == 0 { head.port() } else { port }));
        out.extend_from_slice(b"\r\n");
    }
    forwarded_field(out, head);
    request_id(out, head);
    via(out, &head.headers, head.version);
}

/// RFC 7239's field. To elements that were believed ours is added, which names the proxy that we got
/// the request from; else there is one element, and it names the client.
fn forwarded_field(out: &mut Vec<u8>, head: &RequestHead) {
    let client = &head.client;
    out.extend_from_slice(b"Forwarded: ");
    let mut node = client.address;
    if client.trusted {
        for before in head.headers.get_all_known(Known::Forwarded) {
            out.extend_from_slice(before);
            out.extend_from_slice(b", ");
            node = client.peer.ip();
        }
    }
    out.extend_from_slice(b"for=");
    let v6 = node.is_ipv6();
    out.extend_from_slice(if v6 { b"\"[" } else { b"" });
    address(out, node);
    out.extend_from_slice(if v6 { b"]\"" } else { b"" });
    if !head.authority().is_empty() {
        out.extend_from_slice(b";host=\"");
        out.extend_from_slice(head.authority().as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b";proto=");
    out.extend_from_slice(head.scheme.as_str().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The request's name: the client's own, or a new one.
fn request_id(out: &mut Vec<u8>, head: &RequestHead) {
    if let Some(own) = head.headers.get_known(Known::XRequestId)
        && !own.is_empty()
        && own.len() <= REQUEST_ID_BYTES_MAX
    {
        return field(out, b"X-Request-Id", own);
    }
    out.extend_from_slice(b"X-Request-Id: ");
    for half in [clock::chance(), clock::chance()] {
        let mut digits = [0; 16];
        for (place, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(half >> (60 - 4 * place)) as usize & 15];
        }
        out.extend_from_slice(&digits);
    }
    out.extend_from_slice(b"\r\n");
}

fn via(out: &mut Vec<u8>, headers: &Headers, version: Version) {
    out.extend_from_slice(b"Via: ");
    for before in headers.get_all_known(Known::Via) {
        out.extend_from_slice(before);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(match version {
        Version::HTTP_10 => b"1.0 ",
        Version::HTTP_2 => b"2.0 ",
        _ => b"1.1 ",
    });
    out.extend_from_slice(PSEUDONYM.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            for (place, octet) in v4.octets().into_iter().enumerate() {
                if place > 0 {
                    out.push(b'.');
                }
                decimal(out, u64::from(octet));
            }
        }
        // Writing to a list of bytes cannot fail.
        IpAddr::V6(v6) => drop(write!(out, "{v6}")),
    }
}

/// Writes a number.
pub fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// How a response's body goes to the client, and whether the connection stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseForm {
    /// Whether the body is written in chunks.
    pub chunked: bool,
    /// Whether the connection stays.
    pub keep_alive: bool,
    /// Whether the client speaks HTTP/1.0, which must be told that a connection stays.
    pub old_client: bool,
}

/// Writes the head of a response as it goes to a client.
pub fn response(out: &mut Vec<u8>, head: &ResponseHead, form: ResponseForm) {
    status_line(out, head.status);
    let mut dated = false;
    for own in head.headers.iter() {
        if own.known != Known::Other {
            let length = own.known == Known::ContentLength;
            // A challenge of the backend's for proxies is not ours to pass on either.
            if own.known.is_hop_by_hop() || (length && form.chunked) {
                continue;
            }
            dated |= own.known == Known::Date;
        }
        field(out, own.name.as_bytes(), own.value);
    }
    if !dated {
        date(out);
    }
    if form.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if !form.keep_alive {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if form.old_client {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes an interim response: 100, 103, or, with its protocol, 101.
pub fn interim(out: &mut Vec<u8>, head: &ResponseHead) {
    status_line(out, head.status);
    for own in head.headers.iter().filter(|own| !own.known.is_hop_by_hop()) {
        field(out, own.name.as_bytes(), own.value);
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        out.extend_from_slice(b"Connection: upgrade\r\n");
        for value in head.headers.get_all_known(Known::Upgrade) {
            field(out, b"Upgrade", value);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn status_line(out: &mut Vec<u8>, status: StatusCode) {
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `Date`, made once a second and thread.
fn date(out: &mut Vec<u8>) {
    with_date(|text| field(out, b"Date", text.as_bytes()));
}

/// The time now, in HTTP's form; made anew only when the second is another.
pub(crate) fn with_date<T>(use_it: impl FnOnce(&str) -> T) -> T {
    thread_local! {
        static LAST: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LAST.with_borrow_mut(|(second, text)| {
        if *second != now {
            *second = now;
            *text = http_date(now);
        }
        use_it(text)
    })
}

/// A time in HTTP's form.
pub fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in eras of 400 years, as the calendar repeats.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}
