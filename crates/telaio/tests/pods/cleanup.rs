//! `telaio cleanup` leaves nothing.

use telaio_pod_network::{Bandwidth, Port};

use std::time::Duration;

use crate::net::Chance;
use crate::stage::{Agent, Stage, pod};

/// What there is of links, rules, files, and of settings that we change.
fn inventory(agent: &Agent) -> String {
    let settings = agent.node.machine.sh(
        "cd /proc/sys/net; for it in ipv4/ip_forward ipv6/conf/all/forwarding ipv6/conf/lan0/forwarding ipv6/conf/*/accept_ra; \
         do echo $it $(cat $it); done",
    );
    agent.node.inventory() + &settings
}

#[test]
fn cleanup_removes_every_trace_of_pods() {
    let mut stage = Stage::new();
    let before = inventory(&stage.a);
    stage.write("one", &pod("one", 1, 2, "web"));
    stage.write(
        "policy",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: default}\n\
         spec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n",
    );
    let manifests = stage.manifests();
    std::fs::create_dir(stage.a.path("cni-conf")).unwrap();
    std::fs::write(stage.a.path("cni-conf/10-other.conflist"), "{}").unwrap();
    stage.a.start(&manifests, "services,pods", &["--take-over-cni"]);
    let a = &stage.a.node;
    let limits =
        Bandwidth { ingress_rate: 1_000_000, egress_rate: 1_000_000, ..Bandwidth::default() };
    let limited = a.wanted("one", 2, vec![Port::new(8081, 8080)]).with_bandwidth(limits);
    a.machine.run(move || telaio_pod_network::instance::setup_instance(limited).unwrap());
    a.instance("two", 3, vec![]);
    // As a call leaves it that was killed.
    a.machine.sh("ip netns add telaio-i-killed");
    stage.a.wait("the plugin", |status| {
        status["pods"]["cni"].as_str().is_some_and(|state| state.starts_with("installed"))
    });
    assert!(stage.a.path("cni-conf/05-telaio.conflist").exists());
    assert!(!stage.a.path("cni-conf/10-other.conflist").exists());
    assert!(stage.a.node.inventory().contains("tli"), "what limits is there");

    stage.a.stop();
    let said = stage.a.cleanup();
    for what in
        ["instance one", "instance two", "network node-a", "table ip telaio-policy", "telaio-cni"]
    {
        assert!(said.contains(what), "{what} in {said}");
    }
    assert_eq!(inventory(&stage.a), before);
    assert!(stage.a.path("cni-conf/10-other.conflist").exists());
    assert!(!stage.a.path("cni-conf/05-telaio.conflist").exists());
    assert!(stage.a.cleanup().contains("there is nothing of ours here"));
}

#[test]
fn an_agent_and_a_cleanup_that_are_killed_leave_nothing_after_the_next() {
    let mut stage = Stage::new();
    std::fs::create_dir(stage.a.path("cni-conf")).unwrap();
    std::fs::write(stage.a.path("cni-conf/10-other.conflist"), "{}").unwrap();
    let before = inventory(&stage.a);
    let manifests = stage.manifests();
    let mut chance = Chance(3);
    for round in 0..16 {
        stage.a.launch(&manifests);
        std::thread::sleep(Duration::from_millis(chance.below(600)));
        stage.a.kill();
        let files =
            || stage.a.node.machine.sh(&format!("ls {}", stage.a.path("cni-conf").display()));
        let has_one = |files: &str| files.lines().any(|it| it.ends_with(".conflist"));
        assert!(has_one(&files()), "round {round}: {}", files());
        if chance.below(2) == 0 {
            stage.a.kill_cleanup(Duration::from_millis(chance.below(120)));
            assert!(has_one(&files()), "round {round}: {}", files());
        }
        if chance.below(2) == 0 {
            stage.a.cleanup();
            assert_eq!(inventory(&stage.a), before, "round {round}");
            assert_eq!(files().trim(), "10-other.conflist", "round {round}");
        }
    }
    stage.a.cleanup();
    assert_eq!(inventory(&stage.a), before);
}
