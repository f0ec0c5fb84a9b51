//! What a packet meets in our table: the rules run step by step, as the kernel runs them.
//!
//! The rules are those that were compiled, or those that were read back from the kernel; the tracer
//! knows nothing of services. Where the kernel draws lots the tracer follows every lot in turn, so the
//! answer has every endpoint that can be hit.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use telaio_model::IpFamily;
use telaio_netlink::nftables::{
    CompareOp, DynsetOp, Expression, FibAddress, Hook, MetaKey, Payload, Reg, Verdict as NftVerdict,
};

use super::compile::{FrontendItem, FrontendKey, Item, Key};
use super::keys::{self, KeyReader};
use super::layout::Map;
use super::rule::Place;
use crate::trace::{Packet, Surroundings, Trace, Verdict};

/// How many lots are followed; beyond that endpoints may be missing from the answer.
const LOTS_MAX: usize = 1 << 16;
/// How many chains a packet passes at most; the kernel allows 16 jumps, and we have no loops.
const CHAINS_MAX: usize = 64;
/// The type of an address that is this machine's own.
const ROUTE_LOCAL: u32 = 2;
/// Any other type.
const ROUTE_UNICAST: u32 = 1;
const STATUS_DNAT: u32 = 1 << 5;
/// The state of a connection's first packet.
const STATE_NEW: u32 = 1 << 3;
/// Our listener's connections carry the masquerade mark, whichever bit that is.
const LISTENER_MARK: u32 = u32::MAX;

/// What stands in the tables, by name.
pub type Items = BTreeMap<Key, Item>;

/// What becomes of the first packet of a connection.
pub fn trace(packet: &Packet, around: &Surroundings, items: &Items) -> Trace {
    let mut answer = follow_lots(packet, 0, around, items);
    let Some(port) = answer.redirected.take() else { return answer.trace };
    // Our own listener on loopback opens a second connection, from the node to its own address.
    answer.trace.via.push(format!("localhost proxy on port {port}"));
    let family = IpFamily::of(packet.to.ip());
    let mut addresses = around.addresses.iter();
    let Some(own) = addresses.find(|ip| IpFamily::of(**ip) == family && !ip.is_loopback()) else {
        return answer.trace;
    };
    let to = SocketAddr::new(*own, packet.to.port());
    let second = Packet { from: *own, to, ..packet.clone() };
    let second = follow_lots(&second, LISTENER_MARK, around, items).trace;
    answer.trace.via.extend(second.via);
    Trace { via: answer.trace.via, ..second }
}

struct Answer {
    trace: Trace,
    redirected: Option<u16>,
}

fn follow_lots(packet: &Packet, mark: u32, around: &Surroundings, items: &Items) -> Answer {
    let mut lots = Lots::default();
    let mut answer: Option<Answer> = None;
    for _ in 0..LOTS_MAX {
        let mut run = Run { mark, ..Run::new(packet, around, items, &mut lots) };
        let end = run.hooks();
        let via = std::mem::take(&mut run.via);
        let answer = answer.get_or_insert_with(|| Answer {
            trace: Trace {
                verdict: end.verdict,
                endpoints: BTreeSet::new(),
                masquerade: false,
                via,
            },
            redirected: end.redirected,
        });
        answer.trace.endpoints.extend(end.endpoint);
        answer.trace.masquerade |= end.masquerade;
        if !lots.next() {
            break;
        }
    }
    answer.unwrap_or(Answer {
        trace: Trace {
            verdict: Verdict::None,
            endpoints: BTreeSet::new(),
            masquerade: false,
            via: Vec::new(),
        },
        redirected: None,
    })
}

/// The lots that were drawn, and out of how many; counted up like a number with mixed digits.
#[derive(Debug, Default)]
struct Lots {
    drawn: Vec<(u32, u32)>,
    used: usize,
}

impl Lots {
    fn draw(&mut self, of: u32) -> u32 {
        if self.used == self.drawn.len() {
            self.drawn.push((0, of.max(1)));
        }
        let (lot, _) = self.drawn[self.used];
        self.used += 1;
        lot
    }

    /// Prepares the next run; `false` if every lot was followed.
    fn next(&mut self) -> bool {
        self.used = 0;
        while let Some((lot, of)) = self.drawn.pop() {
            if lot + 1 < of {
                self.drawn.push((lot + 1, of));
                return true;
            }
        }
        false
    }
}

struct End {
    verdict: Verdict,
    endpoint: Option<SocketAddr>,
    masquerade: bool,
    redirected: Option<u16>,
}

/// How a chain ends.
enum Flow {
    /// With the end of its rules, or back.
    Continue,
    Accept,
    Drop,
    Reject,
    Dnat(SocketAddr),
    Redirect(u16),
    Masquerade,
}

/// How a rule's step ends.
enum Step {
    Next,
    /// The rule does not match.
    Break,
    Verdict(NftVerdict),
    End(Flow),
}

/// One way of a packet through the rules.
struct Run<'a> {
    around: &'a Surroundings,
    items: &'a Items,
    lots: &'a mut Lots,
    family: IpFamily,
    packet: &'a Packet,
    from: IpAddr,
    to: SocketAddr,
    starts_here: bool,
    mark: u32,
    status: u32,
    registers: [u8; 64],
    /// What rules have put into dynamic maps.
    remembered: BTreeMap<(Map, Vec<u8>), u32>,
    chains: usize,
    via: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(
        packet: &'a Packet,
        around: &'a Surroundings,
        items: &'a Items,
        lots: &'a mut Lots,
    ) -> Self {
        Self {
            around,
            items,
            lots,
            family: IpFamily::of(packet.to.ip()),
            packet,
            from: packet.from,
            to: packet.to,
            starts_here: around.starts_here(packet),
            mark: 0,
            status: 0,
            registers: [0; 64],
            remembered: BTreeMap::new(),
            chains: 0,
            via: Vec::new(),
        }
    }

    fn hooks(&mut self) -> End {
        let first = if self.starts_here { Hook::Output } else { Hook::Prerouting };
        let mut end =
            End { verdict: Verdict::None, endpoint: None, masquerade: false, redirected: None };
        match self.hook(first) {
            Flow::Drop => end.verdict = Verdict::Drop,
            Flow::Reject => end.verdict = Verdict::Reject,
            Flow::Redirect(port) => end.redirected = Some(port),
            Flow::Dnat(endpoint) => {
                (end.verdict, end.endpoint) = (Verdict::Dnat, Some(endpoint));
                self.to = endpoint;
                self.status |= STATUS_DNAT;
            }
            Flow::Continue | Flow::Accept | Flow::Masquerade => {}
        }
        if matches!(end.verdict, Verdict::Dnat | Verdict::None) && end.redirected.is_none() {
            end.masquerade = matches!(self.hook(Hook::Postrouting), Flow::Masquerade);
        }
        end
    }

    /// The base chains of a hook, in order of priority.
    fn hook(&mut self, hook: Hook) -> Flow {
        let mut chains: Vec<(i32, &str)> = Vec::new();
        for (key, item) in self.items {
            if let (Key::Chain(family, name), Item::Chain(chain)) = (key, item)
                && *family == self.family
                && let Some((_, at, priority)) = chain.chain.base
                && at == hook
            {
                chains.push((priority, name));
            }
        }
        chains.sort_unstable();
        for (_, name) in chains {
            match self.chain(name) {
                Flow::Continue | Flow::Accept => {}
                end => return end,
            }
        }
        Flow::Continue
    }

    fn chain(&mut self, name: &str) -> Flow {
        self.chains += 1;
        let key = Key::Chain(self.family, name.into());
        let items = self.items;
        let Some(Item::Chain(chain)) = items.get(&key) else { return Flow::Continue };
        if self.chains > CHAINS_MAX {
            return Flow::Continue;
        }
        self.via.push(format!("chain {name}"));
        for rule in chain.rules.iter().flatten() {
            for expression in &rule.expressions {
                match self.step(expression) {
                    Step::Next => {}
                    Step::Break => break,
                    Step::End(flow) => return flow,
                    Step::Verdict(verdict) => match self.verdict(verdict) {
                        Some(flow) => return flow,
                        None => break,
                    },
                }
            }
        }
        Flow::Continue
    }

    /// Where a verdict leads; `None`: on with the next rule.
    fn verdict(&mut self, verdict: NftVerdict) -> Option<Flow> {
        match verdict {
            NftVerdict::Drop => Some(Flow::Drop),
            NftVerdict::Accept => Some(Flow::Accept),
            NftVerdict::Return => Some(Flow::Continue),
            NftVerdict::Goto(chain) => Some(self.chain(&chain)),
            NftVerdict::Jump(chain) => match self.chain(&chain) {
                Flow::Continue => None,
                end => Some(end),
            },
        }
    }

    fn step(&mut self, expression: &Expression) -> Step {
        match expression {
            Expression::Immediate { to, value } => self.put(*to, value),
            Expression::Verdict(verdict) => return Step::Verdict(verdict.clone()),
            Expression::Payload { to, base, offset, len } => {
                let bytes = self.payload(*base, *offset, *len);
                self.put(*to, &bytes);
            }
            Expression::Meta { to, key } => {
                let bytes = self.meta(*key);
                self.put(*to, &bytes);
            }
            Expression::SetMark { from } => self.mark = self.number(*from),
            Expression::ConntrackStatus { to } => self.put(*to, &self.status.to_ne_bytes()),
            Expression::ConntrackState { to } => self.put(*to, &STATE_NEW.to_ne_bytes()),
            Expression::Compare { from, op, value } => {
                let same = self.get(*from, value.len()) == value.as_slice();
                if same != (*op == CompareOp::Equal) {
                    return Step::Break;
                }
            }
            Expression::Bitwise { from, to, mask, xor } => {
                let value = self.get(*from, mask.len()).to_vec();
                let bits = value
                    .iter()
                    .zip(mask)
                    .zip(xor)
                    .map(|((value, mask), xor)| (value & mask) ^ xor);
                let result: Vec<u8> = bits.collect();
                self.put(*to, &result);
            }
            Expression::InSet { set, key, inverted } => {
                if self.is_in_set(set, *key) == *inverted {
                    return Step::Break;
                }
            }
            Expression::Lookup { map, key, to } => match self.look_up(map, *key) {
                Some(value) => self.put(*to, &value),
                None => return Step::Break,
            },
            Expression::LookupVerdict { map, key } => {
                return self.look_up_verdict(map, *key).map_or(Step::Break, Step::Verdict);
            }
            Expression::Dynset { set, op, key, data, .. } => {
                return self.dynset(set, *op, *key, *data);
            }
            Expression::Numgen { to, modulus, offset, .. } => {
                let number = self.lots.draw(*modulus).wrapping_add(*offset);
                self.put(*to, &number.to_ne_bytes());
            }
            Expression::Hash { from, len, to, modulus, seed, offset } => {
                let hash = jhash(self.get(*from, *len as usize), *seed);
                let scaled = (u64::from(hash) * u64::from(*modulus)) >> 32;
                self.put(*to, &(scaled as u32).wrapping_add(*offset).to_ne_bytes());
            }
            Expression::FibType { to, address } => {
                let ip = match address {
                    FibAddress::Source => self.from,
                    FibAddress::Destination => self.to.ip(),
                };
                let kind = if self.around.is_local(ip) { ROUTE_LOCAL } else { ROUTE_UNICAST };
                self.put(*to, &kind.to_ne_bytes());
            }
            // No rule of services asks.
            Expression::FibInputLink { .. } => return Step::Break,
            Expression::DestinationNat { address, port, .. } => {
                let len = if self.family == IpFamily::V4 { 4 } else { 16 };
                let bytes = self.get(*address, len).to_vec();
                let mut reader = KeyReader::new(self.family, &bytes);
                let Some(ip) = reader.address() else { return Step::Break };
                return Step::End(Flow::Dnat(SocketAddr::new(ip, self.be16(*port))));
            }
            Expression::Redirect { port } => {
                return Step::End(Flow::Redirect(self.be16(*port)));
            }
            Expression::Masquerade => return Step::End(Flow::Masquerade),
            Expression::Reject(_) => return Step::End(Flow::Reject),
        }
        Step::Next
    }

    fn put(&mut self, to: Reg, bytes: &[u8]) {
        let at = usize::from(to.0) * 4;
        // The kernel clears the rest of the last register.
        let end = (at + bytes.len().next_multiple_of(4)).min(self.registers.len());
        let Some(room) = self.registers.get_mut(at..end) else { return };
        room.fill(0);
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }

    fn get(&self, from: Reg, len: usize) -> &[u8] {
        let at = usize::from(from.0) * 4;
        self.registers.get(at..at + len).unwrap_or_default()
    }

    fn number(&self, from: Reg) -> u32 {
        self.get(from, 4).try_into().map_or(0, u32::from_ne_bytes)
    }

    fn be16(&self, from: Reg) -> u16 {
        self.get(from, 2).try_into().map_or(0, u16::from_be_bytes)
    }

    fn payload(&self, base: Payload, offset: u32, len: u32) -> Vec<u8> {
        match (base, self.family, offset) {
            (Payload::Network, IpFamily::V4, 12) | (Payload::Network, IpFamily::V6, 8) => {
                super::rule::address_bytes(self.from)
            }
            (Payload::Network, IpFamily::V4, 16) | (Payload::Network, IpFamily::V6, 24) => {
                super::rule::address_bytes(self.to.ip())
            }
            (Payload::Transport, _, 2) => self.to.port().to_be_bytes().to_vec(),
            _ => vec![0; len as usize],
        }
    }

    fn meta(&self, key: MetaKey) -> Vec<u8> {
        match key {
            MetaKey::EtherType => match self.family {
                IpFamily::V4 => vec![0x08, 0x00],
                IpFamily::V6 => vec![0x86, 0xdd],
            },
            MetaKey::Mark => self.mark.to_ne_bytes().to_vec(),
            MetaKey::Protocol => vec![keys::protocol_number(self.packet.protocol)],
            MetaKey::InputName => {
                let name = self.packet.interface.as_deref().unwrap_or_default();
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(16, 0);
                bytes
            }
            MetaKey::OutputName => vec![0; 16],
            // No rule of services asks; 0 is the group of whoever is in none.
            MetaKey::InputGroup | MetaKey::OutputGroup => 0_u32.to_ne_bytes().to_vec(),
        }
    }

    /// The map of a name, and the bytes of a key in it.
    fn map_key(&self, name: &str, key: Reg) -> Option<(Map, Vec<u8>)> {
        let map = Map::ALL.into_iter().find(|map| map.name() == name)?;
        let len: u32 = map.with_spec(self.family, 1, |spec| spec.lengths().0);
        Some((map, self.get(key, len as usize).to_vec()))
    }

    fn is_in_set(&mut self, set: &str, key: Reg) -> bool {
        let Some((map, bytes)) = self.map_key(set, key) else { return false };
        let mut reader = KeyReader::new(self.family, &bytes);
        if matches!(map, Map::Live | Map::NodePortLive) {
            let frontend = reader.service(keys::place_of(map)).and_then(|key| self.frontend(&key));
            return frontend.zip(reader.ne32()).is_some_and(|(it, slot)| it.live.contains(&slot));
        }
        let key = match map {
            Map::ClusterIps => reader.address().map(Key::ClusterIp),
            Map::Hairpin => reader
                .address()
                .zip(reader.address())
                .filter(|(from, to)| from == to)
                .map(|(from, _)| Key::Hairpin(from)),
            Map::LocalhostNodePorts => {
                reader.be16().map(|port| Key::LocalhostNodePort(self.family, port))
            }
            _ => None,
        };
        let found = key.filter(|key| self.items.contains_key(key));
        if let Some(key) = &found {
            self.via.push(format!("set {}: {key}", map.name()));
        }
        found.is_some()
    }

    fn look_up_verdict(&mut self, map: &str, key: Reg) -> Option<NftVerdict> {
        let (map, bytes) = self.map_key(map, key)?;
        let mut reader = KeyReader::new(self.family, &bytes);
        match map {
            Map::Ways => match self.items.get(&Key::Way(self.family, reader.ne32()?))? {
                Item::Way(verdict) => Some(verdict.clone()),
                _ => None,
            },
            Map::Firewall => {
                let chain = self.frontend(&reader.service(Place::Address)?)?.sources.as_ref()?;
                Some(NftVerdict::Jump(chain.to_string()))
            }
            _ => None,
        }
    }

    fn look_up(&mut self, map: &str, key: Reg) -> Option<Vec<u8>> {
        let (map, bytes) = self.map_key(map, key)?;
        if map.is_dynamic() {
            return self.remembered.get(&(map, bytes)).map(|slot| slot.to_ne_bytes().to_vec());
        }
        let mut reader = KeyReader::new(self.family, &bytes);
        let service = reader.service(keys::place_of(map))?;
        let frontend = self.frontend(&service)?;
        match map {
            Map::Services | Map::NodePorts => {
                let way = frontend.way?;
                self.via.push(format!("map {}: {}", map.name(), Key::Frontend(service)));
                Some(way.to_ne_bytes().to_vec())
            }
            Map::Endpoints | Map::NodePortEndpoints => {
                let slot = reader.ne32()?;
                let (_, endpoint) = find(&frontend.slots, slot)?;
                let mut value = super::rule::address_bytes(endpoint.ip());
                value.extend_from_slice(&endpoint.port().to_be_bytes());
                Some(value)
            }
            Map::Lasting | Map::NodePortLasting => {
                let (_, lasting) = find(&frontend.lasting, reader.ne32()?)?;
                Some(lasting.to_ne_bytes().to_vec())
            }
            _ => None,
        }
    }

    fn frontend(&self, key: &FrontendKey) -> Option<&'a FrontendItem> {
        match self.items.get(&Key::Frontend(*key))? {
            Item::Frontend(item) => Some(item),
            _ => None,
        }
    }

    fn dynset(&mut self, set: &str, op: DynsetOp, key: Reg, data: Option<Reg>) -> Step {
        let Some((map, bytes)) = self.map_key(set, key) else { return Step::Break };
        match op {
            DynsetOp::Delete => _ = self.remembered.remove(&(map, bytes)),
            DynsetOp::Add | DynsetOp::Update => {
                let value = data.map_or(0, |data| self.number(data));
                self.remembered.entry((map, bytes)).or_insert(value);
            }
        }
        Step::Next
    }
}

fn find<T: Copy>(slots: &[(u32, T)], slot: u32) -> Option<(u32, T)> {
    slots.binary_search_by_key(&slot, |(slot, _)| *slot).ok().and_then(|i| slots.get(i).copied())
}

/// Jenkins' hash, as the kernel computes it.
fn jhash(mut bytes: &[u8], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let word = |bytes: &[u8]| {
        let mut word = [0; 4];
        let len = bytes.len().min(4);
        word[..len].copy_from_slice(&bytes[..len]);
        u32::from_le_bytes(word)
    };
    while bytes.len() > 12 {
        a = a.wrapping_add(word(&bytes[0..]));
        b = b.wrapping_add(word(&bytes[4..]));
        c = c.wrapping_add(word(&bytes[8..]));
        for (x, y, z) in [(4, 6, 8), (16, 19, 4)] {
            a = a.wrapping_sub(c) ^ c.rotate_left(x);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(y);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(z);
            b = b.wrapping_add(a);
        }
        bytes = &bytes[12..];
    }
    if bytes.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(bytes));
    b = b.wrapping_add(word(bytes.get(4..).unwrap_or_default()));
    c = c.wrapping_add(word(bytes.get(8..).unwrap_or_default()));
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}
