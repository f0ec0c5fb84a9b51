//! Elements of our maps, understood: which item each is a part of.

use std::net::SocketAddr;
use std::sync::Arc;

use telaio_model::IpFamily;
use telaio_netlink::nftables::{ReadElement, Verdict};

use crate::nftables::compile::{FrontendItem, FrontendKey, Item, Key};
use crate::nftables::keys::{KeyReader, place_of};
use crate::nftables::layout::Map;
use crate::nftables::rule::Place;

/// Where an element belongs, by its map and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spot {
    /// It is an item.
    Whole(Key),
    /// It says who may use a frontend.
    Sources(FrontendKey),
    /// It says where a frontend leads.
    Leads(FrontendKey),
    /// It is in a frontend's slot.
    Slot(FrontendKey, u32),
    /// It is the lasting slot of a frontend's slot.
    Lasting(FrontendKey, u32),
    /// It is a frontend's lasting slot that lives.
    Live(FrontendKey, u32),
}

impl Spot {
    /// `None` for a key that we never write, and for maps that rules fill.
    pub(super) fn of(map: Map, family: IpFamily, key: &[u8]) -> Option<Self> {
        let mut key = KeyReader::new(family, key);
        let place = place_of(map);
        Some(match map {
            Map::ClusterIps => Self::Whole(Key::ClusterIp(key.address()?)),
            Map::Hairpin => {
                let (one, other) = (key.address()?, key.address()?);
                Self::Whole(Key::Hairpin(Some(one).filter(|it| *it == other)?))
            }
            Map::LocalhostNodePorts => Self::Whole(Key::LocalhostNodePort(family, key.be16()?)),
            Map::Ways => Self::Whole(Key::Way(family, key.ne32()?)),
            Map::Firewall => Self::Sources(key.service(Place::Address)?),
            Map::Services | Map::NodePorts => Self::Leads(key.service(place)?),
            Map::Endpoints | Map::NodePortEndpoints => Self::Slot(key.service(place)?, key.ne32()?),
            Map::Lasting | Map::NodePortLasting => Self::Lasting(key.service(place)?, key.ne32()?),
            Map::Live | Map::NodePortLive => Self::Live(key.service(place)?, key.ne32()?),
            Map::Affinity | Map::NodePortAffinity => return None,
        })
    }

    /// The item that it belongs to.
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Whole(key) => key.clone(),
            Self::Sources(key)
            | Self::Leads(key)
            | Self::Slot(key, _)
            | Self::Lasting(key, _)
            | Self::Live(key, _) => Key::Frontend(*key),
        }
    }

    /// Takes what is at this spot out of a frontend.
    pub(super) fn clear(&self, item: &mut FrontendItem) {
        match self {
            Self::Whole(_) => {}
            Self::Sources(_) => item.sources = None,
            Self::Leads(_) => item.way = None,
            Self::Slot(_, slot) => item.slots.retain(|(of, _)| of != slot),
            Self::Lasting(_, slot) => item.lasting.retain(|(of, _)| of != slot),
            Self::Live(_, slot) => item.live.retain(|of| of != slot),
        }
    }
}

/// An element with its content.
#[derive(Debug)]
pub(super) enum ReadEntry {
    Item(Key, Item),
    Sources(FrontendKey, Arc<str>),
    Leads(FrontendKey, u32),
    Slot(FrontendKey, u32, SocketAddr),
    Lasting(FrontendKey, u32, u32),
    Live(FrontendKey, u32),
}

impl ReadEntry {
    /// `None` for an element that we never write.
    pub(super) fn of(map: Map, family: IpFamily, element: &ReadElement<'_>) -> Option<Self> {
        let value = || element.value.map(|bytes| KeyReader::new(family, bytes));
        Some(match Spot::of(map, family, element.key)? {
            Spot::Whole(key @ Key::Way(..)) => {
                // A verdict that we never use is replaced by ours.
                Self::Item(key, Item::Way(element.verdict().unwrap_or(Verdict::Return)))
            }
            Spot::Whole(key) => Self::Item(key, Item::Present),
            Spot::Sources(key) => {
                let chain = match element.verdict() {
                    Some(Verdict::Jump(chain)) => chain,
                    // Not ours: equal to nothing that we want, so it is replaced.
                    _ => String::new(),
                };
                Self::Sources(key, chain.into())
            }
            Spot::Leads(key) => Self::Leads(key, value()?.ne32()?),
            Spot::Slot(key, slot) => {
                let mut value = value()?;
                Self::Slot(key, slot, SocketAddr::new(value.address()?, value.be16()?))
            }
            Spot::Lasting(key, slot) => Self::Lasting(key, slot, value()?.ne32()?),
            Spot::Live(key, slot) => Self::Live(key, slot),
        })
    }
}

/// A frontend from its elements. They come in any order; [`sort`] puts them right.
pub(super) fn put(item: &mut FrontendItem, entry: ReadEntry) {
    match entry {
        ReadEntry::Item(..) => {}
        ReadEntry::Sources(_, chain) => item.sources = Some(chain),
        ReadEntry::Leads(_, way) => item.way = Some(way),
        ReadEntry::Slot(_, slot, endpoint) => item.slots.push((slot, endpoint)),
        ReadEntry::Lasting(_, slot, lasting) => item.lasting.push((slot, lasting)),
        ReadEntry::Live(_, slot) => item.live.push(slot),
    }
}

/// Puts a frontend's lists in order.
pub(super) fn sort(item: &mut FrontendItem) {
    item.slots.sort_unstable();
    item.lasting.sort_unstable();
    item.live.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hairpin_of_two_addresses_is_none_of_ours() {
        let key = |last: u8| [10, 244, 0, 1, 10, 244, 0, last];
        assert!(Spot::of(Map::Hairpin, IpFamily::V4, &key(1)).is_some());
        assert_eq!(Spot::of(Map::Hairpin, IpFamily::V4, &key(2)), None);
    }

    #[test]
    fn what_rules_fill_is_nobodys() {
        assert_eq!(Spot::of(Map::Affinity, IpFamily::V4, &[1; 16]), None);
    }
}
