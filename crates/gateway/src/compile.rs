//! What one Ingress wants in the table. A pure function of the Ingress and of what it refers to.
//!
//! - Every path of every rule is a claim to its host and path, `ImplementationSpecific` read as
//!   `Prefix`, or as a regular expression where the Ingress uses those.
//! - The default backend claims `/` of every host of the rules, and of all hosts, behind all others.
//! - What it refers to is written down as its [needs](Need), so that it is compiled again when one of
//!   them changes.

mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, LazyLock};

use telaio_http_proxy::filter::template::{Leads, Template};
use telaio_http_proxy::reach::is_local_name;
use telaio_http_proxy::table::{
    Action, Age, BackendId, CanaryRule, HostMatch, PathMatch, Policy, Redirect, Rewrite,
    TlsRedirect, WeightedBackend,
};
use telaio_model::{
    AuthSecret, ConfigMap, Ingress, IngressBackend, IngressPath, ObjectKey, Override,
    OverrideTarget, PathType, PortRef, TlsSecret,
};

use crate::annotations::{Annotations, Options, Outcome, RedirectOption, values};
use crate::backends::{BackendSpec, Manner};
use crate::certificates;
use crate::claims::{Claim, Place, Rank, Reading};
use crate::host_tls::Named;
use crate::listener::ServiceNews;
use crate::maintenance::maintenance;
use crate::paths::{literal, other_reading, regex_pattern};
use crate::policy;
use crate::small_set::SmallSet;
use crate::warning::{Reason, Warning};

/// What Ingresses can refer to.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Services with their endpoints.
    pub services: BTreeMap<ObjectKey, Arc<ServiceNews>>,
    /// Certificates that can be used.
    pub tls: BTreeMap<ObjectKey, Arc<TlsSecret>>,
    /// What is wrong with secrets that cannot; the last good certificate stands.
    pub bad_tls: BTreeMap<ObjectKey, String>,
    /// Users and authorities.
    pub auth: BTreeMap<ObjectKey, Arc<AuthSecret>>,
    /// ConfigMaps.
    pub maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
    /// What somebody decided about an Ingress's routes, by Ingress and name.
    pub pauses: BTreeMap<ObjectKey, BTreeMap<ObjectKey, Arc<Override>>>,
    /// Whether names may lead to the node itself.
    pub local_targets: bool,
}

impl Cluster {
    /// Somebody's decision to pause what has this host and path of an Ingress.
    pub(crate) fn pause_of(
        &self,
        ingress: &ObjectKey,
        host: &HostMatch,
        path: &PathMatch,
    ) -> Option<&Override> {
        let (PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Regex(text)) = path;
        // A path that is read as an expression is still named as the Ingress has it.
        let written = path.written();
        let pauses = self.pauses.get(ingress)?;
        let is_meant = |pause: &&Arc<Override>| match &pause.target {
            OverrideTarget::Routes { host: only_host, path: only_path } => {
                let named = |name: &Arc<str>| match &**name {
                    "" | "*" => *host == HostMatch::Any,
                    name => *host == host_match(name),
                };
                let is_path = |path: &Arc<str>| path == text || **path == *written;
                only_host.as_ref().is_none_or(named) && only_path.as_ref().is_none_or(is_path)
            }
            _ => false,
        };
        pauses.values().find(is_meant).map(|pause| &**pause)
    }

    /// A certificate is now this, or no more. One that cannot be used is left out, and the one
    /// before it stands.
    pub fn set_certificate(&mut self, key: &ObjectKey, secret: Option<Arc<TlsSecret>>) {
        self.bad_tls.remove(key);
        match secret {
            None => drop(self.tls.remove(key)),
            Some(secret) => match certificates::check(&secret) {
                Ok(()) => drop(self.tls.insert(key.clone(), secret)),
                Err(why) => drop(self.bad_tls.insert(key.clone(), why)),
            },
        }
    }
}

/// Something that an Ingress refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A service.
    Service(ObjectKey),
    /// A secret of either type.
    Secret(ObjectKey),
    /// A ConfigMap.
    ConfigMap(ObjectKey),
    /// What was decided about the routes of an Ingress.
    Pauses(ObjectKey),
}

/// A host and the secret that has its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsClaim {
    /// The host.
    pub host: Arc<str>,
    /// Who says that it is.
    pub named: Named,
    /// The secret.
    pub secret: ObjectKey,
}

/// What one Ingress wants.
#[derive(Debug, Default)]
pub struct Compiled {
    /// Hosts and paths.
    pub claims: Vec<Arc<Claim>>,
    /// Backends.
    pub backends: Vec<BackendSpec>,
    /// Certificates.
    pub tls: Vec<TlsClaim>,
    /// Hosts whose TLS goes to a backend unopened.
    pub passthrough: Vec<(Arc<str>, BackendId)>,
    /// What it refers to.
    pub needs: SmallSet<Need>,
    /// What its writer should know.
    pub warnings: Vec<Warning>,
    /// When it was made.
    pub age: Age,
}

/// Compiles one Ingress.
pub fn compile(ingress: &Ingress, cluster: &Cluster) -> Compiled {
    let annotations = Annotations::read(&ingress.meta.annotations);
    let mut compiler = Compiler {
        ingress,
        cluster,
        manner: Arc::default(),
        asks_own_host: asks_own_host(&annotations.options),
        compiled: Compiled { age: age(ingress, 0), ..Compiled::default() },
    };
    compiler.need(Need::Pauses(ingress.meta.key.clone()));
    compiler.note_findings(&annotations);
    let (tls, unverified) = policy::upstream_tls(&mut compiler, &annotations.options);
    compiler.manner = Arc::new(Manner::new(&annotations.options, tls));
    let closed = annotations.closed.clone().or(unverified);
    let policy = policy::policy(&mut compiler, &annotations.options, closed.as_deref());
    compiler.claim_certificates(&annotations.options);
    compiler.claim_rules(&annotations.options, &policy);
    let mut compiled = compiler.compiled;
    compiled.warnings.sort();
    compiled.warnings.dedup();
    // It is kept as long as the Ingress is there, and most have one of each.
    compiled.claims.shrink_to_fit();
    compiled.backends.shrink_to_fit();
    compiled
}

fn age(ingress: &Ingress, index: usize) -> Age {
    Age {
        created: ingress.meta.created_s.unwrap_or(0),
        name: ingress.meta.key.to_string().into(),
        index: u32::try_from(index).unwrap_or(u32::MAX),
    }
}

/// An Ingress that is being compiled.
pub(crate) struct Compiler<'a> {
    ingress: &'a Ingress,
    cluster: &'a Cluster,
    manner: Arc<Manner>,
    /// The authenticating service is the request's own host: only where there is one host.
    asks_own_host: bool,
    compiled: Compiled,
}

impl<'a> Compiler<'a> {
    pub(crate) fn key(&self) -> &'a ObjectKey {
        &self.ingress.meta.key
    }

    pub(crate) fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    pub(crate) fn need(&mut self, need: Need) {
        self.compiled.needs.insert(need);
    }

    pub(crate) fn warn(&mut self, reason: Reason, message: impl fmt::Display) {
        self.compiled.warnings.push(Warning::new(&self.ingress.meta.key, reason, message));
    }

    fn note_findings(&mut self, annotations: &Annotations) {
        for finding in &annotations.findings {
            let (reason, message) = match &finding.outcome {
                Outcome::Honoured | Outcome::Different(_) => continue,
                Outcome::Bad(message) => (Reason::BadAnnotation, message),
                Outcome::Refused(message) => (Reason::RefusedAnnotation, message),
                Outcome::Unknown(message) => (Reason::UnknownAnnotation, message),
            };
            self.warn(reason, format_args!("the annotation {}: {message}", finding.annotation));
        }
    }

    /// The backend of a service's port, in this Ingress's manner.
    fn backend(&mut self, service: &str, port: &PortRef, manner: &Arc<Manner>) -> BackendId {
        let key = ObjectKey::new(Arc::clone(&self.key().namespace), service);
        self.need(Need::Service(key.clone()));
        let news = self.cluster.services.get(&key).map(|news| &**news);
        let spec = BackendSpec::new(key, port, news, manner);
        if let Some(why) = spec.missing(news) {
            self.warn(Reason::BackendMissing, why);
        }
        let name = news.and_then(|news| news.service.external_name.as_deref());
        if let Some(name) = name.filter(|it| is_local_name(it) && !self.cluster.local_targets) {
            let message = format_args!(
                "the service {} leads to {name}, which is the node itself or its link: that is not \
                 served, as it would be published",
                spec.service
            );
            self.warn(Reason::BackendMissing, message);
        }
        let id = spec.id.clone();
        if !self.compiled.backends.iter().any(|known| known.id == id) {
            self.compiled.backends.push(spec);
        }
        id
    }

    /// The backend of a service that is named without a port: its first.
    pub(crate) fn first_port_of(&mut self, service: &str) -> Option<BackendId> {
        let key = ObjectKey::new(Arc::clone(&self.key().namespace), service);
        self.need(Need::Service(key.clone()));
        let port = self.cluster.services.get(&key).and_then(|news| news.service.ports.first());
        let Some(port) = port.map(|port| PortRef::Number(port.port)) else {
            self.warn(
                Reason::BackendMissing,
                format_args!("the service {key} of default-backend does not exist or has no port"),
            );
            return None;
        };
        Some(self.backend(service, &port, &Arc::default()))
    }

    fn forward(&mut self, backend: &IngressBackend) -> (BackendId, Action) {
        let manner = Arc::clone(&self.manner);
        let id = self.backend(&backend.service, &backend.port, &manner);
        (id.clone(), Action::Forward(vec![WeightedBackend { backend: id, weight: 1 }]))
    }

    fn claim_rules(&mut self, options: &Options, policy: &Policy) {
        let mut index = 0;
        for (r, rule) in self.ingress.rules.iter().enumerate() {
            let host = rule.host.as_deref().map_or(HostMatch::Any, host_match);
            let policy = self.policy_of_host(options, policy, &host);
            for (p, path) in rule.paths.iter().enumerate() {
                index += 1;
                let id = format!("{}/{r}/{p}", self.key());
                self.claim_path(options, &policy, &host, path, &id, index);
            }
            if let Some(root) = &options.app_root
                && !rule.paths.iter().any(|path| &*path.path == "/")
            {
                let redirect =
                    Redirect { status: 302, path: Some(Arc::clone(root)), ..Redirect::default() };
                let place = Place { host: host.clone(), path: PathMatch::Exact("/".into()) };
                let id = format!("{}/{r}/app-root", self.key());
                self.claim(
                    place,
                    Rank::Rule,
                    &id,
                    index,
                    Action::Redirect(redirect),
                    &policy,
                    None,
                );
            }
            if options.www_redirect {
                self.claim_www(&host, &policy, r, index);
            }
        }
        self.claim_default(options, policy, index + 1);
    }

    fn policy_of_host(&self, options: &Options, policy: &Policy, host: &HostMatch) -> Arc<Policy> {
        let wanted = options.ssl_redirect.unwrap_or(true) && self.has_tls(host);
        let redirect = (options.force_ssl_redirect || wanted) && !options.ssl_passthrough;
        let tls_redirect = if redirect { TlsRedirect::On(308) } else { TlsRedirect::Off };
        let policy = Policy { tls_redirect, app_root: options.app_root.clone(), ..policy.clone() };
        shared(policy)
    }

    fn claim_path(
        &mut self,
        options: &Options,
        policy: &Arc<Policy>,
        host: &HostMatch,
        path: &IngressPath,
        id: &str,
        index: usize,
    ) {
        let Some(matched) = self.path_match(options, path) else { return };
        let (backend, mut action) = self.forward(&path.backend);
        let mut policy = Arc::clone(policy);
        if let Some(target) = &options.rewrite_target {
            // As ingress-nginx does: what the path matches decides, and the whole path is replaced.
            let escaped = options.use_regex || path.path_type != PathType::Exact;
            let pattern = if escaped && !matches!(matched, PathMatch::Exact(_)) {
                regex_pattern(&path.path)
            } else {
                let (PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Regex(text)) =
                    &matched;
                format!("^{}$", regex::escape(text))
            };
            let rewrite = match values::regex(&pattern) {
                Ok(_) if target.contains('$') => {
                    Rewrite::Regex { pattern: pattern.into(), replacement: Arc::clone(target) }
                }
                _ => Rewrite::ReplaceFull(Arc::clone(target)),
            };
            Arc::make_mut(&mut policy).rewrite = Some(rewrite);
        }
        if let Some(redirect) = redirect(options) {
            action = Action::Redirect(redirect);
        }
        let is_paused = self.pause_of(host, &matched).is_some();
        if options.ssl_passthrough && !options.canary.on && &*path.path == "/" && !is_paused {
            self.claim_passthrough(host, &backend);
        }
        let canary = options.canary.on.then(|| policy::canary(options, backend));
        let other = canary.as_ref().and_then(|_| other_reading(path, &matched));
        for (rank, host, suffix) in with_aliases(host, &options.aliases) {
            let place = Place { host, path: matched.clone() };
            let id = format!("{id}{suffix}");
            if let Some(other) = &other {
                let other = Place { host: place.host.clone(), path: other.clone() };
                self.claim_canary(
                    place,
                    other,
                    rank,
                    &id,
                    index,
                    &action,
                    &policy,
                    canary.as_ref(),
                );
                continue;
            }
            self.claim(place, rank, &id, index, action.clone(), &policy, canary.clone());
        }
    }

    /// A canary is found by whoever has its path, as a prefix or as a regular expression: which of the
    /// two is said by the Ingress that it is a canary of.
    #[expect(clippy::too_many_arguments, reason = "the parts of a claim")]
    fn claim_canary(
        &mut self,
        place: Place,
        other: Place,
        rank: Rank,
        id: &str,
        index: usize,
        action: &Action,
        policy: &Arc<Policy>,
        canary: Option<&CanaryRule>,
    ) {
        self.claim(place.clone(), rank, id, index, action.clone(), policy, canary.cloned());
        self.claim(other.clone(), rank, id, index, action.clone(), policy, canary.cloned());
        let count = self.compiled.claims.len();
        let readings = [Reading::First { other }, Reading::Second { first: place }];
        for (claim, reading) in self.compiled.claims[count - 2..].iter_mut().zip(readings) {
            Arc::make_mut(claim).reading = reading;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a claim")]
    fn claim(
        &mut self,
        place: Place,
        rank: Rank,
        id: &str,
        index: usize,
        action: Action,
        policy: &Arc<Policy>,
        canary: Option<CanaryRule>,
    ) {
        let action = match self.pause_of(&place.host, &place.path) {
            Some(pause) => maintenance(pause, action),
            None => action,
        };
        let mut policy = Arc::clone(policy);
        if self.asks_own_host && !matches!(place.host, HostMatch::Exact(_)) {
            self.close_place(&place, &mut policy);
        }
        self.compiled.claims.push(Arc::new(Claim {
            place,
            rank,
            age: age(self.ingress, index),
            ingress: self.key().clone(),
            id: id.into(),
            action,
            policy,
            canary,
            reading: Reading::Only,
        }));
    }

    /// Whoever asks here could name any host, and it would be asked whether they may.
    fn close_place(&mut self, place: &Place, policy: &mut Arc<Policy>) {
        let host = match &place.host {
            HostMatch::Any => "all hosts".to_owned(),
            HostMatch::Exact(host) => host.to_string(),
            HostMatch::Wildcard(suffix) => format!("*{suffix}"),
        };
        let message = format_args!(
            "auth-url leads to $host, and for {host} that is whatever a client writes: nobody comes in \
             there; name the service's own host in auth-url, or one host in the rule"
        );
        self.warn(Reason::BadAnnotation, message);
        policy::close(Arc::make_mut(policy), "the client would choose who says whether it may");
    }

    /// Somebody's decision to pause what has this host and path.
    fn pause_of(&self, host: &HostMatch, path: &PathMatch) -> Option<&'a Override> {
        self.cluster.pause_of(self.key(), host, path)
    }

    /// How a path is compared; `None`, with a warning, if it cannot be.
    fn path_match(&mut self, options: &Options, path: &IngressPath) -> Option<PathMatch> {
        let is_regex = options.use_regex
            || options.rewrite_target.as_ref().is_some_and(|target| target.contains('$'));
        if is_regex && path.path_type != PathType::Exact {
            return self.regex_match(&path.path);
        }
        match literal(path) {
            Ok(matched) => Some(matched),
            Err(bad) => {
                self.warn(Reason::BadPath, format_args!("the path {:?}: {bad}", path.path));
                None
            }
        }
    }

    fn regex_match(&mut self, path: &str) -> Option<PathMatch> {
        let pattern = regex_pattern(path);
        if let Err(bad) = values::regex(&pattern) {
            self.warn(Reason::BadPath, format_args!("the path {path:?}: {bad}"));
            return None;
        }
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.warn(
                Reason::BadPath,
                format_args!(
                    "the path {path:?}: clients send blanks and letters beyond ASCII escaped, and a \
                     regular expression must have them so: %20, %C3%BC"
                ),
            );
        }
        Some(PathMatch::Regex(pattern.into()))
    }

    /// The default backend: behind every path of the rules' hosts, and for all other hosts.
    fn claim_default(&mut self, options: &Options, policy: &Policy, index: usize) {
        let Some(backend) = &self.ingress.default_backend else { return };
        if options.canary.on {
            return;
        }
        let (_, action) = self.forward(backend);
        let hosts =
            self.ingress.rules.iter().filter_map(|rule| rule.host.as_deref()).map(host_match);
        let hosts: BTreeSet<HostMatch> = hosts.chain([HostMatch::Any]).collect();
        for (n, host) in hosts.into_iter().enumerate() {
            let policy = self.policy_of_host(options, policy, &host);
            let place = Place { host, path: PathMatch::Prefix("/".into()) };
            let id = format!("{}/default/{n}", self.key());
            self.claim(place, Rank::Default, &id, index, action.clone(), &policy, None);
        }
    }

    /// `www.` and without are one.
    fn claim_www(&mut self, host: &HostMatch, policy: &Arc<Policy>, rule: usize, index: usize) {
        let (HostMatch::Exact(host), Some(other)) = (host, www_of(host)) else { return };
        let redirect =
            Redirect { status: 308, host: Some(Arc::clone(host)), ..Redirect::default() };
        let place = Place { host: HostMatch::Exact(other), path: PathMatch::Prefix("/".into()) };
        let id = format!("{}/{rule}/www", self.key());
        self.claim(place, Rank::Alias, &id, index, Action::Redirect(redirect), policy, None);
    }
}

/// Whether the client's own host is asked if it may come in.
fn asks_own_host(options: &Options) -> bool {
    let template = options.forward_auth.url.as_deref().map(Template::parse);
    template.is_some_and(|it| it.is_ok_and(|template| template.leads() != Leads::AsWritten))
}

/// The one copy of a policy that asks for nothing in particular: most Ingresses have it.
fn shared(policy: Policy) -> Arc<Policy> {
    static PLAIN: LazyLock<[Arc<Policy>; 2]> = LazyLock::new(|| {
        let body_bytes_max = Some(policy::BODY_BYTES_MAX);
        let with =
            |tls_redirect| Arc::new(Policy { tls_redirect, body_bytes_max, ..Policy::default() });
        [with(TlsRedirect::Off), with(TlsRedirect::On(308))]
    });
    match PLAIN.iter().find(|plain| ***plain == policy) {
        Some(plain) => Arc::clone(plain),
        None => Arc::new(policy),
    }
}

/// A host as a rule or a certificate names it.
pub fn host_match(host: &str) -> HostMatch {
    let host = host.to_ascii_lowercase();
    match host.strip_prefix('*') {
        Some(suffix) => HostMatch::Wildcard(suffix.into()),
        None => HostMatch::Exact(host.into()),
    }
}

/// A host with `www.` before it, or without it.
fn www_of(host: &HostMatch) -> Option<Arc<str>> {
    let HostMatch::Exact(host) = host else { return None };
    Some(match host.strip_prefix("www.") {
        Some(bare) => bare.into(),
        None => format!("www.{host}").into(),
    })
}

fn with_aliases(host: &HostMatch, aliases: &[Arc<str>]) -> Vec<(Rank, HostMatch, String)> {
    let own = (Rank::Rule, host.clone(), String::new());
    let others = aliases.iter().map(|alias| (Rank::Alias, host_match(alias), format!("@{alias}")));
    [own].into_iter().chain(others.filter(|(_, alias, _)| alias != host)).collect()
}

/// Where everything is redirected to, if that is asked for.
fn redirect(options: &Options) -> Option<Redirect> {
    let (to, status) = match (&options.temporal_redirect, &options.permanent_redirect) {
        (Some(to), _) => (to, options.temporal_redirect_code.unwrap_or(302)),
        (None, Some(to)) => (to, options.permanent_redirect_code.unwrap_or(301)),
        (None, None) => return None,
    };
    Some(redirect_to(to, status))
}

/// A redirect to a URL. With the request's own path and query behind it, only scheme, host and port
/// are set: the rest stays as it was asked for.
fn redirect_to(to: &RedirectOption, status: u16) -> Redirect {
    let redirect = Redirect { status, ..Redirect::default() };
    let Some((scheme, rest)) = to.location.split_once("://") else {
        if to.append_uri {
            let url = format!("{}$request_uri", to.location);
            return Redirect { url: Some(url.into()), ..redirect };
        }
        return Redirect { path: Some(Arc::clone(&to.location)), ..redirect };
    };
    if !to.append_uri {
        return Redirect { url: Some(Arc::clone(&to.location)), ..redirect };
    }
    if rest.contains('/') {
        // Behind a path of its own. There is no other variable in it: that was checked.
        let url = format!("{}$request_uri", to.location);
        return Redirect { url: Some(url.into()), ..redirect };
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (rest, None),
    };
    Redirect { scheme: Some(scheme.into()), host: Some(host.into()), port, ..redirect }
}
