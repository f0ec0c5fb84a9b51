//! What leaves the cluster: under which address.

use telaio_pod_network::node::{SetupNodeRequest, setup_node};

use crate::WIRES;
use crate::support::{Node, ask, lan, serve_on};

#[test]
fn what_leaves_the_cluster_is_masqueraded_except_where_told() {
    let node = Node::bare("masq", 1);
    let outside = lan(&[&node]);
    outside.sh("ip address add 192.168.6.1/24 dev sw0; ip address add fd06::1/64 dev sw0 nodad; \
         ip route add 10.77.1.0/24 via 192.168.5.1; ip -6 route add fd77:1::/64 via fd05::1");
    node.machine.run(|| {
        let ip: cidr::Ipv4Inet = "10.77.1.1/24".parse().unwrap();
        let mut request = SetupNodeRequest::new("masq", ip, vec![])
            .with_node_ip("fd77:1::1/64".parse::<cidr::Ipv6Inet>().unwrap());
        request.masquerade_except =
            ["192.168.6.0/24", "fd06::/64"].map(|net| net.parse().unwrap()).to_vec();
        setup_node(request).unwrap();
    });
    node.instance("a", 2, vec![]);
    for wire in WIRES {
        for (ip, seen) in [
            ("192.168.5.99", "192.168.5.1"),
            ("fd05::99", "fd05::1"),
            ("192.168.6.1", "10.77.1.2"),
            ("fd06::1", "fd77:1::2"),
        ] {
            let _server = serve_on(&outside, None, ip, 80, wire);
            assert_eq!(ask(&node, Some("a"), ip, 80, wire).as_deref(), Ok(seen), "{ip} {wire:?}");
        }
    }
    // So is what has no ports.
    outside.sh("nft -f - <<'END'
table inet seen {
  chain in {
    type filter hook input priority 0
    ip saddr 192.168.5.1 icmp type echo-request counter
    ip6 saddr fd05::1 icmpv6 type echo-request counter
    ip saddr 10.77.1.2 icmp type echo-request counter
    ip6 saddr fd77:1::2 icmpv6 type echo-request counter
  }
}
END");
    for ip in ["192.168.5.99", "fd05::99", "192.168.6.1", "fd06::1"] {
        node.machine.sh(&format!("ip netns exec telaio-i-a ping -c 1 -W 20 {ip}"));
    }
    let counted = outside.sh("nft list table inet seen | grep -o 'packets [0-9]*'");
    assert_eq!(counted.lines().collect::<Vec<_>>(), ["packets 1"; 4]);
}
