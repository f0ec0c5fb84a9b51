//! Bad luck: killed calls, removed rules, full bridges, many at once.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::cni::{Call, REFERENCE_DIR, config, config_with, inventory, machine, whole_inventory};
use support::{Chance, Node, Wire, ask, ask_at, serve, serve_at};
use telaio_pod_network::node::{
    CleanNodeRequest, SetupIptablesRequest, clean_node, setup_iptables,
};
use telaio_pod_network::{Host, Port};
use telaio_testkit::machine::Machine;

fn with_port() -> Value {
    config_with(json!({"runtimeConfig": {
        "portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}],
    }}))
}

fn gc(config: &Value, valid: Value) -> Value {
    let mut gc = config.clone();
    gc["cni.dev/valid-attachments"] = valid;
    gc
}

/// The same with limits.
fn limited() -> Value {
    let mut config = with_port();
    config["runtimeConfig"]["bandwidth"] =
        json!({"ingressRate": 80_000_000, "egressRate": 80_000_000});
    config
}

/// Ports and limits for what the reference plugin has made.
fn chained(machine: &Machine) -> Value {
    let bridge = config_with(
        json!({"type": "bridge", "name": "other", "bridge": "br9", "cniVersion": "1.0.0",
        "ipam": {"type": "host-local", "subnet": "10.99.0.0/24", "dataDir": "/run/host-local"}}),
    );
    let mut call = Call::new("ADD", "b", &bridge);
    call.plugin = format!("{REFERENCE_DIR}/bridge");
    let previous = call.make(machine).unwrap();
    json!({"cniVersion": "1.1.0", "name": "other", "type": "telaio-cni", "prevResult": previous, "runtimeConfig": {
        "portMappings": [{"hostPort": 9090, "containerPort": 80}],
        "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000}}})
}

#[test]
fn killed_two_hundred_times_at_any_moment_everything_comes_right_and_nothing_is_left() {
    const KILLS: u64 = 200;
    let machine = machine(&["stays", "a", "b"]);
    Call::new("ADD", "stays", &config()).make(&machine).unwrap();
    let chained = chained(&machine);
    let kinds = [("a", with_port()), ("a", limited()), ("b", chained)];
    for (container, config) in &kinds {
        for command in ["ADD", "DEL"] {
            Call::new(command, container, config).make(&machine).unwrap();
        }
    }
    let before = whole_inventory(&machine);
    let mut chance = Chance(7);
    let (mut landed, mut round) = (0, 0);
    // How long a call takes is the machine's to say: where none is at work any more, they are killed sooner.
    let mut longest = 6000;
    while landed < KILLS {
        round += 1;
        assert!(round < KILLS * 4, "of {round} calls only {landed} were killed at work");
        let (container, config) = &kinds[chance.below(3) as usize];
        let call = |command| Call::new(command, container, config);
        let (add, delete) = (call("ADD"), call("DEL"));
        let mut collected = config.clone();
        collected["cniVersion"] = "1.1.0".into();
        let valid = json!([{"containerID": "stays", "ifname": "eth0"}]);
        let collect = Call::new("GC", "", &gc(&collected, valid));
        let killed = match chance.below(5) {
            0 | 1 => delete.clone(),
            2 => collect.clone(),
            _ => add.clone(),
        };
        if killed.command != "ADD" {
            add.make(&machine).unwrap();
        }
        let after = Duration::from_micros(chance.below(longest));
        if machine.run(move || killed.kill(after)) {
            landed += 1;
        } else {
            longest = (longest * 9 / 10).max(500);
        }
        match chance.below(3) {
            0 => {
                // The same again; that it had been done before it was killed is all that may be in the way.
                match add.make(&machine) {
                    Err(error) => assert_eq!(error["code"], 104, "round {round}: {error}"),
                    Ok(_) if *container == "a" => {
                        let _server = serve_at(&machine, Some("a"), "0.0.0.0", 80, Wire::Tcp);
                        assert!(ask_at(&machine, None, "10.88.0.1", 8080, Wire::Tcp).is_ok());
                    }
                    Ok(_) => {}
                }
                delete.make(&machine).unwrap();
            }
            1 => _ = delete.make(&machine).unwrap(),
            _ => _ = collect.make(&machine).unwrap(),
        }
        support::assert_same(&whole_inventory(&machine), &before, &format!("round {round}"));
    }
}

#[test]
fn a_network_whose_making_was_killed_is_made_by_the_next_call() {
    let machine = machine(&["a"]);
    let mut chance = Chance(11);
    for round in 0..20 {
        let add = Call::new("ADD", "a", &with_port());
        let (killed, after) = (add.clone(), Duration::from_micros(chance.below(8000)));
        machine.run(move || _ = killed.kill(after));
        Call::new("DEL", "a", &with_port()).make(&machine).unwrap();
        add.make(&machine).unwrap();
        machine.sh("ip netns exec a ping -c 1 -W 20 10.88.0.1");
        machine.run(|| Host::default().remove_network("net").unwrap());
        let left = inventory(&machine);
        assert!(!left.contains("cni0") && !left.contains("telaio-pods"), "round {round}: {left}");
    }
}

#[test]
fn set_up_and_clean_up_can_be_repeated_and_leave_nothing() {
    let node = Node::bare("again", 1);
    node.machine.sh("mkdir -p /run/netns && mount --bind /run/netns /run/netns");
    let empty = node.inventory();
    for _ in 0..2 {
        node.set_up(telaio_pod_network::overlay::Backend::default(), None);
    }
    let bare = node.inventory();
    for _ in 0..2 {
        node.instance("a", 2, vec![Port::new(80, 8080)]);
    }
    let other = node.try_instance("a", 3, vec![]).unwrap_err();
    assert!(other.contains("clean it first"), "{other}");
    node.clean("a", 2);
    node.clean("a", 2);
    support::assert_same(&node.inventory(), &bare, "");
    for refused in [
        node.try_instance("b", 1, vec![]),
        node.try_instance("b", 2, vec![Port::new(0, 1)]),
        node.try_instance("", 2, vec![]),
    ] {
        refused.unwrap_err();
        support::assert_same(&node.inventory(), &bare, "");
    }
    for _ in 0..2 {
        node.machine.run(|| clean_node(CleanNodeRequest::new("again")).unwrap());
    }
    let left = node.inventory();
    assert_eq!(left.replace("/var/lib/telaio/pods/node.json\n", ""), empty);
}

#[test]
fn an_instance_that_cannot_be_made_leaves_nothing() {
    let node = Node::start("undo", 1);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    let before = node.inventory();
    let error =
        node.try_instance("b", 3, vec![Port::new(9090, 80), Port::new(8080, 80)]).unwrap_err();
    assert!(error.contains("8080/tcp is taken by instance a"), "{error}");
    let error = node.try_instance("b", 2, vec![]).unwrap_err();
    assert!(error.contains("10.77.1.2") && error.contains("instance a"), "{error}");
    support::assert_same(&node.inventory(), &before, "");
}

#[test]
fn many_threads_may_set_up_instances_at_once() {
    let node = Node::start("many", 1);
    let requests: Vec<_> = (2..34)
        .map(|host| {
            node.wanted(&format!("t{host}"), host, vec![Port::new(7000 + u16::from(host), 80)])
        })
        .collect();
    node.machine.run(move || {
        let threads: Vec<_> = requests
            .into_iter()
            .map(|request| {
                std::thread::spawn(|| {
                    telaio_pod_network::instance::setup_instance(request).unwrap()
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    let _server = serve(&node, Some("t33"), "10.77.1.33", 80, Wire::Tcp);
    assert_eq!(ask(&node, Some("t2"), "10.77.1.33", 80, Wire::Tcp).as_deref(), Ok("10.77.1.2"));
    assert_eq!(node.machine.run(|| Host::default().attachments().unwrap().len()), 32);
}

#[test]
fn what_somebody_removed_is_mended() {
    let node = Node::start("mend", 1);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    node.instance("b", 3, vec![]);
    let before = node.inventory();
    // As a reload of a firewall does, and somebody who tidies up.
    node.machine.sh("nft flush ruleset; ip link del tlb-mend");
    let mended = node.machine.run(|| Host::default().repair().unwrap());
    assert!(mended.is_nothing(), "{mended:?}");
    support::assert_same(&node.inventory(), &before, "");
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert!(ask(&node, Some("b"), "10.77.1.1", 8080, Wire::Tcp).is_ok());
    // An instance that is gone, and a link that nobody knows. The kernel takes its time with the former.
    node.machine.sh("ip netns del telaio-i-b");
    let deadline = Instant::now() + Duration::from_mins(1);
    while node.machine.sh("ip -o link | grep -c tlv").trim() != "1" {
        assert!(Instant::now() < deadline, "the links of b stay");
    }
    node.machine.sh("ip link add tlvabcdefghijkl type veth peer name stray");
    let mended = node.machine.run(|| Host::default().repair().unwrap());
    assert_eq!((mended.attachments.len(), mended.links.len()), (1, 1), "{mended:?}");
    node.machine.sh("nft flush ruleset");
    node.machine.run(|| setup_iptables(SetupIptablesRequest::new("mend")).unwrap());
    node.machine.run(|| Host::default().remove_all().unwrap());
    let left =
        node.machine.sh("ip -o link | grep -v ' lo:'; nft list ruleset; ls /var/lib/telaio; true");
    assert_eq!(left, "");
}

#[test]
fn a_port_published_after_rules_were_flushed_brings_the_others_back() {
    let node = Node::start("flush", 1);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    node.machine.sh("nft flush ruleset");
    node.instance("b", 3, vec![Port::new(8081, 80)]);
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert!(ask(&node, Some("b"), "10.77.1.1", 8080, Wire::Tcp).is_ok());
}

#[test]
fn a_reboot_frees_what_is_gone() {
    let machine = machine(&["a", "b"]);
    let config = config_with(json!({"ipam": {"type": "host-local", "subnet": "10.9.0.0/30"}}));
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    assert_eq!(Call::new("ADD", "b", &config).make(&machine).unwrap_err()["code"], 102);
    // As it looks after a reboot: another boot's records, and none of the links.
    machine.sh(
        "cd /var/lib/telaio/pods && mv boot-* boot-earlier && ip link del cni0 && ip netns del a",
    );
    let result = Call::new("ADD", "b", &config).make(&machine).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.9.0.2/30");
    assert_eq!(
        machine.sh("ls /var/lib/telaio/pods | wc -l").trim(),
        "1",
        "the earlier boot's are gone"
    );
}

#[test]
fn more_instances_than_a_bridge_has_ports_reach_each_other() {
    const COUNT: usize = 1040;
    let machine = machine(&[]);
    let config = config_with(json!({"runtimeConfig": {"portMappings": []}}));
    machine.sh(&format!("for n in $(seq 1 {COUNT}); do echo netns add m$n; done | ip -batch -"));
    let adding = config.clone();
    machine.run(move || {
        for number in 1..=COUNT {
            let name = format!("m{number}");
            Call::new("ADD", &name, &adding).make_here().unwrap();
        }
    });
    let ports: usize = machine.sh("bridge link | wc -l").trim().parse().unwrap();
    assert!(ports < COUNT, "the kernel has {ports} ports");
    for (from, to) in [("m1", "m2"), ("m1", "m1040"), ("m1040", "m2"), ("m1039", "m1040")] {
        let ip = |name: &str, family: &str| {
            let line = format!(
                "ip -n {name} {family} -o address show dev eth0 scope global | awk '{{print $4}}' | cut -d/ -f1"
            );
            machine.sh(&line).trim().to_owned()
        };
        for family in ["-4", "-6"] {
            let (own, other) = (ip(from, family), ip(to, family));
            let _server = serve_at(&machine, Some(to), &other, 80, Wire::Tcp);
            // A thousand instances within seconds fill the table of neighbours that all namespaces of a
            // machine share (`gc_thresh3`); the kernel empties it after some seconds.
            let deadline = Instant::now() + Duration::from_mins(1);
            let mut answer = ask_at(&machine, Some(from), &other, 80, Wire::Tcp);
            while answer.is_err() && Instant::now() < deadline {
                answer = ask_at(&machine, Some(from), &other, 80, Wire::Tcp);
            }
            assert_eq!(answer, Ok(own), "{from} {to}");
            assert!(ask_at(&machine, None, &other, 80, Wire::Tcp).is_ok());
        }
    }
    // Also those without a bridge cannot pass themselves off as others.
    let receiver = support::senders_on(&machine, Some("m2"), "10.88.0.3", 99);
    for from in ["10.88.0.4", "192.0.2.7"] {
        support::spoof_on(&machine, "m1040", from, "10.88.0.3", 99);
    }
    let own =
        machine.sh("ip -n m1040 -4 -o address show dev eth0 | awk '{print $4}' | cut -d/ -f1");
    support::spoof_on(&machine, "m1040", own.trim(), "10.88.0.3", 99);
    assert_eq!(receiver.until(own.trim()).len(), 1);
    let all = json!([{"containerID": "m1", "ifname": "eth0"}]);
    Call::new("GC", "", &gc(&config, all)).make(&machine).unwrap();
    assert_eq!(machine.sh("ip -o link | grep -c tlv").trim(), "1");
    assert_eq!(machine.sh("ip route | grep -c tlv || true").trim(), "0");
}
