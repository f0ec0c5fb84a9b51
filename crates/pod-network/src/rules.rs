//! The node's rules: published ports, masquerade, and networks apart from each other.
//!
//! One table [`TABLE`] per family. Networks make the rules, which are written anew whenever a network comes, goes or
//! changes; instances are elements of maps only, so that to publish a port costs the same whatever else there is.
//!
//! | chain | where | what |
//! |---|---|---|
//! | `localnet` | prerouting, −300 | who is not this machine does not reach its loopback addresses |
//! | `published` | prerouting, nat, −95 | what is for this machine and a published port goes to the instance |
//! | `published-here` | output, nat, −95 | the same for what starts here, also to localhost (IPv4) |
//! | `source` | postrouting, nat, 95 | masquerade |
//! | `isolation` | forward, −10 | networks do not reach each other |
//! | `redirects` | output, 0 | instances are never told to talk past the node |
//!
//! | map or set | key | value |
//! |---|---|---|
//! | `ports` | address . protocol . port | instance's address . port |
//! | `any-ports` | protocol . port | the same |
//! | `hairpin` | address . the same address | |
//! | `networks` | group of links | |
//! | `reach` | group . group | |
//! | `cluster-LENGTH` | a network of another node | |
//!
//! A table of the same name on bridges keeps frames from going from instance to instance: `ports`, prerouting, drops what
//! is for another's hardware address than one of the bridges in the set `bridges`.
//!
//! The service proxy's chains come first, at −100 and 100 after us: a service's port wins over a published one, and
//! whoever is masqueraded here is not masqueraded again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cidr::IpCidr;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{
    Batch, Chain, ChainKind, DataType, Element, ElementData, Expression, Family, Hook, Nftables,
    SetSpec, Verdict,
};

use telaio_netlink::rtnl::Mac;

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::network::{Mode, Network};
use crate::port::{Port, Protocol};

mod words;
use words::Words;

#[cfg(test)]
mod tests;

/// The name of our tables.
pub const TABLE: &str = "telaio-pods";
/// Both.
pub(crate) const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

const LOCALNET: &str = "localnet";
const PUBLISHED: &str = "published";
const PUBLISHED_HERE: &str = "published-here";
const SOURCE: &str = "source";
const ISOLATION: &str = "isolation";
const REDIRECTS: &str = "redirects";
const PORTS: &str = "ports";
const ANY_PORTS: &str = "any-ports";
const HAIRPIN: &str = "hairpin";
const NETWORKS: &str = "networks";
const REACH: &str = "reach";
const PORT_FRAMES: &str = "ports";
const BRIDGES: &str = "bridges";
/// The kernel's own hooks on bridges stand at 0.
const BEFORE_BRIDGE_NETFILTER: i32 = -10;

/// How many ports can be published, and how many instances can have published ones, per family.
const PORTS_MAX: u32 = 1 << 15;
/// How many networks of one length other nodes can have.
const CLUSTER_MAX: u32 = 1 << 14;
/// Room for pairs of networks.
const REACH_MAX: u32 = 1 << 13;

const ENOENT: i32 = 2;

/// An element of one of the maps.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    family: Family,
    map: &'static str,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// What the rules are made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cluster<'a> {
    /// The networks of this node.
    pub(crate) networks: &'a [Network],
    /// The networks of other nodes, whose instances see each other's own addresses.
    pub(crate) others: &'a [IpCidr],
}

impl Cluster<'_> {
    /// The lengths that networks of other nodes have.
    fn lengths(&self, family: Family) -> BTreeSet<u8> {
        let others = self.others.iter().filter(|cidr| cidr.is_ipv4() == (family == Family::Ip));
        others.map(IpCidr::network_length).collect()
    }
}

/// What sets of other nodes' networks begin with.
const CLUSTER_PREFIX: &str = "cluster-";

/// The set of other nodes' networks of one length.
fn cluster_set(length: u8) -> String {
    format!("{CLUSTER_PREFIX}{length}")
}

/// A connection to the rules of this namespace.
#[derive(Debug)]
pub(crate) struct Rules {
    nftables: Nftables,
}

/// What became of elements that were to be added.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// They are there.
    Done,
    /// There is no table: somebody has removed it.
    NoTable,
}

impl Rules {
    pub(crate) fn open() -> Result<Self> {
        let nftables = Nftables::open().map_err(Error::kernel("opening nftables"))?;
        Ok(Self { nftables })
    }

    /// Makes the tables if need be, and the rules of these networks; elements stay.
    pub(crate) fn write_networks(&mut self, cluster: &Cluster<'_>) -> Result<()> {
        let mut batches = self.batches(cluster)?;
        let [v4, v6] = &mut batches;
        let mut frames = frames_batch(cluster.networks);
        self.nftables
            .commit(&mut [v4, v6, &mut frames])
            .map_err(Error::kernel("writing the rules of networks"))
    }

    /// Makes everything as it should be: tables, rules, elements.
    pub(crate) fn write_all(
        &mut self,
        cluster: &Cluster<'_>,
        instances: &[Attachment],
    ) -> Result<()> {
        let mut batches = self.batches(cluster)?;
        for (batch, family) in batches.iter_mut().zip(FAMILIES) {
            for map in [PORTS, ANY_PORTS, HAIRPIN] {
                batch.flush_set(map);
            }
            // Sorted by map, so that they share messages.
            let mut entries: Vec<Entry> = instances.iter().flat_map(entries).collect();
            entries.retain(|entry| entry.family == family);
            entries.sort_by(|a, b| (a.map, &a.key).cmp(&(b.map, &b.key)));
            entries.dedup_by(|a, b| (a.map, &a.key) == (b.map, &b.key));
            for entry in &entries {
                add(batch, entry);
            }
        }
        let [v4, v6] = &mut batches;
        let mut frames = frames_batch(cluster.networks);
        self.nftables.commit(&mut [v4, v6, &mut frames]).map_err(Error::kernel("writing all rules"))
    }

    /// Tables, maps, chains and rules, with the sets of other nodes that are no longer needed removed.
    fn batches(&mut self, cluster: &Cluster<'_>) -> Result<[Batch; 2]> {
        let mut batches = FAMILIES.map(|family| networks_batch(family, cluster));
        for (batch, family) in batches.iter_mut().zip(FAMILIES) {
            let sets = match self.nftables.sets(family, TABLE) {
                // There is no table yet.
                Err(error) if error.raw_os_error() == Some(ENOENT) => Vec::new(),
                sets => sets.map_err(Error::kernel("listing sets"))?,
            };
            let lengths = cluster.lengths(family);
            let is_kept = |name: &str| lengths.iter().any(|length| cluster_set(*length) == name);
            for set in sets {
                if set.name.starts_with(CLUSTER_PREFIX) && !is_kept(&set.name) {
                    batch.delete_set(&set.name);
                }
            }
        }
        Ok(batches)
    }

    /// Publishes an instance's ports, all or none.
    pub(crate) fn publish(&mut self, instance: &Attachment) -> Result<Added> {
        let entries = entries(instance);
        if entries.is_empty() {
            return Ok(Added::Done);
        }
        let committed = self.commit(&entries, add);
        match committed {
            Ok(()) => Ok(Added::Done),
            Err(error) if error.raw_os_error() == Some(ENOENT) => Ok(Added::NoTable),
            Err(error) => Err(Error::kernel(format!("publishing the ports of {instance}"))(error)),
        }
    }

    /// Takes instances' ports back; what is gone already is no fault.
    pub(crate) fn unpublish(&mut self, instances: &[Attachment]) -> Result<()> {
        let entries: Vec<Entry> = instances.iter().flat_map(entries).collect();
        if entries.is_empty() {
            return Ok(());
        }
        let delete = |batch: &mut Batch, entry: &Entry| batch.delete_element(entry.map, &entry.key);
        match self.commit(&entries, delete) {
            Err(error) if error.raw_os_error() == Some(ENOENT) => {}
            outcome => return outcome.map_err(Error::kernel("taking published ports back")),
        }
        // Some of them are gone: then each for itself.
        for entry in &entries {
            match self.commit(std::slice::from_ref(entry), delete) {
                Err(error) if error.raw_os_error() == Some(ENOENT) => {}
                outcome => outcome.map_err(Error::kernel("taking a published port back"))?,
            }
        }
        Ok(())
    }

    fn commit(
        &mut self,
        entries: &[Entry],
        write: impl Fn(&mut Batch, &Entry),
    ) -> std::result::Result<(), NetlinkError> {
        let mut batches = FAMILIES.map(|family| Batch::new(family, TABLE));
        for (batch, family) in batches.iter_mut().zip(FAMILIES) {
            for map in [PORTS, ANY_PORTS, HAIRPIN] {
                let wanted = |entry: &&Entry| entry.family == family && entry.map == map;
                entries.iter().filter(wanted).for_each(|entry| write(batch, entry));
            }
        }
        let [v4, v6] = &mut batches;
        self.nftables.commit(&mut [v4, v6])
    }

    /// Removes the tables.
    pub(crate) fn remove_all(&mut self) -> Result<()> {
        for family in FAMILIES.into_iter().chain([Family::Bridge]) {
            let mut batch = Batch::new(family, TABLE);
            batch.delete_table();
            match self.nftables.commit(&mut [&mut batch]) {
                // There is no such table, or a kernel without tables of this family.
                Err(error) if error.is_unsupported() => {}
                outcome => outcome.map_err(Error::kernel("removing our tables"))?,
            }
        }
        Ok(())
    }

    /// Whether both tables are there, with the elements of these instances.
    pub(crate) fn has(&mut self, instances: &[Attachment]) -> Result<bool> {
        let mut wanted: BTreeMap<(&'static str, u8), Vec<Entry>> = BTreeMap::new();
        for entry in instances.iter().flat_map(entries) {
            let family = u8::from(entry.family == Family::Ip6);
            wanted.entry((entry.map, family)).or_default().push(entry);
        }
        for (at, family) in FAMILIES.into_iter().enumerate() {
            let is_there = self.nftables.has_live_table(family, TABLE);
            if !is_there.map_err(Error::kernel("listing tables"))? {
                return Ok(false);
            }
            for map in [PORTS, ANY_PORTS, HAIRPIN] {
                let Some(entries) = wanted.get(&(map, at as u8)) else { continue };
                let mut there = BTreeMap::new();
                let read = self.nftables.elements(family, TABLE, map, |element| match element {
                    Some(it) => _ = there.insert(it.key.to_vec(), it.value.map(<[u8]>::to_vec)),
                    None => there.clear(),
                });
                read.map_err(Error::kernel("listing published ports"))?;
                if entries.iter().any(|entry| there.get(&entry.key) != Some(&entry.value)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn add(batch: &mut Batch, entry: &Entry) {
    let data = entry.value.as_deref().map_or(ElementData::None, ElementData::Value);
    batch.add_element(entry.map, &Element::new(&entry.key, data));
}

/// What of the maps an instance needs.
fn entries(instance: &Attachment) -> Vec<Entry> {
    let mut found = Vec::new();
    for (family, is_ipv4) in [(Family::Ip, true), (Family::Ip6, false)] {
        let Some(address) = instance.address(is_ipv4) else { continue };
        let ports: Vec<&Port> =
            instance.ports.iter().filter(|port| is_for(port, is_ipv4)).collect();
        if ports.is_empty() {
            continue;
        }
        for port in ports {
            let mut value = octets(address);
            put_port(&mut value, port.instance_port);
            let mut key = Vec::new();
            let host_ip = port.host_ip.filter(|ip| !ip.is_unspecified());
            if let Some(ip) = host_ip {
                key.extend(octets(ip));
            }
            key.extend([protocol_number(port.protocol), 0, 0, 0]);
            put_port(&mut key, port.host_port);
            let map = if host_ip.is_some() { PORTS } else { ANY_PORTS };
            found.push(Entry { family, map, key, value: Some(value) });
        }
        let key = [octets(address), octets(address)].concat();
        found.push(Entry { family, map: HAIRPIN, key, value: None });
    }
    found
}

/// Whether a port is published in a family at all.
pub(crate) fn is_for(port: &Port, is_ipv4: bool) -> bool {
    port.host_ip.is_none_or(|ip| ip.is_ipv4() == is_ipv4)
}

fn put_port(bytes: &mut Vec<u8>, port: u16) {
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 0]);
}

pub(crate) fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Table, maps, chains, and the rules of these networks.
fn networks_batch(family: Family, cluster: &Cluster<'_>) -> Batch {
    let networks = cluster.networks;
    let words = Words { family };
    let mut batch = Batch::new(family, TABLE);
    batch.add_table();
    add_maps(&mut batch, words);
    add_cluster_sets(&mut batch, words, cluster);
    for chain in chains() {
        batch.add_chain(&chain);
        batch.flush_chain(&chain.name);
    }
    let mut rule = |chain: &str, expressions: Vec<Expression>| {
        batch.add_rule(chain, &expressions, None);
    };
    if family == Family::Ip {
        rule(LOCALNET, words.loopback_from_networks_dropped());
    }
    for chain in [PUBLISHED, PUBLISHED_HERE] {
        rule(chain, Words::not_for_this_machine_is_done());
        if family == Family::Ip6 && chain == PUBLISHED_HERE {
            rule(chain, words.to_loopback_is_done());
        }
        rule(chain, words.published(true));
        rule(chain, words.published(false));
    }
    rule(SOURCE, words.hairpin_masqueraded());
    if family == Family::Ip {
        rule(SOURCE, words.loopback_to_networks_masqueraded());
    }
    for length in cluster.lengths(family) {
        rule(SOURCE, words.to_cluster_is_done(length, &cluster_set(length)));
    }
    for network in networks {
        masquerade_rules(network, words, &mut |rule_| rule(SOURCE, rule_));
    }
    rule(ISOLATION, Words::other_networks_dropped());
    rule(REDIRECTS, words.redirects_dropped());
    put_networks(&mut batch, networks);
    batch
}

/// The table for frames on bridges.
fn frames_batch(networks: &[Network]) -> Batch {
    let mut batch = Batch::new(Family::Bridge, TABLE);
    batch.add_table();
    batch.add_set(&SetSpec {
        name: BRIDGES,
        key: &[DataType::Ethernet],
        values: None,
        verdicts: false,
        size: crate::network::NETWORKS_MAX,
        dynamic_timeout_ms: None,
    });
    batch.flush_set(BRIDGES);
    for network in networks.iter().filter(|network| network.mode == Mode::Routed) {
        if let Ok(mac) = network.bridge_mac.parse::<Mac>() {
            batch.add_element(BRIDGES, &Element::new(&mac.0, ElementData::None));
        }
    }
    let chain =
        Chain::base(PORT_FRAMES, ChainKind::Filter, Hook::Prerouting, BEFORE_BRIDGE_NETFILTER);
    batch.add_chain(&chain);
    batch.flush_chain(PORT_FRAMES);
    batch.add_rule(PORT_FRAMES, &words::past_the_node_dropped(), None);
    batch
}

fn add_maps(batch: &mut Batch, words: Words) {
    use DataType::{Group, Port as TransportPort, Protocol as Transport};
    let address = words.address_type();
    let endpoint = [address, TransportPort];
    let mut map = |name, key: &[DataType], values: Option<&[DataType]>, size| {
        let spec = SetSpec { name, key, values, verdicts: false, size, dynamic_timeout_ms: None };
        batch.add_set(&spec);
    };
    map(PORTS, &[address, Transport, TransportPort], Some(&endpoint), PORTS_MAX);
    map(ANY_PORTS, &[Transport, TransportPort], Some(&endpoint), PORTS_MAX);
    map(HAIRPIN, &[address, address], None, PORTS_MAX);
    map(NETWORKS, &[Group], None, crate::network::NETWORKS_MAX);
    map(REACH, &[Group, Group], None, REACH_MAX);
}

fn add_cluster_sets(batch: &mut Batch, words: Words, cluster: &Cluster<'_>) {
    for length in cluster.lengths(words.family) {
        let name = cluster_set(length);
        batch.add_set(&SetSpec {
            name: &name,
            key: &[words.address_type()],
            values: None,
            verdicts: false,
            size: CLUSTER_MAX,
            dynamic_timeout_ms: None,
        });
        batch.flush_set(&name);
        let is_it = |cidr: &&IpCidr| {
            cidr.network_length() == length && cidr.is_ipv4() == (words.family == Family::Ip)
        };
        for cidr in cluster.others.iter().filter(is_it) {
            let key = octets(cidr.first_address());
            batch.add_element(&name, &Element::new(&key, ElementData::None));
        }
    }
}

fn chains() -> [Chain; 6] {
    use ChainKind::{Filter, Nat};
    [
        Chain::base(LOCALNET, Filter, Hook::Prerouting, -300),
        Chain::base(PUBLISHED, Nat, Hook::Prerouting, -95),
        Chain::base(PUBLISHED_HERE, Nat, Hook::Output, -95),
        Chain::base(SOURCE, Nat, Hook::Postrouting, 95),
        Chain::base(ISOLATION, Filter, Hook::Forward, -10),
        Chain::base(REDIRECTS, Filter, Hook::Output, 0),
    ]
}

fn masquerade_rules(network: &Network, words: Words, rule: &mut impl FnMut(Vec<Expression>)) {
    let Some(masquerade) = &network.masquerade else { return };
    let is_ours = |cidr: &&IpCidr| cidr.is_ipv4() == (words.family == Family::Ip);
    for subnet in network.subnets.iter().map(|subnet| &subnet.cidr).filter(is_ours) {
        // What stays within the network, its multicast included, is its own.
        let multicast = words.multicast();
        let within = [*subnet, multicast];
        for except in within.iter().chain(masquerade.except.iter().filter(is_ours)) {
            rule(words.between(subnet, except, Verdict::Accept));
        }
        rule(words.masqueraded(subnet));
    }
}

/// The networks whose links packets of ours come and go by, and which of them reach each other.
fn put_networks(batch: &mut Batch, networks: &[Network]) {
    batch.flush_set(NETWORKS);
    batch.flush_set(REACH);
    let routed = || networks.iter().filter(|network| network.mode == Mode::Routed);
    for network in routed() {
        let key = network.group.to_ne_bytes();
        batch.add_element(NETWORKS, &Element::new(&key, ElementData::None));
    }
    let mut pairs = BTreeSet::new();
    for network in routed() {
        pairs.insert((network.group, network.group));
        for other in routed().filter(|other| network.reaches.contains(&other.name)) {
            pairs.insert((network.group, other.group));
            pairs.insert((other.group, network.group));
        }
    }
    for (from, to) in pairs {
        let key = [from.to_ne_bytes(), to.to_ne_bytes()].concat();
        batch.add_element(REACH, &Element::new(&key, ElementData::None));
    }
}
