//! A cluster to test against: the test API server, or a real one.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::FutureExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use telaio_testkit::apiserver::ApiServer;

/// Names the kubeconfig of a real cluster.
const REAL_CLUSTER: &str = "TELAIO_TEST_KUBECONFIG";

/// A cluster, and a namespace in it that is the test's own.
pub(crate) struct Cluster {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) namespace: String,
    client: Client,
    /// Keeps the test server and its kubeconfig.
    _test_server: Option<(ApiServer, tempfile::TempDir)>,
}

/// Runs a test on the test API server, and on the real cluster if one is named. What the test made
/// is removed, also when it fails.
pub(crate) async fn everywhere(test: impl AsyncFn(&Cluster)) {
    let server = ApiServer::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig_file(directory.path()).unwrap();
    run(kubeconfig, Some((server, directory)), &test).await;
    if let Some(kubeconfig) = std::env::var_os(REAL_CLUSTER) {
        run(kubeconfig.into(), None, &test).await;
    }
}

async fn run(
    kubeconfig: PathBuf,
    test_server: Option<(ApiServer, tempfile::TempDir)>,
    test: &impl AsyncFn(&Cluster),
) {
    let config = Kubeconfig::read_from(&kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(config, &options).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let namespace = format!("telaio-test-{}", suffix());
    let cluster = Cluster { kubeconfig, namespace, client, _test_server: test_server };
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": cluster.namespace, "labels": {"telaio-test": "true"}},
    });
    cluster.send("POST", "/api/v1/namespaces", &namespace).await;
    let outcome = AssertUnwindSafe(test(&cluster)).catch_unwind().await;
    let path = format!("/api/v1/namespaces/{}", cluster.namespace);
    cluster.send("DELETE", &path, &Value::Null).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Different for each test and each run.
pub(crate) fn suffix() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{:x}-{:x}", now.as_nanos() & 0xffff_ffff_ffff, std::process::id())
}

impl Cluster {
    async fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let media_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media_type)
            .body(bytes)
            .unwrap();
        let answer = self.client.request(request).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// The path of the test's objects of a resource.
    fn path(&self, resource: &str) -> String {
        let root = match resource {
            "endpointslices" => "/apis/discovery.k8s.io/v1",
            "ingresses" | "networkpolicies" | "ingressclasses" => "/apis/networking.k8s.io/v1",
            _ => "/api/v1",
        };
        format!("{root}/namespaces/{}/{resource}", self.namespace)
    }

    /// Creates an object in the test's namespace.
    pub(crate) async fn create(&self, resource: &str, object: Value) -> Value {
        self.send("POST", &self.path(resource), &object).await
    }

    /// Merges a patch into an object of the test's namespace.
    pub(crate) async fn patch(&self, resource: &str, name: &str, patch: Value) -> Value {
        self.send("PATCH", &format!("{}/{name}", self.path(resource)), &patch).await
    }

    /// Deletes an object of the test's namespace.
    pub(crate) async fn delete(&self, resource: &str, name: &str) {
        self.send("DELETE", &format!("{}/{name}", self.path(resource)), &Value::Null).await;
    }
}

/// A service without a selector.
pub(crate) fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    })
}

/// A slice of a service, made by nobody whom a controller manager would clean up after.
pub(crate) fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "telaio-test",
            },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}
