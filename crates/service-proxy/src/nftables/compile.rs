//! From plans to what stands in the table: chains, and elements of the shared maps.
//!
//! Pure. A service compiles alone, to [`Item`]s that it claims by [`Key`]; what services share is
//! compiled once for all from the [`Way`]s that anybody leads.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::hash::StableHash;
use telaio_model::{IpFamily, Protocol, ServiceEndpoints};
use telaio_netlink::nftables::{Chain, Verdict};

use super::rule::{Rule, Slots, Words};
use super::slots;
use crate::config::{NodeFacts, ProxyConfig};
use crate::plan::{self, Answer, Balance, Destination, EndpointSet, PortPlan};

mod item;
mod shared;
mod way;

pub use item::{ChainItem, FrontendItem, FrontendKey, Item, Key, Owner};
pub use shared::compile_shared;
pub(super) use shared::every_kind_of_chain;
pub use way::{Choice, Pick, Target, Way, ready_ways};

/// How strong a claim is: where two services want the same place the lower rank has it, and within a
/// rank the first by name. So nobody's external address takes another's cluster address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// To a cluster address, and what goes with it.
    Cluster,
    /// To an external address.
    External,
    /// To a load balancer's address or a node port.
    LoadBalancer,
}

impl Rank {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cluster, Self::External, Self::LoadBalancer];
}

/// A service, compiled.
#[derive(Debug, Clone, Default)]
pub struct CompiledService {
    /// What it claims at each rank, each key once.
    pub items: [Vec<(Key, Item)>; Rank::ALL.len()],
    /// The ways that it uses, by family, each once.
    pub ways: Vec<(IpFamily, Way)>,
}

/// Compiles one service. `number` gives the number of a way, always the same for the same way.
pub fn compile_service(
    entry: &ServiceEndpoints,
    config: &ProxyConfig,
    node: &NodeFacts,
    number: &dyn Fn(&(IpFamily, Way)) -> u32,
) -> CompiledService {
    let mut compiled = CompiledService::default();
    for family in &config.families {
        for port in plan::plan(entry, *family) {
            let out = &mut compiled;
            let rendezvous = Default::default();
            let family = *family;
            PortCompiler { family, port: &port, config, node, number, rendezvous, out }.run();
        }
    }
    compiled
}

struct PortCompiler<'a> {
    family: IpFamily,
    port: &'a PortPlan,
    config: &'a ProxyConfig,
    node: &'a NodeFacts,
    number: &'a dyn Fn(&(IpFamily, Way)) -> u32,
    rendezvous: (OnceCell<Vec<&'a Destination>>, OnceCell<Vec<&'a Destination>>),
    out: &'a mut CompiledService,
}

impl<'a> PortCompiler<'a> {
    fn run(&mut self) {
        for frontend in &self.port.frontends {
            let key = FrontendKey {
                family: self.family,
                address: frontend.place.address(),
                protocol: self.port.name.protocol,
                port: frontend.port,
            };
            match frontend.place {
                plan::Place::ClusterIp(ip) => {
                    self.claim(Rank::Cluster, Key::ClusterIp(ip), Item::Present);
                }
                plan::Place::NodePort => self.localhost(key),
                plan::Place::LoadBalancerIp(_) | plan::Place::ExternalIp(_) => {}
            }
            self.frontend(key, frontend.place);
        }
        for set in [EndpointSet::Cluster, EndpointSet::Local] {
            if self.port.uses(set) {
                let local = self.port.set(set).iter().filter(|endpoint| endpoint.local);
                for ip in local.map(|endpoint| endpoint.address).collect::<Vec<_>>() {
                    self.claim(Rank::Cluster, Key::Hairpin(ip), Item::Present);
                }
            }
        }
    }

    fn claim(&mut self, rank: Rank, key: Key, item: Item) {
        // Of two ports that want the same the first has it: an API server never lets that happen.
        let items = &mut self.out.items[rank as usize];
        if items.iter().all(|(other, _)| *other != key) {
            items.push((key, item));
        }
    }

    fn localhost(&mut self, key: FrontendKey) {
        let serves = matches!(self.port.external, Answer::Serve(_))
            || matches!(self.port.external_from_node, Some(Answer::Serve(_)));
        if self.config.localhost_node_ports && key.protocol == Protocol::Tcp && serves {
            let key = Key::LocalhostNodePort(key.family, key.port);
            self.claim(Rank::LoadBalancer, key, Item::Present);
        }
    }

    /// The chain that knows who may use a load balancer's address, if not everybody may.
    fn firewall(&mut self, address: IpAddr) -> Option<Arc<str>> {
        let ranges = self.port.source_ranges.as_ref()?;
        let mut allowed = ranges.clone();
        // Some load balancers lay their address on the node. Then the node's own traffic to it comes
        // back with that address as its source; whoever allows the node means that, too.
        let allows_node =
            self.node.addresses.iter().any(|ip| ranges.iter().any(|range| range.contains(ip)));
        if allows_node {
            allowed.push(IpNet::from(address));
        }
        let words = Words { family: self.family };
        let mut rules: Vec<Rule> = allowed
            .iter()
            .map(|net| words.from_net(net).then(words.verdict(Verdict::Return)))
            .collect();
        rules.push(words.verdict(Verdict::Drop));
        let hash = allowed.iter().fold(StableHash::new(), |hash, net| hash.text(&net.to_string()));
        let name: Arc<str> = format!("sources-{}", hash.hex()).into();
        let chain = ChainItem { chain: Chain::regular(&*name), rules: Some(rules) };
        // Services with the same sources share the chain.
        let key = Key::Chain(self.family, name.clone());
        self.claim(Rank::LoadBalancer, key, Item::Chain(Arc::new(chain)));
        Some(name)
    }

    fn frontend(&mut self, key: FrontendKey, place: plan::Place) {
        let external = place.is_external();
        let service = &self.port.name.service;
        let owner = StableHash::new().text(&service.namespace).text(&service.name).finish();
        let mut item = FrontendItem { owner: Owner(owner), ..FrontendItem::default() };
        let way = if !external {
            Self::way(self.target(key, self.port.internal, &mut item), Way::Pick)
        } else if let Some(from_node) = self.port.external_from_node {
            let node = self.target(key, from_node, &mut item);
            match (node, self.target(key, self.port.external, &mut item)) {
                (Target::Reject, Target::Reject) => Way::Reject,
                (Target::Drop, Target::Drop) => Way::Drop,
                (node, outside) => Way::ExternalLocal(node, outside),
            }
        } else {
            Self::way(self.target(key, self.port.external, &mut item), Way::Masquerade)
        };
        for needed in way.needs() {
            self.lead((self.family, needed));
        }
        let way = (self.family, way);
        item.way = Some((self.number)(&way));
        item.slots.sort_unstable();
        item.lasting.sort_unstable();
        item.live.sort_unstable();
        self.lead(way);
        let rank = match place {
            plan::Place::ClusterIp(_) => Rank::Cluster,
            plan::Place::ExternalIp(_) => Rank::External,
            plan::Place::LoadBalancerIp(_) | plan::Place::NodePort => Rank::LoadBalancer,
        };
        // An address that a load balancer gave is limited, whatever else it is.
        let given = key.address.filter(|ip| {
            let by_balancer = plan::Place::LoadBalancerIp(*ip);
            self.port.frontends.iter().any(|frontend| frontend.place == by_balancer)
        });
        item.sources = given.and_then(|address| self.firewall(address));
        self.claim(rank, Key::Frontend(key), Item::Frontend(Arc::new(item)));
    }

    fn lead(&mut self, way: (IpFamily, Way)) {
        if !self.out.ways.contains(&way) {
            self.out.ways.push(way);
        }
    }

    fn way(target: Target, serve: fn(Pick) -> Way) -> Way {
        match target {
            Target::Pick(pick) => serve(pick),
            Target::Reject => Way::Reject,
            Target::Drop => Way::Drop,
        }
    }

    /// Puts the endpoints into their slots, and says who picks one.
    fn target(&self, key: FrontendKey, answer: Answer, item: &mut FrontendItem) -> Target {
        let set = match answer {
            Answer::Serve(set) => set,
            Answer::Reject => return Target::Reject,
            Answer::Drop => return Target::Drop,
        };
        let slots = match set {
            EndpointSet::Cluster => Slots::Cluster,
            EndpointSet::Local => Slots::Local,
        };
        let endpoints = self.port.set(set);
        let choice = self.choice();
        let filled = match choice {
            Choice::Hash => self.rendezvous(set),
            _ => slots::by_weight(endpoints),
        };
        let numbered = (slots.offset()..).zip(&filled);
        item.slots.reserve_exact(filled.len());
        item.slots.extend(numbered.map(|(slot, it)| (slot, SocketAddr::new(it.address, it.port))));
        if let Choice::Sticky(_) = choice {
            let lasting = slots::lasting(endpoints, slots);
            let of: BTreeMap<(IpAddr, u16), u32> =
                endpoints.iter().map(|it| (it.address, it.port)).zip(lasting).collect();
            item.live.extend(of.values());
            item.slots
                .extend(of.iter().map(|((ip, port), slot)| (*slot, SocketAddr::new(*ip, *port))));
            let lasting = (slots.offset()..).zip(&filled);
            item.lasting.extend(
                lasting.filter_map(|(slot, it)| Some((slot, *of.get(&(it.address, it.port))?))),
            );
        }
        let count = u32::try_from(filled.len()).unwrap_or(u32::MAX);
        Target::Pick(Pick { place: key.place(), slots, count, choice })
    }

    /// Worked out once for all places of the port, for it takes its time.
    fn rendezvous(&self, set: EndpointSet) -> Vec<&'a Destination> {
        let cell = match set {
            EndpointSet::Cluster => &self.rendezvous.0,
            EndpointSet::Local => &self.rendezvous.1,
        };
        cell.get_or_init(|| slots::by_rendezvous(self.port.set(set))).clone()
    }

    /// Who is to stay chooses by chance to begin with, whatever the balance.
    fn choice(&self) -> Choice {
        match (self.port.affinity_s, self.port.balance) {
            (Some(timeout_s), _) => Choice::Sticky(timeout_s.max(1)),
            (None, Balance::Random) => Choice::Random,
            (None, Balance::SourceHash) => Choice::Hash,
            (None, Balance::RoundRobin) => {
                let name = &self.port.name;
                let hash = StableHash::new()
                    .text(&name.service.to_string())
                    .text(&name.port)
                    .text(&name.protocol.to_string());
                Choice::Turn(hash.finish())
            }
        }
    }
}
