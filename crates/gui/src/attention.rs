//! What somebody should look at in the lists: services that nobody serves, routes that answer with
//! errors only, who answers with 5xx now, certificates that end, tunnels that are not as they should be.

use std::collections::{BTreeMap, BTreeSet};

use crate::agent::{Agent, Network};
use crate::values::ingress::RouteItem;
use crate::values::overview::{Attention, Overview};
use crate::values::service::ServiceItem;
use crate::values::{Counters, Key, Stale, State};

/// How many things to look at are told.
const ATTENTION_MAX: usize = 100;
/// From this share of requests on that end with 5xx somebody should look.
const ERRORS_NOTED: f64 = 0.01;
/// From this share on it does not work.
const ERRORS_BROKEN: f64 = 0.1;
/// Of so many services with errors the endpoints are looked at, and of so many endpoints of each it is told.
const SERVICES_ENTERED: usize = 50;
const ENDPOINTS_TOLD: usize = 5;

/// Adds what to look at in the lists, worst first.
pub(crate) fn attend(overview: &mut Overview, network: &Network, agent: &dyn Agent) {
    let all = &mut overview.attention;
    for it in network.services.iter().filter(|it| it.state >= State::Warning) {
        all.push(of(it.state, "service", Some(key_of(it)), it.state_text.clone()));
    }
    routes(network, all);
    services(network, agent, all);
    for it in network.certificates.iter().filter(|it| it.state >= State::Warning) {
        let (namespace, name) = it.id.split_once('/').unwrap_or(("", &it.id));
        let object = Some(Key::new(namespace, name));
        all.push(of(it.state, "certificate", object, it.state_text.clone()));
    }
    if let Some(Stale { since_ms: Some(_), reason }) = &network.routes_stale {
        let message = format!("routes and certificates are shown as they were: {reason}");
        all.push(of(State::Warning, "ingress", None, message));
    }
    for peer in network.peers.iter().filter(|it| it.state >= State::Warning) {
        let object = Some(Key::new("", &*peer.node));
        all.push(of(peer.state, "pods", object, peer.state_text.clone()));
    }
    if let Some(tunnel) = network.pods.tunnel.as_ref().filter(|it| it.state >= State::Warning) {
        all.push(of(tunnel.state, "pods", None, tunnel.state_text.clone()));
    }
    for problem in &network.pods.problems {
        all.push(of(State::Warning, "pods", None, problem.clone()));
    }
    all.sort_by_key(|it| std::cmp::Reverse(it.state));
    all.truncate(ATTENTION_MAX);
}

fn of(state: State, kind: &str, object: Option<Key>, message: String) -> Attention {
    Attention { state, kind: kind.to_owned(), object, route: None, endpoint: None, message }
}

fn key_of(service: &ServiceItem) -> Key {
    Key::new(&*service.namespace, &*service.name)
}

/// Routes that cannot work, those with 5xx, and what their Ingresses warn of.
fn routes(network: &Network, all: &mut Vec<Attention>) {
    let about = |route: &RouteItem, state, message: String| Attention {
        route: Some(route.id.clone()),
        ..of(state, "route", Some(route.ingress.clone()), message)
    };
    // What is wrong with one route of an Ingress is often wrong with all: that is one thing.
    let mut broken: BTreeMap<(&Key, &str), (&RouteItem, usize)> = BTreeMap::new();
    for route in network.routes.iter().filter(|it| it.state == State::Error) {
        broken.entry((&route.ingress, &route.action_text)).or_insert((route, 0)).1 += 1;
    }
    for ((_, text), (route, count)) in broken {
        let text = if text.is_empty() { "it does not work" } else { text };
        let more = match count {
            1 => String::new(),
            2 => "; so does one more route of this Ingress".to_owned(),
            count => format!("; so do {} more routes of this Ingress", count - 1),
        };
        all.push(about(route, State::Error, format!("{} answers {text}{more}", place(route))));
    }
    for route in &network.routes {
        if let Some((state, text)) = failing(route.counters.as_ref()) {
            all.push(about(route, state, format!("{}: {text}", place(route))));
        }
    }
    let mut told = BTreeSet::new();
    for it in &network.routes {
        for warning in &it.warnings {
            if told.insert((&it.ingress, &warning.message)) {
                let object = Some(it.ingress.clone());
                all.push(of(State::Warning, "route", object, warning.message.clone()));
            }
        }
    }
}

fn place(route: &RouteItem) -> String {
    format!("{}{}", if route.host.is_empty() { "*" } else { &route.host }, route.path)
}

/// Services with 5xx, and which of their endpoints answer so.
fn services(network: &Network, agent: &dyn Agent, all: &mut Vec<Attention>) {
    for service in &network.services {
        if let Some((state, text)) = failing(service.counters.as_ref()) {
            all.push(of(state, "service", Some(key_of(service)), text));
        }
    }
    // One endpoint of many may fail while its service hardly does.
    let errors = |it: &ServiceItem| it.counters.map_or(0.0, |counters| counters.error_rate);
    let mut with: Vec<&ServiceItem> =
        network.services.iter().filter(|it| errors(it) > 0.0).collect();
    with.sort_by(|one, other| errors(other).total_cmp(&errors(one)));
    with.truncate(SERVICES_ENTERED);
    let keys: Vec<Key> = with.into_iter().map(key_of).collect();
    let asked: Vec<&Key> = keys.iter().collect();
    for (key, endpoints) in keys.iter().zip(agent.endpoints(&asked)) {
        let mut bad: Vec<(f64, Attention)> = Vec::new();
        for endpoint in &endpoints {
            let Some((state, text)) = failing(endpoint.counters.as_ref()) else { continue };
            let name = endpoint.pod.as_ref().map(|pod| format!(" ({pod})")).unwrap_or_default();
            let told = Attention {
                endpoint: Some(endpoint.address.clone()),
                ..of(
                    state,
                    "endpoint",
                    Some(key.clone()),
                    format!("{}{name}: {text}", endpoint.address),
                )
            };
            bad.push((endpoint.counters.map_or(0.0, |it| it.error_rate), told));
        }
        bad.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        all.extend(bad.into_iter().take(ENDPOINTS_TOLD).map(|(_, told)| told));
    }
}

/// Whether too many requests end with 5xx now, and how many.
fn failing(counters: Option<&Counters>) -> Option<(State, String)> {
    let it = counters.filter(|it| it.rate > 0.0 && it.error_rate > 0.0)?;
    let share = (it.error_rate / it.rate).min(1.0);
    if share < ERRORS_NOTED {
        return None;
    }
    let state = if share >= ERRORS_BROKEN { State::Error } else { State::Warning };
    let (errors, rate) = (it.error_rate, it.rate);
    Some((
        state,
        format!(
            "{:.0} % of requests end with 5xx ({errors:.1} of {rate:.1} a second)",
            share * 100.0
        ),
    ))
}
