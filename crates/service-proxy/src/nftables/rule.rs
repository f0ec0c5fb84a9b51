//! Rules: each in the kernel's words and in nft's.
//!
//! [`Words`] makes the pieces for one family. A piece writes both forms side by side, so that what
//! `telaio render` prints is what the kernel gets; a test compares the two through the nft program.

use std::net::IpAddr;

use ipnet::IpNet;
use telaio_model::IpFamily;
use telaio_netlink::nftables::{
    CompareOp, DynsetOp, Expression, FibAddress, MetaKey, NumgenKind, Payload, Reg, RejectKind,
    Verdict,
};

use super::layout::{LOCAL_SLOTS, Map, nft_family};

/// A rule.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    /// As nft would have it.
    pub text: String,
    /// As the kernel has it.
    pub expressions: Vec<Expression>,
}

/// The words in nft's form only explain; the kernel's form is the rule.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.expressions == other.expressions
    }
}

impl Eq for Rule {}

impl Rule {
    /// Appends a piece.
    #[must_use]
    pub fn then(mut self, piece: Self) -> Self {
        if !self.text.is_empty() && !piece.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(&piece.text);
        self.expressions.extend(piece.expressions);
        self
    }

    fn new(text: impl Into<String>, expressions: Vec<Expression>) -> Self {
        Self { text: text.into(), expressions }
    }
}

/// Which slots of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slots {
    /// Those of the cluster set.
    Cluster,
    /// Those of the local set.
    Local,
}

impl Slots {
    /// The first.
    pub fn offset(self) -> u32 {
        match self {
            Self::Cluster => 0,
            Self::Local => LOCAL_SLOTS,
        }
    }
}

/// By what a packet's service is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// By address, protocol and port.
    Address,
    /// By protocol and port: a node port.
    NodePort,
}

impl Place {
    /// The map of where services lead.
    pub fn services(self) -> Map {
        match self {
            Self::Address => Map::Services,
            Self::NodePort => Map::NodePorts,
        }
    }

    /// The map of the endpoints.
    pub fn endpoints(self) -> Map {
        match self {
            Self::Address => Map::Endpoints,
            Self::NodePort => Map::NodePortEndpoints,
        }
    }

    fn affinity(self) -> Map {
        match self {
            Self::Address => Map::Affinity,
            Self::NodePort => Map::NodePortAffinity,
        }
    }

    /// The map of the lasting slots.
    pub fn lasting(self) -> Map {
        match self {
            Self::Address => Map::Lasting,
            Self::NodePort => Map::NodePortLasting,
        }
    }
}

impl Place {
    /// The set of the lasting slots whose endpoints live.
    pub fn live(self) -> Map {
        match self {
            Self::Address => Map::Live,
            Self::NodePort => Map::NodePortLive,
        }
    }
}

/// Some number that tells our hash from others'.
const HASH_SEED: u32 = 0x7e1a_1000;
/// The type of an address that is this machine's own.
const ROUTE_LOCAL: u32 = 2;
/// The bit of a connection's status that says that another connection announced it.
const STATUS_EXPECTED: u32 = 1;
/// The bit that says that both sides have spoken.
const STATUS_ANSWERED: u32 = 1 << 1;
/// The bit of a connection's status that says that its destination was changed.
const STATUS_DNAT: u32 = 1 << 5;

/// The words of one family.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// Which.
    pub family: IpFamily,
}

impl Words {
    /// How many registers an address takes.
    fn address_regs(self) -> u8 {
        match self.family {
            IpFamily::V4 => 1,
            IpFamily::V6 => 4,
        }
    }

    fn name(self) -> &'static str {
        match self.family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        }
    }

    fn source(self, to: u8) -> Expression {
        let (offset, len) = match self.family {
            IpFamily::V4 => (12, 4),
            IpFamily::V6 => (8, 16),
        };
        Expression::Payload { to: Reg(to), base: Payload::Network, offset, len }
    }

    fn destination(self, to: u8) -> Expression {
        let (offset, len) = match self.family {
            IpFamily::V4 => (16, 4),
            IpFamily::V6 => (24, 16),
        };
        Expression::Payload { to: Reg(to), base: Payload::Network, offset, len }
    }

    /// Loads what a service is found by; tells how nft writes it, and the register after it.
    fn service_key(self, place: Place, at: u8) -> (String, Vec<Expression>, u8) {
        let protocol = |to| Expression::Meta { to: Reg(to), key: MetaKey::Protocol };
        let port =
            |to| Expression::Payload { to: Reg(to), base: Payload::Transport, offset: 2, len: 2 };
        match place {
            Place::NodePort => {
                ("meta l4proto . th dport".to_owned(), vec![protocol(at), port(at + 1)], at + 2)
            }
            Place::Address => {
                let after = at + self.address_regs();
                (
                    format!("{} daddr . meta l4proto . th dport", self.name()),
                    vec![self.destination(at), protocol(after), port(after + 1)],
                    after + 2,
                )
            }
        }
    }

    /// Goes the way that the packet's service leads, if it has one.
    pub fn dispatch(self, place: Place) -> Rule {
        let (key, mut expressions, way) = self.service_key(place, 0);
        let (services, ways) = (place.services().name(), Map::Ways.name());
        expressions.push(Expression::Lookup {
            map: services.to_owned(),
            key: Reg(0),
            to: Reg(way),
        });
        expressions.extend(Self::launder(way, way + 1));
        expressions.push(Expression::LookupVerdict { map: ways.to_owned(), key: Reg(way) });
        Rule::new(
            format!("meta mark set {key} map @{services} meta mark vmap @{ways}"),
            expressions,
        )
    }

    /// Asks the chain that knows who may use a load balancer's address.
    pub fn check_source(self) -> Rule {
        let (key, mut expressions, _) = self.service_key(Place::Address, 0);
        let map = Map::Firewall.name();
        expressions.push(Expression::LookupVerdict { map: map.to_owned(), key: Reg(0) });
        Rule::new(format!("{key} vmap @{map}"), expressions)
    }

    /// Goes to the endpoint that stands in the registers from `at` on.
    fn dnat(self, at: u8) -> Expression {
        Expression::DestinationNat {
            family: nft_family(self.family),
            address: Reg(at),
            port: Reg(at + self.address_regs()),
        }
    }

    /// Goes to an endpoint whose slot is a generated number.
    pub fn pick(self, place: Place, slots: Slots, count: u32, kind: NumgenKind) -> Rule {
        let (key, mut expressions, slot) = self.service_key(place, 0);
        expressions.push(Expression::Numgen {
            to: Reg(slot),
            kind,
            modulus: count,
            offset: slots.offset(),
        });
        self.go(place, &key, &numgen_text(kind, count, slots), slot, expressions)
    }

    /// Goes to an endpoint whose slot is a hash of the client's address.
    pub fn pick_by_source(self, place: Place, slots: Slots, count: u32) -> Rule {
        let (key, mut expressions, slot) = self.service_key(place, 0);
        let source = (slot + 1).next_multiple_of(4);
        expressions.push(self.source(source));
        expressions.push(Expression::Hash {
            from: Reg(source),
            len: u32::from(self.address_regs()) * 4,
            to: Reg(slot),
            modulus: count,
            seed: HASH_SEED,
            offset: slots.offset(),
        });
        let hash = format!(
            "jhash {} saddr mod {count} seed {HASH_SEED:#x}{}",
            self.name(),
            offset_text(slots)
        );
        self.go(place, &key, &hash, slot, expressions)
    }

    fn go(
        self,
        place: Place,
        key: &str,
        slot_text: &str,
        slot: u8,
        mut expressions: Vec<Expression>,
    ) -> Rule {
        let map = place.endpoints().name();
        expressions.extend(Self::launder(slot, slot + 1));
        expressions.push(Expression::Lookup { map: map.to_owned(), key: Reg(0), to: Reg(0) });
        expressions.push(self.dnat(0));
        let text = format!(
            "meta mark set {slot_text} dnat {} to {key} . meta mark map @{map}",
            self.name()
        );
        Rule::new(text, expressions)
    }

    /// Takes a value out of a register and puts it back by way of the packet's mark, which then is
    /// what it was. The kernel needs none of it. But old releases of nft crash when they list a rule
    /// in which one look-up's result is another's key, and they cannot read back what they print where
    /// a number is a part of a key. So nft gets to see marks only.
    fn launder(value: u8, saved: u8) -> Vec<Expression> {
        let mark = |to| Expression::Meta { to: Reg(to), key: MetaKey::Mark };
        vec![
            mark(saved),
            Expression::SetMark { from: Reg(value) },
            mark(value),
            Expression::SetMark { from: Reg(saved) },
        ]
    }

    fn affinity_key(self, place: Place) -> (String, Vec<Expression>, u8) {
        let (key, expressions, next) = self.service_key(place, self.address_regs());
        let text = format!("{} saddr . {key}", self.name());
        (text, [vec![self.source(0)], expressions].concat(), next)
    }

    /// A client that has an endpoint, which lives and is of the right set, goes there and has it
    /// for as long again.
    pub fn stay(self, place: Place, slots: Slots, timeout_s: u32) -> Rule {
        let (key, mut expressions, slot) = self.affinity_key(place);
        let (saved, affinity) = (slot + 1, place.affinity().name());
        let lookup = |map: &str, key: u8, to: u8| Expression::Lookup {
            map: map.to_owned(),
            key: Reg(key),
            to: Reg(to),
        };
        expressions.push(lookup(affinity, 0, slot));
        expressions.extend(Self::launder(slot, saved));
        expressions.push(Expression::Bitwise {
            from: Reg(slot),
            to: Reg(saved),
            mask: LOCAL_SLOTS.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        });
        expressions.push(Expression::Compare {
            from: Reg(saved),
            op: CompareOp::Equal,
            value: slots.offset().to_ne_bytes().to_vec(),
        });
        // The key's registers are still needed; the saved mark's are not.
        let endpoint = saved;
        expressions.push(lookup(place.endpoints().name(), self.address_regs(), endpoint));
        expressions.push(Expression::Dynset {
            set: affinity.to_owned(),
            op: DynsetOp::Update,
            key: Reg(0),
            data: Some(Reg(slot)),
            timeout_ms: Some(u64::from(timeout_s) * 1000),
        });
        expressions.push(self.dnat(endpoint));
        let (service_key, _, _) = self.service_key(place, 0);
        Rule::new(
            format!(
                "meta mark set {key} map @{affinity} meta mark & {LOCAL_SLOTS:#x} == {:#x} update \
                 @{affinity} {{ {key} timeout {timeout_s}s : meta mark }} dnat {} to {service_key} . \
                 meta mark map @{}",
                slots.offset(),
                self.name(),
                place.endpoints().name()
            ),
            expressions,
        )
    }

    /// A client whose endpoint is gone has it no more. Only then: another connection of the client
    /// may have chosen a moment ago, on another core.
    pub fn leave_dead(self, place: Place) -> Rule {
        let (live, service) = (place.live().name(), self.service_key(place, 0).0);
        let is_dead = vec![Expression::InSet {
            set: live.to_owned(),
            key: Reg(self.address_regs()),
            inverted: true,
        }];
        self.leave(place, &format!("{service} . meta mark != @{live}"), |_| is_dead)
    }

    /// A client whose endpoint is of the other set, as after a change of policy, has it no more.
    pub fn leave_other(self, place: Place, slots: Slots) -> Rule {
        let text = format!("meta mark & {LOCAL_SLOTS:#x} != {:#x}", slots.offset());
        self.leave(place, &text, |slot| {
            vec![
                Expression::Bitwise {
                    from: Reg(slot),
                    to: Reg(slot + 1),
                    mask: LOCAL_SLOTS.to_ne_bytes().to_vec(),
                    xor: vec![0; 4],
                },
                Expression::Compare {
                    from: Reg(slot + 1),
                    op: CompareOp::NotEqual,
                    value: slots.offset().to_ne_bytes().to_vec(),
                },
            ]
        })
    }

    fn leave(
        self,
        place: Place,
        condition_text: &str,
        condition: impl FnOnce(u8) -> Vec<Expression>,
    ) -> Rule {
        let (key, mut expressions, slot) = self.affinity_key(place);
        let affinity = place.affinity().name();
        expressions.push(Expression::Lookup {
            map: affinity.to_owned(),
            key: Reg(0),
            to: Reg(slot),
        });
        expressions.extend(Self::launder(slot, slot + 1));
        expressions.extend(condition(slot));
        expressions.push(Expression::Dynset {
            set: affinity.to_owned(),
            op: DynsetOp::Delete,
            key: Reg(0),
            data: Some(Reg(slot)),
            timeout_ms: None,
        });
        Rule::new(
            format!(
                "meta mark set {key} map @{affinity} {condition_text} delete @{affinity} {{ {key} : \
                 meta mark }}"
            ),
            expressions,
        )
    }

    /// A client without an endpoint gets one by chance.
    pub fn settle(self, place: Place, slots: Slots, count: u32, timeout_s: u32) -> Rule {
        let (key, mut expressions, slot) = self.affinity_key(place);
        let (saved, affinity, lasting) =
            (slot + 1, place.affinity().name(), place.lasting().name());
        let kind = NumgenKind::Random;
        expressions.push(Expression::Numgen {
            to: Reg(slot),
            kind,
            modulus: count,
            offset: slots.offset(),
        });
        expressions.extend(Self::launder(slot, saved));
        expressions.push(Expression::Lookup {
            map: lasting.to_owned(),
            key: Reg(self.address_regs()),
            to: Reg(slot),
        });
        expressions.extend(Self::launder(slot, saved));
        expressions.push(Expression::Dynset {
            set: affinity.to_owned(),
            op: DynsetOp::Update,
            key: Reg(0),
            data: Some(Reg(slot)),
            timeout_ms: Some(u64::from(timeout_s) * 1000),
        });
        let (service_key, _, _) = self.service_key(place, 0);
        Rule::new(
            format!(
                "meta mark set {} meta mark set {service_key} . meta mark map @{lasting} update \
                 @{affinity} {{ {key} timeout {timeout_s}s : meta mark }}",
                numgen_text(kind, count, slots)
            ),
            expressions,
        )
    }

    /// Sets a bit of the mark.
    pub fn mark(self, bit: u32) -> Rule {
        Rule::new(
            format!("meta mark set meta mark | {bit:#010x}"),
            vec![
                Expression::Meta { to: Reg(0), key: MetaKey::Mark },
                Expression::Bitwise {
                    from: Reg(0),
                    to: Reg(0),
                    mask: (!bit).to_ne_bytes().to_vec(),
                    xor: bit.to_ne_bytes().to_vec(),
                },
                Expression::SetMark { from: Reg(0) },
            ],
        )
    }

    /// Goes on only if the bit is set.
    pub fn is_marked(self, bit: u32) -> Rule {
        Rule::new(
            format!("meta mark & {bit:#010x} != 0x00000000"),
            any_of(Expression::Meta { to: Reg(0), key: MetaKey::Mark }, bit, CompareOp::NotEqual),
        )
    }

    /// If the bit is set, clears it, and gives the connection this machine's address.
    pub fn masquerade_marked(self, bit: u32) -> Rule {
        let clear = Rule::new(
            format!("meta mark set meta mark & {:#010x}", !bit),
            vec![
                Expression::Meta { to: Reg(0), key: MetaKey::Mark },
                Expression::Bitwise {
                    from: Reg(0),
                    to: Reg(0),
                    mask: (!bit).to_ne_bytes().to_vec(),
                    xor: vec![0; 4],
                },
                Expression::SetMark { from: Reg(0) },
            ],
        );
        self.is_marked(bit).then(clear).then(Self::masquerade())
    }

    fn masquerade() -> Rule {
        Rule::new("masquerade fully-random", vec![Expression::Masquerade])
    }

    /// An endpoint that reached itself through a service gets this machine's address, or it would
    /// answer itself directly.
    pub fn masquerade_hairpin(self) -> Rule {
        let name = self.name();
        let is_dnat = Rule::new(
            "ct status dnat",
            any_of(Expression::ConntrackStatus { to: Reg(0) }, STATUS_DNAT, CompareOp::NotEqual),
        );
        let to_itself = Rule::new(
            format!("{name} saddr . {name} daddr @{}", Map::Hairpin.name()),
            vec![
                self.source(0),
                self.destination(self.address_regs()),
                Expression::InSet {
                    set: Map::Hairpin.name().to_owned(),
                    key: Reg(0),
                    inverted: false,
                },
            ],
        );
        is_dnat.then(to_itself).then(Self::masquerade())
    }

    /// Drops what strangers send to loopback, which they can where loopback addresses are routed.
    pub fn drop_martians(self, loopback: &IpNet) -> Rule {
        let known = STATUS_EXPECTED | STATUS_ANSWERED | STATUS_DNAT;
        let is_new = Rule::new(
            format!("ct status & {known:#x} == 0x0"),
            any_of(Expression::ConntrackStatus { to: Reg(0) }, known, CompareOp::Equal),
        );
        self.to_net(loopback)
            .then(self.in_net("saddr", self.source(0), loopback, CompareOp::NotEqual))
            .then(is_new)
            .then(self.verdict(Verdict::Drop))
    }

    /// Goes on only for cluster addresses.
    pub fn to_cluster_ip(self) -> Rule {
        let set = Map::ClusterIps.name();
        Rule::new(
            format!("{} daddr @{set}", self.name()),
            vec![
                self.destination(0),
                Expression::InSet { set: set.to_owned(), key: Reg(0), inverted: false },
            ],
        )
    }

    /// Goes on only for packets from this network.
    pub fn from_net(self, net: &IpNet) -> Rule {
        self.in_net("saddr", self.source(0), net, CompareOp::Equal)
    }

    /// Goes on only for packets to this network.
    pub fn to_net(self, net: &IpNet) -> Rule {
        self.in_net("daddr", self.destination(0), net, CompareOp::Equal)
    }

    /// Goes on only for packets to elsewhere.
    pub fn not_to_net(self, net: &IpNet) -> Rule {
        self.in_net("daddr", self.destination(0), net, CompareOp::NotEqual)
    }

    fn in_net(self, field: &str, load: Expression, net: &IpNet, op: CompareOp) -> Rule {
        let mut expressions = vec![load];
        let value = address_bytes(net.network());
        if usize::from(net.prefix_len()) < value.len() * 8 {
            expressions.push(Expression::Bitwise {
                from: Reg(0),
                to: Reg(0),
                mask: address_bytes(net.netmask()),
                xor: vec![0; value.len()],
            });
        }
        expressions.push(Expression::Compare { from: Reg(0), op, value });
        let not = if op == CompareOp::NotEqual { "!= " } else { "" };
        let net = if net.prefix_len() == net.max_prefix_len() {
            net.addr().to_string()
        } else {
            net.to_string()
        };
        Rule::new(format!("{} {field} {not}{net}", self.name()), expressions)
    }

    /// Goes on only for packets that came in by this interface, or by one whose name begins so.
    pub fn from_interface(self, name: &str, is_prefix: bool) -> Rule {
        let mut value = name.as_bytes().to_vec();
        if !is_prefix {
            value.resize(INTERFACE_NAME_LEN, 0);
        }
        let star = if is_prefix { "*" } else { "" };
        Rule::new(
            format!("iifname \"{name}{star}\""),
            vec![
                Expression::Meta { to: Reg(0), key: MetaKey::InputName },
                Expression::Compare { from: Reg(0), op: CompareOp::Equal, value },
            ],
        )
    }

    /// Goes on only if the address is this machine's own.
    pub fn is_local(self, address: FibAddress) -> Rule {
        let name = match address {
            FibAddress::Source => "saddr",
            FibAddress::Destination => "daddr",
        };
        Rule::new(
            format!("fib {name} type local"),
            vec![
                Expression::FibType { to: Reg(0), address },
                Expression::Compare {
                    from: Reg(0),
                    op: CompareOp::Equal,
                    value: ROUTE_LOCAL.to_ne_bytes().to_vec(),
                },
            ],
        )
    }

    /// Sends TCP for a node port on loopback to our own listener.
    pub fn redirect_localhost(self, net: &IpNet, port: u16) -> Rule {
        let set = Map::LocalhostNodePorts.name();
        self.to_net(net)
            .then(Self::is_tcp(
                &format!("tcp dport @{set}"),
                vec![
                    Expression::Payload { to: Reg(0), base: Payload::Transport, offset: 2, len: 2 },
                    Expression::InSet { set: set.to_owned(), key: Reg(0), inverted: false },
                ],
            ))
            .then(Rule::new(
                format!("redirect to :{port}"),
                vec![
                    Expression::Immediate { to: Reg(0), value: port.to_be_bytes().to_vec() },
                    Expression::Redirect { port: Reg(0) },
                ],
            ))
    }

    fn is_tcp(text: &str, then: Vec<Expression>) -> Rule {
        const TCP: u8 = 6;
        let is_tcp = vec![
            Expression::Meta { to: Reg(0), key: MetaKey::Protocol },
            Expression::Compare { from: Reg(0), op: CompareOp::Equal, value: vec![TCP] },
        ];
        Rule::new(text, [is_tcp, then].concat())
    }

    /// Refuses TCP by a reset.
    pub fn reset_tcp(self) -> Rule {
        let reset = vec![Expression::Reject(RejectKind::TcpReset)];
        Self::is_tcp("meta l4proto tcp reject with tcp reset", reset)
    }

    /// Refuses by an ICMP message.
    pub fn reject(self) -> Rule {
        let kind = match self.family {
            IpFamily::V4 => RejectKind::PortUnreachableV4,
            IpFamily::V6 => RejectKind::PortUnreachableV6,
        };
        Rule::new("reject", vec![Expression::Reject(kind)])
    }

    /// Decides.
    pub fn verdict(self, verdict: Verdict) -> Rule {
        Rule::new(verdict_text(&verdict), vec![Expression::Verdict(verdict)])
    }

    /// Goes to a chain and not back.
    pub fn goto(self, chain: &str) -> Rule {
        self.verdict(Verdict::Goto(chain.to_owned()))
    }

    /// Goes to a chain and back.
    pub fn jump(self, chain: &str) -> Rule {
        self.verdict(Verdict::Jump(chain.to_owned()))
    }
}

const INTERFACE_NAME_LEN: usize = 16;

/// Goes on if any of the bits of what `load` loads is set (not equal to zero), or none (equal).
fn any_of(load: Expression, bits: u32, zero: CompareOp) -> Vec<Expression> {
    let mask = Expression::Bitwise {
        from: Reg(0),
        to: Reg(0),
        mask: bits.to_ne_bytes().to_vec(),
        xor: vec![0; 4],
    };
    vec![load, mask, Expression::Compare { from: Reg(0), op: zero, value: vec![0; 4] }]
}

/// How nft writes a verdict.
pub fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Drop => "drop".to_owned(),
        Verdict::Accept => "accept".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("jump {chain}"),
        Verdict::Goto(chain) => format!("goto {chain}"),
    }
}

fn numgen_text(kind: NumgenKind, count: u32, slots: Slots) -> String {
    let kind = match kind {
        NumgenKind::Incremental => "inc",
        NumgenKind::Random => "random",
    };
    format!("numgen {kind} mod {count}{}", offset_text(slots))
}

fn offset_text(slots: Slots) -> String {
    match slots.offset() {
        0 => String::new(),
        offset => format!(" offset {offset}"),
    }
}

/// An address as it stands in packets.
pub fn address_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
