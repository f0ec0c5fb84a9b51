use telaio_model::{
    AddressType, ConfigMap, Endpoint, EndpointSlice, IngressBackend, IngressPath, IngressRule,
    ObjectKey, PathType, PortRef,
};

use super::*;

fn ingress(hosts: &[(&str, &str)], annotation: &str) -> Object {
    let mut meta = Meta::named(ObjectKey::new("shop", "front"));
    meta.annotations = [("rewrite-target".into(), annotation.into())].into_iter().collect();
    let rule = |(host, service): &(&str, &str)| IngressRule {
        host: Some((*host).into()),
        paths: vec![IngressPath {
            path: "/".into(),
            path_type: PathType::Prefix,
            backend: IngressBackend { service: (*service).into(), port: PortRef::Number(80) },
        }],
    };
    Object::from(Ingress {
        meta,
        class: None,
        default_backend: None,
        rules: hosts.iter().map(rule).collect(),
        tls: Vec::new(),
        status_ips: Vec::new(),
        status_hostnames: Vec::new(),
    })
}

fn told(before: Option<Object>, after: Option<Object>) -> String {
    let at = before.as_ref().or(after.as_ref()).map(Object::object_ref).unwrap();
    let Told { kind, change, summary } = object_of_view(at, before, after);
    format!("{kind} {change}: {summary}")
}

#[test]
fn an_ingress_says_which_hosts_and_paths_came_and_went() {
    let one = ingress(&[("a.example", "web")], "/");
    assert_eq!(
        told(None, Some(one.clone())),
        "Ingress added: an Ingress with 1 path, for a.example"
    );
    assert_eq!(
        told(Some(one.clone()), Some(ingress(&[("a.example", "web"), ("b.example", "new")], "/"))),
        "Ingress changed: changed: host came: b.example; path came: b.example/ → new"
    );
    assert_eq!(
        told(Some(one.clone()), Some(ingress(&[("a.example", "web")], "/x"))),
        "Ingress changed: changed: annotations: rewrite-target"
    );
    assert_eq!(told(Some(one), None), "Ingress removed: the Ingress of a.example is gone");
}

fn web(pods: u8, overrides: &[Override]) -> ServiceState {
    let key = ObjectKey::new("shop", "web");
    let service = serde_json::from_value(serde_json::json!({"meta": key})).unwrap();
    let slice = EndpointSlice {
        key: ObjectKey::new("shop", "web-1"),
        service: Some("web".into()),
        address_type: AddressType::IPv4,
        endpoints: (1..=pods).map(|i| Endpoint::at([10, 0, 0, i].into())).collect(),
        ports: Vec::new(),
        triggered: telaio_model::endpoints::TriggerTime::default(),
    };
    let overrides = overrides.iter().cloned().map(Arc::new).collect();
    ServiceState::new(key, Some(Arc::new(service)), vec![Arc::new(slice)], overrides)
}

fn drain(pod: &str, reason: &str) -> Override {
    Override {
        meta: Meta::named(ObjectKey::new("shop", format!("set-{pod}"))),
        object: ObjectKey::new("shop", "web"),
        target: telaio_model::OverrideTarget::Pod(pod.into()),
        action: telaio_model::OverrideAction::Drain,
        by: "anna".into(),
        reason: reason.into(),
        since_s: None,
        until_s: None,
    }
}

#[test]
fn a_new_service_counts_its_endpoints_as_people_do() {
    let told = |pods| service_change(None, Some(&web(pods, &[]))).summary;
    assert_eq!(told(0), "a service with no endpoints");
    assert_eq!(told(1), "a service with 1 endpoint");
    assert_eq!(told(2), "a service with 2 endpoints");
}

#[test]
fn what_people_decide_about_endpoints_is_told_in_words() {
    let told = |was: &[Override], is: &[Override]| {
        let Told { kind, summary, .. } = service_change(Some(&web(2, was)), Some(&web(2, is)));
        format!("{kind}: {summary}")
    };
    let (one, two) = (drain("web-1", ""), drain("web-2", ""));
    assert_eq!(
        told(&[], std::slice::from_ref(&one)),
        "Endpoints: decided: drain pod web-1 of service shop/web"
    );
    assert_eq!(
        told(std::slice::from_ref(&one), &[]),
        "Endpoints: no longer: drain pod web-1 of service shop/web"
    );
    assert_eq!(
        told(std::slice::from_ref(&one), &[two]),
        "Endpoints: decided: drain pod web-2 of service shop/web; \
         no longer: drain pod web-1 of service shop/web"
    );
    assert_eq!(
        told(&[one], &[drain("web-1", "disk")]),
        "Endpoints: decided anew: drain pod web-1 of service shop/web"
    );
}

#[test]
fn a_configmap_says_which_entries_and_never_what_is_in_them() {
    let of = |value: &str| {
        let meta = Meta::named(ObjectKey::new("shop", "settings"));
        let data = [("color".into(), value.into()), ("size".into(), "1".into())].into();
        Object::from(ConfigMap { meta, data })
    };
    let told = told(Some(of("red")), Some(of("blue")));
    assert_eq!(told, "ConfigMap changed: changed: data: color");
}

#[test]
fn a_certificate_says_for_whom_and_until_when() {
    let of = |name: &str| {
        let pair = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Object::from(TlsSecret {
            meta: Meta::named(ObjectKey::new("shop", "cert")),
            certificate: pair.cert.pem().as_bytes().into(),
            private_key: pair.signing_key.serialize_pem().as_bytes().into(),
            authority: None,
        })
    };
    let told = told(Some(of("a.example")), Some(of("b.example")));
    let wanted = "certificate changed: another certificate for b.example, until ";
    assert!(told.starts_with(wanted), "{told}");
    assert!(!told.contains("PRIVATE"), "{told}");
}
