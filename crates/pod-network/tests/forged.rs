//! Frames that lie about who has an address go nowhere: ARP, and IPv6's messages of neighbours and routers.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use support::frames::{BROADCAST, EVERYBODY, Tap, arp, ether, icmp6, neighbour, tagged};
use support::{Node, PATIENCE, Wire, ask, serve};
use telaio_netlink::rtnl::{Mac, Rtnetlink};

const A4: &str = "10.77.1.2";
const A6: &str = "fd77:1::2";
const A_LINK: &str = "fe80::858:aff:fe4d:102";
const A_MAC: Mac = Mac([0x0a, 0x58, 10, 77, 1, 2]);
const B4: &str = "10.77.1.3";
const B6: &str = "fd77:1::3";
const B_LINK: &str = "fe80::858:aff:fe4d:103";
const B_MAC: Mac = Mac([0x0a, 0x58, 10, 77, 1, 3]);
const NODE4: &str = "10.77.1.1";
const NODE6: &str = "fd77:1::1";
const NOBODY: Mac = Mac([0; 6]);
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const ASKS: u8 = 135;
const SAYS: u8 = 136;

type Named = (&'static str, Vec<u8>);

/// A node with `a`, who lies, and `b`.
fn node(name: &str) -> (Node, Mac) {
    let node = Node::start(name, 1);
    node.instance("a", 2, vec![]);
    node.instance("b", 3, vec![]);
    let bridge = format!("tlb-{name}");
    let link = node.machine.run(move || Rtnetlink::open().unwrap().link(&bridge).unwrap());
    (node, link.unwrap().mac.unwrap())
}

/// Lies in ARP, and at the end a truth, all of them different frames.
fn lies4(to: Mac) -> Vec<Named> {
    let says = |ip, target| arp(2, (A_MAC, ip), target);
    let asks = |ip, about| arp(1, (A_MAC, ip), (NOBODY, about));
    let frame = |body: Vec<u8>| ether(to, A_MAC, ARP, &body);
    vec![
        ("answers for b", frame(says(B4, (to, NODE4)))),
        ("answers for the node", frame(says(NODE4, (to, NODE4)))),
        ("asks as b", frame(asks(B4, NODE4))),
        ("asks as the node", frame(asks(NODE4, B4))),
        ("asks as nobody", frame(asks("10.77.1.77", NODE4))),
        ("asks as somebody elsewhere", frame(asks("192.0.2.7", NODE4))),
        ("says that it is b now", frame(asks(B4, B4))),
        ("answers for b with b's own address", frame(arp(2, (B_MAC, B4), (to, NODE4)))),
        ("asks as b with a priority", tagged(&frame(asks(B4, "10.77.1.9")))),
        ("the truth", frame(asks(A4, NODE4))),
    ]
}

/// Lies in IPv6, and at the end truths.
fn lies6(mac: Mac) -> Vec<Named> {
    let to = EVERYBODY;
    let frame = |packet: Vec<u8>| ether(mac, A_MAC, IPV6, &packet);
    let says = |from, about| frame(icmp6(from, to, &neighbour(SAYS, about, Some(A_MAC)), false));
    let asks = |from, about| frame(icmp6(from, to, &neighbour(ASKS, about, Some(A_MAC)), false));
    let tries = |about| frame(icmp6("::", to, &neighbour(ASKS, about, None), false));
    let hidden = icmp6(A_LINK, to, &neighbour(SAYS, B6, Some(A_MAC)), true);
    let router = [134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut elsewhere = neighbour(137, NODE6, None);
    elsewhere.extend(B6.parse::<std::net::Ipv6Addr>().unwrap().octets());
    vec![
        ("says that it has b's address", says(A6, B6)),
        ("says so from its link's address", says(A_LINK, B6)),
        ("says so from b's link's address", says(B_LINK, B6)),
        ("says that it has b's link's address", says(A_LINK, B_LINK)),
        ("says that it is the node", says(A_LINK, NODE6)),
        ("says that it has an address of nobody", says(A_LINK, "fd77:1::77")),
        ("says so behind another header", frame(hidden)),
        ("says so with a priority", tagged(&says(A_LINK, "fd77:1::3:3"))),
        ("asks as b", asks(B6, NODE6)),
        ("asks as b's link's address", asks(B_LINK, NODE6)),
        ("asks as a link's address of nobody", asks("fe80::77", NODE6)),
        ("asks as the node", asks(NODE6, B6)),
        ("tries the node's address", tries(NODE6)),
        ("tries b's address", tries(B6)),
        ("says that it is a router", frame(icmp6(A_LINK, to, &router, false))),
        ("says that there is a better way", frame(icmp6(A_LINK, to, &elsewhere, false))),
        ("pings as nobody", frame(icmp6("::", to, &[128, 0, 0, 0, 0, 1, 0, 1], false))),
        ("the truth of its own", says(A_LINK, A6)),
        ("the truth about its link's address", says(A6, A_LINK)),
        ("the truth that it tries its own", tries(A6)),
        ("the truth that it looks for routers", {
            frame(icmp6("::", to, &[133, 0, 0, 0, 0, 0, 0, 0], false))
        }),
        ("the truth that it asks", asks(A_LINK, NODE6)),
    ]
}

fn truths(frames: &[Named]) -> BTreeSet<&str> {
    frames.iter().map(|(name, _)| *name).filter(|name| name.starts_with("the truth")).collect()
}

fn all(frames: &[Named]) -> BTreeSet<&str> {
    frames.iter().map(|(name, _)| *name).collect()
}

#[test]
fn an_instance_that_lies_about_addresses_is_not_heard_by_the_node() {
    let (node, mac) = node("lies");
    let lies = [lies4(mac), lies4(BROADCAST), lies6(mac), lies6(Mac([0x33, 0x33, 0, 0, 0, 1]))];
    let tap = Tap::open(&node.machine, Some("a"), "eth0");
    let heard = |frames: &[Named]| {
        let node_side = Tap::open(&node.machine, None, "tlb-lies");
        tap.send_all(frames);
        let heard = node_side.until_last(frames);
        heard.into_iter().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let named = |names: BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    for frames in &lies {
        let wanted: BTreeSet<String> = named(truths(frames));
        assert_eq!(heard(frames), wanted);
    }
    // The second is what sees frames where the kernel shows them to the rules of IP.
    node.machine
        .sh("nft delete table bridge telaio-pods; nft flush chain ip6 telaio-pods localnet; \
         nft flush chain ip telaio-pods localnet");
    for frames in &lies {
        let wanted: BTreeSet<String> = named(all(frames));
        assert_eq!(heard(frames), wanted, "without the rules the test can tell");
    }
    node.machine.run(|| telaio_pod_network::Host::default().repair().unwrap());
    assert_eq!(heard(&lies[2]), named(truths(&lies[2])), "rules that somebody removed are back");
}

#[test]
fn the_node_believes_no_lie_about_who_has_an_address() {
    let (node, mac) = node("faith");
    let tap = Tap::open(&node.machine, Some("a"), "eth0");
    let lie = || {
        let node_side = Tap::open(&node.machine, None, "tlb-faith");
        for frames in [lies4(mac), lies6(mac)] {
            tap.send_all(&frames);
            node_side.until_last(&frames);
        }
    };
    // As the node learns it from b itself.
    node.machine.sh(&format!("ping -c 1 -W 20 {B_LINK}%tlb-faith"));
    let known = |ip: &str| node.machine.sh(&format!("ip neigh show {ip} dev tlb-faith"));
    assert!(known(B_LINK).contains(&B_MAC.to_string()), "{}", known(B_LINK));
    lie();
    for ip in [B4, B6, B_LINK] {
        assert!(known(ip).contains(&B_MAC.to_string()), "{ip}: {}", known(ip));
    }
    for ip in ["10.77.1.77", "fd77:1::77", "fe80::77"] {
        assert_eq!(known(ip), "", "{ip}");
    }
    // Without the rules, and without what the node was told for good, it does.
    node.machine.sh("nft delete table bridge telaio-pods");
    node.machine.sh(&format!(
        "ip neigh del {B4} dev tlb-faith; ip neigh del {B6} dev tlb-faith; ip neigh del {B_LINK} dev tlb-faith || true"
    ));
    lie();
    for ip in [B4, B6, B_LINK, "10.77.1.77", "fe80::77"] {
        let text = known(ip);
        assert!(text.contains(&A_MAC.to_string()), "{ip}: {text}");
    }
}

#[test]
fn no_lie_reaches_another_instance() {
    let (node, _) = node("deaf");
    let tap = Tap::open(&node.machine, Some("a"), "eth0");
    let everybody = Mac([0x33, 0x33, 0, 0, 0, 1]);
    let lies = [lies4(BROADCAST), lies4(B_MAC), lies6(everybody), lies6(B_MAC)].concat();
    // Their last frame comes, too: what is true is not for others either.
    let heard = || {
        let there = Tap::open(&node.machine, Some("b"), "eth0");
        tap.send_all(&lies);
        node.machine.run(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"that was all of it", "10.77.1.3:9").unwrap();
        });
        let heard = there.until(&lies, b"that was all of it");
        heard.into_iter().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(heard(), BTreeSet::new());
    node.machine.sh("nft delete table bridge telaio-pods; \
         for port in $(bridge link | awk '{print $2}' | cut -d@ -f1 | tr -d :); do \
         bridge link set dev $port isolated off mcast_flood on bcast_flood on; done");
    assert_eq!(
        heard().len(),
        all(&lies).len(),
        "with neither rules nor isolation the test can tell"
    );
}

#[test]
fn nobody_gets_what_is_for_another_by_sending_with_its_hardware_address() {
    let (node, mac) = node("theft");
    let tap = Tap::open(&node.machine, Some("a"), "eth0");
    let place = || {
        let table = node.machine.sh("bridge fdb show br tlb-theft");
        let line = table.lines().find(|line| line.starts_with(&B_MAC.to_string()));
        line.unwrap_or_default().split(' ').nth(2).unwrap_or_default().to_owned()
    };
    let port = |id: &'static str| {
        let records =
            node.machine.run(|| telaio_pod_network::Host::default().attachments().unwrap());
        records.into_iter().find(|it| it.container == id).unwrap().host_link
    };
    let steal = || {
        let node_side = Tap::open(&node.machine, None, "tlb-theft");
        // Its own address in it, so that nothing else is wrong with it.
        let frames = [("stolen", ether(mac, B_MAC, ARP, &arp(1, (B_MAC, A4), (NOBODY, NODE4))))];
        tap.send(&frames[0].1);
        node_side.until_last(&frames);
    };
    assert_eq!(place(), port("b"));
    steal();
    assert_eq!(place(), port("b"));
    let _server = serve(&node, Some("b"), B4, 80, Wire::Tcp);
    assert!(ask(&node, None, B4, 80, Wire::Tcp).is_ok(), "within {PATIENCE:?}");
    node.machine.sh(&format!("bridge link set dev {} learning on", port("a")));
    steal();
    assert_eq!(place(), port("a"), "a bridge that learns believes it: the test can tell");
}
