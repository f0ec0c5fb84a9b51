//! CHECK finds whatever is no longer as ADD left it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::cni::{Call, config_with, machine};
use telaio_pod_network::Host;
use telaio_testkit::machine::Machine;

/// What the agent mends by itself.
const MEND: &str = "mend";

/// Each damage is found, and once it is mended nothing is.
fn damages(machine: &Machine, check: &Value, damages: &[(&str, &str)]) {
    let call = Call::new("CHECK", "a", check);
    call.make(machine).unwrap();
    for (damage, undo) in damages {
        machine.sh(damage);
        let error = call.make(machine).expect_err(damage);
        assert_eq!(error["code"], 105, "{damage}: {error}");
        if *undo == MEND {
            machine.run(|| Host::default().repair().unwrap());
        } else {
            machine.sh(undo);
        }
        call.make(machine).unwrap_or_else(|error| panic!("{damage} is undone: {error}"));
    }
}

fn added(machine: &Machine, config: &Value) -> (Value, String) {
    let result = Call::new("ADD", "a", config).make(machine).unwrap();
    let link = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let mut check = config.clone();
    check["prevResult"] = result;
    (check, link)
}

#[test]
fn every_difference_of_a_container_with_a_gateway_is_found() {
    let machine = machine(&["a"]);
    // Where the kernel shows bridged packets to rules, ports are apart by other means.
    machine.sh(
        "for kind in iptables ip6tables; do path=/proc/sys/net/bridge/bridge-nf-call-$kind; ! test -e $path || echo 0 > $path; done",
    );
    let (check, link) = added(
        &machine,
        &config_with(json!({
            "isDefaultGateway": true, "mtu": 1400,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]],
                "routes": [{"dst": "10.9.0.0/16"}, {"dst": "10.8.0.0/16", "gw": "10.88.0.1"}]},
            "runtimeConfig": {
                "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
                "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000}},
        })),
    );
    let through = link.replace("tlv", "tli");
    let inside = |line: &str| format!("ip netns exec a {line}");
    let cases = [
        (inside("ip route del default"), inside("ip route add default via 10.88.0.1")),
        (inside("ip -6 route del default"), inside("ip -6 route add default via fd88::1")),
        (
            inside("ip route replace default dev eth0"),
            inside("ip route replace default via 10.88.0.1"),
        ),
        (
            inside("ip route replace 10.8.0.0/16 dev eth0"),
            inside("ip route replace 10.8.0.0/16 via 10.88.0.1"),
        ),
        (inside("ip route del 10.9.0.0/16"), inside("ip route add 10.9.0.0/16 via 10.88.0.1")),
        (inside("ip route del 10.88.0.0/16"), inside("ip route add 10.88.0.0/16 via 10.88.0.1")),
        (
            inside("ip route replace 10.88.0.0/16 dev eth0"),
            inside("ip route replace 10.88.0.0/16 via 10.88.0.1"),
        ),
        (inside("ip link set eth0 mtu 1300"), inside("ip link set eth0 mtu 1400")),
        (
            inside("ip link set eth0 address 0a:58:00:00:00:01"),
            inside("ip link set eth0 address 0a:58:0a:58:00:02"),
        ),
        (format!("ip link set {link} nomaster"), MEND.to_owned()),
        (
            format!("bridge link set dev {link} isolated off"),
            format!("bridge link set dev {link} isolated on"),
        ),
        (
            format!("bridge link set dev {link} learning on"),
            format!("bridge link set dev {link} learning off"),
        ),
        (
            format!("tc qdisc del dev {link} root"),
            MEND.to_owned(),
        ),
        (format!("ip link set {through} down"), format!("ip link set {through} up")),
        (
            "nft delete element ip telaio-pods any-ports '{ tcp . 8080 }'".to_owned(),
            "nft add element ip telaio-pods any-ports '{ tcp . 8080 : 10.88.0.2 . 80 }'".to_owned(),
        ),
        (
            "nft delete element ip6 telaio-pods any-ports '{ tcp . 8080 }'; nft add element ip6 telaio-pods any-ports '{ tcp . 8080 : fd88::9 . 80 }'".to_owned(),
            "nft delete element ip6 telaio-pods any-ports '{ tcp . 8080 }'; nft add element ip6 telaio-pods any-ports '{ tcp . 8080 : fd88::2 . 80 }'".to_owned(),
        ),
        (
            format!("nft delete element bridge telaio-pods sources4 '{{ \"{link}\" . 10.88.0.2 }}'"),
            format!("nft add element bridge telaio-pods sources4 '{{ \"{link}\" . 10.88.0.2 }}'"),
        ),
        ("ip link set cni0 down".to_owned(), "ip link set cni0 up".to_owned()),
    ];
    let cases: Vec<(&str, &str)> = cases.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    damages(&machine, &check, &cases);
    // What was asked for is compared as well.
    for other in [
        json!({"portMappings": [{"hostPort": 8081, "containerPort": 80}]}),
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}], "bandwidth": {"ingressRate": 1_000_000}}),
    ] {
        let mut check = check.clone();
        check["runtimeConfig"] = other;
        assert_eq!(Call::new("CHECK", "a", &check).make(&machine).unwrap_err()["code"], 105);
    }
    machine.sh("nft delete table bridge telaio-pods");
    assert_eq!(Call::new("CHECK", "a", &check).make(&machine).unwrap_err()["code"], 105);
}

#[test]
fn every_difference_of_a_container_on_a_plain_bridge_is_found() {
    let machine = machine(&["a"]);
    let (check, link) = added(
        &machine,
        &config_with(json!({
            "isGateway": false, "hairpinMode": true,
            "ipam": {"type": "host-local", "subnet": "10.88.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
        })),
    );
    let cases = [
        (
            "ip -n a route del default".to_owned(),
            "ip -n a route add default via 10.88.0.1".to_owned(),
        ),
        (
            format!("ip link set {link} nomaster"),
            format!("ip link set {link} master cni0; bridge link set dev {link} hairpin on"),
        ),
        (
            format!("bridge link set dev {link} hairpin off"),
            format!("bridge link set dev {link} hairpin on"),
        ),
        (
            format!("bridge link set dev {link} isolated on"),
            format!("bridge link set dev {link} isolated off"),
        ),
    ];
    let cases: Vec<(&str, &str)> = cases.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    damages(&machine, &check, &cases);
}
