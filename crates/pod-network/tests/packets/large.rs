//! More than a packet holds, on every way there is.

use telaio_pod_network::node::add_other_nodes;
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Port, Protocol};

use crate::external;
use crate::support::{Node, Wire, echo, lan, serve, serve_on};

/// Much more than any buffer on the way, and a datagram of several fragments.
const SIZES: [(Wire, usize); 2] = [(Wire::Tcp, 1 << 20), (Wire::Udp, 9000)];

#[test]
fn what_is_larger_than_a_packet_arrives_whole_on_one_node_and_from_and_to_the_outside() {
    let node = Node::bare("large", 1);
    let outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    let udp = Port::new(8080, 80).with_protocol(Protocol::Udp);
    node.instance("a", 2, vec![Port::new(8080, 80), udp]);
    node.instance("b", 3, vec![]);
    for size in SIZES {
        let _servers = ["10.77.1.2", "fd77:1::2"].map(|ip| serve(&node, Some("a"), ip, 80, size.0));
        let _outer =
            ["192.168.5.99", "fd05::99"].map(|ip| serve_on(&outside, None, ip, 81, size.0));
        for (ip, published, far) in
            [("10.77.1.2", "192.168.5.1", "192.168.5.99"), ("fd77:1::2", "fd05::1", "fd05::99")]
        {
            let of = |who, ip, port| echo(&node.machine, who, ip, port, size);
            assert_eq!(of(Some("b"), ip, 80), Ok(()), "one bridge {size:?}");
            assert_eq!(of(None, ip, 80), Ok(()), "the node {size:?}");
            assert_eq!(of(Some("b"), far, 81), Ok(()), "masqueraded {size:?}");
            assert_eq!(of(Some("b"), published, 8080), Ok(()), "published, a neighbour {size:?}");
            assert_eq!(echo(&outside, None, published, 8080, size), Ok(()), "published {size:?}");
        }
    }
}

#[test]
fn what_is_larger_than_a_packet_arrives_whole_on_another_node() {
    let ipv6 = |number: u8| format!("fd05::{number}").parse().unwrap();
    for (backend, is_ipv6) in
        [(Backend::default(), false), (Backend::default(), true), (Backend::HostGw, false)]
    {
        let (a, b) = (Node::bare("a", 1), Node::bare("b", 2));
        let _switch = lan(&[&a, &b]);
        for (node, peer) in [(&a, &b), (&b, &a)] {
            node.set_up(backend, is_ipv6.then(|| ipv6(node.number)));
            let request = peer.request(&external(peer));
            node.machine.run(move || add_other_nodes(vec![request]).unwrap());
            node.instance("i", 2, vec![]);
        }
        for size in SIZES {
            for ip in ["10.77.2.2", "fd77:2::2"] {
                let _server = serve(&b, Some("i"), ip, 80, size.0);
                for who in [Some("i"), None] {
                    let answer = echo(&a.machine, who, ip, 80, size);
                    assert_eq!(answer, Ok(()), "{backend:?} {is_ipv6} {who:?} {size:?}");
                }
            }
        }
    }
}
