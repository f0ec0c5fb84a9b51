//! What an agent lives through: nodes that come and go and make no sense, others' hands, a reboot, a brain between it and the cluster.

use std::fs;

use crate::net::{Wire, ask, serve};
use crate::stage::{Stage, eventually, node};

fn reached(stage: &Stage, ip: &str) -> Result<String, String> {
    ask(&stage.a.node, Some("one"), ip, 8080, Wire::Tcp)
}

#[test]
fn a_node_that_gets_the_network_of_one_that_left_is_reached() {
    let stage = Stage::start("pods", &[]);
    stage.a.wait("its peer", |status| status["pods"]["peers"][0] == "node-b");
    // In one batch.
    stage.write("node-b", &node("node-c", 2));
    stage.a.wait("the new one", |status| status["pods"]["peers"] == serde_json::json!(["node-c"]));
    stage.a.wait("its health", |status| status["healthy"] == true);
    let routes = || stage.a.node.machine.sh("ip route; bridge fdb");
    eventually("the way", || routes().contains("10.77.2.0/24"), routes);
}

#[test]
fn objects_that_make_no_sense_are_told_and_keep_nobody_else_from_being_reached() {
    let stage = Stage::start("pods", &[]);
    stage.a.node.instance("one", 2, vec![]);
    stage.b.node.instance("two", 2, vec![]);
    let spec = |name: &str, cidr: &str, annotations: &str, ip: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n\
             spec: {{podCIDRs: ['{cidr}']}}\nstatus: {{addresses: [{{type: InternalIP, address: '{ip}'}}]}}\n"
        )
    };
    let flannel = |data: &str| {
        format!(
            "flannel.alpha.coreos.com/backend-type: vxlan, flannel.alpha.coreos.com/backend-data: '{data}'"
        )
    };
    for (name, cidr, annotations, ip) in [
        ("a-mine", "10.77.1.0/24", String::new(), "192.168.5.7"),
        ("a-theirs", "10.77.2.0/25", String::new(), "192.168.5.7"),
        ("a-garbled", "10.77.7.0/24", flannel("{"), "192.168.5.7"),
        ("a-mac", "10.77.8.0/24", flannel(r#"{"VNI":1,"VtepMAC":"zz"}"#), "192.168.5.8"),
        (
            "a-vni",
            "10.77.9.0/24",
            flannel(r#"{"VNI":9,"VtepMAC":"02:00:00:00:00:09"}"#),
            "192.168.5.9",
        ),
        ("a-six", "10.77.10.0/24", String::new(), "fd05::10"),
    ] {
        stage.write(name, &spec(name, cidr, &annotations, ip));
    }
    let told = ["a-mine", "a-theirs", "a-garbled", "a-mac", "a-vni", "a-six"];
    stage.a.wait("a word about each", |status| {
        let problems = status["pods"]["problems"].to_string();
        told.iter().all(|name| problems.contains(&format!("node {name}")))
    });
    stage.a.wait("its health", |status| status["healthy"] == true);
    let _server = serve(&stage.b.node, Some("two"), "10.77.2.2", 8080, Wire::Tcp);
    let answer = || reached(&stage, "10.77.2.2");
    eventually("the other node", || answer().is_ok(), || format!("{:?}", answer()));
    for name in told {
        stage.remove(name);
    }
    stage.a.wait("no problems", |status| status["pods"]["problems"].is_null());
    let log = fs::read_to_string(stage.a.path("log")).unwrap();
    let once = log.lines().filter(|line| line.contains("WARN") && line.contains("node a-mac"));
    assert_eq!(once.count(), 1, "once is enough: {log}");
}

#[test]
fn what_others_do_to_links_and_rules_is_noticed_at_once() {
    // No timer helps.
    let stage = Stage::start("pods", &["--sync-period=24h"]);
    let a = &stage.a.node;
    a.instance("one", 2, vec![]);
    a.instance("two", 3, vec![telaio_pod_network::Port::new(8081, 8080)]);
    let _server = serve(a, Some("two"), "10.77.1.3", 8080, Wire::Tcp);
    let answer = || reached(&stage, "10.77.1.3");
    eventually("the instance", || answer().is_ok(), || format!("{:?}", answer()));
    let link =
        a.machine.sh("ip -o link show master tlb-node-a | head -1 | cut -d' ' -f2 | cut -d@ -f1");
    let link = link.trim();
    let state = || {
        a.machine
            .sh("ip -d link; ip address; ip neigh; nft list table ip telaio-pods; iptables-nft -S")
    };
    for (damage, is_right) in [
        (
            "nft flush map ip telaio-pods any-ports".to_owned(),
            "nft list map ip telaio-pods any-ports | grep -q 8081",
        ),
        (
            "nft flush set ip telaio-pods networks".to_owned(),
            "nft list set ip telaio-pods networks | grep -q elements",
        ),
        (
            format!("ip link set {link} nomaster"),
            "test $(ip -o link show master tlb-node-a | wc -l) = 2",
        ),
        (
            format!("ip link set {link} down"),
            "test $(ip -o link show up master tlb-node-a | wc -l) = 2",
        ),
        ("ip link set tlb-node-a down".to_owned(), "ip -o link show up | grep -q tlb-node-a"),
        ("ip link set telaio.1 down".to_owned(), "ip -o link show up | grep -q telaio.1"),
        (
            "ip address del 10.77.1.1/24 dev tlb-node-a".to_owned(),
            "ip address | grep -q 10.77.1.1/24",
        ),
        // The policy itself is told by nobody: whoever sets it begins with the chain.
        (
            "iptables-nft -N USER; iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -j USER"
                .to_owned(),
            "iptables-nft -S FORWARD | grep -q TELAIO-POD-PASS",
        ),
        ("iptables-nft -F FORWARD".to_owned(), "iptables-nft -S FORWARD | grep -q TELAIO-POD-PASS"),
    ] {
        a.machine.sh(&damage);
        eventually(&damage, || a.machine.try_sh(is_right), state);
        eventually(&damage, || answer().is_ok(), state);
    }
}

#[test]
fn ways_that_lead_nowhere_go_with_the_timer() {
    // Nobody is told of what comes, only of what goes: the next look finds it.
    let stage = Stage::start("pods", &["--sync-period=1s"]);
    stage.a.wait("its peer", |status| status["pods"]["peers"][0] == "node-b");
    let a = &stage.a.node;
    let ways = || {
        a.machine.sh(
            "ip route; ip -6 route | grep -v fe80; bridge fdb show dev telaio.1; ip neigh show dev telaio.1 nud permanent; \
             ip -6 neigh show dev telaio.1 nud permanent",
        )
    };
    eventually("the ways", || ways().contains("fd77:2::/64"), ways);
    a.machine.sh("ip route add 10.251.0.0/24 via 192.168.5.2");
    let before = ways();
    for stale in [
        "ip route add 10.250.0.0/24 via 10.250.0.0 dev telaio.1 onlink proto 116",
        "ip -6 route add fd50::/64 via fd50:: dev telaio.1 onlink proto 116",
        "ip neigh add 10.250.0.0 lladdr 02:00:00:00:00:99 dev telaio.1 nud permanent",
        "ip -6 neigh add fd50:: lladdr 02:00:00:00:00:99 dev telaio.1 nud permanent",
        "bridge fdb append 02:00:00:00:00:99 dev telaio.1 dst 192.168.5.9",
    ] {
        a.machine.sh(stale);
        let is_there =
            |ways: &str| ["10.250", "fd50:", "00:99 "].iter().any(|it| ways.contains(it));
        eventually(stale, || !is_there(&ways()), ways);
    }
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&ways()), sorted(&before), "everything else stays, others' among it");
}

#[test]
fn after_a_reboot_an_agent_brings_everything_back() {
    let mut stage = Stage::start("pods", &[]);
    let manifests = stage.manifests();
    stage.a.node.instance("one", 2, vec![]);
    stage.b.node.instance("two", 2, vec![]);
    let _server = serve(&stage.b.node, Some("two"), "10.77.2.2", 8080, Wire::Tcp);
    eventually("the other node", || reached(&stage, "10.77.2.2").is_ok(), String::new);
    stage.a.stop();
    // As it looks then: another boot's records, and nothing of the kernel's.
    stage.a.node.machine.sh(
        "cd /var/lib/telaio/pods && mv boot-* boot-earlier; nft flush ruleset; ip netns del telaio-i-one; \
         ip link del tlb-node-a; ip link del telaio.1; ip route flush proto 116; \
         echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv6/conf/all/forwarding",
    );
    // Whoever comes before the agent has the library bring back what is needed.
    stage.a.node.machine.run(|| {
        use telaio_pod_network::node::{SetupIptablesRequest, add_other_nodes, setup_iptables};
        setup_iptables(SetupIptablesRequest::new("node-a")).unwrap();
        add_other_nodes(vec![]).unwrap();
    });
    stage.a.node.instance("one", 2, vec![]);
    assert_eq!(reached(&stage, "10.77.2.2").as_deref(), Ok("10.77.1.2"));
    stage.a.start(&manifests, "pods", &[]);
    stage.a.wait("its peer", |status| status["pods"]["peers"][0] == "node-b");
    assert_eq!(reached(&stage, "10.77.2.2").as_deref(), Ok("10.77.1.2"));
    assert_eq!(stage.a.node.machine.sh("ls -d /var/lib/telaio/pods/boot-*").lines().count(), 1);
}

#[test]
fn a_brain_tells_an_agent_of_nodes_and_policies() {
    let mut stage = Stage::new();
    let manifests = stage.manifests();
    stage.write("one", &crate::stage::pod("one", 1, 2, "web"));
    stage.write("two", &crate::stage::pod("two", 1, 3, "db"));
    stage.a.start_brain(&manifests);
    stage.a.start_from("brain:http://127.0.0.1:12090", "pods", &[]);
    stage.b.start(&manifests, "pods", &[]);
    let (a, b) = (&stage.a.node, &stage.b.node);
    a.instance("one", 2, vec![]);
    a.instance("two", 3, vec![]);
    b.instance("far", 2, vec![]);
    stage.a.wait("its peer", |status| status["pods"]["peers"][0] == "node-b");
    let _servers = (
        serve(b, Some("far"), "10.77.2.2", 8080, Wire::Tcp),
        serve(a, Some("two"), "10.77.1.3", 8080, Wire::Tcp),
    );
    for ip in ["10.77.2.2", "10.77.1.3"] {
        eventually(ip, || reached(&stage, ip).is_ok(), || format!("{:?}", reached(&stage, ip)));
    }
    stage.write(
        "policy",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: default}\n\
         spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}\n",
    );
    stage.a.wait("the policy", |status| status["pods"]["policies"] == 1);
    let rules = || a.machine.sh("nft list ruleset");
    eventually("the policy", || reached(&stage, "10.77.1.3").is_err(), rules);
    stage.remove("node-b");
    stage.a.wait("no peer", |status| status["pods"]["peers"] == serde_json::json!([]));
}
