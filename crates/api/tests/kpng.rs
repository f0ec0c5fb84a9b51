//! The wire as KPNG has it: numbers read by a reader of our own, and messages of a peer that knows
//! nothing of our extensions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use telaio_api::global::{GlobalEndpoint, GlobalEndpointKey, GlobalOp};
use telaio_api::proto::globalv1;
use telaio_api::proto::localv1::{
    ClientIpAffinity as ClientIp, Endpoint as WireEndpoint, EndpointScopes, IpFilter, IpSet,
    OpItem, PortMapping, PortName, Protocol as WireProtocol, Ref, Service as WireService,
    ServiceIPs, Set, Value, op_item, service::SessionAffinity,
};
use telaio_api::{global, local};
use telaio_model::{
    ClientIpAffinity, Conditions, Endpoint, EndpointPort, EndpointRef, Families, Hints,
    LocalEndpoint, LocalEndpointPort, LocalService, LocalServicePort, Meta, Node, ObjectKey, Op,
    Protocol, Scopes, Service, ServicePort, ServiceType, TargetPort, TrafficPolicy,
};

/// One field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

use Field::{Bytes, Number};

/// A protobuf message as its fields: just enough of the format to check on the generated code.
#[derive(Debug, Default, PartialEq, Eq)]
struct Message(BTreeMap<u64, Vec<Field>>);

impl Message {
    fn read(mut bytes: &[u8]) -> Self {
        let mut fields = BTreeMap::<u64, Vec<Field>>::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let field = match tag & 7 {
                0 => Number(varint(&mut bytes)),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)).unwrap();
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Bytes(value.to_vec())
                }
                other => panic!("KPNG's messages have no fields of wire type {other}"),
            };
            fields.entry(tag >> 3).or_default().push(field);
        }
        Self(fields)
    }

    /// The only field of this number.
    fn one(&self, number: u64) -> &Field {
        let fields = self.0.get(&number).unwrap_or_else(|| panic!("no field {number} in {self:?}"));
        assert_eq!(fields.len(), 1, "field {number}");
        &fields[0]
    }

    fn messages(&self, number: u64) -> Vec<Self> {
        let fields = self.0.get(&number).unwrap_or_else(|| panic!("no field {number} in {self:?}"));
        let read = |field: &Field| match field {
            Bytes(bytes) => Self::read(bytes),
            Number(_) => panic!("field {number} is a number"),
        };
        fields.iter().map(read).collect()
    }

    fn message(&self, number: u64) -> Self {
        let mut messages = self.messages(number);
        assert_eq!(messages.len(), 1, "field {number}");
        messages.remove(0)
    }

    fn texts(&self, number: u64) -> Vec<String> {
        let text = |field: &Field| match field {
            Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            Number(_) => panic!("field {number} is a number"),
        };
        self.0.get(&number).map(|fields| fields.iter().map(text).collect()).unwrap_or_default()
    }

    /// Labels and annotations: entries of key [1] and value [2].
    fn map(&self, number: u64) -> Vec<(String, String)> {
        let entry = |it: Self| (it.texts(1).concat(), it.texts(2).concat());
        self.messages(number).into_iter().map(entry).collect()
    }

    /// The numbers that KPNG knows; what is above is ours.
    fn kpng_numbers(&self) -> Vec<u64> {
        self.0.keys().copied().filter(|number| *number < 100).collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number without end");
}

fn key() -> ObjectKey {
    ObjectKey::new("default", "web")
}

fn labels(name: &str, value: &str) -> telaio_model::Labels {
    [(Arc::from(name), Arc::from(value))].into()
}

fn local_service() -> LocalService {
    LocalService {
        key: key(),
        service_type: ServiceType::LoadBalancer,
        headless: false,
        cluster_ips: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        external_ips: vec!["192.0.2.1".parse().unwrap()],
        load_balancer_ips: vec!["192.0.2.2".parse().unwrap()],
        source_ranges: vec!["198.51.100.0/24".parse().unwrap()],
        ports: vec![LocalServicePort {
            name: "http".into(),
            protocol: Protocol::Sctp,
            port: 80,
            node_port: Some(30_080),
            target_port: Some(8080),
            target_port_name: None,
            app_protocol: Some("h2c".into()),
            has_endpoints: Families { v4: true, v6: false },
        }],
        external_traffic_to_local: true,
        internal_traffic_to_local: true,
        session_affinity: Some(ClientIpAffinity { timeout_s: 300 }),
        health_check_node_port: Some(32_000),
        external_name: None,
        labels: labels("l", "m"),
        annotations: labels("a", "b"),
    }
}

fn ops(item: &OpItem) -> Message {
    Message::read(&item.encode_to_vec())
}

fn text(value: &str) -> Field {
    Bytes(value.as_bytes().to_vec())
}

#[test]
fn operations_have_kpngs_numbers() {
    let sync = local::encode_op(&Op::Sync).unwrap();
    assert_eq!(sync.encode_to_vec(), [0x0a, 0x00]);
    let reset = local::encode_op(&Op::Reset).unwrap();
    assert_eq!(reset.encode_to_vec(), [0x22, 0x00]);
    let delete = ops(&local::encode_op(&Op::DeleteService(key())).unwrap()).message(3);
    assert_eq!((delete.one(1), delete.one(2)), (&Number(1), &text("default/web")));
    let endpoint = EndpointRef { service: key(), id: "web-abc".into() };
    let delete = ops(&local::encode_op(&Op::DeleteEndpoint(endpoint)).unwrap()).message(3);
    assert_eq!((delete.one(1), delete.one(2)), (&Number(2), &text("default/web/web-abc")));
}

#[test]
fn a_service_has_kpngs_numbers() {
    let item = local::encode_op(&Op::SetService(Arc::new(local_service()))).unwrap();
    let value = ops(&item).message(2);
    assert_eq!(value.message(1).one(1), &Number(1));
    assert_eq!(value.message(1).one(2), &text("default/web"));
    let service = value.message(2);
    // Field 5, MapIP, is false and so not sent.
    assert_eq!(service.kpng_numbers(), [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]);
    assert_eq!(service.one(1), &text("default"));
    assert_eq!(service.one(2), &text("web"));
    assert_eq!(service.one(3), &text("LoadBalancer"));
    let ips = service.message(4);
    assert_eq!(ips.kpng_numbers(), [1, 2, 4]);
    assert_eq!(ips.message(1).texts(1), ["10.96.0.1"]);
    assert_eq!(ips.message(1).texts(2), ["fd00::1"]);
    assert_eq!(ips.message(2).texts(1), ["192.0.2.1"]);
    assert_eq!(ips.message(4).texts(1), ["192.0.2.2"]);
    let port = service.message(6);
    assert_eq!(port.kpng_numbers(), [1, 2, 3, 4, 5]);
    assert_eq!(port.one(1), &text("http"));
    assert_eq!(port.one(2), &Number(3));
    assert_eq!(port.one(3), &Number(80));
    assert_eq!(port.one(4), &Number(30_080));
    assert_eq!(port.one(5), &Number(8080));
    assert_eq!(service.one(7), &Number(1));
    assert_eq!(service.map(8), [("l".to_owned(), "m".to_owned())]);
    assert_eq!(service.map(9), [("a".to_owned(), "b".to_owned())]);
    let filter = service.message(10);
    assert_eq!(filter.message(1).texts(1), ["192.0.2.2"]);
    assert_eq!(filter.texts(2), ["198.51.100.0/24"]);
    assert_eq!(service.message(11).one(1), &Number(300));
    assert_eq!(service.one(12), &Number(1));
    assert_eq!(service.one(13), &Number(32_000));
}

#[test]
fn a_headless_service_and_a_port_by_name_have_kpngs_numbers() {
    let mut service = local_service();
    service.headless = true;
    service.ports[0].target_port = None;
    service.ports[0].target_port_name = Some("web".into());
    let item = local::encode_op(&Op::SetService(Arc::new(service))).unwrap();
    let service = ops(&item).message(2).message(2);
    assert_eq!(service.message(4).one(3), &Number(1));
    assert_eq!(service.message(6).one(6), &text("web"));
    assert_eq!(service.message(6).kpng_numbers(), [1, 2, 3, 4, 6]);
}

#[test]
fn an_endpoint_has_kpngs_numbers() {
    let internal = Scopes { internal: true, cluster: true, ..Scopes::NONE };
    let item = local::encode_op(&Op::SetEndpoint(Arc::new(LocalEndpoint {
        key: EndpointRef { service: key(), id: "web-abc".into() },
        pod: Some("web-abc".into()),
        hostname: Some("web-0".into()),
        ips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        local: true,
        ports: vec![LocalEndpointPort { name: "http".into(), port: 8080, scopes: internal }],
        unlisted_ports: None,
        conditions: Conditions::READY,
        weight: 1,
        node: Some("n1".into()),
        zone: Some("z1".into()),
    })))
    .unwrap();
    let value = ops(&item).message(2);
    assert_eq!(value.message(1).one(1), &Number(2));
    assert_eq!(value.message(1).one(2), &text("default/web/web-abc"));
    let endpoint = value.message(2);
    assert_eq!(endpoint.kpng_numbers(), [1, 2, 3, 4, 5]);
    assert_eq!(endpoint.one(1), &text("web-0"));
    assert_eq!(endpoint.message(2).texts(1), ["10.0.0.1"]);
    assert_eq!(endpoint.message(2).texts(2), ["fd00::1"]);
    assert_eq!(endpoint.one(3), &Number(1));
    assert_eq!(endpoint.message(4).one(1), &text("http"));
    assert_eq!(endpoint.message(4).one(2), &Number(8080));
    // Internal, and not external.
    assert_eq!(endpoint.message(5).kpng_numbers(), [1]);
    assert_eq!(endpoint.message(5).one(1), &Number(1));
}

#[test]
fn the_global_infos_have_kpngs_numbers() {
    let endpoint = Endpoint {
        pod: Some("web-abc".into()),
        hostname: Some("web-0".into()),
        node: Some("n1".into()),
        zone: Some("z1".into()),
        hints: Some(Box::new(Hints { zones: vec!["z1".into()], nodes: vec!["n1".into()] })),
        ..Endpoint::at("10.0.0.1".parse().unwrap())
    };
    let global = GlobalOp::SetEndpoint(Arc::new(GlobalEndpoint {
        key: GlobalEndpointKey { service: key(), source: "web-x".into(), id: "web-abc".into() },
        endpoint,
        ports: vec![EndpointPort {
            name: "http".into(),
            protocol: Some(Protocol::Tcp),
            port: Some(8080),
        }],
        ports_complete: true,
    }));
    let value = ops(&global::encode_op(&global).unwrap()).message(2);
    assert_eq!(value.message(1).one(1), &Number(11));
    assert_eq!(value.message(1).one(2), &text("default|web|web-x|web-abc"));
    let info = value.message(2);
    assert_eq!(info.kpng_numbers(), [1, 2, 3, 4, 6, 7, 8, 9, 10]);
    assert!(matches!(info.one(1), Number(hash) if *hash != 0));
    assert_eq!(info.one(2), &text("default"));
    assert_eq!(info.one(3), &text("web-x"));
    assert_eq!(info.one(4), &text("web"));
    assert_eq!(info.message(6).message(2).texts(1), ["10.0.0.1"]);
    assert_eq!(info.message(6).message(4).one(2), &Number(8080));
    assert_eq!(info.message(7).one(1), &Number(1));
    assert_eq!(info.one(8), &text("web-abc"));
    assert_eq!(info.message(9).one(1), &text("n1"));
    assert_eq!(info.message(9).one(2), &text("z1"));
    assert_eq!(info.message(10).texts(1), ["z1"]);

    let mut meta = Meta::named(ObjectKey::cluster("n1"));
    meta.labels = labels(telaio_model::node::LABEL_ZONE, "z1");
    meta.annotations = labels("a", "b");
    let node = Node { meta, addresses: vec![], pod_cidrs: vec![], taints: vec![], deleting: false };
    let item = global::encode_op(&GlobalOp::SetNode(Arc::new(node))).unwrap();
    let value = ops(&item).message(2);
    assert_eq!(value.message(1).one(1), &Number(12));
    let info = value.message(2);
    assert_eq!(info.kpng_numbers(), [1, 2]);
    let node = info.message(2);
    assert_eq!(node.one(1), &text("n1"));
    assert_eq!(node.map(2), [(telaio_model::node::LABEL_ZONE.to_owned(), "z1".to_owned())]);
    assert_eq!(node.map(3), [("a".to_owned(), "b".to_owned())]);
    assert_eq!(node.message(4).one(2), &text("z1"));

    let service = Service {
        meta: Meta::named(key()),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        external_ips: vec![],
        load_balancer: vec![],
        source_ranges: vec![],
        ports: vec![],
        selector: telaio_model::Labels::new(),
        external_traffic_policy: TrafficPolicy::Cluster,
        internal_traffic_policy: TrafficPolicy::Local,
        session_affinity: None,
        health_check_node_port: None,
        traffic_distribution: None,
        publish_not_ready_addresses: false,
        external_name: None,
    };
    let item = global::encode_op(&GlobalOp::SetService(Arc::new(service))).unwrap();
    let value = ops(&item).message(2);
    assert_eq!(value.message(1).one(1), &Number(10));
    let info = value.message(2);
    assert_eq!(info.kpng_numbers(), [1, 2]);
    assert_eq!(info.message(2).one(12), &Number(1));
}

#[test]
fn the_hash_of_an_endpoint_sees_every_field() {
    let hash = |endpoint: Endpoint, number: u16| {
        let item = global::encode_op(&GlobalOp::SetEndpoint(Arc::new(GlobalEndpoint {
            key: GlobalEndpointKey { service: key(), source: "s".into(), id: "i".into() },
            endpoint,
            ports: vec![EndpointPort { name: "".into(), protocol: None, port: Some(number) }],
            ports_complete: true,
        })));
        let Number(hash) = ops(&item.unwrap()).message(2).message(2).one(1).clone() else {
            panic!("the hash is a number");
        };
        hash
    };
    let plain = Endpoint::at("10.0.0.1".parse().unwrap());
    let hints = |zones: &[&str], nodes: &[&str]| {
        let list = |it: &[&str]| it.iter().map(|it| Arc::from(*it)).collect();
        Some(Box::new(Hints { zones: list(zones), nodes: list(nodes) }))
    };
    let leaving = Conditions { ready: false, serving: true, terminating: true };
    let variants = [
        (plain.clone(), 80),
        (plain.clone(), 81),
        (Endpoint { hints: hints(&["z1"], &[]), ..plain.clone() }, 80),
        (Endpoint { hints: hints(&["z2"], &[]), ..plain.clone() }, 80),
        (Endpoint { hints: hints(&[], &["z1"]), ..plain.clone() }, 80),
        (Endpoint { conditions: leaving, ..plain.clone() }, 80),
        (Endpoint { weight: Some(0), ..plain.clone() }, 80),
        (Endpoint { weight: Some(1), ..plain.clone() }, 80),
        (Endpoint { node: Some("n1".into()), ..plain.clone() }, 80),
        (Endpoint { zone: Some("n1".into()), ..plain.clone() }, 80),
        (Endpoint { pod: Some("n1".into()), ..plain.clone() }, 80),
        (Endpoint { hostname: Some("n1".into()), ..plain }, 80),
    ];
    let hashes: std::collections::BTreeSet<u64> =
        variants.iter().map(|(endpoint, port)| hash(endpoint.clone(), *port)).collect();
    assert_eq!(hashes.len(), variants.len());
}

// From here on, what a peer sends that knows KPNG's fields only.

fn set(set: Set, path: &str, message: &impl prost::Message) -> OpItem {
    let r#ref = Some(Ref { set: set.into(), path: path.into() });
    OpItem { op: Some(op_item::Op::Set(Value { r#ref, bytes: message.encode_to_vec().into() })) }
}

fn v4(address: &str) -> IpSet {
    IpSet { v4: vec![address.into()], v6: vec![] }
}

fn kpng_service() -> WireService {
    WireService {
        namespace: "default".into(),
        name: "web".into(),
        r#type: "LoadBalancer".into(),
        i_ps: Some(ServiceIPs {
            cluster_i_ps: Some(v4("10.96.0.1")),
            external_i_ps: Some(v4("192.0.2.1")),
            headless: false,
            load_balancer_i_ps: Some(v4("192.0.2.2")),
            ..Default::default()
        }),
        ports: vec![PortMapping {
            name: "http".into(),
            protocol: WireProtocol::Tcp.into(),
            port: 80,
            node_port: 30_080,
            target_port: 8080,
            ..Default::default()
        }],
        external_traffic_to_local: true,
        ip_filters: vec![IpFilter {
            target_i_ps: Some(v4("192.0.2.2")),
            source_ranges: vec!["198.51.100.0/24".into()],
        }],
        session_affinity: Some(SessionAffinity::ClientIp(ClientIp { timeout_seconds: 300 })),
        health_check_node_port: 32_000,
        ..Default::default()
    }
}

fn decode_service(service: &WireService) -> LocalService {
    match local::decode_op(set(Set::ServicesSet, "default/web", service)).unwrap() {
        Some(Op::SetService(service)) => Arc::unwrap_or_clone(service),
        other => panic!("{other:?}"),
    }
}

fn decode_endpoint(endpoint: &WireEndpoint, id: &str) -> LocalEndpoint {
    let path = format!("default/web/{id}");
    match local::decode_op(set(Set::EndpointsSet, &path, endpoint)).unwrap() {
        Some(Op::SetEndpoint(endpoint)) => Arc::unwrap_or_clone(endpoint),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_of_kpngs_is_understood() {
    let service = decode_service(&kpng_service());
    assert_eq!(service.key, key());
    assert_eq!(service.service_type, ServiceType::LoadBalancer);
    assert_eq!(service.cluster_ips, ["10.96.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(service.external_ips, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(service.load_balancer_ips, ["192.0.2.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(service.source_ranges, ["198.51.100.0/24".parse().unwrap()]);
    assert!(service.external_traffic_to_local && !service.internal_traffic_to_local);
    assert_eq!(service.session_affinity, Some(ClientIpAffinity { timeout_s: 300 }));
    assert_eq!(service.health_check_node_port, Some(32_000));
    assert_eq!(service.external_name, None);
    let port = &service.ports[0];
    assert_eq!((port.port, port.node_port, port.target_port), (80, Some(30_080), Some(8080)));
    assert_eq!((port.protocol, &port.app_protocol, &port.target_port_name), {
        (Protocol::Tcp, &None, &None)
    });
}

#[test]
fn what_kpng_leaves_out_is_not_there() {
    let service = decode_service(&WireService {
        namespace: "default".into(),
        name: "web".into(),
        r#type: "ClusterIP".into(),
        ports: vec![PortMapping { port: 80, protocol: 1, ..Default::default() }],
        ..Default::default()
    });
    assert!(service.cluster_ips.is_empty());
    assert_eq!(service.health_check_node_port, None);
    assert_eq!(service.session_affinity, None);
    assert_eq!((service.ports[0].node_port, &*service.ports[0].name), (None, ""));
}

#[test]
fn an_endpoint_of_kpngs_takes_traffic() {
    let endpoint = decode_endpoint(
        &WireEndpoint {
            hostname: "web-0".into(),
            i_ps: Some(v4("10.0.0.1")),
            local: true,
            port_overrides: vec![PortName { name: "admin".into(), port: 81, ..Default::default() }],
            scopes: Some(EndpointScopes { internal: true, external: true, ..Default::default() }),
            ..Default::default()
        },
        "web-abc",
    );
    assert_eq!(endpoint.ips, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert!(endpoint.local);
    assert_eq!(endpoint.conditions, Conditions::READY);
    assert_eq!(endpoint.weight, 1);
    assert_eq!(endpoint.hostname.as_deref(), Some("web-0"));
    // The port that it overrides, and the one that it does not.
    let mut service = decode_service(&kpng_service());
    let (number, scopes) = endpoint.port_for(&service.ports[0]).unwrap();
    assert_eq!(number, 8080);
    assert!(scopes.internal && scopes.external && scopes.cluster);
    service.ports[0].name = "admin".into();
    let (number, scopes) = endpoint.port_for(&service.ports[0]).unwrap();
    assert_eq!(number, 81);
    assert!(scopes.internal && scopes.external && scopes.cluster);
}

#[test]
fn the_scopes_of_kpngs_endpoint_are_followed() {
    let endpoint = decode_endpoint(
        &WireEndpoint {
            i_ps: Some(v4("10.0.0.1")),
            scopes: Some(EndpointScopes { internal: true, ..Default::default() }),
            ..Default::default()
        },
        "web-abc",
    );
    let service = decode_service(&kpng_service());
    let (_, scopes) = endpoint.port_for(&service.ports[0]).unwrap();
    assert!(scopes.internal && !scopes.external);
}

#[test]
fn an_endpoint_from_before_kpng_had_scopes_takes_all_traffic() {
    let endpoint = decode_endpoint(
        &WireEndpoint { i_ps: Some(v4("10.0.0.1")), ..Default::default() },
        "web-abc",
    );
    let service = decode_service(&kpng_service());
    let (_, scopes) = endpoint.port_for(&service.ports[0]).unwrap();
    assert!(scopes.internal && scopes.external);
}

#[test]
fn the_raw_cluster_of_kpngs_is_understood() {
    let info = globalv1::EndpointInfo {
        hash: 7,
        namespace: "default".into(),
        source_name: "web-x".into(),
        service_name: "web".into(),
        endpoint: Some(WireEndpoint {
            i_ps: Some(v4("10.0.0.1")),
            port_overrides: vec![PortName { name: "http".into(), port: 81, ..Default::default() }],
            ..Default::default()
        }),
        conditions: Some(globalv1::EndpointConditions { ready: true, ..Default::default() }),
        pod_name: "web-abc".into(),
        topology: Some(globalv1::TopologyInfo { node: "n1".into(), zone: "z1".into() }),
        hints: Some(globalv1::TopologyHints { zones: vec!["z1".into()], ..Default::default() }),
    };
    let decode = |info: &globalv1::EndpointInfo| {
        let path = "default|web|web-x|web-abc";
        match global::decode_op(set(Set::GlobalEndpointInfos, path, info)).unwrap() {
            Some(GlobalOp::SetEndpoint(endpoint)) => Arc::unwrap_or_clone(endpoint),
            other => panic!("{other:?}"),
        }
    };
    let global = decode(&info);
    assert_eq!(global.key.service, key());
    assert_eq!((&*global.key.source, &*global.key.id), ("web-x", "web-abc"));
    assert_eq!(global.endpoint.conditions, Conditions::READY);
    assert_eq!(global.endpoint.pod.as_deref(), Some("web-abc"));
    assert_eq!(global.endpoint.node.as_deref(), Some("n1"));
    assert_eq!(global.endpoint.zone.as_deref(), Some("z1"));
    assert_eq!(global.endpoint.hints.unwrap().zones, [Arc::from("z1")]);
    assert_eq!(global.endpoint.weight, None);
    assert!(!global.ports_complete, "KPNG lists the ports that differ only");
    assert_eq!(global.ports[0].port, Some(81));

    // Not ready is not serving, for all that KPNG says; silence is Kubernetes' default.
    let not_ready = Some(globalv1::EndpointConditions::default());
    let global = decode(&globalv1::EndpointInfo { conditions: not_ready, ..info.clone() });
    let unready = Conditions { ready: false, serving: false, terminating: false };
    assert_eq!(global.endpoint.conditions, unready);
    let global = decode(&globalv1::EndpointInfo { conditions: None, ..info });
    assert_eq!(global.endpoint.conditions, Conditions::READY);
}

#[test]
fn a_node_of_kpngs_has_the_zone_that_its_topology_says() {
    let info = globalv1::NodeInfo {
        hash: 7,
        node: Some(globalv1::Node {
            name: "n1".into(),
            topology: Some(globalv1::TopologyInfo { node: "n1".into(), zone: "z1".into() }),
            ..Default::default()
        }),
    };
    for path in ["|n1||", "n1|||"] {
        match global::decode_op(set(Set::GlobalNodeInfos, path, &info)) {
            Ok(Some(GlobalOp::SetNode(node))) => {
                assert_eq!(node.meta.key, ObjectKey::cluster("n1"));
                assert_eq!(node.zone().map(|zone| &**zone), Some("z1"));
            }
            Err(_) if path == "n1|||" => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_service_of_kpngs_raw_cluster_is_understood() {
    let mut wire = kpng_service();
    wire.ports.push(PortMapping {
        name: "named".into(),
        protocol: WireProtocol::Udp.into(),
        port: 53,
        target_port_name: "dns".into(),
        ..Default::default()
    });
    let info = globalv1::ServiceInfo { hash: 7, service: Some(wire) };
    let op = global::decode_op(set(Set::GlobalServiceInfos, "default|web||", &info)).unwrap();
    let Some(GlobalOp::SetService(service)) = op else { panic!("{op:?}") };
    assert_eq!(service.meta.key, key());
    assert_eq!(service.load_balancer_vips().count(), 1);
    assert_eq!(service.external_traffic_policy, TrafficPolicy::Local);
    assert_eq!(
        service.ports[0],
        ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            app_protocol: None,
            port: 80,
            node_port: Some(30_080),
            target_port: TargetPort::Number(8080),
        }
    );
    assert_eq!(service.ports[1].target_port, TargetPort::Name("dns".into()));
    assert!(service.is_proxied());
}

#[test]
fn what_cannot_be_is_refused_with_its_place() {
    let mut cases = Vec::new();
    for (name, change) in [
        ("port 0", (|it: &mut WireService| it.ports[0].port = 0) as fn(&mut WireService)),
        ("port 65536", |it| it.ports[0].port = 65_536),
        ("port -1", |it| it.ports[0].port = -1),
        ("node port 65536", |it| it.ports[0].node_port = 65_536),
        ("target port -1", |it| it.ports[0].target_port = -1),
        ("health check port 70000", |it| it.health_check_node_port = 70_000),
        ("an address that is none", |it| {
            it.i_ps.as_mut().unwrap().cluster_i_ps = Some(v4("10.96.0"));
        }),
        ("a mapped address", |it| {
            it.i_ps.as_mut().unwrap().external_i_ps =
                Some(IpSet { v4: vec![], v6: vec!["::ffff:10.0.0.1".into()] });
        }),
        ("a range that is none", |it| it.ip_filters[0].source_ranges = vec!["10.0.0.0/33".into()]),
        ("a negative time-out", |it| {
            it.session_affinity = Some(SessionAffinity::ClientIp(ClientIp { timeout_seconds: -1 }));
        }),
        ("a type that is none", |it| it.r#type = "Magic".into()),
        ("a protocol that is none", |it| it.ports[0].protocol = 9),
    ] {
        let mut wire = kpng_service();
        change(&mut wire);
        cases.push((name, wire));
    }
    for (name, wire) in cases {
        match local::decode_op(set(Set::ServicesSet, "default/web", &wire)) {
            Err(error) => {
                assert!(error.to_string().contains("default/web"), "{name}: {error}");
            }
            Ok(op) => panic!("{name}: {op:?}"),
        }
    }
}
