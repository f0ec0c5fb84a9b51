//! Annotations about traffic: canaries, cross-origin requests, limits, headers, errors, copies, the
//! cache.

use std::sync::Arc;

use super::table::{Row, set, set_flag};
use super::upstream;
use super::values::{self, BadValue, Read};

/// The most that a limit can be.
const LIMIT_MAX: u32 = 10_000_000;

/// See [`super::table::GROUPS`].
pub(super) const ROWS: &[Row] = &[
    Row::both(
        "canary",
        "true or false",
        "This Ingress takes a share of the requests of another that has the same hosts and paths.",
        |text, options| set_flag(text, &mut options.canary.on),
    )
    .but("several canaries of one path are allowed"),
    Row::both(
        "canary-weight",
        "a number from 0 to canary-weight-total",
        "So many of a hundred requests.",
        |text, options| {
            options.canary.weight = values::number(text, 0, 1_000_000)?;
            Ok(())
        },
    ),
    Row::both(
        "canary-weight-total",
        "a number; 100 unless said otherwise",
        "Of how many requests canary-weight is a share.",
        |text, options| set(&mut options.canary.weight_total, values::number(text, 1, 1_000_000)),
    ),
    Row::both(
        "canary-by-header",
        "the name of a header",
        "Its value always chooses the canary, never does not; with any other the share decides.",
        |text, options| set(&mut options.canary.header, values::header_name(text)),
    ),
    Row::both(
        "canary-by-header-value",
        "a text",
        "The value of that header that chooses the canary instead.",
        |text, options| {
            options.canary.header_value = Some(values::header_value(text).map(|_| text.into())?);
            Ok(())
        },
    ),
    Row::both(
        "canary-by-header-pattern",
        "a regular expression",
        "Likewise as a regular expression; canary-by-header-value wins.",
        |text, options| {
            values::regex(text)?;
            options.canary.header_pattern = Some(text.into());
            Ok(())
        },
    ),
    Row::both(
        "canary-by-cookie",
        "the name of a cookie",
        "Its value always chooses the canary, never does not.",
        |text, options| set(&mut options.canary.cookie, values::cookie_name(text)),
    ),
    Row::both(
        "enable-cors",
        "true or false",
        "Cross-origin requests are answered here, and every answer has the fields that a browser asks for: \
         refusals and errors of the proxy, too.",
        |text, options| set_flag(text, &mut options.cors.on),
    ),
    Row::both(
        "cors-allow-origin",
        "origins, separated by commas; * for all, https://*.example.com for one label",
        "Who may ask; everybody unless said otherwise.",
        |text, options| {
            options.cors.origins = values::list(text)?.into_iter().map(origin).collect::<Read<_>>()?;
            Ok(())
        },
    ),
    Row::both(
        "cors-allow-methods",
        "methods, separated by commas",
        "By which methods; GET, PUT, POST, DELETE, PATCH, OPTIONS unless said otherwise.",
        |text, options| {
            let method = |entry: &str| {
                http::Method::from_bytes(entry.as_bytes())
                    .map_err(|_| BadValue::new(entry, "methods such as GET,POST"))
            };
            options.cors.methods = values::list(text)?.into_iter().map(method).collect::<Read<_>>()?;
            Ok(())
        },
    ),
    Row::both(
        "cors-allow-headers",
        "names of headers, separated by commas",
        "With which headers.",
        |text, options| {
            options.cors.headers = values::header_names(text)?;
            Ok(())
        },
    ),
    Row::both(
        "cors-expose-headers",
        "names of headers, separated by commas",
        "Which headers of the answer may be read.",
        |text, options| {
            options.cors.expose = values::header_names(text)?;
            Ok(())
        },
    ),
    Row::both(
        "cors-allow-credentials",
        "true or false",
        "Whether cookies go along; true unless said otherwise.",
        |text, options| set(&mut options.cors.credentials, values::flag(text)),
    )
    .but("with credentials and * the origin that asked is named, for browsers take no * then"),
    Row::both(
        "cors-max-age",
        "seconds",
        "How long the answer may be remembered; 1728000 unless said otherwise.",
        |text, options| {
            let seconds: u32 =
                text.parse().map_err(|_| BadValue::new(text, "a number of seconds"))?;
            options.cors.max_age = Some(std::time::Duration::from_secs(seconds.into()));
            Ok(())
        },
    ),
    Row::both(
        "limit-rps",
        "a number",
        "How many requests a second one client may send to this Ingress, all its paths and aliases \
         together; more are answered with 429.",
        |text, options| set(&mut options.limits.per_second, values::number(text, 1, LIMIT_MAX)),
    )
    .but("429 instead of 503"),
    Row::both(
        "limit-rpm",
        "a number",
        "How many requests a minute one client may send.",
        |text, options| set(&mut options.limits.per_minute, values::number(text, 1, LIMIT_MAX)),
    )
    .but("429 instead of 503"),
    Row::both(
        "limit-burst-multiplier",
        "a number from 1 to 1000",
        "How many times the rate may come at once; 5 unless said otherwise.",
        |text, options| set(&mut options.limits.burst_multiplier, values::number(text, 1, 1000)),
    ),
    Row::both(
        "limit-connections",
        "a number",
        "How many requests of one client may run at a time.",
        |text, options| set(&mut options.limits.connections, values::number(text, 1, LIMIT_MAX)),
    )
    .but("429 instead of 503"),
    Row::both(
        "limit-whitelist",
        "networks, separated by commas",
        "Clients that are not limited.",
        |text, options| {
            options.limits.unlimited = values::networks(text)?;
            Ok(())
        },
    ),
    Row::both(
        "limit-allowlist",
        "networks, separated by commas",
        "The same as limit-whitelist, and wins over it.",
        |text, options| {
            options.limits.unlimited = values::networks(text)?;
            Ok(())
        },
    )
    .another_name_of("limit-whitelist"),
    Row::both(
        "custom-headers",
        "name or namespace/name of a ConfigMap of the same namespace",
        "Headers that answers get, also those of the proxy itself.",
        |text, options| set(&mut options.response_headers, values::object_name(text)),
    )
    .but("the ConfigMap needs the label telaio.dev/config and must be in the Ingress's own namespace"),
    Row::ours(
        "request-headers",
        "name of a ConfigMap of the same namespace",
        "Headers that backends get; an empty value removes one. The ConfigMap needs the label \
         telaio.dev/config.",
        |text, options| set(&mut options.request_headers, values::object_name(text)),
    ),
    Row::both(
        "default-backend",
        "the name of a service of the same namespace",
        "The service that answers when the backend has no endpoints, and the statuses of \
         custom-http-errors.",
        |text, options| set(&mut options.default_backend, service_name(text)),
    ),
    Row::both(
        "custom-http-errors",
        "status codes, separated by commas",
        "Answers of the backend with these statuses are replaced by those of default-backend, which \
         is told by X-Code, X-Original-URI, X-Namespace, X-Ingress-Name, X-Service-Name, \
         X-Service-Port and X-Request-ID.",
        |text, options| {
            options.custom_errors = values::statuses(text)?;
            Ok(())
        },
    )
    .but("needs default-backend on the same Ingress"),
    Row::both(
        "disable-proxy-intercept-errors",
        "true or false",
        "Whether custom-http-errors is left alone.",
        |text, options| set_flag(text, &mut options.custom_errors_off),
    ),
    Row::both(
        "mirror-target",
        "a URL; $request_uri may stand at its end",
        "Copies of requests are sent there, and their answers thrown away. A URL without a path gets the \
         request's own path and query. The node itself gets none without --ingress-local-targets.",
        |text, options| {
            let (target, whole) = match text.strip_suffix("$request_uri") {
                Some(target) => (target.trim_end_matches('/'), "$request_uri"),
                None => (text, ""),
            };
            if target.contains('$') {
                return Err(BadValue::new(text, "a URL without variables but $request_uri at its end"));
            }
            let target = values::url(target, false)?;
            options.mirror.target = Some(format!("{target}{whole}").into());
            Ok(())
        },
    )
    .but("copies never delay a request; when too many run, some are left out"),
    Row::both(
        "mirror-host",
        "a host; $host stands for the request's own",
        "The Host that copies have; that of mirror-target unless said otherwise.",
        |text, options| set(&mut options.mirror.host, mirror_host(text)),
    ),
    Row::both(
        "mirror-request-body",
        "on or off",
        "Whether copies have bodies.",
        |text, options| set(&mut options.mirror.body, values::flag(text)),
    )
    .but("bodies of up to 256 KiB; a request with a larger one is not copied"),
    Row::both(
        "enable-access-log",
        "true or false",
        "Whether requests are in the access log.",
        |text, options| set(&mut options.access_log, values::flag(text)),
    ),
    Row::ours(
        "cache",
        "true or false",
        "Answers are stored as HTTP allows a shared cache to (RFC 9111).",
        |text, options| set_flag(text, &mut options.cache.on),
    ),
    Row::ours(
        "cache-default-ttl",
        "seconds, or a time with a unit",
        "How long an answer is fresh that does not say so itself, if it has content or redirects for \
         good (200, 203, 300, 301, 308). Other answers are stored only as they say themselves.",
        |text, options| set(&mut options.cache.default_ttl, values::time(text)),
    ),
    Row::ours(
        "cache-body-size",
        "a size such as 8m",
        "The largest answer that is stored.",
        |text, options| set(&mut options.cache.body_bytes_max, values::bytes(text)),
    ),
    Row::ours(
        "cache-stale-while-revalidate",
        "seconds, or a time with a unit",
        "How long a stale answer may be given while a new one is fetched, where the answer itself \
         says nothing.",
        |text, options| set(&mut options.cache.stale_while_revalidate, values::time(text)),
    ),
    Row::ours(
        "cache-stale-if-error",
        "seconds, or a time with a unit",
        "How long a stale answer may be given when the backend fails, where the answer itself says \
         nothing.",
        |text, options| set(&mut options.cache.stale_if_error, values::time(text)),
    ),
    Row::ours(
        "compress",
        "true or false",
        "Whether answers are compressed (zstd, br, gzip) for clients that take it.",
        |text, options| set(&mut options.compress, values::flag(text)),
    ),
];

fn mirror_host(text: &str) -> Read<Arc<str>> {
    match text {
        "$host" | "${host}" | "$http_host" | "${http_host}" => Ok(text.into()),
        _ => upstream::authority(text),
    }
}

fn service_name(text: &str) -> Read<Arc<str>> {
    let name = values::object_name(text)?;
    if name.contains('/') {
        return Err(BadValue::new(text, "the name of a service of the Ingress's own namespace"));
    }
    Ok(name)
}

fn origin(text: &str) -> Read<Arc<str>> {
    let expected = "origins such as https://example.com or https://*.example.com, or *";
    if text == "*" {
        return Ok(text.into());
    }
    let host = text.split_once("://").filter(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    let (_, authority) = host.ok_or_else(|| BadValue::new(text, expected))?;
    let (name, port) = authority.split_once(':').unwrap_or((authority, "1"));
    if values::host(name).is_err() || port.parse::<u16>().is_err() {
        return Err(BadValue::new(text, expected));
    }
    Ok(text.to_ascii_lowercase().into())
}
