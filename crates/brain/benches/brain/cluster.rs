//! A synthetic cluster: N services, each with a slice of endpoints spread over 100 nodes in 3 zones.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::Result;
use telaio_model::{
    AddressType, Endpoint, EndpointPort, EndpointSlice, Meta, ObjectKey, Protocol, Service,
    ServicePort, ServiceType, TargetPort, TrafficPolicy,
};

const NODES: usize = 100;
const ZONES: [&str; 3] = ["a", "b", "c"];

fn cluster_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0000 + u32::try_from(service).unwrap_or(0) + 1)
}

fn endpoint_ip(service: usize, endpoint: usize, generation: usize) -> Ipv4Addr {
    let number = service * 32 + endpoint * 2 + generation % 2;
    Ipv4Addr::from(0x0b00_0000 + u32::try_from(number).unwrap_or(0))
}

fn node_of(service: usize, endpoint: usize) -> usize {
    (service + endpoint * 7) % NODES
}

/// A service.
pub(crate) fn service(index: usize) -> Service {
    Service {
        meta: Meta::named(ObjectKey::new(format!("ns-{}", index % 50), format!("service-{index}"))),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: vec![IpAddr::V4(cluster_ip(index))],
        external_ips: vec![],
        load_balancer: vec![],
        source_ranges: vec![],
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            app_protocol: None,
            port: 80,
            node_port: None,
            target_port: TargetPort::Number(8080),
        }],
        selector: [("app".into(), format!("service-{index}").into())].into(),
        external_traffic_policy: TrafficPolicy::Cluster,
        internal_traffic_policy: TrafficPolicy::Cluster,
        session_affinity: None,
        health_check_node_port: None,
        traffic_distribution: None,
        publish_not_ready_addresses: false,
        external_name: None,
    }
}

/// Its slice; in each generation the first endpoint has another address.
pub(crate) fn slice(index: usize, endpoints: usize, generation: usize) -> EndpointSlice {
    let endpoint = |number: usize| {
        let moved = if number == 0 { generation } else { 0 };
        let node = node_of(index, number);
        Endpoint {
            pod: Some(format!("service-{index}-pod-{number}").into()),
            node: Some(format!("node-{node}").into()),
            zone: Some(ZONES[node % ZONES.len()].into()),
            ..Endpoint::at(IpAddr::V4(endpoint_ip(index, number, moved)))
        }
    };
    EndpointSlice {
        triggered: telaio_model::endpoints::TriggerTime::default(),
        key: ObjectKey::new(format!("ns-{}", index % 50), format!("service-{index}-x7k2p")),
        service: Some(format!("service-{index}").into()),
        address_type: AddressType::IPv4,
        endpoints: (0..endpoints).map(endpoint).collect(),
        ports: vec![EndpointPort {
            name: "http".into(),
            protocol: Some(Protocol::Tcp),
            port: Some(8080),
        }],
    }
}

/// The same as JSON objects, as an API server holds them.
pub(crate) fn json(index: usize, endpoints: usize) -> [serde_json::Value; 2] {
    let namespace = format!("ns-{}", index % 50);
    let name = format!("service-{index}");
    let service = serde_json::json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": {
            "type": "ClusterIP", "selector": {"app": name},
            "clusterIP": cluster_ip(index).to_string(), "clusterIPs": [cluster_ip(index).to_string()],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
    });
    let endpoint = |number: usize| {
        let node = node_of(index, number);
        serde_json::json!({
            "addresses": [endpoint_ip(index, number, 0).to_string()],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{node}"), "zone": ZONES[node % ZONES.len()],
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": format!("{name}-pod-{number}")},
        })
    };
    let slice = serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace, "name": format!("{name}-x7k2p"),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    });
    [service, slice]
}

/// The same as YAML files, one per service, in a directory per namespace.
pub(crate) fn write_manifests(root: &Path, services: usize, endpoints: usize) -> Result<()> {
    for index in 0..services {
        let dir = root.join(format!("ns-{}", index % 50));
        if index < 50 {
            fs::create_dir(&dir)?;
        }
        fs::write(dir.join(format!("service-{index}.yaml")), yaml(index, endpoints)?)?;
    }
    Ok(())
}

fn yaml(index: usize, endpoints: usize) -> Result<String> {
    let namespace = format!("ns-{}", index % 50);
    let name = format!("service-{index}");
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  \
         labels:\n    app: {name}\nspec:\n  type: ClusterIP\n  clusterIP: {ip}\n  clusterIPs:\n  \
         - {ip}\n  ports:\n  - name: http\n    protocol: TCP\n    port: 80\n    targetPort: 8080\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
         name: {name}-x7k2p\n  namespace: {namespace}\n  labels:\n    \
         kubernetes.io/service-name: {name}\naddressType: IPv4\nports:\n- name: http\n  \
         protocol: TCP\n  port: 8080\nendpoints:\n",
        ip = cluster_ip(index)
    );
    for number in 0..endpoints {
        let node = node_of(index, number);
        writeln!(
            text,
            "- addresses:\n  - {}\n  conditions:\n    ready: true\n    serving: true\n    \
             terminating: false\n  nodeName: node-{node}\n  zone: {}\n  targetRef:\n    \
             kind: Pod\n    namespace: {namespace}\n    name: {name}-pod-{number}",
            endpoint_ip(index, number, 0),
            ZONES[node % ZONES.len()]
        )?;
    }
    Ok(text)
}
