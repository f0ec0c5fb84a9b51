//! `telaio trace --url`: what a request will meet.
//!
//! The same gateway and router that serve requests are fed once from the source and asked.

use std::io::Write;

use serde::Serialize;
use telaio_brain::LocalWatch;
use telaio_gateway::listener::all_events;
use telaio_gateway::{Gateway, GatewaySettings, IngressEvent};
use telaio_gui::values::trace::{TraceAnswer, TraceStep};
use telaio_http_proxy::router::Compiled;
use telaio_http_proxy::table::{
    Action, Auth, BackendId, EndpointAddress, EndpointState, HostMatch, PathMatch, Redirect,
    TableChange, TlsRedirect,
};
use telaio_http_proxy::tls::CertificateStore;
use telaio_http_proxy::tls::store::CertificatesChange;
use telaio_http_proxy::{HttpProxy, ProxySettings, RequestHead};
use telaio_model::{ObjectKey, Op, Override};

use crate::cli::{Output, TraceArgs};
use crate::exit::CommandError;
use crate::feeder::ingress_wants;
use crate::gui::UrlAsking;
use crate::plane::Plane;
use crate::progress;
use crate::supply::{self, SupplyOptions};

/// What a request meets.
#[derive(Debug, Default, Serialize)]
struct Answer {
    /// `forward`, `redirect`, `respond`, `deny` or `none` (404).
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    backends: Vec<String>,
    /// Those that take requests, sorted.
    endpoints: Vec<String>,
    /// Those that finish what they have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    draining: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    /// The path that the backend sees, where it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    rewritten: Option<String>,
    /// What stands in the way, in order.
    via: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// All that happens, in order, from the connection on.
    #[serde(skip)]
    steps: Vec<TraceStep>,
}

/// Says what a request for `url` meets.
pub(super) fn trace_url(
    args: &TraceArgs,
    url: &str,
    out: &mut impl Write,
) -> Result<(), CommandError> {
    let asked = Asked::parse(url)?;
    let spec = args.source.spec()?;
    let options = SupplyOptions {
        source: args.source.clone(),
        planes: vec![Plane::Ingress],
        tls: args.tls.clone(),
        state_dir: args.state_dir.clone(),
        state_read_only: true,
    };
    let node = args.node.name()?;
    let runtime = super::runtime()?;
    let reading = format!("reading {spec}");
    let answer = runtime.block_on(async {
        let load = supply::load_once(&spec, &options, args.timeout);
        let loaded = progress::shown(&reading, load).await?;
        let mut watch = LocalWatch::new(&loaded.store, node.as_str(), ingress_wants());
        let ops = watch.next().await.map_err(|error| CommandError::Failed(error.into()))?;
        Ok::<_, CommandError>((ops.collect::<Vec<_>>(), loaded.status))
    });
    let settings = UrlAsking::of(&spec).gateway;
    let answer = answer.and_then(|(ops, status)| {
        let answer = runtime.block_on(answer_of(ops.into_iter(), settings, &asked))?;
        Ok((answer, status))
    });
    runtime.shutdown_background();
    let (answer, status) = answer?;
    let text = match args.output {
        Output::Text => answer.text(url),
        Output::Json => {
            let json = serde_json::to_string(&answer);
            json.map_err(|error| CommandError::Failed(error.into()))? + "\n"
        }
    };
    out.write_all(text.as_bytes()).map_err(|error| CommandError::Failed(error.into()))?;
    super::report_problems(&spec, &status)
}

/// What a request for `url` meets with this view and these settings, for the admin API. All routes are compiled for it,
/// so it takes its time.
pub(crate) fn trace_url_of(
    ops: Vec<Op>,
    settings: GatewaySettings,
    url: &str,
) -> Result<TraceAnswer, CommandError> {
    let asked = Asked::parse(url)?;
    let answering = answer_of(ops.into_iter(), settings, &asked);
    let found = tokio::runtime::Handle::current().block_on(answering)?;
    let said = match (found.verdict, found.status, &found.location) {
        ("forward", ..) => format!("goes to one of {} endpoints", found.endpoints.len()),
        (_, Some(status), Some(location)) => format!("is answered with {status} to {location}"),
        (_, Some(status), None) => format!("is answered with {status}"),
        (verdict, ..) => verdict.to_owned(),
    };
    Ok(TraceAnswer {
        kind: "url".to_owned(),
        verdict: found.verdict.to_owned(),
        summary: format!("{url} {said}"),
        steps: found.steps,
        endpoints: found.endpoints,
        draining: found.draining,
        route: found.route,
        status: found.status,
        location: found.location,
        rewritten: found.rewritten,
        warnings: found.warnings,
        ..TraceAnswer::default()
    })
}

/// Who paused a route, and until when.
fn pause_text(pause: &Override) -> String {
    let by = if pause.by.is_empty() { "somebody" } else { &*pause.by };
    let until = pause.until_s.and_then(|until| jiff::Timestamp::from_second(until).ok());
    let until = match until {
        Some(until) => format!("until {until}"),
        None => "until somebody resumes it".to_owned(),
    };
    let why = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    format!("{by} paused it, {until} (override {}){why}", pause.meta.key)
}

/// A URL that is asked for.
struct Asked {
    tls: bool,
    request: RequestHead,
    authority: String,
    target: String,
}

impl Asked {
    fn parse(url: &str) -> Result<Self, CommandError> {
        let bad = |why: &str| CommandError::bad_input(format!("--url {url:?}: {why}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("write http://HOST/PATH"))?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(bad("write http:// or https://")),
        };
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        if authority.is_empty() {
            return Err(bad("a host is missing"));
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let mut request = RequestHead::new();
        request.set_authority(authority);
        request.set_target(&target).map_err(|error| bad(&error.to_string()))?;
        Ok(Self { tls, request, authority: authority.to_owned(), target })
    }
}

async fn answer_of(
    ops: impl Iterator<Item = Op>,
    settings: GatewaySettings,
    asked: &Asked,
) -> Result<Answer, CommandError> {
    let mut gateway = Gateway::new(settings);
    let proxy = HttpProxy::new(ProxySettings::default());
    let mut table = TableChange::default();
    let ops = ops.chain([Op::Sync]);
    let events = all_events(ops).await.map_err(|error| CommandError::Failed(error.into()))?;
    for event in events {
        if event == IngressEvent::Synced {
            let change = gateway.commit().table;
            proxy.apply(&change);
            table.merge(change);
        } else {
            gateway.take(event);
        }
    }
    let mut answer = Answer::default();
    if let Some(passed) = answer.connected(asked, &table)? {
        return Ok(passed);
    }
    let router = proxy.router();
    let Some(found) = router.get_backend(&asked.request) else {
        let text = "no route has this host and path: 404";
        answer.pass("route", text, true);
        return Ok(Answer { verdict: "none", status: Some(404), ..answer });
    };
    Ok(answer.routed(found, asked, &gateway, &table))
}

/// Whether a host has a route or a certificate by its own name, which a wildcard does not pass on.
fn has_by_name(table: &TableChange, host: &str) -> bool {
    let mut routes = table.routes.values().flatten();
    let mut certificates = table.certificates.values().flatten();
    routes.any(|route| matches!(&route.host, HostMatch::Exact(own) if **own == *host))
        || certificates.any(|it| it.hosts.iter().any(|own| **own == *host))
}

impl Answer {
    fn step(&mut self, kind: &str, text: impl Into<String>, decides: bool) {
        self.steps.push(TraceStep { text: text.into(), decides, kind: kind.to_owned() });
    }

    /// A step that the command line tells too.
    fn pass(&mut self, kind: &str, text: impl Into<String>, decides: bool) {
        let text = text.into();
        self.via.push(text.clone());
        self.step(kind, text, decides);
    }

    /// From the connection to the request. The whole answer, where TLS is passed on unopened.
    fn connected(
        &mut self,
        asked: &Asked,
        table: &TableChange,
    ) -> Result<Option<Self>, CommandError> {
        let host = asked.request.host().to_ascii_lowercase();
        if !asked.tls {
            self.step(
                "listener",
                format!("it comes to the port for http, for the host {host}"),
                false,
            );
            return Ok(None);
        }
        let is_name = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_err();
        let name =
            if is_name { format!("the name {host} (SNI)") } else { "no name (SNI)".to_owned() };
        self.step("listener", format!("it comes to the port for https, with {name}"), false);
        let parent = host.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let of = |name: &str| table.passthrough.get(name).and_then(Option::as_ref);
        let wildcard = || of(parent.as_deref()?).filter(|_| !has_by_name(table, &host));
        if let Some(backend) = of(&host).or_else(wildcard) {
            let text =
                "its TLS is passed on unopened: no route and no certificate of ours has a say";
            let mut answer = std::mem::take(self);
            answer.pass("certificate", text, true);
            answer.lead_to(backend, table);
            answer.step("backend", format!("it goes to {backend}"), false);
            return Ok(Some(Self { verdict: "forward", ..answer }));
        }
        let store = CertificateStore::new().map_err(|error| CommandError::Failed(error.into()))?;
        let errors = store.apply(CertificatesChange {
            certificates: &table.certificates,
            default: table.default_certificate.as_ref(),
        });
        for (secret, error) in errors {
            self.warnings.push(format!("the certificate of {secret} cannot be used: {error}"));
        }
        let all = store.certificates();
        let of = |wanted: &str| all.iter().find(|it| it.hosts.iter().any(|host| host == wanted));
        let own = of(&host).or_else(|| of(parent.as_deref()?));
        let found = own.or_else(|| all.iter().find(|it| it.default));
        let text = match found.map(|it| (it, it.secret.as_deref())) {
            Some((it, Some(secret))) => {
                let end = jiff::Timestamp::from_second(it.not_after_s);
                let end = end.map(|end| format!(", which holds until {end}")).unwrap_or_default();
                let why = if own.is_none() { ", as that for hosts without another" } else { "" };
                format!("it gets the certificate of {secret}{end}{why}")
            }
            _ => "it gets the certificate that telaio made itself, as no Secret has one for it: \
                  browsers refuse that"
                .to_owned(),
        };
        self.step("certificate", text, false);
        Ok(None)
    }

    fn routed(
        mut self,
        found: &Compiled,
        asked: &Asked,
        gateway: &Gateway,
        table: &TableChange,
    ) -> Self {
        let route = &found.route;
        let (PathMatch::Exact(path) | PathMatch::Prefix(path) | PathMatch::Regex(path)) =
            &route.path;
        let how = match &route.path {
            PathMatch::Exact(_) => "to the letter",
            PathMatch::Prefix(_) => "as a prefix",
            PathMatch::Regex(_) => "as an expression",
        };
        let matched = format!("{} {path}", route.host);
        let how: Vec<String> = [how.to_owned()]
            .into_iter()
            .chain(route.also.iter().map(ToString::to_string))
            .collect();
        let how = how.join(", ");
        self.verdict = "forward";
        self.route = Some(route.id.to_string());
        self.step("route", format!("the route {} has {matched} ({how})", route.id), false);
        self.matched = Some(matched);
        let route_step = self.steps.len() - 1;
        let mut owner = route.id.splitn(3, '/');
        let mut pause = None;
        if let (Some(namespace), Some(name)) = (owner.next(), owner.next()) {
            let key = ObjectKey::new(namespace, name);
            let told = gateway.warnings().filter(|it| it.ingress == key);
            self.warnings.extend(told.map(ToString::to_string));
            pause = gateway.pause_of(&key, &route.host, &route.path);
        }
        let mut answer = match self.checked(found, asked) {
            Ok(answer) => answer,
            Err(refused) => return *refused,
        };
        if let Some(pause) = pause {
            answer.pass("pause", pause_text(pause), true);
        }
        answer = match &route.action {
            Action::Redirect(redirect) => answer.redirected(redirect, asked),
            Action::Respond(fixed) => {
                answer.step("action", format!("it is answered with {}", fixed.status), false);
                Self { verdict: "respond", status: Some(fixed.status), ..answer }
            }
            Action::Forward(_) => answer.forwarded(found, asked, table),
        };
        // What comes after only follows from the route, unless it says otherwise.
        if !answer.steps.iter().any(|step| step.decides) {
            answer.steps[route_step].decides = true;
        }
        answer
    }

    /// What a policy has to say before the route's action; the whole answer, where that is all.
    fn checked(mut self, found: &Compiled, asked: &Asked) -> Result<Self, Box<Self>> {
        let policy = &found.route.policy;
        if !policy.sources.allow.is_empty() || !policy.sources.deny.is_empty() {
            self.pass("policy", "the client's address is checked: 403", false);
        }
        if !policy.rates.is_empty() || policy.connections_max.is_some() {
            self.pass("policy", "the client's rate is limited: 429", false);
        }
        if let TlsRedirect::On(status) = policy.tls_redirect
            && !asked.tls
        {
            let location = format!("https://{}{}", asked.authority, asked.target);
            self.step("policy", format!("who comes by http is sent to https: {status}"), true);
            return Err(Box::new(Self {
                verdict: "redirect",
                status: Some(status),
                location: Some(location),
                ..self
            }));
        }
        for auth in &policy.auth {
            match auth {
                Auth::Deny(why) => {
                    self.pass("policy", format!("nobody comes in: {why}"), true);
                    return Err(Box::new(Self { verdict: "deny", status: Some(403), ..self }));
                }
                Auth::Basic(_) => {
                    self.pass("policy", "a name and password are asked for: 401", false);
                }
                Auth::Forward(forward) => {
                    self.pass("policy", format!("{} is asked", forward.url), false);
                }
            }
        }
        if policy.client_tls.is_some() {
            self.pass("policy", "a client's certificate is asked for", false);
        }
        if policy.cache.is_some() {
            self.pass("policy", "the cache is looked at", false);
        }
        Ok(self)
    }

    fn redirected(mut self, redirect: &Redirect, asked: &Asked) -> Self {
        let scheme = redirect.scheme.as_deref().unwrap_or(if asked.tls { "https" } else { "http" });
        let host = redirect.host.as_deref().unwrap_or(&asked.authority);
        let port = redirect.port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = redirect.path.as_deref().unwrap_or(&asked.target);
        let location = match &redirect.url {
            Some(url) => url.to_string(),
            None => format!("{scheme}://{host}{port}{path}"),
        };
        let status = if redirect.status == 0 { 308 } else { redirect.status };
        self.step("action", format!("it is sent to {location}: {status}"), false);
        Self { verdict: "redirect", status: Some(status), location: Some(location), ..self }
    }

    fn forwarded(mut self, found: &Compiled, asked: &Asked, table: &TableChange) -> Self {
        let path = asked.target.split('?').next().unwrap_or("/");
        self.rewritten = found.rewritten(path);
        if !found.canaries.is_empty() {
            self.pass(
                "policy",
                format!("{} canaries take their share", found.canaries.len()),
                false,
            );
        }
        if let Some(path) = self.rewritten.clone() {
            self.step("policy", format!("the backend is asked for {path}"), false);
        }
        for target in &found.targets {
            self.lead_to(target.upstream.id(), table);
        }
        if !self.backends.is_empty() {
            let text = format!("it goes to {}", self.backends.join(", "));
            self.step("backend", text, false);
        }
        if self.endpoints.is_empty() {
            self.pass("backend", "no endpoint is ready: 503", true);
        }
        self
    }

    /// A backend that it can go to, with its endpoints.
    fn lead_to(&mut self, id: &BackendId, table: &TableChange) {
        self.backends.push(id.to_string());
        let backend = table.backends.get(id).and_then(Option::as_ref);
        for endpoint in backend.iter().flat_map(|backend| &backend.endpoints) {
            let text = match &endpoint.address {
                EndpointAddress::Socket(address) => address.to_string(),
                EndpointAddress::Name(name, port) => format!("{name}:{port}"),
            };
            match endpoint.state {
                EndpointState::Ready => self.endpoints.push(text),
                EndpointState::Draining => self.draining.push(text),
            }
        }
        self.endpoints.sort();
    }

    fn text(&self, url: &str) -> String {
        use std::fmt::Write as _;
        let mut text = format!("{url}: {}\n", self.verdict);
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  {name:<10}{value}");
            }
        };
        line("route", self.route.as_deref().unwrap_or_default());
        line("matched", self.matched.as_deref().unwrap_or_default());
        for step in &self.via {
            line("via", step);
        }
        line("status", &self.status.map(|it| it.to_string()).unwrap_or_default());
        line("location", self.location.as_deref().unwrap_or_default());
        line("rewritten", self.rewritten.as_deref().unwrap_or_default());
        line("backends", &self.backends.join(", "));
        line("endpoints", &self.endpoints.join(", "));
        line("draining", &self.draining.join(", "));
        for warning in &self.warnings {
            line("warning", warning);
        }
        text
    }
}
