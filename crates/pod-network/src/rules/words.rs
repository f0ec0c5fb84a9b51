//! The rules, each in the kernel's words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cidr::{IpCidr, IpInet, Ipv4Cidr, Ipv6Cidr};
use telaio_netlink::nftables::{
    CompareOp, DataType, Expression, Family, FibAddress, MetaKey, Payload, Reg, Verdict,
};

use crate::network::PORT_GROUP;

use super::{
    ANY_PORTS, BRIDGES, HAIRPIN, NETWORKS, PORTS, REACH, SOURCES4, SOURCES6, cluster_set, octets,
};
use crate::names::VXLAN_LINK_PREFIX;

/// The type of an address that is this machine's own.
const ROUTE_LOCAL: u32 = 2;
/// The bit of a connection's status that says that its destination was changed.
const STATUS_DNAT: u32 = 1 << 5;
/// Where the results of look-ups go: above every key.
const RESULT: u8 = 8;
/// How many registers the name of a link takes.
const NAME_REGS: u8 = 4;
const ETHER_IPV4: u16 = 0x0800;
const ETHER_ARP: u16 = 0x0806;
const ETHER_IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ICMP_REDIRECT: u8 = 5;
const ICMPV6_REDIRECT: u8 = 137;
const ICMPV6_ROUTER_SOLICITATION: u8 = 133;
const ICMPV6_ROUTER_ADVERTISEMENT: u8 = 134;
const ICMPV6_SOLICITATION: u8 = 135;
const ICMPV6_ADVERTISEMENT: u8 = 136;
/// Who listens to which multicast: query aside, of both versions.
const ICMPV6_LISTENERS: [u8; 3] = [131, 132, 143];

/// The words of one family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    pub(super) family: Family,
}

impl Words {
    fn is_ipv4(self) -> bool {
        self.family == Family::Ip
    }

    pub(super) fn address_type(self) -> DataType {
        if self.is_ipv4() { DataType::Ipv4 } else { DataType::Ipv6 }
    }

    /// How many registers an address takes.
    fn address_regs(self) -> u8 {
        if self.is_ipv4() { 1 } else { 4 }
    }

    fn source(self, to: u8) -> Expression {
        let (offset, len) = if self.is_ipv4() { (12, 4) } else { (8, 16) };
        Expression::Payload { to: Reg(to), base: Payload::Network, offset, len }
    }

    fn destination(self, to: u8) -> Expression {
        let (offset, len) = if self.is_ipv4() { (16, 4) } else { (24, 16) };
        Expression::Payload { to: Reg(to), base: Payload::Network, offset, len }
    }

    pub(super) fn multicast(self) -> IpCidr {
        if self.is_ipv4() {
            v4(Ipv4Addr::new(224, 0, 0, 0), 4)
        } else {
            IpCidr::V6(
                Ipv6Cidr::new(Ipv6Addr::from(0xff << 120), 8)
                    .unwrap_or(Ipv6Cidr::new_host(Ipv6Addr::UNSPECIFIED)),
            )
        }
    }

    /// Goes on if the address that `load` loads is within a network.
    fn within(self, load: Expression, cidr: &IpCidr) -> Vec<Expression> {
        let mut steps = vec![load];
        let address = octets(cidr.first_address());
        let mask = octets(cidr.mask());
        if cidr.network_length() != if self.is_ipv4() { 32 } else { 128 } {
            let xor = vec![0; mask.len()];
            steps.push(Expression::Bitwise { from: Reg(0), to: Reg(0), mask, xor });
        }
        steps.push(equal(0, address));
        steps
    }

    /// From a loopback address, as IPv4 has them.
    fn loopback(load: Expression) -> Vec<Expression> {
        Self { family: Family::Ip }.within(load, &v4(Ipv4Addr::new(127, 0, 0, 0), 8))
    }

    pub(super) fn loopback_from_networks_dropped(self) -> Vec<Expression> {
        let mut steps = vec![group(0, MetaKey::InputGroup), in_set(NETWORKS, false)];
        steps.extend(Self::loopback(self.destination(0)));
        steps.push(Expression::Verdict(Verdict::Drop));
        steps
    }

    pub(super) fn not_for_this_machine_is_done() -> Vec<Expression> {
        vec![
            Expression::FibType { to: Reg(0), address: FibAddress::Destination },
            Expression::Compare {
                from: Reg(0),
                op: CompareOp::NotEqual,
                value: ROUTE_LOCAL.to_ne_bytes().to_vec(),
            },
            Expression::Verdict(Verdict::Accept),
        ]
    }

    /// The kernel does not let ::1 leave the machine.
    pub(super) fn to_loopback_is_done(self) -> Vec<Expression> {
        vec![
            self.destination(0),
            equal(0, octets(Ipv6Addr::LOCALHOST.into())),
            Expression::Verdict(Verdict::Accept),
        ]
    }

    /// To the instance that the port is published for, at this address or at all.
    pub(super) fn published(self, at_address: bool) -> Vec<Expression> {
        let mut steps = Vec::new();
        let mut at = 0;
        if at_address {
            steps.push(self.destination(0));
            at = self.address_regs();
        }
        steps.push(Expression::Meta { to: Reg(at), key: MetaKey::Protocol });
        steps.push(Expression::Payload {
            to: Reg(at + 1),
            base: Payload::Transport,
            offset: 2,
            len: 2,
        });
        let map = if at_address { PORTS } else { ANY_PORTS };
        steps.push(Expression::Lookup { map: map.to_owned(), key: Reg(0), to: Reg(RESULT) });
        steps.push(Expression::DestinationNat {
            family: self.family,
            address: Reg(RESULT),
            port: Reg(RESULT + self.address_regs()),
        });
        steps
    }

    pub(super) fn hairpin_masqueraded(self) -> Vec<Expression> {
        vec![
            self.source(0),
            self.destination(self.address_regs()),
            in_set(HAIRPIN, false),
            Expression::Masquerade,
        ]
    }

    pub(super) fn loopback_to_networks_masqueraded(self) -> Vec<Expression> {
        let mut steps = vec![group(0, MetaKey::OutputGroup), in_set(NETWORKS, false)];
        steps.extend(Self::loopback(self.source(0)));
        steps.push(Expression::Masquerade);
        steps
    }

    /// Neighbours speak of each other with addresses that only count on their link, and that nobody carries on.
    pub(super) fn link_local_is_done(self) -> Vec<Expression> {
        let mut steps = self.link_local_sources();
        steps.push(Expression::Verdict(Verdict::Accept));
        steps
    }

    fn link_local_sources(self) -> Vec<Expression> {
        let network = Ipv6Cidr::new(Ipv6Addr::from(0xfe80 << 112), 10);
        let network = network.unwrap_or(Ipv6Cidr::new_host(Ipv6Addr::UNSPECIFIED));
        self.within(self.source(0), &IpCidr::V6(network))
    }

    /// What comes from a network has a source that is reached by the link that it comes by. Other nodes vouch for theirs.
    pub(super) fn foreign_sources_dropped() -> Vec<Expression> {
        vec![
            group(0, MetaKey::InputGroup),
            in_set(NETWORKS, false),
            Expression::Meta { to: Reg(0), key: MetaKey::InputName },
            Expression::Compare {
                from: Reg(0),
                op: CompareOp::NotEqual,
                value: VXLAN_LINK_PREFIX.as_bytes().to_vec(),
            },
            Expression::FibInputLink { to: Reg(0), address: FibAddress::Source },
            equal(0, vec![0; 4]),
            Expression::Verdict(Verdict::Drop),
        ]
    }

    pub(super) fn between(self, from: &IpCidr, to: &IpCidr, verdict: Verdict) -> Vec<Expression> {
        let mut steps = self.within(self.source(0), from);
        steps.extend(self.within(self.destination(0), to));
        steps.push(Expression::Verdict(verdict));
        steps
    }

    /// What goes to another node's network keeps its address.
    pub(super) fn to_cluster_is_done(self, length: u8, set: &str) -> Vec<Expression> {
        let mut steps = self.masked(self.destination(0), length).to_vec();
        steps.extend([in_set(set, false), Expression::Verdict(Verdict::Accept)]);
        steps
    }

    pub(super) fn masqueraded(self, from: &IpCidr) -> Vec<Expression> {
        let mut steps = self.within(self.source(0), from);
        steps.push(Expression::Masquerade);
        steps
    }

    /// Connections whose destination was changed are meant: somebody published a port or a service.
    pub(super) fn other_networks_dropped() -> Vec<Expression> {
        let mut steps = vec![
            group(0, MetaKey::InputGroup),
            in_set(NETWORKS, false),
            group(0, MetaKey::OutputGroup),
            in_set(NETWORKS, false),
            group(0, MetaKey::InputGroup),
            group(1, MetaKey::OutputGroup),
            in_set(REACH, true),
        ];
        steps.extend(Self::not_translated());
        steps.push(Expression::Verdict(Verdict::Drop));
        steps
    }

    /// A network of this machine that is not the one that belongs to other nodes' does not reach them, nor they it; unless it may
    /// reach that one.
    pub(super) fn strangers_to_cluster_dropped(
        self,
        length: u8,
        carrier: u32,
        is_back: bool,
    ) -> Vec<Expression> {
        let carrier = carrier.to_ne_bytes().to_vec();
        let (key, stranger_at, carrier_at) =
            if is_back { (MetaKey::OutputGroup, 1, 0) } else { (MetaKey::InputGroup, 0, 1) };
        let theirs = if is_back { self.source(0) } else { self.destination(0) };
        let mut steps = vec![group(0, key), in_set(NETWORKS, false)];
        steps.extend(self.masked(theirs, length));
        steps.push(in_set(&cluster_set(length), false));
        steps.push(group(stranger_at, key));
        steps.push(Expression::Immediate { to: Reg(carrier_at), value: carrier });
        steps.push(in_set(REACH, true));
        steps.extend(Self::not_translated());
        steps.push(Expression::Verdict(Verdict::Drop));
        steps
    }

    /// An address's network of this length.
    fn masked(self, load: Expression, length: u8) -> [Expression; 2] {
        let any = if self.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        let mask = octets(IpInet::new(any, length).map_or(any, |inet| inet.mask()));
        let xor = vec![0; mask.len()];
        [load, Expression::Bitwise { from: Reg(0), to: Reg(0), mask, xor }]
    }

    /// Goes on unless somebody has changed the connection's destination.
    fn not_translated() -> [Expression; 3] {
        [
            Expression::ConntrackStatus { to: Reg(0) },
            Expression::Bitwise {
                from: Reg(0),
                to: Reg(0),
                mask: STATUS_DNAT.to_ne_bytes().to_vec(),
                xor: vec![0; 4],
            },
            equal(0, vec![0; 4]),
        ]
    }

    pub(super) fn redirects_dropped(self) -> Vec<Expression> {
        let (protocol, kind) =
            if self.is_ipv4() { (ICMP, ICMP_REDIRECT) } else { (ICMPV6, ICMPV6_REDIRECT) };
        vec![
            group(0, MetaKey::OutputGroup),
            in_set(NETWORKS, false),
            Expression::Meta { to: Reg(0), key: MetaKey::Protocol },
            equal(0, vec![protocol]),
            Expression::Payload { to: Reg(0), base: Payload::Transport, offset: 0, len: 1 },
            equal(0, vec![kind]),
            Expression::Verdict(Verdict::Drop),
        ]
    }
}

/// What becomes of frames, in order.
pub(super) fn frames() -> Vec<Vec<Expression>> {
    let v6 = Words { family: Family::Ip6 };
    let accept = || Expression::Verdict(Verdict::Accept);
    let is = |kind: u16| {
        vec![
            Expression::Meta { to: Reg(0), key: MetaKey::EtherType },
            equal(0, kind.to_be_bytes().to_vec()),
        ]
    };
    let mut from_others = vec![group(0, MetaKey::InputGroup)];
    from_others.push(not_equal(0, PORT_GROUP.to_ne_bytes().to_vec()));
    from_others.push(accept());
    // In ARP the sender's address comes after its hardware address.
    let arp =
        Expression::Payload { to: Reg(NAME_REGS), base: Payload::Network, offset: 14, len: 4 };
    let v4_source = Words { family: Family::Ip }.source(NAME_REGS);
    let false_sender = |kind, source, set| {
        let name = Expression::Meta { to: Reg(0), key: MetaKey::InputName };
        let known = [name, source, in_set(set, true), Expression::Verdict(Verdict::Drop)];
        [is(kind), known.to_vec()].concat()
    };
    let mut other_kinds = vec![Expression::Meta { to: Reg(0), key: MetaKey::EtherType }];
    let known = [ETHER_IPV4, ETHER_IPV6, ETHER_ARP];
    other_kinds.extend(known.map(|kind| not_equal(0, kind.to_be_bytes().to_vec())));
    other_kinds.push(Expression::Verdict(Verdict::Drop));
    let mut rules = vec![
        from_others,
        past_the_node_dropped(),
        false_sender(ETHER_IPV4, v4_source, SOURCES4),
        false_sender(ETHER_ARP, arp, SOURCES4),
    ];
    rules.extend(neighbour_messages().into_iter().map(|rule| [is(ETHER_IPV6), rule].concat()));
    rules.push(false_sender(ETHER_IPV6, v6.source(NAME_REGS), SOURCES6));
    rules.push(other_kinds);
    rules
}

/// What IPv6 says about who has an address. Messages of routers are the node's alone; who has an address says so of no other;
/// who has none yet asks whether anybody has the one that will be its own, looks for routers, or says what it listens to.
fn neighbour_messages() -> Vec<Vec<Expression>> {
    let v6 = Words { family: Family::Ip6 };
    let message = |kind: u8| {
        vec![
            Expression::Meta { to: Reg(0), key: MetaKey::Protocol },
            equal(0, vec![ICMPV6]),
            Expression::Payload { to: Reg(0), base: Payload::Transport, offset: 0, len: 1 },
            equal(0, vec![kind]),
        ]
    };
    // The address that it is about comes after type, code, checksum and four bytes more.
    let about = |is_others| {
        vec![
            Expression::Meta { to: Reg(0), key: MetaKey::InputName },
            Expression::Payload {
                to: Reg(NAME_REGS),
                base: Payload::Transport,
                offset: 8,
                len: 16,
            },
            in_set(SOURCES6, is_others),
        ]
    };
    let verdict = |verdict| vec![Expression::Verdict(verdict)];
    let unspecified = octets(Ipv6Addr::UNSPECIFIED.into());
    let from_nobody = || vec![v6.source(0), equal(0, unspecified.clone())];
    let mut rules: Vec<_> = [ICMPV6_ROUTER_ADVERTISEMENT, ICMPV6_REDIRECT]
        .map(|kind| [message(kind), verdict(Verdict::Drop)].concat())
        .into();
    rules.push([message(ICMPV6_ADVERTISEMENT), about(true), verdict(Verdict::Drop)].concat());
    let own = [message(ICMPV6_SOLICITATION), about(false)].concat();
    rules.push([from_nobody(), own, verdict(Verdict::Accept)].concat());
    for kind in [ICMPV6_ROUTER_SOLICITATION].into_iter().chain(ICMPV6_LISTENERS) {
        rules.push([from_nobody(), message(kind), verdict(Verdict::Accept)].concat());
    }
    rules
}

/// Frames that are for another than a bridge of ours.
fn past_the_node_dropped() -> Vec<Expression> {
    let destination = |len| Expression::Payload { to: Reg(0), base: Payload::Link, offset: 0, len };
    vec![
        // Not those for everybody: who asks for an address has to be heard.
        destination(1),
        Expression::Bitwise { from: Reg(0), to: Reg(0), mask: vec![1], xor: vec![0] },
        equal(0, vec![0]),
        destination(6),
        in_set(BRIDGES, true),
        Expression::Verdict(Verdict::Drop),
    ]
}

fn v4(address: Ipv4Addr, length: u8) -> IpCidr {
    IpCidr::V4(Ipv4Cidr::new(address, length).unwrap_or(Ipv4Cidr::new_host(address)))
}

fn group(to: u8, key: MetaKey) -> Expression {
    Expression::Meta { to: Reg(to), key }
}

fn in_set(set: &str, inverted: bool) -> Expression {
    Expression::InSet { set: set.to_owned(), key: Reg(0), inverted }
}

fn equal(from: u8, value: Vec<u8>) -> Expression {
    Expression::Compare { from: Reg(from), op: CompareOp::Equal, value }
}

fn not_equal(from: u8, value: Vec<u8>) -> Expression {
    Expression::Compare { from: Reg(from), op: CompareOp::NotEqual, value }
}
