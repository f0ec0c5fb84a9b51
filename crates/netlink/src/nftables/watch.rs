//! Noticing what others change.
//!
//! The kernel tells of each transaction what it did, message by message. From that a [`Watcher`] makes
//! out what of one table was [`Touched`], so that whoever has to look again need not look at
//! everything. What is kept is bounded: beyond [`Touched::KEYS_MAX`] it is just `anything`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::numbers::{
    self, Family, GROUP_NFTABLES, HEADER_LEN, SUBSYSTEM, chain, element, generation, rule,
};
use super::read::read_element;
use crate::error::NetlinkError;
use crate::socket::{Protocol, Socket};
use crate::wire::{Attributes, Message, Messages};

/// What the kernel may hold for us until we read it.
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;

/// What of a table somebody else has touched. It says where to look, not what is there now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Elements, by the set that they are in: their keys.
    pub elements: BTreeMap<(Family, String), BTreeSet<Vec<u8>>>,
    /// Chains of which rules came, went or changed.
    pub rules: BTreeSet<(Family, String)>,
    /// Chains that themselves came, went or changed. Of a chain that got another name only the new
    /// one is told.
    pub chains: BTreeSet<(Family, String)>,
    /// Anything may be different: a table or a set itself was touched, or more than can be kept.
    pub anything: bool,
}

impl Touched {
    /// How many elements and chains are kept apart.
    pub const KEYS_MAX: usize = 1 << 16;

    /// Anything may be different.
    pub fn anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    /// Nothing is.
    pub fn is_nothing(&self) -> bool {
        !self.anything && self.key_count() == 0
    }

    fn key_count(&self) -> usize {
        let elements: usize = self.elements.values().map(BTreeSet::len).sum();
        self.rules.len() + self.chains.len() + elements
    }

    /// Both together.
    pub fn add(&mut self, other: Self) {
        self.anything |= other.anything;
        self.rules.extend(other.rules);
        self.chains.extend(other.chains);
        for (set, keys) in other.elements {
            self.elements.entry(set).or_default().extend(keys);
        }
        self.keep_bounded();
    }

    fn keep_bounded(&mut self) {
        if self.anything || self.key_count() > Self::KEYS_MAX {
            *self = Self::anything();
        }
    }

    /// Takes a message about an object of the table.
    fn note(&mut self, family: Family, message: &Message<'_>) {
        if self.anything {
            return;
        }
        let attributes = message.attributes(HEADER_LEN);
        let noted = match message.message_type {
            numbers::NEW_ELEMENT | numbers::DELETE_ELEMENT => {
                self.note_elements(family, attributes)
            }
            numbers::NEW_RULE | numbers::DELETE_RULE => {
                note_name(&mut self.rules, family, attributes.str(rule::CHAIN))
            }
            numbers::NEW_CHAIN | numbers::DELETE_CHAIN => {
                note_name(&mut self.chains, family, attributes.str(chain::NAME))
            }
            _ => false,
        };
        self.anything |= !noted;
    }

    /// Whether they could be told apart: an element for all that is in no other has no key.
    fn note_elements(&mut self, family: Family, attributes: Attributes<'_>) -> bool {
        let (Some(set), Some(list)) =
            (attributes.str(element::SET), attributes.nested(element::ELEMENTS))
        else {
            return false;
        };
        let keys = self.elements.entry((family, set.to_owned())).or_default();
        for (_, item) in list {
            match read_element(Attributes(item)) {
                Some(item) if !item.key.is_empty() => _ = keys.insert(item.key.to_vec()),
                _ => return false,
            }
        }
        keys.len() <= Self::KEYS_MAX
    }
}

/// Whether there is a name to note.
fn note_name(names: &mut BTreeSet<(Family, String)>, family: Family, name: Option<&str>) -> bool {
    name.map(|name| names.insert((family, name.to_owned()))).is_some()
}

/// Transactions of somebody else's that touched the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notice {
    /// What they touched; anything, if notices were lost.
    pub touched: Touched,
    /// The name of the process that made the last of them, if the kernel tells.
    pub process: String,
}

/// Tells of transactions that do not come through one of our own sockets.
///
/// What our own socket changes is filtered out by the kernel, before it costs us anything.
#[derive(Debug)]
pub struct Watcher {
    socket: Socket,
    table: String,
    /// What belongs to the transaction whose end has not come yet.
    unfinished: Touched,
}

impl Watcher {
    /// Begins to watch the tables of this name, in all families; `own_port` is the port of the socket
    /// whose changes are not news.
    pub fn open(own_port: u32, table: &str) -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        socket.ignore_messages_of(own_port)?;
        socket.join(GROUP_NFTABLES)?;
        Ok(Self { socket, table: table.to_owned(), unfinished: Touched::default() })
    }

    /// Waits for the next transaction of somebody else's; `None` if in this time there is none that
    /// touches the table.
    pub fn next(&mut self, time_max: Duration) -> Result<Option<Notice>, NetlinkError> {
        if !self.socket.wait(time_max)? {
            return Ok(None);
        }
        let bytes = match self.socket.receive() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(NetlinkError::Overrun) => {
                self.unfinished = Touched::default();
                return Ok(Some(Notice { touched: Touched::anything(), ..Notice::default() }));
            }
            Err(error) => return Err(error),
        };
        let mut finished = Notice::default();
        for message in Messages(bytes) {
            let attributes = message.attributes(HEADER_LEN);
            if message.message_type == numbers::NEW_GENERATION {
                let touched = std::mem::take(&mut self.unfinished);
                if !touched.is_nothing() {
                    finished.touched.add(touched);
                    finished.process = process(attributes);
                }
            } else if message.message_type >> 8 == SUBSYSTEM {
                let family = message.body.first().copied().and_then(Family::from_number);
                // A table's name is the first attribute of every kind of object.
                if let Some(family) = family
                    && attributes.str(1) == Some(self.table.as_str())
                {
                    self.unfinished.note(family, &message);
                }
            }
        }
        Ok(Some(finished).filter(|it| !it.touched.is_nothing()))
    }
}

fn process(attributes: Attributes<'_>) -> String {
    let name = attributes.str(generation::PROCESS_NAME).unwrap_or_default();
    match attributes.be32(generation::PROCESS_ID) {
        Some(id) => format!("{name} ({id})"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::numbers::{data, header};
    use crate::wire::Writer;

    fn message(message_type: u16, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.begin(message_type, 0, 0, &header(Family::Ip.number(), 0));
        writer.put_str(1, "telaio");
        write(&mut writer);
        writer.end();
        writer.finish().unwrap().to_vec()
    }

    fn elements(message_type: u16, keys: &[&[u8]]) -> Vec<u8> {
        message(message_type, |writer| {
            writer.put_str(element::SET, "endpoints");
            let list = writer.begin_nest(element::ELEMENTS);
            for key in keys {
                let item = writer.begin_nest(element::LIST_ELEMENT);
                if !key.is_empty() {
                    let at = writer.begin_nest(element::KEY);
                    writer.put(data::VALUE, key);
                    writer.end_nest(at);
                }
                writer.end_nest(item);
            }
            writer.end_nest(list);
        })
    }

    fn touched(bytes: &[u8]) -> Touched {
        let mut touched = Touched::default();
        for message in Messages(bytes) {
            touched.note(Family::Ip, &message);
        }
        touched
    }

    #[test]
    fn elements_are_told_by_set_and_key() {
        let touched = touched(&elements(numbers::DELETE_ELEMENT, &[&[1, 2, 3, 4], &[5, 6, 7, 8]]));
        let keys = &touched.elements[&(Family::Ip, "endpoints".to_owned())];
        assert_eq!(keys.iter().collect::<Vec<_>>(), [&[1, 2, 3, 4], &[5, 6, 7, 8]]);
        assert!(!touched.anything && !touched.is_nothing());
    }

    #[test]
    fn rules_are_told_by_their_chain_and_chains_by_name() {
        let touched = touched(
            &[
                message(numbers::NEW_RULE, |writer| writer.put_str(rule::CHAIN, "pick-2")),
                message(numbers::DELETE_CHAIN, |writer| writer.put_str(chain::NAME, "pick-3")),
            ]
            .concat(),
        );
        assert_eq!(touched.rules, BTreeSet::from([(Family::Ip, "pick-2".to_owned())]));
        assert_eq!(touched.chains, BTreeSet::from([(Family::Ip, "pick-3".to_owned())]));
        assert!(!touched.anything);
    }

    #[test]
    fn sets_tables_and_elements_without_a_key_may_mean_anything() {
        let set = message(numbers::NEW_SET, |_| {});
        let table = message(numbers::DELETE_TABLE, |_| {});
        let rest_of_all = elements(numbers::NEW_ELEMENT, &[&[]]);
        for bytes in [set, table, rest_of_all] {
            assert!(touched(&bytes).anything);
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let of = |range: std::ops::Range<usize>| {
            let keys = range.map(|it| it.to_ne_bytes().to_vec()).collect();
            let elements = BTreeMap::from([((Family::Ip, "endpoints".to_owned()), keys)]);
            Touched { elements, ..Touched::default() }
        };
        let mut touched = of(0..Touched::KEYS_MAX);
        touched.add(of(0..10));
        assert!(!touched.anything, "the same again is no more");
        touched.add(of(Touched::KEYS_MAX..Touched::KEYS_MAX + 1));
        assert_eq!(touched, Touched::anything());
    }
}
