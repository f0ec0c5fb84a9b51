//! What must not change when calls meet, fail, or see less than they should.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::cni::{Call, REFERENCE_DIR, config, config_with, inventory, machine};
use support::{Node, Wire, ask, ask_at, assert_same, serve, serve_at};
use telaio_pod_network::instance::setup_instance;
use telaio_pod_network::{Host, Port};
use telaio_testkit::machine::Machine;

const LONG: Duration = Duration::from_secs(30);

/// Waits until a command succeeds.
fn eventually(machine: &Machine, line: &str) {
    let deadline = Instant::now() + LONG;
    while !machine.try_sh(line) {
        assert!(
            Instant::now() < deadline,
            "{line}: {}",
            machine.sh("ip -o link; nft list ruleset")
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The file in which a container's only attachment is on record.
fn record_of(machine: &Machine, container: &str) -> String {
    let pattern = format!("\"container\":\"{container}\"");
    machine
        .sh(&format!("grep -l '{pattern}' /var/lib/telaio/pods/*/attachments/*"))
        .trim()
        .to_owned()
}

fn mended(machine: &Machine) -> telaio_pod_network::repair::Mended {
    machine.run(|| Host::default().repair().unwrap())
}

#[test]
fn fifty_at_once_are_all_made_while_somebody_mends_all_the_time() {
    let names: Vec<String> = (0..50).map(|number| format!("p{number}")).collect();
    let machine = machine(&names.iter().map(String::as_str).collect::<Vec<_>>());
    Call::new("ADD", "p0", &config()).make(&machine).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&ended);
    let mending = machine.spawn(move || {
        let mut count = 0;
        while !until.load(Ordering::Relaxed) {
            let mended = Host::default().repair().unwrap();
            assert!(mended.is_nothing(), "{mended:?}");
            count += 1;
        }
        count
    });
    let threads: Vec<_> = names[1..]
        .iter()
        .map(|name| {
            let add = Call::new("ADD", name, &config());
            machine.spawn(move || {
                for _ in 0..3 {
                    add.make_here().unwrap();
                    Call { command: "DEL", ..add.clone() }.make_here().unwrap();
                }
                add.make_here().unwrap();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    assert!(mending.join().unwrap() > 0);
    let attached = machine.run(|| Host::default().attachments().unwrap());
    assert_eq!(attached.len(), 50);
    assert!(attached.iter().all(|it| !it.mac.is_empty()), "{attached:?}");
    assert_eq!(machine.sh("bridge link | wc -l").trim(), "50");
    machine.sh("! ls /var/lib/telaio/pods/*/attachments | grep new");
}

#[test]
fn instances_that_are_published_while_rules_and_networks_are_removed_are_whole_or_not_there() {
    let node = Node::start("race", 1);
    let requests: Vec<_> = (2..26)
        .map(|host| {
            node.wanted(&format!("t{host}"), host, vec![Port::new(7000 + u16::from(host), 80)])
        })
        .collect();
    for _ in 0..3 {
        node.set_up(telaio_pod_network::overlay::Backend::default(), None);
        let threads: Vec<_> = requests
            .iter()
            .cloned()
            // Whether it could be made is not the point: its network may be gone.
            .map(|request| node.machine.spawn(move || drop(setup_instance(request))))
            .collect();
        node.machine.sh("nft delete table ip telaio-pods");
        node.machine.run(|| {
            let gone = telaio_pod_network::node::CleanNodeRequest::new("race");
            telaio_pod_network::node::clean_node(gone).unwrap();
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(node.machine.run(|| Host::default().attachments().unwrap()), []);
        node.machine.sh("! ip -o link | grep tlv; ! ls /run/netns | grep telaio-i; ! nft list ruleset | grep 700");
    }
}

#[test]
fn of_several_calls_for_one_instance_one_makes_it_and_the_others_say_so() {
    let node = Node::start("same", 1);
    let before = node.inventory();
    for _ in 0..15 {
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let request = node.wanted("a", 2, vec![Port::new(8080, 80)]);
                node.machine.spawn(move || setup_instance(request).map_err(|it| it.to_string()))
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(outcomes.iter().any(Result::is_ok), "{outcomes:?}");
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert!(error.contains("another call is at work"), "{error}");
        }
        let mounts = node.machine.sh("grep -c telaio-i-a /proc/self/mountinfo");
        assert_eq!(mounts.trim(), "1", "one namespace, under one name");
        let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
        assert!(ask(&node, None, "10.77.1.2", 80, Wire::Tcp).is_ok());
        node.clean("a", 2);
        assert_same(&node.inventory(), &before, "");
    }
}

#[test]
fn an_add_that_fails_for_a_container_whose_record_is_lost_changes_nothing() {
    let machine = machine(&["a", "b"]);
    let with = |ports: Value| config_with(json!({"runtimeConfig": {"portMappings": ports}}));
    let config = with(json!([{"hostPort": 8080, "containerPort": 80}]));
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    let taken = json!([{"hostPort": 9090, "containerPort": 80}]);
    Call::new("ADD", "b", &with(taken.clone())).make(&machine).unwrap();
    machine.sh(&format!("rm {}", record_of(&machine, "a")));
    let before = inventory(&machine);
    let error = Call::new("ADD", "a", &self::config()).make(&machine).unwrap_err();
    assert_eq!(error["code"], 104, "{error}");
    assert_same(&inventory(&machine), &before, "it exists");
    let error = Call::new("ADD", "a", &with(taken)).make(&machine).unwrap_err();
    assert_eq!(error["code"], 103, "{error}");
    assert_same(&inventory(&machine), &before, "a port is taken");
    let _server = serve_at(&machine, Some("a"), "10.88.0.2", 80, Wire::Tcp);
    assert!(ask_at(&machine, Some("b"), "10.88.0.2", 80, Wire::Tcp).is_ok());
    assert!(ask_at(&machine, None, "10.88.0.1", 8080, Wire::Tcp).is_ok());
}

#[test]
fn who_mends_without_seeing_namespaces_takes_nobody_for_dead() {
    let node = Node::start("blind", 1);
    let machine = &node.machine;
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    machine.sh("ip netns add c");
    Call::new("ADD", "c", &config()).make(machine).unwrap();
    // Behind another plugin, only with a port.
    machine.sh("ip netns add d");
    let mut bridge = config_with(
        json!({"type": "bridge", "name": "other", "bridge": "br9", "cniVersion": "1.0.0",
        "ipam": {"type": "host-local", "subnet": "10.99.0.0/24", "dataDir": "/run/host-local"}}),
    );
    let mut call = Call::new("ADD", "d", &bridge);
    call.plugin = format!("{REFERENCE_DIR}/bridge");
    let previous = call.make(machine).unwrap();
    bridge = json!({"cniVersion": "1.0.0", "name": "other", "type": "telaio-cni", "prevResult": previous,
        "runtimeConfig": {"portMappings": [{"hostPort": 8081, "containerPort": 80}]}});
    Call::new("ADD", "d", &bridge).make(machine).unwrap();
    let before = node.inventory();
    // As in a container that has a /run/netns of its own.
    machine.sh("mount -t tmpfs none /run/netns");
    let found = mended(machine);
    machine.sh("umount /run/netns");
    assert!(found.is_nothing(), "{found:?}");
    assert_same(&node.inventory(), &before, "");
    let server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert!(ask(&node, None, "10.77.1.1", 8080, Wire::Tcp).is_ok());
    drop(server);
    // Those that are really gone are found.
    machine.sh("ip netns del c; ip netns del d; ip netns del telaio-i-a");
    eventually(machine, "test $(ip -o link | grep -c 'tlv\\|veth') = 0");
    assert_eq!(mended(machine).attachments.len(), 3);
}

#[test]
fn one_that_cannot_be_removed_keeps_none_of_the_others() {
    let names = ["a", "b", "c", "d"];
    let machine = machine(&names);
    let add = |name: &str| Call::new("ADD", name, &config()).make(&machine).unwrap();
    add("a");
    let before = inventory(&machine);
    names[1..].iter().for_each(|name| _ = add(name));
    let bad = record_of(&machine, "c");
    let (good, link) = (machine.sh(&format!("cat {bad}")), "tlv[a-z2-7]*");
    machine.sh(&format!("sed -i 's/{link}/a-name-longer-than-any/' {bad}"));
    let mut gc = config();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "a", "ifname": "eth0"}]);
    let error = Call::new("GC", "", &gc).make(&machine).unwrap_err();
    assert!(error["msg"].as_str().unwrap().contains("a-name-longer-than-any"), "{error}");
    let left = machine.run(|| Host::default().attachments().unwrap());
    let left: Vec<&str> = left.iter().map(|it| it.container.as_str()).collect();
    assert_eq!(left, ["a", "c"], "the others are gone");
    assert_eq!(machine.sh("ls /var/lib/telaio/pods/*/addresses/n-net | grep -vc last").trim(), "4");
    machine.sh(&format!("cat > {bad} <<'END'\n{good}\nEND"));
    Call::new("GC", "", &gc).make(&machine).unwrap();
    assert_same(&inventory(&machine), &before, "");
}

#[test]
fn limits_come_back_whatever_of_them_somebody_has_removed() {
    let machine = machine(&["a"]);
    let limits = json!({"ingressRate": 8_000_000, "egressRate": 16_000_000});
    let config = config_with(json!({"runtimeConfig": {"bandwidth": limits}}));
    let result = Call::new("ADD", "a", &config).make(&machine).unwrap();
    let link = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let state = || {
        let through = link.replace("tlv", "tli");
        let line = format!(
            "tc qdisc show dev {link} | grep -o 'tbf.*rate [^ ]*' | sed 's/tbf [^ ]*/tbf/'; \
             tc filter show dev {link} ingress | grep -o 'Redirect to device.*'; \
             tc qdisc show dev {through} | grep -o 'rate [^ ]*'; ip -o link show up dev {through} | wc -l"
        );
        machine.sh(&format!("{line}; true"))
    };
    let before = state();
    assert!(
        before.contains("8Mbit") && before.contains("16Mbit") && before.contains("tli"),
        "{before}"
    );
    for damage in [
        "tc qdisc del dev LINK root",
        "tc qdisc replace dev LINK root tbf rate 1mbit burst 10k limit 20k",
        "tc qdisc del dev LINK ingress",
        "ip link del THROUGH",
        "ip link set THROUGH down",
        "tc qdisc del dev THROUGH root",
    ] {
        let damage = damage.replace("THROUGH", &link.replace("tlv", "tli")).replace("LINK", &link);
        machine.sh(&damage);
        assert_ne!(state(), before, "{damage}");
        assert!(mended(&machine).is_nothing());
        assert_eq!(state(), before, "{damage}");
    }
    Call::new("DEL", "a", &config).make(&machine).unwrap();
    machine.sh("! ip -o link | grep 'tli\\|tlv'");
}

#[test]
fn where_the_disk_is_full_nothing_is_made_and_nothing_is_left() {
    let machine = machine(&["a", "b"]);
    machine.sh("mkdir /run/small && mount -t tmpfs -o size=64k none /run/small");
    let config = config_with(json!({"stateDir": "/run/small"}));
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    let inventory = || inventory(&machine) + &machine.sh("find /run/small | grep -v last- | sort");
    let before = inventory();
    machine.sh("dd if=/dev/zero of=/run/small/full bs=1k 2>/dev/null; true");
    let error = Call::new("ADD", "b", &config).make(&machine).unwrap_err();
    assert_eq!(error["code"], 5, "{error}");
    assert!(error["msg"].as_str().unwrap().contains("No space left"), "{error}");
    machine.sh("rm /run/small/full");
    assert_same(&inventory(), &before, "");
    Call::new("ADD", "b", &config).make(&machine).unwrap();
}

#[test]
fn a_second_state_directory_is_refused_and_touches_nothing() {
    let machine = machine(&["a", "b"]);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    for other in [
        config_with(json!({"stateDir": "/run/other"})),
        config_with(json!({"stateDir": "/run/other", "name": "other", "bridge": "cni1",
            "ipam": {"type": "host-local", "subnet": "10.89.0.0/16"}})),
    ] {
        let error = Call::new("ADD", "b", &other).make(&machine).unwrap_err();
        assert!(
            error["code"] == 7 && error["msg"].as_str().unwrap().contains("stateDir"),
            "{error}"
        );
        let mut gc = other;
        gc["cni.dev/valid-attachments"] = json!([]);
        Call::new("GC", "", &gc).make(&machine).unwrap();
    }
    machine.run(|| {
        assert!(Host::new("/run/other").repair().unwrap().is_nothing());
        Host::new("/run/other").remove_all().unwrap();
    });
    assert_same(&inventory(&machine), &before, "");
    // The same directory by another path, as a container has it, and one that somebody has removed, are no other.
    machine.sh("mkdir -p /run/same /var/lib/telaio && mount --bind /var/lib/telaio /run/same");
    let same = config_with(json!({"stateDir": "/run/same"}));
    Call::new("ADD", "b", &same).make(&machine).unwrap();
    machine.run(|| assert!(Host::new("/run/same").repair().unwrap().is_nothing()));
    Call::new("DEL", "b", &same).make(&machine).unwrap();
    machine.sh("umount /run/same; rm -r /var/lib/telaio/pods");
    Call::new("ADD", "b", &config()).make(&machine).unwrap();
}
