//! The test API server against plain HTTP and against the client that Telaio uses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, also in its helpers"
)]

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Service};
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use telaio_testkit::apiserver::{ApiServer, GoneForm, Resource, StreamingLists};
use tokio::net::TcpStream;

async fn send(
    server: &ApiServer,
    method: Method,
    path: &str,
    body: Value,
) -> http::Response<Incoming> {
    let stream = TcpStream::connect(server.url().trim_start_matches("http://")).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let media_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "test")
        .header("content-type", media_type)
        .body(Full::new(body))
        .unwrap();
    sender.send_request(request).await.unwrap()
}

async fn call(server: &ApiServer, method: Method, path: &str, body: Value) -> (u16, Value) {
    let response = send(server, method, path, body).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

async fn get(server: &ApiServer, path: &str) -> (u16, Value) {
    call(server, Method::GET, path, Value::Null).await
}

/// The lines of a watch.
struct Lines {
    body: Incoming,
    text: Vec<u8>,
}

impl Lines {
    async fn open(server: &ApiServer, path: &str) -> Self {
        let response = send(server, Method::GET, path, Value::Null).await;
        assert_eq!(response.status(), 200, "{path}");
        Self { body: response.into_body(), text: Vec::new() }
    }

    /// The next event as its type, the object's name and its version; `None` at the end.
    async fn next(&mut self) -> Option<(String, String, Value)> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                let object = event["object"].clone();
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                return Some((text(&event["type"]), text(&object["metadata"]["name"]), object));
            }
            let frame = self.body.frame().await?.ok()?;
            self.text.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    async fn expect(&mut self, event_type: &str, name: &str) -> Value {
        let (got_type, got_name, object) = self.next().await.expect("the watch ended");
        assert_eq!((got_type.as_str(), got_name.as_str()), (event_type, name), "{object}");
        object
    }
}

fn config_map(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
    })
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn client(server: &ApiServer) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap()).unwrap()
}

#[tokio::test]
async fn an_object_is_created_read_updated_and_deleted() {
    let server = ApiServer::start().await.unwrap();
    let (status, made) =
        call(&server, Method::POST, CONFIG_MAPS, config_map("a", &json!({}))).await;
    assert_eq!(status, 201);
    assert_eq!(made["kind"], "ConfigMap");
    assert!(
        made["metadata"]["uid"].is_string() && made["metadata"]["creationTimestamp"].is_string()
    );
    let (status, again) =
        call(&server, Method::POST, CONFIG_MAPS, config_map("a", &json!({}))).await;
    assert_eq!((status, &again["reason"]), (409, &json!("AlreadyExists")));

    let path = format!("{CONFIG_MAPS}/a");
    let mut changed = made.clone();
    changed["data"] = json!({"x": "1"});
    let (status, updated) = call(&server, Method::PUT, &path, changed.clone()).await;
    assert_eq!((status, &updated["data"]["x"]), (200, &json!("1")));
    assert_eq!(updated["metadata"]["uid"], made["metadata"]["uid"]);
    let (status, conflict) = call(&server, Method::PUT, &path, changed).await;
    assert_eq!((status, &conflict["reason"]), (409, &json!("Conflict")));
    assert_eq!(get(&server, &path).await.1, updated);

    let (status, _) = call(&server, Method::DELETE, &path, Value::Null).await;
    assert_eq!((status, get(&server, &path).await.0), (200, 404));
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_version() {
    let server = ApiServer::start().await.unwrap();
    let first = server.apply(config_map("a", &json!({"x": "y"}))).unwrap();
    let version = server.version();
    assert_eq!(server.apply(config_map("a", &json!({"x": "y"}))).unwrap(), first);
    assert_eq!(server.version(), version);
    server.apply(config_map("a", &json!({"x": "z"}))).unwrap();
    assert_eq!(server.version(), version + 1);
}

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let server = ApiServer::start().await.unwrap();
    let services = "/api/v1/namespaces/default/services";
    let service =
        |name: &str, spec: Value| json!({"metadata": {"generateName": name}, "spec": spec});
    let make = async |spec: Value| call(&server, Method::POST, services, service("s-", spec)).await;

    let (_, one) = make(json!({"type": "NodePort", "ports": [{"port": 80}]})).await;
    let (_, two) = make(json!({"type": "NodePort", "ports": [{"port": 80}]})).await;
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    assert_ne!(one["spec"]["clusterIP"], two["spec"]["clusterIP"]);
    assert_eq!(one["spec"]["clusterIPs"], json!([one["spec"]["clusterIP"]]));
    assert_ne!(one["spec"]["ports"][0]["nodePort"], two["spec"]["ports"][0]["nodePort"]);
    assert_eq!(one["spec"]["ports"][0]["targetPort"], 80);
    let (_, headless) = make(json!({"clusterIP": "None"})).await;
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let (status, _) = make(json!({"clusterIP": one["spec"]["clusterIP"]})).await;
    assert_eq!(status, 422);
    let (status, _) =
        call(&server, Method::POST, "/api/v1/namespaces/none/services", service("s-", json!({})))
            .await;
    assert_eq!(status, 404, "there is no such namespace");
}

#[tokio::test]
async fn status_is_written_by_its_subresource_only() {
    let server = ApiServer::start().await.unwrap();
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let body = json!({"metadata": {"name": "i"}, "spec": {}, "status": {"lost": true}});
    let (_, made) = call(&server, Method::POST, ingresses, body).await;
    assert_eq!(made.get("status"), None);
    let status = json!({"spec": {"ignored": 1}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    let path = format!("{ingresses}/i");
    let (_, patched) = call(&server, Method::PATCH, &format!("{path}/status"), status).await;
    assert_eq!(patched["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    assert_eq!(patched["spec"], json!({}));
    let (_, patched) =
        call(&server, Method::PATCH, &path, json!({"spec": {"x": 1}, "status": null})).await;
    assert_eq!(patched["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    assert_eq!(patched["spec"]["x"], 1);
}

#[tokio::test]
async fn a_list_comes_in_pages_of_one_state() {
    let server = ApiServer::start().await.unwrap();
    server.apply_many((0..5).map(|n| config_map(&format!("c{n}"), &json!({})))).unwrap();
    let (_, page) = get(&server, &format!("{CONFIG_MAPS}?limit=2")).await;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["items"][0].get("kind"), None, "a real server leaves it out");
    assert_eq!(page["metadata"]["remainingItemCount"], 3);
    server.delete("configmaps", "default", "c4");
    let token = page["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = get(&server, &format!("{CONFIG_MAPS}?limit=9&continue={token}")).await;
    assert_eq!(rest["items"][2]["metadata"]["name"], "c4");
    assert_eq!(rest["metadata"]["resourceVersion"], page["metadata"]["resourceVersion"]);

    let (_, page) = get(&server, &format!("{CONFIG_MAPS}?limit=2")).await;
    server.compact();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let (status, gone) = get(&server, &format!("{CONFIG_MAPS}?limit=2&continue={token}")).await;
    assert_eq!((status, &gone["reason"]), (410, &json!("Expired")));
}

#[tokio::test]
async fn selectors_choose_what_is_listed_and_watched() {
    let server = ApiServer::start().await.unwrap();
    server.apply(config_map("a", &json!({"app": "web"}))).unwrap();
    server.apply(config_map("b", &json!({"app": "db"}))).unwrap();
    let (_, list) = get(&server, &format!("{CONFIG_MAPS}?labelSelector=app%21%3Ddb")).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let (_, list) = get(&server, &format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Db")).await;
    assert_eq!(list["items"][0]["metadata"]["name"], "b");

    let version = server.version();
    let path =
        format!("{CONFIG_MAPS}?watch=true&labelSelector=app%3Dweb&resourceVersion={version}");
    let mut lines = Lines::open(&server, &path).await;
    server.apply(config_map("b", &json!({"app": "web"}))).unwrap();
    lines.expect("ADDED", "b").await;
    server.apply(config_map("b", &json!({"app": "web", "x": "1"}))).unwrap();
    lines.expect("MODIFIED", "b").await;
    server.apply(config_map("c", &json!({"app": "other"}))).unwrap();
    server.apply(config_map("b", &json!({"app": "db"}))).unwrap();
    lines.expect("DELETED", "b").await;
}

#[tokio::test]
async fn a_watch_goes_on_from_its_version_and_ends_in_time() {
    let server = ApiServer::start().await.unwrap();
    server.apply(config_map("a", &json!({}))).unwrap();
    let version = server.version();
    server.apply(config_map("b", &json!({}))).unwrap();
    server.delete("configmaps", "default", "a");
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={version}&timeoutSeconds=1");
    let mut lines = Lines::open(&server, &path).await;
    assert_eq!(server.watch_count(), 1);
    lines.expect("ADDED", "b").await;
    let deleted = lines.expect("DELETED", "a").await;
    assert_eq!(deleted["metadata"]["resourceVersion"], server.version().to_string());
    assert_eq!(lines.next().await, None);
    server.wait_for_watches(0).await;
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let server = ApiServer::start().await.unwrap();
    server.apply(config_map("a", &json!({}))).unwrap();
    let path = format!(
        "{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
         &allowWatchBookmarks=true"
    );
    let mut lines = Lines::open(&server, &path).await;
    lines.expect("ADDED", "a").await;
    let bookmark = lines.expect("BOOKMARK", "").await;
    assert_eq!(bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(bookmark["metadata"]["resourceVersion"], server.version().to_string());
    server.send_bookmarks();
    assert_eq!(lines.expect("BOOKMARK", "").await["metadata"].get("annotations"), None);
    server.apply(config_map("b", &json!({}))).unwrap();
    lines.expect("ADDED", "b").await;

    server.set_streaming_lists(StreamingLists::Refused);
    assert_eq!(get(&server, &path).await.0, 422);
    server.set_streaming_lists(StreamingLists::Ignored);
    let mut lines = Lines::open(&server, &path).await;
    lines.expect("ADDED", "a").await;
    lines.expect("ADDED", "b").await;
    server.send_bookmarks();
    assert_eq!(lines.expect("BOOKMARK", "").await["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn a_watch_of_a_version_that_is_gone_learns_it_in_either_form() {
    let server = ApiServer::builder().event_log_max(2).start().await.unwrap();
    let version = server.version();
    server.apply_many((0..3).map(|n| config_map(&format!("c{n}"), &json!({})))).unwrap();
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={version}");
    let error = Lines::open(&server, &path).await.expect("ERROR", "").await;
    assert_eq!((&error["code"], &error["reason"]), (&json!(410), &json!("Expired")));
    server.set_gone_form(GoneForm::HttpStatus);
    assert_eq!(get(&server, &path).await.0, 410);

    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", server.version());
    let mut lines = Lines::open(&server, &path).await;
    server.compact();
    server.apply(config_map("d", &json!({}))).unwrap();
    lines.expect("ADDED", "d").await;
}

#[tokio::test]
async fn faults_come_and_go() {
    let server = ApiServer::start().await.unwrap();
    server.refuse("list", "configmaps", 403);
    let (status, body) = get(&server, CONFIG_MAPS).await;
    assert_eq!((status, &body["reason"]), (403, &json!("Forbidden")));
    assert!(body["message"].as_str().unwrap().contains("cannot list resource"), "{body}");
    server.allow("list", "configmaps");
    server.fail_next(1, 503);
    assert_eq!(get(&server, CONFIG_MAPS).await.0, 503);
    assert_eq!(get(&server, CONFIG_MAPS).await.0, 200);
    assert_eq!(server.request_count("list", "configmaps"), 3);
    assert!(server.requests().iter().all(|request| request.uri == CONFIG_MAPS));

    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", server.version());
    let mut lines = Lines::open(&server, &path).await;
    server.pause();
    server.apply(config_map("late", &json!({}))).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), lines.next()).await.is_err());
    server.resume();
    lines.expect("ADDED", "late").await;
    server.cut_watches();
    assert_eq!(lines.next().await, None);
    server.wait_for_watches(0).await;

    server.fail_after(1, 1, 410);
    assert_eq!(get(&server, CONFIG_MAPS).await.0, 200);
    assert_eq!(get(&server, CONFIG_MAPS).await.0, 410);
    assert_eq!(get(&server, CONFIG_MAPS).await.0, 200);
}

#[tokio::test]
async fn a_watch_that_is_ended_sends_first_what_it_has() {
    let server = ApiServer::start().await.unwrap();
    let version = server.version();
    let path =
        format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
    let mut lines = Lines::open(&server, &path).await;
    server.apply(config_map("a", &json!({}))).unwrap();
    server.send_bookmarks();
    server.end_watches();
    lines.expect("ADDED", "a").await;
    lines.expect("BOOKMARK", "").await;
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn a_stopped_server_comes_back_at_its_address_with_its_objects() {
    let server = ApiServer::start().await.unwrap();
    server.apply(config_map("a", &json!({}))).unwrap();
    let mut lines = Lines::open(&server, &format!("{CONFIG_MAPS}?watch=true")).await;
    lines.expect("ADDED", "a").await;
    let url = server.url();
    server.stop();
    assert_eq!(lines.next().await, None);
    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(get(&server, &format!("{CONFIG_MAPS}/a")).await.0, 200);
}

#[tokio::test]
async fn a_namespace_goes_with_what_is_in_it() {
    let server = ApiServer::start().await.unwrap();
    server.apply(config_map("a", &json!({}))).unwrap();
    assert_eq!(
        call(&server, Method::DELETE, "/api/v1/namespaces/default", Value::Null).await.0,
        200
    );
    assert_eq!(server.count("configmaps"), 0);
}

#[tokio::test]
async fn a_registered_resource_is_served_and_discovered() {
    let widget = Resource::new("example.com/v1", "widgets", "Widget").cluster_wide();
    let server = ApiServer::builder().register(widget.clone()).start().await.unwrap();
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    server.apply(object).unwrap();
    assert_eq!(get(&server, &format!("{}/w", widget.path())).await.0, 200);
    let (_, groups) = get(&server, "/apis").await;
    assert!(groups.to_string().contains("example.com/v1"), "{groups}");
    assert_eq!(get(&server, "/apis/example.com/v1").await.1["resources"][0]["kind"], "Widget");
    assert_eq!(get(&server, "/version").await.1["major"], "1");
}

#[tokio::test]
async fn the_kube_client_reads_writes_and_watches() {
    let server = ApiServer::start().await.unwrap();
    let client = client(&server).await;
    let version = client.apiserver_version().await.unwrap();
    assert_eq!(version.major, "1");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let meta = ObjectMeta { name: Some("ns".into()), ..Default::default() };
    let namespace = Namespace { metadata: meta, ..Default::default() };
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "ns");
    let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}});
    let applied =
        maps.patch("m", &PatchParams::apply("test"), &Patch::Apply(&patch)).await.unwrap();
    assert_eq!(applied.data.unwrap()["a"], "1");
    maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"data": {"b": "2"}})))
        .await
        .unwrap();
    let mut map = maps.get("m").await.unwrap();
    assert_eq!(map.data.as_ref().unwrap().len(), 2);
    map.data = None;
    maps.replace("m", &PostParams::default(), &map).await.unwrap();
    maps.replace("m", &PostParams::default(), &map).await.unwrap_err();

    let list = maps.list(&ListParams::default()).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    let event = events.try_next().await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Deleted(map) if map.name_any() == "m"));
    maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn tls_with_certificate_and_token_takes_only_its_own_client() {
    let server = ApiServer::builder().client_certificate().token("secret").start().await.unwrap();
    let nodes: Api<Node> = Api::all(client(&server).await);
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 0);

    let mut kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let user = kubeconfig.auth_infos[0].auth_info.as_mut().unwrap();
    user.token = Some("wrong".to_owned().into());
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.unwrap();
    let nodes: Api<Node> = Api::all(Client::try_from(config).unwrap());
    let error = nodes.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 401), "{error}");

    kubeconfig.auth_infos[0].auth_info = None;
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let nodes: Api<Node> = Api::all(Client::try_from(config).unwrap());
    assert!(!matches!(nodes.list(&ListParams::default()).await, Err(kube::Error::Api(_)) | Ok(_)));
}

#[tokio::test]
async fn thousands_of_objects_load_and_list_at_once() {
    let server = ApiServer::start().await.unwrap();
    let services = (0..2_000).map(|n| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{n}")},
            "spec": {"clusterIP": format!("10.96.{}.{}", n / 250, n % 250)},
        })
    });
    assert_eq!(server.apply_many(services).unwrap(), 2_000);
    let api: Api<Service> = Api::all(client(&server).await);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 2_000);
}
