//! What a control plane fills in when an object is created: names, addresses, ports.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use super::resource::Resource;
use super::store::{Query, Store, metadata_mut};

/// Cluster addresses are given out from 10.96.0.0/12, as kubeadm does.
const CLUSTER_IP_FIRST: u32 = u32::from_be_bytes([10, 96, 0, 10]);
const CLUSTER_IP_LAST: u32 = u32::from_be_bytes([10, 111, 255, 254]);
const NODE_PORTS: std::ops::RangeInclusive<u64> = 30_000..=32_767;

/// Gives a new object its generated name and its kind's defaults.
pub(super) fn fill_in(
    store: &Store,
    index: usize,
    object: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let resource = store.resource(index);
    let next = store.version() + 1;
    let metadata = metadata_mut(object);
    if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        let Some(prefix) = metadata.get("generateName").and_then(Value::as_str) else {
            return Err(Refusal::invalid(&resource, "", "metadata.name: Required value"));
        };
        let name = format!("{prefix}{next:05x}");
        metadata.insert("name".to_owned(), name.into());
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "services") => fill_in_service(store, index, &resource, object),
        ("", "namespaces") => {
            object.insert("status".to_owned(), json!({"phase": "Active"}));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn fill_in_service(
    store: &Store,
    index: usize,
    resource: &Resource,
    object: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let spec = object.entry("spec").or_insert_with(|| json!({}));
    let Value::Object(spec) = spec else {
        return Err(Refusal::invalid(resource, &name, "spec: must be an object"));
    };
    spec.entry("type").or_insert_with(|| "ClusterIP".into());
    let service_type = spec["type"].as_str().unwrap_or_default().to_owned();
    if service_type == "ExternalName" {
        return Ok(());
    }
    for (field, value) in [("sessionAffinity", "None"), ("internalTrafficPolicy", "Cluster")] {
        spec.entry(field).or_insert_with(|| value.into());
    }
    let taken = Taken::of(store, index);
    let asked = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default().to_owned();
    let cluster_ip = match asked.as_str() {
        "" => taken.free_address().ok_or_else(|| full(resource, &name, "addresses"))?,
        _ if asked != "None" && taken.addresses.contains(&asked) => {
            let why = format!("spec.clusterIPs: {asked}: provided IP is already allocated");
            return Err(Refusal::invalid(resource, &name, why));
        }
        _ => asked,
    };
    spec.entry("clusterIPs").or_insert_with(|| json!([cluster_ip]));
    spec.insert("clusterIP".to_owned(), cluster_ip.into());
    spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
    spec.entry("ipFamilyPolicy").or_insert_with(|| "SingleStack".into());
    let node_ports = matches!(service_type.as_str(), "NodePort" | "LoadBalancer");
    if node_ports {
        spec.entry("externalTrafficPolicy").or_insert_with(|| "Cluster".into());
    }
    let mut free_ports = NODE_PORTS.filter(|port| !taken.node_ports.contains(port));
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(port) = port else { continue };
        port.entry("protocol").or_insert_with(|| "TCP".into());
        if let Some(number) = port.get("port").cloned() {
            port.entry("targetPort").or_insert(number);
        }
        if node_ports && !port.contains_key("nodePort") {
            let free = free_ports.next().ok_or_else(|| full(resource, &name, "node ports"))?;
            port.insert("nodePort".to_owned(), free.into());
        }
    }
    object.insert("status".to_owned(), json!({"loadBalancer": {}}));
    Ok(())
}

fn full(resource: &Resource, name: &str, what: &str) -> Refusal {
    Refusal::new(500, format_args!("{} {name:?}: no {what} are left", resource.plural))
}

/// The addresses and node ports that the services have.
#[derive(Default)]
struct Taken {
    addresses: BTreeSet<String>,
    node_ports: BTreeSet<u64>,
}

impl Taken {
    fn of(store: &Store, index: usize) -> Self {
        let mut taken = Self::default();
        for service in store.select(index, &Query::default()) {
            let value = service.value();
            let spec = &value["spec"];
            let addresses = spec["clusterIPs"].as_array().into_iter().flatten();
            taken.addresses.extend(addresses.filter_map(Value::as_str).map(str::to_owned));
            let ports = spec["ports"].as_array().into_iter().flatten();
            taken.node_ports.extend(ports.filter_map(|port| port["nodePort"].as_u64()));
        }
        taken
    }

    fn free_address(&self) -> Option<String> {
        (CLUSTER_IP_FIRST..=CLUSTER_IP_LAST)
            .map(|bits| Ipv4Addr::from(bits).to_string())
            .find(|address| !self.addresses.contains(address))
    }
}
