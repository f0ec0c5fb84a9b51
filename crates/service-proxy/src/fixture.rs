//! Services for tests and benchmarks, made in a line. Not for use elsewhere.
//!
//! Every endpoint is ready; which traffic it serves follows from the service's policies, as the brain
//! would decide it.

use std::net::IpAddr;
use std::sync::Arc;

use telaio_model::{
    ClientIpAffinity, Conditions, EndpointRef, Families, IpFamily, Labels, LocalEndpoint,
    LocalEndpointPort, LocalService, LocalServicePort, ObjectKey, Protocol, Scopes,
    ServiceEndpoints, ServiceType,
};

/// A service that is being made.
#[derive(Debug, Clone)]
pub struct Fixture {
    service: LocalService,
    endpoints: Vec<(IpAddr, bool, u16)>,
}

impl Fixture {
    /// A service with one unnamed TCP port 80 that leads to port 8080, without addresses.
    pub fn new(name: &str) -> Self {
        let port = LocalServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            target_port: Some(8080),
            target_port_name: None,
            app_protocol: None,
            has_endpoints: Families::default(),
        };
        let service = LocalService {
            key: ObjectKey::new("test", name),
            service_type: ServiceType::LoadBalancer,
            headless: false,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: vec![port],
            external_traffic_to_local: false,
            internal_traffic_to_local: false,
            session_affinity: None,
            health_check_node_port: None,
            external_name: None,
            labels: Labels::default(),
            annotations: Labels::default(),
        };
        Self { service, endpoints: Vec::new() }
    }

    /// Changes anything about the service.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut LocalService)) -> Self {
        change(&mut self.service);
        self
    }

    /// Adds a cluster address.
    #[must_use]
    pub fn cluster_ip(self, ip: impl Into<IpAddr>) -> Self {
        self.with(|service| service.cluster_ips.push(ip.into()))
    }

    /// Adds a load balancer's address.
    #[must_use]
    pub fn load_balancer_ip(self, ip: impl Into<IpAddr>) -> Self {
        self.with(|service| service.load_balancer_ips.push(ip.into()))
    }

    /// Gives its port a node port.
    #[must_use]
    pub fn node_port(self, port: u16) -> Self {
        self.with(|service| service.ports[0].node_port = Some(port))
    }

    /// Its port's protocol.
    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.with(|service| service.ports[0].protocol = protocol)
    }

    /// Clients stay with their endpoint.
    #[must_use]
    pub fn sticky(self, timeout_s: u32) -> Self {
        self.with(|service| service.session_affinity = Some(ClientIpAffinity { timeout_s }))
    }

    /// How endpoints take turns.
    #[must_use]
    pub fn balance(self, balance: &str) -> Self {
        let annotation: Arc<str> = crate::plan::ANNOTATION_BALANCE.into();
        self.with(|service| _ = service.annotations.insert(annotation, balance.into()))
    }

    /// Adds an endpoint on another node.
    #[must_use]
    pub fn remote(mut self, ip: impl Into<IpAddr>) -> Self {
        self.endpoints.push((ip.into(), false, 1));
        self
    }

    /// Adds an endpoint on this node.
    #[must_use]
    pub fn local(mut self, ip: impl Into<IpAddr>) -> Self {
        self.endpoints.push((ip.into(), true, 1));
        self
    }

    /// The weight of the endpoint that was added last.
    #[must_use]
    pub fn weight(mut self, weight: u16) -> Self {
        if let Some(last) = self.endpoints.last_mut() {
            last.2 = weight;
        }
        self
    }

    /// The service with its endpoints.
    pub fn build(&self) -> ServiceEndpoints {
        let mut service = self.service.clone();
        for port in &mut service.ports {
            for (ip, ..) in &self.endpoints {
                port.has_endpoints.insert(IpFamily::of(*ip));
            }
        }
        let external = service.ports.iter().any(|port| port.node_port.is_some())
            || !service.external_ips.is_empty()
            || !service.load_balancer_ips.is_empty();
        let (itp, etp) = (service.internal_traffic_to_local, service.external_traffic_to_local);
        let uses_cluster = !itp || external;
        let uses_local = itp || (etp && external);
        let scopes = |local: bool| {
            let (cluster, local) = (uses_cluster, uses_local && local);
            Scopes {
                internal: if itp { local } else { cluster },
                external: external && if etp { local } else { cluster },
                cluster,
                local,
            }
        };
        let endpoint = |(ip, local, weight): &(IpAddr, bool, u16)| {
            let id: Arc<str> = format!("pod-{ip}").into();
            let ports = service.ports.iter().map(|port| LocalEndpointPort {
                name: port.name.clone(),
                port: port.target_port.unwrap_or(port.port),
                scopes: scopes(*local),
            });
            Arc::new(LocalEndpoint {
                key: EndpointRef { service: service.key.clone(), id: id.clone() },
                pod: Some(id),
                hostname: None,
                ips: vec![*ip],
                local: *local,
                ports: ports.collect(),
                unlisted_ports: None,
                conditions: Conditions { ready: true, serving: true, terminating: false },
                weight: *weight,
                node: None,
                zone: None,
            })
        };
        let endpoints: Vec<_> = self.endpoints.iter().map(endpoint).collect();
        ServiceEndpoints { service: Arc::new(service), endpoints: endpoints.into() }
    }
}
