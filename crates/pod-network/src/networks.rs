//! Making and removing the bridges of networks, with what the node needs around them.

use std::fs;
use std::io::ErrorKind;

use cidr::IpCidr;
use telaio_netlink::NetlinkError;
use telaio_netlink::links::{Link, LinkIndex};
use telaio_netlink::rtnl::{Address, Bridge, BridgeVlan, Request, Rtnetlink, SetLink, Which};

use crate::attach;
use crate::error::{Error, Result};
use crate::ipam;
use crate::names;
use crate::network::{Mode, Network};
use crate::rules::Rules;
use crate::state::{Host, Lock, State};

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
        // Somebody may have been quicker.
        if !state.network(&wanted.name)?.is_some_and(|it| is_as_wanted(&it, wanted)) {
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
        reaches: if wanted.reaches.is_empty() { Vec::new() } else { network.reaches.clone() },
        ..network.clone()
    };
    network.is_made && ours == *wanted
}

/// Makes a network, or makes it as wanted. Needs the exclusive lock.
pub(crate) fn make(state: &State, wanted: &Network) -> Result<()> {
    check(wanted)?;
    let existing = state.network(&wanted.name)?;
    refuse_overlaps(state, wanted)?;
    let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
    let bridge = find_bridge(&mut kernel, wanted)?;
    let mut network = wanted.clone();
    // Networks that share a bridge share its mark.
    let sharing = state.networks()?.into_iter().find(|it| it.bridge == network.bridge);
    network.group = match sharing.as_ref().or(existing.as_ref()) {
        Some(existing) => existing.group,
        None => state.free_group()?,
    };
    network.is_adopted = match &sharing {
        Some(sharing) => sharing.is_adopted,
        None => bridge.is_some(),
    };
    network.bridge_mac = match bridge.as_ref().and_then(|bridge| bridge.mac) {
        Some(mac) => mac.to_string(),
        None => names::mac(&["bridge", &network.name, &network.bridge]).to_string(),
    };
    if network.reaches.is_empty() {
        network.reaches = existing.as_ref().map(|it| it.reaches.clone()).unwrap_or_default();
    }
    let is_new = existing.as_ref() != Some(&Network { is_made: true, ..network.clone() });
    if is_new {
        network.is_made = false;
        state.save_network(&network)?;
    }
    let made = set_up(state, &mut kernel, &network, bridge.as_ref());
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

/// Makes the links, settings and rules of a network as they should be. Needs the exclusive lock.
pub(crate) fn set_up(
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
        let filter = Request::VlanFiltering(Which::Name(name));
        kernel.all([filter].into_iter().chain(own)).map_err(no_vlans(name))?;
    }
    if network.mode == Mode::Routed {
        kernel.all_but(&[EEXIST], gateways(network, link)).map_err(doing())?;
        settings(network)?;
    }
    write_rules(state, &state.networks()?)
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

/// The node's own addresses in a network.
fn gateways(network: &Network, link: LinkIndex) -> impl Iterator<Item = Request<'static>> + '_ {
    network.subnets.iter().filter_map(move |subnet| {
        let gateway = subnet.gateway_inet()?;
        Some(Request::AddAddress(Address {
            link,
            ip: gateway.address(),
            prefix_len: gateway.network_length(),
            no_prefix_route: false,
        }))
    })
}

/// What the kernel has to be told so that it carries packets of a network on.
fn settings(network: &Network) -> Result<()> {
    let has = |is_ipv4: bool| network.subnets.iter().any(|it| it.cidr.is_ipv4() == is_ipv4);
    let bridge = &network.bridge;
    if has(true) {
        set("ipv4/ip_forward", "1")?;
        // Published ports answer on localhost, too; a rule keeps everybody else away from it.
        set(&format!("ipv4/conf/{bridge}/route_localnet"), "1")?;
        set(&format!("ipv4/conf/{bridge}/send_redirects"), "0")?;
    }
    if has(false) {
        keep_router_advertisements()?;
        set("ipv6/conf/all/forwarding", "1")?;
        set(&format!("ipv6/conf/{bridge}/accept_ra"), "0")?;
    }
    Ok(())
}

/// A machine that forwards no longer listens to routers, and so loses its default route, unless told to.
fn keep_router_advertisements() -> Result<()> {
    const DIR: &str = "/proc/sys/net/ipv6/conf";
    let forwards = fs::read_to_string(format!("{DIR}/all/forwarding"));
    if forwards.is_ok_and(|value| value.trim() == "1") {
        return Ok(());
    }
    for entry in crate::state::read_dir(DIR.as_ref())? {
        let path = entry.path().join("accept_ra");
        if fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1") {
            // A link that has just gone needs none.
            let _ = fs::write(&path, "2");
        }
    }
    Ok(())
}

/// Sets a setting below `net` that is not so yet. One that does not exist, because the kernel has no such family, is
/// none that could be missed.
pub(crate) fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    match fs::read_to_string(&path) {
        Ok(there) if there.trim() == value => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        _ => {}
    }
    fs::write(&path, value).map_err(Error::io("cannot set", path))
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
            network.reaches.retain(|it| it != of);
            if are_joined && name == one {
                network.reaches.push(of.to_owned());
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
        errors.extend(give_back(kernel, network).err());
    } else {
        let delete = [Request::DeleteLink(Which::Name(&network.bridge))];
        let what = format!("removing bridge {}", network.bridge);
        errors.extend(kernel.all_but(&[ENODEV], delete).map_err(Error::kernel(what)).err());
    }
    // Others' interfaces have published ports of ours.
    let is_last = others.is_empty() && !attach::recorded(state)?.iter().any(|it| it.is_chained);
    let rules = if is_last {
        Rules::open().and_then(|mut rules| rules.remove_all())
    } else {
        write_rules(state, &others)
    };
    errors.extend(rules.err());
    if errors.is_empty() {
        return state.remove_network(&network.name);
    }
    Error::all(errors)
}

/// A bridge that was there before keeps everything but our mark and our addresses.
fn give_back(kernel: &mut Rtnetlink, network: &Network) -> Result<()> {
    let doing = || Error::kernel(format!("giving bridge {} back", network.bridge));
    let Some(link) = kernel.link(&network.bridge).map_err(doing())? else { return Ok(()) };
    let which = Which::Index(link.index);
    let set = SetLink { group: Some(0), ..SetLink::new(which) };
    kernel.all([Request::Set(set)]).map_err(doing())
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

fn check(network: &Network) -> Result<()> {
    let invalid = |field, why: String| Err(Error::Invalid { field, why });
    let name = &network.bridge;
    let is_bad = |c: char| c == '/' || c.is_whitespace() || c.is_control() || !c.is_ascii();
    if name.is_empty()
        || name.len() > LINK_NAME_LEN_MAX
        || name.contains(is_bad)
        || name == "."
        || name == ".."
    {
        return invalid(
            "bridge",
            format!("{name:?} is no name for a link; use up to 15 letters and digits"),
        );
    }
    if network.name.is_empty() {
        return invalid("name", "a network needs a name".to_owned());
    }
    for subnet in &network.subnets {
        if let Some(gateway) = subnet.gateway
            && !subnet.cidr.contains(&gateway)
        {
            let subnets = subnet.cidr.to_string();
            return Err(Error::OutsideRange { address: gateway, subnets });
        }
    }
    Ok(())
}

/// Networks of one node share nothing. One that nobody uses any more makes way.
fn refuse_overlaps(state: &State, wanted: &Network) -> Result<()> {
    for other in state.networks()? {
        if other.name == wanted.name || other.mode != Mode::Routed || wanted.mode != Mode::Routed {
            continue;
        }
        let shares = other.bridge == wanted.bridge && other.vlan != wanted.vlan;
        if shares && !ipam::claims(state, &other.name)?.is_empty() {
            let why = format!(
                "the node is in one virtual network of bridge {}: that of network {}; use another bridge",
                wanted.bridge, other.name
            );
            return Err(Error::Invalid { field: "vlan", why });
        }
        let overlap = wanted.subnets.iter().find_map(|ours| {
            let theirs = other.subnets.iter().find(|theirs| overlaps(&ours.cidr, &theirs.cidr))?;
            Some((ours.cidr, theirs.cidr))
        });
        let Some((ours, theirs)) = overlap else { continue };
        if ipam::claims(state, &other.name)?.is_empty() && other.bridge == wanted.bridge {
            state.remove_network(&other.name)?;
            continue;
        }
        if ipam::claims(state, &other.name)?.is_empty() {
            remove(state, &other.name)?;
            continue;
        }
        let owner = format!("network {} (bridge {})", other.name, other.bridge);
        return Err(Error::Overlap { wanted: ours, existing: theirs, owner });
    }
    Ok(())
}

/// Whether two networks have an address in common.
pub(crate) fn overlaps(a: &IpCidr, b: &IpCidr) -> bool {
    a.contains(&b.first_address()) || b.contains(&a.first_address())
}
