//! A node's view in the words of a person: one line for each way in.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use telaio_model::{
    IpFamily, LocalEndpointPort, LocalServicePort, ObjectKey, Scopes, ServiceEndpoints,
};
use telaio_reconcile::kpng::State;

/// Each service's lines.
pub(super) type Lines = BTreeMap<ObjectKey, Vec<String>>;

/// The lines of a whole view.
pub(super) fn describe(state: &State) -> Lines {
    state.services().map(|entry| (entry.service.key.clone(), service_lines(entry))).collect()
}

fn service_lines(entry: &ServiceEndpoints) -> Vec<String> {
    let service = &entry.service;
    let inside = Way { used: |scopes| scopes.internal, local: service.internal_traffic_to_local };
    let outside = Way { used: |scopes| scopes.external, local: service.external_traffic_to_local };
    let ranges: Vec<_> = service.source_ranges.iter().map(ToString::to_string).collect();
    let from =
        if ranges.is_empty() { String::new() } else { format!(" from {}", ranges.join(", ")) };
    let mut lines = Vec::new();
    for port in &service.ports {
        let mut line = |ips: &[IpAddr], from: &str, way: &Way| {
            for ip in ips {
                let to = way.targets(entry, port, IpFamily::of(*ip));
                let to_port = SocketAddr::new(*ip, port.port);
                lines.push(format!("{to_port}/{}{from} → {to}", port.protocol));
            }
        };
        line(&service.cluster_ips, "", &inside);
        line(&service.external_ips, "", &outside);
        line(&service.load_balancer_ips, &from, &outside);
        if let (Some(node_port), Some(ip)) = (port.node_port, service.cluster_ips.first()) {
            let to = outside.targets(entry, port, IpFamily::of(*ip));
            lines.push(format!("node port {node_port}/{} → {to}", port.protocol));
        }
    }
    lines
}

/// A kind of traffic: which endpoints it may use.
struct Way {
    used: fn(Scopes) -> bool,
    /// Only those of this node.
    local: bool,
}

impl Way {
    /// Where traffic goes, or what becomes of it when it can go nowhere.
    fn targets(
        &self,
        entry: &ServiceEndpoints,
        port: &LocalServicePort,
        family: IpFamily,
    ) -> String {
        let mut targets: Vec<String> = Vec::new();
        for endpoint in entry.endpoints.iter() {
            let ours = |it: &&LocalEndpointPort| it.name == port.name && (self.used)(it.scopes);
            for found in endpoint.ports.iter().filter(ours) {
                let ips = endpoint.ips.iter().filter(|ip| IpFamily::of(**ip) == family);
                targets.extend(ips.map(|ip| SocketAddr::new(*ip, found.port).to_string()));
            }
        }
        if !targets.is_empty() {
            targets.join(", ")
        } else if self.local && port.has_endpoints.contains(family) {
            "dropped (its endpoints are on other nodes)".to_owned()
        } else {
            "rejected (no endpoint)".to_owned()
        }
    }
}

/// What differs: lines that are gone with `-`, new ones with `+`, each under its service.
pub(super) fn difference(old: &Lines, new: &Lines) -> Vec<String> {
    let none = Vec::new();
    let mut keys: Vec<_> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let mut shown = Vec::new();
    for key in keys {
        let (was, is) = (old.get(key).unwrap_or(&none), new.get(key).unwrap_or(&none));
        let gone = was.iter().filter(|line| !is.contains(line)).map(|line| format!("  - {line}"));
        let come = is.iter().filter(|line| !was.contains(line)).map(|line| format!("  + {line}"));
        let lines: Vec<String> = gone.chain(come).collect();
        if !lines.is_empty() {
            shown.push(key.to_string());
            shown.extend(lines);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(of: &[(&str, &[&str])]) -> Lines {
        let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        of.iter().map(|(key, text)| (ObjectKey::parse(key), owned(text))).collect()
    }

    #[test]
    fn only_what_differs_is_shown() {
        let old = lines(&[("shop/a", &["1 → x"]), ("shop/b", &["2 → y"]), ("shop/c", &["3 → z"])]);
        let new = lines(&[("shop/a", &["1 → x"]), ("shop/b", &["2 → w"]), ("shop/d", &["4 → v"])]);
        assert_eq!(
            difference(&old, &new),
            ["shop/b", "  - 2 → y", "  + 2 → w", "shop/c", "  - 3 → z", "shop/d", "  + 4 → v"]
        );
        assert!(difference(&new, &new).is_empty());
    }
}
