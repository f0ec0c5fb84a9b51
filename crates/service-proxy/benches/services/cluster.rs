//! A synthetic cluster as a node sees it: N services of one port, each with M endpoints.
//!
//! It remembers what it told, so that what the kernel has can be compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use telaio_model::{
    ClientIpAffinity, Conditions, EndpointRef, Families, Labels, LocalEndpoint, LocalEndpointPort,
    LocalService, LocalServicePort, ObjectKey, Op, Protocol, Scopes, ServiceEndpoints, ServiceType,
};

/// The port of every service.
pub(crate) const SERVICE_PORT: u16 = 80;
/// The port of every endpoint.
pub(crate) const ENDPOINT_PORT: u16 = 8080;
/// How long clients of a sticky service stay.
const AFFINITY_S: u32 = 10_800;
/// How many namespaces the services are spread over.
const NAMESPACES: u32 = 50;

/// Services × endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
}

impl Size {
    pub(crate) const fn new(services: u32, endpoints: u32) -> Self {
        Self { services, endpoints }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.services, self.endpoints)
    }
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (services, endpoints) = text.split_once('x').context("a size is 1000x2")?;
        let size = Self::new(services.parse()?, endpoints.parse()?);
        if size.services == 0 || size.endpoints == 0 || size.services > 60_000 {
            bail!("a size is from 1x1 to 60000 services, not {text}");
        }
        Ok(size)
    }
}

/// The address of a service: from 10.96.0.1 on.
pub(crate) fn cluster_ip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0001 + service)
}

/// The address that an endpoint of this number has: in 10.128.0.0/9.
fn endpoint_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0001 + number)
}

fn key(service: u32) -> ObjectKey {
    ObjectKey::new(format!("ns-{}", service % NAMESPACES), format!("service-{service}"))
}

fn service(number: u32, sticky: bool) -> Arc<LocalService> {
    let port = LocalServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: SERVICE_PORT,
        node_port: None,
        target_port: Some(ENDPOINT_PORT),
        target_port_name: None,
        app_protocol: None,
        has_endpoints: Families { v4: true, v6: false },
    };
    Arc::new(LocalService {
        key: key(number),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: vec![cluster_ip(number).into()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        ports: vec![port],
        external_traffic_to_local: false,
        internal_traffic_to_local: false,
        session_affinity: sticky.then_some(ClientIpAffinity { timeout_s: AFFINITY_S }),
        health_check_node_port: None,
        external_name: None,
        labels: Labels::default(),
        annotations: Labels::default(),
    })
}

fn endpoint(service: &ObjectKey, number: u32, ip: Ipv4Addr) -> Arc<LocalEndpoint> {
    let id: Arc<str> = format!("{}-pod-{number:07}", service.name).into();
    let scopes = Scopes { internal: true, external: false, cluster: true, local: false };
    Arc::new(LocalEndpoint {
        key: EndpointRef { service: service.clone(), id: Arc::clone(&id) },
        pod: Some(id),
        hostname: None,
        ips: vec![ip.into()],
        local: false,
        ports: vec![LocalEndpointPort { name: "http".into(), port: ENDPOINT_PORT, scopes }],
        unlisted_ports: None,
        conditions: Conditions::READY,
        weight: 1,
        node: Some(format!("node-{}", number % 100).into()),
        zone: None,
    })
}

/// What a cluster has, and what has to be told when it changes.
#[derive(Debug)]
pub(crate) struct Cluster {
    services: BTreeMap<u32, ServiceEndpoints>,
    /// How many endpoints there ever were.
    endpoints_made: u32,
}

impl Cluster {
    pub(crate) fn new(size: Size) -> Self {
        let mut cluster = Self { services: BTreeMap::new(), endpoints_made: 0 };
        for number in 0..size.services {
            cluster.add_service(number, size.endpoints);
        }
        cluster
    }

    /// How many services there are.
    pub(crate) fn len(&self) -> usize {
        self.services.len()
    }

    /// All of it, as the first state is told.
    pub(crate) fn all(&self) -> Vec<Op> {
        self.services.values().flat_map(set_all).collect()
    }

    /// All of it, by name.
    pub(crate) fn by_name(&self) -> BTreeMap<ObjectKey, ServiceEndpoints> {
        let by_name = |entry: &ServiceEndpoints| (entry.service.key.clone(), entry.clone());
        self.services.values().map(by_name).collect()
    }

    /// A service and its endpoints.
    pub(crate) fn service(&self, number: u32) -> Result<&ServiceEndpoints> {
        self.services.get(&number).with_context(|| format!("there is no service {number}"))
    }

    fn entry(&mut self, number: u32) -> Result<&mut ServiceEndpoints> {
        self.services.get_mut(&number).with_context(|| format!("there is no service {number}"))
    }

    /// Where each cluster address leads.
    pub(crate) fn expected(&self) -> BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>> {
        let v4 = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        };
        let endpoints = |entry: &ServiceEndpoints| {
            entry.endpoints.iter().flat_map(|it| it.ips.iter().filter_map(v4)).collect()
        };
        self.services
            .iter()
            .map(|(number, entry)| (cluster_ip(*number), endpoints(entry)))
            .collect()
    }

    fn make_endpoint(&mut self, service: &ObjectKey) -> Arc<LocalEndpoint> {
        let number = self.endpoints_made;
        self.endpoints_made += 1;
        endpoint(service, number, endpoint_ip(number))
    }

    /// A new service.
    pub(crate) fn add_service(&mut self, number: u32, endpoints: u32) -> Vec<Op> {
        let service = service(number, false);
        let endpoints: Vec<_> = (0..endpoints).map(|_| self.make_endpoint(&service.key)).collect();
        let entry = ServiceEndpoints { service, endpoints: endpoints.into() };
        let ops = set_all(&entry);
        self.services.insert(number, entry);
        ops
    }

    /// A service goes.
    pub(crate) fn remove_service(&mut self, number: u32) -> Result<Vec<Op>> {
        let entry = self.services.remove(&number).context("no such service")?;
        let mut ops: Vec<Op> =
            entry.endpoints.iter().map(|it| Op::DeleteEndpoint(it.key.clone())).collect();
        ops.push(Op::DeleteService(entry.service.key.clone()));
        Ok(ops)
    }

    /// One endpoint of a service gives way to a new one.
    pub(crate) fn replace_endpoint(&mut self, number: u32) -> Result<Vec<Op>> {
        let mut ops = self.add_endpoint(number)?;
        ops.extend(self.remove_endpoint(number)?);
        Ok(ops)
    }

    /// A service gets one more endpoint.
    pub(crate) fn add_endpoint(&mut self, number: u32) -> Result<Vec<Op>> {
        let key = self.service(number)?.service.key.clone();
        let endpoint = self.make_endpoint(&key);
        Arc::make_mut(&mut self.entry(number)?.endpoints).push(Arc::clone(&endpoint));
        Ok(vec![Op::SetEndpoint(endpoint)])
    }

    /// A service loses its oldest endpoint.
    pub(crate) fn remove_endpoint(&mut self, number: u32) -> Result<Vec<Op>> {
        let entry = self.entry(number)?;
        if entry.endpoints.is_empty() {
            bail!("service {number} has no endpoint left");
        }
        let gone = Arc::make_mut(&mut entry.endpoints).remove(0);
        Ok(vec![Op::DeleteEndpoint(gone.key.clone())])
    }

    /// A service with these endpoints takes the place of another.
    pub(crate) fn serve_at(&mut self, number: u32, sticky: bool, endpoints: &[Ipv4Addr]) {
        let service = service(number, sticky);
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|ip| {
                self.endpoints_made += 1;
                endpoint(&service.key, self.endpoints_made, *ip)
            })
            .collect();
        let entry = ServiceEndpoints { service, endpoints: endpoints.into() };
        self.services.insert(number, entry);
    }

    /// The same as manifests: one YAML file per service, in a directory per namespace.
    pub(crate) fn write_manifests(&self, root: &Path) -> Result<()> {
        for number in 0..NAMESPACES {
            fs::create_dir(root.join(format!("ns-{number}")))?;
        }
        for entry in self.services.values() {
            let key = &entry.service.key;
            let file = root.join(&*key.namespace).join(format!("{}.yaml", key.name));
            fs::write(file, manifest(entry)?)?;
        }
        Ok(())
    }
}

fn set_all(entry: &ServiceEndpoints) -> Vec<Op> {
    let endpoints = entry.endpoints.iter().map(|it| Op::SetEndpoint(Arc::clone(it)));
    [Op::SetService(Arc::clone(&entry.service))].into_iter().chain(endpoints).collect()
}

fn manifest(entry: &ServiceEndpoints) -> Result<String> {
    let (namespace, name) = (&entry.service.key.namespace, &entry.service.key.name);
    let ip = entry.service.cluster_ips.first().context("no cluster address")?;
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  \
         labels:\n    app: {name}\nspec:\n  type: ClusterIP\n  clusterIP: {ip}\n  clusterIPs:\n  \
         - {ip}\n  ports:\n  - name: http\n    protocol: TCP\n    port: {SERVICE_PORT}\n    \
         targetPort: {ENDPOINT_PORT}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata:\n  name: {name}-x7k2p\n  namespace: {namespace}\n  labels:\n    \
         kubernetes.io/service-name: {name}\naddressType: IPv4\nports:\n- name: http\n  \
         protocol: TCP\n  port: {ENDPOINT_PORT}\nendpoints:\n",
    );
    for endpoint in entry.endpoints.iter() {
        let ip = endpoint.ips.first().context("no address")?;
        let node = endpoint.node.as_deref().unwrap_or("node-0");
        writeln!(
            text,
            "- addresses:\n  - {ip}\n  conditions:\n    ready: true\n    serving: true\n    \
             terminating: false\n  nodeName: {node}\n  targetRef:\n    kind: Pod\n    \
             namespace: {namespace}\n    name: {}",
            endpoint.key.id
        )?;
    }
    Ok(text)
}
