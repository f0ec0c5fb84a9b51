//! The kernel's settings, and what of a bridge that was there before us is ours.
//!
//! What is changed of the machine and of bridges that are not ours is on record before it is changed, below the boot's
//! directory: a reboot puts settings back by itself. So [`restore`] and [`give_back`] know what was.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;

use cidr::IpInet;
use serde::{Deserialize, Serialize};
use telaio_netlink::addresses::Addresses;
use telaio_netlink::links::{Link, LinkIndex};
use telaio_netlink::rtnl::{Address, BridgeVlan, Request, Rtnetlink, SetLink, Which};

use super::{EEXIST, ENODEV};
use crate::error::{Error, Result};
use crate::network::{Mode, Network};
use crate::state::State;

const EADDRNOTAVAIL: i32 = 99;
const ENOENT: i32 = 2;
const EOPNOTSUPP: i32 = 95;

/// What was before us.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Before {
    /// Settings of the machine and of bridges that are not ours: what they were, and what we made of them.
    #[serde(default)]
    settings: BTreeMap<String, (String, String)>,
    /// Bridges with addresses of ours.
    #[serde(default)]
    bridges: BTreeMap<String, OnBridge>,
}

/// What of a bridge is ours.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OnBridge {
    /// Addresses that we have put there.
    #[serde(default)]
    addresses: Vec<IpInet>,
    /// It took all frames because of us only.
    #[serde(default)]
    was_picky: bool,
    /// It told virtual networks apart because of us only.
    #[serde(default)]
    was_plain: bool,
    /// The hardware address that it was told to keep.
    #[serde(default)]
    mac: Option<String>,
}

/// What the kernel has to be told so that it carries packets of a network on.
pub(super) fn settings(state: &State, network: &Network) -> Result<()> {
    let has = |is_ipv4: bool| network.subnets.iter().any(|it| it.cidr.is_ipv4() == is_ipv4);
    let bridge = &network.bridge;
    // Those of a bridge of ours go with it.
    let set_own = |name: String, value: &str| {
        if network.is_adopted { set_recorded(state, &name, value) } else { set(&name, value) }
    };
    if has(true) {
        set_recorded(state, "ipv4/ip_forward", "1")?;
        // Published ports answer on localhost, too; a rule keeps everybody else away from it.
        set_own(format!("ipv4/conf/{bridge}/route_localnet"), "1")?;
        set_own(format!("ipv4/conf/{bridge}/send_redirects"), "0")?;
        if network.is_adopted {
            // Containers that somebody else has hung on it ask each other who has an address, and ports of ours do not hear
            // it: the node answers, and carries on.
            set_own(format!("ipv4/conf/{bridge}/proxy_arp_pvlan"), "1")?;
        }
    }
    if has(false) {
        keep_router_advertisements(state)?;
        set_recorded(state, FORWARDING_V6, "1")?;
        set_own(format!("ipv6/conf/{bridge}/accept_ra"), "0")?;
    }
    Ok(())
}

const FORWARDING_V6: &str = "ipv6/conf/all/forwarding";

/// A machine that forwards no longer listens to routers, and so loses its default route, unless told to.
fn keep_router_advertisements(state: &State) -> Result<()> {
    const DIR: &str = "/proc/sys/net/ipv6/conf";
    if get(FORWARDING_V6).is_none_or(|value| value == "1") {
        return Ok(());
    }
    for entry in crate::state::read_dir(DIR.as_ref())? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = format!("ipv6/conf/{name}/accept_ra");
        if get(&name).is_some_and(|value| value == "1") {
            // A link that has just gone needs none.
            let _ = set_recorded(state, &name, "2");
        }
    }
    Ok(())
}

fn path(name: &str) -> String {
    format!("/proc/sys/net/{name}")
}

fn get(name: &str) -> Option<String> {
    fs::read_to_string(path(name)).ok().map(|value| value.trim().to_owned())
}

/// Sets a setting below `net` that is not so yet. One that does not exist, because the kernel has no such family, is
/// none that could be missed.
pub(crate) fn set(name: &str, value: &str) -> Result<()> {
    let path = path(name);
    match fs::read_to_string(&path) {
        Ok(there) if there.trim() == value => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        _ => {}
    }
    fs::write(&path, value).map_err(Error::io("cannot set", path))
}

/// The same for one that is not ours: what it was is on record first. Needs the exclusive lock.
fn set_recorded(state: &State, name: &str, value: &str) -> Result<()> {
    let Some(was) = get(name).filter(|was| was != value) else { return Ok(()) };
    let mut before = state.before();
    // What it was at first counts.
    let was = before.settings.get(name).map_or(was, |(first, _)| first.clone());
    before.settings.insert(name.to_owned(), (was, value.to_owned()));
    state.save_before(&before)?;
    set(name, value)
}

/// Puts the machine's settings back, but for those that somebody else has changed since. Needs the exclusive lock.
pub(crate) fn restore(state: &State) -> Result<()> {
    let mut before = state.before();
    let mut errors = Vec::new();
    let settings = std::mem::take(&mut before.settings);
    // Who forwards decides what of the others counts.
    let (first, then): (Vec<_>, Vec<_>) =
        settings.into_iter().partition(|(name, _)| name.ends_with("forwarding"));
    for (name, (was, made)) in first.into_iter().chain(then) {
        errors.extend(put_back(&name, &was, &made).err());
    }
    errors.extend(state.save_before(&before).err());
    Error::all(errors)
}

fn put_back(name: &str, was: &str, made: &str) -> Result<()> {
    if get(name).is_some_and(|now| now == made) { set(name, was) } else { Ok(()) }
}

/// Gives a bridge the node's own addresses in its networks, and takes away those that are no longer.
pub(super) fn addresses(
    state: &State,
    kernel: &mut Rtnetlink,
    network: &Network,
    link: LinkIndex,
) -> Result<()> {
    let doing = || Error::kernel(format!("giving bridge {} its addresses", network.bridge));
    let wanted = gateways(network);
    let sharing = state.networks()?;
    let sharing = sharing.iter().filter(|it| {
        it.bridge == network.bridge && it.name != network.name && it.mode == Mode::Routed
    });
    let kept: Vec<IpInet> = sharing.flat_map(gateways).chain(wanted.iter().copied()).collect();
    let there = Addresses::open().and_then(|mut it| it.list()).map_err(doing())?;
    let mut before = state.before();
    let ours = before.bridges.entry(network.bridge.clone()).or_default();
    let was = ours.clone();
    let stale: Vec<IpInet> =
        ours.addresses.iter().filter(|it| !kept.contains(it)).copied().collect();
    // One that is there already is somebody else's, unless we know better.
    let is_ours = |ip: IpAddr| was.addresses.iter().any(|it| it.address() == ip);
    let is_there = |ip: IpAddr| there.iter().any(|it| it.link == link && it.ip == ip);
    let is_new = |it: &IpInet| {
        !was.addresses.contains(it) && (!is_there(it.address()) || is_ours(it.address()))
    };
    let new: Vec<IpInet> = wanted.iter().copied().filter(is_new).collect();
    ours.addresses.extend(new);
    if *ours != was {
        state.save_before(&before)?;
    }
    // First: with the first address of a network the kernel takes the others of it away.
    let delete = stale.iter().map(|it| Request::DeleteAddress(address(link, it)));
    kernel.all_but(&[EADDRNOTAVAIL], delete).map_err(doing())?;
    let add = wanted.iter().map(|it| Request::AddAddress(address(link, it)));
    kernel.all_but(&[EEXIST], add).map_err(doing())?;
    if stale.is_empty() {
        return Ok(());
    }
    if let Some(ours) = before.bridges.get_mut(&network.bridge) {
        ours.addresses.retain(|it| !stale.contains(it));
    }
    state.save_before(&before)
}

/// The node's own addresses in a network.
fn gateways(network: &Network) -> Vec<IpInet> {
    network.subnets.iter().filter_map(crate::network::Subnet::gateway_inet).collect()
}

fn address(link: LinkIndex, inet: &IpInet) -> Address {
    let (ip, prefix_len) = (inet.address(), inet.network_length());
    Address { link, ip, prefix_len, no_prefix_route: false }
}

/// Notes what a bridge that was there before us is like, before it is changed.
pub(super) fn note_bridge(state: &State, network: &Network, bridge: &Link) -> Result<()> {
    let mut before = state.before();
    let ours = before.bridges.entry(network.bridge.clone()).or_default();
    let was = ours.clone();
    ours.was_picky |= network.promiscuous && !bridge.is_promiscuous();
    ours.was_plain |= network.vlan.is_some() && !bridge.filters_vlans;
    if *ours == was { Ok(()) } else { state.save_before(&before) }
}

/// Has a bridge that was there before keep the hardware address that it has. One that nobody has given an address takes its least
/// port's, and changes it with the ports: instances would speak to an address that is no longer there, and rules let nothing pass
/// to the new one. Once only: whenever a link is given an address, the kernel forgets who its neighbours are.
pub(super) fn keep_mac(state: &State, kernel: &mut Rtnetlink, network: &Network) -> Result<()> {
    let mut before = state.before();
    let ours = before.bridges.entry(network.bridge.clone()).or_default();
    if ours.mac.as_ref() == Some(&network.bridge_mac) {
        return Ok(());
    }
    ours.mac = Some(network.bridge_mac.clone());
    let mac = network.bridge_mac.parse().ok();
    let set = SetLink { mac, ..SetLink::new(Which::Name(&network.bridge)) };
    let doing = || Error::kernel(format!("giving bridge {} its own address", network.bridge));
    kernel.all([Request::Set(set)]).map_err(doing())?;
    state.save_before(&before)
}

/// A bridge that was there before keeps everything but what is ours. Needs the exclusive lock.
pub(super) fn give_back(state: &State, kernel: &mut Rtnetlink, network: &Network) -> Result<()> {
    let doing = || Error::kernel(format!("giving bridge {} back", network.bridge));
    let mut before = state.before();
    let ours = before.bridges.get(&network.bridge).cloned().unwrap_or_default();
    if let Some(link) = kernel.link(&network.bridge).map_err(doing())? {
        let which = Which::Index(link.index);
        let set = SetLink {
            group: Some(0),
            promiscuous: ours.was_picky.then_some(false),
            ..SetLink::new(which)
        };
        let addresses = ours.addresses.iter();
        let mut steps: Vec<_> =
            addresses.map(|it| Request::DeleteAddress(address(link.index, it))).collect();
        if let Some(vlan) = network.vlan.filter(|vlan| ours.was_plain && *vlan != 1) {
            steps.push(Request::DeleteVlan(BridgeVlan { link: link.index, vlan, is_bridge: true }));
        }
        if ours.was_plain {
            steps.push(Request::VlanFiltering(which, false));
        }
        steps.push(Request::Set(set));
        let moot = [EADDRNOTAVAIL, ENODEV, ENOENT, EOPNOTSUPP];
        kernel.all_but(&moot, steps).map_err(doing())?;
    }
    let of_bridge = |name: &str| name.split('/').nth(2) == Some(network.bridge.as_str());
    let settings = before.settings.clone().into_iter().filter(|(name, _)| of_bridge(name));
    let errors = settings.filter_map(|(name, (was, made))| put_back(&name, &was, &made).err());
    let errors: Vec<Error> = errors.collect();
    before.settings.retain(|name, _| !of_bridge(name));
    before.bridges.remove(&network.bridge);
    state.save_before(&before)?;
    Error::all(errors)
}

/// A bridge of ours has gone, and all of it.
pub(super) fn forget_bridge(state: &State, bridge: &str) -> Result<()> {
    let mut before = state.before();
    match before.bridges.remove(bridge) {
        Some(_) => state.save_before(&before),
        None => Ok(()),
    }
}
