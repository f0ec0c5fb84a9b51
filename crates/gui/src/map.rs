//! The traffic map: from hosts over routes and services to endpoints and nodes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde::Deserialize;

use crate::agent::{Agent, Network, Refusal};
use crate::lists::{LIMIT_MAX, Listed as _};
use crate::values::ingress::RouteItem;
use crate::values::map::{Edge, TrafficMap, Vertex, VertexKind};
use crate::values::service::{EndpointItem, ServiceItem};
use crate::values::{Counters, Key, State};

/// How many services are drawn unless said otherwise.
const SERVICES: usize = 200;
/// So many routes are drawn one by one beside namespaces; more are drawn as one for each namespace.
const ROUTES_BESIDE_NAMESPACES: usize = 40;
/// Of so many services at a time the endpoints are asked for.
const ENDPOINTS_OF: usize = 100;
/// So many maps are kept as long as the lists that they are drawn from: those that pages look at.
const MAPS_MAX: usize = 16;
/// How many vertices there are at most.
const VERTICES_MAX: usize = 5000;

/// What a map can be asked with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MapQuery {
    q: Option<String>,
    namespace: Option<String>,
    collapse: Option<Collapse>,
    endpoints: Option<bool>,
    limit: Option<usize>,
}

/// Whether a namespace stands for its services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Collapse {
    /// Where there are more services than the limit.
    #[default]
    Auto,
    /// Always.
    Namespace,
    /// Never.
    None,
}

/// The maps of the lists of now: drawn once for all pages that ask alike.
#[derive(Debug, Default)]
pub(crate) struct Maps(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    of: Weak<Network>,
    maps: Vec<(MapQuery, Arc<TrafficMap>)>,
}

impl Maps {
    /// The map that was asked for.
    pub(crate) fn get(
        &self,
        query: &MapQuery,
        network: &Arc<Network>,
        agent: &dyn Agent,
    ) -> Result<Arc<TrafficMap>, Refusal> {
        // Held while it is drawn: who asks the same meanwhile gets that.
        let mut kept = self.0.lock();
        if !std::ptr::eq(kept.of.as_ptr(), Arc::as_ptr(network)) {
            *kept = Kept { of: Arc::downgrade(network), maps: Vec::new() };
        }
        if let Some((_, map)) = kept.maps.iter().find(|(asked, _)| asked == query) {
            return Ok(Arc::clone(map));
        }
        let map = Arc::new(draw(query, network, agent)?);
        if kept.maps.len() < MAPS_MAX {
            kept.maps.push((query.clone(), Arc::clone(&map)));
        }
        Ok(map)
    }
}

#[derive(Default)]
struct Drawing {
    vertices: BTreeMap<(VertexKind, String), Vertex>,
    edges: BTreeMap<(String, String), Edge>,
    /// How many endpoints a vertex stands for, and how many of them are ready.
    gathered: BTreeMap<String, (usize, usize)>,
    /// How many vertices there was no room for.
    left_out: usize,
    /// Of them those that others lead to as well, so that each counts once.
    left_out_shared: BTreeSet<String>,
}

impl Drawing {
    /// Draws a vertex, or adds to it; whether there is room for it.
    fn vertex(&mut self, vertex: Vertex) -> bool {
        self.vertices([vertex])
    }

    /// The same of several of which none makes sense without the others.
    fn vertices<const N: usize>(&mut self, all: [Vertex; N]) -> bool {
        let is_new = |it: &&Vertex| !self.vertices.contains_key(&(it.kind, it.id.clone()));
        let fresh = all.iter().filter(is_new).count();
        if fresh > 0 && self.vertices.len() + fresh > VERTICES_MAX {
            for vertex in &all {
                self.leave_out(vertex);
            }
            return false;
        }
        for vertex in all {
            match self.vertices.entry((vertex.kind, vertex.id.clone())) {
                Entry::Vacant(place) => drop(place.insert(vertex)),
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.rate = sum(known.rate, vertex.rate);
                    known.error_rate = sum(known.error_rate, vertex.error_rate);
                    known.state = known.state.max(vertex.state);
                    known.overridden |= vertex.overridden;
                }
            }
        }
        true
    }

    /// Counts a vertex that is not drawn.
    fn leave_out(&mut self, vertex: &Vertex) {
        if self.vertices.contains_key(&(vertex.kind, vertex.id.clone())) {
            return;
        }
        // Of these each comes once, and there may be very many.
        let comes_once = ["route:", "service:", "endpoint:"];
        let is_once = comes_once.iter().any(|kind| vertex.id.starts_with(kind));
        if is_once || self.left_out_shared.insert(vertex.id.clone()) {
            self.left_out += 1;
        }
    }

    fn edge(&mut self, from: &str, to: &str, counters: Option<&Counters>, closed: bool) {
        let (rate, error_rate) = rates(counters);
        let fresh = || Edge {
            from: from.to_owned(),
            to: to.to_owned(),
            rate: None,
            error_rate: None,
            closed: true,
        };
        let edge = self.edges.entry((from.to_owned(), to.to_owned())).or_insert_with(fresh);
        edge.rate = sum(edge.rate, rate);
        edge.error_rate = sum(edge.error_rate, error_rate);
        edge.closed &= closed;
    }
}

fn rates(counters: Option<&Counters>) -> (Option<f64>, Option<f64>) {
    (counters.map(|it| it.rate), counters.map(|it| it.error_rate))
}

fn sum(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}

fn service_id(key: &Key) -> String {
    format!("service:{key}")
}

/// Draws the map.
fn draw(query: &MapQuery, network: &Network, agent: &dyn Agent) -> Result<TrafficMap, Refusal> {
    let limit = query.limit.unwrap_or(SERVICES);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Refusal::Bad(format!("limit: write a number from 1 to {LIMIT_MAX}")));
    }
    let text = query.q.as_ref().map(|q| q.to_lowercase());
    // A service is found by its own name, and by the routes that lead to it.
    let by_route: BTreeSet<&Key> = network
        .routes
        .iter()
        .filter(|route| text.as_ref().is_some_and(|text| route.has(text)))
        .flat_map(|route| route.backends.iter().map(|backend| &backend.service))
        .collect();
    let mut found: Vec<&ServiceItem> = network
        .services
        .iter()
        .filter(|it| query.namespace.as_ref().is_none_or(|wanted| it.namespace == *wanted))
        .filter(|it| {
            text.as_ref().is_none_or(|text| {
                it.has(text) || by_route.contains(&Key::new(&*it.namespace, &*it.name))
            })
        })
        .collect();
    let services_total = found.len();
    let collapse = match query.collapse.unwrap_or_default() {
        Collapse::Auto => services_total > limit,
        Collapse::Namespace => true,
        Collapse::None => false,
    };
    if !collapse && services_total > limit {
        // Those with traffic, and those that are unwell, are worth more than quiet ones.
        let routed: BTreeSet<&Key> =
            network.routes.iter().flat_map(|it| &it.backends).map(|it| &it.service).collect();
        let rate = |it: &ServiceItem| it.counters.map_or(0.0, |counters| counters.rate);
        found.sort_by(|one, other| {
            let is_routed =
                |it: &ServiceItem| routed.contains(&Key::new(&*it.namespace, &*it.name));
            rate(other)
                .total_cmp(&rate(one))
                .then(other.state.cmp(&one.state))
                .then(is_routed(other).cmp(&is_routed(one)))
        });
        found.truncate(limit);
    }
    let mut drawing = Drawing::default();
    let mut shown = 0;
    let mut places: BTreeMap<Key, String> = BTreeMap::new();
    for service in &found {
        let key = Key::new(&*service.namespace, &*service.name);
        let vertex = if collapse { namespace(service) } else { one_service(service, &key) };
        let id = vertex.id.clone();
        if drawing.vertex(vertex) {
            shown += 1;
            places.insert(key, id);
        }
    }
    if collapse {
        note_counts(&mut drawing, &found);
    }
    let routes = routes_of(network, query.namespace.as_deref(), text.as_deref(), &places);
    if collapse && network.routes.len() > ROUTES_BESIDE_NAMESPACES {
        gather_routes(&mut drawing, &routes, &places);
    } else {
        draw_routes(&mut drawing, &routes, &places);
    }
    if query.endpoints.unwrap_or(true) {
        let places: Vec<(&Key, &String)> = places.iter().collect();
        for some in places.chunks(ENDPOINTS_OF) {
            let keys: Vec<&Key> = some.iter().map(|(key, _)| *key).collect();
            for ((key, id), items) in some.iter().zip(agent.endpoints(&keys)) {
                if collapse {
                    gather_endpoints(&mut drawing, &key.namespace, &items, id);
                } else {
                    draw_endpoints(&mut drawing, &items, key, id);
                }
            }
        }
        label_gathered(&mut drawing);
    }
    Ok(TrafficMap {
        at_ms: network.at_ms,
        vertices: drawing.vertices.into_values().collect(),
        edges: drawing.edges.into_values().collect(),
        services_total,
        services_shown: shown,
        vertices_left_out: drawing.left_out,
        stale: network.routes_stale.clone(),
    })
}

fn one_service(service: &ServiceItem, key: &Key) -> Vertex {
    let (rate, error_rate) = rates(service.counters.as_ref());
    Vertex {
        id: service_id(key),
        kind: VertexKind::Service,
        label: service.name.clone(),
        namespace: Some(service.namespace.clone()),
        state: service.state,
        note: format!("{}/{} ready", service.endpoints.ready, service.endpoints.total),
        overridden: service.overridden,
        rate,
        error_rate,
    }
}

fn namespace(service: &ServiceItem) -> Vertex {
    let (rate, error_rate) = rates(service.counters.as_ref());
    Vertex {
        id: format!("namespace:{}", service.namespace),
        kind: VertexKind::Namespace,
        label: service.namespace.clone(),
        namespace: Some(service.namespace.clone()),
        state: service.state,
        note: String::new(),
        overridden: service.overridden,
        rate,
        error_rate,
    }
}

fn note_counts(drawing: &mut Drawing, services: &[&ServiceItem]) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for service in services {
        *counts.entry(&service.namespace).or_default() += 1;
    }
    for vertex in drawing.vertices.values_mut() {
        let count = vertex.namespace.as_deref().and_then(|it| counts.get(it)).copied();
        vertex.note = self::count(count.unwrap_or(0), "service");
    }
}

/// The routes that are drawn: those that lead to a service that is, and those that lead to none that
/// there is, redirects among them, where they are asked for themselves.
fn routes_of<'a>(
    network: &'a Network,
    namespace: Option<&str>,
    text: Option<&str>,
    places: &BTreeMap<Key, String>,
) -> Vec<&'a RouteItem> {
    let known: BTreeSet<(&str, &str)> =
        network.services.iter().map(|it| (&*it.namespace, &*it.name)).collect();
    let is_drawn = |route: &&RouteItem| {
        let to = || route.backends.iter().map(|backend| &backend.service);
        to().any(|key| places.contains_key(key))
            || !to().any(|key| known.contains(&(&*key.namespace, &*key.name)))
                && namespace.is_none_or(|it| route.ingress.namespace == it)
                && text.is_none_or(|text| route.has(text))
    };
    network.routes.iter().filter(is_drawn).collect()
}

fn draw_routes(drawing: &mut Drawing, routes: &[&RouteItem], places: &BTreeMap<Key, String>) {
    for route in routes {
        let (rate, error_rate) = rates(route.counters.as_ref());
        let label = if route.host.is_empty() { "every host" } else { &route.host };
        let (host_id, route_id) = (format!("host:{}", route.host), format!("route:{}", route.id));
        let host = Vertex {
            id: host_id.clone(),
            kind: VertexKind::Host,
            label: label.to_owned(),
            namespace: None,
            state: route.state,
            note: String::new(),
            overridden: route.paused.is_some(),
            rate,
            error_rate,
        };
        let vertex = Vertex {
            id: route_id.clone(),
            kind: VertexKind::Route,
            label: route.path.clone(),
            namespace: Some(route.ingress.namespace.clone()),
            state: route.state,
            note: if route.paused.is_some() { "paused".to_owned() } else { route.action.clone() },
            overridden: route.paused.is_some(),
            rate,
            error_rate,
        };
        if !drawing.vertices([host, vertex]) {
            continue;
        }
        drawing.edge(&host_id, &route_id, route.counters.as_ref(), false);
        let one = route.backends.len() == 1;
        for backend in &route.backends {
            if let Some(id) = places.get(&backend.service) {
                // Of several backends nobody counts which got how much.
                let counters = route.counters.as_ref().filter(|_| one);
                let closed = route.paused.is_some() || backend.weight == 0;
                drawing.edge(&route_id, id, counters, closed);
            }
        }
    }
}

/// A vertex for each namespace that stands for the hosts of its routes, and one for the routes.
fn gather_routes(drawing: &mut Drawing, routes: &[&RouteItem], places: &BTreeMap<Key, String>) {
    let mut hosts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for route in routes {
        let leads: BTreeSet<&String> =
            route.backends.iter().filter_map(|backend| places.get(&backend.service)).collect();
        let namespace = route.ingress.namespace.as_str();
        hosts.entry(namespace).or_default().insert(&route.host);
        *counts.entry(namespace).or_default() += 1;
        let (rate, error_rate) = rates(route.counters.as_ref());
        let [host_id, route_id] = ["hosts", "routes"].map(|kind| format!("{kind}:{namespace}"));
        let vertex = |id: &String, kind| Vertex {
            id: id.clone(),
            kind,
            label: String::new(),
            namespace: Some(namespace.to_owned()),
            state: route.state,
            note: String::new(),
            overridden: route.paused.is_some(),
            rate,
            error_rate,
        };
        let both = [vertex(&host_id, VertexKind::Host), vertex(&route_id, VertexKind::Route)];
        if !drawing.vertices(both) {
            continue;
        }
        drawing.edge(&host_id, &route_id, route.counters.as_ref(), false);
        let one = leads.len() == 1;
        for id in leads {
            let counters = route.counters.as_ref().filter(|_| one);
            drawing.edge(&route_id, id, counters, route.paused.is_some());
        }
    }
    for vertex in drawing.vertices.values_mut() {
        let namespace = vertex.namespace.as_deref().unwrap_or_default();
        match vertex.kind {
            VertexKind::Host => vertex.label = count(hosts[namespace].len(), "host"),
            VertexKind::Route => vertex.label = count(counts[namespace], "route"),
            _ => {}
        }
    }
}

/// One vertex for all endpoints of a namespace, and how they are spread over the nodes.
fn gather_endpoints(
    drawing: &mut Drawing,
    namespace: &str,
    items: &[EndpointItem],
    namespace_id: &str,
) {
    let id = format!("endpoints:{namespace}");
    for endpoint in items.iter().filter(|it| !it.removed) {
        let (rate, error_rate) = rates(endpoint.counters.as_ref());
        let vertex = Vertex {
            id: id.clone(),
            kind: VertexKind::Endpoint,
            label: String::new(),
            namespace: Some(namespace.to_owned()),
            state: if endpoint.ready { State::Ok } else { State::Warning },
            note: String::new(),
            overridden: !endpoint.overrides.is_empty(),
            rate,
            error_rate,
        };
        if !drawing.vertex(vertex) {
            // A node that nothing leads to says nothing.
            if let Some(node) = &endpoint.node {
                drawing.leave_out(&node_vertex(node, rate, error_rate));
            }
            continue;
        }
        let gathered = drawing.gathered.entry(id.clone()).or_default();
        gathered.0 += 1;
        gathered.1 += usize::from(endpoint.ready && !endpoint.drained);
        let closed = endpoint.drained || !endpoint.ready;
        drawing.edge(namespace_id, &id, endpoint.counters.as_ref(), closed);
        let Some(node) = &endpoint.node else { continue };
        let node_id = format!("node:{node}");
        if drawing.vertex(node_vertex(node, rate, error_rate)) {
            drawing.gathered.entry(node_id.clone()).or_default().0 += 1;
            drawing.edge(&id, &node_id, endpoint.counters.as_ref(), closed);
        }
    }
}

/// Writes on gathered vertices how many they stand for.
fn label_gathered(drawing: &mut Drawing) {
    for vertex in drawing.vertices.values_mut() {
        let Some((all, ready)) = drawing.gathered.get(&vertex.id) else { continue };
        if vertex.kind == VertexKind::Node {
            vertex.note = count(*all, "endpoint");
        } else {
            vertex.label = count(*all, "endpoint");
            vertex.note = if ready == all { String::new() } else { format!("{ready} ready") };
        }
    }
}

fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn node_vertex(node: &str, rate: Option<f64>, error_rate: Option<f64>) -> Vertex {
    Vertex {
        id: format!("node:{node}"),
        kind: VertexKind::Node,
        label: node.to_owned(),
        namespace: None,
        state: State::Ok,
        note: String::new(),
        overridden: false,
        rate,
        error_rate,
    }
}

fn draw_endpoints(drawing: &mut Drawing, items: &[EndpointItem], key: &Key, service_id: &str) {
    for endpoint in items {
        let id = format!("endpoint:{key}/{}", endpoint.address);
        let (state, note) = match endpoint {
            it if it.removed => (State::Idle, "removed"),
            it if it.drained => (State::Idle, "drained"),
            it if it.terminating => (State::Warning, "terminating"),
            it if !it.ready => (State::Error, "not ready"),
            it if it.added => (State::Ok, "added by hand"),
            _ => (State::Ok, ""),
        };
        let (rate, error_rate) = rates(endpoint.counters.as_ref());
        let vertex = Vertex {
            id: id.clone(),
            kind: VertexKind::Endpoint,
            label: endpoint.pod.clone().unwrap_or_else(|| endpoint.address.clone()),
            namespace: Some(key.namespace.clone()),
            state,
            note: note.to_owned(),
            overridden: !endpoint.overrides.is_empty(),
            rate,
            error_rate,
        };
        if !drawing.vertex(vertex) {
            // A node that nothing leads to says nothing.
            if let Some(node) = &endpoint.node {
                drawing.leave_out(&node_vertex(node, rate, error_rate));
            }
            continue;
        }
        let closed = endpoint.removed || endpoint.drained || !endpoint.ready;
        drawing.edge(service_id, &id, endpoint.counters.as_ref(), closed);
        let Some(node) = &endpoint.node else { continue };
        let node_id = format!("node:{node}");
        if drawing.vertex(node_vertex(node, rate, error_rate)) {
            drawing.edge(&id, &node_id, endpoint.counters.as_ref(), closed);
        }
    }
}
