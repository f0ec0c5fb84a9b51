//! Nodes come, go and are mended as their objects say.

use crate::net::{Wire, ask, serve};
use crate::stage::{Stage, eventually};

#[test]
fn nodes_reach_each_others_instances_and_no_longer_when_they_have_gone() {
    for backend in ["vxlan", "host-gw"] {
        let stage = Stage::start("pods", &[&format!("--pod-backend={backend}")]);
        let (a, b) = (&stage.a.node, &stage.b.node);
        a.instance("one", 2, vec![]);
        b.instance("two", 2, vec![]);
        stage.a.wait("its peer", |status| status["pods"]["peers"][0] == "node-b");
        for ip in ["10.77.2.2", "fd77:2::2"] {
            let _server = serve(b, Some("two"), ip, 8080, Wire::Tcp);
            let reached = || ask(a, Some("one"), ip, 8080, Wire::Tcp);
            eventually(backend, || reached().is_ok(), || format!("{ip}: {:?}", reached()));
            let seen = reached().unwrap();
            let own = ip.replace("77.2", "77.1").replace("fd77:2", "fd77:1");
            assert!(seen.contains(&own), "{backend}: {seen}");
        }
        let routes = || a.machine.sh("ip route; ip -6 route; ip neigh; bridge fdb");
        // Somebody else's hand.
        a.machine.sh("ip route del 10.77.2.0/24");
        eventually("the route", || routes().contains("10.77.2.0/24"), routes);

        stage.remove("node-b");
        let gone = || !routes().contains("10.77.2.0/24") && !routes().contains("fd77:2::/64");
        eventually("no way to a node that has gone", gone, routes);
        stage.a.wait("no peer", |status| status["pods"]["peers"] == serde_json::json!([]));
    }
}

#[test]
fn the_admin_api_shows_peers_the_tunnel_and_instances_that_come_and_go() {
    for backend in ["vxlan", "host-gw"] {
        let stage = Stage::start("pods", &[&format!("--pod-backend={backend}")]);
        let a = &stage.a;
        a.wait("its peer", |status| status["pods"]["peers"][0] == "node-b");
        let well = || {
            let peers = a.admin("/api/v1/peers");
            (peers["items"][0]["state"] == "ok").then(|| peers["items"][0].clone())
        };
        eventually(
            "the way to its peer",
            || well().is_some(),
            || a.admin("/api/v1/peers").to_string(),
        );
        let peer = well().unwrap();
        assert_eq!((&peer["node"], &peer["mode"]), (&"node-b".into(), &backend.into()), "{peer}");
        assert_eq!(peer["public_addresses"][0], "192.168.5.2", "{peer}");
        assert_eq!(peer["subnets"], serde_json::json!(["10.77.2.0/24", "fd77:2::/64"]), "{peer}");
        let tunnel = &a.admin("/api/v1/pods")["tunnel"];
        if backend == "vxlan" {
            assert_eq!(
                (&tunnel["name"], &tunnel["vni"]),
                (&"telaio.1".into(), &1.into()),
                "{tunnel}"
            );
            assert_eq!((&tunnel["up"], &tunnel["state"]), (&true.into(), &"ok".into()), "{tunnel}");
            assert!(tunnel["mtu"].is_u64() && tunnel["mac"].is_string(), "{tunnel}");
            assert!(peer["tunnel_mac"].is_string(), "{peer}");
        } else {
            assert!(tunnel.is_null(), "{tunnel}");
        }
        let told = |change: &str| {
            let events = a.admin("/api/v1/events?kind=instance");
            let items = events["items"].as_array().unwrap().clone();
            items.iter().any(|it| {
                it["change"] == change && it["summary"].as_str().unwrap().contains("10.77.1.2")
            })
        };
        // Who is there at the first look is not told of.
        let samples = || a.admin("/api/v1/history")["recent"].as_array().map_or(0, Vec::len);
        let before = samples();
        eventually("a look since then", || samples() >= before + 2, String::new);
        a.node.instance("one", 2, vec![]);
        eventually(
            "the event of an instance",
            || told("added"),
            || a.admin("/api/v1/events").to_string(),
        );
        a.node.clean("one", 2);
        eventually(
            "the event of its end",
            || told("removed"),
            || a.admin("/api/v1/events").to_string(),
        );
    }
}

#[test]
fn a_bridge_and_links_that_others_remove_come_back_and_an_instance_that_is_gone_leaves_nothing() {
    let stage = Stage::start("pods", &[]);
    let a = &stage.a.node;
    a.instance("one", 2, vec![]);
    a.instance("two", 3, vec![telaio_pod_network::Port::new(8081, 8080)]);
    let _server = serve(a, Some("two"), "10.77.1.3", 8080, Wire::Tcp);
    let reached = || ask(a, Some("one"), "10.77.1.3", 8080, Wire::Tcp);
    eventually("the instance", || reached().is_ok(), || format!("{:?}", reached()));
    stage.a.wait("two instances", |status| status["pods"]["instance_count"] == 2);
    let status = stage.a.status();
    let two = &status["pods"]["instances"][1];
    assert_eq!(two["id"], "two");
    assert_eq!(two["addresses"], serde_json::json!(["10.77.1.3", "fd77:1::3"]));
    assert_eq!(two["ports"], serde_json::json!(["8081/tcp → 8080"]));
    assert_eq!(status["pods"]["networks"][0]["name"], "node-a");

    a.machine.sh("ip link del telaio.1; ip link del tlb-node-a");
    eventually("the bridge", || reached().is_ok(), || a.machine.sh("ip link; ip route"));
    eventually("the vxlan link", || a.machine.try_sh("ip link show telaio.1"), String::new);
    // The namespace of an instance goes without a word.
    a.machine.sh("ip netns del telaio-i-one");
    stage.a.wait("one instance", |status| status["pods"]["instance_count"] == 1);
}

#[test]
fn the_reload_of_a_firewall_is_recovered_from() {
    let stage = Stage::start("pods", &[]);
    let a = &stage.a.node;
    a.instance("one", 2, vec![]);
    a.instance("two", 3, vec![telaio_pod_network::Port::new(8081, 8080)]);
    let _server = serve(a, Some("two"), "10.77.1.3", 8080, Wire::Tcp);
    let published = || ask(a, Some("one"), "192.168.5.1", 8081, Wire::Tcp);
    eventually("the port", || published().is_ok(), || format!("{:?}", published()));
    let rules = || a.machine.sh("nft list tables");
    // As firewalld does, and as somebody might who means only ours.
    for line in [
        "nft flush ruleset",
        "nft delete table ip telaio-pods",
        "nft delete table bridge telaio-pods",
    ] {
        a.machine.sh(line);
        let back = || {
            let there = rules();
            ["ip", "ip6", "bridge"]
                .iter()
                .all(|it| there.contains(&format!("table {it} telaio-pods")))
        };
        eventually(line, back, rules);
        eventually(line, || published().is_ok(), || format!("{:?}", published()));
    }
}
