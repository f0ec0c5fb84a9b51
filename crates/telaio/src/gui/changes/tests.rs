use telaio_model::{
    ConfigMap, IngressBackend, IngressPath, IngressRule, ObjectKey, PathType, PortRef,
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
        "Ingress added: an Ingress with 1 paths, for a.example"
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
