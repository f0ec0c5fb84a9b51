//! One rule, as a value and as a text.
//!
//! The text is exactly what `iptables-save` prints for the rule, with both flavours of iptables. So
//! what is wanted is compared with what is there by comparing texts, what was read can be deleted
//! by its text, and a rule that was read back is the same value as the one that was written.
//!
//! ```
//! use telaio_service_proxy::iptables::names::{INPUT, SERVICES};
//! use telaio_service_proxy::iptables::rule::{Rule, States};
//!
//! let rule = Rule::jump(SERVICES).state(States::NEW);
//! assert_eq!(rule.to_string(), "-m conntrack --ctstate NEW -j TELAIO-SERVICES");
//! assert_eq!(rule.to_string().parse(), Ok(rule));
//! ```

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use telaio_model::{IpFamily, Protocol};

use super::names::{ChainName, protocol_name};

/// The longest comment that the kernel keeps, less its end mark.
const COMMENT_BYTES_MAX: usize = 255;

/// The parts of a probability: the kernel counts in 2⁻³¹.
const PROBABILITY_ONE: u32 = 1 << 31;

/// Something that a packet either is or, inverted, is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Is<T> {
    /// What it is compared with.
    pub value: T,
    /// The rule holds for packets that are not so.
    pub invert: bool,
}

/// States of a connection, as connection tracking sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States(u8);

impl States {
    /// In the order in which `iptables-save` prints them.
    const NAMES: [(Self, &str); 5] = [
        (Self::INVALID, "INVALID"),
        (Self::NEW, "NEW"),
        (Self(4), "RELATED"),
        (Self(8), "ESTABLISHED"),
        (Self::DNAT, "DNAT"),
    ];
    /// It makes no sense.
    pub const INVALID: Self = Self(1);
    /// Its first packet.
    pub const NEW: Self = Self(2);
    /// Later ones, or what belongs to it.
    pub const KNOWN: Self = Self(4 | 8);
    /// Its destination was rewritten.
    pub const DNAT: Self = Self(16);

    /// Either of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one of `other` is among these.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Reads a list of names; `None` if one is not known here.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self(0), |all, name| {
            let (state, _) = Self::NAMES.iter().find(|(_, known)| *known == name)?;
            Some(all.or(*state))
        })
    }
}

/// What of a packet is looked for in a set, in the order of the set's own fields. Where a member has a
/// port, it has a protocol too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directions {
    /// Its source address.
    Source,
    /// Its destination address.
    Destination,
    /// The address and port that it goes to.
    DestinationPort,
    /// Those, and its source address.
    DestinationPortSource,
}

impl Directions {
    const ALL: [Self; 4] =
        [Self::Source, Self::Destination, Self::DestinationPort, Self::DestinationPortSource];

    /// As rules spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "src",
            Self::Destination => "dst",
            Self::DestinationPort => "dst,dst",
            Self::DestinationPortSource => "dst,dst,src",
        }
    }

    /// Reads it; `None` if it is none of ours.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == text)
    }
}

/// What a rule asks of a packet beyond addresses, interfaces and protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Nothing; a word for people.
    Comment(Box<str>),
    /// The destination port.
    Port(Protocol, u16),
    /// The source is an address of this machine.
    LocalSource,
    /// The destination is an address of this machine.
    LocalDestination,
    /// The state of its connection.
    State(Is<States>),
    /// Bits of its mark.
    Mark {
        /// What they have to be.
        value: u32,
        /// Which bits.
        mask: u32,
        /// They must not be so.
        invert: bool,
    },
    /// A part of it is in an ipset.
    Set {
        /// The set's name.
        name: Box<str>,
        /// Which part.
        directions: Directions,
        /// It must not be there.
        invert: bool,
    },
    /// It happens by chance, in so many of 2³¹ cases.
    Random(u32),
    /// One of every so many packets, in turn.
    Nth {
        /// How many.
        every: u32,
        /// At which it begins to count.
        packet: u32,
    },
    /// The source was put on a list in the last so many seconds.
    RecentCheck {
        /// The list, named after an endpoint's chain.
        list: ChainName,
        /// How long ago at most.
        seconds: u32,
        /// The family of the source.
        family: IpFamily,
    },
    /// Nothing; the source is put on a list.
    RecentSet {
        /// The list.
        list: ChainName,
        /// The family of the source.
        family: IpFamily,
    },
}

/// What a rule does with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Goes on in another chain, and comes back at its end.
    Jump(ChainName),
    /// Goes back to the chain before.
    Return,
    /// Lets it pass.
    Accept,
    /// Drops it.
    Drop,
    /// Refuses it with the family's "port unreachable".
    Reject(IpFamily),
    /// Sends the connection to this endpoint.
    Dnat(SocketAddr),
    /// Gives the connection the address of this machine, and a random port.
    Masquerade,
    /// Clears the bits of `mask` in the mark and flips those of `value`.
    SetMark {
        /// The bits to flip.
        value: u32,
        /// The bits to clear before.
        mask: u32,
    },
    /// Gives it the mark that an ipset has for the address and port that it goes to; none if they are
    /// not there.
    MapMark {
        /// The set's name.
        set: Box<str>,
    },
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Where the packet comes from.
    pub source: Option<Is<IpNet>>,
    /// Where it goes.
    pub destination: Option<Is<IpNet>>,
    /// The interface that it came in by; a name that ends in `+` is the beginning of a name.
    pub interface: Option<Is<Box<str>>>,
    /// The interface that it goes out by, spelt alike.
    pub out_interface: Option<Is<Box<str>>>,
    /// Its protocol.
    pub protocol: Option<Protocol>,
    /// What else, in order.
    pub matches: Vec<Match>,
    /// What happens to it.
    pub target: Target,
}

impl Rule {
    /// For every packet.
    pub fn new(target: Target) -> Self {
        Self {
            source: None,
            destination: None,
            interface: None,
            out_interface: None,
            protocol: None,
            matches: Vec::new(),
            target,
        }
    }

    /// Goes on in `chain`.
    pub fn jump(chain: ChainName) -> Self {
        Self::new(Target::Jump(chain))
    }

    /// Only from here.
    #[must_use]
    pub fn from(mut self, net: IpNet) -> Self {
        self.source = Some(Is { value: net, invert: false });
        self
    }

    /// Only from elsewhere.
    #[must_use]
    pub fn not_from(mut self, net: IpNet) -> Self {
        self.source = Some(Is { value: net, invert: true });
        self
    }

    /// Only to here.
    #[must_use]
    pub fn to(mut self, net: IpNet) -> Self {
        self.destination = Some(Is { value: net, invert: false });
        self
    }

    /// Only to elsewhere.
    #[must_use]
    pub fn not_to(mut self, net: IpNet) -> Self {
        self.destination = Some(Is { value: net, invert: true });
        self
    }

    /// Only by this interface, or by any other.
    #[must_use]
    pub fn interface(mut self, name: &str, invert: bool) -> Self {
        self.interface = Some(Is { value: name.into(), invert });
        self
    }

    /// Only out by this interface, or by any other.
    #[must_use]
    pub fn out_interface(mut self, name: &str, invert: bool) -> Self {
        self.out_interface = Some(Is { value: name.into(), invert });
        self
    }

    /// Only of this protocol.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Only to this port.
    #[must_use]
    pub fn port(self, protocol: Protocol, port: u16) -> Self {
        self.protocol(protocol).with(Match::Port(protocol, port))
    }

    /// Only where the connection is in one of these states.
    #[must_use]
    pub fn state(self, states: States) -> Self {
        self.with(Match::State(Is { value: states, invert: false }))
    }

    /// Only where the connection is in none of these states.
    #[must_use]
    pub fn not_state(self, states: States) -> Self {
        self.with(Match::State(Is { value: states, invert: true }))
    }

    /// Only where the set has this part of the packet.
    #[must_use]
    pub fn in_set(self, name: &str, directions: Directions) -> Self {
        self.with(Match::Set { name: name.into(), directions, invert: false })
    }

    /// Only where the set does not have this part of the packet.
    #[must_use]
    pub fn not_in_set(self, name: &str, directions: Directions) -> Self {
        self.with(Match::Set { name: name.into(), directions, invert: true })
    }

    /// In so many of so many cases, by chance.
    #[must_use]
    pub fn chance(self, share: u32, of: u32) -> Self {
        let (share, of, one) = (u64::from(share), u64::from(of.max(1)), u64::from(PROBABILITY_ONE));
        let parts = (share * one + of / 2) / of;
        self.with(Match::Random(parts.min(one) as u32))
    }

    /// With a word for people. Names come from outside: what could end the word is left out.
    #[must_use]
    pub fn comment(self, text: &str) -> Self {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || " -_./:;,()".contains(*c);
        let plain: String = text.chars().filter(is_plain).take(COMMENT_BYTES_MAX).collect();
        self.with(Match::Comment(plain.into()))
    }

    /// Only where this holds too.
    #[must_use]
    pub fn with(mut self, also: Match) -> Self {
        self.matches.push(also);
        self
    }

    /// Writes it as `iptables-save` does.
    pub fn write(&self, out: &mut impl Write) -> fmt::Result {
        if let Some(source) = &self.source {
            write_net(out, "-s ", source)?;
        }
        if let Some(destination) = &self.destination {
            write_net(out, "-d ", destination)?;
        }
        for (option, interface) in [("-i ", &self.interface), ("-o ", &self.out_interface)] {
            let Some(interface) = interface else { continue };
            out.write_str(if interface.invert { "! " } else { "" })?;
            out.write_str(option)?;
            out.write_str(&interface.value)?;
            out.write_char(' ')?;
        }
        if let Some(protocol) = self.protocol {
            out.write_str("-p ")?;
            out.write_str(protocol_name(protocol))?;
            out.write_char(' ')?;
        }
        for found in &self.matches {
            found.write(out)?;
        }
        self.target.write(out)
    }
}

fn write_net(out: &mut impl Write, option: &str, net: &Is<IpNet>) -> fmt::Result {
    if net.invert {
        out.write_str("! ")?;
    }
    out.write_str(option)?;
    write_ip(out, net.value.addr())?;
    write!(out, "/{} ", net.value.prefix_len())
}

/// An IPv4 address without the formatter's detours, which would be a good part of all our work.
fn write_ip(out: &mut impl Write, ip: IpAddr) -> fmt::Result {
    let IpAddr::V4(ip) = ip else { return write!(out, "{ip}") };
    let (mut text, mut len) = ([0_u8; 15], 0);
    for (at, octet) in ip.octets().into_iter().enumerate() {
        let digits = [b'.', b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10];
        let wanted = [at > 0, octet >= 100, octet >= 10, true];
        for (digit, _) in digits.into_iter().zip(wanted).filter(|(_, wanted)| *wanted) {
            text[len] = digit;
            len += 1;
        }
    }
    out.write_str(str::from_utf8(&text[..len]).unwrap_or_default())
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f)
    }
}

impl Match {
    fn write(&self, out: &mut impl Write) -> fmt::Result {
        match self {
            Self::Comment(text) => {
                out.write_str("-m comment --comment \"")?;
                out.write_str(text)?;
                out.write_str("\" ")
            }
            Self::Port(protocol, port) => {
                out.write_str("-m ")?;
                out.write_str(protocol_name(*protocol))?;
                write!(out, " --dport {port} ")
            }
            Self::LocalSource => out.write_str("-m addrtype --src-type LOCAL "),
            Self::LocalDestination => out.write_str("-m addrtype --dst-type LOCAL "),
            Self::State(states) => {
                let not = if states.invert { "! " } else { "" };
                write!(out, "-m conntrack {not}--ctstate {} ", states.value)
            }
            Self::Mark { value, mask, invert } => {
                let not = if *invert { "! " } else { "" };
                write!(out, "-m mark {not}--mark {value:#x}/{mask:#x} ")
            }
            Self::Set { name, directions, invert } => {
                let not = if *invert { "! " } else { "" };
                write!(out, "-m set {not}--match-set {name} {} ", directions.as_str())
            }
            Self::Random(parts) => write_probability(out, *parts),
            Self::Nth { every, packet } => {
                write!(out, "-m statistic --mode nth --every {every} --packet {packet} ")
            }
            Self::RecentCheck { list, seconds, family } => {
                write!(out, "-m recent --rcheck --seconds {seconds} --reap --name {list} ")?;
                write_mask(out, *family)
            }
            Self::RecentSet { list, family } => {
                write!(out, "-m recent --set --name {list} ")?;
                write_mask(out, *family)
            }
        }
    }
}

fn write_probability(out: &mut impl Write, parts: u32) -> fmt::Result {
    // Eleven digits, as iptables prints it; in whole numbers, for printing a float costs more than the
    // rest of the rule.
    const DIGITS: u64 = 100_000_000_000;
    let one = u128::from(PROBABILITY_ONE);
    let scaled = u128::from(parts) * u128::from(DIGITS);
    let (down, rest) = ((scaled / one) as u64, scaled % one);
    let is_up = rest * 2 > one || (rest * 2 == one && down % 2 == 1);
    let digits = down + u64::from(is_up);
    let (whole, fraction) = (digits / DIGITS, digits % DIGITS);
    write!(out, "-m statistic --mode random --probability {whole}.{fraction:011} ")
}

fn write_mask(out: &mut impl Write, family: IpFamily) -> fmt::Result {
    out.write_str(match family {
        IpFamily::V4 => "--mask 255.255.255.255 --rsource ",
        IpFamily::V6 => "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource ",
    })
}

impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (state, name) in Self::NAMES {
            if self.meets(state) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl Target {
    fn write(&self, out: &mut impl Write) -> fmt::Result {
        match self {
            Self::Jump(chain) => {
                out.write_str("-j ")?;
                out.write_str(chain.as_str())
            }
            Self::Return => out.write_str("-j RETURN"),
            Self::Accept => out.write_str("-j ACCEPT"),
            Self::Drop => out.write_str("-j DROP"),
            Self::Reject(IpFamily::V4) => {
                out.write_str("-j REJECT --reject-with icmp-port-unreachable")
            }
            Self::Reject(IpFamily::V6) => {
                out.write_str("-j REJECT --reject-with icmp6-port-unreachable")
            }
            Self::Dnat(endpoint) => {
                out.write_str("-j DNAT --to-destination ")?;
                if endpoint.is_ipv6() {
                    return write!(out, "{endpoint}");
                }
                write_ip(out, endpoint.ip())?;
                write!(out, ":{}", endpoint.port())
            }
            Self::Masquerade => out.write_str("-j MASQUERADE --random-fully"),
            Self::SetMark { value, mask } => {
                write!(out, "-j MARK --set-xmark {value:#x}/{mask:#x}")
            }
            Self::MapMark { set } => write!(out, "-j SET --map-set {set} dst,dst --map-mark"),
        }
    }
}
