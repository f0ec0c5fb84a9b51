//! Annotations about backends: what is spoken with them, how long they may take, and which of their
//! endpoints is chosen.

use std::sync::Arc;

use telaio_http_proxy::filter::template::Template;

use super::options::{Balance, HashBy, NextUpstream, Protocol, SameSite};
use super::table::{Row, set, set_flag};
use super::values::{self, BadValue, Read};

/// The most endpoints that one request can be told to try.
const TRIES_MAX: u32 = 20;

/// See [`super::table::GROUPS`].
pub(super) const ROWS: &[Row] = &[
    Row::both(
        "backend-protocol",
        "HTTP, HTTPS, GRPC, GRPCS, H2C or AUTO_HTTP",
        "What is spoken with the backend. Without it the appProtocol of the service's port says so \
         (kubernetes.io/h2c, kubernetes.io/ws, kubernetes.io/wss, http, https, grpc, grpcs).",
        |text, options| {
            options.protocol = protocol(text)?;
            Ok(())
        },
    )
    .but("FCGI is not spoken"),
    Row::both(
        "upstream-vhost",
        "a host",
        "The Host that the backend sees.",
        |text, options| set(&mut options.upstream_vhost, authority(text)),
    ),
    Row::both(
        "x-forwarded-prefix",
        "a path",
        "X-Forwarded-Prefix for the backend.",
        |text, options| set(&mut options.forwarded_prefix, values::path(text)),
    ),
    Row::both(
        "service-upstream",
        "true or false",
        "Requests go to the service's own address instead of its endpoints.",
        |text, options| set_flag(text, &mut options.service_upstream),
    ),
    Row::ours(
        "upstream-proxy-protocol",
        "v1, v2 or off",
        "Connections to endpoints begin with a PROXY header of this version, which says who the client \
         is. Each request has a connection of its own then; backends that speak HTTP/2 get none.",
        |text, options| {
            options.upstream_proxy_protocol = match text {
                "v1" => Some(1),
                "v2" => Some(2),
                "off" => None,
                _ => return Err(BadValue::new(text, "v1, v2 or off")),
            };
            Ok(())
        },
    ),
    Row::both(
        "proxy-connect-timeout",
        "seconds, or a time with a unit",
        "How long a connection to an endpoint may take.",
        |text, options| set(&mut options.connect_timeout, values::time(text)),
    ),
    Row::both(
        "proxy-read-timeout",
        "seconds, or a time with a unit",
        "How long the backend may be silent: before its answer, and between its parts.",
        |text, options| set(&mut options.read_timeout, values::time(text)),
    ),
    Row::both(
        "proxy-send-timeout",
        "seconds, or a time with a unit",
        "How long the backend may leave a request's body unread; 504 then. 60s unless said otherwise.",
        |text, options| set(&mut options.send_timeout, values::time(text)),
    ),
    Row::ours(
        "request-timeout",
        "seconds, or a time with a unit",
        "How long a request may take as a whole, retries included.",
        |text, options| set(&mut options.request_timeout, values::time(text)),
    ),
    Row::both(
        "proxy-next-upstream",
        "words of: error timeout http_500 http_502 http_503 http_504 http_429 http_403 http_404 \
         invalid_header non_idempotent, or off",
        "After which failures another endpoint is tried.",
        |text, options| set(&mut options.next_upstream, next_upstream(text)),
    )
    .but("retries have a budget: they are never more than a fifth of all requests for long; after \
          invalid_header only what is safe to send twice is sent again, or with non_idempotent all"),
    Row::both(
        "proxy-next-upstream-tries",
        "a number from 0 to 20",
        "How many endpoints are tried; 0 is as many as there are, up to 3. The only endpoint is asked again only after its connection failed.",
        |text, options| set(&mut options.next_upstream_tries, values::number(text, 0, TRIES_MAX)),
    ),
    Row::both(
        "proxy-next-upstream-timeout",
        "seconds, or a time with a unit",
        "For how long further endpoints are tried; 0 is no bound of its own.",
        |text, options| set(&mut options.next_upstream_timeout, values::time(text)),
    ),
    Row::both(
        "proxy-body-size",
        "a size such as 8m; 0 for no limit",
        "The largest body of a request; a larger one is answered with 413. 1m unless said otherwise.",
        |text, options| set(&mut options.body_bytes_max, values::bytes(text)),
    ),
    Row::both(
        "load-balance",
        "round_robin, ewma or least_conn",
        "How an endpoint is chosen: in turn, the faster of two, or the one with the fewest requests.",
        |text, options| {
            options.balance = Some(match text {
                "round_robin" => Balance::RoundRobin,
                "ewma" => Balance::PeakEwma,
                "least_conn" | "least_connections" => Balance::LeastConnections,
                _ => return Err(BadValue::new(text, "round_robin, ewma or least_conn")),
            });
            Ok(())
        },
    )
    .but("without it ewma is the default, in ingress-nginx it is round_robin"),
    Row::both(
        "upstream-hash-by",
        "a text with variables in it: $request_uri, $remote_addr, $http_NAME, $cookie_NAME, $host, $uri, \
         $args, $scheme, $request_method, $remote_user",
        "Requests that are alike in this go to the same endpoint, and few move when endpoints change.",
        |text, options| set(&mut options.hash_by, hash_by(text)),
    ),
    Row::both(
        "affinity",
        "cookie",
        "A client stays with its endpoint, by a signed cookie. Which proxy it comes by does not matter \
         where all have the same secret (docs/ingress.md).",
        |text, options| match text {
            "cookie" => {
                options.sticky.on = true;
                Ok(())
            }
            _ => Err(BadValue::new(text, "cookie")),
        },
    )
    .but("the cookie is signed and says nothing about the endpoint"),
    Row::both(
        "affinity-mode",
        "balanced or persistent",
        "Nothing: a client stays for as long as its endpoint does (persistent).",
        |text, _| match text {
            "balanced" | "persistent" => Ok(()),
            _ => Err(BadValue::new(text, "balanced or persistent")),
        },
    )
    .but("always persistent"),
    Row::both(
        "affinity-canary-behavior",
        "sticky or legacy",
        "Nothing: a client stays with the canary, or with the others, while its cookie does.",
        |text, _| match text {
            "sticky" | "legacy" => Ok(()),
            _ => Err(BadValue::new(text, "sticky or legacy")),
        },
    )
    .but("always sticky"),
    Row::both(
        "session-cookie-name",
        "the name of a cookie",
        "Its name; INGRESSCOOKIE unless said otherwise.",
        |text, options| set(&mut options.sticky.name, values::cookie_name(text)),
    ),
    Row::both(
        "session-cookie-path",
        "a path",
        "Its path; / unless said otherwise.",
        |text, options| set(&mut options.sticky.path, cookie_path(text)),
    ),
    Row::both(
        "session-cookie-domain",
        "a DNS name",
        "Its domain.",
        |text, options| {
            let name = values::host(text.strip_prefix('.').unwrap_or(text));
            set(&mut options.sticky.domain, name)
        },
    ),
    Row::both(
        "session-cookie-max-age",
        "seconds",
        "How long the client keeps it; until it closes unless said otherwise.",
        |text, options| set(&mut options.sticky.max_age, cookie_age(text)),
    ),
    Row::both(
        "session-cookie-expires",
        "seconds",
        "The same as session-cookie-max-age, which wins.",
        |text, options| {
            let age = cookie_age(text)?;
            options.sticky.max_age.get_or_insert(age);
            Ok(())
        },
    )
    .but("written as Max-Age"),
    Row::both(
        "session-cookie-secure",
        "true or false",
        "Whether it is sent over TLS only; true for requests that came so unless said otherwise. Where \
         it is not, SameSite=None is left out, for browsers throw such a cookie away.",
        |text, options| set(&mut options.sticky.secure, values::flag(text)),
    ),
    Row::both(
        "session-cookie-samesite",
        "None, Lax or Strict",
        "When the client sends it along.",
        |text, options| {
            options.sticky.same_site = Some(match text {
                "None" | "none" => SameSite::None,
                "Lax" | "lax" => SameSite::Lax,
                "Strict" | "strict" => SameSite::Strict,
                _ => return Err(BadValue::new(text, "None, Lax or Strict")),
            });
            Ok(())
        },
    ),
    Row::both(
        "session-cookie-conditional-samesite-none",
        "true or false",
        "Whether SameSite=None is left out for browsers that throw such a cookie away: Chrome up to 69, \
         iOS 12, Safari of macOS 10.14.",
        |text, options| set_flag(text, &mut options.sticky.same_site_by_browser),
    ),
    Row::both(
        "session-cookie-change-on-failure",
        "true or false",
        "Whether a client whose endpoint failed stays with the next one.",
        |text, options| set_flag(text, &mut options.sticky.change_on_failure),
    ),
    Row::both(
        "proxy-ssl-verify",
        "on or off",
        "Whether the backend's certificate must hold; needs proxy-ssl-secret.",
        |text, options| set_flag(text, &mut options.upstream_tls.verify),
    ),
    Row::both(
        "proxy-ssl-name",
        "a DNS name",
        "The name that the backend's certificate must have, and that it is asked for.",
        |text, options| set(&mut options.upstream_tls.name, values::host(text)),
    ),
    Row::both(
        "proxy-ssl-secret",
        "name or namespace/name of a Secret",
        "The Secret whose ca.crt has the authorities for the backend's certificate, and whose tls.crt \
         and tls.key are shown to the backend.",
        |text, options| set(&mut options.upstream_tls.secret, values::object_name(text)),
    )
    .but("the Secret must be in the Ingress's own namespace"),
    Row::ours(
        "connections-max",
        "a number from 1 to 100000",
        "How many connections the backend gets at most from one proxy; beyond, requests wait.",
        |text, options| set(&mut options.connections_max, values::number(text, 1, 100_000)),
    ),
    Row::ours(
        "pending-max",
        "a number from 0 to 100000",
        "How many requests may wait for a connection; the next is answered with 503.",
        |text, options| set(&mut options.pending_max, values::number(text, 0, 100_000)),
    ),
    Row::ours(
        "prewarm-connections",
        "a number",
        "Connections that are made ahead for each endpoint, before requests need them.",
        |text, options| set(&mut options.prewarm, values::number(text, 0, 256)),
    ),
    Row::ours(
        "slow-start",
        "seconds, or a time with a unit",
        "How long a new endpoint takes to get its whole share of the requests; it begins with a tenth.",
        |text, options| set(&mut options.slow_start, positive_time(text)),
    ),
    Row::ours(
        "eject-after",
        "a number; 0 for never",
        "After how many failures in a row an endpoint gets no requests for a while; 5 unless said \
         otherwise. At least half of the endpoints stay.",
        |text, options| set(&mut options.eject_after, values::number(text, 0, 1_000)),
    ),
    Row::ours(
        "health-check-path",
        "a path",
        "Endpoints are asked for this; one that does not answer well gets no requests.",
        |text, options| set(&mut options.health.path, values::path(text)),
    ),
    Row::ours(
        "health-check-period",
        "seconds, or a time with a unit",
        "How often; 5s unless said otherwise.",
        |text, options| set(&mut options.health.period, positive_time(text)),
    ),
    Row::ours(
        "health-check-timeout",
        "seconds, or a time with a unit",
        "How long an answer may take; 2s unless said otherwise.",
        |text, options| set(&mut options.health.timeout, positive_time(text)),
    ),
];

fn protocol(text: &str) -> Read<Option<Protocol>> {
    Ok(Some(match text.to_ascii_uppercase().as_str() {
        "HTTP" | "HTTP1" => Protocol::Http,
        "H2C" | "HTTP2" => Protocol::H2c,
        "HTTPS" => Protocol::Https,
        "GRPC" => Protocol::Grpc,
        "GRPCS" => Protocol::Grpcs,
        // What the service's port says.
        "AUTO_HTTP" => return Ok(None),
        "FCGI" => {
            return Err(BadValue(
                "FCGI is not spoken; put a web server that speaks it in front of the backend"
                    .into(),
            ));
        }
        _ => return Err(BadValue::new(text, "HTTP, HTTPS, GRPC, GRPCS, H2C or AUTO_HTTP")),
    }))
}

pub(super) fn authority(text: &str) -> Read<Arc<str>> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "1"));
    if text.contains('$') || port.parse::<u16>().is_err() {
        return Err(BadValue::new(text, "a host, without variables"));
    }
    values::host(host)?;
    Ok(text.into())
}

fn positive_time(text: &str) -> Read<std::time::Duration> {
    match values::time(text)? {
        std::time::Duration::ZERO => Err(BadValue::new(text, "more than nothing")),
        time => Ok(time),
    }
}

fn cookie_age(text: &str) -> Read<std::time::Duration> {
    let bad = || BadValue::new(text, "a number of seconds");
    let seconds: u32 = text.parse().map_err(|_| bad())?;
    Ok(std::time::Duration::from_secs(seconds.into()))
}

fn cookie_path(text: &str) -> Read<Arc<str>> {
    let path = values::path(text)?;
    if path.contains([';', ',']) {
        return Err(BadValue::new(text, "a path without ; and ,"));
    }
    Ok(path)
}

fn next_upstream(text: &str) -> Read<NextUpstream> {
    let mut next = NextUpstream::default();
    for word in text.split_ascii_whitespace() {
        match word {
            "off" => return Ok(NextUpstream::default()),
            "error" => next.error = true,
            "invalid_header" => next.invalid_header = true,
            "timeout" => next.timeout = true,
            "non_idempotent" => next.non_idempotent = true,
            "http_500" => next.statuses.push(500),
            "http_502" => next.statuses.push(502),
            "http_503" => next.statuses.push(503),
            "http_504" => next.statuses.push(504),
            "http_429" => next.statuses.push(429),
            "http_403" => next.statuses.push(403),
            "http_404" => next.statuses.push(404),
            _ => {
                return Err(BadValue::new(word, "error, timeout, http_502, non_idempotent or off"));
            }
        }
    }
    next.statuses.sort_unstable();
    next.statuses.dedup();
    Ok(next)
}

fn hash_by(text: &str) -> Read<HashBy> {
    let name = text
        .strip_prefix('$')
        .map(|name| name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name))
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
    let by = match name {
        Some("request_uri" | "uri") => Some(HashBy::Uri),
        Some("remote_addr" | "binary_remote_addr") => Some(HashBy::ClientAddress),
        Some(name) => match (name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
            (Some(header), _) => {
                let header = values::header_name(&header.replace('_', "-"))?;
                Some(HashBy::Header(header.as_str().into()))
            }
            (_, Some(cookie)) => Some(HashBy::Cookie(values::cookie_name(cookie)?)),
            _ => None,
        },
        None => None,
    };
    if let Some(by) = by {
        return Ok(by);
    }
    if !text.contains('$') {
        return Err(BadValue::new(text, "a text with a variable in it, such as $request_uri"));
    }
    match Template::parse(text) {
        Ok(_) => Ok(HashBy::Text(text.into())),
        Err(unknown) => Err(BadValue(unknown.to_string())),
    }
}
