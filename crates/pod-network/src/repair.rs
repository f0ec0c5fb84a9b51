//! What should be there is, and nothing else of ours.
//!
//! Records say what should be. [`Host::repair`] compares the kernel with them and mends: bridges, rules, ways to other
//! nodes come back after somebody removed them; attachments whose namespace is gone, links without a record and routes that
//! lead nowhere go. [`Host::remove_all`] leaves nothing.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use cidr::IpInet;
use telaio_netlink::netns::{NAMES_DIR, Netns};
use telaio_netlink::rtnl::{Request, Rtnetlink, SetLink, Which};

use crate::attach;
use crate::attachment::Attachment;
use crate::bandwidth::{self, Limited};
use crate::error::{Error, Result};
use crate::names;
use crate::network::{GROUP_FIRST, NETWORKS_MAX};
use crate::node;
use crate::overlay::{self, NodeRecord};
use crate::rules::Rules;
use crate::state::{Holders, Host, Lock, State, remove_file, try_lock_names};
use crate::{ipam, networks};

const ENOENT: i32 = 2;
/// How often, and how far apart, it is looked whether somebody still makes a namespace.
const NAMES_TRIES_MAX: usize = 20;
const NAMES_PAUSE: Duration = Duration::from_millis(10);

/// What was mended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mended {
    /// Attachments whose instance is gone, or whose making was cut short.
    pub attachments: Vec<String>,
    /// Links of ours without a record.
    pub links: Vec<String>,
    /// Addresses whose holder is gone.
    pub addresses: usize,
    /// Routes and entries to nodes that are no longer there.
    pub ways: usize,
    /// Other nodes that cannot be reached, each with what to do.
    pub unreached: Vec<String>,
    /// Instances whose link somebody has removed while their namespace lives, each with what to do.
    pub severed: Vec<String>,
    /// Records of attachments that cannot be read. What they tell of is left as it is, and as long as they are there, so are links
    /// and namespaces that nobody knows.
    pub unreadable: Vec<String>,
}

impl Mended {
    /// Nothing was removed.
    pub fn is_nothing(&self) -> bool {
        let (unreached, unreadable) = (self.unreached.clone(), self.unreadable.clone());
        *self == Self { unreached, unreadable, severed: self.severed.clone(), ..Self::default() }
    }
}

impl Host {
    /// Mends whatever differs from the records, and goes on after errors.
    pub fn repair(&self) -> Result<Mended> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let mut mended = Mended::default();
        let mut errors = Vec::new();
        let mut step = |outcome: Result<()>| errors.extend(outcome.err());
        state.unreadable()?.into_iter().for_each(|error| step(Err(error)));
        step(state.remove_gone());
        step(state.remove_unfinished());
        step(remove_dead(&state, &mut mended));
        step(remove_lost_claims(&state, &mut mended));
        step(remove_stray_links(&state).map(|links| mended.links = links));
        let unreadable = state.unreadable_attachments()?;
        if unreadable.is_empty() {
            step(remove_unknown_namespaces(&state, false));
        }
        mended.unreadable = unreadable.iter().map(ToString::to_string).collect();
        step(restore_networks(&state, &mut mended));
        step(restore_ways(&state, &mut mended));
        step(restore_rules(&state));
        // A record that cannot be read is told once, however many steps need it.
        let mut told = HashSet::new();
        errors.retain(|error| told.insert(error.to_string()));
        Error::all(errors)?;
        Ok(mended)
    }

    /// Removes everything of ours: instances, networks, rules, ways to other nodes, records. Settings of the machine are as
    /// they were before. What a record that cannot be read told of goes by its name.
    pub fn remove_all(&self) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        let mut errors = Vec::new();
        errors.extend(attach::detach_many(&state, state.attachments()?).err());
        for network in state.networks()? {
            errors.extend(networks::remove(&state, &network.name).err());
        }
        let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
        errors.extend(overlay::remove(&mut kernel).err());
        errors.extend(remove_unknown_links(&state).err());
        errors.extend(remove_unknown_bridges(&mut kernel).err());
        errors.extend(remove_unknown_namespaces(&state, true).err());
        errors.extend(Rules::open().and_then(|mut rules| rules.remove_all(&state)).err());
        errors.extend(networks::restore(&state).err());
        if errors.is_empty() {
            return state.remove_all();
        }
        Error::all(errors)
    }
}

/// Bridges of networks whose records cannot be read: those that are called like ours go, others lose our mark.
fn remove_unknown_bridges(kernel: &mut Rtnetlink) -> Result<()> {
    let doing = || Error::kernel("removing bridges of ours");
    let ours = GROUP_FIRST..GROUP_FIRST + NETWORKS_MAX;
    let links = kernel.links().map_err(doing())?;
    let bridges = links.iter().filter(|link| link.kind.as_deref() == Some("bridge"));
    let steps = bridges.filter(|link| ours.contains(&link.group)).map(|link| {
        let which = Which::Index(link.index);
        if names::is_bridge(&link.name) {
            return Request::DeleteLink(which);
        }
        Request::Set(SetLink { group: Some(0), ..SetLink::new(which) })
    });
    kernel.all_but(&[networks::ENODEV], steps).map_err(doing())
}

/// Attachments whose making or taking back was cut short, and those whose namespace is gone.
fn remove_dead(state: &State, mended: &mut Mended) -> Result<()> {
    let mut dead = Vec::new();
    for (key, record) in state.attachments()? {
        let is_dead = match &record {
            Some(record) => {
                // A call that goes on has its record locked.
                !record.is_whole() && state.lock_attachment(&key)?.is_some()
                    || !record.mac.is_empty() && is_dead(record)?
            }
            None => state.lock_attachment(&key)?.is_some(),
        };
        if is_dead {
            let name = record.as_ref().map_or_else(|| key.clone(), ToString::to_string);
            mended.attachments.push(name);
            dead.push((key, record));
        }
    }
    attach::detach_many(state, dead)
}

/// Whether the namespace is gone. That it cannot be opened is not enough: whoever mends may see other files than whoever
/// attaches, as in a container. A pair of links goes with the namespace that one of them is in.
fn is_dead(record: &Attachment) -> Result<bool> {
    if Netns::open_path(Path::new(&record.netns)).is_ok() {
        return Ok(false);
    }
    if record.host_link.is_empty() {
        // Ports for another plugin's interface, of which nothing else is known.
        return Ok(true);
    }
    let doing = || Error::kernel(format!("looking for link {}", record.host_link));
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    Ok(kernel.link(&record.host_link).map_err(doing())?.is_none())
}

fn remove_lost_claims(state: &State, mended: &mut Mended) -> Result<()> {
    let networks = state.networks()?;
    let mut freed = Freed::default();
    let done = free_lost_claims(state, networks.iter().map(|it| it.name.as_str()), &mut freed);
    mended.addresses += freed.addresses;
    done
}

/// Frees addresses of these networks, and ports, whose holder has no record, and lets the node forget where they were. How many
/// addresses and ports were freed is counted also where something fails.
pub(crate) fn free_lost_claims<'a>(
    state: &State,
    networks: impl Iterator<Item = &'a str>,
    freed: &mut Freed,
) -> Result<()> {
    let holders = Holders::read(state)?;
    let (mut lost, mut errors) = (Vec::new(), Vec::new());
    for network in networks {
        for (ip, holder) in ipam::claims(state, network)? {
            if holders.has_address(network, ip, holder.as_ref()) {
                continue;
            }
            match remove_file(&state.addresses_dir(network).join(ip.to_string())) {
                Ok(()) => freed.addresses += 1,
                Err(error) => errors.push(error),
            }
            lost.extend(
                holder.map(|it| Attachment { addresses: vec![IpInet::new_host(ip)], ..it }),
            );
        }
    }
    let ports = crate::ports::remove_orphans(state, &|holder| holders.has(holder));
    errors.extend(ports.map(|ports| freed.ports += ports).err());
    errors.extend(attach::forget_neighbours(state, lost.iter()).err());
    Error::all(errors)
}

/// How much of what was lost is free again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) addresses: usize,
    pub(crate) ports: usize,
}

/// Removes host ends of ours that no record tells of; their names. Needs the exclusive lock. While there is a record that cannot be
/// read, nobody knows of which.
pub(crate) fn remove_stray_links(state: &State) -> Result<Vec<String>> {
    if state.unreadable_attachments()?.is_empty() {
        return remove_unknown_links(state);
    }
    Ok(Vec::new())
}

fn remove_unknown_links(state: &State) -> Result<Vec<String>> {
    if Rules::open()?.is_others(state)? {
        // Whose record of them is elsewhere.
        return Ok(Vec::new());
    }
    let doing = || Error::kernel("listing links");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let links = kernel.links().map_err(doing())?;
    let known: HashSet<String> = state
        .attachments()?
        .into_iter()
        .filter_map(|(_, record)| record.map(|record| record.host_link))
        .collect();
    let is_stray = |name: &str, kind: Option<&str>| match kind {
        Some("veth") => names::is_host_link(name) && !known.contains(name),
        Some("ifb") => bandwidth::is_stale(name, known.iter().map(String::as_str)),
        _ => false,
    };
    let stray: Vec<String> = links
        .into_iter()
        .filter(|link| is_stray(&link.name, link.kind.as_deref()))
        .map(|link| link.name)
        .collect();
    attach::remove_links(stray.iter().map(String::as_str))?;
    Ok(stray)
}

/// Removes namespaces of instances of which there is no record, and in which nothing was made: their maker was killed. Needs
/// the exclusive lock, without which one may be about to get its record. Others, with other records, may see the same names: while
/// any of them makes a namespace, nothing is removed; `must` says that this is to be told.
fn remove_unknown_namespaces(state: &State, must: bool) -> Result<()> {
    if Rules::open()?.is_others(state)? {
        return Ok(());
    }
    let Some(_nobody_makes_one) = wait_for_names(must)? else { return Ok(()) };
    let records = state.attachments()?;
    let records = records.iter().filter_map(|(_, record)| record.as_ref());
    let known: HashSet<&str> = records.filter_map(|record| record.netns_name.as_deref()).collect();
    let mut errors = Vec::new();
    for entry in crate::state::read_dir(Path::new(NAMES_DIR))? {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !names::is_namespace(&name) || known.contains(name.as_str()) {
            continue;
        }
        // Opening it takes away a name that has no namespace.
        let is_empty = match Netns::open_live(&name) {
            Ok(Some(netns)) => has_no_pair(&netns),
            Ok(None) => Ok(false),
            Err(error) => Err(error.into()),
        };
        let remove = |is_empty| if is_empty { attach::remove_netns(&name) } else { Ok(()) };
        let outcome = is_empty.and_then(remove);
        errors.extend(outcome.err());
    }
    Error::all(errors)
}

/// The lock of all who make namespaces, soon or not at all; `None` also where there are none.
fn wait_for_names(must: bool) -> Result<Option<Lock>> {
    for _ in 0..NAMES_TRIES_MAX {
        let lock = try_lock_names()?;
        if lock.is_some() || !Path::new(NAMES_DIR).exists() {
            return Ok(lock);
        }
        std::thread::sleep(NAMES_PAUSE);
    }
    if must { Err(Error::Busy { what: NAMES_DIR.to_owned() }) } else { Ok(None) }
}

/// Whether nothing leads out of a namespace.
fn has_no_pair(netns: &Netns) -> Result<bool> {
    let doing = || Error::kernel(format!("looking into {}", netns.name()));
    let mut kernel = Rtnetlink::open_in(netns)?.map_err(doing())?;
    let links = kernel.links().map_err(doing())?;
    Ok(!links.iter().any(|link| link.kind.as_deref() == Some("veth")))
}

/// Bridges, settings and ports' flags. The rules are written once, after all of them.
fn restore_networks(state: &State, mended: &mut Mended) -> Result<()> {
    let record: NodeRecord = state.node_record().unwrap_or_default();
    let mut errors = Vec::new();
    for node in record.nodes.values() {
        let wanted = node::network_of(node);
        errors.extend(wanted.and_then(|wanted| networks::make_links(state, &wanted)).err());
    }
    for network in state.networks()?.iter().filter(|it| !record.nodes.contains_key(&it.name)) {
        errors.extend(networks::make_links(state, network).err());
    }
    // Others may have left a bridge since it was full.
    state.networks()?.iter().for_each(|network| state.set_full(&network.name, false));
    errors.extend(restore_ports(state).err());
    errors.extend(restore_instances(state, mended).err());
    Error::all(errors)
}

/// Hangs host ends on their bridges again, with the flags that they should have.
fn restore_ports(state: &State) -> Result<()> {
    let doing = || Error::kernel("putting ports back on their bridges");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let links = kernel.links().map_err(doing())?;
    let networks = state.networks()?;
    let records = state.attachments()?;
    let mut requests = Vec::new();
    for record in records.iter().filter_map(|(_, record)| record.as_ref()) {
        let Some(network) = networks.iter().find(|it| it.name == record.network) else { continue };
        let bridge = links.iter().find(|link| link.name == network.bridge).map(|link| link.index);
        if record.is_routed || record.is_chained || bridge.is_none() {
            continue;
        }
        let set = SetLink::up(Which::Name(&record.host_link));
        requests.push(Request::Set(SetLink { master: bridge, ..set }));
        let port = Some(attach::port_of(network));
        requests
            .push(Request::Set(SetLink { port, ..SetLink::new(Which::Name(&record.host_link)) }));
        let index = links.iter().find(|it| it.name == record.host_link).map(|it| it.index);
        requests.extend(index.into_iter().flat_map(|port| attach::vlan_requests(network, port)));
        requests.extend(attach::announcement(network, record, bridge, index));
    }
    kernel.all_but(&[networks::ENODEV, ENOENT], requests).map_err(doing())
}

/// Ways to instances that hang on no bridge, and limits.
fn restore_instances(state: &State, mended: &mut Mended) -> Result<()> {
    let doing = || Error::kernel("looking for the links of instances");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let links = kernel.links().map_err(doing())?;
    let there: HashSet<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let networks = state.networks()?;
    let (mut errors, mut limited) = (Vec::new(), Vec::new());
    for record in state.attachments()?.into_iter().filter_map(|(_, record)| record) {
        if record.mac.is_empty() {
            continue;
        }
        if !there.contains(record.host_link.as_str()) {
            // What is another plugin's is told by that one.
            mended.severed.extend((!record.is_chained).then(|| severed(&record)));
            continue;
        }
        let network = networks.iter().find(|it| it.name == record.network);
        if let Some(network) = network.filter(|_| record.is_routed && !record.is_chained) {
            errors.extend(attach::restore_routed(&mut kernel, &record, network).err());
        }
        limited.extend(record.bandwidth.map(|limits| (record.host_link, limits)));
    }
    if limited.is_empty() {
        return Error::all(errors);
    }
    let mut there = Limited::read()?;
    for (host_link, limits) in limited {
        // Only where they are not as they should be: to set them anew is to lose what waits.
        let restored = there
            .has(&host_link, &limits)
            .and_then(|is_set| if is_set { Ok(()) } else { bandwidth::set(&host_link, &limits) });
        errors.extend(restored.err());
    }
    Error::all(errors)
}

fn severed(record: &Attachment) -> String {
    format!(
        "{record}: its link {} is gone, though its namespace lives; take it off its network and put it there again (CNI's DEL and ADD, or \
         clean_instance and setup_instance)",
        record.host_link
    )
}

fn restore_ways(state: &State, mended: &mut Mended) -> Result<()> {
    let done = node::ways(state, &state.node_record()?)?;
    mended.ways += done.stale;
    mended.unreached.extend(done.problems.iter().map(ToString::to_string));
    Ok(())
}

/// Writes the rules anew, as the records have them.
pub(crate) fn restore_rules(state: &State) -> Result<()> {
    let networks = state.networks()?;
    let mut rules = Rules::open()?;
    let is_needed = !networks.is_empty() || attach::recorded(state)?.iter().any(|it| it.is_chained);
    if is_needed { rules.write(state, &networks) } else { rules.remove_all(state) }
}
