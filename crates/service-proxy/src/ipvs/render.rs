//! A [`State`] as the programs of its parts print it, and take it back.
//!
//! The same state gives the same text. Each part stands under a line that names the program that takes it,
//! in the order in which they have to be given: rules match sets, so the sets come first.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use telaio_model::IpFamily;
use telaio_netlink::ipvs::{
    FLAG_ONE_PACKET, FLAG_PERSISTENT, FLAG_SCHEDULER_1, FLAG_SCHEDULER_2, FLAG_SCHEDULER_3,
    Forwarding, RealServer, VirtualServer,
};

use super::network::Entry;
use super::proxier::{DEVICE, spec};
use super::sets::SetName;
use super::state::State;
use super::types::ServerKey;

/// A text, and the program that takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The program, with its arguments.
    pub program: &'static str,
    /// What it is given.
    pub text: String,
}

/// All parts, each under the name of its program.
pub fn render(state: &State) -> String {
    let mut text = String::new();
    for part in parts(state) {
        let _ = write!(text, "# {}\n{}", part.program, part.text);
    }
    text
}

/// All parts, in the order in which they have to be given to their programs.
pub fn parts(state: &State) -> Vec<Part> {
    let mut parts = vec![
        Part { program: "ipset restore", text: sets(state) },
        Part { program: "ipvsadm --restore", text: servers(state) },
        Part { program: "ip -batch -", text: addresses(state) },
    ];
    parts.extend(state.rules.iter().map(|(family, rules)| Part {
        program: match family {
            IpFamily::V4 => "iptables-restore --noflush",
            IpFamily::V6 => "ip6tables-restore --noflush",
        },
        text: rules.text.clone(),
    }));
    parts
}

/// As `ipset save` prints sets that the backend has made.
fn sets(state: &State) -> String {
    let mut text = String::new();
    for set in &state.sets {
        create(&mut text, *set);
    }
    for (member, mark) in &state.members {
        // Writing to a text cannot fail.
        let _ = write!(text, "add {} {}", member.set, Member(&member.entry));
        if let Some(mark) = mark {
            let _ = write!(text, " skbmark {mark:#x}");
        }
        text.push('\n');
    }
    text
}

fn create(text: &mut String, set: SetName) {
    let spec = spec(set);
    let family = if spec.is_v6 { "inet6" } else { "inet" };
    let marks = if spec.has_marks { " skbinfo" } else { "" };
    let (kind, size, max) = (spec.kind.name(), spec.hash_size, spec.members_max);
    let _ =
        writeln!(text, "create {set} {kind} family {family} hashsize {size} maxelem {max}{marks}");
}

/// A member of a set, as ipset writes it.
struct Member<'a>(&'a Entry);

impl fmt::Display for Member<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |f: &mut fmt::Formatter<'_>, ip: &IpAddr, protocol: u8, port: u16| {
            write!(f, "{},", Ip(*ip))?;
            match protocol {
                6 => write!(f, "tcp:{port}"),
                17 => write!(f, "udp:{port}"),
                132 => write!(f, "sctp:{port}"),
                other => write!(f, "{other}:{port}"),
            }
        };
        match self.0 {
            Entry::Ip(ip) => write!(f, "{}", Ip(*ip)),
            Entry::IpPort { ip, protocol, port } => place(f, ip, *protocol, *port),
            Entry::IpPortIp { ip, protocol, port, other } => {
                place(f, ip, *protocol, *port)?;
                write!(f, ",{}", Ip(*other))
            }
            Entry::IpPortNet { ip, protocol, port, net } => {
                place(f, ip, *protocol, *port)?;
                write!(f, ",{}", Ip(net.network()))?;
                if IpNet::from(net.network()) == *net {
                    return Ok(());
                }
                write!(f, "/{}", net.prefix_len())
            }
        }
    }
}

/// An address as the C library writes it: the last half of a small number of IPv6 like one of IPv4. A mark
/// on record looks so.
struct Ip(IpAddr);

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(ip) => match small(ip) {
                Some(v4) => write!(f, "::{v4}"),
                None => write!(f, "{ip}"),
            },
            IpAddr::V4(ip) => write!(f, "{ip}"),
        }
    }
}

fn small(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let number = u32::try_from(u128::from(ip)).ok()?;
    (number > u32::from(u16::MAX)).then(|| number.into())
}

/// As `ipvsadm --save --numeric` prints them.
fn servers(state: &State) -> String {
    let mut text = String::new();
    for (key, server) in &state.servers {
        let _ = writeln!(text, "-A {}{}", Name(key), Options(&server.server));
        for endpoint in server.endpoints.values() {
            let _ = writeln!(text, "-a {} {}", Name(key), Real(endpoint));
        }
    }
    text
}

/// A virtual server, as ipvsadm's options name it.
struct Name<'a>(&'a ServerKey);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ServerKey::Address { protocol, at } => {
                let option = match protocol {
                    6 => "-t",
                    17 => "-u",
                    _ => "--sctp-service",
                };
                write!(f, "{option} {at}")
            }
            ServerKey::Mark { is_v6, mark } => {
                write!(f, "-f {mark}{}", if *is_v6 { " -6" } else { "" })
            }
        }
    }
}

/// How a virtual server chooses.
struct Options<'a>(&'a VirtualServer);

impl fmt::Display for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VirtualServer { frontend, scheduler, flags, timeout_s, client_prefix_len } = self.0;
        let has = |flag: u32| flags & flag != 0;
        write!(f, " -s {scheduler}")?;
        if has(FLAG_PERSISTENT) {
            write!(f, " -p {timeout_s}")?;
            match frontend.is_v6() {
                true if *client_prefix_len != 128 => write!(f, " -M {client_prefix_len}")?,
                false if *client_prefix_len != 32 => {
                    let mask = u32::MAX.checked_shl(32 - u32::from(*client_prefix_len));
                    write!(f, " -M {}", Ipv4Addr::from(mask.unwrap_or_default()))?;
                }
                _ => {}
            }
        }
        if has(FLAG_ONE_PACKET) {
            write!(f, " -o")?;
        }
        let names = match scheduler.as_str() {
            "sh" => ["sh-fallback", "sh-port", "flag-3"],
            "mh" => ["mh-fallback", "mh-port", "flag-3"],
            _ => ["flag-1", "flag-2", "flag-3"],
        };
        let flags = [FLAG_SCHEDULER_1, FLAG_SCHEDULER_2, FLAG_SCHEDULER_3];
        let set: Vec<&str> =
            flags.iter().zip(names).filter(|(flag, _)| has(**flag)).map(|(_, name)| name).collect();
        if set.is_empty() { Ok(()) } else { write!(f, " -b {}", set.join(",")) }
    }
}

/// An endpoint, as ipvsadm's options say it.
struct Real<'a>(&'a RealServer);

impl fmt::Display for Real<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RealServer { address, weight, method } = self.0;
        let (option, more) = match method {
            Forwarding::Nat | Forwarding::Bypass => ("-m", ""),
            Forwarding::Tunnel => ("-i", " --tun-type ipip"),
            Forwarding::Direct | Forwarding::Local => ("-g", ""),
        };
        write!(f, "-r {} {option} -w {weight}{more}", At(*address))
    }
}

struct At(SocketAddr);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SocketAddr::V4(at) => write!(f, "{at}"),
            SocketAddr::V6(at) => write!(f, "[{}]:{}", Ip((*at.ip()).into()), at.port()),
        }
    }
}

/// Our device with its addresses, as `ip -batch` takes them.
fn addresses(state: &State) -> String {
    let mut text = format!("link add {DEVICE} type dummy\nlink set {DEVICE} up\n");
    for ip in &state.addresses {
        let _ = match ip {
            IpAddr::V4(ip) => writeln!(text, "address add {ip}/32 dev {DEVICE}"),
            IpAddr::V6(ip) => {
                writeln!(text, "address add {ip}/128 dev {DEVICE} noprefixroute nodad")
            }
        };
    }
    text
}
