//! The messages, and the real kernel in namespaces of their own, filled and read by ipset(8).

use std::process::Command;

use super::*;
use crate::netns::Netns;
use crate::wire::Messages;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Runs in a namespace of its own that is gone afterwards.
fn apart(name: &str, work: impl FnOnce() + Send) {
    let name = format!("telaio-ipset-{name}-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(work);
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn members(ipset: &mut Ipset, name: &str) -> Vec<Member> {
    let mut found = Vec::new();
    ipset.each_member(name, |member| found.push(member)).unwrap();
    found.sort();
    found
}

#[test]
fn a_destruction_always_names_a_set() {
    for (name, number) in [("blue", 0x0603), ("", 0x0603), ("", 0x0604)] {
        let request = named_request(number, name, 42);
        let message = Messages(request.finish().unwrap()).next().unwrap();
        assert_eq!((message.message_type, message.sequence), (number, 42));
        assert_eq!(attributes(&message).u8(ATTR_PROTOCOL), Some(6));
        assert_eq!(attributes(&message).str(ATTR_SET_NAME), Some(name));
    }
}

#[test]
fn lists_what_ipset_has_made() {
    apart("list", || {
        let mut ipset = Ipset::open().unwrap();
        assert_eq!(ipset.names().unwrap(), [""; 0]);
        shell(
            "ipset create ports bitmap:port range 0-65535
             ipset add ports 30080
             ipset add ports 1-3000
             ipset create places hash:ip,port
             ipset add places 192.0.2.1,tcp:80
             ipset add places 192.0.2.1,sctp:81
             ipset create places6 hash:ip,port family inet6
             ipset add places6 2001:db8::1,udp:53
             ipset create loops hash:ip,port,ip
             ipset add loops 192.0.2.1,tcp:80,192.0.2.2",
        );
        let mut names = ipset.names().unwrap();
        names.sort();
        assert_eq!(names, ["loops", "places", "places6", "ports"]);

        // More than one message has room for.
        let ports: Vec<_> =
            members(&mut ipset, "ports").iter().map(|it| it.port.unwrap()).collect();
        assert_eq!(ports, (1..=3000).chain([30080]).collect::<Vec<u16>>());
        let at = |ip: &str, protocol, port| Member {
            ip: Some(ip.parse().unwrap()),
            port: Some(port),
            protocol: Some(protocol),
        };
        let expected = [at("192.0.2.1", TCP, 80), at("192.0.2.1", SCTP, 81)];
        assert_eq!(members(&mut ipset, "places"), expected);
        assert_eq!(members(&mut ipset, "places6"), [at("2001:db8::1", UDP, 53)]);
        assert_eq!(members(&mut ipset, "loops"), [at("192.0.2.1", TCP, 80)]);
        assert_eq!(members(&mut ipset, "absent"), []);
    });
}

#[test]
fn destroys_one_set_unless_a_rule_needs_it() {
    apart("destroy", || {
        shell(
            "ipset create blue hash:ip,port
             ipset create red hash:ip,port
             ipset create green hash:ip,port
             iptables-legacy -A INPUT -m set --match-set red dst,dst -j ACCEPT",
        );
        let mut ipset = Ipset::open().unwrap();
        assert!(ipset.destroy("blue").unwrap());
        assert!(!ipset.destroy("blue").unwrap(), "it is gone already");
        let busy = ipset.destroy("red").unwrap_err();
        assert!(busy.is_busy() && busy.to_string().contains("red"), "{busy}");
        shell("iptables-legacy -F INPUT");
        assert!(ipset.destroy("red").unwrap());
        assert!(!ipset.destroy("").unwrap(), "no name is not every name");
        assert_eq!(shell("ipset list -name"), "green\n");
    });
}

fn v4(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// One entry of each kind, in both families, and as ipset(8) writes them.
fn samples() -> [(SetKind, bool, Key, &'static str); 8] {
    let (tcp, udp, sctp) = (TCP, UDP, SCTP);
    let [ip, other] = ["192.0.2.1", "198.51.100.7"].map(v4);
    let [ip6, other6] = ["2001:db8::1", "2001:db8::7"].map(v4);
    let net = "10.1.0.0/16".parse().unwrap();
    let net6 = "fd00:1::/64".parse().unwrap();
    let place = |ip, protocol, port| Key::IpPort { ip, protocol, port };
    let pair = |ip, protocol, port, other| Key::IpPortIp { ip, protocol, port, other };
    let from = |ip, protocol, port, net| Key::IpPortNet { ip, protocol, port, net };
    [
        (SetKind::Ip, false, Key::Ip(ip), "192.0.2.1"),
        (SetKind::Ip, true, Key::Ip(ip6), "2001:db8::1"),
        (SetKind::IpPort, false, place(ip, tcp, 80), "192.0.2.1,tcp:80"),
        (SetKind::IpPort, true, place(ip6, sctp, 81), "2001:db8::1,sctp:81"),
        (SetKind::IpPortIp, false, pair(ip, udp, 53, other), "192.0.2.1,udp:53,198.51.100.7"),
        (SetKind::IpPortIp, true, pair(ip6, udp, 53, other6), "2001:db8::1,udp:53,2001:db8::7"),
        (SetKind::IpPortNet, false, from(ip, tcp, 80, net), "192.0.2.1,tcp:80,10.1.0.0/16"),
        (SetKind::IpPortNet, true, from(ip6, tcp, 80, net6), "2001:db8::1,tcp:80,fd00:1::/64"),
    ]
}

#[test]
fn entries_are_in_a_message_with_their_lines() {
    let entries = [
        Entry::new(Key::Ip(v4("192.0.2.1"))),
        Entry { key: Key::Ip(v4("192.0.2.2")), mark: Some(Mark { value: 0x4000, mask: 0xff00 }) },
    ];
    let mut request = Writer::new();
    assert_eq!(entry::put_many(&mut request, MESSAGE_ADD, 42, "blue", &entries), 2);
    let message = Messages(request.finish().unwrap()).next().unwrap();
    // Asks for an answer, and not for a refusal of what is there.
    assert_eq!((message.message_type, message.flags, message.sequence), (0x0609, 5, 42));
    assert_eq!(attributes(&message).str(ATTR_SET_NAME), Some("blue"));
    assert_eq!(attributes(&message).be32(ATTR_LINE), Some(0));
    let found: Vec<_> = listed_members(&message).collect();
    let lines: Vec<_> = found.iter().map(|data| data.be32(ATTR_LINE)).collect();
    assert_eq!(lines, [Some(1), Some(2)]);
    assert_eq!(found[1].get(27), Some(&[0, 0, 0x40, 0, 0, 0, 0xff, 0][..]));
    let read: Vec<_> = found.iter().filter_map(|data| entry::read(SetKind::Ip, *data)).collect();
    assert_eq!(read, entries);
}

#[test]
fn a_message_of_entries_is_bounded() {
    let entries: Vec<_> = (0..10_000_u32)
        .map(|number| Key::IpPortNet {
            ip: std::net::Ipv6Addr::from(u128::from(number)).into(),
            protocol: TCP,
            port: 80,
            net: "fd00::/64".parse().unwrap(),
        })
        .map(|key| Entry { key, mark: Some(Mark { value: 1, mask: 1 }) })
        .collect();
    let mut request = Writer::new();
    let count = entry::put_many(&mut request, MESSAGE_ADD, 42, "blue", &entries);
    assert!((100..1000).contains(&count), "{count}");
    assert!(request.finish().unwrap().len() < MESSAGE_BYTES + 200);
}

#[test]
fn half_an_entry_is_none() {
    for (kind, _, key, _) in samples() {
        let mut request = Writer::new();
        entry::put_many(&mut request, MESSAGE_ADD, 42, "blue", &[Entry::new(key)]);
        let message = Messages(request.finish().unwrap()).next().unwrap();
        let data = listed_members(&message).next().unwrap();
        assert_eq!(entry::read(kind, data), Some(Entry::new(key)));
        for end in 0..data.0.len() {
            let cut = entry::read(kind, Attributes(&data.0[..end]));
            assert!(cut.is_none_or(|cut| cut.mark.is_none()), "{cut:?}");
        }
        assert_eq!(entry::read(kind, Attributes(&[])), None);
    }
    let mut request = Writer::new();
    begin(&mut request, MESSAGE_LIST, 0, 1);
    request.put_str(ATTR_SET_NAME, "blue");
    request.end();
    let message = Messages(request.finish().unwrap()).next().unwrap();
    assert_eq!(set::header(attributes(&message)), None);
}

#[test]
fn sets_of_every_kind_are_made_and_filled_as_ipset_reads_them() {
    apart("kinds", || {
        let mut ipset = Ipset::open().unwrap();
        for (kind, is_v6, key, text) in samples() {
            let spec = SetSpec {
                has_marks: true,
                members_max: 1000,
                hash_size: 64,
                ..SetSpec::new(kind, is_v6)
            };
            assert!(ipset.create("blue", &spec).unwrap());
            assert!(!ipset.create("blue", &spec).unwrap(), "it is there already");
            let marked = Entry { key, mark: Some(Mark { value: 0x1_4000, mask: 0x1_ff00 }) };
            assert!(ipset.add("blue", &[marked]).unwrap().is_empty());
            assert_eq!(ipset.entries("blue", kind).unwrap(), [marked]);
            let family = if is_v6 { "inet6" } else { "inet" };
            let saved = shell("ipset save blue");
            let expected =
                format!("create blue {} family {family} hashsize 64 maxelem 1000", kind.name());
            assert!(saved.starts_with(&expected) && saved.contains(" skbinfo"), "{saved}");
            assert!(
                saved.contains(&format!("add blue {text} skbmark 0x14000/0x1ff00\n")),
                "{saved}"
            );

            let header = ipset.header("blue").unwrap().unwrap();
            assert!(header.is_of(&spec), "{header:?}");
            assert_eq!((header.members, header.references), (Some(1), 0));
            assert_eq!(ipset.headers().unwrap(), std::slice::from_ref(&header));
            let other = SetSpec { has_marks: false, ..spec };
            let error = ipset.create("blue", &other).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
            assert!(error.to_string().contains("blue"), "{error}");

            assert!(ipset.delete("blue", &[Entry::new(key)]).unwrap().is_empty());
            assert_eq!(ipset.entries("blue", kind).unwrap(), []);
            assert!(ipset.destroy("blue").unwrap());
            assert_eq!(ipset.header("blue").unwrap(), None);
        }
    });
}

#[test]
fn what_ipset_has_made_is_read() {
    apart("foreign", || {
        let mut ipset = Ipset::open().unwrap();
        for (kind, is_v6, key, text) in samples() {
            let family = if is_v6 { "inet6" } else { "inet" };
            let name = kind.name();
            shell(&format!("ipset create blue {name} family {family}; ipset add blue {text}"));
            assert_eq!(ipset.entries("blue", kind).unwrap(), [Entry::new(key)]);
            let header = ipset.header("blue").unwrap().unwrap();
            assert!(header.is_of(&SetSpec::new(kind, is_v6)), "{header:?}");
            assert!(ipset.destroy("blue").unwrap());
        }
        shell("ipset create ports bitmap:port range 0-100; ipset add ports 7");
        let header = ipset.header("ports").unwrap().unwrap();
        assert_eq!((header.kind.as_str(), header.members_max), ("bitmap:port", None));
        assert!(ipset.entries("ports", SetKind::IpPort).is_err());
        // A rule's need of a set is told.
        shell("iptables-legacy -A INPUT -m set --match-set ports dst -j ACCEPT");
        assert_eq!(ipset.header("ports").unwrap().unwrap().references, 1);
    });
}

#[test]
fn many_entries_are_added_and_removed_and_what_is_done_is_no_error() {
    apart("many", || {
        let mut ipset = Ipset::open().unwrap();
        ipset.create("blue", &SetSpec::new(SetKind::IpPort, false)).unwrap();
        assert_eq!(ipset.commands(), 1);
        let entry = |number: u32| {
            let ip = std::net::Ipv4Addr::from(0x0a00_0000 | number).into();
            Entry::new(Key::IpPort { ip, protocol: TCP, port: 80 })
        };
        let entries: Vec<_> = (0..3000).map(entry).collect();
        assert!(ipset.add("blue", &entries).unwrap().is_empty());
        assert!(ipset.add("blue", &entries[..7]).unwrap().is_empty(), "they are there");
        assert_eq!(ipset.commands(), 3008);
        let mut found = ipset.entries("blue", SetKind::IpPort).unwrap();
        found.sort();
        assert_eq!(found, entries);
        assert!(ipset.delete("blue", &entries[1..]).unwrap().is_empty());
        assert!(ipset.delete("blue", &entries[1..]).unwrap().is_empty(), "they are gone");
        let saved = shell("ipset save blue");
        assert_eq!(saved.lines().filter(|line| line.starts_with("add")).count(), 1, "{saved}");
        assert!(ipset.flush("blue").unwrap());
        assert_eq!(ipset.entries("blue", SetKind::IpPort).unwrap(), []);
        assert!(!ipset.flush("red").unwrap());
        assert!(ipset.add("blue", &[]).unwrap().is_empty());
    });
}

#[test]
fn a_mark_is_changed_by_adding_it_again() {
    apart("mark", || {
        let mut ipset = Ipset::open().unwrap();
        let spec = SetSpec { has_marks: true, ..SetSpec::new(SetKind::Ip, false) };
        ipset.create("blue", &spec).unwrap();
        for value in [1, 2] {
            let mark = Some(Mark { value, mask: u32::MAX });
            let entry = Entry { key: Key::Ip(v4("192.0.2.1")), mark };
            assert!(ipset.add("blue", &[entry]).unwrap().is_empty());
            assert_eq!(ipset.entries("blue", SetKind::Ip).unwrap(), [entry]);
        }
    });
}

#[test]
fn an_entry_that_is_refused_stops_no_other_and_is_known_by_its_place() {
    apart("refused", || {
        let mut ipset = Ipset::open().unwrap();
        ipset.create("blue", &SetSpec::new(SetKind::IpPortNet, false)).unwrap();
        let entry = |net: &str| {
            let net = net.parse().unwrap();
            Entry::new(Key::IpPortNet { ip: v4("192.0.2.1"), protocol: TCP, port: 80, net })
        };
        let mut entries: Vec<_> = (0..2000_u32)
            .map(|number| entry(&format!("10.{}.{}.0/24", number >> 8, number & 255)))
            .collect();
        // The kernel takes no network of all addresses, and no mark where there is no room.
        let bad = [0, 700, 701, 1999];
        for place in bad {
            entries[place] = entry("0.0.0.0/0");
        }
        entries[1500].mark = Some(Mark { value: 1, mask: 1 });
        let failures = ipset.add("blue", &entries).unwrap();
        let places: Vec<_> = failures.iter().map(|failure| failure.index).collect();
        assert_eq!(places, [0, 700, 701, 1500, 1999]);
        let words = failures[3].to_string();
        assert!(words.contains("blue") && words.contains("room for marks"), "{words}");
        assert_eq!(ipset.entries("blue", SetKind::IpPortNet).unwrap().len(), 1995);

        let error = ipset.add("red", &entries).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(error.to_string().contains("red"), "{error}");
        // An address of the other family.
        let other = Entry::new(Key::Ip(v4("2001:db8::1")));
        assert_eq!(ipset.add("blue", &[other]).unwrap().len(), 1);
    });
}

#[test]
fn a_set_that_is_full_says_so() {
    apart("full", || {
        let mut ipset = Ipset::open().unwrap();
        let spec = SetSpec { members_max: 2, ..SetSpec::new(SetKind::Ip, false) };
        ipset.create("blue", &spec).unwrap();
        let entries = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|ip| Entry::new(Key::Ip(v4(ip))));
        let failures = ipset.add("blue", &entries).unwrap();
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].index, 2);
        assert_eq!(failures[0].error.raw_os_error(), Some(libc::ENOSPC));
        let error = ipset.create(&"n".repeat(40), &spec).unwrap_err().to_string();
        assert!(error.contains("nnn"), "{error}");
    });
}
