//! What is written for which records.

use super::*;
use crate::network::{Masquerade, Mode, Subnet};
use crate::port::{Port, Protocol};

fn instance() -> Attachment {
    Attachment {
        network: "net".to_owned(),
        container: "a".to_owned(),
        interface: "eth0".to_owned(),
        netns: String::new(),
        netns_name: None,
        host_link: "tlvabcdefghijkl".to_owned(),
        is_routed: false,
        is_chained: false,
        is_going: false,
        asked_mac: None,
        mac: "02:00:00:00:00:01".to_owned(),
        addresses: vec!["10.1.0.2/24".parse().unwrap(), "fd01::2/64".parse().unwrap()],
        ports: vec![
            Port::new(8080, 80),
            Port::new(53, 5353).with_protocol(Protocol::Udp).at([192, 0, 2, 1]),
        ],
        bandwidth: None,
        pod: None,
    }
}

fn network() -> Network {
    let subnet = |cidr: &str, gateway: &str| Subnet {
        cidr: cidr.parse().unwrap(),
        gateway: Some(gateway.parse().unwrap()),
    };
    Network {
        name: "net".to_owned(),
        group: 0x7e1a_0001,
        bridge: "cni0".to_owned(),
        bridge_mac: "02:00:00:00:00:02".to_owned(),
        subnets: vec![subnet("10.1.0.0/24", "10.1.0.1"), subnet("fd01::/64", "fd01::1")],
        mode: Mode::Routed,
        mtu: None,
        masquerade: Some(Masquerade { except: vec!["10.9.0.0/16".parse().unwrap()] }),
        vlan: None,
        hairpin: false,
        promiscuous: false,
        is_adopted: false,
        is_made: true,
        reaches: Vec::new(),
        joined: Vec::new(),
    }
}

fn in_map<'a>(entries: &'a [Entry], family: Family, map: &str) -> Vec<&'a Entry> {
    entries.iter().filter(|entry| (entry.family, entry.map) == (family, map)).collect()
}

#[test]
fn an_instance_is_elements_only() {
    let entries = entries(&instance());
    let any = in_map(&entries, Family::Ip, ANY_PORTS);
    assert_eq!(any[0].key, [6, 0, 0, 0, 0x1f, 0x90, 0, 0], "tcp . 8080");
    assert_eq!(any[0].value.as_deref(), Some(&[10, 1, 0, 2, 0, 80, 0, 0][..]));
    let at = in_map(&entries, Family::Ip, PORTS);
    assert_eq!(at[0].key, [192, 0, 2, 1, 17, 0, 0, 0, 0, 53, 0, 0], "address . udp . 53");
    assert_eq!(in_map(&entries, Family::Ip6, ANY_PORTS).len(), 1);
    assert!(in_map(&entries, Family::Ip6, PORTS).is_empty(), "an IPv4 address is of no use there");
    assert_eq!(in_map(&entries, Family::Ip, HAIRPIN).len(), 1);
    let sources = in_map(&entries, Family::Bridge, SOURCES4);
    assert_eq!(sources[0].key, b"tlvabcdefghijkl\0\x0a\x01\x00\x02");
    let sources = in_map(&entries, Family::Bridge, SOURCES6);
    assert_eq!(sources.len(), 2);
    assert_eq!(sources[1].key[16..], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
}

#[test]
fn one_that_is_not_whole_has_the_rules_that_it_will_have_in_whichever_order_its_addresses_are_known()
 {
    let begun = Attachment { mac: String::new(), ..instance() };
    let of = |instance: &Attachment| {
        let entries = entries(instance);
        let key = in_map(&entries, Family::Bridge, SOURCES6)[1].key[16..].to_vec();
        std::net::Ipv6Addr::from(<[u8; 16]>::try_from(key).unwrap()).to_string()
    };
    assert_eq!(of(&begun), "fe80::858:aff:fe01:2");
    let mut other = begun.clone();
    other.addresses.reverse();
    assert_eq!(of(&other), of(&begun));
    let whole = Attachment { mac: "0a:58:0a:01:00:02".to_owned(), ..instance() };
    assert_eq!(of(&whole), of(&begun));
    let asked = Attachment { asked_mac: Some("02:00:00:00:00:01".to_owned()), ..begun };
    assert_eq!(of(&asked), of(&instance()));
}

#[test]
fn an_instance_on_no_bridge_is_known_by_its_route_and_one_without_ports_has_none() {
    let routed = Attachment { is_routed: true, ..instance() };
    assert!(entries(&routed).iter().all(|entry| entry.family != Family::Bridge));
    let quiet = Attachment { ports: Vec::new(), ..instance() };
    assert!(entries(&quiet).iter().all(|entry| entry.family == Family::Bridge));
}

#[test]
fn iptables_gets_the_same_as_text() {
    let (networks, instances) = ([network()], [instance()]);
    let others = ["10.2.0.0/24".parse().unwrap()];
    let cluster = Cluster::of(&networks, &others, Some("net"));
    let text = iptables::text(Family::Ip, &cluster, &instances, "");
    for line in [
        "-A TELAIO-POD-PORTS -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80",
        "-A TELAIO-POD-PORTS -d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:5353",
        "-A TELAIO-POD-SOURCE -s 10.1.0.2/32 -d 10.1.0.2/32 -j MASQUERADE",
        "-A TELAIO-POD-SOURCE -d 10.2.0.0/24 -j RETURN",
        "-A TELAIO-POD-SOURCE -s 10.1.0.0/24 -d 10.9.0.0/16 -j RETURN",
        "-A TELAIO-POD-GUARD -s 10.1.0.0/24 -m devgroup --src-group 0x7e1a0001 -j RETURN",
        "-A TELAIO-POD-APART -m devgroup --src-group 0x7e1a0001 -j RETURN",
        "-A TELAIO-POD-APART -d 10.2.0.0/24 -m devgroup --src-group 0x7e1a0000/0xffff0000 -j DROP",
        "-A TELAIO-POD-APART -s 10.2.0.0/24 -m devgroup --dst-group 0x7e1a0000/0xffff0000 -j DROP",
        "-I FORWARD -j TELAIO-POD-APART",
        "-A FORWARD -j TELAIO-POD-PASS",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
    }
    let at = |what: &str| text.lines().position(|line| line.contains(what)).unwrap();
    assert!(at("-d 10.9.0.0/16 -j RETURN") < at("-s 10.1.0.0/24 -j MASQUERADE"));
    let six = iptables::text(Family::Ip6, &cluster, &instances, "");
    assert!(six.contains("--to-destination [fd01::2]:80"), "{six}");
    assert!(!six.contains("10."), "{six}");
}

#[test]
fn iptables_chains_are_led_to_once_and_removed_with_what_leads_there() {
    let there = "*filter\n:FORWARD DROP [0:0]\n:TELAIO-POD-APART - [0:0]\n:OTHER - [0:0]\n\
                 -A FORWARD -j TELAIO-POD-APART\n-A FORWARD -j OTHER\nCOMMIT\n";
    let cluster = Cluster::of(&[], &[], None);
    let text = iptables::text(Family::Ip, &cluster, &[], there);
    assert!(!text.contains("FORWARD -j TELAIO-POD-APART"), "{text}");
    assert!(text.contains("-A FORWARD -j TELAIO-POD-PASS"), "{text}");
    let removal = iptables::removal(there);
    assert_eq!(
        removal,
        "*filter\n:TELAIO-POD-APART - [0:0]\n-D FORWARD -j TELAIO-POD-APART\n-X TELAIO-POD-APART\nCOMMIT\n"
    );
    assert_eq!(iptables::removal("*nat\n:OTHER - [0:0]\n-A OTHER -j RETURN\nCOMMIT\n"), "");
}
