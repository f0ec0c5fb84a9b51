//! What is left when something has gone or changed: nothing of ours, and everything that was there before.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use cidr::Ipv4Inet;
use serde_json::json;
use support::cni::{Call, config_with, machine};
use support::{Node, Wire, ask, lan, serve};
use telaio_pod_network::Host;
use telaio_pod_network::node::{SetupNodeRequest, setup_node};
use telaio_pod_network::overlay::Backend;
use telaio_testkit::machine::Machine;

fn settings(machine: &Machine) -> String {
    machine.sh(
        "cd /proc/sys/net; for it in ipv4/ip_forward ipv4/conf/*/forwarding ipv4/conf/*/accept_redirects \
         ipv4/conf/*/send_redirects ipv4/conf/*/route_localnet ipv6/conf/*/forwarding ipv6/conf/*/accept_ra; \
         do echo $it $(cat $it); done",
    )
}

#[test]
fn settings_are_made_and_put_back() {
    let node = Node::bare("set", 1);
    let _outside = lan(&[&node]);
    let get = |name: &str| node.machine.sh(&format!("cat /proc/sys/net/{name}")).trim().to_owned();
    let before = settings(&node.machine);
    assert_eq!((get("ipv4/ip_forward"), get("ipv6/conf/all/forwarding")), ("0".into(), "0".into()));
    assert_eq!(get("ipv6/conf/lan0/accept_ra"), "1");
    node.set_up(Backend::default(), None);
    for (name, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/lan0/accept_ra", "2"),
        ("ipv6/conf/tlb-set/accept_ra", "0"),
        ("ipv4/conf/tlb-set/send_redirects", "0"),
        ("ipv4/conf/tlb-set/route_localnet", "1"),
        ("ipv4/conf/lan0/route_localnet", "0"),
    ] {
        assert_eq!(get(name), value, "{name}");
    }
    // What somebody changes while we are there is his.
    node.machine.sh("echo 0 > /proc/sys/net/ipv6/conf/lan0/accept_ra");
    node.machine.run(|| Host::default().remove_all().unwrap());
    let after =
        settings(&node.machine).replace("ipv6/conf/lan0/accept_ra 0", "ipv6/conf/lan0/accept_ra 1");
    support::assert_same(&after, &before, "");
}

#[test]
fn a_bridge_that_was_there_before_is_given_back_as_it_was() {
    let machine = machine(&["a"]);
    machine.sh("ip link add cni0 type bridge && ip link set cni0 up && ip address add 192.0.2.1/24 dev cni0 && ip address add 10.88.0.1/16 dev cni0");
    let bridge = || {
        let link = machine.sh("ip -d -o link show cni0 | grep -o 'promiscuity [0-9]*\\|group [a-z0-9]*\\|vlan_filtering [0-9]\\|<[^>]*>'; ip -o address show dev cni0 | sed 's/valid_lft.*//'; bridge vlan show dev cni0");
        let own = "cat /proc/sys/net/ipv4/conf/cni0/route_localnet /proc/sys/net/ipv4/conf/cni0/send_redirects /proc/sys/net/ipv6/conf/cni0/accept_ra";
        link.replace("NO-CARRIER,", "").replace(",LOWER_UP", "") + &machine.sh(own)
    };
    let before = bridge();
    for changes in [json!({}), json!({"promiscMode": true}), json!({"vlan": 7})] {
        let config = config_with(changes.clone());
        let added = Call::new("ADD", "a", &config).make(&machine);
        if let Err(error) = &added {
            // A kernel without virtual networks on bridges.
            assert!(
                changes.get("vlan").is_some()
                    && error.to_string().contains("CONFIG_BRIDGE_VLAN_FILTERING"),
                "{error}"
            );
        } else {
            assert_ne!(bridge(), before, "{changes}");
            Call::new("DEL", "a", &config).make(&machine).unwrap();
        }
        machine.run(|| Host::default().remove_network("net").unwrap());
        assert_eq!(bridge(), before, "{changes}");
    }
}

#[test]
fn an_address_that_a_network_had_before_goes_with_the_change() {
    let node = Node::bare("addr", 1);
    let _outside = lan(&[&node]);
    let set_up = |cidr: &str| {
        let ip: Ipv4Inet = cidr.parse().unwrap();
        node.machine.run(move || setup_node(SetupNodeRequest::new("addr", ip, vec![])).unwrap());
    };
    let has = || node.machine.sh("ip -4 -o address show dev tlb-addr | awk '{print $4}'");
    set_up("10.77.1.1/24");
    node.machine.sh("ip address add 192.0.2.1/24 dev tlb-addr");
    for cidr in ["10.78.1.1/24", "10.78.1.254/24", "10.78.1.254/25", "10.78.1.1/24"] {
        set_up(cidr);
        let now = has();
        let mut now: Vec<&str> = now.lines().collect();
        now.sort_unstable();
        assert_eq!(now, [cidr, "192.0.2.1/24"], "somebody else's stays");
    }
}

#[test]
fn namespaces_that_a_killed_call_has_left_go_with_everything_else() {
    let node = Node::start("left", 1);
    node.machine.sh("ip netns add telaio-i-killed && ip netns add theirs");
    node.instance("a", 2, vec![]);
    node.machine.run(|| Host::default().remove_all().unwrap());
    assert_eq!(node.machine.sh("ip netns list").trim(), "theirs");
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_keeps_nothing_else_from_being_mended_or_removed() {
    let node = Node::bare("rec", 1);
    let _outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.machine.run(|| {
        setup_node(SetupNodeRequest::new(
            "other",
            "10.78.0.1/24".parse::<Ipv4Inet>().unwrap(),
            vec![],
        ))
        .unwrap();
    });
    node.instance("a", 2, vec![]);
    let pods = "/var/lib/telaio/pods";
    node.machine.sh(&format!(
        "cp -a {pods} /run/kept; echo garbage | tee {pods}/boot-*/networks/n-other; ip link del tlb-rec"
    ));
    let repair =
        || node.machine.run(|| Host::default().repair().map(drop).map_err(|it| it.to_string()));
    let error = repair().unwrap_err();
    assert!(error.contains("networks/n-other") && error.matches("n-other").count() == 1, "{error}");
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert!(ask(&node, None, "10.77.1.2", 80, Wire::Tcp).is_ok(), "the bridge is back");
    assert_eq!(node.machine.run(|| Host::default().problems().unwrap().len()), 1);
    assert_eq!(node.machine.run(|| Host::default().networks().unwrap().len()), 1);
    node.instance("b", 3, vec![]);

    node.machine.sh(&format!("echo '{{' > {pods}/node.json; ip link del tlb-rec"));
    let error = repair().unwrap_err();
    assert!(error.contains("node.json") && error.matches("node.json").count() == 1, "{error}");
    assert!(ask(&node, None, "10.77.1.2", 80, Wire::Tcp).is_ok(), "the bridge is back");
    // Whoever follows a cluster knows what should stand there.
    node.machine.run(|| {
        let ip: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
        let request = SetupNodeRequest::new("rec", ip, vec![])
            .with_node_ip("fd77:1::1/64".parse::<cidr::Ipv6Inet>().unwrap());
        assert!(Host::default().follow_cluster(request).unwrap().is_empty());
    });
    assert!(!repair().unwrap_err().contains("node.json"));
    node.machine.sh(&format!("echo '{{' > {pods}/node.json"));
    node.machine.run(|| Host::default().remove_all().unwrap());
    let left = node.machine.sh(
        "ip -o link | grep -v ' lo:\\| lan0'; nft list ruleset; ip netns; ls /var/lib/telaio; true",
    );
    assert_eq!(left, "");
}

#[test]
fn a_networks_name_may_end_as_a_file_does_that_is_being_written() {
    let machine = machine(&["a", "b"]);
    let config = config_with(json!({"name": "net.new"}));
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    machine.run(|| Host::default().repair().unwrap());
    assert_eq!(machine.run(|| Host::default().networks().unwrap().len()), 1);
    Call::new("ADD", "b", &config).make(&machine).unwrap();
    machine.sh("ip netns exec a ping -c 1 -W 20 10.88.0.1");
    for id in ["a", "b"] {
        Call::new("DEL", id, &config).make(&machine).unwrap();
    }
}
