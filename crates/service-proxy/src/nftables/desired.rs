//! What should stand in the table: services as they are now, and the chains that they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_reconcile::target::{CompiledPart, compile_by_parts};
use telaio_reconcile::{ApplyError, Change, Observed, PartialTarget, Target};

use super::compile::{self, CompiledService, Item, Key, Rank, Way};
use super::target::Kernel;
use crate::config::{NodeFacts, ProxyConfig};
use crate::options::LocalhostPorts;

/// What is compiled alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The chains that services share, and those that the kernel begins with.
    Shared,
    /// What a service claims at one rank.
    Service(Rank, ObjectKey),
}

impl Part {
    /// The parts of a service.
    pub fn of_service(key: &ObjectKey) -> [Self; Rank::ALL.len()] {
        Rank::ALL.map(|rank| Self::Service(rank, key.clone()))
    }
}

/// What a service claims at each rank, until somebody takes it.
type Compiled = Box<[Option<Vec<(Key, Item)>>; Rank::ALL.len()]>;

/// A service, and the ways that it leads.
#[derive(Debug)]
struct Entry {
    service: ServiceEndpoints,
    /// Shared with the neighbour's where they are the same, as they mostly are.
    ways: Arc<[(IpFamily, Way)]>,
    /// What was compiled to learn which ways it leads, until all of it is taken.
    compiled: Mutex<Option<Compiled>>,
}

impl Entry {
    /// The ranks at which it claims anything. Most services have cluster addresses only.
    fn ranks(&self) -> &'static [Rank] {
        if self.has_more_than_cluster_ips() { &Rank::ALL } else { &Rank::ALL[..1] }
    }

    /// What it claims at a rank; `compile` makes all of it, if it is not there any more.
    fn take(&self, rank: Rank, compile: impl FnOnce() -> Compiled) -> Vec<(Key, Item)> {
        if !self.ranks().contains(&rank) {
            return Vec::new();
        }
        let mut compiled = self.compiled.lock();
        let mut all = match compiled.take() {
            Some(all) if all[rank as usize].is_some() => all,
            _ => compile(),
        };
        let taken = all[rank as usize].take();
        if self.ranks().iter().any(|rank| all[*rank as usize].is_some()) {
            *compiled = Some(all);
        }
        taken.unwrap_or_default()
    }

    fn has_more_than_cluster_ips(&self) -> bool {
        let service = &self.service.service;
        !service.external_ips.is_empty()
            || !service.load_balancer_ips.is_empty()
            || service.ports.iter().any(|port| port.node_port.is_some())
    }
}

/// The ways that are in use, and their numbers.
#[derive(Debug, Default)]
struct Ways {
    /// How many services lead each, and its number.
    uses: BTreeMap<(IpFamily, Way), (usize, u32)>,
    /// The numbers that are taken.
    taken: BTreeSet<(IpFamily, u32)>,
}

impl Ways {
    /// The number of a way: its hash, unless another way that is in use has that already.
    fn number(&self, way: &(IpFamily, Way)) -> u32 {
        if let Some((_, number)) = self.uses.get(way) {
            return *number;
        }
        let mut number = way.1.hash();
        while self.taken.contains(&(way.0, number)) {
            number = number.wrapping_add(1);
        }
        number
    }

    /// One more service leads it; tells whether it is the first.
    fn add(&mut self, way: &(IpFamily, Way)) -> bool {
        if let Some((uses, _)) = self.uses.get_mut(way) {
            *uses += 1;
            return false;
        }
        let number = self.number(way);
        self.taken.insert((way.0, number));
        self.uses.insert(way.clone(), (1, number));
        true
    }

    /// One service less leads it; tells whether it was the last.
    fn remove(&mut self, way: &(IpFamily, Way)) -> bool {
        let Some((uses, number)) = self.uses.get_mut(way) else { return false };
        *uses -= 1;
        if *uses > 0 {
            return false;
        }
        self.taken.remove(&(way.0, *number));
        self.uses.remove(way);
        true
    }

    fn numbered(&self) -> impl Iterator<Item = (&(IpFamily, Way), u32)> {
        self.uses.iter().map(|(way, (_, number))| (way, *number))
    }
}

/// What should stand in the table.
#[derive(Debug)]
pub struct Desired {
    config: Arc<ProxyConfig>,
    node: NodeFacts,
    localhost: LocalhostPorts,
    services: BTreeMap<ObjectKey, Entry>,
    ways: Ways,
    /// Those of the service that came last.
    last_ways: Arc<[(IpFamily, Way)]>,
}

impl Desired {
    /// Without services.
    pub fn new(config: Arc<ProxyConfig>, node: NodeFacts, localhost: LocalhostPorts) -> Self {
        let mut ways = Ways::default();
        for way in compile::ready_ways(&config.families) {
            ways.add(&way);
        }
        Self { config, node, localhost, services: BTreeMap::new(), ways, last_ways: Arc::default() }
    }

    /// What the cluster says about the node.
    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// Takes what the cluster says about the node; tells whether that is news. Then everything has to
    /// be compiled anew.
    pub fn set_node(&mut self, node: NodeFacts) -> bool {
        let is_news = self.node != node;
        if is_news {
            self.node = node;
            for entry in self.services.values() {
                *entry.compiled.lock() = None;
            }
        }
        is_news
    }

    /// Takes services as they are now, `None` for those that are gone. Tells whether what services
    /// share changed by it.
    pub fn set_services(
        &mut self,
        services: &BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    ) -> bool {
        let mut changed = false;
        if !self.services.is_empty() {
            for (key, service) in services {
                changed |= self.set_service(key, service.clone());
            }
            return changed;
        }
        let mut entries = Vec::with_capacity(services.len());
        for (key, service) in services {
            if let Some(service) = service {
                let (entry, is_news) = self.compile_entry(service.clone());
                entries.push((key.clone(), entry));
                changed |= is_news;
            }
        }
        // In order already, so the map is built in one go.
        self.services = entries.into_iter().collect();
        changed
    }

    /// Takes a service as it is now, or `None` if it is gone. Tells whether what services share
    /// changed by it.
    pub fn set_service(&mut self, key: &ObjectKey, service: Option<ServiceEndpoints>) -> bool {
        let mut changed = false;
        let before = match service {
            Some(service) => {
                let (entry, is_news) = self.compile_entry(service);
                changed = is_news;
                self.services.insert(key.clone(), entry)
            }
            None => self.services.remove(key),
        };
        for way in before.iter().flat_map(|before| before.ways.iter()) {
            changed |= self.ways.remove(way);
        }
        changed
    }

    /// A service with the ways that it leads from now on; tells whether nobody led some of them.
    fn compile_entry(&mut self, service: ServiceEndpoints) -> (Entry, bool) {
        let CompiledService { items, ways } = self.compile_service(&service);
        if *self.last_ways != *ways {
            self.last_ways = ways.into();
        }
        let ways = Arc::clone(&self.last_ways);
        let mut is_news = false;
        for way in ways.iter() {
            is_news |= self.ways.add(way);
        }
        let compiled = Mutex::new(Some(Box::new(items.map(Some))));
        (Entry { service, ways, compiled }, is_news)
    }

    fn compile_service(&self, service: &ServiceEndpoints) -> CompiledService {
        let number = |way: &(IpFamily, Way)| self.ways.number(way);
        compile::compile_service(service, &self.config, &self.node, &number)
    }

    fn take(&self, entry: &Entry, rank: Rank) -> Vec<(Key, Item)> {
        entry.take(rank, || Box::new(self.compile_service(&entry.service).items.map(Some)))
    }

    /// All of it, in order.
    pub fn items(&self) -> BTreeMap<Key, Item> {
        let mut items: BTreeMap<Key, Item> = self.compile(&Part::Shared).into_iter().collect();
        for rank in Rank::ALL {
            for key in self.services.keys() {
                for (key, item) in self.compile(&Part::Service(rank, key.clone())) {
                    items.entry(key).or_insert(item);
                }
            }
        }
        items
    }

    fn compile(&self, part: &Part) -> Vec<(Key, Item)> {
        match part {
            Part::Shared => compile::compile_shared(
                &self.config,
                &self.node,
                self.localhost,
                self.ways.numbered(),
            )
            .into_iter()
            .collect(),
            Part::Service(rank, key) => match self.services.get(key) {
                Some(entry) => self.take(entry, *rank),
                None => Vec::new(),
            },
        }
    }
}

impl Target for Kernel {
    type Input = Desired;
    type Key = Key;
    type Item = Item;

    fn compile(&self, input: &Desired) -> BTreeMap<Key, Item> {
        compile_by_parts(self, input)
    }

    fn observe(&mut self) -> Result<Observed<Key, Item>, ApplyError> {
        self.read()
    }

    fn apply(&mut self, changes: &[Change<Key, Item>]) -> Result<(), ApplyError> {
        self.write(changes)
    }
}

impl PartialTarget for Kernel {
    type Part = Part;

    fn parts(&self, input: &Desired) -> Vec<Part> {
        let services = input.services.iter().flat_map(|(key, entry)| {
            entry.ranks().iter().map(|rank| Part::Service(*rank, key.clone()))
        });
        [Part::Shared].into_iter().chain(services).collect()
    }

    fn compile_part(&self, input: &Desired, part: &Part) -> Vec<(Key, Item)> {
        input.compile(part)
    }

    fn compile_parts(&self, input: &Desired) -> Vec<CompiledPart<Self>> {
        let mut all = Vec::with_capacity(input.services.len() + 1);
        all.push((Part::Shared, input.compile(&Part::Shared)));
        for (key, entry) in &input.services {
            for rank in entry.ranks() {
                all.push((Part::Service(*rank, key.clone()), input.take(entry, *rank)));
            }
        }
        all
    }
}
