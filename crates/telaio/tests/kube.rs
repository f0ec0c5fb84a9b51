//! The binary with a Kubernetes API server as its source.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use serde_json::Value;
use support::{Agent, Manifests, ask_until, examples, get, id_of, run_args, send};
use telaio_testkit::apiserver::{ApiServer, Resource};
use tempfile::TempDir;

/// Those that a cluster would have as they are: orders.yaml leaves to a control plane what an API
/// server does not do.
const FILES: [&str; 6] =
    ["nodes.yaml", "web.yaml", "frontend.yaml", "public.yaml", "dns.yaml", "override.yaml"];

struct Cluster {
    server: ApiServer,
    dir: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::builder()
            .register(Resource::new("telaio.dev/v1", "overrides", "Override"))
            .start()
            .await
            .unwrap();
        for file in FILES {
            let text = std::fs::read_to_string(examples().join(file)).unwrap();
            let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
            server.apply_many(objects).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        Self { server, dir }
    }

    fn source(&self) -> String {
        let file = self.server.kubeconfig_file(self.dir.path()).unwrap();
        format!("--source=kube:{}", file.display())
    }
}

/// The same objects in a directory.
fn directory() -> Manifests {
    let manifests = Manifests::empty();
    for file in FILES {
        manifests.write(file, &std::fs::read_to_string(examples().join(file)).unwrap());
    }
    manifests
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_and_a_directory_of_the_same_objects_give_the_same_view() {
    let cluster = Cluster::start().await;
    for node in ["--node=loom-a", "--node=loom-b"] {
        let from_files = run_args(["render", &directory().source(), node]);
        let from_cluster = run_args(["render", &cluster.source(), node]);
        assert_eq!(from_cluster.code, Some(0), "{}", from_cluster.stderr);
        assert_eq!(from_cluster.stdout, from_files.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_our_own_kind_is_in_order() {
    let server = ApiServer::start().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = server.kubeconfig_file(dir.path()).unwrap();
    let ended = run_args(["render", &format!("--source=kube:{}", file.display()), "--node=a"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "node: a\nservices: []\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_state_stands_while_the_api_server_is_away() {
    let cluster = Cluster::start().await;
    let agent = Agent::start(&["run", "--node=loom-a", &cluster.source()]);
    ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    cluster.server.stop();
    let body = ask_until(agent.healthz, "/healthz", |_, body| {
        let health: Value = serde_json::from_str(body).unwrap();
        health["source_connected"] == false && health["state_age_s"].as_f64() > Some(0.0)
    });
    assert_eq!(get(agent.healthz, "/healthz").0, 200, "{body}");
    let page = get(agent.metrics, "/metrics").1;
    assert!(page.lines().any(|line| line == "telaio_source_connected 0"), "{page}");
    assert!(page.contains("telaio_source_state_age_seconds "), "{page}");

    cluster.server.restart().await.unwrap();
    assert!(cluster.server.delete("services", "shop", "web"));
    agent.wait_out("- shop/web");
    ask_until(agent.healthz, "/healthz", |_, body| body.contains("\"source_connected\": true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_shows_that_the_source_is_lost_and_how_its_state_ages() {
    let cluster = Cluster::start().await;
    let agent = Agent::start(&["run", "--node=loom-a", &cluster.source()]);
    ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    let overview = |wanted: &dyn Fn(&Value) -> bool| -> Value {
        let body = ask_until(agent.admin, "/api/v1/overview", |status, body| {
            status == 200 && serde_json::from_str(body).is_ok_and(|it: Value| wanted(&it))
        });
        serde_json::from_str(&body).unwrap()
    };
    let is_told = |overview: &Value| {
        let all = overview["attention"].as_array().unwrap();
        all.iter().any(|it| it["kind"] == "source" && it["state"] == "error")
    };
    let well = overview(&|it| it["source"]["connected"] == true);
    assert!(!is_told(&well), "{well}");
    assert_eq!(well["planes"][0]["state"], "ok", "{well}");

    cluster.server.stop();
    let lost = overview(&|it| it["source"]["connected"] == false);
    assert!(is_told(&lost), "{lost}");
    assert_eq!(
        (&lost["planes"][0]["name"], &lost["planes"][0]["state"], &lost["source"]["synced"]),
        (&"source".into(), &"warning".into(), &true.into()),
        "{lost}"
    );
    assert_eq!(lost["counts"]["services"], well["counts"]["services"], "the last state stands");
    let age = |it: &Value| it["source"]["age_s"].as_f64().unwrap();
    let first = age(&lost);
    let later = overview(&|it| age(it) >= first + 1.0);
    assert!(is_told(&later), "{later}");
    ask_until(agent.admin, "/api/v1/events?kind=source", |_, body| body.contains("out of touch"));

    cluster.server.restart().await.unwrap();
    let again = overview(&|it| it["source"]["connected"] == true && !is_told(it));
    assert!(age(&again) < age(&later), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_server_refuses_is_said() {
    let cluster = Cluster::start().await;
    cluster.server.refuse("list", "services", 403);
    cluster.server.refuse("watch", "services", 403);
    let ended = run_args(["render", &cluster.source(), "--node=loom-a", "--timeout=20s"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("services"), "{ended:?}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_decided_at_one_agent_is_in_a_config_map_and_followed_by_another() {
    let cluster = Cluster::start().await;
    let source = cluster.source();
    let first = Agent::start(&["run", "--node=loom-a", &source]);
    let second = Agent::start(&["run", "--node=loom-b", &source]);
    let path = "/api/v1/services/shop/web";
    let drained = |body: &str, pod: &str| {
        let detail: Value = serde_json::from_str(body).unwrap_or_default();
        let all = detail["endpoint_items"].as_array().cloned().unwrap_or_default();
        all.iter().any(|it| it["pod"] == pod && it["drained"] == true)
    };
    let body = ask_until(second.admin, path, |status, _| status == 200);
    let detail: Value = serde_json::from_str(&body).unwrap();
    let pod = detail["endpoint_items"][0]["pod"].as_str().unwrap().to_owned();
    assert!(!drained(&body, &pod), "{body}");
    let state = format!("--state-dir={}", first.state.path().display());
    let address = format!("--admin-listen={}", first.admin);
    let ended = run_args(["drain", "shop/web", "--pod", &pod, "--output=json", &state, &address]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    let map = cluster.server.get("configmaps", "kube-system", "telaio-overrides").unwrap();
    assert_eq!(map["data"].as_object().unwrap().len(), 1, "{map}");
    // The other agent follows, and so would one that starts now.
    ask_until(second.admin, path, |_, body| drained(body, &pod));
    let third = Agent::start(&["run", "--node=loom-b", &source]);
    ask_until(third.admin, path, |_, body| drained(body, &pod));
    let listed = get(second.admin, "/api/v1/overrides").1;
    assert!(listed.contains("\"managed\": true"), "{listed}");
    let (id, undo) = (id_of(&done), ["overrides", "undo"]);
    let ended = run_args([undo[0], undo[1], &id, &state, &address]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ask_until(second.admin, path, |_, body| !drained(body, &pod));
    ask_until(third.admin, path, |_, body| !drained(body, &pod));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_the_cluster_look_act_or_are_refused_as_it_says() {
    const OURS: &str = "overrides.telaio.dev";
    let cluster = Cluster::start().await;
    let server = &cluster.server;
    server.account("writes", "anna", &["get", "update"], OURS);
    server.account("reads", "otto", &["get"], OURS);
    server.account("elsewhere", "eve", &["get", "update"], "services.");
    server.account("late", "luis", &["get"], OURS);
    server.account("unheard", "uma", &["get"], OURS);
    let agent = Agent::start(&["run", "--node=loom-a", "--admin-token-review", &cluster.source()]);
    ask_until(agent.healthz, "/healthz", |status, _| status == 200);
    let look = |token: &str| {
        let (status, body) = send(agent.admin, token, "/api/v1/whoami", None);
        let who: Value = serde_json::from_str(&body).unwrap();
        (status, who["name"].as_str().map(str::to_owned), who["role"].as_str().map(str::to_owned))
    };
    let known = |name: &str, role: &str| (200, Some(name.to_owned()), Some(role.to_owned()));
    let refused = |status| (status, None, None);
    let drain = r#"{"action": {"kind": "drain", "service": {"namespace": "shop", "name": "web"},
        "target": {"node": "loom-b"}}, "dry_run": true}"#;
    let act = |token: &str| send(agent.admin, token, "/api/v1/actions", Some(drain));

    assert_eq!(look("writes"), known("anna", "admin"));
    assert_eq!(act("writes").0, 200, "{:?}", act("writes"));
    assert_eq!(look("reads"), known("otto", "read"));
    assert_eq!(act("reads").0, 403);
    // Known to the cluster, but with nothing to do here; and known to nobody.
    for token in ["elsewhere", "nobodys"] {
        assert_eq!((look(token), act(token).0), (refused(401), 401), "{token}");
    }
    assert_eq!(server.request_count("create", "tokenreviews"), 4, "each token is asked about once");

    // A cluster that does not say is no reason to call a token wrong, and no reason to trust it.
    server.refuse("create", "subjectaccessreviews", 500);
    assert_eq!(look("late"), refused(503));
    server.allow("create", "subjectaccessreviews");
    assert_eq!(look("late"), known("luis", "read"));
    server.stop();
    for _ in 0..15 {
        assert_eq!((look("unheard"), act("unheard").0), (refused(503), 503));
    }
    let (_, body) = send(agent.admin, "unheard", "/api/v1/whoami", None);
    assert!(body.contains("the agent's own tokens") && !body.contains("unheard"), "{body}");
    assert_eq!(get(agent.admin, "/api/v1/whoami").0, 200, "the agent's own token needs no cluster");
    server.restart().await.unwrap();
    assert_eq!(look("unheard"), known("uma", "read"));
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for token in ["elsewhere", "nobodys", "unheard"] {
        assert!(!log.contains(token), "a token in the log: {log}");
    }
}
