//! What needs a server that fails on demand, or a cluster with nothing else in it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use telaio_model::{Kind, Meta, ObjectKey, Override, OverrideAction, OverrideTarget};
use telaio_source::Status;
use telaio_source::kube::{KubeError, KubeOptions, KubeSource};
use telaio_source::overrides::{Change, OverrideWriter};
use telaio_testkit::apiserver::{ApiServer, GoneForm, StreamingLists};

use crate::cluster::{service, slice};
use crate::watched::{Watched, options};

const NS: &str = "default";

/// A server and its kubeconfig.
struct Server {
    api: ApiServer,
    kubeconfig: PathBuf,
    _directory: tempfile::TempDir,
}

impl std::ops::Deref for Server {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.api
    }
}

impl Server {
    async fn start() -> Self {
        Self::of(ApiServer::start().await.unwrap())
    }

    fn of(server: ApiServer) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig_file(directory.path()).unwrap();
        Self { api: server, kubeconfig, _directory: directory }
    }

    /// A service as it would be stored.
    fn put_service(&self, name: &str, port: u16) {
        let mut object = service(name);
        object["spec"]["clusterIP"] = "10.96.0.9".into();
        object["spec"]["ports"][0]["port"] = port.into();
        self.apply(object).unwrap();
    }

    /// How many lists were asked for, of either form.
    fn lists(&self, resource: &str) -> usize {
        let requests = self.requests().into_iter().filter(|request| request.resource == resource);
        requests
            .filter(|request| {
                let first_page = request.verb == "list" && !request.uri.contains("continue=");
                first_page || request.uri.contains("sendInitialEvents=true")
            })
            .count()
    }
}

fn port(watched: &Watched, name: &str) -> Option<u16> {
    watched.service(NS, name).map(|service| service.ports[0].port)
}

/// Three kinds are watched unless a test says otherwise.
const WATCHES: usize = 3;

#[tokio::test]
async fn an_empty_cluster_syncs() {
    let server = Server::start().await;
    let watched = Watched::synced(&server.kubeconfig, options()).await;
    assert!(watched.objects.is_empty() && watched.status.is_synced());
    let nothing = KubeOptions { kinds: [].into(), ..options() };
    Watched::synced(&server.kubeconfig, nothing).await;
}

#[tokio::test]
async fn tls_with_client_certificate_and_token_works() {
    let builder = ApiServer::builder().client_certificate().token("secret");
    let server = Server::of(builder.start().await.unwrap());
    server.put_service("web", 80);
    let watched = Watched::synced(&server.kubeconfig, options()).await;
    assert_eq!(port(&watched, "web"), Some(80));
}

#[tokio::test]
async fn a_cut_watch_goes_on_where_it_was() {
    let server = Server::start().await;
    server.put_service("kept", 80);
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    for round in 0..3 {
        server.wait_for_watches(WATCHES).await;
        server.stop();
        server.put_service("kept", 81 + round);
        server.restart().await.unwrap();
        watched.until(|state| port(state, "kept") == Some(81 + round)).await;
    }
    assert_eq!(server.lists("services"), 1, "{:?}", server.requests());
}

/// The state of a source that missed a deletion, an update and an addition while the server was
/// away, and whose version is gone when it comes back.
async fn misses_everything(server: Server) {
    server.put_service("gone", 80);
    server.put_service("changed", 80);
    server.put_service("kept", 80);
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    server.wait_for_watches(WATCHES).await;
    watched.history.clear();
    server.stop();
    assert!(server.delete("services", NS, "gone"));
    server.put_service("changed", 81);
    server.put_service("new", 80);
    server.compact();
    server.restart().await.unwrap();
    watched.until(|state| !state.has(Kind::Service, NS, "gone")).await;
    assert_eq!(
        watched.history,
        ["+Service default/changed", "+Service default/new", "-Service default/gone"],
        "only differences are sent"
    );
    assert_eq!(port(&watched, "changed"), Some(81));
    server.put_service("later", 80);
    watched.until(|state| state.has(Kind::Service, NS, "later")).await;
}

#[tokio::test]
async fn a_delete_missed_during_a_cut_is_noticed_when_gone_is_an_event() {
    misses_everything(Server::start().await).await;
}

#[tokio::test]
async fn a_delete_missed_during_a_cut_is_noticed_when_gone_is_a_status() {
    let server = Server::start().await;
    server.set_gone_form(GoneForm::HttpStatus);
    misses_everything(server).await;
}

#[tokio::test]
async fn a_delete_missed_during_a_cut_is_noticed_with_paged_lists() {
    let server = Server::start().await;
    server.set_streaming_lists(StreamingLists::Refused);
    misses_everything(server).await;
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_asked_for_pages() {
    let server = ApiServer::builder().without_streaming_lists().start().await.unwrap();
    let server = Server::of(server);
    for number in 0..25 {
        server.put_service(&format!("s{number}"), 80);
    }
    let paged = KubeOptions { page_size: 10, ..options() };
    let mut watched = Watched::synced(&server.kubeconfig, paged).await;
    assert_eq!(watched.objects.len(), 25);
    assert_eq!(server.request_count("list", "services"), 3);
    server.wait_for_watches(WATCHES).await;
    server.stop();
    server.compact();
    server.put_service("new", 80);
    server.restart().await.unwrap();
    watched.until(|state| state.has(Kind::Service, NS, "new")).await;
    let streamed = server.requests();
    let streamed = streamed.iter().filter(|request| request.uri.contains("sendInitialEvents"));
    assert!(streamed.count() <= WATCHES, "the refusal is remembered");
}

#[tokio::test]
async fn a_server_that_does_not_know_streaming_lists_is_asked_for_pages() {
    let server = Server::of(
        ApiServer::builder().bookmark_period(Duration::from_millis(20)).start().await.unwrap(),
    );
    server.set_streaming_lists(StreamingLists::Ignored);
    server.put_service("web", 80);
    let watched = Watched::synced(&server.kubeconfig, options()).await;
    assert_eq!(port(&watched, "web"), Some(80));
    assert_eq!(watched.history, ["+Service default/web"]);
}

#[tokio::test]
async fn a_list_whose_pages_are_gone_starts_again() {
    let server = ApiServer::builder().without_streaming_lists().start().await.unwrap();
    let server = Server::of(server);
    for number in 0..10 {
        server.put_service(&format!("s{number}"), 80);
    }
    // The streaming list and the first page are answered; then the list is gone.
    server.fail_after(2, 1, 410);
    let paged = KubeOptions { page_size: 5, kinds: [Kind::Service].into(), ..options() };
    let watched = Watched::synced(&server.kubeconfig, paged).await;
    assert_eq!(watched.objects.len(), 10);
    assert_eq!(server.request_count("list", "services"), 4);
}

#[tokio::test]
async fn bookmarks_alone_keep_a_quiet_watch_current() {
    let server = Server::start().await;
    server.put_service("quiet", 80);
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    server.wait_for_watches(WATCHES).await;
    // Another kind changes: only a bookmark tells the watch of the new version.
    server
        .apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "busy"}}))
        .unwrap();
    let version = server.version();
    server.send_bookmarks();
    let asked = server.request_count("watch", "services");
    server.end_watches();
    server.wait_for_requests("watch", "services", asked + 1).await;
    let requests = server.requests();
    let last = requests.iter().rfind(|request| request.resource == "services").unwrap();
    assert!(last.uri.ends_with(&format!("resourceVersion={version}")), "{last:?}");
    server.put_service("quiet", 81);
    watched.until(|state| port(state, "quiet") == Some(81)).await;
    assert_eq!(server.lists("services"), 1);
}

#[tokio::test]
async fn a_forbidden_kind_is_a_problem_and_the_others_go_on() {
    let server = Server::start().await;
    server.put_service("web", 80);
    server.refuse("list", "secrets", 403);
    server.refuse("watch", "secrets", 403);
    let with_secrets = options().with_kind(Kind::TlsSecret);
    let mut watched = Watched::synced(&server.kubeconfig, with_secrets).await;
    assert!(watched.has(Kind::Service, NS, "web"));
    assert!(watched.status.is_connected(), "what is not essential does not age the state");
    let problems = watched.status.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let text = problems[0].to_string();
    for part in [
        "watch secrets",
        r#"apiGroups: [""]"#,
        r#"resources: ["secrets"]"#,
        r#"verbs: ["list", "watch"]"#,
    ] {
        assert!(text.contains(part), "{text}");
    }
    server.allow("list", "secrets");
    server.allow("watch", "secrets");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"},
        "type": "kubernetes.io/tls", "data": {"tls.crt": "Q0VSVA==", "tls.key": "S0VZ"},
    });
    server.apply(secret).unwrap();
    watched.until(|state| state.has(Kind::TlsSecret, NS, "tls")).await;
    assert!(watched.status.problems().is_empty());
}

#[tokio::test]
async fn an_essential_kind_that_is_forbidden_holds_the_state_back() {
    let server = Server::start().await;
    server.refuse("watch", "nodes", 403);
    let mut watched = Watched::start(&server.kubeconfig, options()).await;
    watched.until_status(|status| !status.problems().is_empty()).await;
    assert!(!watched.status.is_synced() && !watched.status.is_connected());
    server.allow("watch", "nodes");
    watched.sync().await;
    watched.until_status(Status::is_connected).await;
}

#[tokio::test]
async fn a_kind_that_the_server_does_not_have_does_not_hold_the_state_back() {
    let server = Server::start().await;
    let watched = Watched::synced(&server.kubeconfig, options().with_kind(Kind::Override)).await;
    assert!(watched.status.problems().is_empty(), "{:?}", watched.status.problems());
}

#[tokio::test]
async fn the_state_of_a_lost_server_stands_and_ages_and_recovers() {
    let server = Server::start().await;
    server.put_service("web", 80);
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    assert_eq!(watched.status.age(), Some(Duration::ZERO));
    server.stop();
    watched.until_status(|status| !status.is_connected()).await;
    let age = watched.status.age().unwrap();
    watched.until_status(|status| status.age().unwrap() > age).await;
    assert!(!watched.status.problems().is_empty(), "says what is wrong");
    watched.expect_silence(Duration::from_millis(50)).await;
    assert!(watched.has(Kind::Service, NS, "web"));
    server.put_service("web", 81);
    server.restart().await.unwrap();
    watched.until(|state| port(state, "web") == Some(81)).await;
    watched.until_status(|status| status.is_connected() && status.problems().is_empty()).await;
    assert_eq!(watched.status.age(), Some(Duration::ZERO));
}

#[tokio::test]
async fn a_server_that_is_away_at_first_is_waited_for() {
    let server = Server::start().await;
    server.put_service("web", 80);
    server.stop();
    let mut watched = Watched::start(&server.kubeconfig, options()).await;
    watched.until_status(|status| !status.problems().is_empty()).await;
    assert_eq!(watched.status.age(), None);
    server.restart().await.unwrap();
    watched.sync().await;
    assert!(watched.has(Kind::Service, NS, "web"));
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let builder = ApiServer::builder().bookmark_period(Duration::from_millis(50));
    let server = Server::of(builder.start().await.unwrap());
    let quick = KubeOptions {
        silence_max: Duration::from_millis(500),
        request_timeout: Duration::from_millis(500),
        ..options()
    };
    let mut watched = Watched::synced(&server.kubeconfig, quick).await;
    let asked = server.request_count("watch", "services");
    server.pause();
    server.put_service("web", 80);
    watched.until_status(|status| !status.is_connected()).await;
    assert!(server.request_count("watch", "services") > asked);
    server.resume();
    watched.until(|state| state.has(Kind::Service, NS, "web")).await;
    watched.until_status(Status::is_connected).await;
    assert_eq!(server.lists("services"), 1, "it went on where it was");
}

#[tokio::test]
async fn a_server_that_fails_for_a_while_is_tried_again() {
    let server = Server::start().await;
    server.put_service("web", 80);
    for status in [500, 503, 429] {
        server.fail_next(7, status);
        let watched = Watched::synced(&server.kubeconfig, options()).await;
        assert!(watched.has(Kind::Service, NS, "web"));
    }
}

#[tokio::test]
async fn a_server_whose_watches_fail_is_asked_for_lists() {
    let server = Server::start().await;
    server.put_service("web", 80);
    for resource in ["services", "endpointslices", "nodes"] {
        server.refuse("watch", resource, 500);
    }
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    assert_eq!(port(&watched, "web"), Some(80));
    server.put_service("web", 81);
    watched.until(|state| port(state, "web") == Some(81)).await;
    server.delete("services", NS, "web");
    watched.until(|state| !state.has(Kind::Service, NS, "web")).await;
}

#[tokio::test]
async fn an_object_that_cannot_be_used_is_a_problem_and_its_last_good_value_stands() {
    let server = Server::start().await;
    server.put_service("web", 80);
    let broken = |name: &str, spec: Value| {
        let mut object = service(name);
        object["spec"] = spec;
        server.apply(object).unwrap();
    };
    broken("never-good", json!({"clusterIP": "10.96.0.300", "ports": [{"port": 80}]}));
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    assert_eq!(watched.objects.len(), 1);
    let problem = |watched: &Watched, object: &str| {
        let problems = watched.status.problems();
        problems.into_iter().find(|problem| problem.object.as_deref() == Some(object))
    };
    assert!(problem(&watched, "Service default/never-good").is_some());

    // Of a wrong value, of a wrong type, and of nothing at all.
    for spec in [
        json!({"clusterIP": "10.96.0.9", "ports": [{"port": 70_000}]}),
        json!({"clusterIP": "10.96.0.9", "ports": "eighty"}),
        Value::Null,
    ] {
        broken("web", spec);
        watched
            .until_status(|s| {
                s.problems().iter().any(|p| p.object.as_deref() == Some("Service default/web"))
            })
            .await;
        assert_eq!(port(&watched, "web"), Some(80));
        server.put_service("web", 81);
        watched.until(|state| port(state, "web") == Some(81)).await;
        assert_eq!(problem(&watched, "Service default/web"), None);
        server.put_service("web", 80);
        watched.until(|state| port(state, "web") == Some(80)).await;
    }
    server.delete("services", NS, "never-good");
    server.put_service("later", 80);
    watched.until(|state| state.has(Kind::Service, NS, "later")).await;
    assert!(watched.status.problems().is_empty(), "{:?}", watched.status.problems());
}

#[tokio::test]
async fn nil_fields_of_a_slice_are_taken() {
    let server = Server::start().await;
    let mut object = slice("nil", "web", &["10.1.0.1"]);
    object["ports"] = json!([{"name": null, "port": null, "protocol": null}]);
    object["endpoints"][0]["conditions"] = Value::Null;
    object["endpoints"].as_array_mut().unwrap().push(json!({"addresses": ["10.1.0.2"]}));
    server.apply(object).unwrap();
    let watched = Watched::synced(&server.kubeconfig, options()).await;
    let slice = watched.slice(NS, "nil").unwrap();
    assert_eq!(slice.ports[0].port, None);
    assert_eq!(slice.endpoints.len(), 2);
}

#[tokio::test]
async fn managed_fields_and_the_like_are_not_kept() {
    let server = Server::start().await;
    let mut object = service("web");
    object["spec"]["clusterIP"] = "10.96.0.9".into();
    object["metadata"]["managedFields"] = json!([{"manager": "x".repeat(1_000_000)}]);
    object["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": "y".repeat(100_000)});
    server.apply(object.clone()).unwrap();
    let mut watched = Watched::synced(&server.kubeconfig, options()).await;
    let kept = serde_json::to_string(watched.service(NS, "web").unwrap()).unwrap();
    assert!(kept.len() < 1_000, "{} bytes", kept.len());
    // Nor is a change of nothing else delivered.
    watched.history.clear();
    object["metadata"]["managedFields"] = json!([{"manager": "z"}]);
    server.apply(object).unwrap();
    server.put_service("later", 80);
    watched.until(|state| state.has(Kind::Service, NS, "later")).await;
    assert_eq!(watched.history, ["+Service default/later"]);
}

#[tokio::test]
async fn a_load_says_what_did_not_come() {
    let server = Server::start().await;
    let load = async |options: KubeOptions| {
        let status = std::sync::Arc::default();
        let source = KubeSource::connect(Some(server.kubeconfig.clone()), options, status);
        source.await.unwrap().load_once().await.unwrap_err()
    };
    server.refuse("watch", "endpointslices", 500);
    server.refuse("list", "endpointslices", 500);
    let brief = KubeOptions { load_timeout: Duration::from_millis(300), ..options() };
    let error = load(brief.clone()).await;
    assert!(
        matches!(&error, KubeError::NotSynced { waiting, .. } if waiting.starts_with("endpointslices (")),
        "{error}"
    );

    server.refuse("watch", "endpointslices", 403);
    let error = load(options()).await;
    assert!(
        matches!(&error, KubeError::Refused { message, .. } if message.contains("endpointslices")),
        "{error}"
    );

    server.stop();
    let error = load(brief).await;
    assert!(matches!(&error, KubeError::NotSynced { .. }), "{error}");
    assert!(error.to_string().contains("onnection refused"), "{error}");
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let connect = async |path: PathBuf| {
        let source = KubeSource::connect(Some(path), options(), std::sync::Arc::default());
        source.await.unwrap_err()
    };
    let missing = directory.path().join("missing");
    assert!(matches!(connect(missing).await, KubeError::Unreadable { .. }));
    let broken = directory.path().join("broken");
    std::fs::write(&broken, "clusters: 7").unwrap();
    assert!(matches!(connect(broken).await, KubeError::Invalid { .. }));
    let empty = directory.path().join("empty");
    std::fs::write(&empty, "apiVersion: v1\nkind: Config\n").unwrap();
    assert!(matches!(connect(empty).await, KubeError::Invalid { .. }));
}

#[tokio::test]
async fn the_watches_end_with_their_source() {
    let server = Server::start().await;
    let watched = Watched::synced(&server.kubeconfig, options()).await;
    server.wait_for_watches(WATCHES).await;
    drop(watched);
    server.wait_for_watches(0).await;
}

/// Somebody's decision.
fn decided(name: &str, until_s: Option<i64>) -> Override {
    Override {
        meta: Meta::named(ObjectKey::new("shop", name)),
        object: ObjectKey::new("shop", "web"),
        target: OverrideTarget::Pod("web-1".into()),
        action: OverrideAction::Drain,
        by: "anna".into(),
        reason: "disk".into(),
        since_s: None,
        until_s,
    }
}

fn set(it: &Override) -> Vec<Change> {
    vec![Change { key: it.meta.key.clone(), before: None, after: Some(it.clone()) }]
}

fn replace(before: &Override, after: Option<&Override>) -> Vec<Change> {
    let (before, after) = (before.clone(), after.cloned());
    vec![Change { key: before.meta.key.clone(), before: Some(before), after }]
}

#[tokio::test]
async fn an_override_that_another_changed_or_that_stands_elsewhere_is_left_alone_and_told() {
    let server = Server::start().await;
    let client = telaio_source::kube::client(Some(server.kubeconfig.clone())).await.unwrap();
    let (one, other) = (
        OverrideWriter::kube(client.clone(), "kube-system"),
        OverrideWriter::kube(client, "kube-system"),
    );
    let data =
        || server.get("configmaps", "kube-system", "telaio-overrides").unwrap()["data"].clone();
    let (seen, theirs) = (decided("a", None), Override { by: "bob".into(), ..decided("a", None) });
    one.write(set(&seen)).await.unwrap();
    other.write(replace(&seen, Some(&theirs))).await.unwrap();
    let kept = data();
    for change in [replace(&seen, None), set(&seen)] {
        let error = one.write(change).await.unwrap_err().to_string();
        assert!(error.contains("bob decided anew"), "{error}");
        assert_eq!(data(), kept);
    }
    // Somebody's own ConfigMap.
    let entry = telaio_source::overrides::manifest(&decided("b", None)).to_string();
    let map = serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "from-git", "namespace": "kube-system",
            "labels": { "telaio.dev/config": "overrides", "telaio.dev/overrides": "true" },
        },
        "data": { "mine": entry },
    });
    server.apply(map).unwrap();
    let error = one.write(replace(&decided("b", None), None)).await.unwrap_err().to_string();
    assert!(error.contains("the entry mine of the ConfigMap kube-system/from-git"), "{error}");
    let error = one.write(replace(&decided("c", None), None)).await.unwrap_err().to_string();
    assert!(error.contains("somebody took it back"), "{error}");
    one.write(replace(&decided("c", Some(100)), None)).await.unwrap();
    assert_eq!(data(), kept);
}

#[tokio::test]
async fn overrides_are_written_again_after_a_conflict_and_refusals_say_what_to_do() {
    let server = Server::start().await;
    let client = telaio_source::kube::client(Some(server.kubeconfig.clone())).await.unwrap();
    let writer = OverrideWriter::kube(client, "kube-system");
    let data = || {
        let map = server.get("configmaps", "kube-system", "telaio-overrides");
        map.map(|map| map["data"].clone()).unwrap_or_default()
    };
    writer.write(set(&decided("a", None))).await.unwrap();
    // Another writes between our reading and our writing: it is read again.
    server.fail_after(1, 1, 409);
    writer.write(set(&decided("b", Some(100)))).await.unwrap();
    assert_eq!(data().as_object().unwrap().len(), 2, "{}", data());

    // What has ended goes only as it was seen.
    let seen = decided("b", Some(100));
    writer.write(set(&decided("b", None))).await.unwrap();
    assert_eq!(writer.remove_seen(vec![seen.clone()]).await.unwrap(), []);
    writer.write(replace(&decided("b", None), Some(&seen))).await.unwrap();
    server.fail_after(1, 1, 409);
    assert_eq!(
        writer.remove_seen(vec![seen.clone()]).await.unwrap(),
        std::slice::from_ref(&seen.meta.key)
    );
    assert_eq!(data().as_object().unwrap().keys().collect::<Vec<_>>(), ["shop.a.json"]);

    server.refuse("update", "configmaps", 403);
    let error = writer.write(set(&seen)).await.unwrap_err().to_string();
    assert!(error.contains("deploy/overrides-rbac.yaml"), "{error}");
    assert!(error.contains("kube-system/telaio-overrides"), "{error}");
    // Whoever keeps writing does not keep us for ever.
    server.allow("update", "configmaps");
    server.refuse("update", "configmaps", 409);
    let error = writer.write(set(&seen)).await.unwrap_err().to_string();
    assert!(error.contains("again and again"), "{error}");
}

/// What the roles of deploy/overrides-rbac.yaml allow the agent: verb and resource.
fn allowed() -> BTreeSet<(String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/overrides-rbac.yaml");
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    // Those of people: what they may is asked, not done.
    let people = ["telaio-admin", "telaio-viewer"];
    let agents =
        objects.iter().filter(|it| !people.contains(&it["metadata"]["name"].as_str().unwrap()));
    let mut allowed = BTreeSet::new();
    for rule in agents.filter_map(|object| object["rules"].as_array()).flatten() {
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

#[tokio::test]
async fn what_deciding_asks_of_a_cluster_is_what_the_manifest_allows() {
    let server = Server::start().await;
    let client = telaio_source::kube::client(Some(server.kubeconfig.clone())).await.unwrap();
    let writer = OverrideWriter::kube(client.clone(), "kube-system");
    writer.write(set(&decided("a", None))).await.unwrap();
    writer.write(set(&decided("b", Some(100)))).await.unwrap();
    writer.remove_seen(vec![decided("b", Some(100))]).await.unwrap();
    writer.write(replace(&decided("c", None), None)).await.unwrap_err();
    assert!(telaio_source::kube::review(&client, "nobody's").await.unwrap().is_none());
    let (allowed, seen) = (allowed(), server.requests());
    let asked = seen.iter().filter(|it| !it.resource.starts_with('/'));
    let asked: BTreeSet<_> = asked.map(|it| (it.verb.clone(), it.resource.clone())).collect();
    let too_much: Vec<_> = asked.difference(&allowed).collect();
    assert!(too_much.is_empty(), "{too_much:?} beyond {allowed:?}");
    for (verb, resource) in
        [("get", "configmaps"), ("create", "configmaps"), ("update", "configmaps")]
    {
        assert!(asked.contains(&(verb.into(), resource.into())), "{verb} {resource}: {asked:?}");
    }
    for resource in ["tokenreviews", "subjectaccessreviews"] {
        assert!(allowed.contains(&("create".into(), resource.into())), "{allowed:?}");
    }
    for (verb, resource) in [("list", "configmaps"), ("watch", "overrides")] {
        assert!(allowed.contains(&(verb.into(), resource.into())), "{allowed:?}");
    }
}
