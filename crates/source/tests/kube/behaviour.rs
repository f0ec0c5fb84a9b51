//! What holds on every cluster. A test looks at its own namespace only.

use std::net::IpAddr;

use serde_json::{Value, json};
use telaio_model::service::LABEL_HEADLESS;
use telaio_model::{Kind, Object, ObjectChange};
use telaio_source::Status;
use telaio_source::kube::KubeSource;

use crate::cluster::{everywhere, service, slice};
use crate::watched::{Watched, options};

#[tokio::test]
async fn the_first_state_holds_what_is_there() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        let made = cluster.create("services", service("web")).await;
        cluster.create("endpointslices", slice("web-1", "web", &["10.1.0.1", "10.1.0.2"])).await;
        let watched = Watched::synced(&cluster.kubeconfig, options()).await;
        let web = watched.service(ns, "web").unwrap();
        let cluster_ip: IpAddr = made["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
        assert!(web.cluster_ips.contains(&cluster_ip), "{web:?}");
        assert_eq!((web.ports[0].port, web.ports[0].node_port), (80, None));
        let endpoints = watched.slice(ns, "web-1").unwrap();
        assert_eq!(endpoints.service_key().unwrap().to_string(), format!("{ns}/web"));
        assert_eq!(endpoints.endpoints.len(), 2);
        assert!(watched.status.is_synced() && watched.status.is_connected());
    })
    .await;
}

#[tokio::test]
async fn an_object_is_added_changed_and_deleted() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        let mut watched = Watched::synced(&cluster.kubeconfig, options()).await;
        cluster.create("services", service("web")).await;
        watched.until(|state| state.has(Kind::Service, ns, "web")).await;
        let patch =
            json!({"spec": {"internalTrafficPolicy": "Local"}, "metadata": {"labels": {"a": "b"}}});
        cluster.patch("services", "web", patch).await;
        watched
            .until(|state| {
                let web = state.service(ns, "web").unwrap();
                web.meta.labels.contains_key("a") && web.uses_local_endpoints()
            })
            .await;
        cluster.delete("services", "web").await;
        watched.until(|state| !state.has(Kind::Service, ns, "web")).await;
    })
    .await;
}

#[tokio::test]
async fn a_change_of_hints_alone_is_delivered() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        cluster.create("services", service("web")).await;
        let mut object = slice("web-1", "web", &["10.1.0.1"]);
        cluster.create("endpointslices", object.clone()).await;
        let mut watched = Watched::synced(&cluster.kubeconfig, options()).await;
        assert_eq!(watched.slice(ns, "web-1").unwrap().endpoints[0].hints, None);
        object["endpoints"][0]["hints"] = json!({"forZones": [{"name": "zone-a"}]});
        cluster.patch("endpointslices", "web-1", json!({"endpoints": object["endpoints"]})).await;
        watched
            .until(|state| {
                let hints = &state.slice(ns, "web-1").unwrap().endpoints[0].hints;
                hints.as_ref().is_some_and(|hints| *hints.zones == ["zone-a".into()])
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_slice_without_ports_and_one_of_no_service_are_delivered() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        let mut portless = slice("portless", "nobody", &["10.1.0.1"]);
        portless["ports"] = Value::Null;
        cluster.create("endpointslices", portless).await;
        let mut orphan = slice("orphan", "", &["10.1.0.2"]);
        orphan["metadata"]["labels"].as_object_mut().unwrap().remove("kubernetes.io/service-name");
        cluster.create("endpointslices", orphan).await;
        let watched = Watched::synced(&cluster.kubeconfig, options()).await;
        assert!(watched.slice(ns, "portless").unwrap().ports.is_empty());
        assert_eq!(watched.slice(ns, "orphan").unwrap().service_key(), None);
    })
    .await;
}

#[tokio::test]
async fn what_belongs_to_another_proxy_and_headless_objects_stay_out() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        let other = json!({"service.kubernetes.io/service-proxy-name": "other"});
        let mut foreign = service("foreign");
        foreign["metadata"]["labels"] = other;
        cluster.create("services", foreign).await;
        let mut headless = service("headless");
        headless["spec"]["clusterIP"] = "None".into();
        cluster.create("services", headless).await;
        let mut headless = slice("headless-1", "headless", &["10.1.0.1"]);
        headless["metadata"]["labels"][LABEL_HEADLESS] = "".into();
        cluster.create("endpointslices", headless).await;
        cluster.create("services", service("web")).await;

        let mut watched = Watched::synced(&cluster.kubeconfig, options()).await;
        let names = |watched: &Watched| -> Vec<String> {
            let own = watched.objects.keys().filter(|object| *object.key.namespace == **ns);
            own.map(|object| object.key.name.to_string()).collect()
        };
        assert_eq!(names(&watched), ["web"]);
        // One that is given away while it is watched goes, one that comes back comes.
        let give = |proxy: Value| json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": proxy}}});
        cluster.patch("services", "web", give("other".into())).await;
        watched.until(|state| !state.has(Kind::Service, ns, "web")).await;
        cluster.patch("services", "web", give(Value::Null)).await;
        watched.until(|state| state.has(Kind::Service, ns, "web")).await;

        let wanted = telaio_source::kube::KubeOptions { headless: true, ..options() };
        let watched = Watched::synced(&cluster.kubeconfig, wanted).await;
        assert_eq!(names(&watched), ["headless", "web", "headless-1"]);
        assert!(watched.service(ns, "headless").unwrap().headless);
    })
    .await;
}

#[tokio::test]
async fn of_the_secrets_only_certificates_are_read() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        let secret = |name: &str, secret_type: &str| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "type": secret_type, "data": {"tls.crt": "Q0VSVA==", "tls.key": "S0VZ"},
            })
        };
        cluster.create("secrets", secret("certificate", "kubernetes.io/tls")).await;
        cluster.create("secrets", secret("password", "Opaque")).await;
        let options = options().with_kind(Kind::TlsSecret);
        let watched = Watched::synced(&cluster.kubeconfig, options).await;
        let Some(Object::TlsSecret(certificate)) = watched.get(Kind::TlsSecret, ns, "certificate")
        else {
            panic!("{:?}", watched.objects)
        };
        assert_eq!(
            (&*certificate.certificate, &*certificate.private_key),
            (&b"CERT"[..], &b"KEY"[..])
        );
        assert!(!watched.has(Kind::TlsSecret, ns, "password"));
    })
    .await;
}

#[tokio::test]
async fn every_kind_can_be_watched_at_once() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        let mut all = options();
        all.kinds = Kind::ALL.iter().copied().collect();
        let mut watched = Watched::synced(&cluster.kubeconfig, all).await;
        assert!(watched.has(Kind::Namespace, "", ns));
        let ingress = json!({
            "metadata": {"name": "web"},
            "spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}},
        });
        cluster.create("ingresses", ingress).await;
        let policy = json!({"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
        cluster.create("networkpolicies", policy).await;
        let settings = json!({
            "metadata": {"name": "settings", "labels": {"telaio.dev/config": "headers"}},
            "data": {"a": "b"},
        });
        cluster.create("configmaps", settings).await;
        let large = json!({"metadata": {"name": "not-ours"}, "data": {"a": "b"}});
        cluster.create("configmaps", large).await;
        let wanted = [
            (Kind::Ingress, "web"),
            (Kind::NetworkPolicy, "deny"),
            (Kind::ConfigMap, "settings"),
        ];
        watched.until(|state| wanted.iter().all(|(kind, name)| state.has(*kind, ns, name))).await;
        assert!(!watched.has(Kind::ConfigMap, ns, "not-ours"));
    })
    .await;
}

#[tokio::test]
async fn one_load_gives_the_whole_state() {
    everywhere(async |cluster| {
        let ns = &cluster.namespace;
        cluster.create("services", service("web")).await;
        let status = std::sync::Arc::new(Status::default());
        let source =
            KubeSource::connect(Some(cluster.kubeconfig.clone()), options(), status).await.unwrap();
        let batches = source.load_once().await.unwrap();
        let last = batches.len() - 1;
        assert!(batches.iter().enumerate().all(|(at, batch)| batch.synced == (at == last)));
        let names = batches.iter().flat_map(|batch| &batch.changes).map(ObjectChange::object_ref);
        let wanted = format!("Service {ns}/web");
        assert_eq!(names.filter(|name| name.to_string() == wanted).count(), 1);
    })
    .await;
}
