//! Where Ingresses can be reached, as `status.loadBalancer` says it.

use std::net::IpAddr;

use serde_json::{Value, json};
use telaio_model::Ingress;

/// Addresses and host names, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    ips: Vec<IpAddr>,
    hostnames: Vec<String>,
}

impl Published {
    fn new(mut ips: Vec<IpAddr>, mut hostnames: Vec<String>) -> Self {
        ips.sort_unstable();
        ips.dedup();
        hostnames.sort_unstable();
        hostnames.dedup();
        Self { ips, hostnames }
    }

    /// Those of the nodes.
    pub fn of_nodes(nodes: &[IpAddr]) -> Self {
        Self::new(nodes.to_vec(), Vec::new())
    }

    /// Those that a status has.
    pub fn of_ingress(ingress: &Ingress) -> Self {
        let hostnames = ingress.status_hostnames.iter().map(ToString::to_string).collect();
        Self::new(ingress.status_ips.clone(), hostnames)
    }

    /// Those of a service: its load balancer's and external ones; of one that has neither and is no
    /// load balancer, its cluster addresses.
    pub fn of_service(service: &Value) -> Self {
        let ip = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let spec = &service["spec"];
        if let Some(name) = spec["externalName"].as_str().filter(|name| !name.is_empty()) {
            return Self::new(Vec::new(), vec![name.to_owned()]);
        }
        let ways = list(&service["status"]["loadBalancer"]["ingress"]);
        let mut ips: Vec<IpAddr> = ways.iter().filter_map(|way| ip(&way["ip"])).collect();
        let names = ways.iter().filter_map(|way| way["hostname"].as_str());
        let hostnames = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        ips.extend(list(&spec["externalIPs"]).iter().filter_map(ip));
        let mut found = Self::new(ips, hostnames);
        if found == Self::default() && spec["type"].as_str() != Some("LoadBalancer") {
            found =
                Self::new(list(&spec["clusterIPs"]).iter().filter_map(ip).collect(), Vec::new());
        }
        found
    }

    /// As `status.loadBalancer.ingress`.
    pub fn to_json(&self) -> Value {
        let ips = self.ips.iter().map(|ip| json!({"ip": ip}));
        let names = self.hostnames.iter().map(|name| json!({"hostname": name}));
        ips.chain(names).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_services_addresses_are_its_load_balancers_or_else_its_own() {
        let balanced = json!({
            "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.9"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example.com"}]}},
        });
        assert_eq!(
            Published::of_service(&balanced).to_json(),
            json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.9"}, {"hostname": "lb.example.com"}])
        );
        let waiting = json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"]}});
        assert_eq!(Published::of_service(&waiting), Published::default());
        let plain = json!({"spec": {"type": "NodePort", "clusterIPs": ["10.96.0.1"]}});
        assert_eq!(Published::of_service(&plain).to_json(), json!([{"ip": "10.96.0.1"}]));
    }
}
