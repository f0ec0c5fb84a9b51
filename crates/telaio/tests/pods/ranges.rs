//! A node with several ranges of a family, and one with a record that cannot be read.

use crate::cni::PluginCall;
use crate::net::{Wire, ask, ask_from, serve, serve_at};
use crate::stage::{Stage, eventually};

#[test]
fn pods_get_addresses_of_the_next_range_when_the_first_has_none_left() {
    let mut stage = Stage::new();
    stage.write(
        "node-a",
        "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n\
         spec: {podCIDRs: ['10.77.1.0/30', 'fd77:1::/64', '10.79.1.0/24']}\n\
         status: {addresses: [{type: InternalIP, address: 192.168.5.1}]}\n",
    );
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    let mut ips = Vec::new();
    for id in ["one", "two"] {
        machine.sh(&format!("ip netns add {id}"));
        let result = PluginCall::new(&stage.a, "ADD", id).make_on(&stage.a).unwrap();
        let addresses = result["ips"].as_array().unwrap().iter();
        let addresses: Vec<String> = addresses
            .map(|it| it["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
            .collect();
        assert_eq!(addresses.len(), 2, "one of each family: {result}");
        ips.push(addresses[0].clone());
    }
    assert_eq!(ips, ["10.77.1.2", "10.79.1.2"]);
    let bridges = machine.sh("ip -o link | grep -c ': tlb'");
    assert_eq!(bridges.trim(), "1", "it is the node's network still");
    let _server = serve_at(machine, Some("two"), &ips[1], 8080, Wire::Tcp);
    let asked = ask_from(machine, Some("one"), &ips[1], 8080, Wire::Tcp, crate::net::PATIENCE);
    assert_eq!(asked.as_deref(), Ok("10.77.1.2"));
    // What the agent wants is what the plugin found: nothing is made anew.
    stage.a.wait("two instances", |status| status["pods"]["instance_count"] == 2);
    assert_eq!(stage.a.status()["pods"]["problems"], serde_json::Value::Null);
}

#[test]
fn an_instance_whose_record_cannot_be_read_is_named_by_the_status_and_the_agent_stays_healthy() {
    let mut stage = Stage::new();
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    stage.a.node.instance("one", 2, vec![]);
    stage.a.node.instance("two", 3, vec![]);
    stage.a.stop();
    let machine = &stage.a.node.machine;
    machine.sh(
        "cd /var/lib/telaio/pods/boot-*/attachments && echo garbage > $(grep -l '\"container\":\"two\"' *)",
    );
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    let problems = |status: &serde_json::Value| {
        let problems = status["pods"]["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().filter(|it| it.as_str().unwrap().contains("/attachments/")).count()
    };
    stage.a.wait("the record's name, once", |status| problems(status) == 1);
    assert_eq!(stage.a.status()["healthy"], true);
    let _server = serve_at(machine, Some("two"), "10.77.1.3", 8080, Wire::Tcp);
    let asked =
        || ask_from(machine, Some("one"), "10.77.1.3", 8080, Wire::Tcp, crate::net::PATIENCE);
    eventually("the instance", || asked().is_ok(), || format!("{:?}", asked()));
}

#[test]
fn a_node_whose_object_names_no_networks_has_those_that_it_was_started_with() {
    let mut stage = Stage::new();
    stage.write(
        "node-a",
        "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n\
         status: {addresses: [{type: InternalIP, address: 192.168.5.1}]}\n",
    );
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &["--pod-cidr=10.83.0.0/24,fd83::/64"]);
    let machine = &stage.a.node.machine;
    let ips = ["one", "two"].map(|id| {
        machine.sh(&format!("ip netns add {id}"));
        let result = PluginCall::new(&stage.a, "ADD", id).make_on(&stage.a).unwrap();
        let addresses = result["ips"].as_array().unwrap().iter();
        let bare = |it: &serde_json::Value| {
            it["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
        };
        addresses.map(bare).collect::<Vec<_>>()
    });
    assert_eq!(ips, [["10.83.0.2", "fd83::2"], ["10.83.0.3", "fd83::3"]]);
    for (from, to) in ips[0].iter().zip(&ips[1]) {
        let _server = serve_at(machine, Some("two"), to, 8080, Wire::Tcp);
        let asked = ask_from(machine, Some("one"), to, 8080, Wire::Tcp, crate::net::PATIENCE);
        assert_eq!(asked.as_deref(), Ok(from.as_str()));
    }
    // What the object names comes before what the command line does.
    machine.sh("ip netns del one; ip netns del two");
    stage.write("node-a", &crate::stage::node("node-a", 1));
    let has = || machine.sh("ip -o address show dev tlb-node-a | awk '{print $4}'");
    let is_so = || has().contains("10.77.1.1/24") && has().contains("fd77:1::1/64");
    eventually("the object's networks", is_so, has);
    assert!(!has().contains("10.83.0.1/24") && !has().contains("fd83::1/64"), "{}", has());
}

#[test]
fn other_nodes_are_reached_from_the_tunnel_address_that_a_node_was_started_with() {
    // Another one of the default route's link, and of the other family.
    for (own, other) in [("192.168.5.71", "192.168.5.2"), ("fd05::71", "fd05::2")] {
        let mut stage = Stage::new();
        let length = if own.contains(':') { "128 dev lan0 nodad" } else { "24 dev lan0" };
        stage.a.node.machine.sh(&format!("ip address add {own}/{length}"));
        for (name, number, address) in [("node-a", 1, own), ("node-b", 2, other)] {
            stage.write(
                name,
                &format!(
                    "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
                     spec: {{podCIDRs: ['10.77.{number}.0/24', 'fd77:{number}::/64']}}\n\
                     status: {{addresses: [{{type: InternalIP, address: '{address}'}}]}}\n"
                ),
            );
        }
        let manifests = stage.manifests();
        stage.a.start(&manifests, "pods", &[&format!("--tunnel-address={own}")]);
        stage.b.start(&manifests, "pods", &[&format!("--tunnel-address={other}")]);
        let (a, b) = (&stage.a.node, &stage.b.node);
        let link =
            |machine: &telaio_testkit::machine::Machine| machine.sh("ip -d link show telaio.1");
        assert!(link(&a.machine).contains(&format!("local {own} ")), "{}", link(&a.machine));
        // Whatever comes from elsewhere is not carried.
        let family = if own.contains(':') { "ip6" } else { "ip" };
        b.machine.sh(&format!(
            "nft 'table inet only {{ chain in {{ type filter hook input priority -20; \
             udp dport 8472 {family} saddr != {own} drop; }}; }}'"
        ));
        a.instance("one", 2, vec![]);
        b.instance("two", 2, vec![]);
        let ways = || {
            b.machine.sh("bridge fdb show dev telaio.1; ip route; ip -6 route; nft list ruleset")
        };
        for (from, to) in [("10.77.1.2", "10.77.2.2"), ("fd77:1::2", "fd77:2::2")] {
            let _server = serve(b, Some("two"), to, 8080, Wire::Tcp);
            let reached = || ask(a, Some("one"), to, 8080, Wire::Tcp);
            eventually(
                &format!("{to} by {own}"),
                || reached().is_ok(),
                || format!("{:?}\n{}", reached(), ways()),
            );
            assert_eq!(reached().as_deref(), Ok(from));
        }
        assert!(ways().contains(&format!("dst {own}")), "{}", ways());
    }
}
