//! Making and removing the bridges of networks, with what the node needs around them.

mod overlaps;
mod settings;

use std::collections::HashSet;

use telaio_netlink::NetlinkError;
use telaio_netlink::links::Link;
use telaio_netlink::rtnl::{Bridge, BridgeVlan, Request, Rtnetlink, SetLink, Which};

use crate::attach;
use crate::error::{Error, Result};
use crate::ipam;
use crate::names;
use crate::network::{GROUP_FIRST, Mode, NETWORKS_MAX, Network};
use crate::rules::Rules;
use crate::state::{Host, Lock, State};

pub(crate) use overlaps::{overlaps, refuse};
pub(crate) use settings::{Before, restore, set};

pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENODEV: i32 = 19;
pub(crate) const EOPNOTSUPP: i32 = 95;

/// The longest name of a link.
const LINK_NAME_LEN_MAX: usize = 15;

/// The network as it is on record, made or changed if it is not as wanted. `wanted.group` and `is_adopted` are
/// not the caller's to say. Gives the shared lock under which it stays so.
pub(crate) fn ensure(state: &State, wanted: &Network) -> Result<(Network, Lock)> {
    let lock = state.lock_shared()?;
    if let Some(network) = state.network(&wanted.name)?.filter(|it| is_as_wanted(it, wanted)) {
        return Ok((network, lock));
    }
    drop(lock);
    {
        let _lock = state.lock_exclusive()?;
        let existing = state.network(&wanted.name)?;
        // A node's network is as the node wants it, whoever joins.
        let of_node = overlaps::of_node(state, wanted)?;
        let wanted = of_node.as_ref().unwrap_or(wanted);
        // Somebody may have been quicker.
        if !existing.is_some_and(|it| is_as_wanted(&it, wanted)) {
            make(state, wanted)?;
        }
    }
    let lock = state.lock_shared()?;
    let network = state.network(&wanted.name)?.ok_or_else(|| Error::Unknown {
        kind: "network",
        name: wanted.name.clone(),
        hint: "somebody has just removed it; try again",
    })?;
    Ok((network, lock))
}

fn is_as_wanted(network: &Network, wanted: &Network) -> bool {
    let ours = Network {
        is_made: wanted.is_made,
        group: wanted.group,
        is_adopted: wanted.is_adopted,
        bridge_mac: wanted.bridge_mac.clone(),
        joined: wanted.joined.clone(),
        ..network.clone()
    };
    network.is_made && ours == *wanted
}

/// Whether anybody has an address of a network.
pub(crate) fn is_used(state: &State, name: &str) -> Result<bool> {
    Ok(!ipam::claims(state, name)?.is_empty())
}

/// The networks that somebody has an address of.
pub(crate) fn in_use(state: &State) -> Result<Vec<Network>> {
    let mut found = Vec::new();
    for network in state.networks()? {
        if is_used(state, &network.name)? {
            found.push(network);
        }
    }
    Ok(found)
}

/// Makes a network with its rules, or makes it as wanted. Needs the exclusive lock.
pub(crate) fn make(state: &State, wanted: &Network) -> Result<()> {
    make_with(state, wanted, true)
}

/// The same, but for the rules: who makes many networks writes them once.
pub(crate) fn make_links(state: &State, wanted: &Network) -> Result<()> {
    make_with(state, wanted, false)
}

fn make_with(state: &State, wanted: &Network, with_rules: bool) -> Result<()> {
    overlaps::check(wanted)?;
    if Rules::open()?.is_others(state)? {
        let why = "another state directory has instances and rules in this network namespace; use that one (`stateDir`, `--state-dir`), or end it with \
                   `telaio cleanup --state-dir` first"
            .to_owned();
        return Err(Error::Invalid { field: "stateDir", why });
    }
    overlaps::leave_old_bridge(state, wanted)?;
    let existing = state.network(&wanted.name)?;
    overlaps::make_room(state, wanted)?;
    let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
    let bridge = find_bridge(&mut kernel, wanted)?;
    let mut network = wanted.clone();
    // Networks that share a bridge share its mark.
    let sharing = state.networks()?.into_iter().find(|it| it.bridge == network.bridge);
    network.group = match sharing.as_ref().or(existing.as_ref()) {
        Some(existing) => existing.group,
        None => free_group(state, &mut kernel)?,
    };
    network.is_adopted = match &sharing {
        Some(sharing) => sharing.is_adopted,
        None => bridge.is_some(),
    };
    network.bridge_mac = match bridge.as_ref().and_then(|bridge| bridge.mac) {
        Some(mac) => mac.to_string(),
        None => names::mac(&["bridge", &network.name, &network.bridge]).to_string(),
    };
    network.joined = existing.as_ref().map(|it| it.joined.clone()).unwrap_or_default();
    let is_new = existing.as_ref() != Some(&Network { is_made: true, ..network.clone() });
    if is_new {
        network.is_made = false;
        state.save_network(&network)?;
    }
    let made = set_up(state, &mut kernel, &network, bridge.as_ref());
    let made = match made {
        Ok(()) if with_rules || is_new => write_rules(state, &state.networks()?),
        made => made,
    };
    if made.is_ok() && is_new {
        network.is_made = true;
        state.save_network(&network)?;
    }
    if made.is_err() && existing.is_none() {
        // What is left of it goes with the record; why it failed is what the caller has to know.
        let _ = remove_with(state, &mut kernel, &network);
    }
    made
}

/// Makes the links and settings of a network as they should be. Needs the exclusive lock.
fn set_up(
    state: &State,
    kernel: &mut Rtnetlink,
    network: &Network,
    existing: Option<&Link>,
) -> Result<()> {
    let doing = || Error::kernel(format!("setting up bridge {}", network.bridge));
    let name = network.bridge.as_str();
    if existing.is_none() {
        // The same whenever the bridge is made, so that instances need not learn it anew.
        let mac = network.bridge_mac.parse().ok();
        // Its length of packets is set below: only then the kernel does not change it with the ports.
        let bridge = Bridge { name, mac, mtu: None, group: network.group, vlan_filtering: false };
        kernel.all([Request::Bridge(bridge)]).map_err(doing())?;
    }
    if let Some(bridge) = existing.filter(|_| network.is_adopted) {
        settings::note_bridge(state, network, bridge)?;
        settings::keep_mac(state, kernel, network)?;
    }
    let set = SetLink {
        group: Some(network.group),
        mtu: network.mtu,
        promiscuous: network.promiscuous.then_some(true),
        ..SetLink::up(Which::Name(name))
    };
    kernel.all([Request::Set(set)]).map_err(doing())?;
    let link = kernel.link(name).map_err(doing())?.map(|link| link.index);
    let link = link.ok_or_else(|| Error::Unknown {
        kind: "bridge",
        name: name.to_owned(),
        hint: "somebody has just removed it; try again",
    })?;
    if let Some(vlan) = network.vlan {
        let own = BridgeVlan { link, vlan, is_bridge: true };
        // Where another network has the bridge, too, the node is in that one's.
        let is_shared =
            state.networks()?.iter().any(|it| it.bridge == *name && it.name != network.name);
        let is_own = network.mode == Mode::Routed || !is_shared;
        let own = is_own.then_some(Request::AddVlan(own));
        let filter = Request::VlanFiltering(Which::Name(name), true);
        kernel.all([filter].into_iter().chain(own)).map_err(no_vlans(name))?;
    }
    if network.mode == Mode::Routed {
        settings::addresses(state, kernel, network, link)?;
        settings::settings(state, network)?;
    }
    Ok(())
}

/// For `map_err`: a bridge refused a virtual network.
pub(crate) fn no_vlans(bridge: &str) -> impl FnOnce(NetlinkError) -> Error {
    let what = format!("giving bridge {bridge} a virtual network");
    move |error| {
        if error.raw_os_error() != Some(EOPNOTSUPP) {
            return Error::kernel(what)(error);
        }
        let why = "this kernel's bridges have no virtual networks (CONFIG_BRIDGE_VLAN_FILTERING); use a bridge for each";
        Error::Unsupported { field: "vlan", why: why.to_owned() }
    }
}

/// Writes the rules of these networks.
pub(crate) fn write_rules(state: &State, networks: &[Network]) -> Result<()> {
    Rules::open()?.write(state, networks)
}

/// A group that no network has, and no link. Needs the exclusive lock.
fn free_group(state: &State, kernel: &mut Rtnetlink) -> Result<u32> {
    let mut taken: HashSet<u32> = state.networks()?.iter().map(|network| network.group).collect();
    // A record that cannot be read does not say its group, but its links do.
    let links = kernel.links().map_err(Error::kernel("listing links"))?;
    taken.extend(links.iter().map(|link| link.group));
    let free = (GROUP_FIRST..GROUP_FIRST + NETWORKS_MAX).find(|group| !taken.contains(group));
    free.ok_or_else(|| Error::Invalid {
        field: "network",
        why: format!("this node has {NETWORKS_MAX} networks already; remove one"),
    })
}

impl Host {
    /// Lets instances of two networks of this machine reach each other, or no longer. Records end with the machine's run:
    /// after a reboot it is to be said again.
    ///
    /// ```
    /// # let _machine = telaio_testkit::machine::become_one().unwrap();
    /// # use cidr::Ipv4Inet;
    /// # use telaio_pod_network::Host;
    /// # use telaio_pod_network::node::{SetupNodeRequest, setup_node};
    /// for (name, ip) in [("blue", "10.0.0.1/24"), ("green", "10.0.1.1/24")] {
    ///     let ip: Ipv4Inet = ip.parse().unwrap();
    ///     setup_node(SetupNodeRequest::new(name, ip, Vec::new())).unwrap();
    /// }
    /// Host::default().join_networks("blue", "green", true).unwrap();
    /// assert!(Host::default().join_networks("blue", "red", true).is_err());
    /// ```
    pub fn join_networks(&self, one: &str, other: &str, are_joined: bool) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        for (name, of) in [(one, other), (other, one)] {
            let mut network = state.network(name)?.ok_or_else(|| Error::Unknown {
                kind: "network",
                name: name.to_owned(),
                hint: "make both first",
            })?;
            network.joined.retain(|it| it != of);
            if are_joined && name == one {
                network.joined.push(of.to_owned());
            }
            state.save_network(&network)?;
        }
        write_rules(&state, &state.networks()?)
    }

    /// Removes a network with all that hangs on it; that there is none is no fault.
    pub fn remove_network(&self, name: &str) -> Result<()> {
        let state = self.state()?;
        let _lock = state.lock_exclusive()?;
        remove(&state, name)
    }
}

/// Removes a network with all that hangs on it. Needs the exclusive lock.
pub(crate) fn remove(state: &State, name: &str) -> Result<()> {
    let Some(network) = state.network(name)? else { return Ok(()) };
    let here = |record: &Option<crate::attachment::Attachment>| {
        record.as_ref().is_none_or(|record| record.network == name)
    };
    let mut records = state.attachments()?;
    records.retain(|(_, record)| here(record));
    attach::detach_many(state, records)?;
    let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
    remove_with(state, &mut kernel, &network)
}

fn remove_with(state: &State, kernel: &mut Rtnetlink, network: &Network) -> Result<()> {
    let mut errors = Vec::new();
    let mut others = state.networks()?;
    others.retain(|other| other.name != network.name);
    if others.iter().any(|other| other.bridge == network.bridge) {
        // It is theirs as well.
    } else if network.is_adopted {
        errors.extend(settings::give_back(state, kernel, network).err());
    } else {
        let delete = [Request::DeleteLink(Which::Name(&network.bridge))];
        let what = format!("removing bridge {}", network.bridge);
        errors.extend(kernel.all_but(&[ENODEV], delete).map_err(Error::kernel(what)).err());
        errors.extend(settings::forget_bridge(state, &network.bridge).err());
    }
    // Others' interfaces have published ports of ours.
    let is_last = others.is_empty() && !attach::recorded(state)?.iter().any(|it| it.is_chained);
    let rules = if is_last {
        Rules::open().and_then(|mut rules| rules.remove_all(state))
    } else {
        write_rules(state, &others)
    };
    errors.extend(rules.err());
    if is_last {
        errors.extend(settings::restore(state).err());
    }
    if errors.is_empty() {
        return state.remove_network(&network.name);
    }
    Error::all(errors)
}

/// The bridge of this name, if there is one; refused if it is something else.
fn find_bridge(kernel: &mut Rtnetlink, network: &Network) -> Result<Option<Link>> {
    let what = || format!("looking for bridge {}", network.bridge);
    let link = kernel.link(&network.bridge).map_err(Error::kernel(what()))?;
    match link {
        Some(link) if link.kind.as_deref() != Some("bridge") => Err(Error::ForeignLink {
            name: network.bridge.clone(),
            what: link.kind.map_or("hardware".to_owned(), |kind| format!("a {kind}")),
        }),
        link => Ok(link),
    }
}
