//! What a machine is told of other nodes: those that make no sense keep nobody else from being reached, and a change that cannot
//! be made changes nothing.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::net::IpAddr;

use cidr::{Ipv4Inet, Ipv6Inet};
use serde_json::json;
use support::cni::{Call, config_with};
use support::{Node, SILENCE, Wire, ask, ask_from, lan, serve};
use telaio_netlink::offload::{checksum_offload, set_checksum_offload};
use telaio_pod_network::Host;
use telaio_pod_network::instance::{SetupInstanceRequest, setup_instance};
use telaio_pod_network::node::{
    CleanNodeRequest, NodeIp, NodeRequest, SetupIptablesRequest, SetupNodeRequest, add_other_nodes,
    clean_node, delete_node_in_cluster, new_node_in_cluster, setup_iptables, setup_node,
};
use telaio_pod_network::overlay::Backend;

const BACKENDS: [Backend; 2] = [Backend::Vxlan { vni: 1, port: 8472 }, Backend::HostGw];

fn own(name: &str, cidr: &str, others: Vec<NodeRequest>) -> SetupNodeRequest {
    SetupNodeRequest::new(name, cidr.parse::<Ipv4Inet>().unwrap(), others)
}

/// Another node by its network and its address.
fn other(name: &str, cidr: &str, external: &str) -> NodeRequest {
    let external: IpAddr = external.parse().unwrap();
    NodeRequest::new(name, NodeIp::new(cidr.parse::<Ipv4Inet>().unwrap(), external))
}

/// Follows a cluster; what is wrong with it.
fn follow(node: &Node, request: SetupNodeRequest) -> Result<Vec<String>, String> {
    node.machine.run(move || {
        let told = Host::default().follow_cluster(request);
        told.map(|it| it.iter().map(ToString::to_string).collect()).map_err(|it| it.to_string())
    })
}

fn peers(node: &Node) -> Vec<String> {
    let all = node.machine.run(|| Host::default().other_nodes().unwrap());
    all.into_iter().map(|peer| peer.id).collect()
}

fn ways(node: &Node) -> String {
    node.machine
        .sh("ip route; ip -6 route | grep -v fe80; bridge fdb | grep ' dst '; ip neigh show nud permanent; true")
}

fn repair(node: &Node) -> telaio_pod_network::repair::Mended {
    node.machine.run(|| Host::default().repair().unwrap())
}

#[test]
fn a_node_that_gets_the_network_of_one_that_left_is_reached_at_once() {
    for backend in BACKENDS {
        let node = Node::bare("a", 1);
        let _switch = lan(&[&node]);
        let with = move |others| own("a", "10.77.1.1/24", others).with_backend(backend);
        let b = || other("b", "10.77.2.1/24", "192.168.5.2");
        let c = || other("c", "10.77.2.1/24", "192.168.5.3");
        assert!(follow(&node, with(vec![b()])).unwrap().is_empty());
        assert!(ways(&node).contains("192.168.5.2"));
        assert!(follow(&node, with(vec![c()])).unwrap().is_empty());
        let now = ways(&node);
        assert!(now.contains("192.168.5.3") && !now.contains("192.168.5.2"), "{backend:?} {now}");
        assert_eq!(peers(&node), ["c"]);
        // The same by naming them in a call.
        node.machine.run(move || setup_node(with(vec![b()])).unwrap());
        assert_eq!(peers(&node), ["b"]);
        assert!(follow(&node, with(vec![])).unwrap().is_empty());
        let now = ways(&node);
        assert!(!now.contains("10.77.2."), "{backend:?} {now}");
    }
}

#[test]
fn one_node_that_cannot_be_reached_keeps_nobody_else_from_being_reached() {
    for backend in BACKENDS {
        let (a, b) = (Node::bare("a", 1), Node::bare("b", 2));
        let _switch = lan(&[&a, &b]);
        let six: IpAddr = "fd05::9".parse().unwrap();
        let four = "10.77.4.1/24".parse::<Ipv4Inet>().unwrap();
        let mut all = vec![
            other("b", "10.77.2.1/24", "192.168.5.2"),
            other("mine", "10.77.1.1/24", "192.168.5.4"),
            // It comes before b, but b has had it.
            other("again", "10.77.2.129/25", "192.168.5.5"),
            other("garbled", "10.77.5.1/24", "192.168.5.6").with_vtep_mac("no address"),
            NodeRequest::new("silent", NodeIp::new(four, six)),
            NodeRequest::new("nothing", NodeIp { cluster_ip_cidrs: vec![], external_ips: vec![] }),
        ];
        if backend == Backend::HostGw {
            all.push(other("far", "10.77.7.1/24", "172.31.9.9"));
        }
        let with = move |others| own("a", "10.77.1.1/24", others).with_backend(backend);
        assert!(follow(&a, with(all[..1].to_vec())).unwrap().is_empty());
        let problems = follow(&a, with(all.clone())).unwrap().join("\n");
        let mut wanted = vec![
            ("mine", "10.77.1.0/24"),
            ("again", "10.77.2.0/24 of node b"),
            ("garbled", "no hardware address"),
            ("silent", "no address of IPv4"),
            ("nothing", "needs an address and a network"),
        ];
        if backend == Backend::HostGw {
            wanted.push(("far", "172.31.9.9 is not on this node's link"));
        }
        for (node, what) in wanted {
            let is_it = |line: &str| line.contains(&format!("node {node} ")) && line.contains(what);
            assert!(problems.lines().any(is_it), "{backend:?} {node} {what}: {problems}");
        }
        assert!(!problems.contains("node b is"), "{problems}");
        follow(
            &b,
            own("b", "10.77.2.1/24", vec![other("a", "10.77.1.1/24", "192.168.5.1")])
                .with_backend(backend),
        )
        .unwrap();
        a.instance_v4("one", 2);
        b.instance_v4("two", 2);
        let _server = serve(&b, Some("two"), "10.77.2.2", 80, Wire::Tcp);
        let seen = ask(&a, Some("one"), "10.77.2.2", 80, Wire::Tcp);
        assert_eq!(seen.as_deref(), Ok("10.77.1.2"), "{backend:?}");
        // A repair tells of those that it tries in vain, and each of them can go.
        let unreached = repair(&a).unreached.join("\n");
        assert!(unreached.contains("node silent"), "{unreached}");
        assert!(follow(&a, with(all[..1].to_vec())).unwrap().is_empty());
        assert!(repair(&a).unreached.is_empty());
        assert!(ask(&a, Some("one"), "10.77.2.2", 80, Wire::Tcp).is_ok());
    }
}

#[test]
fn a_node_that_is_added_by_name_and_cannot_be_reached_is_refused_and_nothing_changes() {
    for backend in BACKENDS {
        let node = Node::bare("a", 1);
        let _switch = lan(&[&node]);
        let near = other("b", "10.77.2.1/24", "192.168.5.2");
        let known = near.clone();
        node.machine.run(move || {
            setup_node(own("a", "10.77.1.1/24", vec![known]).with_backend(backend)).unwrap();
        });
        let record = |node: &Node| node.machine.sh("cat /var/lib/telaio/pods/node.json");
        let (before, told) = (node.inventory(), record(&node));
        let bad = if backend == Backend::HostGw {
            other("far", "10.77.7.1/24", "172.31.9.9")
        } else {
            let six: IpAddr = "fd05::9".parse().unwrap();
            NodeRequest::new("far", NodeIp::new("10.77.7.1/24".parse::<Ipv4Inet>().unwrap(), six))
        };
        // Alone, after one that could be, and as a change of one that is there.
        let good = other("c", "10.77.3.1/24", "192.168.5.3");
        let mut changed = bad.clone();
        changed.node_id = "b".to_owned();
        for nodes in [vec![bad.clone()], vec![good, bad], vec![changed]] {
            node.machine.run(move || add_other_nodes(nodes).unwrap_err());
            support::assert_same(&node.inventory(), &before, "refused");
            assert_eq!(record(&node), told);
        }
        // Whatever is said of one that leaves, it leaves.
        let garbled =
            NodeRequest::new("b", NodeIp { cluster_ip_cidrs: vec![], external_ips: vec![] });
        node.machine.run(move || delete_node_in_cluster(garbled).unwrap());
        assert!(!ways(&node).contains("10.77.2."));
    }
}

#[test]
fn a_change_of_a_node_that_cannot_be_made_leaves_it_as_it_was() {
    let node = Node::bare("a", 1);
    let _switch = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.machine.run(|| {
        setup_node(own("used", "10.78.0.1/24", vec![])).unwrap();
        let ip: Ipv4Inet = "10.78.0.2/24".parse().unwrap();
        setup_instance(SetupInstanceRequest::new("used", [10, 78, 0, 1], "x", ip, vec![])).unwrap();
        new_node_in_cluster(other("b", "10.79.2.1/24", "192.168.5.2")).unwrap();
    });
    let record = || node.machine.sh("cat /var/lib/telaio/pods/node.json");
    let (before, told) = (node.inventory(), record());
    for cidr in ["10.78.0.129/25", "10.79.2.1/25"] {
        for follows in [false, true] {
            let request = own("a", cidr, vec![]);
            let refused = node.machine.run(move || {
                if follows {
                    Host::default().follow_cluster(request).map(drop)
                } else {
                    setup_node(request).map(drop)
                }
            });
            if follows && cidr.starts_with("10.79") {
                // The cluster no longer has the other node.
                refused.unwrap();
                node.set_up(Backend::default(), None);
                node.machine.run(|| {
                    new_node_in_cluster(other("b", "10.79.2.1/24", "192.168.5.2")).unwrap();
                });
                continue;
            }
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("overlaps"), "{refused}");
            support::assert_same(&node.inventory(), &before, cidr);
            assert_eq!(record(), told);
            assert!(repair(&node).is_nothing());
        }
    }
}

#[test]
fn a_node_with_another_name_takes_the_place_of_the_one_that_it_was() {
    let node = Node::bare("a", 1);
    let _switch = lan(&[&node]);
    let b = || vec![other("b", "10.77.2.1/24", "192.168.5.2")];
    follow(&node, own("old", "10.77.1.1/24", b())).unwrap();
    // With the same network, and with another.
    for (name, cidr) in [("new", "10.77.1.1/24"), ("newer", "10.78.1.1/24")] {
        follow(&node, own(name, cidr, b())).unwrap();
        for _ in 0..2 {
            repair(&node);
            let nodes = node.machine.run(|| Host::default().local_nodes().unwrap());
            assert_eq!(nodes.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), [name]);
            let bridges = node.machine.sh("ip -o link show type bridge");
            assert!(
                bridges.contains(&format!("tlb-{name}:")) && bridges.lines().count() == 1,
                "{bridges}"
            );
        }
        assert!(ways(&node).contains("192.168.5.2"));
    }
    // One with instances stays until they have gone.
    let ip: Ipv4Inet = "10.78.1.2/24".parse().unwrap();
    let instance = SetupInstanceRequest::new("newer", [10, 78, 1, 1], "x", ip, vec![]);
    node.machine.run(move || setup_instance(instance).unwrap());
    let refused = follow(&node, own("last", "10.78.1.1/24", b())).unwrap_err();
    assert!(refused.contains("node newer, which has instances"), "{refused}");
    node.clean("x", 2);
    node.machine.run(|| {
        let gone = telaio_pod_network::instance::CleanInstanceRequest::new(
            "x",
            vec![],
            "10.78.1.2/24".parse::<cidr::IpInet>().unwrap(),
        );
        telaio_pod_network::instance::clean_instance(gone).unwrap();
    });
    follow(&node, own("last", "10.78.1.1/24", b())).unwrap();
}

#[test]
fn a_machine_reaches_others_as_one_node() {
    let node = Node::bare("a", 1);
    let _switch = lan(&[&node]);
    let b = || other("b", "10.77.2.1/24", "192.168.5.2");
    node.machine.run(move || {
        setup_node(own("a", "10.77.1.1/24", vec![b()])).unwrap();
        setup_node(own("second", "10.78.1.1/24", vec![])).unwrap();
        let refused = setup_node(own("third", "10.79.1.1/24", vec![b()])).unwrap_err().to_string();
        assert!(
            refused.contains("as node a already") && refused.contains("clean a first"),
            "{refused}"
        );
    });
    let before = node.machine.sh("ip -d -o link show telaio.1");
    node.machine.run(|| {
        for name in ["second", "a", "second"] {
            setup_iptables(SetupIptablesRequest::new(name)).unwrap();
        }
    });
    repair(&node);
    assert_eq!(node.machine.sh("ip -d -o link show telaio.1"), before, "nobody cuts the other off");
    node.machine.run(|| clean_node(CleanNodeRequest::new("second")).unwrap());
    assert!(ways(&node).contains("192.168.5.2"), "{}", ways(&node));
    node.machine.run(|| clean_node(CleanNodeRequest::new("a")).unwrap());
    assert!(!ways(&node).contains("192.168.5.2 "), "{}", ways(&node));
    assert!(!node.machine.try_sh("ip link show telaio.1"));
}

#[test]
fn a_link_to_others_that_is_not_whole_is_mended_and_follows_the_nodes_address() {
    let node = Node::bare("a", 1);
    let _switch = lan(&[&node]);
    let b = other("b", "10.77.2.1/24", "192.168.5.2");
    node.machine.run(move || setup_node(own("a", "10.77.1.1/24", vec![b])).unwrap());
    let link = || {
        let text = node
            .machine
            .sh("ip -d -o link show telaio.1; cat /proc/sys/net/ipv4/conf/telaio.1/rp_filter");
        // The number is another when it was made anew.
        text.split_once(": ").unwrap().1.to_owned()
    };
    let offload = || node.machine.run(|| checksum_offload("telaio.1").unwrap());
    let (before, routes) = (link(), ways(&node));
    assert!(before.contains("local 192.168.5.1"), "{before}");
    // As a kill leaves it that comes before all is set, and as somebody leaves it who plays with it.
    for damage in [
        "ip link set telaio.1 down",
        "ip link add br9 type bridge; ip link set telaio.1 master br9",
        "ip link set telaio.1 group 7 mtu 1300 address 02:00:00:00:00:99",
        "ip link del telaio.1; ip link add telaio.1 type vxlan id 1 dev lan0 local 192.168.5.1 dstport 8472 nolearning; ip link set telaio.1 up",
        "ip link del telaio.1; ip link add telaio.1 type vxlan id 1 dev lan0 local 192.168.5.1 dstport 4789 nolearning",
        "ip link del telaio.1; ip link add telaio.1 type vxlan id 1 local 192.168.5.77 dstport 8472",
    ] {
        node.machine.run(|| set_checksum_offload("telaio.1", true).unwrap());
        node.machine.sh(damage);
        node.machine.try_sh("echo 1 > /proc/sys/net/ipv4/conf/telaio.1/rp_filter");
        repair(&node);
        assert_eq!(link(), before, "{damage}");
        assert!(!offload(), "{damage}");
        assert_eq!(ways(&node), routes, "{damage}");
    }
    node.machine.sh(
        "ip address add 192.168.5.11/24 dev lan0; ip address del 192.168.5.1/24 dev lan0; \
         ip address add 192.168.5.11/24 dev lan0 || true; ip route replace default via 192.168.5.99",
    );
    repair(&node);
    assert!(link().contains("local 192.168.5.11"), "{}", link());
    // Another way of reaching others leaves nothing of this one.
    let b = other("b", "10.77.2.1/24", "192.168.5.2");
    follow(&node, own("a", "10.77.1.1/24", vec![b]).with_backend(Backend::HostGw)).unwrap();
    assert!(!node.machine.try_sh("ip link show telaio.1"));
    assert!(ways(&node).contains("10.77.2.0/24 via 192.168.5.2 dev lan0"), "{}", ways(&node));
}

#[test]
fn networks_of_this_machine_do_not_reach_other_nodes_instances_nor_they_them() {
    for backend in BACKENDS {
        let (a, b) = (Node::bare("a", 1), Node::bare("b", 2));
        let _switch = lan(&[&a, &b]);
        for (node, peer) in [(&a, &b), (&b, &a)] {
            node.set_up(backend, None);
            let ips = [format!("192.168.5.{}", peer.number), format!("fd05::{}", peer.number)];
            let request = peer.request(&ips.map(|ip| ip.parse().unwrap()));
            node.machine.run(move || add_other_nodes(vec![request]).unwrap());
        }
        a.machine.run(|| {
            let six = |text: &str| text.parse::<Ipv6Inet>().unwrap();
            setup_node(own("other", "10.78.0.1/24", vec![]).with_node_ip(six("fd78::1/64")))
                .unwrap();
            let ip: Ipv4Inet = "10.78.0.2/24".parse().unwrap();
            let request = SetupInstanceRequest::new("other", [10, 78, 0, 1], "x", ip, vec![]);
            setup_instance(request.with_instance_ip(six("fd78::2/64"))).unwrap();
        });
        a.instance("one", 2, vec![]);
        b.instance("two", 2, vec![]);
        // The other machine has a way to that network, too.
        let [by, by6] = if backend == Backend::HostGw {
            ["via 192.168.5.1", "via fd05::1"]
        } else {
            ["via 10.77.1.0 dev telaio.1 onlink", "via fd77:1:: dev telaio.1 onlink"]
        };
        b.machine.sh(&format!("ip route add 10.78.0.0/24 {by}; ip -6 route add fd78::/64 {by6}"));
        // What comes from there shows its own address.
        b.machine.sh("nft insert rule ip telaio-pods source ip daddr 10.78.0.0/24 accept; \
             nft insert rule ip6 telaio-pods source ip6 daddr fd78::/64 accept");
        let tries = |from: &str, ip: &str| {
            let patience = SILENCE * 2;
            ask_from(&a.machine, Some(from), ip, 80, Wire::Tcp, patience).is_ok()
        };
        for ip in ["10.77.2.2", "fd77:2::2"] {
            let _server = serve(&b, Some("two"), ip, 80, Wire::Tcp);
            assert!(ask(&a, Some("one"), ip, 80, Wire::Tcp).is_ok(), "{backend:?} {ip}");
            assert!(!tries("x", ip), "{backend:?} {ip}");
        }
        let ips = [("10.78.0.2", "10.77.2.2"), ("fd78::2", "fd77:2::2")];
        let _servers = ips.map(|(ip, _)| serve(&a, Some("x"), ip, 80, Wire::Tcp));
        let back = |ip| ask_from(&b.machine, Some("two"), ip, 80, Wire::Tcp, SILENCE * 2);
        for (ip, _) in ips {
            assert!(ask(&a, None, ip, 80, Wire::Tcp).is_ok(), "{ip}");
            assert!(back(ip).is_err(), "{backend:?} {ip}");
        }
        // Unless they may.
        a.machine.run(|| Host::default().join_networks("a", "other", true).unwrap());
        for (ip, seen) in ips {
            assert_eq!(back(ip).as_deref(), Ok(seen), "{backend:?}");
        }
    }
}

#[test]
fn a_network_of_a_configuration_has_no_addresses_of_another_nodes() {
    let node = Node::bare("a", 1);
    let _switch = lan(&[&node]);
    let b = other("b", "10.77.2.1/24", "192.168.5.2");
    node.machine.run(move || setup_node(own("a", "10.77.1.1/24", vec![b])).unwrap());
    node.machine.sh("mkdir -p /run/netns && ip netns add c");
    let add = |subnet: &str| {
        let ipam = json!({"type": "host-local", "subnet": subnet});
        Call::new("ADD", "c", &config_with(json!({ "ipam": ipam }))).make(&node.machine)
    };
    for (subnet, owner) in [("10.77.2.128/25", "node b"), ("10.77.1.0/24", "a")] {
        let refused = add(subnet).unwrap_err();
        assert_eq!(refused["code"], 7, "{refused}");
        let text = refused.to_string();
        assert!(text.contains("overlaps") && text.contains(owner), "{refused}");
    }
    add("10.90.0.0/24").unwrap();
    // Nor has a node those of a network that is in use.
    let problems =
        follow(&node, own("a", "10.77.1.1/24", vec![other("c", "10.90.0.1/24", "192.168.5.3")]));
    // The machine is told by name already.
    let problems = problems.unwrap().join("\n");
    assert!(problems.contains("this machine's network net"), "{problems}");
}

#[test]
fn nodes_and_instances_may_have_ipv6_only() {
    for backend in BACKENDS {
        let nodes = [1, 2].map(|number| Node::bare(&format!("six{number}"), number));
        let [a, b] = &nodes;
        let _switch = lan(&[a, b]);
        for (node, peer) in [(a, b), (b, a)] {
            node.machine.sh("ip address flush dev lan0 scope global; ip -6 address add fd05::X/64 dev lan0 nodad; ip -6 route replace default via fd05::99".replace('X', &node.number.to_string()).as_str());
            let six = |number: u8, host: u8| -> Ipv6Inet {
                format!("fd77:{number}::{host}/64").parse().unwrap()
            };
            let external: IpAddr = format!("fd05::{}", peer.number).parse().unwrap();
            let other =
                NodeRequest::new(peer.name.clone(), NodeIp::new(six(peer.number, 1), external));
            let (name, number) = (node.name.clone(), node.number);
            node.machine.run(move || {
                let request = SetupNodeRequest::new(name.clone(), six(number, 1), vec![other]);
                setup_node(request.with_backend(backend)).unwrap();
                let gateway = six(number, 1).address();
                let request = SetupInstanceRequest::new(
                    name,
                    gateway,
                    "i",
                    six(number, 2),
                    vec![telaio_pod_network::Port::new(8080, 80)],
                );
                setup_instance(request).unwrap();
            });
        }
        let _server = serve(b, Some("i"), "fd77:2::2", 80, Wire::Tcp);
        assert_eq!(
            ask(a, Some("i"), "fd77:2::2", 80, Wire::Tcp).as_deref(),
            Ok("fd77:1::2"),
            "{backend:?}"
        );
        assert!(ask(a, None, "fd05::2", 8080, Wire::Tcp).is_ok());
        assert!(repair(a).is_nothing());
    }
}
