//! Configurations that change while networks are in use, bridges that were there before, and what is refused by name.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use cidr::Ipv4Inet;
use serde_json::{Value, json};
use support::cni::{Call, PLUGIN, config, config_with, inventory, machine};
use support::{SILENCE, Wire, ask_at, ask_from, serve_at};
use telaio_pod_network::Host;
use telaio_pod_network::node::{SetupNodeRequest, setup_node};
use telaio_pod_network::overlay::uplink;
use telaio_testkit::machine::{Machine, connect};

fn mac_of(machine: &Machine, link: &str) -> String {
    machine.sh(&format!("ip -o link show {link} | sed 's/.*ether //; s/ .*//'")).trim().to_owned()
}

fn address(result: &Value, at: usize) -> String {
    let text = result["ips"][at]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

fn refused(machine: &Machine, container: &str, config: &Value, code: u64) -> String {
    let error = Call::new("ADD", container, config).make(machine).unwrap_err();
    assert_eq!(error["code"], code, "{error}");
    error["msg"].as_str().unwrap().to_owned()
}

#[test]
fn a_bridge_that_was_there_before_keeps_its_address_when_ports_come_and_go() {
    let machine = machine(&["a", "b"]);
    // What the least address is, the bridge's own or a port's, is chance: this one is greater than any of ours.
    machine.sh("ip link add cni0 type bridge; ip link add other type veth peer name rest; ip link set other address fe:ff:ff:ff:ff:fe master cni0; ip link set cni0 up");
    let before = mac_of(&machine, "cni0");
    assert_eq!(before, "fe:ff:ff:ff:ff:fe");
    for container in ["a", "b"] {
        let result = Call::new("ADD", container, &config()).make(&machine).unwrap();
        assert_eq!(result["interfaces"][0]["mac"], before.as_str(), "{result}");
        assert_eq!(mac_of(&machine, "cni0"), before);
        machine.sh(&format!("ip netns exec {container} ping -c 1 -w 10 10.88.0.1"));
        machine.sh(&format!("ip netns exec {container} ping -c 1 -w 10 fd88::1"));
    }
    machine.sh("ip link delete other");
    machine.run(|| Host::default().repair().unwrap());
    assert_eq!(mac_of(&machine, "cni0"), before);
    machine.sh("ip netns exec a ping -c 1 -w 10 10.88.0.1");
    machine.run(|| Host::default().remove_all().unwrap());
    assert_eq!(mac_of(&machine, "cni0"), before);
    assert_eq!(machine.sh("ip -4 -o address show dev cni0"), "");
}

#[test]
fn containers_that_another_plugin_has_hung_on_the_bridge_reach_ours_and_are_reached() {
    let machine = machine(&["a"]);
    let old = Machine::start("old");
    machine.sh(
        "ip link add cni0 type bridge; ip address add 10.88.0.1/16 dev cni0; ip link set cni0 up",
    );
    connect(&old, "eth0", "10.88.0.200/16", &machine, "old0", "");
    machine.sh("ip link set old0 master cni0; ip link set old0 up");
    let result = Call::new("ADD", "a", &config()).make(&machine).unwrap();
    let ip = address(&result, 0);
    let (_ours, _theirs) = (
        serve_at(&machine, Some("a"), &ip, 80, Wire::Tcp),
        serve_at(&old, None, "10.88.0.200", 80, Wire::Tcp),
    );
    assert_eq!(ask_at(&old, None, &ip, 80, Wire::Tcp).as_deref(), Ok("10.88.0.200"));
    assert_eq!(
        ask_at(&machine, Some("a"), "10.88.0.200", 80, Wire::Tcp).as_deref(),
        Ok(ip.as_str())
    );
    machine.run(|| Host::default().remove_all().unwrap());
    assert_eq!(machine.sh("cat /proc/sys/net/ipv4/conf/cni0/proxy_arp_pvlan").trim(), "0");
}

#[test]
fn a_network_in_use_stays_on_its_bridge_and_one_that_nobody_uses_moves_without_a_trace() {
    let machine = machine(&["a", "b"]);
    let bare = inventory(&machine);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    let before = inventory(&machine);
    let moved = config_with(json!({"bridge": "cni1"}));
    for (key, other) in [
        ("bridge", moved.clone()),
        ("vlan", config_with(json!({"vlan": 7}))),
        ("isGateway", config_with(json!({"isGateway": false}))),
    ] {
        let message = refused(&machine, "b", &other, 7);
        assert!(message.contains(key) && message.contains("network net"), "{message}");
        assert_eq!(inventory(&machine), before, "{key}");
    }
    machine.sh("ip netns exec a ping -c 1 -w 10 10.88.0.1");
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    Call::new("ADD", "b", &moved).make(&machine).unwrap();
    machine.sh("! ip link show cni0 && ip netns exec b ping -c 1 -w 10 10.88.0.1");
    machine.run(|| Host::default().remove_all().unwrap());
    assert_eq!(inventory(&machine), bare);
}

#[test]
fn a_nodes_network_is_not_changed_by_a_configuration_of_its_name() {
    let machine = machine(&["a"]);
    machine.run(|| {
        let ip: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
        setup_node(SetupNodeRequest::new("net", ip, Vec::new())).unwrap();
    });
    let before = inventory(&machine);
    let message = refused(&machine, "a", &config(), 7);
    assert!(message.contains("tlb-net") && message.contains("another name"), "{message}");
    assert_eq!(inventory(&machine), before);
    // One that is where the node is joins it, and changes nothing else of it.
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.77.1.0/24", "gateway": "10.77.1.1"}]]});
    let joining =
        config_with(json!({"bridge": "tlb-net", "ipMasq": false, "mtu": 1300, "ipam": ipam}));
    Call::new("ADD", "a", &joining).make(&machine).unwrap();
    machine.sh("ip netns exec a ping -c 1 -w 10 10.77.1.1");
    let network = machine.run(|| Host::default().networks().unwrap().remove(0));
    assert!(network.masquerade.is_some() && network.mtu != Some(1300), "{network:?}");
}

#[test]
fn names_that_the_kernel_would_not_take_as_they_are_are_refused() {
    let machine = machine(&["a"]);
    let before = inventory(&machine);
    for name in ["br%d", "br:0", "a/b", "a b", "sixteen-letters-", "."] {
        let message = refused(&machine, "a", &config_with(json!({ "bridge": name })), 7);
        assert!(message.contains("bridge"), "{message}");
        let mut call = Call::new("ADD", "a", &config());
        call.interface = name.to_owned();
        let error = call.make(&machine).unwrap_err();
        assert_eq!(error["code"], 4, "{error}");
        assert_eq!(inventory(&machine), before, "{name}");
    }
}

#[test]
fn what_a_configuration_no_longer_says_is_no_longer_reached_and_what_was_joined_stays() {
    let machine = machine(&["a", "b", "c", "d"]);
    let two = config_with(
        json!({"name": "two", "bridge": "cni2", "ipam": {"type": "host-local", "subnet": "10.2.0.0/16"}}),
    );
    let one = |reaches: Value| {
        config_with(json!({"name": "one", "bridge": "cni1", "reaches": reaches,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}))
    };
    let ip = address(&Call::new("ADD", "b", &two).make(&machine).unwrap(), 0);
    machine.sh("ip -n b route add default via 10.2.0.1");
    let _server = serve_at(&machine, Some("b"), &ip, 80, Wire::Tcp);
    let reaches = || ask_from(&machine, Some("a"), &ip, 80, Wire::Tcp, SILENCE * 10).is_ok();
    let is_cut_off = || ask_from(&machine, Some("a"), &ip, 80, Wire::Tcp, SILENCE).is_err();
    Call::new("ADD", "a", &one(json!(["two"]))).make(&machine).unwrap();
    assert!(reaches());
    Call::new("ADD", "c", &one(json!([]))).make(&machine).unwrap();
    assert!(is_cut_off());
    machine.run(|| Host::default().join_networks("one", "two", true).unwrap());
    assert!(reaches());
    Call::new("ADD", "d", &one(json!([]))).make(&machine).unwrap();
    machine.run(|| Host::default().repair().unwrap());
    assert!(reaches());
    machine.run(|| Host::default().join_networks("one", "two", false).unwrap());
    assert!(is_cut_off());
}

#[test]
fn an_address_too_many_and_a_port_that_never_answers_are_refused_by_name() {
    let machine = machine(&["a"]);
    let before = inventory(&machine);
    let with = |runtime: Value| config_with(json!({ "runtimeConfig": runtime }));
    let message = refused(&machine, "a", &with(json!({"ips": ["10.88.0.5", "10.88.0.6"]})), 7);
    assert!(message.contains("10.88.0.5 and 10.88.0.6"), "{message}");
    let port = json!({"hostPort": 8080, "containerPort": 80, "hostIP": "::1"});
    let message = refused(&machine, "a", &with(json!({"portMappings": [port]})), 7);
    assert!(message.contains("[::1]:8080"), "{message}");
    let left = machine.sh(
        "find /var/lib/telaio -path '*attachments/*' -o -path '*addresses/*/*' -o -path '*ports/*'",
    );
    assert_eq!(left, "");
    machine.run(|| Host::default().remove_all().unwrap());
    assert_eq!(inventory(&machine), before);
    let both = with(json!({"ips": ["10.88.0.5", "fd88::6", "10.88.0.5"]}));
    let result = Call::new("ADD", "a", &both).make(&machine).unwrap();
    assert_eq!([address(&result, 0), address(&result, 1)], ["10.88.0.5", "fd88::6"]);
}

#[test]
fn check_knows_which_of_two_gateways_an_address_was_given_with() {
    let machine = machine(&["a", "b"]);
    let range = |start: &str, end: &str, gateway: &str| json!({"subnet": "10.88.0.0/24", "rangeStart": start, "rangeEnd": end, "gateway": gateway});
    let ipam = json!({"type": "host-local", "ranges": [[
        range("10.88.0.10", "10.88.0.10", "10.88.0.1"), range("10.88.0.20", "10.88.0.20", "10.88.0.2")]],
        "routes": [{"dst": "10.9.0.0/16"}]});
    let config = config_with(json!({"isDefaultGateway": true, "ipam": ipam}));
    for (container, gateway) in [("a", "10.88.0.1"), ("b", "10.88.0.2")] {
        let result = Call::new("ADD", container, &config).make(&machine).unwrap();
        assert_eq!(result["ips"][0]["gateway"], gateway, "{result}");
        let mut check = config.clone();
        check["prevResult"] = result;
        Call::new("CHECK", container, &check).make(&machine).unwrap();
        machine.sh(&format!("ip -n {container} route del 10.9.0.0/16"));
        let error = Call::new("CHECK", container, &check).make(&machine).unwrap_err();
        assert!(error["msg"].as_str().unwrap().contains(gateway), "{error}");
    }
}

#[test]
fn addresses_of_each_of_two_sets_of_a_family_are_given_in_turn() {
    let machine = machine(&["a"]);
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "10.89.0.0/24"}]]});
    let config = config_with(json!({ "ipam": ipam }));
    for last in 2..5 {
        let result = Call::new("ADD", "a", &config).make(&machine).unwrap();
        let ips = [address(&result, 0), address(&result, 1)];
        assert_eq!(ips, [format!("10.88.0.{last}"), format!("10.89.0.{last}")]);
        Call::new("DEL", "a", &config).make(&machine).unwrap();
    }
}

#[test]
fn the_versions_are_told_to_whoever_asks_without_a_configuration() {
    let machine = machine(&[]);
    let said = machine.sh(&format!("CNI_COMMAND=VERSION {PLUGIN} < /dev/null"));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["cniVersion"], "1.1.0");
    assert_eq!(said["supportedVersions"], json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
}

#[test]
fn gc_takes_back_what_a_lost_record_has_claimed_and_nothing_of_a_call_at_work() {
    let machine = machine(&["a"]);
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]});
    let config = config_with(json!({ "runtimeConfig": ports }));
    Call::new("ADD", "a", &config).make(&machine).unwrap();
    let record = machine.sh("echo /var/lib/telaio/pods/boot-*/attachments/*").trim().to_owned();
    let claims = || {
        machine.sh(
            "find /var/lib/telaio/pods/ -path '*ports/*/*' -o -path '*addresses/*/[0-9f]*' | wc -l",
        )
    };
    assert_eq!(claims().trim(), "3");
    let mut gc = config_with(json!({"cni.dev/valid-attachments": []}));
    // As it is until an ADD is done, which has it locked meanwhile.
    machine.sh(&format!(r#"sed -i 's/"mac":"[^"]*"/"mac":""/' {record}"#));
    let at = record.clone();
    let busy = machine.run(move || {
        let file = std::fs::File::open(at).unwrap();
        file.try_lock().unwrap();
        file
    });
    let collect = |gc: &Value| Call::new("GC", "", gc).make(&machine).unwrap();
    collect(&gc);
    assert_eq!(claims().trim(), "3");
    machine.sh(&format!("test -e {record}"));
    drop(busy);
    machine.sh(&format!("rm {record}"));
    // The chained plugin's, too.
    gc.as_object_mut().unwrap().remove("ipam");
    collect(&gc);
    assert_eq!(machine.sh("find /var/lib/telaio/pods/ -path '*ports/*/*'"), "");
    gc["ipam"] = config["ipam"].clone();
    collect(&gc);
    assert_eq!(claims().trim(), "0");
}

#[test]
fn an_instance_whose_link_was_removed_is_told_by_name() {
    let machine = machine(&["a"]);
    let result = Call::new("ADD", "a", &config()).make(&machine).unwrap();
    let link = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let mend = || machine.run(|| Host::default().repair().unwrap());
    assert!(mend().severed.is_empty());
    machine.sh(&format!("ip link delete {link}"));
    let mended = mend();
    assert!(mended.is_nothing(), "{mended:?}");
    assert!(
        mended.severed[0].contains("instance a ") && mended.severed[0].contains(&link),
        "{mended:?}"
    );
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    assert!(mend().severed.is_empty());
}

#[test]
fn a_default_route_by_several_ways_leads_to_an_uplink() {
    let (machine, others) = (Machine::start("ecmp"), ["one", "two"].map(Machine::start));
    for (at, other) in others.iter().enumerate() {
        let [near, far] = [1, 9].map(|host| format!("192.168.{at}.{host}/24"));
        connect(&machine, &format!("lan{at}"), &near, other, "eth0", &far);
    }
    machine.sh(
        "ip route add default nexthop via 192.168.0.9 dev lan0 nexthop via 192.168.1.9 dev lan1",
    );
    machine.sh("ip link set lan0 mtu 1400");
    let uplink = machine.run(|| uplink(None).unwrap());
    assert_eq!((uplink.address.to_string().as_str(), uplink.mtu), ("192.168.0.1", 1400));
}

#[test]
fn what_is_left_of_a_killed_del_is_made_anew_by_an_add_and_removed_by_mending() {
    let machine = machine(&["a"]);
    // As it is when DEL is killed after it has taken the rules out.
    let cut = || {
        machine.sh(
            r#"sed -i 's/"mac":/"is_going":true,"mac":/' /var/lib/telaio/pods/boot-*/attachments/*; nft flush set bridge telaio-pods sources4"#,
        );
    };
    let works = || machine.sh("ip netns exec a ping -c 1 -w 10 10.88.0.1");
    let before = Call::new("ADD", "a", &config()).make(&machine).unwrap();
    works();
    assert_eq!(Call::new("ADD", "a", &config()).make(&machine).unwrap_err()["code"], 104);
    cut();
    let mut check = config();
    check["prevResult"] = before;
    assert_eq!(Call::new("CHECK", "a", &check).make(&machine).unwrap_err()["code"], 105);
    Call::new("ADD", "a", &config()).make(&machine).unwrap();
    works();
    cut();
    let mended = machine.run(|| Host::default().repair().unwrap());
    assert_eq!(mended.attachments, ["instance a (eth0 on net)"]);
    machine.sh("! ip -n a link show eth0");
    Call::new("DEL", "a", &config()).make(&machine).unwrap();
    assert_eq!(machine.sh("ls /var/lib/telaio/pods/boot-*/attachments"), "");
}
