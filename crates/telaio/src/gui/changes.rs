//! What changed of an object, in a line for people. Names are told, values of secrets never.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use telaio_brain::ServiceState;
use telaio_brain::store::ObjectDelta;
use telaio_gui::values::action::OverrideItem;
use telaio_model::{
    Conditions, Ingress, Labels, LocalEndpoint, Meta, Node, Object, ObjectRef, Override,
    ServiceEndpoints, TlsSecret,
};

/// How many names are told of each sort.
const NAMES_MAX: usize = 3;

/// What is told: of which kind, whether it came, went or changed, and a line.
pub(super) struct Told {
    pub(super) kind: String,
    pub(super) change: &'static str,
    pub(super) summary: String,
}

impl Told {
    /// Of the source as a whole.
    pub(super) fn source(change: &'static str, summary: impl Into<String>) -> Self {
        Self::new("source", change, summary)
    }

    pub(super) fn new(kind: &str, change: &'static str, summary: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), change, summary: summary.into() }
    }
}

/// `no endpoints`, `1 endpoint`, `2 endpoints`.
fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// The first of some names.
fn some<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> =
        names.by_ref().take(NAMES_MAX).map(|it| it.as_ref().to_owned()).collect();
    let more = if names.next().is_some() { ", …" } else { "" };
    format!("{}{more}", first.join(", "))
}

/// What is in one set and not in the other, both ways: `host came: a; host went: b`.
fn came_and_went(what: &str, was: &BTreeSet<String>, is: &BTreeSet<String>, out: &mut Vec<String>) {
    for (word, more, less) in [("came", is, was), ("went", was, is)] {
        let names: Vec<&String> = more.difference(less).collect();
        if !names.is_empty() {
            out.push(format!("{what} {word}: {}", some(names)));
        }
    }
}

/// The names of labels or annotations that are not as they were.
fn differing(was: &Labels, is: &Labels) -> Vec<String> {
    let names: BTreeSet<&Arc<str>> = was.iter().chain(is.iter()).map(|(name, _)| name).collect();
    let differs = |name: &&&Arc<str>| was.get(name) != is.get(name);
    names.iter().filter(differs).map(ToString::to_string).collect()
}

fn meta_change(was: &Meta, is: &Meta, out: &mut Vec<String>) {
    for (what, was, is) in
        [("labels", &was.labels, &is.labels), ("annotations", &was.annotations, &is.annotations)]
    {
        let names = differing(was, is);
        if !names.is_empty() {
            out.push(format!("{what}: {}", some(names)));
        }
    }
}

/// What a change of an object that is no service is.
pub(super) fn object_change(delta: &ObjectDelta) -> Told {
    let kind = delta.object_ref.kind;
    match (&delta.before, &delta.after) {
        (before, Some(Object::TlsSecret(after))) => {
            let before = match before {
                Some(Object::TlsSecret(before)) => Some(&**before),
                _ => None,
            };
            certificate_change(before, after)
        }
        (Some(Object::TlsSecret(_)), None) => {
            Told::new("certificate", "removed", "the certificate's Secret is gone")
        }
        (None, Some(after)) => Told::new(&kind.to_string(), "added", what_came(after)),
        (Some(before), None) => Told::new(&kind.to_string(), "removed", what_went(before)),
        (Some(before), Some(after)) => {
            let mut what = Vec::new();
            match (before, after) {
                (Object::Ingress(was), Object::Ingress(is)) => ingress_change(was, is, &mut what),
                (Object::Node(was), Object::Node(is)) => node_change(was, is, &mut what),
                (Object::Override(was), Object::Override(is)) => {
                    what.push(format!("{} → {}", summary_of(was), summary_of(is)));
                }
                _ => fields_change(before, after, &mut what),
            }
            if what.is_empty() {
                what.push("nothing that counts here".to_owned());
            }
            Told::new(&kind.to_string(), "changed", format!("changed: {}", what.join("; ")))
        }
        (None, None) => Told::new(&kind.to_string(), "changed", "it came and went"),
    }
}

fn summary_of(decided: &Override) -> String {
    OverrideItem::of(decided, 0).summary
}

fn what_came(object: &Object) -> String {
    match object {
        Object::Ingress(ingress) => {
            let hosts = hosts(ingress);
            let paths = counted(places(ingress).len(), "path");
            let hosts = if hosts.is_empty() { "every host".to_owned() } else { some(hosts) };
            format!("an Ingress with {paths}, for {hosts}")
        }
        Object::Override(decided) => summary_of(decided),
        Object::Node(node) => {
            let ranges = node.pod_cidrs.iter().map(ToString::to_string);
            format!("a node at {}, pods in {}", some(addresses(node)), some(ranges))
        }
        other => format!("a new {}", other.kind()),
    }
}

fn what_went(object: &Object) -> String {
    match object {
        Object::Ingress(ingress) => format!("the Ingress of {} is gone", some(hosts(ingress))),
        Object::Override(decided) => format!("no longer: {}", summary_of(decided)),
        other => format!("the {} is gone", other.kind()),
    }
}

fn hosts(ingress: &Ingress) -> BTreeSet<String> {
    ingress.rules.iter().filter_map(|rule| rule.host.as_deref()).map(str::to_owned).collect()
}

fn addresses(node: &Node) -> BTreeSet<String> {
    node.addresses.iter().map(|it| it.ip.to_string()).collect()
}

/// Where requests are taken, and to whom they go: `a.example/ → web`.
fn places(ingress: &Ingress) -> BTreeSet<String> {
    let of_rule = |rule: &telaio_model::IngressRule| {
        let host = rule.host.as_deref().unwrap_or("*").to_owned();
        let paths = rule.paths.iter();
        let each = paths.map(move |it| format!("{host}{} → {}", it.path, it.backend.service));
        each.collect::<Vec<_>>()
    };
    ingress.rules.iter().flat_map(of_rule).collect()
}

fn ingress_change(was: &Ingress, is: &Ingress, out: &mut Vec<String>) {
    came_and_went("host", &hosts(was), &hosts(is), out);
    came_and_went("path", &places(was), &places(is), out);
    if was.rules != is.rules && out.is_empty() {
        out.push("ports or kinds of its paths".to_owned());
    }
    for (name, differs) in [
        ("default backend", was.default_backend != is.default_backend),
        ("TLS", was.tls != is.tls),
        ("class", was.class != is.class),
        ("status", was.status_ips != is.status_ips || was.status_hostnames != is.status_hostnames),
    ] {
        if differs {
            out.push(name.to_owned());
        }
    }
    meta_change(&was.meta, &is.meta, out);
}

fn node_change(was: &Node, is: &Node, out: &mut Vec<String>) {
    if was.is_leaving() != is.is_leaving() {
        out.push(if is.is_leaving() { "it is about to go" } else { "it stays" }.to_owned());
    }
    came_and_went("address", &addresses(was), &addresses(is), out);
    let ranges = |node: &Node| node.pod_cidrs.iter().map(ToString::to_string).collect();
    came_and_went("pod network", &ranges(was), &ranges(is), out);
    let taints = |node: &Node| node.taints.iter().map(|it| it.key.to_string()).collect();
    came_and_went("taint", &taints(was), &taints(is), out);
    meta_change(&was.meta, &is.meta, out);
}

fn certificate_change(was: Option<&TlsSecret>, is: &TlsSecret) -> Told {
    let names = telaio_gateway::certificates::names(&is.certificate);
    let end = telaio_gateway::certificates::not_after_s(&is.certificate);
    let text = certificate_text(&names, end);
    match was {
        None => Told::new("certificate", "added", format!("a certificate {text}")),
        Some(was) if was.certificate != is.certificate => {
            Told::new("certificate", "changed", format!("another certificate {text}"))
        }
        Some(was) if was.private_key != is.private_key => Told::new(
            "certificate",
            "changed",
            format!("the same certificate with another key {text}"),
        ),
        Some(was) => {
            let mut what = Vec::new();
            if was.authority != is.authority {
                what.push("authority".to_owned());
            }
            meta_change(&was.meta, &is.meta, &mut what);
            Told::new("certificate", "changed", format!("changed: {}", what.join("; ")))
        }
    }
}

/// For whom a certificate is, and until when.
pub(super) fn certificate_text<T: AsRef<str>>(names: &[T], end_s: Option<i64>) -> String {
    let names = if names.is_empty() { "nobody".to_owned() } else { some(names) };
    let end = end_s.and_then(|end| Timestamp::from_second(end).ok());
    match end {
        Some(end) => format!("for {names}, until {end}"),
        None => format!("for {names}; it cannot be read"),
    }
}

/// The names of fields that differ, of whatever it is.
fn fields_change(was: &Object, is: &Object, out: &mut Vec<String>) {
    let content = |object: &Object| match serde_json::to_value(object) {
        // The kind is around its value.
        Ok(serde_json::Value::Object(map)) => map.into_iter().next().map(|(_, value)| value),
        _ => None,
    };
    let (Some(was), Some(is)) = (content(was), content(is)) else { return };
    let empty = serde_json::Map::new();
    let (was, is) = (was.as_object().unwrap_or(&empty), is.as_object().unwrap_or(&empty));
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    for name in names.into_iter().filter(|name| was.get(*name) != is.get(*name)) {
        let keys = |of: &serde_json::Map<String, serde_json::Value>| match of.get(name) {
            Some(serde_json::Value::Object(map)) => Some(map.clone()),
            _ => None,
        };
        // Of a map, such as a ConfigMap's data, the entries.
        match (keys(was), keys(is)) {
            (Some(was), Some(is)) => {
                let all: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
                let differ = all.into_iter().filter(|key| was.get(*key) != is.get(*key));
                out.push(format!("{name}: {}", some(differ)));
            }
            _ => out.push(name.clone()),
        }
    }
}

/// What a change of a service or its endpoints is.
pub(super) fn service_change(before: Option<&ServiceState>, after: Option<&ServiceState>) -> Told {
    let service = |it: Option<&ServiceState>| it.and_then(|it| it.service.clone());
    let (old, new) = (service(before), service(after));
    let count = |it: Option<&ServiceState>| {
        it.map_or(0, |it| it.slices.iter().map(|slice| slice.endpoints.len()).sum::<usize>())
    };
    match (&old, &new) {
        (None, Some(_)) => {
            let endpoints = counted(count(after), "endpoint");
            Told::new("Service", "added", format!("a service with {endpoints}"))
        }
        (Some(_), None) => Told::new("Service", "removed", "the service is gone"),
        (Some(old), Some(new)) if old != new => changed(&[
            ("ports", old.ports != new.ports),
            ("cluster addresses", old.cluster_ips != new.cluster_ips),
            ("external addresses", old.external_ips != new.external_ips),
            ("load balancer", old.load_balancer != new.load_balancer),
            ("type", old.service_type != new.service_type),
            ("session affinity", old.session_affinity != new.session_affinity),
            ("external policy", old.external_traffic_policy != new.external_traffic_policy),
            ("internal policy", old.internal_traffic_policy != new.internal_traffic_policy),
            ("source ranges", old.source_ranges != new.source_ranges),
            ("labels or annotations", old.meta != new.meta),
        ]),
        _ => endpoints_of_states(before, after),
    }
}

fn changed(fields: &[(&str, bool)]) -> Told {
    let what: Vec<&str> =
        fields.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
    let what = if what.is_empty() { "something".to_owned() } else { what.join(", ") };
    Told::new("Service", "changed", format!("changed: {what}"))
}

fn endpoints_of_states(before: Option<&ServiceState>, after: Option<&ServiceState>) -> Told {
    let (was, is) = (decided(before), decided(after));
    if was != is {
        return Told::new("Endpoints", "changed", decisions_change(was, is));
    }
    let all = |it: Option<&ServiceState>| {
        let all = it.into_iter().flat_map(|it| &it.slices).flat_map(|slice| &slice.endpoints);
        all.map(|it| {
            let name = it.pod.as_deref().map_or_else(|| it.address.to_string(), str::to_owned);
            (name, it.conditions)
        })
        .collect()
    };
    endpoints_change(all(before), all(after))
}

fn decided(state: Option<&ServiceState>) -> &[Arc<Override>] {
    match state {
        Some(state) => &state.overrides,
        None => &[],
    }
}

/// What people decided about a service's endpoints, and what they took back.
fn decisions_change(was: &[Arc<Override>], is: &[Arc<Override>]) -> String {
    let of = |all: &[Arc<Override>], others: &[Arc<Override>]| -> Vec<String> {
        all.iter().filter(|it| !others.contains(it)).map(|it| summary_of(it)).collect()
    };
    let (came, went) = (of(is, was), of(was, is));
    // One that says the same as before differs in who decided, why, or until when.
    let again: Vec<&String> = came.iter().filter(|it| went.contains(it)).collect();
    let mut text = Vec::new();
    for (what, all, same) in [("decided", &came, &went), ("no longer", &went, &came)] {
        let only: Vec<&String> = all.iter().filter(|it| !same.contains(it)).collect();
        if !only.is_empty() {
            text.push(format!("{what}: {}", some(only)));
        }
    }
    if !again.is_empty() {
        text.push(format!("decided anew: {}", some(again)));
    }
    text.join("; ")
}

fn endpoints_change(was: Vec<(String, Conditions)>, is: Vec<(String, Conditions)>) -> Told {
    let ready = |of: &[(String, Conditions)]| -> BTreeSet<String> {
        of.iter().filter(|(_, it)| it.ready).map(|(name, _)| name.clone()).collect()
    };
    let (ready_was, ready_is) = (ready(&was), ready(&is));
    let names = |of: Vec<(String, Conditions)>| -> BTreeSet<String> {
        of.into_iter().map(|(name, _)| name).collect()
    };
    let (was, is) = (names(was), names(is));
    let names = |sign: &str, all: Vec<&String>| {
        if all.is_empty() { String::new() } else { format!("{sign} {}; ", some(all)) }
    };
    let text = names("came", is.difference(&was).collect())
        + &names("went", was.difference(&is).collect())
        + &names("ready", ready_is.difference(&ready_was).filter(|it| was.contains(*it)).collect())
        + &names(
            "not ready",
            ready_was.difference(&ready_is).filter(|it| is.contains(*it)).collect(),
        );
    let text = format!("{text}{} of {} ready", ready_is.len(), is.len());
    let change = match (was.is_empty(), is.is_empty()) {
        (true, false) => "added",
        (false, true) => "removed",
        _ => "changed",
    };
    Told::new("Endpoints", change, text)
}

/// The same of a service as a brain makes it for this node.
pub(super) fn view_change(
    before: Option<&ServiceEndpoints>,
    after: Option<&ServiceEndpoints>,
) -> Told {
    match (before, after) {
        (None, Some(after)) => {
            let endpoints = counted(after.endpoints.len(), "endpoint");
            Told::new("Service", "added", format!("a service with {endpoints}"))
        }
        (Some(_), None) => Told::new("Service", "removed", "the service is gone"),
        (Some(was), Some(is)) if was.service != is.service => {
            let (old, new) = (&was.service, &is.service);
            changed(&[
                ("ports", old.ports != new.ports),
                ("cluster addresses", old.cluster_ips != new.cluster_ips),
                ("external addresses", old.external_ips != new.external_ips),
                ("load balancer", old.load_balancer_ips != new.load_balancer_ips),
                ("type", old.service_type != new.service_type),
                ("session affinity", old.session_affinity != new.session_affinity),
                ("source ranges", old.source_ranges != new.source_ranges),
                ("external policy", old.external_traffic_to_local != new.external_traffic_to_local),
                ("internal policy", old.internal_traffic_to_local != new.internal_traffic_to_local),
                (
                    "labels or annotations",
                    old.labels != new.labels || old.annotations != new.annotations,
                ),
            ])
        }
        (was, is) => endpoints_of_views(was, is),
    }
}

fn endpoints_of_views(was: Option<&ServiceEndpoints>, is: Option<&ServiceEndpoints>) -> Told {
    let all = |it: Option<&ServiceEndpoints>| -> Vec<Arc<LocalEndpoint>> {
        it.map(|it| it.endpoints.to_vec()).unwrap_or_default()
    };
    let (was, is) = (all(was), all(is));
    let names = |of: &[Arc<LocalEndpoint>]| -> Vec<(String, Conditions)> {
        of.iter().map(|it| (name_of(it), it.conditions)).collect()
    };
    let told = endpoints_change(names(&was), names(&is));
    let same = |one: &LocalEndpoint| {
        is.iter().find(|other| other.key == one.key).is_none_or(|other| {
            (one.weight, one.scopes().any()) == (other.weight, other.scopes().any())
        })
    };
    let shifted: Vec<String> = was.iter().filter(|it| !same(it)).map(|it| name_of(it)).collect();
    if shifted.is_empty() {
        return told;
    }
    let summary = format!("other traffic or weight: {}; {}", some(shifted), told.summary);
    Told { summary, ..told }
}

/// What people know an endpoint by.
fn name_of(endpoint: &LocalEndpoint) -> String {
    match (&endpoint.pod, endpoint.ips.first()) {
        (Some(pod), _) => pod.to_string(),
        (None, Some(ip)) => ip.to_string(),
        (None, None) => endpoint.key.id.to_string(),
    }
}

/// What an object of a view that a brain makes is now.
pub(super) fn object_of_view(
    object_ref: ObjectRef,
    before: Option<Object>,
    after: Option<Object>,
) -> Told {
    object_change(&ObjectDelta { object_ref, before, after })
}

#[cfg(test)]
mod tests;
