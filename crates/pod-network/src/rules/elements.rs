//! What of the rules' maps and sets an instance has.

use std::net::IpAddr;

use telaio_netlink::nftables::Family;

use super::{ANY_PORTS, HAIRPIN, LINK_NAME_BYTES, PORTS, SOURCES4, SOURCES6};
use crate::attachment::Attachment;
use crate::names;
use crate::port::{Port, Protocol};

/// An element of one of the maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) family: Family,
    pub(super) map: &'static str,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// What of the maps an instance needs.
pub(super) fn entries(instance: &Attachment) -> Vec<Entry> {
    let mut found = sources(instance);
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

/// The addresses that an instance may send from, by the port of the bridge that it is at. One that hangs on no bridge is
/// known by its route; what is another plugin's is not ours to judge.
fn sources(instance: &Attachment) -> Vec<Entry> {
    if instance.is_routed || instance.is_chained {
        return Vec::new();
    }
    let mut name = instance.host_link.clone().into_bytes();
    name.resize(LINK_NAME_BYTES, 0);
    let entry = |ip: IpAddr| {
        let key = [name.clone(), octets(ip)].concat();
        let map = if ip.is_ipv4() { SOURCES4 } else { SOURCES6 };
        Entry { family: Family::Bridge, map, key, value: None }
    };
    let addresses = instance.addresses.iter().map(cidr::IpInet::address);
    let link_local = instance.hardware_address().map(|mac| names::link_local(mac).into());
    addresses.chain(link_local).map(entry).collect()
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

pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
