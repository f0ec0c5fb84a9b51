//! An agent of the imagination, a server on a real socket, and a client that says what it wants.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use telaio_gui::agent::now_ms;
use telaio_gui::guard::ClientAddress;
use telaio_gui::values::action::Purge;
use telaio_gui::values::ingress::{RouteBackend, RouteItem};
use telaio_gui::values::overview::{Counts, Overview, PlaneHealth, SourceHealth};
use telaio_gui::values::service::{
    EndpointCounts, EndpointItem, EndpointPort, NodeItem, Port, Rules, ServiceDetail, ServiceItem,
};
use telaio_gui::values::trace::{TraceAnswer, TraceQuestion};
use telaio_gui::values::{Counters, Key, Role, Stale, State};
use telaio_gui::{
    Agent, AgentName, AuditLog, EventLog, Figures, GuardSettings, GuiServer, GuiSettings,
    HttpFigures, Network, Refusal, Step, Tokens,
};
use telaio_model::{ObjectKey, Override, OverrideAction, OverrideTarget};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const ADMIN: &str = "admin-token-that-is-long-enough";
pub(crate) const READ: &str = "read-token-that-is-long-enough-";

/// An agent with services of three endpoints each.
pub(crate) struct Imagined {
    pub(crate) services: usize,
    pub(crate) overrides: Mutex<BTreeMap<ObjectKey, Arc<Override>>>,
    pub(crate) figures_asked: AtomicUsize,
    pub(crate) network_asked: AtomicUsize,
    pub(crate) requests: AtomicU64,
    pub(crate) resyncs: AtomicUsize,
    pub(crate) read_only: Option<String>,
    pub(crate) reviews: AtomicUsize,
    pub(crate) routes_stale: Mutex<Option<Stale>>,
    /// Whether the cluster still knows its token.
    pub(crate) revoked: AtomicBool,
    /// Whether nothing can be removed.
    pub(crate) forbidden: AtomicBool,
    /// Overrides that have ended, and that others have removed already.
    pub(crate) behind: Mutex<Vec<Arc<Override>>>,
    /// How often it was tried.
    pub(crate) removals: AtomicUsize,
    /// Whether whoever keeps overrides does not answer: who removes what has ended, and who decides.
    pub(crate) removing_hangs: AtomicBool,
    pub(crate) deciding_hangs: AtomicBool,
    /// What another agent wrote that has not been read here yet.
    pub(crate) unread: Mutex<BTreeMap<ObjectKey, Arc<Override>>>,
    /// Decisions that were begun.
    pub(crate) decisions: AtomicUsize,
    /// How many endpoints a service has.
    pub(crate) endpoints_each: usize,
    /// Its routes.
    pub(crate) routes: Mutex<Vec<RouteItem>>,
    /// Requests and errors a second, of services and of endpoints: `web-0001`, `web-0001 10.0.0.2`.
    pub(crate) rates: BTreeMap<&'static str, (f64, f64)>,
}

/// A route to the first service.
pub(crate) fn route() -> RouteItem {
    RouteItem {
        id: "ns-0/shop/0/0".into(),
        ingress: Key::new("ns-0", "shop"),
        host: "shop.example".into(),
        path: "/".into(),
        path_type: "prefix".into(),
        matches: vec![],
        action: "forward".into(),
        action_text: String::new(),
        backends: vec![RouteBackend {
            service: Key::new("ns-0", name(0)),
            port: "80".into(),
            weight: 1,
            ready: 3,
            total: 3,
            canary: false,
            condition: String::new(),
        }],
        features: vec![],
        warnings: vec![],
        certificate: None,
        state: State::Ok,
        paused: None,
        counters: None,
    }
}

pub(crate) fn counters(rate: f64, error_rate: f64) -> Counters {
    Counters { rate, error_rate, ..Counters::default() }
}

impl Default for Imagined {
    fn default() -> Self {
        Self {
            unread: Mutex::default(),
            services: 3,
            overrides: Mutex::default(),
            figures_asked: AtomicUsize::new(0),
            network_asked: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            resyncs: AtomicUsize::new(0),
            read_only: None,
            reviews: AtomicUsize::new(0),
            routes_stale: Mutex::default(),
            revoked: AtomicBool::new(false),
            forbidden: AtomicBool::new(false),
            behind: Mutex::default(),
            removals: AtomicUsize::new(0),
            removing_hangs: AtomicBool::new(false),
            deciding_hangs: AtomicBool::new(false),
            decisions: AtomicUsize::new(0),
            endpoints_each: 3,
            routes: Mutex::new(vec![route()]),
            rates: BTreeMap::new(),
        }
    }
}

fn node(name: &str) -> NodeItem {
    NodeItem {
        name: name.to_owned(),
        own: name == "node-1",
        addresses: vec![],
        pod_cidrs: vec![],
        zone: None,
        leaving: false,
        endpoints: 0,
    }
}

pub(crate) fn name(i: usize) -> String {
    format!("web-{i:04}")
}

impl Imagined {
    fn items(&self, key: &Key) -> Vec<EndpointItem> {
        let overrides = self.overrides.lock();
        let of = |address: String, pod: Option<String>, node: &str| {
            let hits = |it: &&Arc<Override>| {
                it.service().is_some_and(|it| *it.name == *key.name)
                    && match &it.target {
                        OverrideTarget::Address(ip) => ip.to_string() == address,
                        OverrideTarget::Pod(name) => pod.as_deref() == Some(name),
                        OverrideTarget::Node(name) => **name == *node,
                        OverrideTarget::Routes { .. } => false,
                    }
            };
            let now_s = now_ms() / 1000;
            let hits: Vec<_> =
                overrides.values().filter(|it| it.is_active(now_s)).filter(hits).collect();
            let has = |action: &OverrideAction| hits.iter().any(|it| it.action == *action);
            let weight = hits.iter().find_map(|it| match it.action {
                OverrideAction::Weight(weight) => Some(weight),
                _ => None,
            });
            let drained = has(&OverrideAction::Drain);
            EndpointItem {
                ports: vec![EndpointPort {
                    name: "http".into(),
                    port: 8080,
                    internal: !drained,
                    external: false,
                }],
                node: Some(node.to_owned()),
                zone: None,
                local: false,
                ready: true,
                serving: true,
                terminating: false,
                weight: if drained { 0 } else { weight.unwrap_or(1) },
                drained,
                added: pod.is_none(),
                removed: has(&OverrideAction::Remove),
                used: !drained,
                overrides: hits.iter().map(|it| it.meta.key.to_string()).collect(),
                counters: Some(match self.rates.get(&*format!("{} {address}", key.name)) {
                    Some((rate, error_rate)) => counters(*rate, *error_rate),
                    None => counters(1.0, 0.0),
                }),
                connections: None,
                address,
                pod,
            }
        };
        let mut items: Vec<EndpointItem> = (1..=self.endpoints_each)
            .map(|i| of(format!("10.0.0.{i}"), Some(format!("{}-{i}", key.name)), "node-1"))
            .collect();
        let added = overrides.values().filter(|it| {
            matches!(it.action, OverrideAction::Add(_))
                && it.service().is_some_and(|it| *it.name == *key.name)
        });
        for decided in added {
            if let OverrideTarget::Address(ip) = decided.target {
                items.push(of(ip.to_string(), None, "elsewhere"));
            }
        }
        items
    }

    pub(crate) fn item(&self, i: usize) -> ServiceItem {
        let key = Key::new(format!("ns-{}", i % 10), name(i));
        let items = self.items(&key);
        ServiceItem {
            namespace: key.namespace,
            name: key.name,
            service_type: "ClusterIP".into(),
            headless: false,
            cluster_ips: vec![format!("10.96.{}.{}", i / 250, i % 250 + 1)],
            external_ips: vec![],
            load_balancer_ips: vec![],
            ports: vec![Port {
                name: "http".into(),
                protocol: "TCP".into(),
                port: 80,
                node_port: None,
                target: "8080".into(),
                app_protocol: None,
                connections: None,
            }],
            endpoints: EndpointCounts { total: items.len(), ready: 3, ..EndpointCounts::default() },
            state: if i % 3 == 2 { State::Warning } else { State::Ok },
            state_text: if i % 3 == 2 { "one is slow".into() } else { String::new() },
            overridden: items.iter().any(|it| !it.overrides.is_empty()),
            counters: Some(match self.rates.get(&*name(i)) {
                Some((rate, error_rate)) => counters(*rate, *error_rate),
                None => counters(i as f64, 0.0),
            }),
            connections: None,
            connections_reason: Some("nobody counts here".into()),
            traffic: None,
            traffic_reason: None,
        }
    }
}

impl Agent for Imagined {
    fn status(&self) -> String {
        json!({"version": "0", "healthy": true}).to_string()
    }

    fn figures(&self) -> BoxFuture<'_, Figures> {
        self.figures_asked.fetch_add(1, SeqCst);
        let requests = self.requests.load(SeqCst);
        let http = HttpFigures {
            counter: 1,
            classes: [0, requests, 0, 0, requests / 10],
            durations: vec![requests, 0, 0],
            bounds_us: vec![1000, 2000],
            ..HttpFigures::default()
        };
        Box::pin(async move { Figures { healthy: true, http: Some(http), ..Figures::default() } })
    }

    fn overview(&self) -> Overview {
        Overview {
            at_ms: now_ms(),
            version: "0".into(),
            command: "run".into(),
            pid: 1,
            node: Some("node-1".into()),
            started_ms: 0,
            uptime_s: 1.0,
            healthy: true,
            planes: vec![PlaneHealth {
                name: "services".into(),
                state: State::Ok,
                summary: "well".into(),
            }],
            source: SourceHealth {
                spec: "dir:/m".into(),
                kind: "dir".into(),
                connected: true,
                synced: true,
                age_s: Some(0.0),
                revision: 1,
                problem_count: 0,
                problems: vec![],
                note: None,
            },
            counts: Counts::default(),
            syncs: vec![],
            traffic: None,
            attention: vec![],
        }
    }

    fn network(&self) -> BoxFuture<'_, Network> {
        self.network_asked.fetch_add(1, SeqCst);
        let network = Network {
            at_ms: now_ms(),
            services: (0..self.services).map(|i| self.item(i)).collect(),
            routes: self.routes.lock().clone(),
            routes_stale: self.routes_stale.lock().clone(),
            nodes: ["node-1", "node-2"].map(node).into(),
            ..Network::default()
        };
        Box::pin(async move { network })
    }

    fn service(&self, key: &Key) -> Option<ServiceDetail> {
        let i: usize = key.name.strip_prefix("web-")?.parse().ok()?;
        let item = (i < self.services).then(|| self.item(i))?;
        (item.namespace == key.namespace).then(|| ServiceDetail {
            internal_traffic_policy: "Cluster".into(),
            external_traffic_policy: "Cluster".into(),
            session_affinity_s: None,
            source_ranges: vec![],
            health_check_node_port: None,
            external_name: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            backend: Some("nftables".into()),
            endpoint_items: self.items(key),
            overrides: vec![],
            routes: vec![],
            item,
        })
    }

    fn rules<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Rules, Refusal>> {
        Box::pin(async move {
            Ok(Rules {
                service: key.clone(),
                backend: "nftables".into(),
                origin: "compiled".into(),
                text: "rule".into(),
                notes: vec![],
            })
        })
    }

    fn trace<'a>(
        &'a self,
        question: &'a TraceQuestion,
    ) -> BoxFuture<'a, Result<TraceAnswer, Refusal>> {
        Box::pin(async move {
            match &question.url {
                Some(_) => Ok(TraceAnswer { kind: "url".into(), ..TraceAnswer::default() }),
                None => Err(Refusal::Bad("ask something".into())),
            }
        })
    }

    fn purge<'a>(&'a self, _: &'a Purge, _: bool) -> BoxFuture<'a, Result<u64, Refusal>> {
        Box::pin(async { Ok(7) })
    }

    fn resync(&self) -> Result<Vec<String>, Refusal> {
        self.resyncs.fetch_add(1, SeqCst);
        Ok(vec!["services".into()])
    }

    fn overrides(&self) -> Vec<Arc<Override>> {
        self.overrides.lock().values().cloned().collect()
    }

    fn decide(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<(), Refusal>> {
        self.decisions.fetch_add(1, SeqCst);
        if self.deciding_hangs.load(SeqCst) {
            return Box::pin(std::future::pending());
        }
        let now_s = now_ms() / 1000;
        let counts = |it: &&Override| it.is_active(now_s);
        let mut overrides = self.overrides.lock();
        // What another agent wrote, and we have not read yet.
        let unread = self.unread.lock();
        let written =
            |key: &ObjectKey| unread.get(key).or_else(|| overrides.get(key)).map(|it| &**it);
        let is_as_seen =
            |step: &Step| step.before.as_ref().filter(counts) == written(&step.key).filter(counts);
        if let Some(step) = steps.iter().find(|step| !is_as_seen(step)) {
            let refusal = Refusal::Conflict(format!("{} was changed meanwhile", step.key));
            return Box::pin(async { Err(refusal) });
        }
        for Step { key, after, .. } in steps {
            match after {
                Some(decided) => drop(overrides.insert(key, Arc::new(decided))),
                None => drop(overrides.remove(&key)),
            }
        }
        Box::pin(async { Ok(()) })
    }

    fn ended(&self) -> Vec<Arc<Override>> {
        let now_s = now_ms() / 1000;
        let overrides = self.overrides.lock();
        let ended = overrides.values().filter(|it| !it.is_active(now_s)).cloned();
        ended.chain(self.behind.lock().iter().cloned()).collect()
    }

    fn remove_ended(
        &self,
        ended: Vec<Arc<Override>>,
    ) -> BoxFuture<'_, Result<Vec<ObjectKey>, Refusal>> {
        self.removals.fetch_add(1, SeqCst);
        if self.removing_hangs.load(SeqCst) {
            return Box::pin(std::future::pending());
        }
        let removed = if self.forbidden.load(SeqCst) {
            Err(Refusal::Unavailable("nobody may write here".to_owned()))
        } else {
            let mut overrides = self.overrides.lock();
            let seen = ended.into_iter().filter(|it| overrides.get(&it.meta.key) == Some(it));
            let seen: Vec<ObjectKey> = seen.map(|it| it.meta.key.clone()).collect();
            overrides.retain(|key, _| !seen.contains(key));
            Ok(seen)
        };
        Box::pin(async { removed })
    }

    fn read_only_because(&self) -> Option<String> {
        self.read_only.clone()
    }

    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<(String, Role)>, Refusal>> {
        self.reviews.fetch_add(1, SeqCst);
        let known = token == "token-of-the-cluster-for-anna" && !self.revoked.load(SeqCst);
        let away = token == "token-while-the-cluster-is-away";
        Box::pin(async move {
            if away {
                return Err(Refusal::Unavailable("the cluster is away".to_owned()));
            }
            Ok(known.then(|| ("anna@example".to_owned(), Role::Admin)))
        })
    }
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) agent: Arc<Imagined>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) address: SocketAddr,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

pub(crate) async fn start(agent: Imagined) -> Running {
    start_with(agent, |settings| settings, log()).await
}

/// The audit log of node-1.
pub(crate) fn log() -> AuditLog {
    AuditLog::in_memory(this_agent())
}

pub(crate) fn this_agent() -> AgentName {
    AgentName::node("node-1")
}

pub(crate) async fn start_with(
    agent: Imagined,
    change: impl FnOnce(GuiSettings) -> GuiSettings,
    audit: AuditLog,
) -> Running {
    let tokens =
        Tokens::default().with("admin", Role::Admin, ADMIN).with("read-only", Role::Read, READ);
    let guard = GuardSettings { tokens, hosts: vec!["gui.example".into()], tls: false };
    let tick = Duration::from_millis(50);
    let (ended_grace, stream_check) = (Duration::ZERO, Duration::from_millis(100));
    let settings = GuiSettings { guard, tick, ended_grace, stream_check, ..GuiSettings::default() };
    let settings = change(settings);
    let (agent, events) = (Arc::new(agent), Arc::new(EventLog::default()));
    let server = GuiServer::new(settings, agent.clone(), events.clone(), audit);
    let router = server.router();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ticking = tokio::spawn(async move { server.run().await });
    let serving = tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(
                router.clone().layer(axum::Extension(ClientAddress(peer.ip()))),
            );
            tokio::spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
    Running { agent, events, address, tasks: vec![ticking, serving] }
}

/// An answer: status, the head in lower case, the body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Running {
    /// Sends exactly this and reads to the end.
    pub(crate) async fn raw(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
        let head = head.to_lowercase();
        let body =
            if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.into() };
        Answer { status, head, body }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        token: &str,
        more: &str,
        body: &str,
    ) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
             Content-Length: {}\r\n{more}\r\n{body}",
            self.address,
            body.len()
        );
        self.raw(&request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, READ, "", "").await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let kind = "Content-Type: application/json\r\n";
        self.send("POST", path, ADMIN, kind, &body.to_string()).await
    }

    /// A stream that stays open, read until `text` comes.
    pub(crate) async fn stream(&self) -> TcpStream {
        self.stream_of(READ).await
    }

    pub(crate) async fn stream_of(&self, token: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "GET /api/v1/events/stream HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }
}

pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut all = String::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while !all.contains(text) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert_ne!(count, 0, "the stream ended: {all}");
            all.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), reading).await;
    assert!(done.is_ok(), "no {text:?} came: {all}");
    all
}

fn unchunk(body: &str) -> String {
    let (mut out, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        out.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    out
}
