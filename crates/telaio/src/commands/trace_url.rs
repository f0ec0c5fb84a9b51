//! `telaio trace --url`: what a request will meet.
//!
//! The same gateway and router that serve requests are fed once from the source and asked.

use std::io::Write;

use serde::Serialize;
use telaio_brain::LocalWatch;
use telaio_gateway::class::ClassSettings;
use telaio_gateway::listener::all_events;
use telaio_gateway::{Gateway, GatewaySettings, IngressEvent};
use telaio_gui::values::trace::{TraceAnswer, TraceStep};
use telaio_http_proxy::router::Compiled;
use telaio_http_proxy::table::{
    Action, Auth, EndpointAddress, EndpointState, PathMatch, Redirect, TableChange, TlsRedirect,
};
use telaio_http_proxy::{HttpProxy, ProxySettings, RequestHead};
use telaio_model::ObjectKey;
use telaio_source::SourceSpec;

use crate::cli::{Output, TraceArgs};
use crate::exit::CommandError;
use crate::ingress::wants;
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
        let mut watch = LocalWatch::new(&loaded.store, node.as_str(), wants());
        let ops = watch.next().await.map_err(|error| CommandError::Failed(error.into()))?;
        let classless = matches!(spec, SourceSpec::Dir(_));
        let answer = answer(ops, classless, &asked).await?;
        Ok::<_, CommandError>((answer, loaded.status))
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

/// What a request for `url` meets with this view, for the admin API.
pub(crate) async fn trace_url_of(
    ops: Vec<telaio_model::Op>,
    classless: bool,
    url: &str,
) -> Result<TraceAnswer, CommandError> {
    let asked = Asked::parse(url)?;
    let found = answer(ops.into_iter(), classless, &asked).await?;
    let mut steps: Vec<TraceStep> = Vec::new();
    let mut step = |text: String| steps.push(TraceStep { text, decides: false });
    if let (Some(route), Some(matched)) = (&found.route, &found.matched) {
        step(format!("the route {route} matches: {matched}"));
    }
    found.via.iter().cloned().for_each(&mut step);
    if !found.backends.is_empty() {
        step(format!("it goes to {}", found.backends.join(", ")));
    }
    if let Some(last) = steps.last_mut() {
        last.decides = true;
    }
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
        steps,
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

async fn answer(
    ops: impl Iterator<Item = telaio_model::Op>,
    classless: bool,
    asked: &Asked,
) -> Result<Answer, CommandError> {
    let class = ClassSettings { classless, ..ClassSettings::default() };
    let mut gateway = Gateway::new(GatewaySettings { class, ..GatewaySettings::default() });
    let proxy = HttpProxy::new(ProxySettings::default());
    let mut table = TableChange::default();
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
    let router = proxy.router();
    let Some(found) = router.get_backend(&asked.request) else {
        let via = vec!["no route has this host and path: 404".to_owned()];
        return Ok(Answer { verdict: "none", status: Some(404), via, ..Answer::default() });
    };
    Ok(Answer::of(found, asked, &gateway, &table))
}

impl Answer {
    fn of(found: &Compiled, asked: &Asked, gateway: &Gateway, table: &TableChange) -> Self {
        let route = &found.route;
        let (PathMatch::Exact(path) | PathMatch::Prefix(path) | PathMatch::Regex(path)) =
            &route.path;
        let mut answer = Self {
            verdict: "forward",
            route: Some(route.id.to_string()),
            matched: Some(format!("{:?} {path}", route.host)),
            ..Self::default()
        };
        let mut owner = route.id.splitn(3, '/');
        if let (Some(namespace), Some(name)) = (owner.next(), owner.next()) {
            let key = ObjectKey::new(namespace, name);
            let told = gateway.warnings().filter(|it| it.ingress == key);
            answer.warnings = told.map(ToString::to_string).collect();
        }
        let policy = &route.policy;
        if !policy.sources.allow.is_empty() || !policy.sources.deny.is_empty() {
            answer.via.push("the client's address is checked: 403".to_owned());
        }
        if !policy.rates.is_empty() || policy.connections_max.is_some() {
            answer.via.push("the client's rate is limited: 429".to_owned());
        }
        if let TlsRedirect::On(status) = policy.tls_redirect
            && !asked.tls
        {
            let location = format!("https://{}{}", asked.authority, asked.target);
            return Self {
                verdict: "redirect",
                status: Some(status),
                location: Some(location),
                ..answer
            };
        }
        for auth in &policy.auth {
            match auth {
                Auth::Deny(why) => {
                    answer.via.push(format!("nobody comes in: {why}"));
                    return Self { verdict: "deny", status: Some(403), ..answer };
                }
                Auth::Basic(_) => {
                    answer.via.push("a name and password are asked for: 401".to_owned());
                }
                Auth::Forward(forward) => answer.via.push(format!("{} is asked", forward.url)),
            }
        }
        if policy.client_tls.is_some() {
            answer.via.push("a client's certificate is asked for".to_owned());
        }
        if policy.cache.is_some() {
            answer.via.push("the cache is looked at".to_owned());
        }
        match &route.action {
            Action::Redirect(redirect) => answer.redirected(redirect, asked),
            Action::Respond(fixed) => {
                Self { verdict: "respond", status: Some(fixed.status), ..answer }
            }
            Action::Forward(_) => answer.forwarded(found, asked, table),
        }
    }

    fn redirected(self, redirect: &Redirect, asked: &Asked) -> Self {
        let scheme = redirect.scheme.as_deref().unwrap_or(if asked.tls { "https" } else { "http" });
        let host = redirect.host.as_deref().unwrap_or(&asked.authority);
        let port = redirect.port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = redirect.path.as_deref().unwrap_or(&asked.target);
        let location = match &redirect.url {
            Some(url) => url.to_string(),
            None => format!("{scheme}://{host}{port}{path}"),
        };
        let status = if redirect.status == 0 { 308 } else { redirect.status };
        Self { verdict: "redirect", status: Some(status), location: Some(location), ..self }
    }

    fn forwarded(mut self, found: &Compiled, asked: &Asked, table: &TableChange) -> Self {
        let path = asked.target.split('?').next().unwrap_or("/");
        self.rewritten = found.rewritten(path);
        if !found.canaries.is_empty() {
            self.via.push(format!("{} canaries take their share", found.canaries.len()));
        }
        for target in &found.targets {
            let id = target.upstream.id();
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
        }
        self.endpoints.sort();
        if self.endpoints.is_empty() {
            self.via.push("no endpoint is ready: 503".to_owned());
        }
        self
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
