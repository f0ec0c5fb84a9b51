//! Annotations about who may come in: networks, passwords, another service's word, certificates.

use telaio_http_proxy::filter::template::{Leads, Template};

use super::options::VerifyClient;
use super::table::{Row, set, set_flag};
use super::values::{self, BadValue, Read};

/// The longest realm.
const REALM_CHARS_MAX: usize = 256;

/// See [`super::table::GROUPS`].
pub(super) const ROWS: &[Row] = &[
    Row::both(
        "whitelist-source-range",
        "networks, separated by commas",
        "Only clients from these networks may come; others are answered with 403.",
        |text, options| {
            options.allow = values::networks(text)?;
            Ok(())
        },
    )
    .guard(),
    Row::both(
        "allowlist-source-range",
        "networks, separated by commas",
        "The same as whitelist-source-range, and wins over it.",
        |text, options| {
            options.allow = values::networks(text)?;
            Ok(())
        },
    )
    .another_name_of("whitelist-source-range")
    .guard(),
    Row::both(
        "denylist-source-range",
        "networks, separated by commas",
        "Clients from these networks are answered with 403.",
        |text, options| {
            options.deny = values::networks(text)?;
            Ok(())
        },
    )
    .guard(),
    Row::both(
        "auth-type",
        "basic",
        "Clients must give a user's name and password, those of auth-secret.",
        |text, options| match text {
            "basic" => {
                options.basic_auth.on = true;
                Ok(())
            }
            "digest" => Err(BadValue(
                "digest is not supported, for it needs passwords that can be read; use basic with TLS"
                    .into(),
            )),
            _ => Err(BadValue::new(text, "basic")),
        },
    )
    .but("digest is not there")
    .guard(),
    Row::both(
        "auth-secret",
        "name or namespace/name of a Secret of the same namespace",
        "The Secret whose entry auth has the users, as htpasswd writes them (bcrypt, SHA, crypt MD5).",
        |text, options| set(&mut options.basic_auth.secret, values::object_name(text)),
    )
    .but("the Secret must be in the Ingress's own namespace")
    .guard(),
    Row::both(
        "auth-secret-type",
        "auth-file",
        "How the users are written in the Secret.",
        |text, _| match text {
            "auth-file" => Ok(()),
            "auth-map" => Err(BadValue(
                "auth-map is not read; put the users into one entry named auth, a line for each".into(),
            )),
            _ => Err(BadValue::new(text, "auth-file")),
        },
    )
    .but("auth-map is not there")
    .guard(),
    Row::both(
        "auth-realm",
        "a text",
        "What clients are told to log in to.",
        |text, options| {
            let fits = text.chars().count() <= REALM_CHARS_MAX && !text.contains(['"', '\\']);
            if !fits || values::header_value(text).is_err() {
                return Err(BadValue::new(text, "a short text on one line, without quotes"));
            }
            options.basic_auth.realm = Some(text.into());
            Ok(())
        },
    ),
    Row::both(
        "auth-url",
        "a URL; $host, and behind its host $request_uri, $http_NAME and $cookie_NAME may stand in it",
        "Another service decides: it is asked with the request's headers, and only if it answers with \
         a status of 2xx may the request go on. With $host as its host, only rules of one host, without a \
         wildcard, let anybody in: elsewhere whoever asks would choose the service. The node itself is \
         asked only with --ingress-local-targets.",
        |text, options| set(&mut options.forward_auth.url, asked_url(text)),
    )
    .but(
        "$http_host cannot stand in its host, for its port is the client's choice, and loopback and \
         link-local addresses are not asked unless the operator lets them be",
    )
    .guard(),
    Row::both(
        "auth-method",
        "a method",
        "The method by which it is asked; GET unless said otherwise.",
        |text, options| set(&mut options.forward_auth.method, method(text)),
    )
    .guard(),
    Row::both(
        "auth-signin",
        "a URL; $host, $escaped_request_uri and $request_uri may stand in it",
        "Where clients are redirected to that may not come in; without it they get the service's own \
         answer.",
        |text, options| set(&mut options.forward_auth.signin, auth_url(text)),
    ),
    Row::both(
        "auth-signin-redirect-param",
        "the name of a parameter",
        "The parameter of auth-signin that says where the client wanted to go; rd unless said \
         otherwise.",
        |text, options| {
            set(&mut options.forward_auth.signin_redirect_param, values::cookie_name(text))
        },
    ),
    Row::both(
        "auth-response-headers",
        "names of headers, separated by commas",
        "Which headers of the service's answer the backend gets. A client's own of these names never \
         reach it.",
        |text, options| {
            options.forward_auth.response_headers = told_headers(text)?;
            Ok(())
        },
    )
    .guard(),
    Row::both(
        "auth-request-redirect",
        "a URL or a path; $host, $scheme, $escaped_request_uri and $request_uri may stand in it",
        "X-Auth-Request-Redirect for the service; the request's own path and query unless said \
         otherwise.",
        |text, options| set(&mut options.forward_auth.request_redirect, auth_url(text)),
    ),
    Row::both(
        "auth-always-set-cookie",
        "true or false",
        "Whether cookies of the service's answer go to the client also when it refused.",
        |text, options| set_flag(text, &mut options.forward_auth.always_set_cookie),
    ),
    Row::both(
        "auth-cache-key",
        "a text such as $http_authorization or $cookie_NAME",
        "What permissions are remembered by.",
        |text, options| {
            values::header_value(text)?;
            if let Err(unknown) = Template::parse(text) {
                return Err(BadValue(format!("{unknown}; what was granted is not remembered")));
            }
            options.forward_auth.cache_key = Some(text.into());
            Ok(())
        },
    )
    .but("a permission holds for the same client, method, host, path and headers only, whatever the \
          key says, except headers that say nothing of who asks (Accept, User-Agent, Range and such)"),
    Row::both(
        "auth-cache-duration",
        "statuses and a time: 200 202 401 5m",
        "How long a permission is remembered; not at all unless auth-cache-key is there.",
        |text, options| set(&mut options.forward_auth.cache_duration, cache_duration(text)),
    )
    .but("refusals are never remembered"),
    Row::both(
        "auth-proxy-set-headers",
        "name or namespace/name of a ConfigMap of the same namespace",
        "Headers that the service is sent.",
        |text, options| set(&mut options.forward_auth.set_headers, values::object_name(text)),
    )
    .but("the ConfigMap needs the label telaio.dev/config and must be in the Ingress's own namespace")
    .guard(),
    Row::both("auth-keepalive", "a number", "Nothing: connections are kept.", |text, _| {
        values::number(text, 0, 100_000).map(|_| ())
    }),
    Row::both("auth-keepalive-requests", "a number", "Nothing: connections are kept.", |text, _| {
        values::number(text, 0, u32::MAX).map(|_| ())
    }),
    Row::both("auth-keepalive-timeout", "seconds", "Nothing: connections are kept.", |text, _| {
        values::time(text).map(|_| ())
    }),
    Row::both("auth-keepalive-share-vars", "true or false", "Nothing.", |text, _| {
        values::flag(text).map(|_| ())
    }),
    Row::both(
        "auth-tls-secret",
        "name or namespace/name of a Secret of the same namespace",
        "Clients must show a certificate that comes from an authority in this Secret's ca.crt.",
        |text, options| set(&mut options.client_tls.secret, values::object_name(text)),
    )
    .but("the Secret must be in the Ingress's own namespace. A wrong certificate is answered with 400 \
          for this Ingress's routes (as none is, where one is needed, and plain HTTP there with 403), and \
          not by ending the connection. One of X.509 version 1 must be signed by the authority itself")
    .guard(),
    Row::both(
        "auth-tls-verify-client",
        "on, off, optional or optional_no_ca",
        "Whether a certificate is needed.",
        |text, options| {
            options.client_tls.verify = Some(match text {
                "on" => VerifyClient::On,
                "off" => VerifyClient::Off,
                "optional" => VerifyClient::Optional,
                "optional_no_ca" => VerifyClient::Unverified,
                _ => return Err(BadValue::new(text, "on, off, optional or optional_no_ca")),
            });
            Ok(())
        },
    )
    .guard(),
    Row::both(
        "auth-tls-verify-depth",
        "a number from 1 to 10",
        "How many certificates may lie between a client's and the authority.",
        |text, options| set(&mut options.client_tls.depth, values::number(text, 1, 10)),
    )
    .guard(),
    Row::both(
        "auth-tls-match-cn",
        "a regular expression, such as CN=(ann|bob)",
        "What the subject of a client's certificate must match, written as RFC 2253 does, the name first: \
         CN=ann,OU=Sales,O=Shop. Others, and who comes without a verified certificate, are answered with \
         403. It may match anywhere: ^CN=ann(,|$) is ann alone.",
        |text, options| {
            values::regex(text)?;
            options.client_tls.match_cn = Some(text.into());
            Ok(())
        },
    )
    .but("with optional_no_ca a certificate that is not verified does not match, whatever its subject")
    .guard(),
    Row::both(
        "auth-tls-error-page",
        "a URL",
        "Where clients are redirected to that have no right certificate.",
        |text, options| set(&mut options.client_tls.error_page, values::url(text, true)),
    ),
    Row::both(
        "auth-tls-pass-certificate-to-upstream",
        "true or false",
        "The backend gets the client's certificate, in the header ssl-client-cert.",
        |text, options| set_flag(text, &mut options.client_tls.pass),
    ),
];

fn method(text: &str) -> Read<http::Method> {
    match text {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => {
            http::Method::from_bytes(text.as_bytes())
                .map_err(|_| BadValue::new(text, "a method such as GET"))
        }
        _ => Err(BadValue::new(text, "a method such as GET")),
    }
}

/// Whom we ask: nothing of the client's may choose the service, so not even the port that it wrote.
fn asked_url(text: &str) -> Read<std::sync::Arc<str>> {
    let url = auth_url(text)?;
    if Template::parse(text).is_ok_and(|it| it.leads() > Leads::ToRequestedHost) {
        return Err(BadValue::new(text, "a URL in whose host no variable but $host stands"));
    }
    Ok(url)
}

/// Names of headers that only the service may say, which the message's own are not.
fn told_headers(text: &str) -> Read<Vec<http::HeaderName>> {
    let names = values::header_names(text)?;
    match names.iter().find(|name| values::is_framing(name.as_str())) {
        Some(own) => Err(BadValue::new(own.as_str(), "headers that are not the proxy's own")),
        None => Ok(names),
    }
}

/// Only variables that cannot lead elsewhere than the writer of the Ingress meant, or to the client's
/// own host.
fn auth_url(text: &str) -> Read<std::sync::Arc<str>> {
    match Template::parse(text) {
        Err(unknown) => return Err(BadValue(unknown.to_string())),
        Ok(template) if template.leads() == Leads::Anywhere => {
            return Err(BadValue::new(text, "a URL in whose host only $host and $http_host stand"));
        }
        Ok(_) => {}
    }
    let checked = text.strip_prefix("$scheme://").map(|rest| format!("https://{rest}"));
    values::url(checked.as_deref().unwrap_or(text), true)?;
    Ok(text.into())
}

fn cache_duration(text: &str) -> Read<std::time::Duration> {
    let last = text.split([' ', ',']).rfind(|word| !word.is_empty()).unwrap_or_default();
    values::time(last)
}
