//! Services and their endpoints, as the manifests that the agent reads.
//!
//! Addresses follow from a service's number, and are the same in every cluster: number 7 has the
//! cluster addresses 10.96.0.7 and fd00:10:96::7, the load balancer's 192.0.2.7 and 2001:db8:2::7, the
//! external ones 198.51.100.7 and 2001:db8:51::7, and node port 30007. Every service has TCP and UDP on
//! port 80.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use telaio_testkit::netns::{Family, Host, SERVER_PORT, node_a_second};

/// The port of every service.
pub(crate) const SERVICE_PORT: u16 = 80;

/// A service to be written.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) number: u8,
    families: Vec<Family>,
    labels: String,
    annotations: String,
    /// Further lines of `spec`, each indented by two.
    spec: String,
    kind: &'static str,
    node_port: bool,
    external_ips: bool,
    load_balancer: Option<&'static str>,
    protocols: Vec<&'static str>,
    endpoints: Vec<Endpoint>,
}

/// An endpoint to be written.
#[derive(Debug, Clone)]
struct Endpoint {
    host: Host,
    conditions: &'static str,
    hints: Option<String>,
    port: u16,
    weight: Option<u16>,
}

impl Service {
    /// A ClusterIP service without endpoints.
    pub(crate) fn new(name: impl Into<String>, number: u8) -> Self {
        Self {
            name: name.into(),
            number,
            families: Family::ALL.to_vec(),
            labels: String::new(),
            annotations: String::new(),
            spec: String::new(),
            kind: "ClusterIP",
            node_port: false,
            external_ips: false,
            load_balancer: None,
            protocols: vec!["TCP", "UDP"],
            endpoints: Vec::new(),
        }
    }

    pub(crate) fn node_port(mut self) -> Self {
        (self.kind, self.node_port) = ("NodePort", true);
        self
    }

    pub(crate) fn load_balancer(mut self) -> Self {
        (self.kind, self.node_port, self.load_balancer) = ("LoadBalancer", true, Some("VIP"));
        self
    }

    /// A load balancer that proxies: the node must leave its address alone.
    pub(crate) fn proxying_load_balancer(mut self) -> Self {
        self = self.load_balancer();
        self.load_balancer = Some("Proxy");
        self
    }

    pub(crate) fn external_ips(mut self) -> Self {
        self.external_ips = true;
        self
    }

    pub(crate) fn only(mut self, family: Family) -> Self {
        self.families = vec![family];
        self
    }

    pub(crate) fn protocols(mut self, protocols: &[&'static str]) -> Self {
        self.protocols = protocols.to_vec();
        self
    }

    pub(crate) fn label(mut self, label: &str) -> Self {
        let _ = writeln!(self.labels, "    {label}");
        self
    }

    pub(crate) fn annotation(mut self, annotation: &str) -> Self {
        let _ = writeln!(self.annotations, "    {annotation}");
        self
    }

    pub(crate) fn balance(self, how: &str) -> Self {
        self.annotation(&format!("telaio.dev/balance: {how}"))
    }

    /// One more line of `spec`.
    pub(crate) fn spec(mut self, line: &str) -> Self {
        let _ = writeln!(self.spec, "  {line}");
        self
    }

    pub(crate) fn external_local(self) -> Self {
        self.spec("externalTrafficPolicy: Local")
    }

    pub(crate) fn internal_local(self) -> Self {
        self.spec("internalTrafficPolicy: Local")
    }

    pub(crate) fn affinity(self, timeout_s: u32) -> Self {
        self.spec("sessionAffinity: ClientIP")
            .spec(&format!("sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {timeout_s}}}}}"))
    }

    pub(crate) fn source_ranges(self, ranges: &str) -> Self {
        self.spec(&format!("loadBalancerSourceRanges: [{ranges}]"))
    }

    /// Adds endpoints: hosts, each alone or with what is special about it, as in
    /// `a1 b1:terminating a2:zone=east`.
    pub(crate) fn endpoints(mut self, text: &str) -> Self {
        self.endpoints.extend(text.split_whitespace().map(Endpoint::parse));
        self
    }

    /// The cluster address.
    pub(crate) fn cluster_ip(&self, family: Family) -> IpAddr {
        cluster_ip(family, self.number)
    }

    /// Service and slices, as YAML documents.
    pub(crate) fn yaml(&self) -> String {
        let mut text = self.service_yaml();
        for family in &self.families {
            text += &self.slices_yaml(*family);
        }
        text
    }

    fn service_yaml(&self) -> String {
        let ips = |address: fn(Family, u8) -> IpAddr| {
            let ips: Vec<_> = self
                .families
                .iter()
                .map(|family| format!("\"{}\"", address(*family, self.number)))
                .collect();
            format!("[{}]", ips.join(", "))
        };
        let mut text = format!(
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: test\n",
            self.name
        );
        if !self.labels.is_empty() {
            text += &format!("  labels:\n{}", self.labels);
        }
        if !self.annotations.is_empty() {
            text += &format!("  annotations:\n{}", self.annotations);
        }
        let cluster_ips = ips(cluster_ip);
        let families: Vec<_> = self.families.iter().map(|family| family_name(*family)).collect();
        text += &format!(
            "spec:\n  type: {}\n  clusterIP: \"{}\"\n  clusterIPs: {cluster_ips}\n  ipFamilies: [{}]\n",
            self.kind,
            cluster_ip(self.families[0], self.number),
            families.join(", "),
        );
        text += &format!(
            "  ipFamilyPolicy: {}\n",
            if self.families.len() == 2 { "RequireDualStack" } else { "SingleStack" }
        );
        if self.external_ips {
            text += &format!("  externalIPs: {}\n", ips(external_ip));
        }
        text += &self.spec;
        text += "  ports:\n";
        for protocol in &self.protocols {
            let name = protocol.to_lowercase();
            text += &format!(
                "    - {{name: {name}, protocol: {protocol}, port: {SERVICE_PORT}, targetPort: {SERVER_PORT}"
            );
            if self.node_port {
                text += &format!(", nodePort: {}", node_port(self.number));
            }
            text += "}\n";
        }
        if let Some(mode) = self.load_balancer {
            text += "status:\n  loadBalancer:\n    ingress:\n";
            for family in &self.families {
                let ip = load_balancer_ip(*family, self.number);
                text += &format!("      - {{ip: \"{ip}\", ipMode: {mode}}}\n");
            }
        }
        text
    }

    /// A slice for each group of endpoints with the same port and weight: both belong to a slice.
    fn slices_yaml(&self, family: Family) -> String {
        let mut groups: BTreeMap<_, Vec<&Endpoint>> = BTreeMap::new();
        for endpoint in &self.endpoints {
            groups.entry((endpoint.port, endpoint.weight)).or_default().push(endpoint);
        }
        let mut text = String::new();
        for (index, ((port, weight), group)) in groups.iter().enumerate() {
            text += &format!(
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
                 name: {}-{}-{index}\n  namespace: test\n  labels: {{kubernetes.io/service-name: {}}}\n",
                self.name,
                family_name(family).to_lowercase(),
                self.name
            );
            if let Some(weight) = weight {
                text += &format!("  annotations: {{telaio.dev/weight: \"{weight}\"}}\n");
            }
            text += &format!("addressType: {}\nports:\n", family_name(family));
            for protocol in &self.protocols {
                let name = protocol.to_lowercase();
                text += &format!("  - {{name: {name}, protocol: {protocol}, port: {port}}}\n");
            }
            text += "endpoints:\n";
            for endpoint in group {
                text += &endpoint.yaml(family);
            }
        }
        text
    }
}

impl Endpoint {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(':');
        let host =
            parts.next().and_then(Host::named).unwrap_or_else(|| panic!("no host in {text:?}"));
        let mut endpoint = Self {
            host,
            conditions: "{ready: true, serving: true, terminating: false}",
            hints: None,
            port: SERVER_PORT,
            weight: None,
        };
        for part in parts {
            match part.split_once('=') {
                None => {
                    endpoint.conditions = match part {
                        "terminating" => "{ready: false, serving: true, terminating: true}",
                        "not-ready" => "{ready: false, serving: false, terminating: false}",
                        "gone" => "{ready: false, serving: false, terminating: true}",
                        other => panic!("an endpoint cannot be {other:?}"),
                    }
                }
                Some(("zone", zone)) => {
                    endpoint.hints = Some(format!("{{forZones: [{{name: {zone}}}]}}"));
                }
                Some(("node", node)) => {
                    endpoint.hints = Some(format!("{{forNodes: [{{name: {node}}}]}}"));
                }
                Some(("port", port)) => endpoint.port = port.parse().unwrap(),
                Some(("weight", weight)) => endpoint.weight = Some(weight.parse().unwrap()),
                Some(other) => panic!("{other:?} says nothing about an endpoint"),
            }
        }
        endpoint
    }

    fn yaml(&self, family: Family) -> String {
        let node = self.host.node().expect("endpoints run on nodes");
        let mut text = format!(
            "  - addresses: [\"{}\"]\n    nodeName: {}\n    zone: {}\n    conditions: {}\n    \
             targetRef: {{kind: Pod, name: {}-{}}}\n",
            self.host.address(family),
            node.name(),
            zone(node),
            self.conditions,
            self.host.name(),
            family_name(family).to_lowercase(),
        );
        if let Some(hints) = &self.hints {
            text += &format!("    hints: {hints}\n");
        }
        text
    }
}

/// Both nodes, in two zones.
pub(crate) fn nodes_yaml() -> String {
    let node = |node: Host, pods: &str, more: &str| {
        let addresses = Family::ALL.map(|family| {
            format!("    - {{type: InternalIP, address: \"{}\"}}\n", node.address(family))
        });
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {}\n  labels: \
             {{topology.kubernetes.io/zone: {}}}\nspec:\n  podCIDRs: [{pods}]\nstatus:\n  addresses:\n{}{more}",
            node.name(),
            zone(node),
            addresses.concat()
        )
    };
    let second = Family::ALL.map(|family| {
        format!("    - {{type: ExternalIP, address: \"{}\"}}\n", node_a_second(family))
    });
    node(Host::NodeA, "10.244.1.0/24, \"fd00:10:244:1::/64\"", &second.concat())
        + &node(Host::NodeB, "10.244.2.0/24, \"fd00:10:244:2::/64\"", "")
}

fn zone(node: Host) -> &'static str {
    if node == Host::NodeA { "east" } else { "west" }
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The cluster address of service `number`.
pub(crate) fn cluster_ip(family: Family, number: u8) -> IpAddr {
    family.pick(
        Ipv4Addr::new(10, 96, 0, number),
        Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, u16::from(number)),
    )
}

/// Its load balancer's address.
pub(crate) fn load_balancer_ip(family: Family, number: u8) -> IpAddr {
    family.pick(
        Ipv4Addr::new(192, 0, 2, number),
        Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, u16::from(number)),
    )
}

/// Its external address.
pub(crate) fn external_ip(family: Family, number: u8) -> IpAddr {
    family.pick(
        Ipv4Addr::new(198, 51, 100, number),
        Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, u16::from(number)),
    )
}

/// Its port on every node.
pub(crate) fn node_port(number: u8) -> u16 {
    30_000 + u16::from(number)
}
