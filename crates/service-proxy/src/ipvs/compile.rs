//! A service of the node view as virtual servers and endpoints. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{IpFamily, Protocol, ServiceEndpoints};

use super::marks::Marks;
use super::types::{
    EndpointInfo, Forwarding, Outside, Scheduler, ServerKey, ServiceInfo, ServiceType, Treatment,
    server_at,
};
use crate::config::{NodeFacts, NodePortMatch, ProxyConfig};
use crate::plan::{Answer, Balance, Destination, EndpointSet, Place, PortPlan, plan};

/// The annotation that chooses how the kernel chooses endpoints of a service.
pub const ANNOTATION_SCHEDULER: &str = "telaio.dev/ipvs-scheduler";
/// The annotation that chooses how packets get to a service's endpoints.
pub const ANNOTATION_FORWARDING: &str = "telaio.dev/ipvs-forwarding";

/// What a service's virtual servers depend on besides the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The family.
    pub family: IpFamily,
    /// How the kernel chooses, where a service does not say.
    pub scheduler: Scheduler,
    /// The addresses of this machine, without those on our device and on loopback.
    pub machine: BTreeSet<IpAddr>,
    /// Those of them that serve node ports.
    pub node_ports: BTreeSet<IpAddr>,
}

impl Context {
    /// What `config` and the cluster say, on a machine that has these addresses beside our device's.
    pub fn new(
        config: &ProxyConfig,
        node: &NodeFacts,
        family: IpFamily,
        scheduler: Scheduler,
        machine: &BTreeSet<IpAddr>,
    ) -> Self {
        let ours = machine.iter().copied().filter(|ip| IpFamily::of(*ip) == family);
        let machine: BTreeSet<IpAddr> = ours.filter(|ip| is_usable(*ip)).collect();
        let node_ports = match NodePortMatch::new(config, node, family) {
            NodePortMatch::AnyLocal => machine.clone(),
            NodePortMatch::Within(nets) => {
                let within = |ip: &IpAddr| nets.iter().any(|net| net.contains(ip));
                machine.iter().copied().filter(within).collect()
            }
        };
        Self { family, scheduler, machine, node_ports }
    }
}

/// Addresses that others can reach us at.
pub(super) fn is_usable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// A virtual server with its endpoints, and whose place it is if several services want it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The lower, the better the claim.
    pub rank: u8,
    /// The server.
    pub service: ServiceInfo,
    /// Its endpoints, by address.
    pub endpoints: Arc<[EndpointInfo]>,
}

/// Everything that a service wants in one family.
pub fn compile(entry: &ServiceEndpoints, context: &Context, marks: &mut Marks) -> Vec<Claim> {
    let plans = plan(entry, context.family);
    plans.iter().flat_map(|plan| PortCompiler::new(entry, plan, context).claims(marks)).collect()
}

/// What is wrong with the annotations of a service that only this backend reads.
pub fn annotation_problems(entry: &ServiceEndpoints) -> Vec<String> {
    let mut problems = Vec::new();
    let annotations = &entry.service.annotations;
    let key = &entry.service.key;
    if let Some(text) = annotations.get(ANNOTATION_SCHEDULER)
        && Scheduler::parse(text).is_none()
    {
        let known: Vec<&str> = Scheduler::ALL.iter().map(|(_, name)| *name).collect();
        problems.push(format!(
            "service {key}: annotation {ANNOTATION_SCHEDULER}: {text:?} is none of {}; using the \
             node's scheduler",
            known.join(", ")
        ));
    }
    match annotations.get(ANNOTATION_FORWARDING).map(|text| (text, Forwarding::parse(text))) {
        Some((text, None)) => problems.push(format!(
            "service {key}: annotation {ANNOTATION_FORWARDING}: {text:?} is not nat, direct or \
             tunnel; using nat"
        )),
        Some((text, Some(Forwarding::Direct | Forwarding::Tunnel))) => {
            let other_port = entry.service.ports.iter().find(|port| {
                let of_port = entry.endpoints.iter().filter_map(|it| it.port_for(port));
                of_port.into_iter().any(|(target, _)| target != port.port)
            });
            if let Some(port) = other_port {
                problems.push(format!(
                    "service {key}: annotation {ANNOTATION_FORWARDING}: {text} cannot change ports, \
                     and endpoints of port {} listen on another; using nat there",
                    port.port
                ));
            }
        }
        _ => {}
    }
    problems
}

/// The mark that says which of two claims to one place is better: as on the other backends.
fn rank(place: Place) -> u8 {
    match place {
        Place::ClusterIp(_) => 0,
        Place::ExternalIp(_) => 1,
        Place::LoadBalancerIp(_) => 2,
        Place::NodePort => 3,
    }
}

/// One port of a service.
struct PortCompiler<'a> {
    plan: &'a PortPlan,
    context: &'a Context,
    scheduler: Scheduler,
    forwarding: Forwarding,
    name: Arc<crate::plan::PortName>,
    allowed: Option<Arc<[IpNet]>>,
}

impl<'a> PortCompiler<'a> {
    fn new(entry: &ServiceEndpoints, plan: &'a PortPlan, context: &'a Context) -> Self {
        let annotations = &entry.service.annotations;
        let asked = annotations.get(ANNOTATION_SCHEDULER).and_then(|text| Scheduler::parse(text));
        let forwarding = annotations.get(ANNOTATION_FORWARDING);
        Self {
            plan,
            context,
            scheduler: asked.unwrap_or_else(|| scheduler(plan, context.scheduler)),
            forwarding: forwarding.and_then(|text| Forwarding::parse(text)).unwrap_or_default(),
            name: Arc::new(plan.name.clone()),
            allowed: plan.source_ranges.as_deref().map(Arc::from),
        }
    }

    fn protocol(&self) -> Protocol {
        self.plan.name.protocol
    }

    /// The addresses and ports at which it answers, with what they are.
    fn places(&self) -> impl Iterator<Item = (Place, SocketAddr)> {
        self.plan.frontends.iter().flat_map(|frontend| {
            let own = match frontend.place {
                Place::NodePort => Some(&self.context.node_ports),
                _ => None,
            };
            let addresses = own.into_iter().flatten().copied().chain(frontend.place.address());
            addresses.map(|ip| (frontend.place, SocketAddr::new(ip, frontend.port)))
        })
    }

    fn claims(&self, marks: &mut Marks) -> Vec<Claim> {
        let outside = self.outside(marks);
        let mut claims: Vec<Claim> =
            self.places().map(|(place, at)| self.claim(place, at, outside)).collect();
        if let Some(Outside::Marked(mark)) = outside {
            claims.push(self.twin(mark));
        }
        claims
    }

    /// What traffic from outside meets, where that is something else than for this node and its pods.
    fn outside(&self, marks: &mut Marks) -> Option<Outside> {
        let places = || self.places().filter(|(place, _)| place.is_external());
        let applies = self.plan.is_external_local() && places().next().is_some();
        let served = match self.plan.external {
            Answer::Serve(EndpointSet::Local) => applies,
            _ => false,
        };
        if !served {
            marks.release(&self.plan.name);
            let is_other = self.plan.external_from_node != Some(self.plan.external);
            return (applies && is_other).then_some(Outside::Drop);
        }
        let servers = places().map(|(_, at)| server_at(self.protocol(), at));
        // Without a mark the node's endpoints alone cannot be served; refusing others is the lesser evil.
        Some(marks.of(&self.plan.name, servers).map_or(Outside::Drop, Outside::Marked))
    }

    fn claim(&self, place: Place, at: SocketAddr, outside: Option<Outside>) -> Claim {
        let is_external = place.is_external();
        let answer = match (is_external, self.plan.external_from_node) {
            (false, _) => self.plan.internal,
            (true, Some(from_node)) => from_node,
            (true, None) => self.plan.external,
        };
        let server = server_at(self.protocol(), at);
        let (treatment, endpoints) = match answer {
            Answer::Serve(set) => (Treatment::Serve, self.endpoints(server, Some(at.port()), set)),
            Answer::Reject => (Treatment::Reject, Arc::default()),
            Answer::Drop => (Treatment::Drop, Arc::default()),
        };
        let is_direct = endpoints.first().is_some_and(|it| it.forwarding != Forwarding::Nat);
        let service = ServiceInfo {
            server,
            name: Arc::clone(&self.name),
            service_type: match place {
                Place::ClusterIp(_) => ServiceType::ClusterIp,
                Place::NodePort => ServiceType::NodePort,
                Place::ExternalIp(_) | Place::LoadBalancerIp(_) => ServiceType::LoadBalancer,
            },
            treatment,
            outside: outside.filter(|_| is_external),
            scheduler: self.scheduler,
            affinity_s: self.plan.affinity_s,
            is_direct,
            allowed: match place {
                Place::LoadBalancerIp(ip) => self.allowed_at(ip),
                _ => None,
            },
            bind: !self.context.machine.contains(&at.ip()) && place != Place::NodePort,
        };
        Claim { rank: rank(place), service, endpoints }
    }

    /// Who may use a load balancer's address. If it is on our device, what the node itself sends there has
    /// that very address as its source; so it is let through if one of the node's own would be.
    fn allowed_at(&self, ip: IpAddr) -> Option<Arc<[IpNet]>> {
        let ranges = self.allowed.as_ref()?;
        let own = &self.context.machine;
        let may = |ip: &IpAddr| ranges.iter().any(|net| net.contains(ip));
        if own.contains(&ip) || may(&ip) || !own.iter().any(may) {
            return Some(Arc::clone(ranges));
        }
        Some(ranges.iter().copied().chain([IpNet::from(ip)]).collect())
    }

    /// The virtual server that traffic from outside is led to.
    fn twin(&self, mark: u32) -> Claim {
        let is_v6 = self.context.family == IpFamily::V6;
        let server = ServerKey::Mark { is_v6, mark };
        let service = ServiceInfo {
            server,
            name: Arc::clone(&self.name),
            service_type: ServiceType::Local,
            treatment: Treatment::Serve,
            outside: None,
            // The kernel does not heed the endpoints' ports where clients stay with a server that is
            // known by its mark. The hash of a client's address leads it to the same endpoint as well,
            // for as long as that is there.
            scheduler: self.plan.affinity_s.map_or(self.scheduler, |_| Scheduler::Maglev),
            affinity_s: None,
            is_direct: false,
            allowed: None,
            bind: false,
        };
        Claim { rank: 0, service, endpoints: self.endpoints(server, None, EndpointSet::Local) }
    }

    /// The endpoints of a set. Only NAT can change the port, so if one has another, all get NAT.
    fn endpoints(
        &self,
        server: ServerKey,
        port: Option<u16>,
        set: EndpointSet,
    ) -> Arc<[EndpointInfo]> {
        let destinations = self.plan.set(set);
        let is_same = |destination: &Destination| Some(destination.port) == port;
        let forwarding =
            if destinations.iter().all(is_same) { self.forwarding } else { Forwarding::Nat };
        let info = |destination: &Destination| EndpointInfo {
            server,
            protocol: self.protocol(),
            address: SocketAddr::new(destination.address, destination.port),
            weight: destination.weight,
            forwarding,
            local: destination.local,
        };
        destinations.iter().map(info).collect()
    }
}

/// The scheduler of a port whose service asks for none by name.
fn scheduler(plan: &PortPlan, default: Scheduler) -> Scheduler {
    match plan.balance {
        Balance::SourceHash => Scheduler::Maglev,
        Balance::RoundRobin => Scheduler::WeightedRoundRobin,
        Balance::Random => {
            let weights: BTreeSet<u16> =
                plan.cluster.iter().chain(&plan.local).map(|it| it.weight).collect();
            if weights.len() > 1 { default.weighted() } else { default }
        }
    }
}

#[cfg(test)]
mod tests;
