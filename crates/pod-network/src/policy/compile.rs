//! From the world to what has to stand in the tables: purely, part by part.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use telaio_model::IpFamily;
use telaio_netlink::nftables::{Chain, Expression, Verdict};

use super::facts::Direction;
use super::layout::{Map, TABLE, gate_chain, nft_family};
use super::numbers::{self, Number};
use super::ports::{PortSet, protocol_number};
use super::rules::{self, Words};
use super::world::{Part, World};

/// The name of something in a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A map or set.
    Set(IpFamily, Arc<str>),
    /// A chain.
    Chain(IpFamily, Arc<str>),
    /// An element of a map or set.
    Element(IpFamily, Map, ElementKey),
}

/// An element's key as the kernel has it. Long enough for two IPv6 addresses, and never on the heap: there may be many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ElementKey {
    len: u8,
    bytes: [u8; ELEMENT_KEY_LEN_MAX],
}

/// Two IPv6 addresses.
const ELEMENT_KEY_LEN_MAX: usize = 32;

impl ElementKey {
    /// A key of these bytes; `None` for more than any of ours has.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; ELEMENT_KEY_LEN_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { len: key.len() as u8, bytes })
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Several in a row; each of ours fits.
    fn concat(parts: &[&[u8]]) -> Self {
        let mut key = Self { len: 0, bytes: [0; ELEMENT_KEY_LEN_MAX] };
        for part in parts {
            let at = usize::from(key.len);
            if let Some(place) = key.bytes.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
                key.len += part.len() as u8;
            }
        }
        key
    }

    fn address(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::concat(&[&ip.octets()]),
            IpAddr::V6(ip) => Self::concat(&[&ip.octets()]),
        }
    }

    fn numbers(numbers: &[Number]) -> Self {
        let bytes: Vec<[u8; 4]> = numbers.iter().map(|number| number.to_ne_bytes()).collect();
        Self::concat(&bytes.iter().map(<[u8; 4]>::as_slice).collect::<Vec<_>>())
    }
}

impl Key {
    /// The family of its table.
    pub(super) fn family(&self) -> IpFamily {
        match self {
            Self::Set(family, _) | Self::Chain(family, _) | Self::Element(family, ..) => *family,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = nft_family(self.family());
        match self {
            Self::Set(_, name) => write!(f, "set {family} {TABLE} {name}"),
            Self::Chain(_, name) => write!(f, "chain {family} {TABLE} {name}"),
            Self::Element(_, map, key) => {
                write!(f, "element {family} {TABLE} {} ", map.name())?;
                key.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// What it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A set of ours, of the shape that its name says.
    Set,
    /// A chain with its rules.
    Chain(Arc<ChainItem>),
    /// An element without a value.
    Present,
    /// An element with a number.
    Value(Number),
    /// An element with a verdict.
    Verdict(Verdict),
    /// Something that we do not write.
    Foreign,
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainItem {
    /// The chain.
    pub chain: Chain,
    /// Its rules; `None` if they are none of ours.
    pub rules: Option<Vec<Vec<Expression>>>,
}

/// Compiled items.
pub type Items = Vec<(Key, Item)>;

/// Everything that has to be there.
pub type Compiled = BTreeMap<Key, Item>;

/// Everything that has to be there for a world that is settled.
pub fn compile(world: &World, families: &[IpFamily]) -> Compiled {
    world.parts().iter().flat_map(|part| compile_part(world, part, families)).collect()
}

/// What has to be there for one part; nothing for one that is no more.
pub fn compile_part(world: &World, part: &Part, families: &[IpFamily]) -> Items {
    match part {
        Part::Base => families.iter().flat_map(|family| base(world, *family)).collect(),
        Part::Address(ip) => address(world, *ip, families),
        Part::Block(net) => block(world, net, families),
        Part::Open(profile) => {
            let gate = world.open.get(profile);
            number(Map::Open, &[*profile], gate.copied(), families)
        }
        Part::Grant(profile, class) => {
            let gate = world.grants.get(&(*profile, *class));
            number(Map::Grants, &[*profile, *class], gate.copied(), families)
        }
        Part::Namespace(name) if world.has_policies(name) => {
            let key = ElementKey::numbers(&numbers::of_text(name));
            let at = |family: &IpFamily| Key::Element(*family, Map::Namespaces, key);
            families.iter().map(|family| (at(family), Item::Present)).collect()
        }
        Part::Namespace(_) => Vec::new(),
        Part::Gate(gate) => match world.groups.get(*gate) {
            Some(ports) => {
                families.iter().flat_map(|family| self::gate(*gate, ports, *family)).collect()
            }
            None => Vec::new(),
        },
    }
}

fn base(world: &World, family: IpFamily) -> Items {
    let block_lengths: Vec<u8> = world.block_lengths(family).into_iter().collect();
    let blocks = block_lengths.iter().copied().map(Map::Blocks);
    let ports = world.port_lengths().into_iter().map(Map::Ports);
    let sets = Map::FIXED.into_iter().chain(blocks).chain(ports);
    let sets = sets.map(|map| (Key::Set(family, map.name().into()), Item::Set));
    let chains = Words { family }.base(&block_lengths);
    sets.chain(chains.into_iter().map(|(chain, rules)| chain_item(family, chain, rules))).collect()
}

fn chain_item(family: IpFamily, chain: Chain, rules: Vec<Vec<Expression>>) -> (Key, Item) {
    let key = Key::Chain(family, chain.name.as_str().into());
    (key, Item::Chain(Arc::new(ChainItem { chain, rules: Some(rules) })))
}

fn address(world: &World, ip: IpAddr, families: &[IpFamily]) -> Items {
    let family = IpFamily::of(ip);
    let Some(known) = world.addresses.get(&ip).filter(|_| families.contains(&family)) else {
        return Vec::new();
    };
    let key = ElementKey::address(ip);
    let of_profile = |direction| {
        let number = known.profiles.get(direction)?;
        Some((Key::Element(family, Map::Profiles(direction), key), Item::Value(number)))
    };
    let mut items: Items = Direction::ALL.into_iter().filter_map(of_profile).collect();
    if !items.is_empty() {
        let own = ElementKey::concat(&[key.bytes(), key.bytes()]);
        items.push((Key::Element(family, Map::Own, own), Item::Present));
    }
    if let Some(class) = known.class {
        items.push((Key::Element(family, Map::Peers, key), Item::Value(class)));
    }
    items
}

fn block(world: &World, net: &IpNet, families: &[IpFamily]) -> Items {
    let family = IpFamily::of_net(net);
    let class = world.blocks.get(net).filter(|_| families.contains(&family));
    let key =
        Key::Element(family, Map::Blocks(net.prefix_len()), ElementKey::address(net.network()));
    class.map(|class| (key, Item::Value(*class))).into_iter().collect()
}

fn number(map: Map, key: &[Number], value: Option<Number>, families: &[IpFamily]) -> Items {
    let Some(value) = value else { return Vec::new() };
    let key = ElementKey::numbers(key);
    families.iter().map(|family| (Key::Element(*family, map, key), Item::Value(value))).collect()
}

fn gate(gate: Number, ports: &PortSet, family: IpFamily) -> Items {
    let at = Key::Element(family, Map::Gates, ElementKey::numbers(&[gate]));
    if *ports == PortSet::All {
        return vec![(at, Item::Verdict(Verdict::Return))];
    }
    let prefixes = ports.prefixes();
    let mut lengths: Vec<u8> = prefixes.iter().map(|prefix| prefix.len).collect();
    lengths.dedup();
    lengths.reverse();
    let name = gate_chain(gate);
    let mut items = vec![
        (at, Item::Verdict(Verdict::Goto(name.clone()))),
        chain_item(family, Chain::regular(name), rules::gate(gate, lengths)),
    ];
    items.extend(prefixes.iter().map(|prefix| {
        let [high, low] = prefix.port.to_be_bytes();
        let protocol = [protocol_number(prefix.protocol), 0, 0, 0];
        let key = ElementKey::concat(&[&gate.to_ne_bytes(), &protocol, &[high, low, 0, 0]]);
        (Key::Element(family, Map::Ports(prefix.len), key), Item::Present)
    }));
    items
}
