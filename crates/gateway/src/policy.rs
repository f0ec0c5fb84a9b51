//! From what annotations ask for to the policy of a route. Names of secrets and ConfigMaps are looked
//! up here; what cannot be found is a warning, and where it would have kept somebody out, a closed door.

use std::sync::Arc;
use std::time::Duration;

use telaio_http_proxy::table::{
    Auth, BasicAuth, BasicUser, CachePolicy, CanaryRule, ClientTls, ClientTlsMode, Compress, Cors,
    ErrorBackend, ForwardAuth, HeaderEdit, Mirror, Policy, RateLimit, Retry, RetryOn, SourceRanges,
    UpstreamTls,
};
use telaio_model::ObjectKey;

use crate::annotations::values::{header_name, header_value, is_framing};
use crate::annotations::{Options, VerifyClient};
use crate::compile::{Compiler, Need};
use crate::warning::Reason;

/// How many times its rate a client may send at once, as in ingress-nginx.
const BURST_MULTIPLIER: u32 = 5;
/// The largest body of a request unless an Ingress says otherwise, as in ingress-nginx.
pub(crate) const BODY_BYTES_MAX: u64 = 1 << 20;
/// How long the answer to a preflight request holds, as in ingress-nginx.
const CORS_AGE: Duration = Duration::from_hours(20 * 24);
/// How long an authenticating service may take.
const AUTH_TIMEOUT: Duration = Duration::from_secs(10);
/// The most users of one secret.
const USERS_MAX: usize = 10_000;
/// The most headers of one ConfigMap.
const HEADERS_MAX: usize = 100;

/// What cross-origin requests may do unless said otherwise, as in ingress-nginx.
const CORS_METHODS: &[&str] = &["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];
const CORS_HEADERS: &[&str] = &[
    "DNT",
    "Keep-Alive",
    "User-Agent",
    "X-Requested-With",
    "If-Modified-Since",
    "Cache-Control",
    "Content-Type",
    "Range",
    "Authorization",
];

/// The policy that all routes of an Ingress share.
pub(crate) fn policy(
    compiler: &mut Compiler<'_>,
    options: &Options,
    closed: Option<&str>,
) -> Policy {
    let mut policy = Policy {
        retry: retry(options),
        body_bytes_max: match options.body_bytes_max {
            None => Some(BODY_BYTES_MAX),
            Some(0) => None,
            bound => bound,
        },
        upstream_host: options.upstream_vhost.clone(),
        forwarded_prefix: options.forwarded_prefix.clone(),
        cors: options.cors.on.then(|| cors(options)),
        rates: rates(options),
        connections_max: options.limits.connections,
        connections_except: options.limits.unlimited.clone(),
        sources: SourceRanges { allow: options.allow.clone(), deny: options.deny.clone() },
        client_tls: client_tls(compiler, options),
        cache: options.cache.on.then(|| cache(options)),
        compress: Compress { enabled: options.compress.unwrap_or(false), ..Compress::default() },
        mirror: mirror(options),
        error_backend: error_backend(compiler, options),
        log_off: options.access_log == Some(false),
        ..Policy::default()
    };
    if let Some(time) = options.connect_timeout {
        policy.timeouts.connect = time;
    }
    if let Some(time) = options.read_timeout {
        policy.timeouts.response_header = time;
        policy.timeouts.idle = time;
    }
    if let Some(time) = options.send_timeout {
        policy.timeouts.send = time;
    }
    policy.timeouts.request = options.request_timeout.filter(|time| !time.is_zero());
    policy.auth = auth(compiler, options);
    if let Some(why) = closed {
        close(&mut policy, why);
    }
    if options.client_tls.secret.is_some()
        && options.client_tls.verify != Some(VerifyClient::Off)
        && policy.client_tls.is_none()
    {
        close(&mut policy, "the authorities of clients' certificates are not there");
    }
    if options.client_tls.match_cn.is_some() && policy.client_tls.is_none() {
        let message = "auth-tls-match-cn needs auth-tls-secret, and certificates that are asked for; \
                       nobody comes in until then";
        compiler.warn(Reason::BadAnnotation, message);
        close(&mut policy, "clients' certificates are not asked for");
    }
    let response = options.response_headers.as_ref();
    policy.headers.response = response.map_or_else(Vec::new, |name| headers(compiler, name));
    let request = options.request_headers.as_ref();
    policy.headers.request = request.map_or_else(Vec::new, |name| headers(compiler, name));
    policy
}

/// Nobody comes in, and nobody is asked whether they may.
pub(crate) fn close(policy: &mut Policy, why: &str) {
    policy.auth = vec![Auth::Deny(why.into())];
}

fn retry(options: &Options) -> Retry {
    let mut retry = Retry::default();
    if let Some(next) = &options.next_upstream {
        let mut on = RetryOn::default();
        on.connection = next.error;
        on.timeout = next.timeout;
        on.non_idempotent = next.non_idempotent;
        on.invalid_header = next.invalid_header;
        for status in &next.statuses {
            on.with_status(*status);
        }
        retry.on = on;
        let on_failure = next.error || next.timeout || next.invalid_header;
        if !on_failure && next.statuses.is_empty() {
            retry.tries = 1;
        }
    }
    match options.next_upstream_tries {
        Some(0) | None => {}
        Some(tries) => retry.tries = u8::try_from(tries).unwrap_or(u8::MAX),
    }
    retry.within = options.next_upstream_timeout.filter(|time| !time.is_zero());
    retry
}

fn cors(options: &Options) -> Cors {
    let cors = &options.cors;
    let texts = |texts: &[&str]| texts.iter().map(|text| Arc::from(*text)).collect::<Vec<_>>();
    let names = |names: &[http::HeaderName]| {
        names.iter().map(|name| Arc::from(name.as_str())).collect::<Vec<Arc<str>>>()
    };
    Cors {
        origins: if cors.origins.is_empty() { texts(&["*"]) } else { cors.origins.clone() },
        methods: if cors.methods.is_empty() {
            texts(CORS_METHODS)
        } else {
            cors.methods.iter().map(|method| method.as_str().into()).collect()
        },
        headers: if cors.headers.is_empty() { texts(CORS_HEADERS) } else { names(&cors.headers) },
        expose_headers: names(&cors.expose),
        credentials: cors.credentials.unwrap_or(true),
        max_age: cors.max_age.unwrap_or(CORS_AGE),
    }
}

fn rates(options: &Options) -> Vec<RateLimit> {
    let limits = &options.limits;
    let multiplier = limits.burst_multiplier.unwrap_or(BURST_MULTIPLIER);
    let limit = |requests: u32, per: Duration| RateLimit {
        requests,
        per,
        burst: requests.saturating_mul(multiplier),
        except: limits.unlimited.clone(),
    };
    let second = limits.per_second.map(|requests| limit(requests, Duration::from_secs(1)));
    let minute = limits.per_minute.map(|requests| limit(requests, Duration::from_mins(1)));
    second.into_iter().chain(minute).collect()
}

fn cache(options: &Options) -> CachePolicy {
    let default = CachePolicy::default();
    CachePolicy {
        object_bytes_max: options.cache.body_bytes_max.unwrap_or(default.object_bytes_max),
        default_ttl: options.cache.default_ttl,
        stale_while_revalidate: options.cache.stale_while_revalidate,
        stale_if_error: options.cache.stale_if_error,
        ..default
    }
}

fn mirror(options: &Options) -> Option<Mirror> {
    let url = options.mirror.target.clone()?;
    let host = options.mirror.host.clone();
    Some(Mirror { url, host, backend: None, body: options.mirror.body.unwrap_or(true) })
}

fn error_backend(compiler: &mut Compiler<'_>, options: &Options) -> Option<ErrorBackend> {
    let custom_errors: &[u16] =
        if options.custom_errors_off { &[] } else { &options.custom_errors };
    let Some(service) = &options.default_backend else {
        if !custom_errors.is_empty() {
            let message = "custom-http-errors needs default-backend, the service that answers them";
            compiler.warn(Reason::BadAnnotation, message);
        }
        return None;
    };
    let backend = compiler.first_port_of(service)?;
    // Where there is nobody else to answer it does in any case.
    let mut statuses = custom_errors.to_vec();
    statuses.sort_unstable();
    statuses.dedup();
    Some(ErrorBackend { backend, statuses })
}

/// The object of the Ingress's own namespace that a text means.
fn own_object(compiler: &mut Compiler<'_>, name: &str, reason: Reason) -> Option<ObjectKey> {
    let own = Arc::clone(&compiler.key().namespace);
    match name.split_once('/') {
        None => Some(ObjectKey::new(own, name)),
        Some((namespace, name)) if namespace == &*own => Some(ObjectKey::new(own, name)),
        Some(_) => {
            compiler.warn(
                reason,
                format_args!(
                    "{name} is in another namespace; it must be in {own}, the Ingress's own"
                ),
            );
            None
        }
    }
}

fn auth(compiler: &mut Compiler<'_>, options: &Options) -> Vec<Auth> {
    let mut all = Vec::new();
    if options.basic_auth.on {
        let realm = options.basic_auth.realm.clone().unwrap_or_else(|| "Restricted".into());
        all.push(match users(compiler, options) {
            Some(users) => Auth::Basic(BasicAuth { realm, users }),
            None => Auth::Deny("the list of users is not there".into()),
        });
    }
    if let Some(url) = &options.forward_auth.url {
        let forward = &options.forward_auth;
        let mut set_headers = Vec::new();
        if let Some(name) = &forward.set_headers {
            for edit in headers(compiler, name) {
                if let HeaderEdit::Set(name, value) = edit {
                    set_headers.push((name, value));
                }
            }
        }
        let cached = forward.cache_key.is_some();
        all.push(Auth::Forward(ForwardAuth {
            url: Arc::clone(url),
            method: forward.method.as_ref().map(|method| method.as_str().into()),
            signin: forward.signin.clone(),
            signin_redirect_param: forward
                .signin_redirect_param
                .clone()
                .unwrap_or_else(|| "rd".into()),
            response_headers: forward
                .response_headers
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            set_headers,
            request_redirect: forward.request_redirect.clone(),
            always_set_cookie: forward.always_set_cookie,
            cache: forward.cache_duration.filter(|_| cached).unwrap_or_default(),
            cache_key: forward.cache_key.clone(),
            timeout: AUTH_TIMEOUT,
        }));
    }
    all
}

/// The users of a secret, as htpasswd writes them: a line each, name and hash with a colon between.
fn users(compiler: &mut Compiler<'_>, options: &Options) -> Option<Vec<BasicUser>> {
    let Some(name) = &options.basic_auth.secret else {
        compiler.warn(
            Reason::BadAnnotation,
            "auth-type: basic needs auth-secret, the Secret with the users; nobody comes in until then",
        );
        return None;
    };
    let key = own_object(compiler, name, Reason::BadSecret)?;
    compiler.need(Need::Secret(key.clone()));
    let secret = compiler.cluster().auth.get(&key).cloned();
    let Some(text) = secret.as_ref().and_then(|secret| secret.users.as_ref()) else {
        compiler.warn(
            Reason::BadSecret,
            format_args!(
                "there is no Secret {key} of type Opaque with an entry auth; nobody comes in until there \
                 is"
            ),
        );
        return None;
    };
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    let mut users = Vec::new();
    for (index, line) in lines.enumerate().take(USERS_MAX) {
        match line.split_once(':') {
            Some((name, hash)) if !name.is_empty() && !hash.is_empty() => {
                let hash = hash.split(':').next().unwrap_or(hash);
                users.push(BasicUser { name: name.into(), hash: hash.into() });
            }
            _ => compiler.warn(
                Reason::BadSecret,
                format_args!("line {} of auth in the Secret {key} is not name:hash", index + 1),
            ),
        }
    }
    Some(users)
}

fn client_tls(compiler: &mut Compiler<'_>, options: &Options) -> Option<ClientTls> {
    let asked = &options.client_tls;
    let mode = match asked.verify.unwrap_or(VerifyClient::On) {
        VerifyClient::Off => return None,
        VerifyClient::On => ClientTlsMode::Required,
        VerifyClient::Optional => ClientTlsMode::Optional,
        VerifyClient::Unverified => ClientTlsMode::OptionalUnverified,
    };
    let authorities_pem = authorities(compiler, asked.secret.as_ref()?)?;
    Some(ClientTls {
        mode,
        authorities_pem,
        verify_depth: asked.depth.map_or(1, |depth| u8::try_from(depth).unwrap_or(u8::MAX)),
        error_page: asked.error_page.clone(),
        pass_certificate: asked.pass,
        subject_pattern: asked.match_cn.clone(),
    })
}

/// The authorities of a secret, of either type.
fn authorities(compiler: &mut Compiler<'_>, name: &str) -> Option<Arc<[u8]>> {
    let key = own_object(compiler, name, Reason::BadSecret)?;
    compiler.need(Need::Secret(key.clone()));
    let cluster = compiler.cluster();
    let auth = cluster.auth.get(&key).and_then(|secret| secret.authority.clone());
    let found = auth.or_else(|| cluster.tls.get(&key).and_then(|secret| secret.authority.clone()));
    if found.is_none() {
        let message = format!("there is no Secret {key} with an entry ca.crt");
        compiler.warn(Reason::BadSecret, message);
    }
    found
}

/// TLS with the backend; the reason why nobody may come in where it cannot be as it was asked for.
pub(crate) fn upstream_tls(
    compiler: &mut Compiler<'_>,
    options: &Options,
) -> (UpstreamTls, Option<String>) {
    let asked = &options.upstream_tls;
    let mut tls = UpstreamTls { server_name: asked.name.clone(), ..UpstreamTls::default() };
    let mut closed = None;
    if asked.verify {
        tls.authorities_pem = asked.secret.as_ref().and_then(|name| authorities(compiler, name));
        if tls.authorities_pem.is_none() {
            let message = "proxy-ssl-verify needs proxy-ssl-secret, a Secret with an entry ca.crt; \
                           nobody comes in until then";
            compiler.warn(Reason::BadSecret, message);
            closed = Some("the backend's certificate cannot be verified".to_owned());
        }
    }
    if let Some(name) = &asked.secret
        && let Some(key) = own_object(compiler, name, Reason::BadSecret)
    {
        compiler.need(Need::Secret(key.clone()));
        if let Some(secret) = compiler.cluster().tls.get(&key) {
            let both = [&*secret.certificate, b"\n", &*secret.private_key].concat();
            tls.identity_pem = Some(both.into());
        }
    }
    (tls, closed)
}

/// The headers of a ConfigMap, as edits.
fn headers(compiler: &mut Compiler<'_>, name: &str) -> Vec<HeaderEdit> {
    let Some(key) = own_object(compiler, name, Reason::BadConfigMap) else { return Vec::new() };
    compiler.need(Need::ConfigMap(key.clone()));
    let Some(map) = compiler.cluster().maps.get(&key).cloned() else {
        compiler.warn(
            Reason::BadConfigMap,
            format_args!("there is no ConfigMap {key} with the label telaio.dev/config"),
        );
        return Vec::new();
    };
    let mut edits = Vec::new();
    for (name, value) in map.data.iter().take(HEADERS_MAX) {
        let lower: Arc<str> = name.to_ascii_lowercase().into();
        let checked = header_name(name).and_then(|_| header_value(value));
        match checked {
            Err(bad) => compiler.warn(
                Reason::BadConfigMap,
                format_args!("the ConfigMap {key}, entry {name:?}: {bad}"),
            ),
            Ok(_) if is_framing(&lower) => compiler.warn(
                Reason::BadConfigMap,
                format_args!("the ConfigMap {key}, entry {name:?}: this header is the proxy's own"),
            ),
            Ok(_) if value.is_empty() => edits.push(HeaderEdit::Remove(lower)),
            Ok(_) => edits.push(HeaderEdit::Set(lower, Arc::clone(value))),
        }
    }
    edits
}

/// What makes a request go to the canary.
pub(crate) fn canary(
    options: &Options,
    backend: telaio_http_proxy::table::BackendId,
) -> CanaryRule {
    let canary = &options.canary;
    CanaryRule {
        backend,
        header: canary.header.as_ref().map(|name| name.as_str().into()),
        header_value: canary.header_value.clone(),
        header_pattern: canary.header_pattern.clone(),
        cookie: canary.cookie.clone(),
        weight: canary.weight,
        weight_total: canary.weight_total.unwrap_or(100),
    }
}
