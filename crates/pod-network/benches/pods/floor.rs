//! The least that an instance's network can cost: one process, the netlink calls, one nftables transaction. No
//! configuration, no records, no checks. The benchmark `pods` compares the plugin with it. Ports of the bridge are as the plugin has
//! them, for with others they cost more.
//!
//! Arguments: `add`, namespace's path, link's name, address, port of the node; `routed` for an instance that hangs on no bridge. Or
//! `remove`, link's name, port of the node: the least that its removal can cost.

use std::error::Error;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;

use telaio_netlink::netns::Netns;
use telaio_netlink::nftables::{Batch, Element, ElementData, Family, Nftables};
use telaio_netlink::rtnl::{
    Address, BridgePort, OwnAddress, PeerPlace, Request, Route, Rtnetlink, SetLink, Veth, Which,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "arguments: add netns link address port [routed], or remove link port";
    let mut next = || args.next().ok_or(usage);
    match next()?.as_str() {
        "add" => add(&next()?, &next()?, next()?.parse()?, next()?.parse()?, next().is_ok()),
        "remove" => remove(&next()?, next()?.parse()?),
        _ => Err(usage.into()),
    }
}

fn add(
    path: &str,
    name: &str,
    ip: Ipv4Addr,
    port: u16,
    is_routed: bool,
) -> Result<(), Box<dyn Error>> {
    let gateway = Ipv4Addr::new(ip.octets()[0], ip.octets()[1], 0, 1);
    let netns = Netns::open_path(Path::new(path))?;
    node_end(name, ip, &netns, is_routed)?;
    let mut inside = Rtnetlink::open_in(&netns)??;
    let link = inside.link("eth0")?.ok_or("no interface")?.index;
    let address = Address { link, ip: ip.into(), prefix_len: 16, no_prefix_route: false };
    inside.all([
        Request::Set(SetLink::up(Which::Name("lo"))),
        Request::Set(SetLink::up(Which::Index(link))),
        Request::AddAddress(address),
        Request::AddRoute(Route::default_by(gateway.into(), link)),
    ])?;
    let mut batch = Batch::new(Family::Ip, "telaio-pods");
    let value = [&ip.octets()[..], &[0, 80, 0, 0]].concat();
    batch.add_element("any-ports", &Element::new(&key(port), ElementData::Value(&value)));
    Nftables::open()?.commit(&mut [&mut batch])?;
    Ok(())
}

/// What was added. The connection to nftables is closed last, as the plugin does: who closes it waits for the kernel to be done with
/// what was deleted, and so does who deletes a link.
fn remove(name: &str, port: u16) -> Result<(), Box<dyn Error>> {
    let mut batch = Batch::new(Family::Ip, "telaio-pods");
    batch.delete_element("any-ports", &key(port));
    let mut rules = Nftables::open()?;
    rules.commit(&mut [&mut batch])?;
    Rtnetlink::open()?.all([Request::DeleteLink(Which::Name(name))])?;
    Ok(())
}

/// A port of TCP in the map.
fn key(port: u16) -> [u8; 8] {
    let [high, low] = port.to_be_bytes();
    [6, 0, 0, 0, high, low, 0, 0]
}

/// The pair, and the node's end of it.
fn node_end(
    name: &str,
    ip: Ipv4Addr,
    netns: &Netns,
    is_routed: bool,
) -> Result<(), Box<dyn Error>> {
    let mut kernel = Rtnetlink::open()?;
    let bridge = kernel.link("cni0")?.ok_or("no bridge")?.index;
    let peer = PeerPlace { name: "eth0", netns: Some(netns.as_fd()), mac: None };
    let (mac, mtu, master) = (None, None, (!is_routed).then_some(bridge));
    let veth = Veth { name, mac, mtu, master, group: 0, is_up: is_routed, peer };
    if is_routed {
        kernel.all([Request::Veth(veth)])?;
        let link = kernel.link(name)?.ok_or("no link")?.index;
        kernel.all([Request::ReplaceRoute(Route::on(ip.into(), 32, link))])?;
        return Ok(());
    }
    let port = BridgePort { isolated: true, hairpin: false, is_quiet: true };
    let on_bridge = SetLink {
        port: Some(port),
        own_address: Some(OwnAddress::Nothing),
        ..SetLink::up(Which::Name(name))
    };
    kernel.all([Request::Veth(veth), Request::Set(on_bridge)])?;
    Ok(())
}
