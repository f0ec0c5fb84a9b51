//! What an action would do: a function of the action and of what there is. Nothing is touched.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::hash::StableHash;
use telaio_model::overrides::{LABEL_MANAGED_BY, MANAGED_BY};
use telaio_model::{AddedEndpoint, Meta, ObjectKey, Override, OverrideAction, OverrideTarget};

use super::{Circumstances, key};
use crate::agent::{Agent, Network, Refusal, now_ms};
use crate::audit::{Kept, Step};
use crate::gui_server::same;
use crate::values::Key;
use crate::values::action::{Action, Purge, Target, Touch};
use crate::values::ingress::RouteItem;
use crate::values::service::{EndpointItem, ServiceDetail};

/// What `Retry-After` of a pause without end says unless somebody says otherwise.
const RETRY_AFTER_S: u32 = 60;
/// How many endpoints an error names.
const NAMED_MAX: usize = 8;

/// What an action changes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// Overrides.
    Decide(Vec<Step>),
    /// The cache.
    Purge(Purge),
    /// Everything is compared and put right.
    Resync,
}

/// What an action would do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) summary: String,
    pub(super) touches: Vec<Touch>,
    pub(super) warnings: Vec<String>,
    pub(super) effect: Effect,
}

/// Whether an action writes overrides.
pub(super) fn decides(action: &Action) -> bool {
    !matches!(action, Action::PurgeCache { .. } | Action::Resync)
}

/// Whether an action lasts, so that it can end by itself.
pub(super) fn lasts(action: &Action) -> bool {
    matches!(
        action,
        Action::Drain { .. }
            | Action::Weight { .. }
            | Action::AddBackend { .. }
            | Action::RemoveBackend { .. }
            | Action::PauseRoute { .. }
    )
}

fn target_text(target: &Target) -> String {
    match target {
        Target::Address(address) => address.clone(),
        Target::Pod(pod) => format!("pod {pod}"),
        Target::Node(node) => format!("what runs on {node}"),
    }
}

fn routes_text(ingress: &Key, host: Option<&str>, path: Option<&str>) -> String {
    let host = host.map(|host| if host.is_empty() { "*" } else { host });
    let host = host.map(|host| format!(", host {host}")).unwrap_or_default();
    let path = path.map(|path| format!(", path {path}")).unwrap_or_default();
    format!("Ingress {ingress}{host}{path}")
}

/// One line: what an action is.
pub(super) fn sentence(action: &Action) -> String {
    match action {
        Action::Drain { service, target } => {
            format!("drain {} of service {service}", target_text(target))
        }
        Action::Undrain { service, target } => {
            format!("take back what was decided about {} of service {service}", target_text(target))
        }
        Action::Weight { service, target, weight } => {
            format!("weight {weight} for {} of service {service}", target_text(target))
        }
        Action::AddBackend { service, address, .. } => {
            format!("add {address} to service {service}")
        }
        Action::RemoveBackend { service, target } => {
            format!("remove {} from service {service}", target_text(target))
        }
        Action::PauseRoute { ingress, host, path, .. } => {
            format!("pause {}", routes_text(ingress, host.as_deref(), path.as_deref()))
        }
        Action::ResumeRoute { ingress, host, path } => {
            format!("resume {}", routes_text(ingress, host.as_deref(), path.as_deref()))
        }
        Action::PurgeCache { what } => match what {
            Purge::Key(url) => format!("have the cache forget {url}"),
            Purge::Prefix(prefix) => format!("have the cache forget what begins with {prefix}"),
            Purge::Host(host) => format!("have the cache forget all of {host}"),
        },
        Action::Resync => "compare everything with the kernel and put it right".to_owned(),
        Action::RemoveOverride { name } => format!("remove the override {name}"),
    }
}

/// One line: what an override does.
pub(super) fn override_sentence(decided: &Override) -> String {
    let object = key(&decided.object);
    let which = match &decided.target {
        OverrideTarget::Address(ip) => Target::Address(ip.to_string()),
        OverrideTarget::Pod(pod) => Target::Pod(pod.to_string()),
        OverrideTarget::Node(node) => Target::Node(node.to_string()),
        OverrideTarget::Routes { host, path } => {
            return format!("pause {}", routes_text(&object, host.as_deref(), path.as_deref()));
        }
    };
    let which = target_text(&which);
    match &decided.action {
        OverrideAction::Drain => format!("drain {which} of service {object}"),
        OverrideAction::Weight(weight) => {
            format!("weight {weight} for {which} of service {object}")
        }
        OverrideAction::Add(_) => format!("add {which} to service {object}"),
        OverrideAction::Remove => format!("remove {which} from service {object}"),
        OverrideAction::Pause { .. } => format!("pause {object}"),
    }
}

/// Whether two overrides say the same.
pub(super) fn alike(one: &Override, other: &Override) -> bool {
    one.object == other.object
        && one.target == other.target
        && one.action == other.action
        && one.by == other.by
        && one.reason == other.reason
        && one.until_s == other.until_s
}

/// How many endpoints or routes an override touches now.
pub(super) fn touched(agent: &dyn Agent, network: &Network, decided: &Override) -> usize {
    if let OverrideTarget::Routes { host, path } = &decided.target {
        let ingress = key(&decided.object);
        return routes(network, &ingress, host.as_deref(), path.as_deref()).count();
    }
    let Some(detail) = agent.service(&key(&decided.object)) else { return 0 };
    detail.endpoint_items.iter().filter(|it| is_meant(&decided.target, it)).count()
}

fn routes<'a>(
    network: &'a Network,
    ingress: &'a Key,
    host: Option<&'a str>,
    path: Option<&'a str>,
) -> impl Iterator<Item = &'a RouteItem> {
    network
        .routes
        .iter()
        .filter(move |route| route.ingress == *ingress && covers(host, path, route))
}

/// A host as it is compared: that of all others has two spellings.
fn any_host(host: &str) -> String {
    if host == "*" { String::new() } else { host.to_ascii_lowercase() }
}

fn covers(host: Option<&str>, path: Option<&str>, route: &RouteItem) -> bool {
    host.is_none_or(|host| any_host(host) == any_host(&route.host))
        && path.is_none_or(|path| {
            route.path == path || route.path.strip_prefix("(?i)^").is_some_and(|it| it == path)
        })
}

/// Whether an override of its Ingress pauses a route now.
fn pauses(decided: &Override, route: &RouteItem) -> bool {
    match &decided.target {
        OverrideTarget::Routes { host, path } => {
            decided.is_active(now_ms() / 1000) && covers(host.as_deref(), path.as_deref(), route)
        }
        _ => false,
    }
}

fn route_text(route: &RouteItem) -> String {
    format!("{}{}", if route.host.is_empty() { "*" } else { &route.host }, route.path)
}

fn is_meant(target: &OverrideTarget, endpoint: &EndpointItem) -> bool {
    match target {
        OverrideTarget::Address(ip) => endpoint.address.parse() == Ok(*ip),
        OverrideTarget::Pod(pod) => endpoint.pod.as_deref() == Some(pod),
        OverrideTarget::Node(node) => endpoint.node.as_deref() == Some(node),
        OverrideTarget::Routes { .. } => false,
    }
}

/// Plans an action.
pub(super) fn plan(
    agent: &dyn Agent,
    network: &Network,
    action: &Action,
    about: &Circumstances,
) -> Result<Plan, Refusal> {
    let planner = Planner { agent, network, about, overrides: agent.overrides() };
    let summary = sentence(action);
    match action {
        Action::Drain { service, target } => {
            planner.endpoints(summary, service, target, OverrideAction::Drain)
        }
        Action::Weight { service, target, weight } => {
            planner.endpoints(summary, service, target, OverrideAction::Weight(*weight))
        }
        Action::RemoveBackend { service, target } => planner.remove(summary, service, target),
        Action::Undrain { service, target } => planner.undrain(summary, service, target),
        Action::AddBackend { service, address, port, node, weight } => {
            let added = AddedEndpoint {
                port: *port,
                node: node.as_deref().filter(|it| !it.is_empty()).map(Into::into),
                weight: *weight,
            };
            planner.add(summary, service, address, added)
        }
        Action::PauseRoute { ingress, host, path, retry_after_s } => {
            planner.pause(summary, ingress, host.as_deref(), path.as_deref(), *retry_after_s)
        }
        Action::ResumeRoute { ingress, host, path } => {
            planner.resume(summary, ingress, host.as_deref(), path.as_deref())
        }
        Action::PurgeCache { what } => Ok(Plan {
            touches: vec![Touch {
                kind: "cache".to_owned(),
                object: match what {
                    Purge::Key(it) | Purge::Prefix(it) | Purge::Host(it) => it.clone(),
                },
                before: "kept".to_owned(),
                after: "forgotten; the next request asks the backend".to_owned(),
            }],
            summary,
            warnings: vec![
                "this reaches the cache of this node only; ask each node that serves".to_owned(),
                "this cannot be undone".to_owned(),
            ],
            effect: Effect::Purge(what.clone()),
        }),
        Action::Resync => Ok(Plan {
            touches: vec![Touch {
                kind: "sync".to_owned(),
                object: "all that this node programs".to_owned(),
                before: "as the last sync left it".to_owned(),
                after: "compared with the kernel and put right; the ingress gets all routes again"
                    .to_owned(),
            }],
            summary,
            warnings: Vec::new(),
            effect: Effect::Resync,
        }),
        Action::RemoveOverride { name } => planner.take_back_named(summary, name),
    }
}

struct Planner<'a> {
    agent: &'a dyn Agent,
    network: &'a Network,
    about: &'a Circumstances,
    overrides: Vec<Arc<Override>>,
}

impl Planner<'_> {
    fn service(&self, service: &Key) -> Result<ServiceDetail, Refusal> {
        let missing = || Refusal::NotFound(format!("there is no service {service}"));
        self.agent.service(service).ok_or_else(missing)
    }

    /// The endpoints that are meant, of which there must be some.
    fn meant<'e>(
        detail: &'e ServiceDetail,
        service: &Key,
        target: &Target,
    ) -> Result<(OverrideTarget, Vec<&'e EndpointItem>), Refusal> {
        let wanted = wanted(target)?;
        let all = &detail.endpoint_items;
        let found: Vec<&EndpointItem> = all.iter().filter(|it| is_meant(&wanted, it)).collect();
        if found.is_empty() {
            let named: Vec<&str> = all
                .iter()
                .take(NAMED_MAX)
                .map(|it| it.pod.as_deref().unwrap_or(&it.address))
                .collect();
            let more = if all.len() > NAMED_MAX { ", …" } else { "" };
            return Err(Refusal::NotFound(format!(
                "service {service} has no endpoint for {}; it has: {}{more}",
                target_text(target),
                named.join(", ")
            )));
        }
        Ok((wanted, found))
    }

    fn make(
        &self,
        object: &Key,
        kind: &str,
        target: OverrideTarget,
        action: OverrideAction,
    ) -> Step {
        let hash = StableHash::new().text(&format!("{object} {target:?}")).hex();
        let short: String = object.name.chars().take(200).collect();
        let name = format!("{kind}-{short}-{}", hash.get(..8).unwrap_or(&hash));
        let key = ObjectKey::new(object.namespace.as_str(), name);
        let mut meta = Meta::named(key.clone());
        meta.labels.insert(LABEL_MANAGED_BY.into(), MANAGED_BY.into());
        let after = Override {
            meta,
            object: ObjectKey::new(object.namespace.as_str(), object.name.as_str()),
            target,
            action,
            by: self.about.who.as_str().into(),
            reason: self.about.reason.as_str().into(),
            since_s: Some(now_ms() / 1000),
            // Rounded up, so that it does not end before it was meant to.
            until_s: self.about.until_ms.map(|it| (it + 999) / 1000),
        };
        Step { before: self.current(&key), key, after: Some(after) }
    }

    fn current(&self, key: &ObjectKey) -> Option<Override> {
        self.overrides.iter().find(|it| it.meta.key == *key).map(|it| Override::clone(it))
    }

    fn endpoints(
        &self,
        summary: String,
        service: &Key,
        target: &Target,
        action: OverrideAction,
    ) -> Result<Plan, Refusal> {
        let detail = self.service(service)?;
        let (wanted, found) = Self::meant(&detail, service, target)?;
        let after = match &action {
            OverrideAction::Weight(0) | OverrideAction::Drain => {
                "gets nothing new; what runs may finish".to_owned()
            }
            OverrideAction::Weight(weight) => format!("weight {weight}"),
            _ => "is not there".to_owned(),
        };
        let touches = found.iter().map(|it| touch(service, it, &after)).collect();
        let takes_out = !matches!(&action, OverrideAction::Weight(weight) if *weight > 0);
        let mut warnings = Vec::new();
        if takes_out {
            let left = detail
                .endpoint_items
                .iter()
                .filter(|it| it.ready && !it.drained && !it.removed && !is_meant(&wanted, it));
            match left.count() {
                0 => warnings
                    .push(format!("nobody is left to serve {service}: clients will be refused")),
                1 => warnings.push(format!("one endpoint is left to serve {service}")),
                _ => {}
            }
        }
        let step = self.make(service, "set", wanted, action);
        Ok(Plan { summary, touches, warnings, effect: Effect::Decide(vec![step]) })
    }

    /// Removing what was added by hand takes that back.
    fn remove(&self, summary: String, service: &Key, target: &Target) -> Result<Plan, Refusal> {
        let detail = self.service(service)?;
        let (wanted, found) = Self::meant(&detail, service, target)?;
        let adds = self.overrides.iter().filter(|it| {
            it.is_managed()
                && it.service().is_some_and(|it| same(it, service))
                && matches!(it.action, OverrideAction::Add(_))
                && it.target == wanted
        });
        let adds: Vec<&Override> = adds.map(|it| &**it).collect();
        if !adds.is_empty() && found.iter().all(|it| it.added) {
            let touches = found.iter().map(|it| touch(service, it, "is not there")).collect();
            return Ok(Plan { summary, touches, warnings: Vec::new(), effect: gone(&adds) });
        }
        self.endpoints(summary, service, target, OverrideAction::Remove)
    }

    /// Takes back what was decided about just these endpoints. What was decided about a node holds for
    /// endpoints that are yet to come, so it is taken back only where the node is named.
    fn undrain(&self, summary: String, service: &Key, target: &Target) -> Result<Plan, Refusal> {
        let detail = self.service(service)?;
        let wanted = wanted(target)?;
        let of = |target: &OverrideTarget| -> Vec<&EndpointItem> {
            detail.endpoint_items.iter().filter(|it| is_meant(target, it)).collect()
        };
        let found = of(&wanted);
        let is_exact = |it: &Override| {
            let is_node = |it: &OverrideTarget| matches!(it, OverrideTarget::Node(_));
            let same_ones = || {
                let addresses = |all: Vec<&EndpointItem>| -> BTreeSet<String> {
                    all.iter().map(|it| it.address.clone()).collect()
                };
                !found.is_empty() && addresses(of(&it.target)) == addresses(found.clone())
            };
            it.target == wanted || (!is_node(&it.target) && !is_node(&wanted) && same_ones())
        };
        let its: Vec<&Override> = self
            .overrides
            .iter()
            .map(|it| &**it)
            .filter(|it| it.service().is_some_and(|it| same(it, service)))
            .filter(|it| !matches!(it.action, OverrideAction::Add(_)))
            .collect();
        let (exact, others): (Vec<&Override>, Vec<&Override>) =
            its.into_iter().partition(|it| is_exact(it));
        let (ours, theirs): (Vec<&Override>, Vec<&Override>) =
            exact.into_iter().partition(|it| it.is_managed());
        if ours.is_empty() {
            if let Some(theirs) = theirs.first() {
                return Err(not_ours(theirs));
            }
            // Says which endpoints there are, if it is that.
            Self::meant(&detail, service, target)?;
            let also =
                others.iter().copied().filter(|it| found.iter().any(|e| is_meant(&it.target, e)));
            return Err(Refusal::NotFound(format!(
                "nothing was decided about {} of service {service} alone; {}",
                target_text(target),
                named(also)
            )));
        }
        let now_s = now_ms() / 1000;
        let after = |endpoint: &EndpointItem| {
            let left = others.iter().chain(&theirs);
            let mut left = left.filter(|it| it.is_active(now_s) && is_meant(&it.target, endpoint));
            match left.next() {
                Some(left) => format!("still: {} ({})", override_sentence(left), left.meta.key),
                None => "as the cluster says".to_owned(),
            }
        };
        let mut touches: Vec<Touch> =
            found.iter().map(|it| touch(service, it, &after(it))).collect();
        touches.extend(ours.iter().map(|it| taken_back(it)));
        Ok(Plan { summary, touches, warnings: Vec::new(), effect: gone(&ours) })
    }

    fn add(
        &self,
        summary: String,
        service: &Key,
        text: &str,
        added: AddedEndpoint,
    ) -> Result<Plan, Refusal> {
        let ip = address(text)?;
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
            return Err(Refusal::Bad(format!("{ip} is no address of a backend")));
        }
        if added.port == Some(0) {
            return Err(Refusal::Bad("0 is not a port".to_owned()));
        }
        let detail = self.service(service)?;
        let target = OverrideTarget::Address(ip);
        if detail.endpoint_items.iter().any(|it| is_meant(&target, it) && !it.removed) {
            return Err(Refusal::Conflict(format!("service {service} has {ip} already")));
        }
        let mut warnings = Vec::new();
        let named = detail.item.ports.iter().filter(|port| port.target.parse::<u16>().is_err());
        if added.port.is_none() && named.count() > 0 {
            warnings.push(
                "some ports of the service name their target instead of a number; give a port, or \
                 they are not served by it"
                    .to_owned(),
            );
        }
        let touches = vec![Touch {
            kind: "endpoint".to_owned(),
            object: format!("{service} {ip}"),
            before: "is not there".to_owned(),
            after: format!("serves with weight {}", added.weight.unwrap_or(1)),
        }];
        let step = self.make(service, "add", target, OverrideAction::Add(added));
        Ok(Plan { summary, touches, warnings, effect: Effect::Decide(vec![step]) })
    }

    fn pause(
        &self,
        summary: String,
        ingress: &Key,
        host: Option<&str>,
        path: Option<&str>,
        retry_after_s: Option<u32>,
    ) -> Result<Plan, Refusal> {
        let found: Vec<&RouteItem> = routes(self.network, ingress, host, path).collect();
        if found.is_empty() {
            return Err(Refusal::NotFound(format!(
                "no route comes from {}",
                routes_text(ingress, host, path)
            )));
        }
        let retry_after_s = retry_after_s.unwrap_or(RETRY_AFTER_S).max(1);
        let touches = found.iter().map(|route| Touch {
            kind: "route".to_owned(),
            object: route_text(route),
            before: route.action.clone(),
            after: "503 with a maintenance page".to_owned(),
        });
        let target =
            OverrideTarget::Routes { host: host.map(Into::into), path: path.map(Into::into) };
        let step = self.make(ingress, "pause", target, OverrideAction::Pause { retry_after_s });
        let touches = touches.collect();
        Ok(Plan { summary, touches, warnings: Vec::new(), effect: Effect::Decide(vec![step]) })
    }

    /// Takes back the pause of just this: of the Ingress as a whole, of a host, or of a path.
    fn resume(
        &self,
        summary: String,
        ingress: &Key,
        host: Option<&str>,
        path: Option<&str>,
    ) -> Result<Plan, Refusal> {
        let its: Vec<&Override> = self
            .overrides
            .iter()
            .map(|it| &**it)
            .filter(|it| it.ingress().is_some_and(|it| same(it, ingress)))
            .collect();
        let is_exact = |it: &&Override| match &it.target {
            OverrideTarget::Routes { host: its_host, path: its_path } => {
                its_host.as_deref().map(any_host) == host.map(any_host)
                    && its_path.as_deref() == path
            }
            _ => false,
        };
        let (exact, others): (Vec<&Override>, Vec<&Override>) = its.into_iter().partition(is_exact);
        let (ours, theirs): (Vec<&Override>, Vec<&Override>) =
            exact.into_iter().partition(|it| it.is_managed());
        if ours.is_empty() {
            return Err(match theirs.first() {
                Some(theirs) => not_ours(theirs),
                None => Refusal::NotFound(format!(
                    "{} is not paused by itself; {}",
                    routes_text(ingress, host, path),
                    named(others.into_iter())
                )),
            });
        }
        let left: Vec<&Override> = others.into_iter().chain(theirs).collect();
        let mut touches: Vec<Touch> = routes(self.network, ingress, host, path)
            .map(|route| Touch {
                kind: "route".to_owned(),
                object: route_text(route),
                before: route.action.clone(),
                after: match left.iter().find(|it| pauses(it, route)) {
                    Some(left) => format!("still: {} ({})", override_sentence(left), left.meta.key),
                    None => "as the Ingress says".to_owned(),
                },
            })
            .collect();
        touches.extend(ours.iter().map(|it| taken_back(it)));
        Ok(Plan { summary, touches, warnings: Vec::new(), effect: gone(&ours) })
    }

    fn take_back_named(&self, summary: String, name: &Key) -> Result<Plan, Refusal> {
        let all = self.overrides.iter().cloned().chain(self.agent.ended());
        let found = all.into_iter().find(|it| same(&it.meta.key, name));
        let Some(found) = found.as_deref() else {
            return Err(Refusal::NotFound(format!("there is no override {name}")));
        };
        if !found.is_managed() {
            return Err(not_ours(found));
        }
        let touches = vec![taken_back(found)];
        Ok(Plan { summary, touches, warnings: Vec::new(), effect: gone(&[found]) })
    }
}

/// The endpoints that a target names.
fn wanted(target: &Target) -> Result<OverrideTarget, Refusal> {
    Ok(match target {
        Target::Address(text) => OverrideTarget::Address(address(text)?),
        Target::Pod(pod) => OverrideTarget::Pod(pod.as_str().into()),
        Target::Node(node) => OverrideTarget::Node(node.as_str().into()),
    })
}

fn taken_back(decided: &Override) -> Touch {
    Touch {
        kind: "override".to_owned(),
        object: decided.meta.key.to_string(),
        before: override_sentence(decided),
        after: "taken back".to_owned(),
    }
}

/// What else was decided, for a refusal.
fn named<'a>(others: impl Iterator<Item = &'a Override>) -> String {
    let texts: Vec<String> = others
        .take(NAMED_MAX)
        .map(|it| format!("{} ({})", override_sentence(it), it.meta.key))
        .collect();
    if texts.is_empty() {
        return "telaio overrides list says what was".to_owned();
    }
    format!("what was: {}; take it back as it was decided, or by its name", texts.join(", "))
}

fn not_ours(theirs: &Override) -> Refusal {
    Refusal::Conflict(format!(
        "the override {} stands in a manifest of somebody's; take it back there",
        theirs.meta.key
    ))
}

fn gone(overrides: &[&Override]) -> Effect {
    let step = |it: &&Override| Step {
        key: it.meta.key.clone(),
        before: Some((*it).clone()),
        after: None,
    };
    Effect::Decide(overrides.iter().map(step).collect())
}

fn address(text: &str) -> Result<IpAddr, Refusal> {
    telaio_model::ip::parse_ip(text)
        .map_err(|_| Refusal::Bad(format!("{text:?} is not an IP address")))
}

fn touch(service: &Key, endpoint: &EndpointItem, after: &str) -> Touch {
    let name = match &endpoint.pod {
        Some(pod) => format!("{service} {} ({pod})", endpoint.address),
        None => format!("{service} {}", endpoint.address),
    };
    let before = match endpoint {
        it if it.removed => "removed".to_owned(),
        it if it.drained => "drained".to_owned(),
        it if it.ready => format!("ready, weight {}", it.weight),
        it if it.serving => "terminating, serving".to_owned(),
        _ => "not ready".to_owned(),
    };
    Touch { kind: "endpoint".to_owned(), object: name, before, after: after.to_owned() }
}

/// Plans to put back what an action changed, if nobody has changed it since.
pub(super) fn undo(agent: &dyn Agent, network: &Network, kept: &Kept) -> Result<Plan, Refusal> {
    let overrides = agent.overrides();
    let now_s = now_ms() / 1000;
    let mut steps = Vec::new();
    let mut touches = Vec::new();
    for step in &kept.steps {
        let current = overrides.iter().find(|it| it.meta.key == step.key);
        // One that has ended by itself is gone, whatever was written.
        let expected = step.after.as_ref().filter(|it| it.is_active(now_s));
        let as_left = match (current, expected) {
            (Some(current), Some(after)) => alike(current, after),
            (Some(current), None) => !current.is_active(now_s),
            (None, expected) => expected.is_none(),
        };
        if !as_left {
            return Err(Refusal::Conflict(format!(
                "the override {} was changed since; undo what came later first, or decide anew",
                step.key
            )));
        }
        let before = step.before.clone().filter(|it| it.is_active(now_s));
        if let Some(decided) = step.after.as_ref().or(step.before.as_ref()) {
            let count = touched(agent, network, decided);
            touches.push(Touch {
                kind: "override".to_owned(),
                object: format!("{} ({count} touched)", step.key),
                before: current.map_or_else(|| "none".to_owned(), |it| override_sentence(it)),
                after: before.as_ref().map_or_else(|| "taken back".to_owned(), override_sentence),
            });
        }
        let current = current.map(|it| Override::clone(it));
        steps.push(Step { key: step.key.clone(), before: current, after: before });
    }
    Ok(Plan {
        summary: format!("undo {}: {}", kept.entry.id, kept.entry.summary),
        touches,
        warnings: Vec::new(),
        effect: Effect::Decide(steps),
    })
}
