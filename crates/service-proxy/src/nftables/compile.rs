//! From plans to what stands in the table: chains, and elements of the shared maps.
//!
//! Pure. A service compiles alone, to [`Item`]s that it claims by [`Key`]; the chains that services
//! share are compiled once for all from the [`Way`]s that anybody uses.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::hash::StableHash;
use telaio_model::{IpFamily, Protocol, ServiceEndpoints};
use telaio_netlink::nftables::{Chain, ChainKind, FibAddress, Hook, NumgenKind, Verdict};

use super::rule::{Place, Rule, Slots, Words};
use super::slots;
use crate::config::{LocalSources, NodeFacts, NodePortMatch, ProxyConfig};
use crate::options::LocalhostPorts;
use crate::plan::{self, Answer, Balance, Destination, EndpointSet, PortPlan};

/// The chain that refuses; nft has the word "reject" for itself.
const REFUSE: &str = "refuse";
/// The chain that marks for masquerade.
const MARK: &str = "mark-for-masquerade";
/// The chain that marks what does not come from a pod of this node.
const MARK_UNLESS_POD: &str = "mark-unless-from-pod";
/// The chain that finds the service.
const SERVICES: &str = "services";
/// The chain for what no service took.
const LEFTOVERS: &str = "leftovers";

/// Up to how many endpoints ways stand ready.
const READY_COUNT_MAX: u32 = 16;
/// Where destinations are changed; kube-proxy's and everybody's place for it.
const PRIORITY_DSTNAT: i32 = -100;
/// Where sources are changed.
const PRIORITY_SRCNAT: i32 = 100;

/// An address and port where a service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrontendKey {
    /// The family.
    pub family: IpFamily,
    /// The address; none for node ports.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// By hand, because it is compared millions of times.
impl Ord for FrontendKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let rest = |key: &Self| (u32::from(key.port) << 2) | key.protocol as u32;
        let place = |key: &Self| (key.family, key.address.map(address_bits));
        place(self).cmp(&place(other)).then_with(|| rest(self).cmp(&rest(other)))
    }
}

impl PartialOrd for FrontendKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn address_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl FrontendKey {
    /// By what packets to it are found.
    pub fn place(&self) -> Place {
        if self.address.is_some() { Place::Address } else { Place::NodePort }
    }
}

/// The name of something in the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A chain.
    Chain(IpFamily, Arc<str>),
    /// The way of a number.
    Way(IpFamily, u32),
    /// A cluster address.
    ClusterIp(IpAddr),
    /// An endpoint of this node.
    Hairpin(IpAddr),
    /// A node port that is served on loopback.
    LocalhostNodePort(IpFamily, u16),
    /// An address and port with limited sources.
    Firewall(FrontendKey),
    /// An address and port where a service answers.
    Frontend(FrontendKey),
}

impl Key {
    /// Its family.
    pub fn family(&self) -> IpFamily {
        match self {
            Self::Chain(family, _) | Self::Way(family, _) | Self::LocalhostNodePort(family, _) => {
                *family
            }
            Self::ClusterIp(ip) | Self::Hairpin(ip) => IpFamily::of(*ip),
            Self::Firewall(frontend) | Self::Frontend(frontend) => frontend.family,
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let frontend = |f: &mut std::fmt::Formatter<'_>, what: &str, key: &FrontendKey| {
            write!(f, "{what} ")?;
            match key.address {
                Some(address) => write!(f, "{}", SocketAddr::new(address, key.port))?,
                None => write!(f, "node port {} ({})", key.port, key.family)?,
            }
            write!(f, "/{}", key.protocol)
        };
        match self {
            Self::Chain(family, name) => write!(f, "chain {name} ({family})"),
            Self::Way(family, number) => write!(f, "way {number:#x} ({family})"),
            Self::ClusterIp(ip) => write!(f, "cluster IP {ip}"),
            Self::Hairpin(ip) => write!(f, "hairpin of {ip}"),
            Self::LocalhostNodePort(family, port) => {
                write!(f, "localhost node port {port} ({family})")
            }
            Self::Firewall(key) => frontend(f, "source ranges of", key),
            Self::Frontend(key) => frontend(f, "service at", key),
        }
    }
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainItem {
    /// The chain.
    pub chain: Chain,
    /// Its rules in order; `None` if what is there cannot be read.
    pub rules: Option<Vec<Rule>>,
}

/// The service that an item is of, by a hash of its name. What is read back does not tell, so it does
/// not count when items are compared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Owner(pub u64);

impl PartialEq for Owner {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Owner {}

/// Where an address and port leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FrontendItem {
    /// Whose it is.
    pub owner: Owner,
    /// The number of its way; `None` if there is none, which we never want.
    pub way: Option<u32>,
    /// The endpoints in their slots, in order of slot.
    pub slots: Vec<(u32, SocketAddr)>,
    /// The lasting slot for each slot, in order of slot; with affinity only.
    pub lasting: Vec<(u32, u32)>,
    /// The lasting slots, in order; with affinity only.
    pub live: Vec<u32>,
}

/// What stands in the table under a [`Key`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An element of a set.
    Present,
    /// A chain.
    Chain(Arc<ChainItem>),
    /// Where a way leads.
    Way(Verdict),
    /// The chain that knows the allowed sources.
    Firewall(Arc<str>),
    /// Where an address and port leads.
    Frontend(Arc<FrontendItem>),
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// By chance.
    Random,
    /// By the client's address.
    Hash,
    /// By chance the first time, then the same for this many seconds.
    Sticky(u32),
    /// In turn, with the counter of the service port that has this hash.
    Turn(u64),
}

/// A chain that picks an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pick {
    place: Place,
    slots: Slots,
    count: u32,
    choice: Choice,
}

/// A way that services lead: mostly a chain that they share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Traffic is refused.
    Reject,
    /// Traffic is dropped.
    Drop,
    /// Picks an endpoint.
    Pick(Pick),
    /// Marks for masquerade, then picks.
    Masquerade(Pick),
    /// External traffic with policy Local: pods of this node, and the node itself, go to the first
    /// (or get its answer); everybody else goes to the second.
    ExternalLocal(Target, Target),
}

/// A pick, or what is said where there is nobody to pick.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One of these.
    Pick(Pick),
    /// Refused.
    Reject,
    /// Dropped.
    Drop,
}

impl Pick {
    fn name(&self) -> String {
        let place = match self.place {
            Place::Address => "",
            Place::NodePort => "node-",
        };
        let slots = match self.slots {
            Slots::Cluster => "",
            Slots::Local => "local-",
        };
        let count = self.count;
        match &self.choice {
            Choice::Random => format!("{place}pick-{slots}{count}"),
            Choice::Hash => format!("{place}hash-{slots}{count}"),
            Choice::Sticky(timeout_s) => format!("{place}sticky-{slots}{count}-{timeout_s}s"),
            Choice::Turn(port) => format!("{place}turn-{slots}{count}-{port:016x}"),
        }
    }

    fn rules(&self, words: Words) -> Vec<Rule> {
        let Self { place, slots, count, .. } = *self;
        match self.choice {
            Choice::Random => vec![words.pick(place, slots, count, NumgenKind::Random)],
            Choice::Hash => vec![words.pick_by_source(place, slots, count)],
            Choice::Turn(_) => vec![words.pick(place, slots, count, NumgenKind::Incremental)],
            Choice::Sticky(timeout_s) => vec![
                words.stay(place, slots, timeout_s),
                words.leave_dead(place),
                words.leave_other(place, slots),
                words.settle(place, slots, count, timeout_s),
                words.stay(place, slots, timeout_s),
                // The map is full.
                words.pick(place, slots, count, NumgenKind::Random),
            ],
        }
    }
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Pick(pick) => pick.name(),
            Self::Reject => "refused".to_owned(),
            Self::Drop => "dropped".to_owned(),
        }
    }

    fn rule(&self, words: Words) -> Rule {
        match self {
            Self::Pick(pick) => words.goto(&pick.name()),
            Self::Reject => words.goto(REFUSE),
            Self::Drop => words.verdict(Verdict::Drop),
        }
    }

    fn pick(&self) -> Option<&Pick> {
        match self {
            Self::Pick(pick) => Some(pick),
            _ => None,
        }
    }
}

impl Way {
    /// Its name, which says all about it.
    pub fn name(&self) -> String {
        match self {
            Self::Reject => REFUSE.to_owned(),
            Self::Drop => "drop".to_owned(),
            Self::Pick(pick) => pick.name(),
            Self::Masquerade(pick) => format!("masquerade-{}", pick.name()),
            Self::ExternalLocal(node, outside) => {
                format!("external-{}-else-{}", node.name(), outside.name())
            }
        }
    }

    /// The chains that it goes to.
    fn needs(&self) -> Vec<Self> {
        match self {
            Self::Reject | Self::Drop | Self::Pick(_) => Vec::new(),
            Self::Masquerade(pick) => vec![Self::Pick(pick.clone())],
            Self::ExternalLocal(node, outside) => {
                let picks = [node, outside].into_iter().filter_map(Target::pick);
                picks.cloned().map(Self::Pick).collect()
            }
        }
    }

    /// Where it leads.
    fn verdict(&self) -> Verdict {
        match self {
            Self::Drop => Verdict::Drop,
            _ => Verdict::Goto(self.name()),
        }
    }

    /// The number that services lead to. Two ways with the same hash are told apart by who keeps
    /// the numbers.
    pub fn hash(&self) -> u32 {
        let pick = |hash: StableHash, pick: &Pick| {
            let (kind, detail) = match pick.choice {
                Choice::Random => (0, 0),
                Choice::Hash => (1, 0),
                Choice::Sticky(timeout_s) => (2, u64::from(timeout_s)),
                Choice::Turn(port) => (3, port),
            };
            hash.bytes(&[kind, pick.place as u8, pick.slots as u8])
                .bytes(&pick.count.to_be_bytes())
                .bytes(&detail.to_be_bytes())
        };
        let target = |hash: StableHash, target: &Target| match target {
            Target::Reject => hash.bytes(&[0]),
            Target::Drop => hash.bytes(&[1]),
            Target::Pick(it) => pick(hash.bytes(&[2]), it),
        };
        let hash = StableHash::new();
        let hash = match self {
            Self::Reject => hash.bytes(&[0]),
            Self::Drop => hash.bytes(&[1]),
            Self::Pick(it) => pick(hash.bytes(&[2]), it),
            Self::Masquerade(it) => pick(hash.bytes(&[3]), it),
            Self::ExternalLocal(node, outside) => target(target(hash.bytes(&[4]), node), outside),
        };
        let hash = hash.finish();
        (hash ^ (hash >> 32)) as u32
    }

    /// The chain, for ways that have one of their own.
    fn chain(&self, words: Words, pods: &LocalSources) -> Option<ChainItem> {
        let rules = match self {
            Self::Reject | Self::Drop => return None,
            Self::Pick(pick) => pick.rules(words),
            Self::Masquerade(pick) => vec![words.jump(MARK), words.goto(&pick.name())],
            Self::ExternalLocal(node, outside) => {
                let mut rules: Vec<Rule> = from_pod(words, pods)
                    .into_iter()
                    .map(|from_pod| from_pod.then(node.rule(words)))
                    .collect();
                let from_node = words.is_local(FibAddress::Source);
                rules.push(from_node.clone().then(words.jump(MARK)));
                rules.push(from_node.then(node.rule(words)));
                rules.push(outside.rule(words));
                rules
            }
        };
        Some(ChainItem { chain: Chain::regular(self.name()), rules: Some(rules) })
    }
}

/// One condition for each way in which a packet can come from a pod of this node.
fn from_pod(words: Words, pods: &LocalSources) -> Vec<Rule> {
    match pods {
        LocalSources::Nowhere => Vec::new(),
        LocalSources::Networks(nets) => nets.iter().map(|net| words.from_net(net)).collect(),
        LocalSources::Interface(name) => vec![words.from_interface(name, false)],
        LocalSources::InterfacePrefix(prefix) => vec![words.from_interface(prefix, true)],
    }
}

/// The ways that stand ready before any service leads them. A chain that looks endpoints up is cheap
/// to make while there are none, and later costs the kernel a look at each of them.
pub fn ready_ways(families: &[IpFamily]) -> Vec<(IpFamily, Way)> {
    let pick = |count| Pick {
        place: Place::Address,
        slots: Slots::Cluster,
        count,
        choice: Choice::Random,
    };
    let counts = 1..=READY_COUNT_MAX;
    let of = |family| counts.clone().map(move |count| (family, Way::Pick(pick(count))));
    families.iter().flat_map(|family| of(*family)).collect()
}

/// A service, compiled.
#[derive(Debug, Clone, Default)]
pub struct CompiledService {
    /// What it claims, each key once.
    pub items: Vec<(Key, Item)>,
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
                plan::Place::ClusterIp(ip) => self.claim(Key::ClusterIp(ip), Item::Present),
                plan::Place::LoadBalancerIp(ip) => self.firewall(key, ip),
                plan::Place::NodePort => self.localhost(key),
                plan::Place::ExternalIp(_) => {}
            }
            self.frontend(key, frontend.place.is_external());
        }
        for set in [EndpointSet::Cluster, EndpointSet::Local] {
            if self.port.uses(set) {
                let local = self.port.set(set).iter().filter(|endpoint| endpoint.local);
                for ip in local.map(|endpoint| endpoint.address).collect::<Vec<_>>() {
                    self.claim(Key::Hairpin(ip), Item::Present);
                }
            }
        }
    }

    fn claim(&mut self, key: Key, item: Item) {
        // Of two ports that want the same the first has it: an API server never lets that happen.
        if self.out.items.iter().all(|(other, _)| *other != key) {
            self.out.items.push((key, item));
        }
    }

    fn localhost(&mut self, key: FrontendKey) {
        let serves = matches!(self.port.external, Answer::Serve(_))
            || matches!(self.port.external_from_node, Some(Answer::Serve(_)));
        if self.config.localhost_node_ports && key.protocol == Protocol::Tcp && serves {
            self.claim(Key::LocalhostNodePort(key.family, key.port), Item::Present);
        }
    }

    /// Limits who may use a load balancer's address.
    fn firewall(&mut self, key: FrontendKey, address: IpAddr) {
        let Some(ranges) = &self.port.source_ranges else { return };
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
        self.claim(Key::Chain(self.family, name.clone()), Item::Chain(Arc::new(chain)));
        self.claim(Key::Firewall(key), Item::Firewall(name));
    }

    fn frontend(&mut self, key: FrontendKey, external: bool) {
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
        self.claim(Key::Frontend(key), Item::Frontend(Arc::new(item)));
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

/// What does not belong to one service: the chains that the kernel begins with, and the ways that
/// services share, each with its number.
pub fn compile_shared<'a>(
    config: &ProxyConfig,
    node: &NodeFacts,
    localhost: LocalhostPorts,
    ways: impl IntoIterator<Item = (&'a (IpFamily, Way), u32)>,
) -> BTreeMap<Key, Item> {
    let mut items = BTreeMap::new();
    let mut add = |family: IpFamily, chain: ChainItem| {
        let name = chain.chain.name.as_str().into();
        items.insert(Key::Chain(family, name), Item::Chain(Arc::new(chain)));
    };
    let mut numbered = Vec::new();
    for family in &config.families {
        for chain in base_chains(*family, config, node, localhost) {
            add(*family, chain);
        }
    }
    for ((family, way), number) in ways {
        let words = Words { family: *family };
        if let Some(chain) = way.chain(words, &LocalSources::new(config, node, *family)) {
            add(*family, chain);
        }
        numbered.push((Key::Way(*family, number), Item::Way(way.verdict())));
    }
    items.extend(numbered);
    items
}

fn base_chains(
    family: IpFamily,
    config: &ProxyConfig,
    node: &NodeFacts,
    localhost: LocalhostPorts,
) -> Vec<ChainItem> {
    let words = Words { family };
    let item = |chain: Chain, rules: Vec<Rule>| ChainItem { chain, rules: Some(rules) };
    let nat = |name: &str, hook, priority| Chain::base(name, ChainKind::Nat, hook, priority);
    let loopback = match family {
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        IpFamily::V6 => IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
    };
    let redirect = localhost
        .of(family)
        .filter(|_| config.localhost_node_ports)
        .map(|port| words.redirect_localhost(&loopback, port));
    let to_services = words.jump(SERVICES);
    let masquerade = config.masquerade_mark();
    // The listener's own connections, which carry the mark, reach node ports by any address.
    let from_listener = redirect.as_ref().map(|_| {
        words
            .is_marked(masquerade)
            .then(words.not_to_net(&loopback))
            .then(words.is_local(FibAddress::Destination))
            .then(words.dispatch(Place::NodePort))
    });
    let guard = (localhost.routed && family == IpFamily::V4).then(|| {
        let input = Chain::base("filter-input", ChainKind::Filter, Hook::Input, 0);
        item(input, vec![words.drop_martians(&loopback)])
    });
    let to_leftovers = words.jump(LEFTOVERS);
    let again = PRIORITY_DSTNAT + 1;
    let output: Vec<Rule> =
        redirect.into_iter().chain(from_listener).chain([to_services.clone()]).collect();
    vec![
        item(nat("nat-prerouting", Hook::Prerouting, PRIORITY_DSTNAT), vec![to_services.clone()]),
        item(nat("nat-output", Hook::Output, PRIORITY_DSTNAT), output.clone()),
        // A packet that is under way while a transaction commits sees the rules from before and the
        // elements from after it, and may find nothing. It tries again, with the rules of now; only
        // then is what nobody serves refused.
        item(
            nat("nat-prerouting-again", Hook::Prerouting, again),
            vec![to_services, to_leftovers.clone()],
        ),
        item(
            nat("nat-output-again", Hook::Output, again),
            output.into_iter().chain([to_leftovers]).collect(),
        ),
        item(
            nat("nat-postrouting", Hook::Postrouting, PRIORITY_SRCNAT),
            vec![words.masquerade_marked(masquerade), words.masquerade_hairpin()],
        ),
        item(Chain::regular(SERVICES), services_rules(words, config, node, &loopback)),
        item(Chain::regular(LEFTOVERS), leftovers_rules(words, config, node)),
        item(Chain::regular(MARK), vec![words.mark(masquerade)]),
        item(Chain::regular(MARK_UNLESS_POD), mark_unless_pod(words, config, node)),
        item(Chain::regular(REFUSE), vec![words.reset_tcp(), words.reject()]),
    ]
    .into_iter()
    .chain(guard)
    .collect()
}

/// What a packet meets first: the way of every new connection.
fn services_rules(
    words: Words,
    config: &ProxyConfig,
    node: &NodeFacts,
    loopback: &IpNet,
) -> Vec<Rule> {
    let mut rules = vec![words.check_source()];
    if config.masquerade_all {
        rules.push(words.to_cluster_ip().then(words.jump(MARK)));
    } else if LocalSources::new(config, node, words.family) != LocalSources::Nowhere {
        rules.push(words.to_cluster_ip().then(words.jump(MARK_UNLESS_POD)));
    }
    rules.push(words.dispatch(Place::Address));
    let to_node_port = |condition: Rule| {
        condition
            .then(words.not_to_net(loopback))
            .then(words.is_local(FibAddress::Destination))
            .then(words.dispatch(Place::NodePort))
    };
    match NodePortMatch::new(config, node, words.family) {
        NodePortMatch::AnyLocal => rules.push(to_node_port(Rule::default())),
        NodePortMatch::Within(nets) => {
            rules.extend(nets.iter().map(|net| to_node_port(words.to_net(net))));
        }
    }
    rules
}

/// What becomes of packets to cluster addresses that no service took.
fn leftovers_rules(words: Words, config: &ProxyConfig, node: &NodeFacts) -> Vec<Rule> {
    let mut rules = vec![words.to_cluster_ip().then(words.goto(REFUSE))];
    let mut service_cidrs: Vec<IpNet> = config
        .service_cidrs
        .iter()
        .chain(&node.service_cidrs)
        .filter(|net| IpFamily::of_net(net) == words.family)
        .map(IpNet::trunc)
        .collect();
    service_cidrs.sort_unstable();
    service_cidrs.dedup();
    rules.extend(
        service_cidrs.iter().map(|net| words.to_net(net).then(words.verdict(Verdict::Drop))),
    );
    rules
}

fn mark_unless_pod(words: Words, config: &ProxyConfig, node: &NodeFacts) -> Vec<Rule> {
    let pods = LocalSources::new(config, node, words.family);
    let mut rules: Vec<Rule> = from_pod(words, &pods)
        .into_iter()
        .map(|from_pod| from_pod.then(words.verdict(Verdict::Return)))
        .collect();
    rules.push(words.mark(config.masquerade_mark()));
    rules
}

/// One chain of each kind that there is, for asking a kernel whether it can do them.
pub(super) fn every_kind_of_chain(
    family: IpFamily,
    config: &ProxyConfig,
    node: &NodeFacts,
) -> Vec<ChainItem> {
    let choices = [Choice::Random, Choice::Hash, Choice::Sticky(1), Choice::Turn(1)];
    let mut specs = BTreeSet::new();
    for place in [Place::Address, Place::NodePort] {
        for choice in &choices {
            let choice = choice.clone();
            let pick = Pick { place, slots: Slots::Local, count: 2, choice };
            specs.insert((family, Way::Masquerade(pick.clone())));
            let external = Way::ExternalLocal(Target::Pick(pick.clone()), Target::Drop);
            specs.insert((family, external));
            specs.insert((family, Way::Pick(pick)));
        }
    }
    let ports = LocalhostPorts { v4: Some(1), v6: Some(1), routed: true };
    let ways = specs.iter().map(|way| (way, 0));
    let chains = compile_shared(config, node, ports, ways).into_values();
    let unwrap = |item: Item| match item {
        Item::Chain(chain) => Some(Arc::unwrap_or_clone(chain)),
        _ => None,
    };
    chains.filter_map(unwrap).collect()
}
