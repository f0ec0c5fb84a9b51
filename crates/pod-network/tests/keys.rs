//! Keys of the reference plugins: each is honoured, or refused by its name.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::cni::{Call, config, config_with, inventory, machine};
use support::{Wire, ask_at, serve_at};
use telaio_testkit::machine::connect;

#[test]
fn what_would_be_lost_without_a_word_is_refused_by_name() {
    let machine = machine(&["a"]);
    let before = inventory(&machine);
    let route = |key: &str| {
        let mut route = json!({"dst": "0.0.0.0/0"});
        route[key] = 7.into();
        let ipam = json!({"type": "host-local", "subnet": "10.88.0.0/16", "routes": [route]});
        config_with(json!({ "ipam": ipam }))
    };
    let plain = |key: &str| {
        let mut config = config_with(json!({"isGateway": false}));
        config[key] = true.into();
        config
    };
    for (key, config) in [
        ("vlanTrunk", config_with(json!({"vlanTrunk": [{"id": 7}]}))),
        ("preserveDefaultVlan", config_with(json!({"vlan": 7, "preserveDefaultVlan": true}))),
        ("forceAddress", config_with(json!({"forceAddress": true}))),
        ("enabledad", config_with(json!({"enabledad": true}))),
        ("macspoofchk", plain("macspoofchk")),
        ("portIsolation", plain("portIsolation")),
        ("ipam.routes.mtu", route("mtu")),
        ("ipam.routes.advmss", route("advmss")),
        ("ipam.routes.priority", route("priority")),
        ("ipam.routes.table", route("table")),
        ("ipam.routes.scope", route("scope")),
        ("disableContainerInterface", config_with(json!({"disableContainerInterface": true}))),
    ] {
        let error = Call::new("ADD", "a", &config).make(&machine).unwrap_err();
        assert_eq!(error["code"], 2, "{key}: {error}");
        assert!(error["msg"].as_str().unwrap().contains(key), "{key}: {error}");
        assert_eq!(inventory(&machine), before, "{key}");
    }
    // A neighbour of one's own network is reached by the node, too.
    for (subnet, dst, gw) in
        [("10.88.0.0/16", "10.0.0.0/8", "10.88.0.9"), ("fd88::/64", "fd00::/8", "fd88::9")]
    {
        let ipam =
            json!({"type": "host-local", "subnet": subnet, "routes": [{"dst": dst, "gw": gw}]});
        let error = Call::new("ADD", "a", &config_with(json!({ "ipam": ipam }))).make(&machine);
        let error = error.unwrap_err();
        assert_eq!(error["code"], 2, "{error}");
        let message = error["msg"].as_str().unwrap();
        assert!(message.contains("ipam.routes.gw") && message.contains(gw), "{error}");
        assert_eq!(inventory(&machine), before, "{gw}");
    }
    // What they say where it changes nothing is no fault.
    let harmless = json!({"vlanTrunk": [], "preserveDefaultVlan": true, "forceAddress": false, "macspoofchk": true,
        "portIsolation": true, "enabledad": false, "ipMasqBackend": "nftables"});
    Call::new("ADD", "a", &config_with(harmless)).make(&machine).unwrap();
}

#[test]
fn what_is_no_result_of_a_plugin_is_refused_and_nothing_panics() {
    let machine = machine(&["a"]);
    let before = inventory(&machine);
    for previous in [json!([]), json!("text"), json!(7), json!(true), json!([{}])] {
        let chained = json!({"cniVersion": "1.0.0", "name": "net", "type": "telaio-cni", "prevResult": previous,
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
        let mut first = config();
        first["prevResult"] = previous.clone();
        for config in [&chained, &first] {
            for command in ["ADD", "CHECK"] {
                let error = Call::new(command, "a", config).make(&machine).unwrap_err();
                assert_eq!(error["code"], 7, "{command} {config}: {error}");
            }
            // What is to go goes.
            Call::new("DEL", "a", config).make(&machine).unwrap();
        }
    }
    for inner in [
        json!({"interfaces": 7}),
        json!({"interfaces": [7], "ips": [7]}),
        json!({"ips": "text"}),
        json!({"ips": [{"address": 7}]}),
        json!({"ips": [{"interface": -1, "address": "x"}]}),
        json!({"interfaces": [{"name": 7, "sandbox": []}]}),
    ] {
        let chained = json!({"cniVersion": "1.0.0", "name": "net", "type": "telaio-cni", "prevResult": inner,
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
        let error = Call::new("ADD", "a", &chained).make(&machine).unwrap_err();
        assert_eq!(error["code"], 7, "{inner}: {error}");
    }
    let said = machine.sh(&format!(
        "printf '{{\"name\": \"\\377\"}}' | CNI_COMMAND=ADD CNI_CONTAINERID=a CNI_IFNAME=eth0 CNI_NETNS=/run/netns/a {} || true",
        support::cni::PLUGIN
    ));
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["code"], 6, "{said}");
    assert_eq!(inventory(&machine), before);
}

#[test]
fn names_are_resolved_as_the_configuration_or_the_runtime_or_a_file_says() {
    let machine = machine(&["a"]);
    machine.sh(
        "printf '# ours\\ndomain example.org\\nnameserver 10.1.0.1\\nnameserver fd00::1\\nsearch a.example b.example\\noptions ndots:5 edns0\\n' > /run/resolv.conf",
    );
    let ipam =
        json!({"type": "host-local", "subnet": "10.88.0.0/16", "resolvConf": "/run/resolv.conf"});
    let of = |changes: Value| {
        let config = config_with(changes);
        let dns = Call::new("ADD", "a", &config).make(&machine).unwrap()["dns"].clone();
        Call::new("DEL", "a", &config).make(&machine).unwrap();
        dns
    };
    let by_file = json!({"domain": "example.org", "nameservers": ["10.1.0.1", "fd00::1"],
        "search": ["a.example", "b.example"], "options": ["ndots:5", "edns0"]});
    assert_eq!(of(json!({ "ipam": ipam })), by_file);
    let own = json!({"nameservers": ["10.2.0.1"]});
    assert_eq!(of(json!({"ipam": ipam, "dns": own})), own);
    let runtime = json!({"nameservers": ["10.3.0.1"], "searches": ["c.example"]});
    assert_eq!(of(json!({"ipam": ipam, "dns": own, "runtimeConfig": {"dns": runtime}})), runtime);
    let missing = json!({"type": "host-local", "subnet": "10.88.0.0/16", "resolvConf": "/nowhere"});
    let error = Call::new("ADD", "a", &config_with(json!({ "ipam": missing }))).make(&machine);
    let error = error.unwrap_err();
    assert!(error["code"] == 7 && error["msg"].as_str().unwrap().contains("/nowhere"), "{error}");
}

#[test]
fn ranges_come_from_the_runtime_too() {
    let machine = machine(&["a"]);
    let runtime = json!({"ipRanges": [[{"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.20"}], [{"subnet": "fd05:1::/64"}]]});
    let config = config_with(json!({"runtimeConfig": runtime, "ipam": {"type": "host-local"}}));
    let result = Call::new("ADD", "a", &config).make(&machine).unwrap();
    let addresses: Vec<&str> = result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ip| ip["address"].as_str().unwrap())
        .collect();
    assert_eq!(addresses, ["10.5.0.20/24", "fd05:1::2/64"]);
    machine.sh("ip netns exec a ping -c 1 -W 20 10.5.0.1");
    let plain = json!({"type": "host-local", "subnet": "10.6.0.0/24"});
    let both = config_with(json!({"name": "both", "bridge": "cni1", "ipam": plain,
        "runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/24"}]]}}));
    let mut call = Call::new("ADD", "a", &both);
    call.interface = "eth1".to_owned();
    assert_eq!(call.make(&machine).unwrap()["ips"].as_array().unwrap().len(), 2);
}

#[test]
fn networks_that_see_a_containers_own_address_are_named() {
    let machine = machine(&["a"]);
    let outside = telaio_testkit::machine::Machine::start("outside");
    connect(&machine, "lan0", "192.168.5.1/24", &outside, "lan1", "192.168.5.99/24,192.168.6.1/24");
    machine.sh("ip route add 192.168.6.0/24 via 192.168.5.99");
    outside.sh("ip route add 10.88.0.0/16 via 192.168.5.1");
    let config = config_with(json!({"masqExcept": ["192.168.6.0/24"]}));
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    for (ip, seen) in [("192.168.5.99", "192.168.5.1"), ("192.168.6.1", "10.88.0.2")] {
        let _server = serve_at(&outside, None, ip, 80, Wire::Tcp);
        assert_eq!(ask_at(&machine, Some("a"), ip, 80, Wire::Tcp).as_deref(), Ok(seen));
    }
}

#[test]
fn a_plain_bridge_carries_frames_from_port_to_port_and_takes_all_of_them_if_told() {
    let machine = machine(&["a", "b"]);
    let config = config_with(
        json!({"isGateway": false, "ipMasq": false, "promiscMode": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]]}}),
    );
    let ips = ["a", "b"].map(|name| {
        let result = Call::new("ADD", name, &config).make(&machine).unwrap();
        [0, 1].map(|at| {
            let ip = result["ips"][at]["address"].as_str().unwrap();
            ip.split('/').next().unwrap().to_owned()
        })
    });
    let flags = machine.sh("ip -d -o link show cni0");
    assert!(flags.contains("PROMISC") || flags.contains("promiscuity 1"), "{flags}");
    assert_eq!(machine.sh("bridge -d link | grep -c 'hairpin on'").trim(), "2");
    for (own, other) in ips[0].iter().zip(&ips[1]) {
        for wire in [Wire::Tcp, Wire::Udp] {
            let _server = serve_at(&machine, Some("b"), other, 80, wire);
            assert_eq!(ask_at(&machine, Some("a"), other, 80, wire).as_deref(), Ok(own.as_str()));
        }
    }
    machine.sh("! ip -o address show dev cni0 | grep 10.88");
    // An instance hears what it sends to its own address by way of the bridge: hairpin.
    assert_eq!(machine.sh("bridge link | grep -c 'isolated on' || true").trim(), "0");
    for name in ["a", "b"] {
        Call::new("DEL", name, &config).make(&machine).unwrap();
    }
}

#[test]
fn without_addresses_there_are_frames_only() {
    let machine = machine(&["a", "b"]);
    let config = config_with(json!({"ipam": {}}));
    for (name, ip) in [("a", "10.1.0.1/24"), ("b", "10.1.0.2/24")] {
        let result = Call::new("ADD", name, &config).make(&machine).unwrap();
        assert!(result.get("ips").is_none() && result.get("routes").is_none(), "{result}");
        assert_eq!(machine.sh(&format!("ip -n {name} -4 address show dev eth0")), "");
        let mut check = config.clone();
        check["prevResult"] = result;
        Call::new("CHECK", name, &check).make(&machine).unwrap();
        machine.sh(&format!("ip -n {name} address add {ip} dev eth0"));
    }
    machine.sh("ip netns exec a ping -c 1 -W 20 10.1.0.2");
    Call::new("STATUS", "", &config).make(&machine).unwrap();
    let error = Call::new("ADD", "a", &config).make(&machine).unwrap_err();
    assert_eq!(error["code"], 104, "{error}");
    for name in ["a", "b"] {
        Call::new("DEL", name, &config).make(&machine).unwrap();
    }
    machine.sh("! ip -o link | grep tlv");
}

#[test]
fn a_port_at_all_addresses_and_one_at_a_single_one_are_the_same_port() {
    let machine = machine(&["a", "b"]);
    let with = |host_ip: &str| {
        config_with(json!({"runtimeConfig": {"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "hostIP": host_ip}]}}))
    };
    for (first, second, is_taken) in [
        ("0.0.0.0", "10.88.0.1", true),
        ("10.88.0.1", "0.0.0.0", true),
        ("0.0.0.0", "", true),
        ("", "::", true),
        ("::", "fd88::1", true),
        ("0.0.0.0", "fd88::1", false),
        ("0.0.0.0", "::", false),
        ("10.88.0.1", "127.0.0.1", false),
    ] {
        Call::new("ADD", "a", &with(first)).make(&machine).unwrap();
        let outcome = Call::new("ADD", "b", &with(second)).make(&machine);
        match &outcome {
            Ok(_) => assert!(!is_taken, "{first} and {second}"),
            Err(error) => {
                assert!(is_taken, "{first} and {second}: {error}");
                assert_eq!(error["code"], 103, "{error}");
                assert!(error["msg"].as_str().unwrap().contains("instance a"), "{error}");
            }
        }
        for name in ["a", "b"] {
            Call::new("DEL", name, &with(first)).make(&machine).unwrap();
        }
    }
}
