//! A cluster as the source: served, told, handed over, with no more rights than the manifest gives.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use telaio_testkit::apiserver::{ApiServer, Resource, StreamingLists};
use tempfile::TempDir;

use super::deployed::manifest;
use super::{Answer, Echo, ask};
use crate::support::{Agent, PATIENCE, run_args};

const LEASE: (&str, &str, &str) = ("leases", "kube-system", "telaio-ingress-status");

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    dir: TempDir,
}

impl Cluster {
    /// Two nodes, our class, and a service whose endpoints are these.
    pub(crate) async fn start(echo: &Echo) -> Self {
        let overrides = Resource::new("telaio.dev/v1", "overrides", "Override");
        let server = ApiServer::builder().register(overrides).start().await.unwrap();
        let node = |name: &str, ip: &str| {
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
            })
        };
        let class = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
            "metadata": {"name": "front"}, "spec": {"controller": "telaio.dev/ingress"},
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "None", "clusterIPs": ["None"],
                     "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
        });
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        server.apply(namespace).unwrap();
        let objects = [node("loom-a", "192.0.2.1"), node("loom-b", "192.0.2.2"), class, service];
        server.apply_many(objects).unwrap();
        let cluster = Self { server, dir: tempfile::tempdir().unwrap() };
        cluster.endpoints("web-1", &echo_slice(echo, &json!({"ready": true})));
        cluster
    }

    /// What the manifest makes in a cluster before the first agent, beside roles.
    fn deploy(&self) {
        let secrets =
            manifest("ingress-rbac.yaml").into_iter().filter(|object| object["kind"] == "Secret");
        self.server.apply_many(secrets).unwrap();
    }

    /// Annotates an Ingress that is there.
    fn annotate(&self, name: &str, annotations: &Value) {
        let mut ingress = self.server.get("ingresses", "shop", name).unwrap();
        ingress["apiVersion"] = "networking.k8s.io/v1".into();
        ingress["kind"] = "Ingress".into();
        ingress["metadata"]["annotations"] = annotations.clone();
        self.server.apply(ingress).unwrap();
    }

    fn endpoints(&self, name: &str, parts: &Value) {
        self.endpoints_of("web", name, parts);
    }

    pub(crate) fn endpoints_of(&self, service: &str, name: &str, parts: &Value) {
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "shop",
                         "labels": {"kubernetes.io/service-name": service}},
        });
        slice["ports"] = parts["ports"].clone();
        slice["endpoints"] = parts["endpoints"].clone();
        self.server.apply(slice).unwrap();
    }

    /// An Ingress of the host's root; `created` is its age.
    pub(crate) fn ingress(&self, name: &str, host: &str, created: &str, tls: Option<&str>) {
        let mut ingress = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": name, "namespace": "shop", "creationTimestamp": created},
            "spec": {"ingressClassName": "front", "rules": [{"host": host, "http": {"paths": [{
                "path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": "web", "port": {"name": "http"}}},
            }]}}]},
        });
        if let Some(secret) = tls {
            ingress["spec"]["tls"] = json!([{"hosts": [host], "secretName": secret}]);
        }
        self.server.apply(ingress).unwrap();
    }

    fn agent(&self, node: &str) -> (Agent, SocketAddr, SocketAddr) {
        self.agent_with(node, &["--ingress-process=same"])
    }

    /// An agent of this cluster, with these arguments, that serves; and where it does.
    pub(crate) fn agent_with(&self, node: &str, more: &[&str]) -> (Agent, SocketAddr, SocketAddr) {
        let file = self.server.kubeconfig_file(self.dir.path()).unwrap();
        let (node, source) =
            (format!("--node={node}"), format!("--source=kube:{}", file.display()));
        let mut arguments = vec![
            "run",
            "--planes=ingress",
            &node,
            "--http-listen=127.0.0.1:0",
            "--https-listen=127.0.0.1:0",
            "--ingress-threads=2",
            &source,
        ];
        arguments.extend(more);
        let agent = Agent::start(&arguments);
        let listening = agent.wait_log("the ingress listens");
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (http, https) = (address("http"), address("https"));
        agent.wait_log("the ingress serves");
        (agent, http, https)
    }

    /// Who holds the Lease: a node's name and the process.
    fn holder(&self) -> String {
        let lease = self.server.get(LEASE.0, LEASE.1, LEASE.2);
        let holder = lease.as_ref().and_then(|it| it["spec"]["holderIdentity"].as_str());
        holder.unwrap_or_default().to_owned()
    }

    fn status(&self, name: &str) -> Value {
        let object = self.server.get("ingresses", "shop", name).unwrap();
        object["status"]["loadBalancer"]["ingress"].clone()
    }
}

pub(crate) fn echo_slice(echo: &Echo, conditions: &Value) -> Value {
    let endpoint = json!({"addresses": [echo.address.ip().to_string()], "conditions": conditions});
    json!({"ports": [{"name": "http", "port": echo.address.port(), "protocol": "TCP"}], "endpoints": [endpoint]})
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

fn from(answer: &Answer, name: &str) -> bool {
    answer.backend().as_deref() == Some(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_writes_status_and_events_and_the_other_takes_over_within_15_s() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.ingress("first", "a.example.com", "2026-01-01T00:00:00Z", None);
    let (first, first_http, _) = cluster.agent("loom-a");
    let (second, second_http, _) = cluster.agent("loom-b");
    for http in [first_http, second_http] {
        let answer = ask(http, "a.example.com", "/");
        assert!(from(&answer, "one"), "{answer:?}");
    }
    let nodes = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]);
    until("status", || cluster.status("first") == nodes);

    // The younger of two for the same place hears of it, once, though both agents know.
    cluster.ingress("second", "a.example.com", "2026-02-02T00:00:00Z", None);
    until("status", || cluster.status("second") == nodes);
    until("event", || cluster.server.count("events") == 1);
    for agent in [&first, &second] {
        let warning = agent.wait_log(
            "a.example.com/ is not served as asked for here: the older Ingress shop/first has it",
        );
        assert_eq!(warning["ingress"], "shop/second");
    }
    // A change that changes nothing for us is neither told nor written.
    cluster.ingress("third", "b.example.com", "2026-03-03T00:00:00Z", None);
    until("status", || cluster.status("third") == nodes);
    assert_eq!(cluster.server.count("events"), 1);
    assert_eq!(cluster.server.request_count("patch", "ingresses/status"), 3);

    // The holder dies without a word.
    let holder = cluster.holder();
    let (dying, living, http) = if holder == format!("loom-a-{}", first.pid()) {
        (first, second, second_http)
    } else {
        (second, first, first_http)
    };
    assert_eq!(holder.rsplit('-').next(), Some(&*dying.pid().to_string()));
    dying.signal("KILL");
    cluster.ingress("fourth", "c.example.com", "2026-04-04T00:00:00Z", None);
    let handed_over = until("other holder", || {
        cluster.holder().rsplit('-').next() == Some(&*living.pid().to_string())
    });
    // Within 15 s by its times, which their own tests hold it to; here the machine may be busy.
    assert!(handed_over < Duration::from_secs(40), "{handed_over:?}");
    until("status of the other", || cluster.status("fourth") == nodes);
    assert!(from(&ask(http, "c.example.com", "/"), "one"));
    // What is right already was not written again, and what was told is the same Event.
    assert_eq!(cluster.server.request_count("patch", "ingresses/status"), 4);
    assert_eq!(cluster.server.count("events"), 1);

    // Who is told to end gives the Lease back.
    let (status, log) = living.end();
    assert_eq!((status.code(), cluster.holder()), (Some(0), String::new()), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_left_us_while_there_was_no_worker_is_not_written_to_any_more() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.ingress("a-left", "a.example.com", "2026-01-01T00:00:00Z", None);
    cluster.ingress("b-gone", "b.example.com", "2026-01-01T00:00:00Z", None);
    cluster.ingress("z-stays", "z.example.com", "2026-01-01T00:00:00Z", None);
    let (agent, http, _) = cluster.agent_with("loom-a", &["--ingress-process=own"]);
    let before = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]);
    for name in ["a-left", "b-gone", "z-stays"] {
        until("status", || cluster.status(name) == before);
    }
    // The worker hears of nothing any more, and dies; the next one is told how things are then.
    let worker = super::lifecycle::worker_of(agent.pid()).unwrap().to_string();
    let signal = |name: &str| {
        let done = std::process::Command::new("kill").args([name, &worker]).status().unwrap();
        assert!(done.success());
    };
    signal("-STOP");
    let mut left = cluster.server.get("ingresses", "shop", "a-left").unwrap();
    left["apiVersion"] = "networking.k8s.io/v1".into();
    left["kind"] = "Ingress".into();
    left["spec"]["ingressClassName"] = "elsewhere".into();
    cluster.server.apply(left).unwrap();
    assert!(cluster.server.delete("ingresses", "shop", "b-gone"));
    signal("-KILL");
    agent.wait_log("the ingress worker ended; starting another");
    until("the new worker", || ask(http, "a.example.com", "/").status == 404);
    // Under the name of the one that is gone there is somebody else's.
    let mut other = cluster.server.get("ingresses", "shop", "z-stays").unwrap();
    other["apiVersion"] = "networking.k8s.io/v1".into();
    other["kind"] = "Ingress".into();
    other["metadata"] = json!({"name": "b-gone", "namespace": "shop"});
    other["spec"]["ingressClassName"] = "elsewhere".into();
    other["spec"]["rules"][0]["host"] = "b.example.com".into();
    other["status"] = json!({});
    cluster.server.apply(other).unwrap();
    cluster.ingress("y-new", "y.example.com", "2026-01-01T00:00:00Z", None);
    until("its status", || cluster.status("y-new") == before);
    let patched = cluster.server.request_count("patch", "ingresses/status");
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "loom-c"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.3"}]},
    });
    cluster.server.apply(node).unwrap();
    let after = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}, {"ip": "192.0.2.3"}]);
    // They are written in the order of their names.
    until("the last status", || cluster.status("z-stays") == after);
    assert_eq!(cluster.status("y-new"), after);
    assert_eq!(cluster.status("a-left"), before, "it is not ours any more");
    assert_eq!(cluster.server.request_count("patch", "ingresses/status"), patched + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_clusters_ingresses_become_is_told_without_changing_anything() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.ingress("old", "a.example.com", "2025-01-01T00:00:00Z", None);
    cluster.ingress("young", "a.example.com", "2026-01-01T00:00:00Z", Some("cert"));
    cluster.server.apply(secret("any.example.com")).unwrap();
    let mut moving = cluster.server.get("ingresses", "shop", "old").unwrap();
    moving["apiVersion"] = "networking.k8s.io/v1".into();
    moving["kind"] = "Ingress".into();
    let annotations = json!({
        "nginx.ingress.kubernetes.io/proxy-body-size": "8m",
        "nginx.ingress.kubernetes.io/limit-rps": "5",
        "nginx.ingress.kubernetes.io/server-snippet": "return 200;",
    });
    moving["metadata"] = json!({"name": "moving", "namespace": "shop", "annotations": annotations});
    moving["spec"]["ingressClassName"] = "nginx".into();
    moving["spec"]["rules"][0]["host"] = "b.example.com".into();
    cluster.server.apply(moving).unwrap();
    let file = cluster.server.kubeconfig_file(cluster.dir.path()).unwrap();
    let source = format!("--source=kube:{}", file.display());
    let migrate = |class: &str| {
        let (class, source) = (format!("--class={class}"), source.clone());
        let args = ["migrate".to_owned(), class, "--output=json".to_owned(), source];
        let ended = tokio::task::block_in_place(|| run_args(args));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str::<Value>(&ended.stdout).unwrap()
    };
    let nginx = migrate("nginx");
    let names = |reports: &Value| {
        let all = reports.as_array().unwrap().iter();
        all.map(|it| it["ingress"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&nginx), ["shop/moving"]);
    for (kind, annotation) in
        [("honoured", "proxy-body-size"), ("different", "limit-rps"), ("refused", "server-snippet")]
    {
        let told = &nginx[0][kind][0]["what"];
        assert_eq!(told, &json!(format!("nginx.ingress.kubernetes.io/{annotation}")), "{nginx}");
    }
    assert_eq!(nginx[0]["warnings"], Value::Null, "its service is there: {nginx}");
    // Ours too, with who has what several want.
    let front = migrate("front");
    assert_eq!(names(&front), ["shop/old", "shop/young"]);
    assert_eq!(front[1]["warnings"][0]["what"], "Conflict", "{front}");
    let changes = cluster.server.requests().into_iter().filter(|it| {
        let reads = matches!(it.verb.as_str(), "get" | "list" | "watch");
        !reads && !it.resource.starts_with('/')
    });
    assert_eq!(changes.collect::<Vec<_>>(), [], "it only reads");
}

fn secret(name: &str) -> Value {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    let encode = |text: String| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, text);
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "cert", "namespace": "shop"},
        "data": {"tls.crt": encode(certificate.pem()), "tls.key": encode(key.serialize_pem())},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_rotated_and_endpoints_drained_while_requests_run() {
    let (one, two) = (Echo::start_outside("one"), Echo::start_outside("two"));
    let cluster = Cluster::start(&one).await;
    cluster.ingress("web", "a.example.com", "2026-01-01T00:00:00Z", Some("cert"));
    cluster.ingress("plain", "b.example.com", "2026-01-01T00:00:00Z", None);
    cluster.server.apply(secret("first.example.com")).unwrap();
    let (_agent, http, https) = cluster.agent("loom-a");
    let shown = || {
        let name = format!("a.example.com:{}:127.0.0.1", https.port());
        let url = format!("https://a.example.com:{}/", https.port());
        let out = std::process::Command::new("curl")
            .args(["-skv", "--max-time", "20", "--resolve", &name, &url])
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout)
    };
    until("first certificate", || shown().contains("CN=first.example.com"));
    cluster.server.apply(secret("second.example.com")).unwrap();
    until("second certificate", || shown().contains("CN=second.example.com"));

    // One that terminates finishes what it has, and gets nothing new.
    let slow = std::thread::spawn(move || ask(http, "b.example.com", "/slow"));
    let before = one.requests();
    until("request at the first endpoint", || one.requests() > before);
    let leaving = json!({"ready": false, "serving": true, "terminating": true});
    cluster.endpoints("web-2", &echo_slice(&two, &json!({"ready": true})));
    cluster.endpoints("web-1", &echo_slice(&one, &leaving));
    until("the second endpoint", || from(&ask(http, "b.example.com", "/"), "two"));
    let before = one.requests();
    for _ in 0..20 {
        assert!(from(&ask(http, "b.example.com", "/"), "two"));
    }
    assert_eq!(one.requests(), before);
    let finished = slow.join().unwrap();
    assert!(finished.status == 200 && from(&finished, "one"), "{finished:?}");
    // Where nothing else is left, what still serves is used.
    assert!(cluster.server.delete("endpointslices", "shop", "web-2"));
    until("the first endpoint", || from(&ask(http, "b.example.com", "/"), "one"));
    assert!(cluster.server.delete("endpointslices", "shop", "web-1"));
    until("nobody", || ask(http, "b.example.com", "/").status == 503);
}

/// What a manifest's roles allow: verb and resource.
fn allowed() -> BTreeSet<(String, String)> {
    let mut allowed = BTreeSet::new();
    for rule in manifest("ingress-rbac.yaml")
        .iter()
        .filter_map(|object| object["rules"].as_array())
        .flatten()
    {
        let words = |name: &str| {
            let all = rule[name].as_array().unwrap().iter();
            all.map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        for verb in words("verbs") {
            for resource in words("resources") {
                assert!(verb != "*" && resource != "*", "{rule}");
                allowed.insert((verb.clone(), resource));
            }
        }
    }
    allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_manifest_allows_is_what_the_plane_does() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.server.apply(secret("any.example.com")).unwrap();
    cluster.deploy();
    let edge = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "edge", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
        "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}},
    });
    cluster.server.apply(edge).unwrap();
    cluster.ingress("first", "a.example.com", "2026-01-01T00:00:00Z", Some("cert"));
    cluster.ingress("second", "a.example.com", "2026-02-02T00:00:00Z", None);
    let file = cluster.server.kubeconfig_file(cluster.dir.path()).unwrap();
    let start = || {
        Agent::start(&[
            "run",
            "--planes=ingress",
            "--node=loom-a",
            "--http-listen=127.0.0.1:0",
            "--https-listen=127.0.0.1:0",
            "--ingress-process=same",
            "--publish-service=shop/edge",
            &format!("--source=kube:{}", file.display()),
        ])
    };
    let agent = start();
    let published = json!([{"hostname": "lb.example.com"}]);
    until("status", || cluster.status("first") == published);
    until("event", || cluster.server.count("events") == 1);
    until("renewal", || cluster.server.request_count("update", "leases") > 0);
    agent.end();
    // The next one finds the Lease and tells again what still holds; older servers stream no lists.
    cluster.server.set_streaming_lists(StreamingLists::Refused);
    let agent = start();
    until("event told again", || cluster.server.request_count("patch", "events") > 0);
    agent.end();

    let allowed = allowed();
    let of_resources =
        cluster.server.requests().into_iter().filter(|it| !it.resource.starts_with('/'));
    let done: BTreeSet<_> = of_resources.map(|it| (it.verb, it.resource)).collect();
    let too_much: Vec<_> = done.difference(&allowed).collect();
    assert!(too_much.is_empty(), "done without being allowed: {too_much:?}");
    let idle: Vec<_> = allowed.difference(&done).collect();
    assert!(idle.is_empty(), "allowed without being needed: {idle:?}");
    // Of secrets only the two types, of ConfigMaps only those with our label.
    for request in cluster.server.requests() {
        let narrowed = match request.resource.as_str() {
            "secrets" => {
                request.uri.contains("fieldSelector=type")
                    || request
                        .uri
                        .contains("/namespaces/kube-system/secrets/telaio-ingress-cookies")
            }
            "configmaps" => request.uri.contains("labelSelector=telaio.dev"),
            _ => true,
        };
        assert!(narrowed, "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_at_one_replica_is_followed_by_another_and_its_end_is_told_once() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.ingress("web", "a.example.com", "2026-01-01T00:00:00Z", None);
    let (first, first_http, _) = cluster.agent("loom-a");
    let (second, second_http, _) = cluster.agent("loom-b");
    let status = |http| ask(http, "a.example.com", "/").status;
    until("routes", || status(first_http) == 200 && status(second_http) == 200);
    let pause = |more: &[&str]| {
        let args = [&["overrides", "pause", "shop/web", "--host", "a.example.com"], more].concat();
        super::manage::managed(&first, &args)
    };
    pause(&[]);
    until("the pause", || status(first_http) == 503 && status(second_http) == 503);
    // What was decided at one is taken back at the other.
    let resume = ["overrides", "resume", "shop/web", "--host", "a.example.com"];
    super::manage::managed(&second, &resume);
    until("the end of the pause", || status(first_http) == 200 && status(second_http) == 200);

    pause(&["--for=2s"]);
    until("the pause", || status(second_http) == 503);
    until("its end", || status(first_http) == 200 && status(second_http) == 200);
    until("the entry to go", || {
        let map = cluster.server.get("configmaps", "kube-system", "telaio-overrides").unwrap();
        map["data"].as_object().is_none_or(serde_json::Map::is_empty)
    });
    let ends = || {
        let of = |agent| super::manage::managed(agent, &["overrides", "audit"]);
        let all = of(&first) + &of(&second);
        all.lines().filter(|line| line.contains("ended by itself")).count()
    };
    until("its end in a log", || ends() > 0);
    assert_eq!(ends(), 1, "whoever removed it says so, and nobody else");
}

/// What one connection is answered, and the cookie that it gets.
fn placed(http: SocketAddr, cookie: &str) -> (String, Option<String>) {
    let answer = super::ask_with(http, "a.example.com", "/", cookie);
    let set = answer.field("set-cookie").and_then(|it| it.split(';').next()).map(str::to_owned);
    (answer.backend().unwrap_or_else(|| panic!("{answer:?}")), set)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_stays_with_its_endpoint_at_every_proxy_of_the_cluster() {
    let echoes = ["one", "two", "three", "four"].map(Echo::start_outside);
    let cluster = Cluster::start(&echoes[0]).await;
    cluster.deploy();
    for (number, echo) in echoes.iter().enumerate() {
        let name = format!("web-{}", number + 1);
        cluster.endpoints(&name, &echo_slice(echo, &json!({"ready": true})));
    }
    cluster.ingress("web", "a.example.com", "2026-01-01T00:00:00Z", None);
    cluster.annotate("web", &json!({"nginx.ingress.kubernetes.io/affinity": "cookie"}));
    // Each has a state directory of its own, and both begin at once.
    let (first, second) =
        tokio::join!(async { cluster.agent("loom-a") }, async { cluster.agent("loom-b") });
    let ((first, first_http, _), (second, second_http, _)) = (first, second);
    let (home, cookie) = placed(first_http, "");
    let cookie = format!("Cookie: {}\r\n", cookie.expect("a cookie"));
    let stays = |http: SocketAddr| {
        for _ in 0..20 {
            assert_eq!(placed(http, &cookie), (home.clone(), None));
        }
    };
    stays(first_http);
    stays(second_http);
    // And where somebody comes later, on a node that is new.
    let (third, third_http, _) = cluster.agent("loom-c");
    stays(third_http);
    for agent in [first, second, third] {
        let (_, log) = agent.end();
        assert!(!log.contains("sticky cookies are this node's own"), "{log}");
    }
    assert_eq!(cluster.server.request_count("create", "secrets"), 0, "nobody needs that right");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_secret_in_common_a_proxy_serves_and_says_what_to_do() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.ingress("web", "a.example.com", "2026-01-01T00:00:00Z", None);
    let (agent, http, _) = cluster.agent("loom-a");
    assert!(from(&ask(http, "a.example.com", "/"), "one"));
    let (_, log) = agent.end();
    assert_eq!(log.matches("sticky cookies are this node's own").count(), 1, "{log}");
    assert!(
        log.contains("telaio-ingress-cookies") && log.contains("--cookie-secret-file"),
        "{log}"
    );
    // Who brings a file of their own is told nothing.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, [7; 32]).unwrap();
    let file = format!("--cookie-secret-file={}", file.display());
    let (agent, _, _) = cluster.agent_with("loom-a", &["--ingress-process=same", &file]);
    let (_, log) = agent.end();
    assert!(!log.contains("sticky cookies"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_class_and_the_old_annotation_make_ingresses_ours() {
    let one = Echo::start_outside("one");
    let cluster = Cluster::start(&one).await;
    cluster.ingress("named", "named.example.com", "2026-01-01T00:00:00Z", None);
    for name in ["bare", "old", "foreign"] {
        let host = format!("{name}.example.com");
        cluster.ingress(name, &host, "2026-01-01T00:00:00Z", None);
        let mut ingress = cluster.server.get("ingresses", "shop", name).unwrap();
        ingress["apiVersion"] = "networking.k8s.io/v1".into();
        ingress["kind"] = "Ingress".into();
        ingress["spec"].as_object_mut().unwrap().remove("ingressClassName");
        let class = match name {
            "old" => json!({"kubernetes.io/ingress.class": "front"}),
            "foreign" => json!({"kubernetes.io/ingress.class": "elsewhere"}),
            _ => json!({}),
        };
        ingress["metadata"]["annotations"] = class;
        cluster.server.apply(ingress).unwrap();
    }
    let (_agent, http, _) = cluster.agent("loom-a");
    let status = |name: &str| ask(http, &format!("{name}.example.com"), "/").status;
    until("the first routes", || status("named") == 200);
    until("the old way to name a class", || status("old") == 200);
    assert_eq!(status("bare"), 404, "no class is the default");
    let class = |default: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IngressClass",
            "metadata": {"name": "front", "annotations":
                {"ingressclass.kubernetes.io/is-default-class": default}},
            "spec": {"controller": "telaio.dev/ingress"},
        })
    };
    cluster.server.apply(class("true")).unwrap();
    until("the default class", || status("bare") == 200);
    assert_eq!((status("old"), status("named"), status("foreign")), (200, 200, 404));
    let nodes = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]);
    until("its status", || cluster.status("bare") == nodes);
    assert_eq!(cluster.status("foreign"), Value::Null);
    cluster.server.apply(class("false")).unwrap();
    until("the end of the default", || status("bare") == 404);
    assert_eq!(status("old"), 200);
}
