//! The pair of links of an instance, and what is set in its namespace.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;

use cidr::{IpCidr, IpInet};
use telaio_netlink::NetlinkError;
use telaio_netlink::links::LinkIndex;
use telaio_netlink::netns::Netns;
use telaio_netlink::rtnl::{
    Address, BridgePort, BridgeVlan, Mac, Neighbour, OwnAddress, PeerPlace, PortEntry, Request,
    Route, Rtnetlink, SetLink, Veth, Which,
};

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::names;
use crate::network::{Mode, Network, PORT_GROUP};
use crate::networks::{EEXIST, ENODEV, EOPNOTSUPP, no_vlans, set};
use crate::state::State;

/// A bridge has no room for another port.
const EXFULL: i32 = 54;
/// How many ports a bridge gets: what one more costs the kernel grows with them, to twice the set-up of an instance at 1,000.
/// Who comes later is routed to, which costs the same however many there are.
const BRIDGE_PORTS_MAX: u16 = 256;
/// The virtual network that a bridge puts new ports into.
const DEFAULT_VLAN: u16 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
/// How many names are tried for a link. Two that hash to the same one are not expected within a life time.
const TURNS_MAX: u32 = 4;

/// Where an instance sends what is not for its network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routes<'a> {
    pub(crate) is_default: bool,
    pub(crate) more: &'a [(IpCidr, Option<IpAddr>)],
}

/// What was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) bridge_mac: Option<Mac>,
    pub(super) host_mac: Mac,
    pub(super) mtu: u32,
    /// The bridge has all the ports that it should have.
    pub(super) is_bridge_full: bool,
}

/// Whether a namespace has a link of this name.
pub(super) fn exists(netns: &Netns, interface: &str) -> Result<bool> {
    let doing = || Error::kernel(format!("looking for {interface} in {}", netns.name()));
    let mut inside = Rtnetlink::open_in(netns)?.map_err(doing())?;
    Ok(inside.link(interface).map_err(doing())?.is_some())
}

/// Removes the node's end, and the instance's with it; that it is gone is no fault.
pub(super) fn remove(host_link: &str) -> Result<()> {
    let doing = || Error::kernel(format!("removing link {host_link}"));
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    kernel.all_but(&[ENODEV], [Request::DeleteLink(Which::Name(host_link))]).map_err(doing())
}

/// Makes the pair and sets up the instance's end.
pub(super) fn make(
    network: &Network,
    record: &mut Attachment,
    netns: &Netns,
    mac: Mac,
    gateways: &[Option<IpAddr>],
    routes: &Routes<'_>,
) -> Result<Made> {
    let mut kernel = Rtnetlink::open().map_err(Error::kernel("opening netlink"))?;
    let doing =
        || Error::kernel(format!("making the links of {}/{}", record.network, record.container));
    let bridge = kernel.link(&network.bridge).map_err(doing())?;
    let bridge = bridge.ok_or_else(|| Error::Unknown {
        kind: "bridge",
        name: network.bridge.clone(),
        hint: "somebody has removed it; `telaio run --planes pods` or a new network of this name makes it anew",
    })?;
    let (host_mac, is_bridge_full) = pair(&mut kernel, network, record, netns, mac, bridge.index)?;
    let gateway_mac = record.is_routed.then_some(host_mac);
    if record.is_routed {
        route_to(&mut kernel, record, network, Some(mac))?;
    }
    inside(network, record, netns, gateways, gateway_mac, *routes)?;
    let mtu = network.mtu.unwrap_or(bridge.mtu);
    Ok(Made { bridge_mac: bridge.mac, host_mac, mtu, is_bridge_full })
}

/// Makes the pair: on the bridge, or where that is full, routed to. Tells whether it is full now.
fn pair(
    kernel: &mut Rtnetlink,
    network: &Network,
    record: &mut Attachment,
    netns: &Netns,
    mac: Mac,
    bridge: LinkIndex,
) -> Result<(Mac, bool)> {
    let mut turn = 0;
    let mut is_refused = false;
    loop {
        let host_mac = names::mac(&["link", &record.host_link]);
        let error = match try_pair(kernel, network, record, netns, (mac, host_mac), bridge) {
            Ok(is_full) => return Ok((host_mac, is_full || is_refused)),
            Err(error) => error,
        };
        let what = format!("making the links of {}/{}", record.network, record.container);
        match error.raw_os_error() {
            Some(EXFULL) if !record.is_routed && network.mode == Mode::Routed => {
                record.is_routed = true;
                is_refused = true;
            }
            Some(EEXIST) if exists(netns, &record.interface)? => {
                return Err(Error::InterfaceExists {
                    interface: record.interface.clone(),
                    netns: netns.name().to_owned(),
                });
            }
            Some(EEXIST) if turn < TURNS_MAX => {
                turn += 1;
                record.host_link =
                    names::host_link(&record.network, &record.container, &record.interface, turn);
            }
            Some(EOPNOTSUPP) if network.vlan.is_some() => {
                return Err(no_vlans(&network.bridge)(error));
            }
            _ => return Err(Error::kernel(what)(error)),
        }
    }
}

fn try_pair(
    kernel: &mut Rtnetlink,
    network: &Network,
    record: &Attachment,
    netns: &Netns,
    (mac, host_mac): (Mac, Mac),
    bridge: LinkIndex,
) -> Result<bool, NetlinkError> {
    let peer = PeerPlace { name: &record.interface, netns: Some(netns.as_fd()), mac: Some(mac) };
    let name = record.host_link.as_str();
    let veth = Veth {
        name,
        mac: Some(host_mac),
        mtu: network.mtu,
        master: (!record.is_routed).then_some(bridge),
        group: match network.mode {
            Mode::Bridged => 0,
            Mode::Routed if record.is_routed => network.group,
            Mode::Routed => PORT_GROUP,
        },
        is_up: record.is_routed,
        peer,
    };
    let on_bridge = SetLink {
        port: Some(port_of(network)),
        own_address: Some(OwnAddress::Nothing),
        ..SetLink::up(Which::Name(name))
    };
    // Isolated before it is switched on.
    let on_bridge = (!record.is_routed).then_some(Request::Set(on_bridge));
    if network.vlan.is_some() && !record.is_routed {
        kernel.all([Request::Veth(veth)])?;
        let port = kernel.link(name)?.map(|link| link.index);
        let vlan = port.into_iter().flat_map(|port| vlan_requests(network, port));
        // It is not in the bridge's common network where the bridge has none.
        kernel.all_but(&[ENOENT], vlan.chain(on_bridge))?;
    } else {
        kernel.all([Request::Veth(veth)].into_iter().chain(on_bridge))?;
    }
    if record.is_routed || network.mode == Mode::Bridged {
        return Ok(false);
    }
    let port = kernel.link(name)?;
    let known = Attachment { mac: mac.to_string(), ..record.clone() };
    let index = port.as_ref().map(|port| port.index);
    kernel.all(announcement(network, &known, Some(bridge), index))?;
    // Of virtual networks only bridges know.
    let number = port.and_then(|port| port.port_number).filter(|_| network.vlan.is_none());
    Ok(number.is_some_and(|number| number >= BRIDGE_PORTS_MAX))
}

/// Puts a port into the virtual network that it should be in, and no other.
pub(crate) fn vlan_requests(network: &Network, port: LinkIndex) -> Vec<Request<'static>> {
    let Some(vlan) = network.vlan else { return Vec::new() };
    let of = |vlan| BridgeVlan { link: port, vlan, is_bridge: false };
    let common = (vlan != DEFAULT_VLAN).then_some(Request::DeleteVlan(of(DEFAULT_VLAN)));
    common.into_iter().chain([Request::AddVlan(of(vlan))]).collect()
}

/// Tells the node and the bridge where an instance is, so that they need never ask all ports: of a thousand answers
/// the kernel drops some, and asking costs as much as there are ports.
pub(crate) fn announcement(
    network: &Network,
    record: &Attachment,
    bridge: Option<LinkIndex>,
    port: Option<LinkIndex>,
) -> Vec<Request<'static>> {
    let (Some(bridge), Some(port), Ok(mac)) = (bridge, port, record.mac.parse()) else {
        return Vec::new();
    };
    if network.mode == Mode::Bridged || record.is_routed {
        return Vec::new();
    }
    let neighbours = record
        .addresses
        .iter()
        .map(|inet| Request::ReplaceNeighbour(Neighbour { link: bridge, ip: inet.address(), mac }));
    [Request::ReplacePortEntry(PortEntry { port, mac })].into_iter().chain(neighbours).collect()
}

/// Lets the node forget where instances were.
pub(crate) fn forget_neighbours<'a>(
    state: &State,
    records: impl Iterator<Item = &'a Attachment>,
) -> Result<()> {
    let doing = || Error::kernel("forgetting neighbours");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let mut bridges: BTreeMap<&str, Option<LinkIndex>> = BTreeMap::new();
    let mut requests = Vec::new();
    for record in records.filter(|record| !record.is_routed && !record.is_chained) {
        let bridge = if let Some(bridge) = bridges.get(record.network.as_str()) {
            *bridge
        } else {
            let network = state.network(&record.network)?;
            let network = network.filter(|network| network.mode == Mode::Routed);
            let link = network.map(|network| kernel.link(&network.bridge)).transpose();
            let bridge = link.map_err(doing())?.flatten().map(|link| link.index);
            bridges.insert(&record.network, bridge);
            bridge
        };
        let Some(link) = bridge else { continue };
        requests.extend(record.addresses.iter().map(|inet| {
            let mac = record.mac.parse().unwrap_or(Mac([0; 6]));
            Request::DeleteNeighbour(Neighbour { link, ip: inet.address(), mac })
        }));
    }
    kernel.all_but(&[ENOENT, ENODEV], requests).map_err(doing())
}

/// What a port of a network may do.
///
/// Ports are isolated, unless the kernel shows bridged packets to rules (`br_netfilter`): then it carries a packet whose
/// destination a rule has changed to another port by itself, and an isolated one would not get it. In that case the bridge's
/// own rules keep everything else from going that way, and the forward chains see what does.
pub(crate) fn port_of(network: &Network) -> BridgePort {
    let is_routed = network.mode == Mode::Routed;
    let shows_rules = is_routed
        && ["iptables", "ip6tables"].into_iter().any(|kind| {
            let path = format!("/proc/sys/net/bridge/bridge-nf-call-{kind}");
            fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
        });
    BridgePort {
        isolated: is_routed && !shows_rules,
        hairpin: network.hairpin || shows_rules,
        is_quiet: is_routed,
    }
}

/// Has an instance that hangs on no bridge be reached again.
pub(crate) fn restore_routed(
    kernel: &mut Rtnetlink,
    record: &Attachment,
    network: &Network,
) -> Result<()> {
    let group = Some(network.group);
    let set = SetLink { group, ..SetLink::up(Which::Name(&record.host_link)) };
    let doing = || Error::kernel(format!("switching {} on", record.host_link));
    kernel.all([Request::Set(set)]).map_err(doing())?;
    route_to(kernel, record, network, record.mac.parse().ok())
}

/// The node's routes to an instance that hangs on no bridge, and where it is: until a new link has an IPv6 address of its own the
/// node asks nobody.
fn route_to(
    kernel: &mut Rtnetlink,
    record: &Attachment,
    network: &Network,
    mac: Option<Mac>,
) -> Result<()> {
    let doing = || Error::kernel(format!("routing to {}", record.host_link));
    let link = kernel.link(&record.host_link).map_err(doing())?.map(|link| link.index);
    let link = link.ok_or_else(|| Error::Unknown {
        kind: "link",
        name: record.host_link.clone(),
        hint: "somebody has just removed it; try again",
    })?;
    let routes = record.addresses.iter().map(|inet| {
        let ip = inet.address();
        let mut route = Route::on(ip, if ip.is_ipv4() { 32 } else { 128 }, link);
        // The node speaks to it as it does to others of its network.
        route.source = network
            .subnets
            .iter()
            .find(|subnet| subnet.cidr.contains(&ip))
            .and_then(|subnet| subnet.gateway);
        Request::ReplaceRoute(route)
    });
    let ips = record.addresses.iter().map(IpInet::address);
    let neighbours = ips
        .zip(std::iter::repeat(mac))
        .filter_map(|(ip, mac)| Some(Request::ReplaceNeighbour(Neighbour { link, ip, mac: mac? })));
    kernel.all(routes.chain(neighbours)).map_err(doing())?;
    if record.addresses.iter().any(IpInet::is_ipv4) {
        set(&format!("ipv4/conf/{}/route_localnet", record.host_link), "1")?;
    }
    Ok(())
}

/// Sets up the instance's end: loopback, addresses, routes.
fn inside(
    network: &Network,
    record: &Attachment,
    netns: &Netns,
    gateways: &[Option<IpAddr>],
    gateway_mac: Option<Mac>,
    routes: Routes<'_>,
) -> Result<()> {
    let doing = || Error::kernel(format!("setting up {} in {}", record.interface, netns.name()));
    let mut kernel = Rtnetlink::open_in(netns)?.map_err(doing())?;
    let link = kernel.link(&record.interface).map_err(doing())?.map(|link| link.index);
    let link = link.ok_or_else(|| Error::Unknown {
        kind: "interface",
        name: record.interface.clone(),
        hint: "somebody has just removed it; try again",
    })?;
    let requests = requests(network, record, gateways, gateway_mac, routes, link);
    let outcome = kernel.all(requests.iter().copied());
    match outcome {
        Err(error)
            if matches!(error.raw_os_error(), Some(EACCES | EPERM))
                && record.addresses.iter().any(IpInet::is_ipv6) =>
        {
            // Runtimes switch IPv6 off in namespaces; whoever is given an address is to use it.
            let path = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", record.interface);
            let written = netns.within(|| fs::write(&path, "0"))?;
            written.map_err(Error::io("cannot set", path))?;
            kernel.all_but(&[EEXIST], requests.iter().copied()).map_err(doing())
        }
        outcome => outcome.map_err(doing()),
    }
}

/// The routes that an instance has by one of its links, but for those that the kernel makes. `said` may know which gateway an
/// address was given with.
pub(crate) fn wanted_routes(
    network: &Network,
    record: &Attachment,
    said: &dyn Fn(&IpInet) -> Option<IpAddr>,
    routes: Routes<'_>,
    link: LinkIndex,
) -> Vec<Route> {
    let gateway_of = |inet: &IpInet| {
        let home = network.subnets.iter().find(|subnet| subnet.cidr.contains(&inet.address()));
        said(inet).or_else(|| home.and_then(|subnet| subnet.gateway))
    };
    let gateways: Vec<_> = record.addresses.iter().map(gateway_of).collect();
    let all = requests(network, record, &gateways, None, routes, link);
    let route = |request| match request {
        Request::AddRoute(route) => Some(route),
        _ => None,
    };
    all.into_iter().filter_map(route).collect()
}

fn requests(
    network: &Network,
    record: &Attachment,
    gateways: &[Option<IpAddr>],
    gateway_mac: Option<Mac>,
    routes: Routes<'_>,
    link: LinkIndex,
) -> Vec<Request<'static>> {
    let is_routed = network.mode == Mode::Routed;
    let up = |which| Request::Set(SetLink::up(which));
    // The only address of this kind that its port lets it send from.
    let own_address = is_routed.then_some(OwnAddress::FromMac);
    let own = SetLink { own_address, ..SetLink::up(Which::Index(link)) };
    let mut requests = vec![up(Which::Name("lo")), Request::Set(own)];
    for (inet, gateway) in record.addresses.iter().zip(gateways) {
        let gateway = gateway.filter(|_| is_routed);
        requests.push(Request::AddAddress(Address {
            link,
            ip: inet.address(),
            prefix_len: inet.network_length(),
            no_prefix_route: gateway.is_some(),
        }));
        let Some(gateway) = gateway else { continue };
        // Everything goes by the node, also to neighbours: their ports do not hear each other.
        let single = if gateway.is_ipv4() { 32 } else { 128 };
        requests.push(Request::AddRoute(Route::on(gateway, single, link)));
        if let Some(mac) = gateway_mac {
            requests.push(Request::ReplaceNeighbour(Neighbour { link, ip: gateway, mac }));
        }
        let network = inet.network();
        requests.push(Request::AddRoute(Route::by(
            network.first_address(),
            network.network_length(),
            gateway,
            link,
        )));
    }
    let gateway_of = |is_ipv4: bool| gateways.iter().flatten().find(|ip| ip.is_ipv4() == is_ipv4);
    if routes.is_default {
        for gateway in [true, false].into_iter().filter_map(gateway_of) {
            requests.push(Request::AddRoute(Route::default_by(*gateway, link)));
        }
    }
    for (to, by) in routes.more {
        let by = by.or_else(|| gateway_of(to.is_ipv4()).copied());
        let (first, length) = (to.first_address(), to.network_length());
        // Said twice, by `isDefaultGateway` and as a route, it is one.
        if length == 0 && routes.is_default && by == gateway_of(to.is_ipv4()).copied() {
            continue;
        }
        requests.push(Request::AddRoute(match by {
            Some(by) => Route::by(first, length, by, link),
            None => Route::on(first, length, link),
        }));
    }
    requests
}
