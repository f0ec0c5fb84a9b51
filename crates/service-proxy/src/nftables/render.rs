//! Our tables as nft would print them, for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use telaio_model::{IpFamily, Protocol};
use telaio_netlink::nftables::{ChainKind, DataType, Hook};

use super::compile::{ChainItem, FrontendItem, FrontendKey, Item, Key};
use super::layout::{Map, TABLE, nft_family};
use super::rule::verdict_text;
use super::trace::Items;

/// The tables of these families. The same items give the same text.
pub fn render(items: &Items, families: &[IpFamily]) -> String {
    let mut text = String::new();
    for family in families {
        // Writing to a text cannot fail.
        let _ = table(&mut text, items, *family);
    }
    text
}

fn table(text: &mut String, items: &Items, family: IpFamily) -> std::fmt::Result {
    writeln!(text, "table {} {TABLE} {{", nft_family(family))?;
    let mut elements: BTreeMap<Map, Vec<String>> = BTreeMap::new();
    let mut chains: Vec<&ChainItem> = Vec::new();
    for (key, item) in items.iter().filter(|(key, _)| key.family() == family) {
        match item {
            Item::Chain(chain) => chains.push(chain),
            other => elements_of(key, other, &mut elements),
        }
    }
    for map in Map::ALL {
        set(text, map, family, &elements.remove(&map).unwrap_or_default())?;
    }
    for chain in chains {
        write_chain(text, chain)?;
    }
    writeln!(text, "}}")
}

fn set(text: &mut String, map: Map, family: IpFamily, elements: &[String]) -> std::fmt::Result {
    let word = if map.is_verdicts() || map.values(family).is_some() { "map" } else { "set" };
    writeln!(text, "\t{word} {} {{", map.name())?;
    write!(text, "\t\ttype {}", types(&map.key(family)))?;
    if map.is_verdicts() {
        write!(text, " : verdict")?;
    } else if let Some(values) = map.values(family) {
        write!(text, " : {}", types(&values))?;
    }
    writeln!(text)?;
    if map.is_dynamic() {
        writeln!(text, "\t\tflags dynamic,timeout")?;
    }
    if !elements.is_empty() {
        writeln!(text, "\t\telements = {{")?;
        for element in elements {
            writeln!(text, "\t\t\t{element},")?;
        }
        writeln!(text, "\t\t}}")?;
    }
    writeln!(text, "\t}}")
}

fn types(types: &[DataType]) -> String {
    let name = |it: &DataType| match it {
        DataType::Ipv4 => "ipv4_addr",
        DataType::Ipv6 => "ipv6_addr",
        DataType::Protocol => "inet_proto",
        DataType::Port => "inet_service",
        DataType::Mark => "mark",
        DataType::Group => "devgroup",
        DataType::InterfaceName => "ifname",
        DataType::Ethernet => "ether_addr",
    };
    types.iter().map(name).collect::<Vec<_>>().join(" . ")
}

fn elements_of(key: &Key, item: &Item, elements: &mut BTreeMap<Map, Vec<String>>) {
    let mut add = |map: Map, element: String| elements.entry(map).or_default().push(element);
    match (key, item) {
        (Key::Frontend(key), Item::Frontend(item)) => frontend(key, item, &mut add),
        (Key::Way(_, number), Item::Way(verdict)) => {
            add(Map::Ways, format!("{number:#010x} : {}", verdict_text(verdict)));
        }
        (Key::ClusterIp(ip), _) => add(Map::ClusterIps, ip.to_string()),
        (Key::Hairpin(ip), _) => add(Map::Hairpin, format!("{ip} . {ip}")),
        (Key::LocalhostNodePort(_, port), _) => add(Map::LocalhostNodePorts, port.to_string()),
        _ => {}
    }
}

fn frontend(key: &FrontendKey, item: &FrontendItem, add: &mut dyn FnMut(Map, String)) {
    let (place, service) = (key.place(), service(key));
    if let Some(way) = item.way {
        add(place.services(), format!("{service} : {way:#010x}"));
    }
    if let Some(chain) = &item.sources {
        add(Map::Firewall, format!("{service} : jump {chain}"));
    }
    for (slot, endpoint) in &item.slots {
        add(place.endpoints(), format!("{service} . {slot:#010x} : {}", socket(*endpoint)));
    }
    for slot in &item.live {
        add(place.live(), format!("{service} . {slot:#010x}"));
    }
    for (slot, lasting) in &item.lasting {
        add(place.lasting(), format!("{service} . {slot:#010x} : {lasting:#010x}"));
    }
}

fn service(key: &FrontendKey) -> String {
    let protocol = match key.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    let address = key.address.map(|ip| format!("{ip} . ")).unwrap_or_default();
    format!("{address}{protocol} . {}", key.port)
}

fn socket(endpoint: SocketAddr) -> String {
    format!("{} . {}", endpoint.ip(), endpoint.port())
}

fn write_chain(text: &mut String, item: &ChainItem) -> std::fmt::Result {
    writeln!(text, "\tchain {} {{", item.chain.name)?;
    if let Some((kind, hook, priority)) = item.chain.base {
        let kind = match kind {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        };
        let hook = match hook {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
        };
        writeln!(text, "\t\ttype {kind} hook {hook} priority {priority}; policy accept;")?;
    }
    for rule in item.rules.iter().flatten() {
        writeln!(text, "\t\t{}", rule.text)?;
    }
    writeln!(text, "\t}}")
}
