//! Manifests go in as text and through everything up to the table, which is mirrored here.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use telaio_brain::{LocalWatch, Store, Wants};
use telaio_gateway::class::ClassSettings;
use telaio_gateway::{Commit, EventListener, Gateway, GatewaySettings, IngressEvent, Warning};
use telaio_http_proxy::table::{
    Action, Backend, BackendId, Certificate, HostMatch, PathMatch, Route, RouteId, TableChange,
};
use telaio_model::{Batch, Object, ObjectChange, ObjectKey, ObjectRef};
use telaio_source::Status;
use telaio_source::dir::{DirOptions, DirSource};
use tokio::sync::mpsc;

/// The objects of a text with manifests, with what a control plane would add.
pub(crate) fn objects(text: &str) -> BTreeMap<ObjectRef, Object> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("all.yaml"), text).unwrap();
    let options = DirOptions {
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..DirOptions::default()
    };
    let status = Arc::new(Status::default());
    let batch = DirSource::new(dir.path(), options, Arc::clone(&status)).load_once();
    assert_eq!(status.problems(), [], "{text}");
    let set = batch.changes.into_iter().filter_map(|change| match change {
        ObjectChange::Set(object) => Some((object.object_ref(), object)),
        ObjectChange::Delete(_) => None,
    });
    set.collect()
}

/// A service of one port with one endpoint.
pub(crate) fn service(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{ports: [{{name: http, port: 80, targetPort: 8080}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080}}]\n\
         endpoints: [{{addresses: [{address}]}}]\n---\n"
    )
}

pub(crate) fn services() -> String {
    let names = ["one", "two", "three"];
    names.iter().enumerate().map(|(i, name)| service(name, &format!("10.1.0.{}", i + 1))).collect()
}

/// An Ingress of one path.
pub(crate) fn ingress(name: &str, host: &str, path: &str, service: &str, more: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\n\
         metadata:\n  name: {name}\n  namespace: shop\n{more}\
         spec:\n  rules:\n  - host: {host}\n    http:\n      paths:\n      - path: {path}\n        \
         pathType: Prefix\n        backend: {{service: {{name: {service}, port: {{number: 80}}}}}}\n---\n"
    )
}

pub(crate) fn annotated(pairs: &[(&str, &str)]) -> String {
    let mut text = "  annotations:\n".to_owned();
    for (name, value) in pairs {
        writeln!(text, "    nginx.ingress.kubernetes.io/{name}: {value:?}").unwrap();
    }
    text
}

/// A cluster, a gateway, and the table that it made.
pub(crate) struct World {
    store: Arc<Store>,
    watch: LocalWatch,
    listener: EventListener,
    events: mpsc::Receiver<IngressEvent>,
    gateway: Gateway,
    known: BTreeMap<ObjectRef, Object>,
    pub(crate) routes: BTreeMap<RouteId, Arc<Route>>,
    pub(crate) backends: BTreeMap<BackendId, Backend>,
    pub(crate) certificates: BTreeMap<Arc<str>, Certificate>,
    pub(crate) passthrough: BTreeMap<Arc<str>, BackendId>,
    pub(crate) warnings: BTreeMap<ObjectKey, Vec<Warning>>,
    pub(crate) ours: BTreeMap<ObjectKey, Arc<telaio_model::Ingress>>,
    /// What the last change touched.
    pub(crate) last: TableChange,
}

impl World {
    pub(crate) fn new() -> Self {
        let class = ClassSettings { classless: true, ..ClassSettings::default() };
        Self::with(GatewaySettings { class, ..GatewaySettings::default() })
    }

    pub(crate) fn with(settings: GatewaySettings) -> Self {
        let store = Store::new();
        let mut wants = Wants { serving_endpoints: true, all_services: true, ..Wants::default() };
        wants.kinds.extend(telaio_gateway::listener::KINDS);
        let watch = LocalWatch::new(&store, "node-a", wants);
        let (listener, events) = EventListener::new();
        Self {
            store,
            watch,
            listener,
            events,
            gateway: Gateway::new(settings),
            known: BTreeMap::new(),
            routes: BTreeMap::new(),
            backends: BTreeMap::new(),
            certificates: BTreeMap::new(),
            passthrough: BTreeMap::new(),
            warnings: BTreeMap::new(),
            ours: BTreeMap::new(),
            last: TableChange::default(),
        }
    }

    /// A world with these manifests.
    pub(crate) async fn of(text: &str) -> Self {
        let mut world = Self::new();
        world.load(text).await;
        world
    }

    /// The cluster is now this.
    pub(crate) async fn load(&mut self, text: &str) {
        let objects = objects(text);
        let gone = self.known.keys().filter(|key| !objects.contains_key(key)).cloned();
        let mut changes: Vec<_> = gone.map(ObjectChange::Delete).collect();
        changes.extend(objects.values().cloned().map(ObjectChange::Set));
        self.known = objects;
        self.apply(changes).await;
    }

    /// One object is now this.
    pub(crate) async fn set(&mut self, object: Object) {
        self.known.insert(object.object_ref(), object.clone());
        self.apply(vec![ObjectChange::Set(object)]).await;
    }

    pub(crate) async fn apply(&mut self, changes: Vec<ObjectChange>) {
        self.store.apply(Batch { changes, synced: true });
        self.last = TableChange::default();
        while let Some(diff) = now(self.watch.next()) {
            for op in diff.unwrap() {
                self.listener.take(op).await.unwrap();
                while let Ok(event) = self.events.try_recv() {
                    self.take(event);
                }
            }
        }
    }

    fn take(&mut self, event: IngressEvent) {
        if event == IngressEvent::Synced {
            let commit = self.gateway.commit();
            self.mirror(commit);
        } else {
            self.gateway.take(event);
        }
    }

    fn mirror(&mut self, commit: Commit) {
        let change = commit.table;
        for (id, route) in change.routes.clone() {
            match route {
                Some(route) => drop(self.routes.insert(id, route)),
                None => drop(self.routes.remove(&id).expect("only what stands is removed")),
            }
        }
        for (id, backend) in change.backends.clone() {
            match backend {
                Some(backend) => drop(self.backends.insert(id, backend)),
                None => drop(self.backends.remove(&id).expect("only what stands is removed")),
            }
        }
        for (id, certificate) in change.certificates.clone() {
            match certificate {
                Some(certificate) => drop(self.certificates.insert(id, certificate)),
                None => drop(self.certificates.remove(&id)),
            }
        }
        for (host, backend) in change.passthrough.clone() {
            match backend {
                Some(backend) => drop(self.passthrough.insert(host, backend)),
                None => drop(self.passthrough.remove(&host)),
            }
        }
        for (key, warnings) in commit.warnings {
            if warnings.is_empty() {
                self.warnings.remove(&key);
            } else {
                self.warnings.insert(key, warnings);
            }
        }
        for (key, ingress) in commit.ours {
            match ingress {
                Some(ingress) => drop(self.ours.insert(key, ingress)),
                None => drop(self.ours.remove(&key)),
            }
        }
        self.last.merge(change);
    }

    /// The warnings of an Ingress as text.
    pub(crate) fn warned(&self, ingress: &str) -> Vec<String> {
        let warnings = self.warnings.get(&ObjectKey::parse(ingress)).into_iter().flatten();
        warnings.map(|it| format!("{}: {}", it.reason.as_str(), it.message)).collect()
    }

    /// The route of a request by the router that serves.
    pub(crate) fn served(&self, host: &str, path: &str) -> Option<Arc<Route>> {
        let proxy = telaio_http_proxy::HttpProxy::new(telaio_http_proxy::ProxySettings::default());
        let routes = self.routes.iter().map(|(id, route)| (Arc::clone(id), Some(route.clone())));
        let change = TableChange { routes: routes.collect(), ..TableChange::default() };
        assert_eq!(proxy.apply(&change), []);
        let mut request = telaio_http_proxy::RequestHead::new();
        request.set_authority(host);
        request.set_path(path);
        proxy.router().get_backend(&request).map(|found| found.route.clone())
    }

    /// The only route.
    pub(crate) fn only_route(&self) -> &Route {
        assert_eq!(self.routes.len(), 1, "{:#?}", self.routes);
        self.routes.values().next().unwrap()
    }

    /// The route of a request, by the words of the reference and no cleverness: the best host that
    /// has a matching path, then the best path.
    pub(crate) fn route(&self, host: &str, path: &str) -> Option<&Route> {
        let rank =
            |route: &Route| Some((host_rank(&route.host, host)?, path_rank(&route.path, path)?));
        let found = self.routes.values().filter_map(|route| Some((rank(route)?, route)));
        found.max_by_key(|(rank, _)| *rank).map(|(_, route)| &**route)
    }
}

fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

fn host_rank(matched: &HostMatch, host: &str) -> Option<u8> {
    match matched {
        HostMatch::Exact(name) => (**name == *host).then_some(2),
        HostMatch::Wildcard(suffix) => {
            let label = host.strip_suffix(&**suffix)?;
            (!label.is_empty() && !label.contains('.')).then_some(1)
        }
        HostMatch::Any => Some(0),
    }
}

/// Exact first, then by the length of the text.
fn path_rank(matched: &PathMatch, path: &str) -> Option<(bool, usize)> {
    match matched {
        PathMatch::Exact(exact) => (**exact == *path).then_some((true, exact.len())),
        PathMatch::Prefix(prefix) => {
            let bare = prefix.trim_end_matches('/');
            let rest = path.strip_prefix(bare)?;
            (rest.is_empty() || rest.starts_with('/')).then_some((false, prefix.len()))
        }
        PathMatch::Regex(pattern) => {
            let regex = regex::Regex::new(pattern).unwrap();
            regex.is_match(path).then_some((false, matched.written().len()))
        }
    }
}

/// What a request meets, in a word.
pub(crate) fn meets(route: Option<&Route>) -> String {
    match route.map(|route| &route.action) {
        None => "nothing".to_owned(),
        Some(Action::Forward(backends)) => backends[0].backend.to_string(),
        Some(Action::Redirect(to)) => {
            let url = to.url.as_ref().or(to.path.as_ref()).or(to.host.as_ref()).unwrap();
            format!("{} {url}", to.status)
        }
        Some(Action::Respond(fixed)) => fixed.status.to_string(),
    }
}

pub(crate) async fn annotated_world(pairs: &[(&str, &str)], extra: &str) -> World {
    let text = services() + &ingress("web", "a.example.com", "/", "one", &annotated(pairs)) + extra;
    World::of(&text).await
}
