//! What is written to an API server, and by whom.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use telaio_gateway::status::{LEASE_NAME, LeaseTimes, StatusHandle, StatusSettings, StatusWriter};
use telaio_gateway::{Commit, IngressEvent, Reason, Warning};
use telaio_model::{Ingress, Meta, ObjectKey};
use telaio_testkit::apiserver::ApiServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Short, so that tests are; the proportions are those of the default.
const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(1),
    renew: Duration::from_millis(300),
    look: Duration::from_millis(200),
};
const PATIENCE: Duration = Duration::from_secs(30);

struct Writer {
    handle: StatusHandle,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Writer {
    async fn start(server: &ApiServer, identity: &str, publish: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig_file(dir.path()).unwrap();
        let client = telaio_source::kube::client(Some(kubeconfig)).await.unwrap();
        let settings = StatusSettings {
            identity: identity.to_owned(),
            namespace: "kube-system".to_owned(),
            publish_service: publish.map(ObjectKey::parse),
            times: TIMES,
        };
        let (writer, handle) = StatusWriter::new(client, settings);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(writer.run(async move {
            let _ = stopped.await;
        }));
        Self { handle, stop: Some(stop), task }
    }

    /// Ends as a process does that is told to.
    async fn end(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.task).await.unwrap();
    }

    /// Ends as a process does that is killed.
    fn kill(self) {
        self.task.abort();
    }

    fn nodes(&self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|it| it.parse().unwrap()).collect();
        self.handle.note(&IngressEvent::Nodes(addresses));
    }

    fn ours(&self, ingress: &Arc<Ingress>) {
        let mut commit = Commit::default();
        commit.ours.insert(ingress.meta.key.clone(), Some(Arc::clone(ingress)));
        self.handle.tell(&commit);
    }

    fn warn(&self, key: &str, messages: &[&str]) {
        let key = ObjectKey::parse(key);
        let warning = |message: &&str| Warning::new(&key, Reason::Conflict, message);
        let mut commit = Commit::default();
        commit.warnings.insert(key.clone(), messages.iter().map(warning).collect());
        self.handle.tell(&commit);
    }
}

fn ingress(name: &str, status: &[&str]) -> Arc<Ingress> {
    Arc::new(Ingress {
        meta: Meta::named(ObjectKey::new("default", name)),
        class: None,
        default_backend: None,
        rules: vec![],
        tls: vec![],
        status_ips: status.iter().map(|it| it.parse().unwrap()).collect(),
        status_hostnames: vec![],
    })
}

async fn server_with(names: &[&str]) -> ApiServer {
    let server = ApiServer::start().await.unwrap();
    for name in names {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}},
        });
        server.apply(object).unwrap();
    }
    server
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "no {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn addresses(server: &ApiServer, name: &str) -> Value {
    let object = server.get("ingresses", "default", name).unwrap();
    object["status"]["loadBalancer"]["ingress"].clone()
}

fn holder(server: &ApiServer) -> String {
    let lease = server.get("leases", "kube-system", LEASE_NAME);
    lease.map_or_else(String::new, |it| it["spec"]["holderIdentity"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn the_addresses_of_nodes_are_written_where_they_are_not_right_already() {
    let server = server_with(&["new", "right"]).await;
    let writer = Writer::start(&server, "a", None).await;
    writer.nodes(&["192.0.2.2", "192.0.2.1"]);
    writer.ours(&ingress("new", &[]));
    writer.ours(&ingress("right", &["192.0.2.1", "192.0.2.2"]));
    let wanted = json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]);
    until("status", || (addresses(&server, "new") == wanted).then_some(())).await;
    // What is right was not touched, and what was written is not written again.
    writer.ours(&ingress("new", &[]));
    writer.ours(&ingress("new", &["192.0.2.1", "192.0.2.2"]));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(addresses(&server, "right"), Value::Null);
    assert_eq!(server.request_count("patch", "ingresses/status"), 1);
    writer.nodes(&["192.0.2.3"]);
    let wanted = json!([{"ip": "192.0.2.3"}]);
    until("another status", || (addresses(&server, "new") == wanted).then_some(())).await;
    writer.end().await;
}

#[tokio::test]
async fn the_published_services_addresses_are_written() {
    let server = server_with(&["web"]).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "edge", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}},
    });
    server.apply(service).unwrap();
    let writer = Writer::start(&server, "a", Some("default/edge")).await;
    writer.nodes(&["192.0.2.1"]);
    writer.ours(&ingress("web", &[]));
    let wanted = json!([{"hostname": "lb.example.com"}]);
    until("status", || (addresses(&server, "web") == wanted).then_some(())).await;
    writer.end().await;
}

#[tokio::test]
async fn one_writes_at_a_time_and_the_next_takes_over_when_it_ends() {
    let server = server_with(&["web"]).await;
    let first = Writer::start(&server, "a", None).await;
    until("holder", || (holder(&server) == "a").then_some(())).await;
    let second = Writer::start(&server, "b", None).await;
    second.nodes(&["192.0.2.9"]);
    second.ours(&ingress("web", &[]));
    tokio::time::sleep(TIMES.duration * 2).await;
    assert_eq!(holder(&server), "a", "a Lease that is renewed is not taken");
    assert_eq!(addresses(&server, "web"), Value::Null, "who does not hold it does not write");
    first.end().await;
    until("the other holder", || (holder(&server) == "b").then_some(())).await;
    let wanted = json!([{"ip": "192.0.2.9"}]);
    until("status", || (addresses(&server, "web") == wanted).then_some(())).await;
    second.end().await;
    assert_eq!(holder(&server), "", "it was given back");
}

#[tokio::test]
async fn the_lease_of_a_holder_that_died_is_taken_over() {
    let server = server_with(&[]).await;
    let first = Writer::start(&server, "a", None).await;
    until("holder", || (holder(&server) == "a").then_some(())).await;
    let second = Writer::start(&server, "b", None).await;
    first.kill();
    until("the other holder", || (holder(&server) == "b").then_some(())).await;
    let lease = server.get("leases", "kube-system", LEASE_NAME).unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    second.end().await;
}

#[tokio::test]
async fn of_many_that_want_the_lease_at_once_one_gets_it() {
    let server = server_with(&[]).await;
    let mut writers = Vec::new();
    for number in 0..8 {
        writers.push(Writer::start(&server, &format!("w{number}"), None).await);
    }
    let first = until("holder", || Some(holder(&server)).filter(|it| !it.is_empty())).await;
    for _ in 0..10 {
        tokio::time::sleep(TIMES.look / 2).await;
        assert_eq!(holder(&server), first);
    }
    for writer in writers {
        writer.kill();
    }
}

#[tokio::test]
async fn a_writer_that_lost_the_lease_to_another_does_not_take_it_back() {
    let server = server_with(&[]).await;
    let writer = Writer::start(&server, "a", None).await;
    until("holder", || (holder(&server) == "a").then_some(())).await;
    // Somebody writes in between: the version that the holder knows is no longer the present one.
    let mut lease = server.get("leases", "kube-system", LEASE_NAME).unwrap();
    lease["apiVersion"] = "coordination.k8s.io/v1".into();
    lease["kind"] = "Lease".into();
    lease["spec"]["holderIdentity"] = "thief".into();
    lease["spec"]["leaseDurationSeconds"] = 3600.into();
    lease["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    server.apply(lease).unwrap();
    tokio::time::sleep(TIMES.renew * 2).await;
    assert_eq!(holder(&server), "thief");
    // It does not renew, so after a while it is free again.
    until("holder", || (holder(&server) == "a").then_some(())).await;
    writer.end().await;
}

#[tokio::test]
async fn a_warning_is_one_event_however_often_it_is_told() {
    let server = server_with(&["web"]).await;
    let writer = Writer::start(&server, "a", None).await;
    writer.warn("default/web", &["one", "two"]);
    until("events", || (server.count("events") == 2).then_some(())).await;
    writer.warn("default/web", &["one", "two"]);
    writer.warn("default/web", &[]);
    writer.warn("default/web", &["one"]);
    until("count", || (server.request_count("patch", "events") == 1).then_some(())).await;
    assert_eq!(server.count("events"), 2);
    // Who takes over tells what holds, and makes no second Event of it.
    let second = Writer::start(&server, "b", None).await;
    second.warn("default/web", &["one"]);
    second.warn("default/gone", &["nobody hears of what is not there"]);
    writer.end().await;
    until("count", || (server.request_count("patch", "events") == 2).then_some(())).await;
    assert_eq!(server.count("events"), 2);
    second.end().await;
}

#[tokio::test]
async fn what_was_being_written_when_the_lease_was_renewed_is_written_still() {
    let server = server_with(&["web"]).await;
    let writer = Writer::start(&server, "a", None).await;
    until("holder", || (holder(&server) == "a").then_some(())).await;
    // The server takes requests and answers none, over a renewal and less long than the Lease holds.
    server.pause();
    writer.nodes(&["192.0.2.1"]);
    writer.ours(&ingress("web", &[]));
    writer.warn("default/web", &["one"]);
    tokio::time::sleep(TIMES.renew * 2).await;
    server.resume();
    let wanted = json!([{"ip": "192.0.2.1"}]);
    until("status", || (addresses(&server, "web") == wanted).then_some(())).await;
    until("event", || (server.count("events") == 1).then_some(())).await;
    writer.end().await;
}

#[tokio::test]
async fn one_that_is_refused_keeps_no_other_waiting() {
    let server = server_with(&["a", "b"]).await;
    let writer = Writer::start(&server, "a", None).await;
    server.refuse("create", "events", 403);
    writer.warn("default/a", &["one"]);
    writer.nodes(&["192.0.2.1"]);
    until("holder", || (holder(&server) == "a").then_some(())).await;
    server.wait_for_requests("create", "events", 1).await;
    writer.ours(&ingress("a", &[]));
    let wanted = json!([{"ip": "192.0.2.1"}]);
    until("status", || (addresses(&server, "a") == wanted).then_some(())).await;
    server.allow("create", "events");
    writer.warn("default/b", &["two"]);
    until("event", || (server.count("events") == 1).then_some(())).await;
    writer.end().await;
}

#[tokio::test]
async fn an_ingress_that_came_back_is_written_again() {
    let server = server_with(&["web"]).await;
    let writer = Writer::start(&server, "a", None).await;
    writer.nodes(&["192.0.2.1"]);
    writer.ours(&ingress("web", &[]));
    let wanted = json!([{"ip": "192.0.2.1"}]);
    until("status", || (addresses(&server, "web") == wanted).then_some(())).await;
    // Deleted and made anew before what was written came back.
    let mut gone = Commit::default();
    gone.ours.insert(ObjectKey::new("default", "web"), None);
    writer.handle.tell(&gone);
    server.delete("ingresses", "default", "web");
    tokio::time::sleep(TIMES.look).await;
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "web", "namespace": "default"},
    });
    server.apply(object).unwrap();
    writer.ours(&ingress("web", &[]));
    until("status", || (addresses(&server, "web") == wanted).then_some(())).await;
    writer.end().await;
}

#[tokio::test]
async fn a_server_that_refuses_is_asked_again() {
    let server = server_with(&["web"]).await;
    server.refuse("create", "leases", 403);
    let writer = Writer::start(&server, "a", None).await;
    writer.nodes(&["192.0.2.1"]);
    writer.ours(&ingress("web", &[]));
    server.wait_for_requests("create", "leases", 2).await;
    assert_eq!(addresses(&server, "web"), Value::Null);
    server.allow("create", "leases");
    let wanted = json!([{"ip": "192.0.2.1"}]);
    until("status", || (addresses(&server, "web") == wanted).then_some(())).await;
    writer.end().await;
}
