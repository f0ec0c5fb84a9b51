//! The sums of what goes by vxlan: made before anybody on the way sees it. Left to an uplink that does not know how, they are wrong,
//! and connections stand still for a minute.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use telaio_netlink::offload::{checksum_offload, set_checksum_offload};
use telaio_pod_network::Host;
use telaio_pod_network::node::add_other_nodes;
use telaio_pod_network::overlay::Backend;

use crate::support::frames::{Tap, checksum};
use crate::support::{Node, SILENCE, Wire, enter, lan};
use crate::{WIRES, external};

/// Outside: Ethernet, IPv4, UDP, vxlan.
const OUTER: usize = 14 + 20 + 8 + 8;

/// Whether the sum of a packet to another node's instance within a packet of vxlan over IPv4 is right; none if it is no such packet.
fn inner_sum(frame: &[u8], to: IpAddr, wire: Wire) -> Option<bool> {
    let is_vxlan = frame.get(12..14)? == [8, 0] && frame[23] == 17 && frame[36..38] == [0x21, 0x18];
    let inner = frame.get(OUTER..).filter(|_| is_vxlan)?;
    let (protocol, addresses, target, body) = match (inner.get(12..14)?, to) {
        ([8, 0], IpAddr::V4(to)) => {
            (*inner.get(23)?, inner.get(26..34)?, to.octets().to_vec(), inner.get(34..)?)
        }
        ([0x86, 0xdd], IpAddr::V6(to)) => {
            (*inner.get(20)?, inner.get(22..54)?, to.octets().to_vec(), inner.get(54..)?)
        }
        _ => return None,
    };
    let wanted = if wire == Wire::Tcp { 6 } else { 17 };
    if protocol != wanted || !addresses.ends_with(&target) {
        return None;
    }
    let length = u32::try_from(body.len()).ok()?.to_be_bytes();
    let pseudo = [addresses, &length, &[0, 0, 0, protocol]].concat();
    Some(checksum(&[&pseudo, body].concat()) == 0)
}

/// Whether what an instance sends has the right sum on the uplink.
fn is_right(node: &Node, to: &str, wire: Wire) -> bool {
    let to = SocketAddr::new(to.parse().unwrap(), 9);
    let tap = Tap::open(&node.machine, None, "lan0");
    let sent = node.machine.spawn(move || {
        enter(Some("a"));
        match wire {
            // Nobody answers: what begins a connection is enough.
            Wire::Tcp => drop(TcpStream::connect_timeout(&to, SILENCE)),
            Wire::Udp => {
                let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
                let socket = UdpSocket::bind((any, 0)).unwrap();
                socket.send_to(b"to another node", to).unwrap();
            }
        }
    });
    sent.join().unwrap();
    tap.find(|frame| inner_sum(frame, to.ip(), wire))
}

#[test]
fn what_goes_by_vxlan_has_its_sum_before_anybody_on_the_way_sees_it() {
    let (node, other) = (Node::bare("sum", 1), Node::bare("far", 2));
    let _switch = lan(&[&node, &other]);
    node.set_up(Backend::default(), None);
    let request = other.request(&external(&other));
    node.machine.run(move || add_other_nodes(vec![request]).unwrap());
    node.instance("a", 2, vec![]);
    let is_left = |link: &'static str| node.machine.run(move || checksum_offload(link).unwrap());
    assert!(is_left("lan0"), "links have it by themselves");
    assert!(!is_left("telaio.1"));
    let all = |are_right: bool, when: &str| {
        for to in ["10.77.2.2", "fd77:2::2"] {
            for wire in WIRES {
                assert_eq!(is_right(&node, to, wire), are_right, "{when}: {to} {wire:?}");
            }
        }
    };
    all(true, "of what instances send");
    node.machine.run(|| set_checksum_offload("telaio.1", true).unwrap());
    all(false, "with the offload the test can tell");
    // A link that is made anew is without it, too.
    node.machine.sh("ip link del telaio.1");
    node.machine.run(|| Host::default().repair().unwrap());
    assert!(!is_left("telaio.1"));
    all(true, "of a link that is new");
}
