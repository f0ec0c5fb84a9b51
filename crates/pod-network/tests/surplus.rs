//! What is there and should not be: elements and rules that others put into our tables, claims of records that are lost.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use serde_json::json;
use support::cni::{Call, config_with, inventory, machine};
use support::{Node, Wire, ask, lan, serve};
use telaio_pod_network::node::new_node_in_cluster;
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::repair::Mended;
use telaio_pod_network::{Host, Port};
use telaio_testkit::machine::Machine;

fn repair(machine: &Machine) -> Mended {
    machine.run(|| Host::default().repair().unwrap())
}

/// The rules, whatever order the kernel has them in.
fn rules(machine: &Machine) -> String {
    machine
        .sh("nft list ruleset | tr ',' '\\n' | sed 's/elements = {//; s/}//; s/^[ \\t]*//' | sort")
}

#[test]
fn elements_and_rules_that_others_add_to_our_tables_go() {
    let node = Node::bare("extra", 1);
    let _outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    let far = Node::bare("far", 2);
    let request = far.request(&["192.168.5.2".parse().unwrap(), "fd05::2".parse().unwrap()]);
    node.machine.run(move || new_node_in_cluster(request).unwrap());
    node.instance("a", 2, vec![Port::new(8080, 80), Port::new(9090, 80).at([192, 168, 5, 1])]);
    node.instance("b", 3, vec![]);
    assert!(repair(&node.machine).is_nothing());
    let (before, all) = (rules(&node.machine), node.inventory());
    let link = node.machine.sh("ip -o link | grep -o 'tlv[^@:]*' | head -1");
    let link = link.trim();
    for (place, element) in [
        ("element ip telaio-pods any-ports", "{ tcp . 4444 : 10.77.1.3 . 80 }"),
        ("element ip telaio-pods ports", "{ 192.168.5.1 . udp . 4444 : 10.77.1.3 . 80 }"),
        ("element ip telaio-pods hairpin", "{ 10.77.1.3 . 10.77.1.3 }"),
        ("element ip telaio-pods networks", "{ 4711 }"),
        ("element ip telaio-pods reach", "{ 4711 . 4712 }"),
        ("element ip telaio-pods cluster-24", "{ 10.77.99.0 }"),
        ("element ip6 telaio-pods any-ports", "{ tcp . 4444 : fd77:1::3 . 80 }"),
        ("element ip6 telaio-pods ports", "{ fd05::1 . udp . 4444 : fd77:1::3 . 80 }"),
        ("element ip6 telaio-pods hairpin", "{ fd77:1::3 . fd77:1::3 }"),
        ("element ip6 telaio-pods networks", "{ 4711 }"),
        ("element ip6 telaio-pods reach", "{ 4711 . 4712 }"),
        ("element ip6 telaio-pods cluster-64", "{ fd77:99:: }"),
        ("element bridge telaio-pods bridges", "{ 02:00:00:00:00:99 }"),
        ("element bridge telaio-pods sources4", &format!("{{ \"{link}\" . 10.77.1.99 }}")),
        ("element bridge telaio-pods sources4", "{ \"nobody\" . 10.77.1.3 }"),
        ("element bridge telaio-pods sources6", &format!("{{ \"{link}\" . fd77:1::99 }}")),
        ("rule ip telaio-pods isolation", "accept"),
        ("rule ip6 telaio-pods published", "tcp dport 4444 dnat to [fd77:1::3]:80"),
        ("rule bridge telaio-pods ports", "accept"),
    ] {
        node.machine.sh(&format!("nft 'add {place} {element}'"));
        let what = format!("{place} {element}");
        assert_ne!(rules(&node.machine), before, "{what} is there");
        repair(&node.machine);
        support::assert_same(&rules(&node.machine), &before, &what);
    }
    support::assert_same(&node.inventory(), &all, "everything else");
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert!(ask(&node, Some("b"), "10.77.1.1", 8080, Wire::Tcp).is_ok());
}

#[test]
fn an_element_that_others_have_altered_is_as_it_was() {
    let node = Node::start("alter", 1);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    node.instance("b", 3, vec![]);
    let before = rules(&node.machine);
    node.machine.sh("nft 'delete element ip telaio-pods any-ports { tcp . 8080 }; \
         add element ip telaio-pods any-ports { tcp . 8080 : 10.77.1.3 . 81 }'");
    assert_ne!(rules(&node.machine), before);
    repair(&node.machine);
    support::assert_same(&rules(&node.machine), &before, "the instance has its port again");
}

/// Loses the record of a container, by another's hand or a broken disk.
fn lose_record(machine: &Machine, container: &str) {
    machine.sh(&format!(
        "cd /var/lib/telaio/pods/boot-*/attachments && rm $(grep -l '\"container\":\"{container}\"' *)"
    ));
}

/// Claims of addresses and of ports.
fn claims(machine: &Machine) -> String {
    machine.sh("cd /var/lib/telaio/pods/boot-*; find addresses ports -type f | grep -v 'lock$\\|/last-' | sort")
}

#[test]
fn claims_of_a_record_that_is_lost_are_freed_by_mending_and_by_collecting() {
    for is_collected in [false, true] {
        let machine = machine(&["stays", "lost", "next"]);
        let ipam = json!({"type": "host-local", "ranges": [
            [{"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.3"}], [{"subnet": "fd88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
        let config =
            |ports| config_with(json!({"ipam": ipam, "runtimeConfig": {"portMappings": ports}}));
        let one_port = config(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
        Call::new("ADD", "stays", &config(json!([]))).make(&machine).unwrap();
        let (before, held) = (inventory(&machine), claims(&machine));
        Call::new("ADD", "lost", &one_port).make(&machine).unwrap();
        assert_eq!(
            claims(&machine).lines().count(),
            held.lines().count() + 3,
            "{}",
            claims(&machine)
        );
        lose_record(&machine, "lost");
        if is_collected {
            let mut gc = config(json!([]));
            gc["cni.dev/valid-attachments"] = json!([{"containerID": "stays", "ifname": "eth0"}]);
            Call::new("GC", "", &gc).make(&machine).unwrap();
        } else {
            let mended = repair(&machine);
            assert_eq!((mended.addresses, mended.links.len()), (2, 1), "{mended:?}");
            assert!(repair(&machine).is_nothing());
        }
        support::assert_same(&claims(&machine), &held, "claims");
        support::assert_same(&inventory(&machine), &before, "without what was lost");
        // Its address is the last of its range.
        let result = Call::new("ADD", "next", &one_port).make(&machine).unwrap();
        assert_eq!(result["ips"][0]["address"], "10.88.0.3/24", "{result}");
    }
}

#[test]
fn an_instance_whose_record_is_lost_goes_whole_and_can_be_made_again() {
    let node = Node::start("lost", 1);
    node.instance("stays", 2, vec![Port::new(7070, 80)]);
    let before = node.inventory();
    node.instance("a", 3, vec![Port::new(8080, 80)]);
    let with = node.inventory();
    lose_record(&node.machine, "a");
    let mended = repair(&node.machine);
    assert_eq!((mended.addresses, mended.links.len()), (2, 1), "{mended:?}");
    support::assert_same(&node.inventory(), &before, "after mending");
    node.instance("a", 3, vec![Port::new(8080, 80)]);
    support::assert_same(&node.inventory(), &with, "once more");
}
