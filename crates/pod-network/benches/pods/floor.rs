//! The least that an instance's network can cost: one process, the netlink calls, one nftables transaction. No
//! configuration, no records, no checks. The benchmark `pods` compares the plugin with it.
//!
//! Arguments: namespace's path, link's name, address, port of the node.

use std::error::Error;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;

use telaio_netlink::netns::Netns;
use telaio_netlink::nftables::{Batch, Element, ElementData, Family, Nftables};
use telaio_netlink::rtnl::{Address, PeerPlace, Request, Route, Rtnetlink, SetLink, Veth, Which};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("arguments: netns link address port");
    let (path, name) = (next()?, next()?);
    let ip: Ipv4Addr = next()?.parse()?;
    let port: u16 = next()?.parse()?;
    let gateway = Ipv4Addr::new(ip.octets()[0], ip.octets()[1], 0, 1);
    let netns = Netns::open_path(Path::new(&path))?;
    let mut kernel = Rtnetlink::open()?;
    let bridge = kernel.link("cni0")?.ok_or("no bridge")?.index;
    let peer = PeerPlace { name: "eth0", netns: Some(netns.as_fd()), mac: None };
    let (mac, mtu, master) = (None, None, Some(bridge));
    let veth = Veth { name: &name, mac, mtu, master, group: 0, is_up: true, peer };
    kernel.all([Request::Veth(veth)])?;
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
    let [high, low] = port.to_be_bytes();
    let value = [&ip.octets()[..], &[0, 80, 0, 0]].concat();
    let key = [6, 0, 0, 0, high, low, 0, 0];
    batch.add_element("any-ports", &Element::new(&key, ElementData::Value(&value)));
    Nftables::open()?.commit(&mut [&mut batch])?;
    Ok(())
}
