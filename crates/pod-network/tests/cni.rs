//! The plugin as runtimes call it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::cni::{Call, REFERENCE_DIR, config, config_with, inventory, machine};
use support::{Wire, ask_at, serve_at};

#[test]
fn an_instance_is_added_checked_and_deleted_again_and_nothing_is_left() {
    let machine = machine(&["a", "b"]);
    Call::new("ADD", "b", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    let result = Call::new("ADD", "a", &config()).make(&machine).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.88.0.3/16");
    assert_eq!(result["ips"][1]["address"], "fd88::3/64");
    let mut check = config();
    check["prevResult"] = result;
    Call::new("CHECK", "a", &check).make(&machine).unwrap();
    machine
        .sh("ip netns exec a ping -c 1 -W 20 10.88.0.2 && ip netns exec a ping -c 1 -W 20 fd88::2");
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    assert_eq!(inventory(&machine), before);
    assert_eq!(machine.sh("ip -n a -o link | wc -l").trim(), "1", "only loopback is left");
    // Again, and without a namespace.
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    let mut gone = Call::new("DEL", "b", &config());
    gone.netns = None;
    gone.make(&machine).unwrap();
    let check = Call::new("CHECK", "a", &check).make(&machine).unwrap_err();
    assert_eq!(check["code"], 105, "{check}");
}

#[test]
fn adding_twice_fails_and_changes_nothing() {
    let machine = machine(&["a"]);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    let error = Call::new("ADD", "a", &config()).make(&machine).unwrap_err();
    assert_eq!(error["code"], 104, "{error}");
    // Another's interface of that name is as good a reason.
    machine.sh("ip -n a link add eth7 type veth peer name x7");
    let mut call = Call::new("ADD", "a", &config());
    call.interface = "eth7".to_owned();
    assert_eq!(call.make(&machine).unwrap_err()["code"], 104);
    assert_eq!(inventory(&machine), before);
}

#[test]
fn bad_input_gets_the_code_of_the_specification_and_changes_nothing() {
    let machine = machine(&["a"]);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    let with_ipam = |ipam: Value| config_with(json!({ "ipam": ipam }));
    let subnet = |subnet: &str| with_ipam(json!({"type": "host-local", "subnet": subnet}));
    let cases = [
        (1, config_with(json!({"cniVersion": "0.2.0"}))),
        (1, config_with(json!({"cniVersion": null}))),
        (7, config_with(json!({"vlan": 5000}))),
        (7, config_with(json!({"vlan": -1}))),
        (7, config_with(json!({"ipam": null}))),
        (2, with_ipam(json!({"type": "dhcp"}))),
        (7, config_with(json!({"name": "a/b"}))),
        (7, config_with(json!({"bridge": "a-name-that-is-too-long"}))),
        (7, config_with(json!({"mtu": 7}))),
        (7, config_with(json!({"mtu": "1500"}))),
        (7, subnet("10.88.0.0")),
        (7, subnet("10.88.0.5/16")),
        (7, subnet("10.88.0.0/32")),
        (7, subnet("ten/8")),
        (7, with_ipam(json!({"type": "host-local"}))),
        (
            7,
            with_ipam(
                json!({"type": "host-local", "subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}),
            ),
        ),
        (
            7,
            with_ipam(
                json!({"type": "host-local", "subnet": "10.1.0.0/24", "gateway": "10.2.0.1"}),
            ),
        ),
        (
            7,
            with_ipam(json!({"type": "host-local",
            "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/16"}]]})),
        ),
        (7, config_with(json!({"runtimeConfig": {"ips": ["10.99.0.1"]}}))),
        (7, config_with(json!({"runtimeConfig": {"mac": "01:00:00:00:00:01"}}))),
        (
            7,
            config_with(
                json!({"runtimeConfig": {"portMappings": [{"hostPort": 70000, "containerPort": 1}]}}),
            ),
        ),
        (
            7,
            config_with(json!({"runtimeConfig": {"portMappings": [
            {"hostPort": 80, "containerPort": 1}, {"hostPort": 80, "containerPort": 2}]}})),
        ),
    ];
    for (code, config) in cases {
        let error = Call::new("ADD", "a", &config).make(&machine).unwrap_err();
        assert_eq!(error["code"], code, "{config} {error}");
        assert!(error["cniVersion"].is_string() && error["msg"].is_string());
        assert_eq!(inventory(&machine), before, "{config}");
    }
    let environment = |change: &dyn Fn(&mut Call)| {
        let mut call = Call::new("ADD", "a", &config());
        change(&mut call);
        call.make(&machine).unwrap_err()["code"].clone()
    };
    assert_eq!(environment(&|call| call.container = "../a".to_owned()), 4);
    assert_eq!(environment(&|call| call.container = String::new()), 4);
    assert_eq!(environment(&|call| call.interface = "a/b".to_owned()), 4);
    assert_eq!(environment(&|call| call.interface = "sixteen-letters-".to_owned()), 4);
    assert_eq!(environment(&|call| call.netns = None), 4);
    assert_eq!(environment(&|call| call.command = "SUB"), 4);
    assert_eq!(environment(&|call| call.netns = Some("/run/netns/nobody".to_owned())), 3);
    assert_eq!(environment(&|call| call.netns = Some("/proc/self/ns/net".to_owned())), 7);
    let malformed = machine.sh(&format!(
        "echo '{{' | CNI_COMMAND=ADD CNI_CONTAINERID=a CNI_IFNAME=eth0 CNI_NETNS=/run/netns/a {} || true",
        support::cni::PLUGIN
    ));
    assert_eq!(serde_json::from_str::<Value>(&malformed).unwrap()["code"], 6);
    assert_eq!(inventory(&machine), before);
}

#[test]
fn a_network_that_overlaps_another_is_refused_unless_nobody_uses_that() {
    let machine = machine(&["a", "b"]);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    let other = config_with(json!({"name": "other", "bridge": "cni1",
        "ipam": {"type": "host-local", "subnet": "10.88.7.0/24"}}));
    let error = Call::new("ADD", "b", &other).make(&machine).unwrap_err();
    assert_eq!(error["code"], 7, "{error}");
    assert!(error["msg"].as_str().unwrap().contains("network net"), "{error}");
    assert_eq!(inventory(&machine), before);
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    Call::new("ADD", "b", &other).make(&machine).unwrap();
}

#[test]
fn networks_reach_each_other_where_a_configuration_says_so() {
    let machine = machine(&["a", "b", "c"]);
    let network = |name: &str, bridge: &str, subnet: &str, reaches: Value| {
        config_with(
            json!({"name": name, "bridge": bridge, "reaches": reaches, "ipam": {"type": "host-local",
            "subnet": subnet, "routes": [{"dst": "0.0.0.0/0"}]}}),
        )
    };
    let one = network("one", "cni1", "10.91.0.0/24", json!(["two"]));
    let two = network("two", "cni2", "10.92.0.0/24", json!([]));
    let three = network("three", "cni3", "10.93.0.0/24", json!([]));
    for (container, config) in [("a", &one), ("b", &two), ("c", &three)] {
        Call::new("ADD", container, config).make(&machine).unwrap();
    }
    let reaches =
        |from: &str, to: &str| machine.try_sh(&format!("ip netns exec {from} ping -c 1 -W 1 {to}"));
    let comes = |from: &str, to: &str| (0..30).any(|_| reaches(from, to));
    assert!(comes("a", "10.92.0.2") && comes("b", "10.91.0.2"));
    assert!(!reaches("a", "10.93.0.2") && !reaches("c", "10.92.0.2"));
}

#[test]
fn every_version_gets_a_result_in_its_own_form() {
    let machine = machine(&["a"]);
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let config = config_with(json!({ "cniVersion": version }));
        let result = Call::new("ADD", "a", &config).make(&machine).unwrap();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["ips"][0]["version"] == "4", version.starts_with("0."), "{result}");
        assert_eq!(result["interfaces"][2]["mtu"].is_u64(), version == "1.1.0", "{result}");
        if version != "0.3.1" {
            let mut check = config.clone();
            check["prevResult"] = result;
            let check = Call::new("CHECK", "a", &check);
            check.make(&machine).unwrap();
            machine
                .sh("ip -n a address del 10.88.0.2/16 dev eth0 || ip -n a address flush dev eth0");
            assert_eq!(check.make(&machine).unwrap_err()["code"], 105, "{version}");
        }
        Call::new("DEL", "a", &config).make(&machine).unwrap();
    }
    let answer = Call::new("VERSION", "a", &json!({"cniVersion": "1.0.0"})).make(&machine).unwrap();
    assert_eq!(answer["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
    for (command, version) in [("CHECK", "0.3.1"), ("STATUS", "1.0.0"), ("GC", "1.0.0")] {
        let config = config_with(json!({ "cniVersion": version }));
        assert_eq!(Call::new(command, "a", &config).make(&machine).unwrap_err()["code"], 1);
    }
}

#[test]
fn capabilities_are_honoured() {
    let machine = machine(&["a", "b", "c"]);
    let config = config_with(json!({"runtimeConfig": {
        "ips": ["10.88.7.7/16"],
        "mac": "0a:00:00:00:00:07",
        "portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
            {"hostPort": 9090, "containerPort": 80, "protocol": "sctp", "hostIP": "10.88.0.1"},
        ],
        "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000},
    }}));
    let result = Call::new("ADD", "a", &config).make(&machine).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.88.7.7/16");
    assert_eq!(result["interfaces"][2]["mac"], "0a:00:00:00:00:07");
    for wire in [Wire::Tcp, Wire::Udp] {
        let _server = serve_at(&machine, Some("a"), "10.88.7.7", 80, wire);
        assert!(ask_at(&machine, None, "10.88.0.1", 8080, wire).is_ok(), "{wire:?}");
    }
    let rules = machine.sh("nft list map ip telaio-pods ports");
    assert!(rules.contains("10.88.0.1 . sctp . 9090 : 10.88.7.7 . 80"), "{rules}");
    // Conflicts name who is in the way.
    let ports = |mapping: Value| config_with(json!({"runtimeConfig": {"portMappings": [mapping]}}));
    let taken = ports(json!({"hostPort": 8080, "containerPort": 1}));
    let error = Call::new("ADD", "b", &taken).make(&machine).unwrap_err();
    assert_eq!(error["code"], 103);
    assert!(error["msg"].as_str().unwrap().contains("instance a "), "{error}");
    let ip = config_with(json!({"runtimeConfig": {"ips": ["10.88.7.7"]}}));
    let error = Call::new("ADD", "b", &ip).make(&machine).unwrap_err();
    assert!(
        error["code"] == 101 && error["msg"].as_str().unwrap().contains("instance a "),
        "{error}"
    );
    let _listener = serve_at(&machine, None, "0.0.0.0", 7070, Wire::Tcp);
    let listened = ports(json!({"hostPort": 7070, "containerPort": 1}));
    let error = Call::new("ADD", "b", &listened).make(&machine).unwrap_err();
    assert!(error["msg"].as_str().unwrap().contains("process cni"), "{error}");
    Call::new("DEL", "a", &config).make(&machine).unwrap();
    Call::new("ADD", "b", &taken).make(&machine).unwrap();
}

#[test]
fn addresses_run_out_with_a_list_of_who_has_them_and_status_says_so_before() {
    let machine = machine(&["a", "b", "c"]);
    let config = config_with(
        json!({"ipam": {"type": "host-local", "subnet": "10.9.0.0/29", "rangeEnd": "10.9.0.3"}}),
    );
    Call::new("STATUS", "a", &config).make(&machine).unwrap();
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    Call::new("ADD", "b", &config).make(&machine).unwrap();
    let error = Call::new("ADD", "c", &config).make(&machine).unwrap_err();
    let message = error["msg"].as_str().unwrap();
    assert!(error["code"] == 102 && message.contains("10.9.0.2 by instance a"), "{error}");
    assert_eq!(Call::new("STATUS", "a", &config).make(&machine).unwrap_err()["code"], 50);
    Call::new("DEL", "a", &config).make(&machine).unwrap();
    Call::new("STATUS", "a", &config).make(&machine).unwrap();
    Call::new("ADD", "c", &config).make(&machine).unwrap();
}

#[test]
fn what_is_not_valid_any_more_is_collected() {
    let names: Vec<String> = (0..6).map(|number| format!("c{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let machine = machine(&names);
    Call::new("ADD", "c0", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    for (at, name) in names.iter().enumerate().skip(1) {
        let ports = json!([{"hostPort": 8000 + at, "containerPort": 80}]);
        let config = config_with(json!({"runtimeConfig": {"portMappings": ports}}));
        Call::new("ADD", name, &config).make(&machine).unwrap();
    }
    machine.sh("ip netns del c3");
    let mut gc = config();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "c0", "ifname": "eth0"}]);
    Call::new("GC", "", &gc).make(&machine).unwrap();
    assert_eq!(inventory(&machine), before);
    let forgotten = Call::new("GC", "", &config()).make(&machine).unwrap_err();
    assert_eq!(forgotten["code"], 7, "without the list nothing goes");
}

#[test]
fn fifty_at_once_get_fifty_addresses() {
    let names: Vec<String> = (0..50).map(|number| format!("p{number}")).collect();
    let machine = machine(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let calls: Vec<Call> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let ports = json!([{"hostPort": 5000 + at, "containerPort": 80}]);
            let config = config_with(json!({"runtimeConfig": {"portMappings": ports}}));
            Call::new("ADD", name, &config)
        })
        .collect();
    let deletions: Vec<Call> =
        calls.iter().map(|call| Call { command: "DEL", ..call.clone() }).collect();
    let all = move |calls: Vec<Call>| {
        let threads: Vec<_> =
            calls.into_iter().map(|call| std::thread::spawn(move || call.make_here())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect::<Vec<_>>()
    };
    let results = machine.run(move || all(calls));
    let addresses: std::collections::BTreeSet<String> =
        results.iter().map(|result| result["ips"][0]["address"].to_string()).collect();
    assert_eq!(addresses.len(), 50);
    assert_eq!(machine.sh("bridge link | wc -l").trim(), "50");
    machine.sh("for n in 1 17 49; do ip netns exec p$n ping -c 1 -W 20 10.88.0.1; done");
    machine.run(move || all(deletions));
    assert_eq!(machine.sh("bridge link | wc -l").trim(), "0");
    let files = machine.sh("find /var/lib/telaio/pods/*/attachments /var/lib/telaio/pods/*/addresses /var/lib/telaio/pods/*/ports -type f | grep -v last- | wc -l");
    assert_eq!(files.trim(), "0");
}

#[test]
fn it_publishes_ports_and_limits_behind_another_plugin() {
    let machine = machine(&["a", "b"]);
    let mut bridge =
        config_with(json!({"type": "bridge", "cniVersion": "1.0.0", "hairpinMode": true}));
    bridge["ipam"]["dataDir"] = "/run/host-local".into();
    let results = ["a", "b"].map(|name| {
        let mut call = Call::new("ADD", name, &bridge);
        call.plugin = format!("{REFERENCE_DIR}/bridge");
        call.make(&machine).unwrap()
    });
    let before = inventory(&machine);
    let chained = json!({
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "telaio-cni",
        "prevResult": results[0],
        "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}],
            "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000},
        },
    });
    for _ in 0..2 {
        let result = Call::new("ADD", "a", &chained).make(&machine).unwrap();
        assert_eq!(result, results[0], "what came before is passed on as it is");
    }
    Call::new("CHECK", "a", &chained).make(&machine).unwrap();
    for wire in [Wire::Tcp, Wire::Udp] {
        let _servers =
            ["10.88.0.2", "fd88::2"].map(|ip| serve_at(&machine, Some("a"), ip, 80, wire));
        for ip in ["10.88.0.1", "fd88::1"] {
            // The other plugin's IPv6 addresses do not count at once.
            let asked = || ask_at(&machine, None, ip, 8080, wire).is_ok();
            assert!((0..30).any(|_| asked()), "the node, {ip} {wire:?}");
            assert!(
                ask_at(&machine, Some("b"), ip, 8080, wire).is_ok(),
                "a neighbour, {ip} {wire:?}"
            );
        }
    }
    assert!(machine.sh("tc qdisc").contains("rate 80Mbit"), "{}", machine.sh("tc qdisc"));
    let mut taken = chained.clone();
    taken["prevResult"] = results[1].clone();
    let error = Call::new("ADD", "b", &taken).make(&machine).unwrap_err();
    assert!(
        error["code"] == 103 && error["msg"].as_str().unwrap().contains("instance a"),
        "{error}"
    );
    // Mending and collecting leave it, while it is valid.
    machine.run(|| assert!(telaio_pod_network::Host::default().repair().unwrap().is_nothing()));
    let mut gc = chained.clone();
    gc["cniVersion"] = "1.1.0".into();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "a", "ifname": "eth0"}]);
    Call::new("GC", "", &gc).make(&machine).unwrap();
    Call::new("CHECK", "a", &chained).make(&machine).unwrap();
    gc["cni.dev/valid-attachments"] = json!([]);
    Call::new("GC", "", &gc).make(&machine).unwrap();
    assert_eq!(Call::new("CHECK", "a", &chained).make(&machine).unwrap_err()["code"], 105);
    Call::new("ADD", "a", &chained).make(&machine).unwrap();
    for _ in 0..2 {
        let mut call = Call::new("DEL", "a", &chained);
        call.netns = None;
        call.make(&machine).unwrap();
    }
    machine.run(|| telaio_pod_network::Host::default().repair().unwrap());
    assert_eq!(inventory(&machine), before, "the other plugin's is untouched");
    assert!(!machine.sh("tc qdisc").contains("tbf"), "{}", machine.sh("tc qdisc"));
    let mut alone = chained;
    alone.as_object_mut().unwrap().remove("prevResult");
    assert_eq!(Call::new("ADD", "a", &alone).make(&machine).unwrap_err()["code"], 7);
}

#[test]
fn others_work_behind_it_and_before_it() {
    let machine = machine(&["a", "b"]);
    let config = config_with(json!({"cniVersion": "1.0.0"}));
    let result = Call::new("ADD", "a", &config).make(&machine).unwrap();
    let behind = |plugin: &str, runtime: Value| {
        let config = json!({"cniVersion": "1.0.0", "name": "net", "type": plugin, "snat": true,
            "prevResult": result, "runtimeConfig": runtime});
        let mut call = Call::new("ADD", "a", &config);
        call.plugin = format!("{REFERENCE_DIR}/{plugin}");
        let after = call.make(&machine).unwrap();
        assert_eq!(after["ips"], result["ips"], "{plugin}");
        Call { command: "DEL", ..call }
    };
    let undo = [
        behind(
            "portmap",
            json!({"portMappings": [{"hostPort": 8088, "containerPort": 80, "protocol": "tcp"}]}),
        ),
        behind(
            "bandwidth",
            json!({"bandwidth": {"ingressRate": 80_000_000, "ingressBurst": 8_000_000}}),
        ),
        behind("tuning", json!({})),
    ];
    let _server = serve_at(&machine, Some("a"), "10.88.0.2", 80, Wire::Tcp);
    assert!(ask_at(&machine, None, "10.88.0.1", 8088, Wire::Tcp).is_ok(), "by portmap");
    for call in undo.iter().rev() {
        call.make(&machine).unwrap();
    }
    // A plugin before it has made another interface.
    let mut second = config_with(
        json!({"cniVersion": "1.0.0", "name": "other", "bridge": "cni1", "prevResult": result,
        "ipam": {"type": "host-local", "subnet": "10.89.0.0/16"}}),
    );
    let mut call = Call::new("ADD", "a", &second);
    call.interface = "eth1".to_owned();
    let both = call.make(&machine).unwrap();
    let names: Vec<&str> = both["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!((names.len(), names[2], names[5]), (6, "eth0", "eth1"), "{both}");
    let ips: Vec<u64> = both["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["interface"].as_u64().unwrap())
        .collect();
    assert_eq!(ips, [2, 2, 5], "{both}");
    second["prevResult"] = both;
    let check = Call { command: "CHECK", config: second, ..call };
    check.make(&machine).unwrap();
    Call { command: "DEL", ..check }.make(&machine).unwrap();
    Call::new("DEL", "a", &config).make(&machine).unwrap();
}

#[test]
fn where_bridges_have_no_virtual_networks_that_is_said_and_nothing_is_left() {
    let machine = machine(&["a"]);
    let before = inventory(&machine);
    for is_gateway in [true, false] {
        let config = config_with(json!({"vlan": 7, "isGateway": is_gateway}));
        match Call::new("ADD", "a", &config).make(&machine) {
            // What they do then is tested on the guest kernel, which has them.
            Ok(_) => _ = Call::new("DEL", "a", &config).make(&machine).unwrap(),
            Err(error) => {
                assert_eq!(error["code"], 2, "{error}");
                assert!(
                    error["msg"].as_str().unwrap().contains("CONFIG_BRIDGE_VLAN_FILTERING"),
                    "{error}"
                );
                assert_eq!(inventory(&machine), before);
            }
        }
    }
}

/// What both say in the same words; hardware addresses and names of host ends are each plugin's own.
fn comparable(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface["mac"] = Value::Null;
        if interface["sandbox"].is_null() && interface["name"] != "cni0" {
            interface["name"] = "host end".into();
        }
    }
    result
}

/// The addresses of a container and its bridge, both families.
const ADDRESSES: &str = "for of in '-n a -4' '-n a -6' -4 -6; do dev=cni0; case $of in -n*) dev=eth0; esac; \
    ip $of -o address show dev $dev scope global | awk '{print $4}'; done";
/// Where it sends what is for others: with whatever else the kernel says of its routes by IPv6 taken away.
const WAYS_OUT: &str = "ip -n a route | grep 'default\\|fd00\\|^10\\.0' | sed 's/ *$//'; \
    ip -n a -6 route | grep 'default\\|^fd00::/8' | grep -o '^[^ ]* via [^ ]*'; true";

#[test]
fn results_agree_with_the_reference_plugin() {
    let base = json!({"cniVersion": "1.0.0", "name": "net", "bridge": "cni0"});
    let local = |more: Value| {
        let mut ipam = json!({"type": "host-local", "dataDir": "/run/host-local"});
        for (key, value) in more.as_object().unwrap() {
            ipam[key] = value.clone();
        }
        ipam
    };
    let cases = [
        json!({"isGateway": true, "ipMasq": true, "ipam": local(json!({"subnet": "10.22.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}))}),
        json!({"isDefaultGateway": true, "hairpinMode": true, "mtu": 1400, "ipam": local(json!({"subnet": "10.23.1.0/24", "rangeStart": "10.23.1.20", "rangeEnd": "10.23.1.50", "gateway": "10.23.1.254"}))}),
        json!({"ipam": local(json!({"subnet": "10.24.0.0/24", "routes": [{"dst": "10.0.0.0/8", "gw": "10.24.0.9"}]}))}),
        json!({"cniVersion": "0.4.0", "isGateway": true, "dns": {"nameservers": ["10.1.0.1"]}, "ipam": local(json!({"ranges": [[{"subnet": "10.25.0.0/24"}], [{"subnet": "fd25::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}))}),
        json!({"cniVersion": "0.3.1", "isGateway": true, "ipam": local(json!({"subnet": "10.26.0.0/24"}))}),
        json!({"isDefaultGateway": true, "ipMasq": true, "ipam": local(json!({"ranges": [[{"subnet": "10.27.0.0/24"}], [{"subnet": "fd27::/64"}]]}))}),
        json!({"isGateway": true, "ipam": local(json!({"ranges": [[{"subnet": "fd28::/64"}]], "routes": [{"dst": "fd00::/8", "gw": "fd28::1"}, {"dst": "::/0"}]}))}),
        json!({"ipam": local(json!({"ranges": [[{"subnet": "fd28::/64"}]], "routes": [{"dst": "fd00::/8", "gw": "fd28::9"}]}))}),
        json!({"isGateway": true, "runtimeConfig": {"ips": ["10.29.0.77", "fd29::77"]}, "capabilities": {"ips": true},
            "ipam": local(json!({"ranges": [[{"subnet": "10.29.0.0/24"}], [{"subnet": "fd29::/64"}]]}))}),
        json!({"isGateway": true, "runtimeConfig": {"mac": "0a:00:00:00:00:2a"}, "capabilities": {"mac": true},
            "ipam": local(json!({"subnet": "10.30.0.0/24"}))}),
    ];
    for case in cases {
        let mut config = base.clone();
        for (key, value) in case.as_object().unwrap() {
            config[key] = value.clone();
        }
        let results = ["bridge", "telaio-cni"].map(|plugin| {
            let machine = machine(&["a", "b"]);
            let mut config = config.clone();
            config["type"] = plugin.into();
            let call = |container: &str| {
                let mut call = Call::new("ADD", container, &config);
                if plugin == "bridge" {
                    call.plugin = format!("{REFERENCE_DIR}/bridge");
                }
                comparable(call.make(&machine).unwrap())
            };
            let results = call("a");
            // An address or a hardware address that is asked for is one instance's.
            let is_asked_for = config.get("runtimeConfig").is_some();
            let others = if is_asked_for { Value::Null } else { call("b") };
            let inside = machine.sh(&format!("{ADDRESSES}; {WAYS_OUT}"));
            let link = machine.sh("ip -n a -o link show eth0 | grep -o 'mtu [0-9]*'");
            let mac = machine.sh("ip -n a -o link show eth0 | grep -o 'ether [0-9a-f:]*'");
            let asked_mac = config["runtimeConfig"]["mac"].as_str();
            assert!(asked_mac.is_none_or(|asked| mac.contains(asked)), "{plugin}: {mac}");
            ([results, others], inside, link)
        });
        assert_eq!(results[0], results[1], "{config}");
    }
}
