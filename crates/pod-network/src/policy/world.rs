//! Policies, pods and namespaces as they are now, and what follows from them on this node.
//!
//! [`World`] takes changes of single objects; [`World::settle`] then works out what they change and tells it as
//! [`Part`]s. What always holds after it: everything that is derived is what the objects alone determine, whatever came in
//! which order; and the work was in proportion to what changed: one pod's change touches the facts that are asked on this
//! node, its addresses, and nothing else.
//!
//! Only policies of pods that run here count; of other nodes' pods only addresses and labels matter, and those only where a
//! rule asks for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::{
    IpFamily, Labels, Namespace, NetworkPolicy, Object, ObjectKey, ObjectRef, Pod, PodPhase,
};

use super::facts::{Block, Class, Direction, Fact, Profile, named_ports};
use super::numbers::{Number, Numbers};
use super::ports::PortSet;
use super::selector::Scope;

mod grants;
#[cfg(test)]
mod tests;

/// The label that every namespace has of itself.
const LABEL_NAME: &str = "kubernetes.io/metadata.name";

/// What is compiled alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Chains and sets that all share.
    Base,
    /// What is known about an address.
    Address(IpAddr),
    /// What is known about a network.
    Block(IpNet),
    /// What a profile allows anybody.
    Open(Number),
    /// What a profile allows a class.
    Grant(Number, Number),
    /// A set of ports.
    Gate(Number),
    /// Whether a namespace has policies.
    Namespace(Arc<str>),
}

/// What is known about an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Address {
    /// The class of the pod that has it, as somebody's peer.
    pub(super) class: Option<Number>,
    /// The profiles of the pod that has it, if it runs here.
    pub(super) profiles: Profiles,
}

/// The numbers of an instance's profiles; `None` where no policy limits it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Profiles {
    pub(super) ingress: Option<Number>,
    pub(super) egress: Option<Number>,
}

impl Profiles {
    pub(super) fn get(self, direction: Direction) -> Option<Number> {
        match direction {
            Direction::Ingress => self.ingress,
            Direction::Egress => self.egress,
        }
    }
}

/// What has to be looked at again.
#[derive(Debug, Clone, Default)]
struct Stale {
    /// Pods of this node.
    instances: BTreeSet<ObjectKey>,
    /// Namespaces whose policies changed.
    policies: BTreeSet<Arc<str>>,
    addresses: BTreeSet<IpAddr>,
    /// The networks that rules ask about.
    blocks: bool,
}

/// Everything that policies need to know, and what follows.
#[derive(Debug, Clone, Default)]
pub struct World {
    node: Arc<str>,
    policies: BTreeMap<ObjectKey, Arc<NetworkPolicy>>,
    pods: BTreeMap<ObjectKey, Arc<Pod>>,
    namespaces: BTreeMap<Arc<str>, Labels>,
    /// Addresses that pods of this node have, from whoever gave them: known before the cluster knows.
    attached: BTreeMap<ObjectKey, Vec<IpAddr>>,

    pub(super) facts: Numbers<Fact>,
    pub(super) profiles: Numbers<Profile>,
    pub(super) classes: Numbers<Class>,
    pub(super) groups: Numbers<PortSet>,
    instances: BTreeMap<ObjectKey, Profiles>,
    /// Which pods say that they have an address.
    claims: BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
    pub(super) addresses: BTreeMap<IpAddr, Address>,
    pub(super) blocks: BTreeMap<IpNet, Number>,
    /// By profile: what anybody is allowed.
    pub(super) open: BTreeMap<Number, Number>,
    /// By profile and class, where it is not what anybody is allowed.
    pub(super) grants: BTreeMap<(Number, Number), Number>,
    index: grants::Index,

    stale: Stale,
    changed: BTreeSet<Part>,
}

impl World {
    /// Nothing, seen from a node.
    pub fn new(node: impl Into<Arc<str>>) -> Self {
        Self { node: node.into(), changed: BTreeSet::from([Part::Base]), ..Self::default() }
    }

    /// An object is now this, or is no more. Kinds that policies do not need are ignored.
    pub fn set_object(&mut self, at: &ObjectRef, object: Option<&Object>) {
        use telaio_model::Kind;
        match (at.kind, object) {
            (Kind::NetworkPolicy, Some(Object::NetworkPolicy(policy))) => {
                self.set_policy(&at.key, Some(Arc::clone(policy)));
            }
            (Kind::NetworkPolicy, None) => self.set_policy(&at.key, None),
            (Kind::Pod, Some(Object::Pod(pod))) => self.set_pod(&at.key, Some(Arc::clone(pod))),
            (Kind::Pod, None) => self.set_pod(&at.key, None),
            (Kind::Namespace, Some(Object::Namespace(namespace))) => {
                self.set_namespace(&at.key.name, Some(namespace));
            }
            (Kind::Namespace, None) => self.set_namespace(&at.key.name, None),
            _ => {}
        }
    }

    /// A policy is now this, or is no more.
    pub fn set_policy(&mut self, key: &ObjectKey, policy: Option<Arc<NetworkPolicy>>) {
        if self.policies.get(key) == policy.as_ref() {
            return;
        }
        let had_policies = self.has_policies(&key.namespace);
        match policy {
            Some(policy) => _ = self.policies.insert(key.clone(), policy),
            None => _ = self.policies.remove(key),
        }
        self.stale.policies.insert(Arc::clone(&key.namespace));
        if had_policies != self.has_policies(&key.namespace) {
            self.changed.insert(Part::Namespace(Arc::clone(&key.namespace)));
        }
    }

    /// A pod is now this, or is no more.
    pub fn set_pod(&mut self, key: &ObjectKey, pod: Option<Arc<Pod>>) {
        if self.pods.get(key) == pod.as_ref() {
            return;
        }
        self.unclaim(key);
        match pod {
            Some(pod) => _ = self.pods.insert(key.clone(), pod),
            None => _ = self.pods.remove(key),
        }
        self.claim(key);
        self.stale.instances.insert(key.clone());
    }

    /// A namespace is now this, or is no more. One that nobody told about has its name as its only label.
    pub fn set_namespace(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) {
        let labels = namespace.map(|namespace| with_name(&namespace.meta.labels, name));
        let before = match labels.clone() {
            Some(labels) => self.namespaces.insert(Arc::clone(name), labels),
            None => self.namespaces.remove(name),
        };
        if before != labels {
            let pods: Vec<ObjectKey> = self.pods_in(name).map(|(key, _)| key.clone()).collect();
            for key in pods {
                self.stale.addresses.extend(self.addresses_of(&key));
            }
        }
    }

    /// The addresses that were given to a pod of this node; none when it has gone. Until the cluster knows them too, they
    /// count as the pod's: so its policies are there before it speaks.
    pub fn set_attached(&mut self, key: &ObjectKey, addresses: &[IpAddr]) {
        if self.attached.get(key).map_or(&[] as &[_], Vec::as_slice) == addresses {
            return;
        }
        self.unclaim(key);
        if addresses.is_empty() {
            self.attached.remove(key);
        } else {
            self.attached.insert(key.clone(), addresses.to_vec());
        }
        self.claim(key);
        self.stale.instances.insert(key.clone());
    }

    /// The pods to which addresses were given here.
    pub fn attached(&self) -> impl Iterator<Item = &ObjectKey> {
        self.attached.keys()
    }

    /// Whether a namespace has policies.
    pub(super) fn has_policies(&self, namespace: &Arc<str>) -> bool {
        in_namespace(&self.policies, namespace).next().is_some()
    }

    /// Whether all is known that decides what an address may that was given to a pod here: the pod itself, unless its
    /// namespace has no policies.
    pub fn can_judge(&self, key: &ObjectKey, ip: IpAddr) -> bool {
        let is_known = || {
            self.pods.get(key).is_some_and(|pod| self.is_here(pod) && !pod.host_network)
                && self.addresses_of(key).contains(&ip)
        };
        !self.has_policies(&key.namespace) || is_known()
    }

    /// Works out what has changed since the last time, and tells it.
    pub fn settle(&mut self) -> BTreeSet<Part> {
        let mut news = grants::News::default();
        self.settle_instances(&mut news);
        self.settle_facts(&mut news);
        self.settle_addresses(&mut news);
        if std::mem::take(&mut self.stale.blocks) {
            self.settle_blocks(&mut news);
        }
        self.settle_grants(news);
        std::mem::take(&mut self.changed)
    }

    /// Every part that there is.
    pub(super) fn parts(&self) -> Vec<Part> {
        let addresses = self.addresses.keys().copied().map(Part::Address);
        let blocks = self.blocks.keys().copied().map(Part::Block);
        let open = self.open.keys().copied().map(Part::Open);
        let grants = self.grants.keys().map(|(profile, class)| Part::Grant(*profile, *class));
        let gates = self.groups.iter().map(|(number, _)| Part::Gate(number));
        let namespaces: BTreeSet<&Arc<str>> =
            self.policies.keys().map(|key| &key.namespace).collect();
        let namespaces = namespaces.into_iter().cloned().map(Part::Namespace);
        let all = addresses.chain(blocks).chain(open).chain(grants).chain(gates).chain(namespaces);
        [Part::Base].into_iter().chain(all).collect()
    }

    /// How long the prefixes are by which networks are found, the longest first.
    pub(super) fn block_lengths(&self, family: IpFamily) -> BTreeSet<u8> {
        let nets = self.blocks.keys().filter(|net| IpFamily::of_net(net) == family);
        nets.map(IpNet::prefix_len).collect()
    }

    /// How long the prefixes are by which ports are found.
    pub(super) fn port_lengths(&self) -> BTreeSet<u8> {
        self.index.port_lengths()
    }

    /// The pod's profiles, if any policy is about it.
    #[cfg(test)]
    pub(super) fn profiles_of(&self, key: &ObjectKey) -> Profiles {
        self.instances.get(key).copied().unwrap_or_default()
    }

    fn pods_in<'a>(
        &'a self,
        namespace: &'a Arc<str>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Pod>)> {
        in_namespace(&self.pods, namespace)
    }

    /// A pod's addresses, if it is one that policies are about: with an address of its own, and not at its end.
    fn addresses_of(&self, key: &ObjectKey) -> Vec<IpAddr> {
        let Some(pod) = self.pods.get(key) else { return Vec::new() };
        // The address of a pod that has ended may be another's already.
        if pod.host_network || matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed) {
            return Vec::new();
        }
        let attached = self.attached.get(key).filter(|_| self.is_here(pod));
        let all: BTreeSet<IpAddr> =
            pod.ips.iter().chain(attached.into_iter().flatten()).copied().collect();
        all.into_iter().collect()
    }

    fn is_here(&self, pod: &Pod) -> bool {
        pod.node.as_ref() == Some(&self.node)
    }

    fn claim(&mut self, key: &ObjectKey) {
        for ip in self.addresses_of(key) {
            self.claims.entry(ip).or_default().insert(key.clone());
            self.stale.addresses.insert(ip);
        }
    }

    fn unclaim(&mut self, key: &ObjectKey) {
        for ip in self.addresses_of(key) {
            if let Some(claims) = self.claims.get_mut(&ip) {
                claims.remove(key);
                if claims.is_empty() {
                    self.claims.remove(&ip);
                }
            }
            self.stale.addresses.insert(ip);
        }
    }

    /// Whose an address is: of several pods that say so, one that is not about to go, and the youngest of those.
    fn owner(&self, ip: IpAddr) -> Option<(&ObjectKey, &Arc<Pod>)> {
        let claims = self.claims.get(&ip)?;
        let pods = claims.iter().filter_map(|key| self.pods.get_key_value(key));
        pods.max_by_key(|(key, pod)| (!pod.terminating, pod.meta.created_s, *key))
    }

    fn labels_of_namespace(&self, name: &Arc<str>) -> Labels {
        match self.namespaces.get(name) {
            Some(labels) => labels.clone(),
            None => with_name(&Labels::new(), name),
        }
    }

    fn settle_instances(&mut self, news: &mut grants::News) {
        let mut stale = std::mem::take(&mut self.stale.instances);
        for namespace in std::mem::take(&mut self.stale.policies) {
            stale.extend(self.pods_in(&namespace).map(|(key, _)| key.clone()));
        }
        for key in stale {
            let before = self.instances.get(&key).copied().unwrap_or_default();
            let after = self.profiles_now(&key, news);
            for number in [before.ingress, before.egress].into_iter().flatten() {
                news.let_go.profiles.push(number);
            }
            if after == Profiles::default() {
                self.instances.remove(&key);
            } else {
                self.instances.insert(key.clone(), after);
            }
            if before != after {
                self.stale.addresses.extend(self.addresses_of(&key));
            }
        }
        self.release_profiles(news);
    }

    /// The profiles that a pod has now, held.
    fn profiles_now(&mut self, key: &ObjectKey, news: &mut grants::News) -> Profiles {
        let Some(pod) = self.pods.get(key).cloned() else { return Profiles::default() };
        if !self.is_here(&pod) || pod.host_network {
            return Profiles::default();
        }
        let policies: Vec<Arc<NetworkPolicy>> = in_namespace(&self.policies, &key.namespace)
            .map(|(_, policy)| policy)
            .filter(|policy| policy.pods.matches(&pod.meta.labels))
            .cloned()
            .collect();
        let mut profile = |direction| {
            let policies = policies.iter().map(AsRef::as_ref);
            let facts = &mut self.facts;
            let profile = Profile::of(direction, &pod, policies, facts, &mut news.facts)?;
            Some(self.index.hold_profile(&profile, &mut self.profiles, facts, &mut news.profiles))
        };
        Profiles { ingress: profile(Direction::Ingress), egress: profile(Direction::Egress) }
    }

    /// Whoever a fact that came or went is about has to be looked at.
    fn settle_facts(&mut self, news: &mut grants::News) {
        let mut facts = std::mem::take(&mut news.gone_facts);
        facts.extend(news.facts.drain(..).filter_map(|number| self.facts.get(number).cloned()));
        facts.sort();
        facts.dedup();
        for fact in facts {
            let pods: Vec<ObjectKey> = match &fact {
                Fact::In(block) => {
                    let known = self.addresses.range(ip_range(&block.cidr));
                    self.stale.addresses.extend(known.map(|(ip, _)| *ip));
                    self.stale.blocks = true;
                    continue;
                }
                Fact::Pods(selector) => {
                    let selected = |(key, pod): (&ObjectKey, &Arc<Pod>)| {
                        selector.pods.matches(&pod.meta.labels).then(|| key.clone())
                    };
                    match &selector.scope {
                        Scope::Namespace(namespace) => {
                            self.pods_in(namespace).filter_map(selected).collect()
                        }
                        Scope::Selected(_) => self.pods.iter().filter_map(selected).collect(),
                    }
                }
                Fact::HasPort((name, protocol)) => {
                    let has = |pod: &Pod| named_ports(pod, name, *protocol).next().is_some();
                    let pods = self.pods.iter().filter(|(_, pod)| has(pod));
                    pods.map(|(key, _)| key.clone()).collect()
                }
            };
            for key in pods {
                self.stale.addresses.extend(self.addresses_of(&key));
            }
        }
    }

    fn settle_addresses(&mut self, news: &mut grants::News) {
        for ip in std::mem::take(&mut self.stale.addresses) {
            let before = self.addresses.get(&ip).copied().unwrap_or_default();
            let after = match self.owner(ip).map(|(key, pod)| (key.clone(), Arc::clone(pod))) {
                None => Address::default(),
                Some((key, pod)) => Address {
                    class: self.class_of(&key, &pod, ip).map(|class| {
                        self.index.hold_class(&class, &mut self.classes, &mut news.classes)
                    }),
                    profiles: self.instances.get(&key).copied().unwrap_or_default(),
                },
            };
            news.let_go.classes.extend(before.class);
            if before == after {
                continue;
            }
            if after == Address::default() {
                self.addresses.remove(&ip);
            } else {
                self.addresses.insert(ip, after);
            }
            self.changed.insert(Part::Address(ip));
        }
    }

    /// What is asked on this node and true about a pod; `None` if nothing is that is not true about its address anyway.
    fn class_of(&self, key: &ObjectKey, pod: &Pod, ip: IpAddr) -> Option<Class> {
        let namespace = self.labels_of_namespace(&key.namespace);
        let (mut facts, mut ports, mut by_address_only) = (Vec::new(), Vec::new(), true);
        for (number, fact) in self.facts.iter() {
            let is_true = match fact {
                Fact::In(block) => block.has(ip),
                Fact::Pods(selector) => {
                    let in_scope = match &selector.scope {
                        Scope::Namespace(name) => *name == key.namespace,
                        Scope::Selected(namespaces) => namespaces.matches(&namespace),
                    };
                    in_scope && selector.pods.matches(&pod.meta.labels)
                }
                Fact::HasPort((name, protocol)) => {
                    let before = ports.len();
                    ports.extend(named_ports(pod, name, *protocol).map(|port| (number, port)));
                    ports.len() > before
                }
            };
            if is_true {
                facts.push(number);
                by_address_only &= matches!(fact, Fact::In(_));
            }
        }
        ports.sort_unstable();
        ports.dedup();
        (!by_address_only).then(|| Class { facts: facts.into(), ports: ports.into() })
    }

    /// The networks by which rules tell peers that are no pods. An address is of the longest of them that has it: all edges
    /// are among them, so within one, without the longer ones in it, the same facts are true everywhere.
    fn settle_blocks(&mut self, news: &mut grants::News) {
        let asked = self.facts.iter().filter_map(|(number, fact)| match fact {
            Fact::In(block) => Some((number, block.clone())),
            _ => None,
        });
        let blocks: Vec<(Number, Block)> = asked.collect();
        let nets: BTreeSet<IpNet> = blocks.iter().flat_map(|(_, block)| block.edges()).collect();
        let lengths = IpFamily::ALL.map(|family| self.block_lengths(family));
        let mut after = BTreeMap::new();
        for net in nets {
            let facts = blocks.iter().filter(|(_, block)| block.contains(&net));
            let facts = facts.map(|(number, _)| *number).collect();
            let class = Class { facts, ports: Box::default() };
            let number = self.index.hold_class(&class, &mut self.classes, &mut news.classes);
            after.insert(net, number);
        }
        let before = std::mem::replace(&mut self.blocks, after);
        for (net, number) in &before {
            news.let_go.classes.push(*number);
            if self.blocks.get(net) != Some(number) {
                self.changed.insert(Part::Block(*net));
            }
        }
        let new = self.blocks.keys().filter(|net| !before.contains_key(*net));
        self.changed.extend(new.copied().map(Part::Block));
        if lengths != IpFamily::ALL.map(|family| self.block_lengths(family)) {
            self.changed.insert(Part::Base);
        }
    }
}

fn with_name(labels: &Labels, name: &Arc<str>) -> Labels {
    let mut labels = labels.clone();
    if !labels.contains_key(LABEL_NAME) {
        labels.insert(LABEL_NAME.into(), Arc::clone(name));
    }
    labels
}

fn in_namespace<'a, T>(
    map: &'a BTreeMap<ObjectKey, T>,
    namespace: &'a Arc<str>,
) -> impl Iterator<Item = (&'a ObjectKey, &'a T)> {
    let first = ObjectKey::new(Arc::clone(namespace), "");
    map.range(first..).take_while(move |(key, _)| key.namespace == *namespace)
}

/// All addresses of a network.
fn ip_range(net: &IpNet) -> RangeInclusive<IpAddr> {
    net.network()..=net.broadcast()
}
