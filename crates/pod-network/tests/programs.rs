//! Everything by netlink: where the kernel has nftables, no program is ever started.
//!
//! The kernel counts page faults of children that have ended: who has started no program has none. And whatever is found by
//! `PATH` is a stand-in that notes that it was called.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cidr::{IpInet, Ipv4Inet};
use serde_json::{Value, json};
use support::cni::{Call, config_with};
use support::{Node, lan};
use telaio_pod_network::instance::{
    CleanInstanceRequest, SetupInstanceRequest, clean_instance, setup_instance,
};
use telaio_pod_network::node::{
    CleanNodeRequest, NodeIp, NodeRequest, SetupIptablesRequest, SetupNodeRequest, add_other_nodes,
    clean_node, delete_node_in_cluster, new_node_in_cluster, setup_iptables, setup_node,
};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Bandwidth, Host, Port};
use telaio_testkit::machine::Machine;

/// Where stand-ins are, and what they note.
const STAND_INS: &str = "/run/stand-ins";
const CALLED: &str = "/run/called";
/// What `PATH` may be: nothing, a place where nothing is, and the stand-ins.
const PATHS: [&str; 3] = ["", "/nonexistent", STAND_INS];

fn place_stand_ins(machine: &Machine) {
    machine.sh(&format!(
        "mkdir -p {STAND_INS} && printf '#!/bin/sh\\necho $0 $* >> {CALLED}\\nexit 1\\n' > {STAND_INS}/any && chmod +x {STAND_INS}/any && \
         cd {STAND_INS} && for name in ip bridge tc nft iptables ip6tables iptables-restore ip6tables-restore iptables-save \
         ip6tables-save iptables-nft iptables-legacy iptables-legacy-restore ip6tables-legacy-restore iptables-legacy-save \
         ip6tables-legacy-save xtables-nft-multi xtables-legacy-multi conntrack ipset sysctl modprobe ethtool sh ps ss; do \
         ln any $name; done"
    ));
}

/// How many page faults the children of a process had that it has waited for. It may have ended itself, if nobody has asked.
fn faults_of_children(process: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Waits until a process has ended, and leaves it for its parent to ask for.
fn ended(child: &Child) {
    let deadline = Instant::now() + Duration::from_mins(1);
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    while !stat().rsplit(')').next().unwrap().trim_start().starts_with('Z') {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a call with this `PATH`, which starts no program.
fn call(machine: &Machine, call: &Call, path: &'static str) -> Value {
    let call = call.clone();
    machine.run(move || {
        let mut child = call.command().env("PATH", path).spawn().unwrap();
        child.stdin.take().unwrap().write_all(call.config.to_string().as_bytes()).unwrap();
        ended(&child);
        let faults = faults_of_children(&child.id().to_string());
        let done = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{} with PATH {path:?}: {said}", call.command);
        assert_eq!(faults, 0, "{} with PATH {path:?} has started a program", call.command);
        if said.trim().is_empty() { Value::Null } else { serde_json::from_str(&said).unwrap() }
    })
}

#[test]
fn a_program_that_is_started_would_be_noticed() {
    let machine = Machine::start("control");
    place_stand_ins(&machine);
    machine.run(|| {
        let start = |line: &str| {
            let mut child = Command::new("/bin/sh");
            let mut child = child.args(["-c", line]).env("PATH", STAND_INS).spawn().unwrap();
            ended(&child);
            let faults = faults_of_children(&child.id().to_string());
            child.wait().unwrap();
            faults
        };
        assert_eq!(start("exit 0"), 0);
        assert!(start("/bin/true; exit 0") > 0);
        assert!(!std::path::Path::new(CALLED).exists());
        assert!(start("nft list ruleset; exit 0") > 0);
        assert!(std::fs::read_to_string(CALLED).unwrap().contains("nft list ruleset"));
    });
}

#[test]
fn the_plugin_starts_no_program() {
    let machine = support::cni::machine(&["a", "b", "c"]);
    place_stand_ins(&machine);
    let config = config_with(
        json!({"ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]]},
        "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}],
            "bandwidth": {"ingressRate": 80_000_000, "egressRate": 80_000_000}}}),
    );
    let plain =
        config_with(json!({"name": "plain", "bridge": "cni1", "isGateway": false, "ipMasq": false,
        "ipam": {"type": "host-local", "subnet": "10.89.0.0/16"}}));
    for path in PATHS {
        for config in [&config, &plain] {
            call(&machine, &Call::new("VERSION", "a", config), path);
            call(&machine, &Call::new("STATUS", "a", config), path);
            let result = call(&machine, &Call::new("ADD", "a", config), path);
            let mut check = config.clone();
            check["prevResult"] = result;
            call(&machine, &Call::new("CHECK", "a", &check), path);
            call(&machine, &Call::new("DEL", "a", config), path);
        }
        call(&machine, &Call::new("ADD", "b", &config), path);
        call(&machine, &Call::new("ADD", "c", &plain), path);
        for config in [&config, &plain] {
            let mut gc = config.clone();
            gc["cni.dev/valid-attachments"] = json!([]);
            call(&machine, &Call::new("GC", "", &gc), path);
        }
        assert_eq!(machine.sh("ip -o link | grep -c tlv || true").trim(), "0", "GC has collected");
        machine.run(|| Host::default().remove_all().unwrap());
    }
    assert!(
        !machine.try_sh(&format!("test -e {CALLED}")),
        "{}",
        machine.sh(&format!("cat {CALLED}"))
    );
}

#[test]
#[ignore = "the process that the test beside it starts"]
fn the_one_who_calls_everything() {
    let node = |number: u8| {
        let ip: Ipv4Inet = format!("10.77.{number}.1/24").parse().unwrap();
        let ip6: cidr::Ipv6Inet = format!("fd77:{number}::1/64").parse().unwrap();
        let external6: std::net::Ipv6Addr = format!("fd05::{number}").parse().unwrap();
        let ip =
            NodeIp::new(ip, [192, 168, 5, number]).with_cluster_ip(ip6).with_external_ip(external6);
        NodeRequest::new(format!("other{number}"), ip)
    };
    let own: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
    for backend in [Backend::default(), Backend::HostGw] {
        let request = SetupNodeRequest::new("own", own, vec![node(2)])
            .with_node_ip("fd77:1::1/64".parse::<cidr::Ipv6Inet>().unwrap())
            .with_backend(backend);
        setup_node(request).unwrap();
        setup_iptables(SetupIptablesRequest::new("own")).unwrap();
        add_other_nodes(vec![node(3)]).unwrap();
        new_node_in_cluster(node(4)).unwrap();
        delete_node_in_cluster(node(4)).unwrap();
        for (id, cidr) in [("a", "10.77.1.2/24"), ("b", "10.77.1.3/24")] {
            let ip: Ipv4Inet = cidr.parse().unwrap();
            let limits = Bandwidth {
                ingress_rate: 1_000_000,
                egress_rate: 1_000_000,
                ..Bandwidth::default()
            };
            let ports = if id == "a" { vec![Port::new(8080, 80)] } else { vec![] };
            let request = SetupInstanceRequest::new("own", [10, 77, 1, 1], id, ip, ports);
            setup_instance(request.with_bandwidth(limits)).unwrap();
        }
        assert!(Host::default().repair().unwrap().is_nothing());
        let gone = "10.77.1.2/24".parse::<IpInet>().unwrap();
        clean_instance(CleanInstanceRequest::new("a", vec![], gone)).unwrap();
        clean_node(CleanNodeRequest::new("own")).unwrap();
        Host::default().remove_all().unwrap();
    }
    assert_eq!(faults_of_children("self"), 0, "a program was started");
}

#[test]
fn the_library_starts_no_program() {
    let node = Node::bare("own", 1);
    let _outside = lan(&[&node]);
    place_stand_ins(&node.machine);
    for path in PATHS {
        let (succeeded, said) = node.machine.run(move || {
            let done = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "--nocapture", "the_one_who_calls_everything"])
                .env("PATH", path)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = [done.stdout, done.stderr].concat();
            (done.status.success(), String::from_utf8_lossy(&said).into_owned())
        });
        assert!(succeeded && said.contains("1 passed"), "with PATH {path:?}: {said}");
    }
    assert!(!node.machine.try_sh(&format!("test -e {CALLED}")));
}
