//! All that this backend has in a kernel, or would have: for showing it, and for following packets through it.
//!
//! [`State::compile`] goes the whole way that the backend goes, up to the commands that it would send;
//! [`State::read`] reads a kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use telaio_model::{IpFamily, ServiceEndpoints};
use telaio_netlink::NetlinkError;
use telaio_netlink::addresses::addresses_of;
use telaio_netlink::ipset::Ipset;
use telaio_netlink::ipvs::{Command, Ipvs, RealServer, VirtualServer};
use telaio_netlink::links::Links;

use super::compile::Context;
use super::controller::{IpvsController, steps_of};
use super::mirror::Mirror;
use super::network::Membership;
use super::proxier::{DEVICE, spec};
use super::rules::{self, RulesContext};
use super::sets::SetName;
use super::types::{Scheduler, ServerKey};
use crate::config::{NodeFacts, ProxyConfig};
use crate::iptables::{Flavor, Owner, Programs, Ruleset};

/// Why a kernel could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It has no IPVS.
    #[error("this kernel has no IPVS: load the module ip_vs (`modprobe ip_vs`)")]
    NoIpvs,
    /// It refused.
    #[error(transparent)]
    Kernel(#[from] NetlinkError),
    /// The fixed rules could not be read.
    #[error("{0}")]
    Rules(String),
}

/// A virtual server and where it sends connections to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    /// The server.
    pub server: VirtualServer,
    /// Its endpoints.
    pub endpoints: BTreeMap<SocketAddr, RealServer>,
}

/// The fixed rules of one family.
#[derive(Debug, Clone)]
pub struct FamilyRules {
    /// As `iptables-restore` takes them, or as `iptables-save` gave them.
    pub text: String,
    /// What they say.
    pub ruleset: Ruleset,
}

impl FamilyRules {
    fn new(text: String) -> Self {
        let ruleset = Ruleset::of(Owner::Ipvs, &text);
        Self { text, ruleset }
    }
}

/// All that this backend has in a kernel, or would have.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Virtual servers; of a kernel also those of others, since packets meet them too.
    pub servers: BTreeMap<ServerKey, ServerState>,
    /// Which sets are there.
    pub sets: BTreeSet<SetName>,
    /// Members of our sets, with their marks.
    pub members: BTreeMap<Membership, Option<u32>>,
    /// The addresses on our device.
    pub addresses: BTreeSet<IpAddr>,
    /// The fixed rules.
    pub rules: BTreeMap<IpFamily, FamilyRules>,
}

/// What a node's state depends on besides its services.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// What the operator decided.
    pub config: &'a ProxyConfig,
    /// What the cluster says about the node.
    pub node: &'a NodeFacts,
    /// How the kernel chooses, where a service does not say.
    pub scheduler: Scheduler,
    /// The machine's own addresses, without those on our device.
    pub machine: &'a BTreeSet<IpAddr>,
}

impl State {
    /// What the backend would make of these services where nothing is there yet.
    pub fn compile(services: &[&ServiceEndpoints], around: &Circumstances<'_>) -> Self {
        let Circumstances { config, node, scheduler, machine } = *around;
        let mut state = Self::default();
        let mut mirror = Mirror::default();
        for family in config.families.iter().copied() {
            let context = Context::new(config, node, family, scheduler, machine);
            let mut controller = IpvsController::new(context, config.masquerade_mark());
            for entry in services {
                controller.set_service(&entry.service.key, Some(entry));
            }
            for step in steps_of(&controller.generate_patch_groups(), 1) {
                mirror.take(&step);
            }
            let text = rules::render(&RulesContext::new(config, node, family));
            state.rules.insert(family, FamilyRules::new(text));
            state.sets.extend(SetName::all(family));
        }
        state.members = mirror.joins().into_iter().collect();
        state.addresses = mirror.binds().into_iter().collect();
        for command in mirror.commands() {
            // Where nothing is there yet, everything is added.
            match command {
                Command::Add(server) => {
                    let made = ServerState { server, endpoints: BTreeMap::new() };
                    state.servers.insert(made.server.frontend, made);
                }
                Command::AddServer(key, endpoint) => {
                    if let Some(server) = state.servers.get_mut(&key) {
                        server.endpoints.insert(endpoint.address, endpoint);
                    }
                }
                _ => {}
            }
        }
        state
    }

    /// What is in the kernel of this network namespace.
    pub fn read(families: &[IpFamily], flavor: Flavor) -> Result<Self, ReadError> {
        let mut state = Self::default();
        let mut ipvs = Ipvs::open()?.ok_or(ReadError::NoIpvs)?;
        for snapshot in ipvs.snapshot()? {
            let endpoints = snapshot.servers.iter().map(|it| (it.server.address, it.server));
            let endpoints = endpoints.collect();
            let key = snapshot.server.frontend;
            state.servers.insert(key, ServerState { server: snapshot.server, endpoints });
        }
        state.read_sets(families)?;
        if let Some(device) = Links::open()?.find(DEVICE)? {
            state.addresses = addresses_of(device)?;
        }
        for family in families.iter().copied() {
            let programs = Programs::find(flavor, family);
            let programs = programs.map_err(|error| ReadError::Rules(error.to_string()))?;
            let text = programs.save().map_err(|error| ReadError::Rules(error.to_string()))?;
            state.rules.insert(family, FamilyRules::new(text));
        }
        Ok(state)
    }

    fn read_sets(&mut self, families: &[IpFamily]) -> Result<(), NetlinkError> {
        let mut ipset = Ipset::open()?;
        let names = match ipset.names() {
            Err(error) if error.is_unsupported() => Vec::new(),
            names => names?,
        };
        let sets = names.iter().filter_map(|name| SetName::parse(name));
        self.sets = sets.filter(|set| families.contains(&set.family)).collect();
        for set in &self.sets {
            for entry in ipset.entries(set.as_str(), spec(*set).kind)? {
                let member = Membership { set: *set, entry: entry.key };
                self.members.insert(member, entry.mark.map(|mark| mark.value));
            }
        }
        Ok(())
    }
}
