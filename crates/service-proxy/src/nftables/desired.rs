//! What should stand in the table: services as they are now, and the chains that they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_reconcile::target::compile_by_parts;
use telaio_reconcile::{ApplyError, Change, Observed, PartialTarget, Target};

use super::compile::{self, ChainSpec, CompiledService, Item, Key};
use super::target::Kernel;
use crate::config::{NodeFacts, ProxyConfig};
use crate::options::LocalhostPorts;

/// What is compiled alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The chains that services share, and those that the kernel begins with.
    Shared,
    /// A service.
    Service(ObjectKey),
}

/// A service, and the shared chains that it uses.
#[derive(Debug)]
struct Entry {
    service: ServiceEndpoints,
    chains: Box<[(IpFamily, ChainSpec)]>,
}

/// What should stand in the table.
#[derive(Debug)]
pub struct Desired {
    config: Arc<ProxyConfig>,
    node: NodeFacts,
    localhost: LocalhostPorts,
    services: BTreeMap<ObjectKey, Entry>,
    /// How many services use each shared chain.
    chains: BTreeMap<(IpFamily, ChainSpec), usize>,
    /// What was compiled to learn which chains a service uses, until the sync has taken it.
    compiled: BTreeMap<ObjectKey, BTreeMap<Key, Item>>,
}

impl Desired {
    /// Without services.
    pub fn new(config: Arc<ProxyConfig>, node: NodeFacts, localhost: LocalhostPorts) -> Self {
        Self {
            config,
            node,
            localhost,
            services: BTreeMap::new(),
            chains: BTreeMap::new(),
            compiled: BTreeMap::new(),
        }
    }

    /// What the cluster says about the node.
    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// Takes what the cluster says about the node; tells whether that is news. Then everything has to
    /// be compiled anew.
    pub fn set_node(&mut self, node: NodeFacts) -> bool {
        let is_news = self.node != node;
        self.node = node;
        is_news
    }

    /// Takes a service as it is now, or `None` if it is gone. Tells whether the shared chains changed
    /// by it.
    pub fn set_service(&mut self, key: &ObjectKey, service: Option<ServiceEndpoints>) -> bool {
        let before = self.services.remove(key).map(|entry| entry.chains).unwrap_or_default();
        self.compiled.remove(key);
        let mut changed = false;
        if let Some(service) = service {
            let CompiledService { items, chains } =
                compile::compile_service(&service, &self.config, &self.node);
            let chains: Box<[_]> = chains.into_iter().collect();
            for chain in &chains {
                let uses = self.chains.entry(chain.clone()).or_insert(0);
                changed |= *uses == 0;
                *uses += 1;
            }
            self.compiled.insert(key.clone(), items);
            self.services.insert(key.clone(), Entry { service, chains });
        }
        for chain in &before {
            if let Some(uses) = self.chains.get_mut(chain) {
                *uses -= 1;
                if *uses == 0 {
                    self.chains.remove(chain);
                    changed = true;
                }
            }
        }
        changed
    }

    /// What was compiled has been taken.
    pub fn forget_compiled(&mut self) {
        self.compiled.clear();
    }

    /// All of it, in order.
    pub fn items(&self) -> BTreeMap<Key, Item> {
        let mut items = self.compile(&Part::Shared);
        for key in self.services.keys() {
            for (key, item) in self.compile(&Part::Service(key.clone())) {
                items.entry(key).or_insert(item);
            }
        }
        items
    }

    fn compile(&self, part: &Part) -> BTreeMap<Key, Item> {
        match part {
            Part::Shared => compile::compile_shared(
                &self.config,
                &self.node,
                self.localhost,
                self.chains.keys(),
            ),
            Part::Service(key) => match (self.compiled.get(key), self.services.get(key)) {
                (Some(items), _) => items.clone(),
                (None, Some(entry)) => {
                    compile::compile_service(&entry.service, &self.config, &self.node).items
                }
                (None, None) => BTreeMap::new(),
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
        let services = input.services.keys().cloned().map(Part::Service);
        [Part::Shared].into_iter().chain(services).collect()
    }

    fn compile_part(&self, input: &Desired, part: &Part) -> BTreeMap<Key, Item> {
        input.compile(part)
    }
}
