//! The node's rules: published ports, masquerade, networks apart from each other, and no false senders.
//!
//! One nftables table [`TABLE`] per family. Networks make the rules, which are written anew whenever a network comes, goes or
//! changes; instances are elements of maps only, so that to attach one costs the same whatever else there is.
//!
//! | chain | where | what |
//! |---|---|---|
//! | `localnet` | prerouting, −300 | who is not this machine does not reach its loopback addresses; what comes from a network has a source that is reached there |
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
//! | `state-…` | always empty: by its name the table is known to be of one state directory | |
//!
//! A table of the same name on bridges looks at what instances send (`ports`, prerouting): frames go to one of the bridges in
//! the set `bridges` and to nobody else, and their sender is one of the addresses that the instance at that port has (sets
//! `sources4` and `sources6`: port . address), in ARP too, and in IPv6 they speak of no other address when they say or ask who
//! has it; routers they are not. So an instance cannot pass itself off as another, or as the node.
//!
//! In the table `filter`, where its chain `FORWARD` drops what it does not know, a chain of ours lets instances pass; see
//! [`forward`].
//!
//! The service proxy's chains come first, at −100 and 100 after us: a service's port wins over a published one, and
//! whoever is masqueraded here is not masqueraded again.
//!
//! Where the kernel has no nftables for IP the same is done by iptables; see [`iptables`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cidr::{IpCidr, IpInet};
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{Batch, DataType, Element, ElementData, Family, Nftables, SetSpec};

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::network::Network;
use crate::overlay;
use crate::state::{Host, Mark, State};

mod elements;
pub mod forward;
pub mod iptables;
mod programs;
mod tables;
mod words;

use elements::{Entry, entries, octets};
pub(crate) use elements::{is_for, protocol_number};
use tables::{frames_batch, networks_batch};

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
const SOURCES4: &str = "sources4";
const SOURCES6: &str = "sources6";

/// How many ports can be published, and how many instances can have published ones, per family.
pub(crate) const PORTS_MAX: u32 = 1 << 15;
/// How many networks of one length other nodes can have.
const CLUSTER_MAX: u32 = 1 << 14;
/// Room for pairs of networks.
const REACH_MAX: u32 = 1 << 13;
/// How many addresses instances can have, per family. The kernel makes room for all of them when the table is made, and walks
/// that room whenever it is emptied.
const SOURCES_MAX: u32 = 1 << 15;
/// The longest name of a link, with its final zero.
const LINK_NAME_BYTES: usize = 16;

const ENOENT: i32 = 2;
/// A set is full.
const ENFILE: i32 = 23;
/// How a kernel refuses tables of a family that it does not have, or all of them.
const MISSING: [i32; 3] = [93, 95, 97];

/// A chain that is never there.
const NOBODYS_CHAIN: &str = "nobody";

/// Where an instance's elements go.
const PLACES: [(Family, &[&str]); 3] = [
    (Family::Ip, &[PORTS, ANY_PORTS, HAIRPIN]),
    (Family::Ip6, &[PORTS, ANY_PORTS, HAIRPIN]),
    (Family::Bridge, &[SOURCES4, SOURCES6]),
];

/// What the rules are made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cluster<'a> {
    /// The networks of this node.
    pub(crate) networks: &'a [Network],
    /// The networks of other nodes, whose instances see each other's own addresses.
    pub(crate) others: &'a [IpCidr],
    /// The group of the network of this machine that is one with theirs.
    pub(crate) carrier: Option<u32>,
}

impl<'a> Cluster<'a> {
    fn of(networks: &'a [Network], others: &'a [IpCidr], carrier: Option<&str>) -> Self {
        let carrier = networks.iter().find(|network| Some(network.name.as_str()) == carrier);
        Self { networks, others, carrier: carrier.map(|network| network.group) }
    }

    /// The lengths that networks of other nodes have.
    fn lengths(&self, family: Family) -> BTreeSet<u8> {
        let others = self.others.iter().filter(|cidr| cidr.is_ipv4() == (family == Family::Ip));
        others.map(IpCidr::network_length).collect()
    }

    fn has_ipv6(&self) -> bool {
        let mut own = self.networks.iter().flat_map(|network| &network.subnets);
        own.any(|subnet| subnet.cidr.is_ipv6())
    }
}

/// The ranges of networks that reach this one, and are reached.
fn joined<'a>(networks: &'a [Network], network: &'a Network) -> impl Iterator<Item = &'a IpCidr> {
    let are_joined = |other: &&Network| {
        other.name != network.name && (network.lets_in(&other.name) || other.lets_in(&network.name))
    };
    let others = networks.iter().filter(are_joined);
    others.flat_map(|other| other.subnets.iter().map(|subnet| &subnet.cidr))
}

/// What sets of other nodes' networks begin with.
const CLUSTER_PREFIX: &str = "cluster-";

/// The set of other nodes' networks of one length.
fn cluster_set(length: u8) -> String {
    format!("{CLUSTER_PREFIX}{length}")
}

/// Whether the kernel has nftables for IP. Without, this module makes do with iptables; network policies cannot.
pub fn has_nftables() -> Result<bool> {
    Ok(!Rules::open()?.lacks_ip())
}

/// Others' chains that refuse what instances send and get, because they refuse whatever they do not know: each as
/// `family table chain`, those of `iptables-legacy` as `iptables-legacy table chain`. In `FORWARD` of the table `filter` of nftables we
/// let it pass ourselves; see [`forward`].
pub fn refusing_chains() -> Result<Vec<String>> {
    let mut rules = Rules::open()?;
    match forward::refusing(&mut rules.nftables) {
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        found => {
            let mut found = found.map_err(Error::kernel("listing others' chains"))?;
            found.extend(forward::refusing_legacy());
            Ok(found)
        }
    }
}

/// Whether a set's or map's elements come and go with instances.
pub fn is_of_instances(set: &str) -> bool {
    PLACES.iter().any(|(_, maps)| maps.contains(&set))
}

impl Host {
    /// Whether the rules of all instances are there. It changes nothing.
    pub fn has_rules(&self) -> Result<bool> {
        let mut instances = crate::attach::recorded(&self.state()?)?;
        // Others are just being made, or taken back.
        instances.retain(Attachment::is_whole);
        Rules::open()?.has(&instances)
    }
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
    /// There is no place for them: everything has to be written.
    NoTable,
}

impl Rules {
    pub(crate) fn open() -> Result<Self> {
        let nftables = Nftables::open().map_err(Error::kernel("opening nftables"))?;
        Ok(Self { nftables })
    }

    /// Makes everything as the records say, with these networks: tables, rules, elements. Needs the exclusive lock.
    pub(crate) fn write(&mut self, state: &State, networks: &[Network]) -> Result<()> {
        let (others, carrier) = overlay::others(state)?;
        let cluster = Cluster::of(networks, &others, carrier.as_deref());
        let instances = crate::attach::recorded(state)?;
        // Nobody knows which elements are of an instance whose record cannot be read.
        let keeps_elements = !state.unreadable_attachments()?.is_empty();
        let mark = state.mark();
        let mut outcome = self.write_tables(&cluster, &instances, &mark, keeps_elements);
        if keeps_elements && outcome.as_ref().is_err_and(|error| !is_missing(error)) {
            // One of them is in the way of somebody who is known.
            outcome = self.write_tables(&cluster, &instances, &mark, false);
        }
        match outcome {
            Err(error) if is_missing(&error) => {
                // What bridges have is theirs alone.
                let is_new = self.is_new(Family::Bridge);
                let mut frames = frames_with(&cluster, &instances, is_new);
                match self.nftables.commit(&mut [&mut frames]) {
                    Err(error) if is_missing(&error) => {}
                    outcome => outcome.map_err(Error::kernel("writing the rules of bridges"))?,
                }
                iptables::write(state, &cluster, &[])
            }
            outcome => {
                outcome.map_err(Error::kernel("writing the rules of networks"))?;
                let passed = forward::write(&mut self.nftables, &cluster);
                passed.map_err(Error::kernel("letting instances past the chain FORWARD"))
            }
        }
    }

    fn write_tables(
        &mut self,
        cluster: &Cluster<'_>,
        instances: &[Attachment],
        mark: &Mark,
        keeps_elements: bool,
    ) -> std::result::Result<(), NetlinkError> {
        let mut batches = FAMILIES.map(|family| networks_batch(family, cluster));
        for (batch, family) in batches.iter_mut().zip(FAMILIES) {
            let is_new = self.remove_old_sets(batch, family, cluster)?;
            put_mark(batch, mark);
            fill(batch, instances, is_new || keeps_elements);
        }
        let [v4, v6] = &mut batches;
        let is_new = self.is_new(Family::Bridge);
        let mut frames = frames_with(cluster, instances, is_new || keeps_elements);
        let mut outcome = self.nftables.commit(&mut [v4, v6, &mut frames]);
        if outcome.as_ref().is_err_and(is_missing) {
            outcome = self.nftables.commit(&mut [v4, v6]);
        }
        // A kernel may have no IPv6, and nobody who misses it.
        if outcome.as_ref().is_err_and(is_missing) && !cluster.has_ipv6() {
            outcome = self.nftables.commit(&mut [v4, &mut frames]);
            if outcome.as_ref().is_err_and(is_missing) {
                outcome = self.nftables.commit(&mut [v4]);
            }
        }
        outcome
    }

    /// Whether there is no table of a family yet, so that nothing can be in its sets.
    fn is_new(&mut self, family: Family) -> bool {
        match self.nftables.sets(family, TABLE) {
            Ok(sets) => sets.is_empty(),
            Err(error) => error.raw_os_error() == Some(ENOENT),
        }
    }

    /// Removes sets of other nodes' networks that are no longer needed. Whether there are no sets yet at all.
    fn remove_old_sets(
        &mut self,
        batch: &mut Batch,
        family: Family,
        cluster: &Cluster<'_>,
    ) -> std::result::Result<bool, NetlinkError> {
        let sets = match self.nftables.sets(family, TABLE) {
            // There is no table yet.
            Err(error) if error.raw_os_error() == Some(ENOENT) || is_missing(&error) => Vec::new(),
            sets => sets?,
        };
        let lengths = cluster.lengths(family);
        let is_kept = |name: &str| lengths.iter().any(|length| cluster_set(*length) == name);
        let is_new = sets.is_empty();
        for set in sets {
            if set.name.starts_with(CLUSTER_PREFIX) && !is_kept(&set.name) {
                batch.delete_set(&set.name);
            }
        }
        Ok(is_new)
    }

    /// Whether the tables were made from another state directory. Where the rules are iptables' nobody can tell.
    pub(crate) fn is_others(&mut self, state: &State) -> Result<bool> {
        let mark = state.mark();
        for family in FAMILIES {
            match self.nftables.sets(family, TABLE) {
                Ok(sets) => {
                    let mut marks =
                        sets.iter().filter_map(|set| mark.is_same(&set.name)).peekable();
                    if marks.peek().is_some() && !marks.any(|is_same| is_same) {
                        return Ok(true);
                    }
                }
                // No such table, or no such tables in this kernel.
                Err(error) if error.is_unsupported() || is_missing(&error) => {}
                Err(error) => return Err(Error::kernel("looking whose our tables are")(error)),
            }
        }
        Ok(false)
    }

    /// Adds an instance: its addresses and its published ports, all or none.
    pub(crate) fn publish(&mut self, instance: &Attachment) -> Result<Added> {
        let mut entries = entries(instance);
        let mut outcome = self.commit(&entries, add);
        if outcome.as_ref().is_err_and(is_missing) {
            entries.retain(|entry| entry.family != Family::Bridge);
            outcome = self.commit(&entries, add);
        }
        match outcome {
            Ok(()) => Ok(Added::Done),
            Err(error) if error.raw_os_error() == Some(ENOENT) || is_missing(&error) => {
                Ok(Added::NoTable)
            }
            Err(error) if error.raw_os_error() == Some(ENFILE) => {
                let why = format!(
                    "{instance} is one too many: this node has room for {PORTS_MAX} published ports and {SOURCES_MAX} addresses of each family"
                );
                Err(Error::Invalid { field: "ports", why })
            }
            Err(error) => Err(Error::kernel(format!("publishing {instance}"))(error)),
        }
    }

    /// Takes instances back; what is gone already is no fault.
    pub(crate) fn unpublish(&mut self, state: &State, instances: &[Attachment]) -> Result<()> {
        let entries: Vec<Entry> = instances.iter().flat_map(entries).collect();
        if !self.delete(&entries)? || !self.lacks_ip() {
            return Ok(());
        }
        let (networks, (others, carrier)) = (state.networks()?, overlay::others(state)?);
        iptables::write(state, &Cluster::of(&networks, &others, carrier.as_deref()), instances)
    }

    /// Takes back what nobody has claimed of an instance without a record: its ports, whatever they lead to, and with them its
    /// addresses. Where the rules are iptables' they are made from records anyway.
    pub(crate) fn forget(&mut self, instance: &Attachment, with_addresses: bool) -> Result<()> {
        let is_port = |entry: &Entry| [PORTS, ANY_PORTS].contains(&entry.map);
        let anywhere = [IpAddr::from([0; 4]), IpAddr::from([0; 16])].map(IpInet::new_host);
        let anybody = Attachment { addresses: anywhere.to_vec(), ..instance.clone() };
        let mut all = entries(&anybody);
        all.retain(is_port);
        let own = if with_addresses { entries(instance) } else { Vec::new() };
        all.extend(own.into_iter().filter(|entry| !is_port(entry)));
        self.delete(&all).map(drop)
    }

    /// Whether some of those of IP were gone already.
    fn delete(&mut self, entries: &[Entry]) -> Result<bool> {
        let delete = |batch: &mut Batch, entry: &Entry| batch.delete_element(entry.map, &entry.key);
        let is_done = |error: &NetlinkError| error.raw_os_error() == Some(ENOENT);
        match self.commit(entries, delete) {
            Err(error) if is_done(&error) || is_missing(&error) => {}
            outcome => {
                let done = outcome.map_err(Error::kernel("taking instances' rules back"));
                return done.map(|()| false);
            }
        }
        // Some of them are gone, or some tables: then each for itself.
        let mut is_ip_gone = false;
        for entry in entries {
            match self.commit(std::slice::from_ref(entry), delete) {
                Err(error) if is_done(&error) || is_missing(&error) => {
                    is_ip_gone |= entry.family != Family::Bridge;
                }
                outcome => outcome.map_err(Error::kernel("taking an instance's rules back"))?,
            }
        }
        Ok(is_ip_gone)
    }

    fn commit(
        &mut self,
        entries: &[Entry],
        write: impl Fn(&mut Batch, &Entry),
    ) -> std::result::Result<(), NetlinkError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut batches = PLACES.map(|(family, _)| Batch::new(family, TABLE));
        for (batch, (family, maps)) in batches.iter_mut().zip(PLACES) {
            for map in maps {
                let wanted = |entry: &&Entry| entry.family == family && entry.map == *map;
                entries.iter().filter(wanted).for_each(|entry| write(batch, entry));
            }
        }
        let [v4, v6, frames] = &mut batches;
        self.nftables.commit(&mut [v4, v6, frames])
    }

    /// Removes everything.
    pub(crate) fn remove_all(&mut self, state: &State) -> Result<()> {
        if self.is_others(state)? {
            return Ok(());
        }
        for (family, _) in PLACES {
            let mut batch = Batch::new(family, TABLE);
            batch.delete_table();
            match self.nftables.commit(&mut [&mut batch]) {
                // There is no such table, or a kernel without tables of this family.
                Err(error) if error.is_unsupported() || is_missing(&error) => {}
                outcome => outcome.map_err(Error::kernel("removing our tables"))?,
            }
        }
        if self.lacks_ip() {
            return iptables::remove();
        }
        let removed = forward::remove(&mut self.nftables);
        removed.map_err(Error::kernel("removing our chain from the table filter"))
    }

    /// Whether the rules of these instances are there.
    pub(crate) fn has(&mut self, instances: &[Attachment]) -> Result<bool> {
        let entries: Vec<Entry> = instances.iter().flat_map(entries).collect();
        for (family, maps) in PLACES {
            let there = self.nftables.has_live_table(family, TABLE);
            let there = there.map_err(Error::kernel("listing tables"))?;
            let wanted: Vec<&Entry> = entries.iter().filter(|it| it.family == family).collect();
            if wanted.is_empty() || (!there && family == Family::Bridge && self.lacks(family)) {
                continue;
            }
            if !there && family == Family::Bridge {
                return Ok(false);
            }
            if !there {
                return if self.lacks_ip() { iptables::has(instances) } else { Ok(false) };
            }
            for map in maps {
                let wanted: Vec<_> = wanted.iter().filter(|entry| entry.map == *map).collect();
                if !wanted.is_empty() && !self.has_elements(family, map, &wanted)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether the kernel has no tables for IP.
    fn lacks_ip(&mut self) -> bool {
        self.lacks(Family::Ip)
    }

    fn lacks(&mut self, family: Family) -> bool {
        // A transaction that cannot succeed, and so changes nothing: what matters is why.
        let mut batch = Batch::new(family, TABLE);
        batch.add_table();
        batch.delete_chain(NOBODYS_CHAIN);
        self.nftables.commit(&mut [&mut batch]).is_err_and(|error| is_missing(&error))
    }

    fn has_elements(&mut self, family: Family, map: &str, wanted: &[&&Entry]) -> Result<bool> {
        let mut there = BTreeMap::new();
        let read = self.nftables.elements(family, TABLE, map, |element| match element {
            Some(it) => _ = there.insert(it.key.to_vec(), it.value.map(<[u8]>::to_vec)),
            None => there.clear(),
        });
        match read {
            // A table of an earlier release does not have it.
            Err(error) if error.raw_os_error() == Some(ENOENT) => return Ok(false),
            read => read.map_err(Error::kernel("listing our elements"))?,
        }
        Ok(wanted.iter().all(|entry| there.get(&entry.key) == Some(&entry.value)))
    }
}

/// The kernel has no tables of a family.
fn is_missing(error: &NetlinkError) -> bool {
    error.raw_os_error().is_some_and(|number| MISSING.contains(&number))
}

fn frames_with(cluster: &Cluster<'_>, instances: &[Attachment], keeps: bool) -> Batch {
    let mut batch = frames_batch(cluster.networks);
    fill(&mut batch, instances, keeps);
    batch
}

/// Has a table's maps hold the elements of these instances, and no others unless those are kept. To empty a map the kernel walks
/// all of its room, so one that is new is left alone.
fn fill(batch: &mut Batch, instances: &[Attachment], keeps: bool) {
    let family = batch.family();
    for map in PLACES.iter().filter(|(of, _)| *of == family).flat_map(|(_, maps)| *maps) {
        if !keeps {
            batch.flush_set(map);
        }
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

/// The table says from which state directory it was made.
fn put_mark(batch: &mut Batch, mark: &Mark) {
    batch.add_set(&SetSpec {
        name: &mark.name(),
        key: &[DataType::Mark],
        values: None,
        verdicts: false,
        size: 1,
        dynamic_timeout_ms: None,
    });
}

fn add(batch: &mut Batch, entry: &Entry) {
    let data = entry.value.as_deref().map_or(ElementData::None, ElementData::Value);
    batch.add_element(entry.map, &Element::new(&entry.key, data));
}
