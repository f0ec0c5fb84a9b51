//! A node with flannel and one with us in one cluster: each finds the other by what stands in the Node objects.

use serde_json::{Value, json};
use telaio_testkit::apiserver::ApiServer;
use tokio::runtime::{Builder, Runtime};

use crate::net::{Wire, ask, ask_at, serve, serve_at};
use crate::stage::{Agent, Stage, eventually};

const FLANNEL: &str = "flannel.alpha.coreos.com/";
const THEIR_MAC: &str = "6e:00:00:00:00:02";

/// An API server on the node's own loopback, for the node's network is all that its agent has.
fn api_server(agent: &Agent) -> (Runtime, ApiServer) {
    agent.node.machine.run(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(ApiServer::start()).unwrap();
        (runtime, server)
    })
}

fn node(number: u8, annotations: &Value) -> Value {
    let name = if number == 1 { "node-a" } else { "node-b" };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"podCIDR": format!("10.77.{number}.0/24"), "podCIDRs": [format!("10.77.{number}.0/24")]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("192.168.5.{number}")}]},
    })
}

/// What flannel makes on a node: its link, a bridge of pods, and for a peer the three entries that follow from its object.
fn flannel_node(agent: &Agent, peer: &Value) {
    let says = |name: &str| peer["metadata"]["annotations"][format!("{FLANNEL}{name}")].clone();
    assert_eq!(says("backend-type"), "vxlan");
    let data: Value = serde_json::from_str(says("backend-data").as_str().unwrap()).unwrap();
    assert_eq!(data["VNI"], 1);
    let (mac, public) = (data["VtepMAC"].as_str().unwrap(), says("public-ip"));
    let (public, cidr) = (public.as_str().unwrap(), peer["spec"]["podCIDR"].as_str().unwrap());
    let network = cidr.split('/').next().unwrap();
    agent.node.machine.sh(&format!(
        "ip link add flannel.1 address {THEIR_MAC} type vxlan id 1 dev lan0 local 192.168.5.2 dstport 8472 nolearning && \
         ip address add 10.77.2.0/32 dev flannel.1 && ip link set flannel.1 mtu 1450 up && \
         echo 1 > /proc/sys/net/ipv4/ip_forward && \
         ip link add cni0 type bridge && ip address add 10.77.2.1/24 dev cni0 && ip link set cni0 up && \
         ip netns add pod && ip link add v0 type veth peer name eth0 netns pod && ip link set v0 master cni0 up && \
         ip -n pod address add 10.77.2.2/24 dev eth0 && ip -n pod link set eth0 mtu 1450 up && \
         ip -n pod route add default via 10.77.2.1 && \
         ip route add {cidr} via {network} dev flannel.1 onlink && \
         ip neigh add {network} lladdr {mac} dev flannel.1 nud permanent && \
         bridge fdb append {mac} dev flannel.1 dst {public}"
    ));
}

#[test]
fn a_node_with_flannel_and_one_with_us_reach_each_others_pods() {
    let mut stage = Stage::new();
    let (runtime, server) = api_server(&stage.a);
    // As flannel left it when it ran here.
    server.apply(node(1, &json!({format!("{FLANNEL}backend-data"): r#"{"VNI":1,"VtepMAC":"6e:00:00:00:00:01"}"#}))).unwrap();
    server
        .apply(node(
            2,
            &json!({
                format!("{FLANNEL}backend-type"): "vxlan",
                format!("{FLANNEL}backend-data"): format!(r#"{{"VNI":1,"VtepMAC":"{THEIR_MAC}"}}"#),
                format!("{FLANNEL}public-ip"): "192.168.5.2",
                format!("{FLANNEL}kube-subnet-manager"): "true",
            }),
        ))
        .unwrap();
    // Refused at first, as while somebody still has to write the rules for it.
    server.refuse("patch", "nodes", 403);
    let kubeconfig = server.kubeconfig_file(&stage.a.path("")).unwrap();
    stage.a.start_from(&format!("kube:{}", kubeconfig.display()), "pods", &[]);
    let own = || server.get("nodes", "", "node-a").unwrap();
    eventually("an attempt", || server.request_count("patch", "nodes") > 0, String::new);
    server.allow("patch", "nodes");
    let says = |name: &str| own()["metadata"]["annotations"][format!("{FLANNEL}{name}")].clone();
    eventually("the annotations", || says("public-ip") == "192.168.5.1", || own().to_string());
    assert_eq!(says("kube-subnet-manager"), "true");
    let log = std::fs::read_to_string(stage.a.path("log")).unwrap();
    assert!(log.contains("pods-rbac.yaml"), "{log}");

    flannel_node(&stage.b, &own());
    stage.a.node.instance_v4("one", 2);
    let (a, b) = (&stage.a.node, &stage.b.node);
    {
        let _server = serve_at(&b.machine, Some("pod"), "10.77.2.2", 80, Wire::Tcp);
        let reached = || ask(a, Some("one"), "10.77.2.2", 80, Wire::Tcp);
        eventually("their pod", || reached().is_ok(), || format!("{:?}", reached()));
        assert_eq!(reached().as_deref(), Ok("10.77.1.2"), "its own address is seen");
    }
    for wire in [Wire::Tcp, Wire::Udp] {
        let _server = serve(a, Some("one"), "10.77.1.2", 80, wire);
        let answer = ask_at(&b.machine, Some("pod"), "10.77.1.2", 80, wire);
        assert_eq!(answer.as_deref(), Ok("10.77.2.2"), "{wire:?}");
        assert!(ask_at(&b.machine, None, "10.77.1.2", 80, wire).is_ok(), "their node itself");
    }
    b.machine.sh("ip netns exec pod ping -c 1 -W 20 -s 4000 10.77.1.2");
    // Somebody else's hand: it is written again.
    let mut changed = own();
    changed["apiVersion"] = "v1".into();
    changed["kind"] = "Node".into();
    changed["metadata"]["annotations"][format!("{FLANNEL}public-ip")] = "192.0.2.1".into();
    server.apply(changed).unwrap();
    eventually(
        "the annotations again",
        || says("public-ip") == "192.168.5.1",
        || own().to_string(),
    );
    stage.a.stop();
    // What we wrote is taken back, but not what somebody has changed since.
    let mut changed = own();
    changed["apiVersion"] = "v1".into();
    changed["kind"] = "Node".into();
    changed["metadata"]["annotations"][format!("{FLANNEL}backend-data")] = "theirs".into();
    server.apply(changed).unwrap();
    stage.a.node.machine.sh("ip netns del telaio-i-one");
    assert!(stage.a.cleanup().contains("annotations of node node-a"));
    let left = own()["metadata"]["annotations"].clone();
    assert_eq!(left, json!({ format!("{FLANNEL}backend-data"): "theirs" }));
    drop(server);
    runtime.shutdown_background();
}

/// What a node says that has flannel, beside what its backend says.
fn their_words(words: &Value) -> Value {
    let mut found = json!({});
    for (name, value) in words.as_object().unwrap() {
        found[format!("{FLANNEL}{name}")] = value.clone();
    }
    found
}

#[test]
fn a_node_with_flannels_host_gw_and_one_with_ours_reach_each_others_pods() {
    let mut stage = Stage::new();
    let (runtime, server) = api_server(&stage.a);
    server.apply(node(1, &json!({}))).unwrap();
    let theirs = json!({"backend-type": "host-gw", "backend-data": "null", "public-ip": "192.168.5.2",
        "kube-subnet-manager": "true"});
    server.apply(node(2, &their_words(&theirs))).unwrap();
    let kubeconfig = server.kubeconfig_file(&stage.a.path("")).unwrap();
    let source = format!("kube:{}", kubeconfig.display());
    stage.a.start_from(&source, "pods", &["--pod-backend=host-gw"]);
    let own = || server.get("nodes", "", "node-a").unwrap();
    let says = |name: &str| own()["metadata"]["annotations"][format!("{FLANNEL}{name}")].clone();
    eventually("the annotations", || says("backend-type") == "host-gw", || own().to_string());
    eventually("the address", || says("public-ip") == "192.168.5.1", || own().to_string());
    // All that flannel does with it.
    let (public, a, b) = (says("public-ip"), &stage.a.node, &stage.b.node);
    b.machine.sh(&format!(
        "echo 1 > /proc/sys/net/ipv4/ip_forward && \
         ip link add cni0 type bridge && ip address add 10.77.2.1/24 dev cni0 && ip link set cni0 up && \
         ip netns add pod && ip link add v0 type veth peer name eth0 netns pod && ip link set v0 master cni0 up && \
         ip -n pod address add 10.77.2.2/24 dev eth0 && ip -n pod link set eth0 up && \
         ip -n pod route add default via 10.77.2.1 && ip route add 10.77.1.0/24 via {} dev lan0",
        public.as_str().unwrap()
    ));
    a.instance_v4("one", 2);
    for wire in [Wire::Tcp, Wire::Udp] {
        let _theirs = serve_at(&b.machine, Some("pod"), "10.77.2.2", 80, wire);
        let _ours = serve(a, Some("one"), "10.77.1.2", 80, wire);
        let reached = || ask(a, Some("one"), "10.77.2.2", 80, wire);
        eventually("their pod", || reached().is_ok(), || format!("{:?}", reached()));
        assert_eq!(reached().as_deref(), Ok("10.77.1.2"), "its own address is seen, {wire:?}");
        let answer = ask_at(&b.machine, Some("pod"), "10.77.1.2", 80, wire);
        assert_eq!(answer.as_deref(), Ok("10.77.2.2"), "{wire:?}");
    }
    assert!(!a.machine.try_sh("ip link show telaio.1"), "there is no tunnel");
    drop(server);
    runtime.shutdown_background();
}

#[test]
fn a_node_with_flannels_tunnel_of_ipv6_and_one_with_us_reach_each_others_pods() {
    let mut stage = Stage::new();
    let (runtime, server) = api_server(&stage.a);
    let node = |number: u8, words: &Value| {
        let name = if number == 1 { "node-a" } else { "node-b" };
        let cidr = format!("fd77:{number}::/64");
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": their_words(words)},
            "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("fd05::{number}")}]},
        })
    };
    server.apply(node(1, &json!({}))).unwrap();
    let theirs = json!({"backend-type": "vxlan", "backend-data": "null", "public-ipv6": "fd05::2",
        "backend-v6-data": format!(r#"{{"VNI":1,"VtepMAC":"{THEIR_MAC}"}}"#), "kube-subnet-manager": "true"});
    server.apply(node(2, &theirs)).unwrap();
    let kubeconfig = server.kubeconfig_file(&stage.a.path("")).unwrap();
    let source = format!("kube:{}", kubeconfig.display());
    stage.a.start_from(&source, "pods", &["--tunnel-address=fd05::1"]);
    let own = || server.get("nodes", "", "node-a").unwrap();
    let says = |name: &str| own()["metadata"]["annotations"][format!("{FLANNEL}{name}")].clone();
    let data = || serde_json::from_str::<Value>(says("backend-v6-data").as_str()?).ok();
    eventually("the annotations", || data().is_some(), || own().to_string());
    eventually("the address", || says("public-ipv6") == "fd05::1", || own().to_string());
    assert_eq!((says("backend-type"), data().unwrap()["VNI"].clone()), ("vxlan".into(), 1.into()));
    let (data, a, b) = (data().unwrap(), &stage.a.node, &stage.b.node);
    let mac = data["VtepMAC"].as_str().unwrap();
    b.machine.sh(&format!(
        "ip link add flannel-v6.1 address {THEIR_MAC} type vxlan id 1 dev lan0 local fd05::2 dstport 8472 nolearning && \
         ip address add fd77:2::/128 dev flannel-v6.1 nodad && ip link set flannel-v6.1 mtu 1430 up && \
         echo 1 > /proc/sys/net/ipv6/conf/all/forwarding && \
         ip link add cni0 type bridge && ip address add fd77:2::1/64 dev cni0 nodad && ip link set cni0 up && \
         ip netns add pod && ip link add v0 type veth peer name eth0 netns pod && ip link set v0 master cni0 up && \
         ip -n pod address add fd77:2::2/64 dev eth0 nodad && ip -n pod link set eth0 mtu 1430 up && \
         ip -n pod -6 route add default via fd77:2::1 && \
         ip -6 route add fd77:1::/64 via fd77:1:: dev flannel-v6.1 onlink && \
         ip neigh add fd77:1:: lladdr {mac} dev flannel-v6.1 nud permanent && \
         bridge fdb append {mac} dev flannel-v6.1 dst fd05::1"
    ));
    let mut wanted = a.wanted("one", 2, vec![]);
    wanted.instance_ip_cidrs.retain(|cidr| !cidr.is_ipv4());
    wanted.node_ip_addr = "fd77:1::1".parse().unwrap();
    a.machine.run(move || telaio_pod_network::instance::setup_instance(wanted).unwrap());
    for wire in [Wire::Tcp, Wire::Udp] {
        let _theirs = serve_at(&b.machine, Some("pod"), "fd77:2::2", 80, wire);
        let _ours = serve(a, Some("one"), "fd77:1::2", 80, wire);
        let reached = || ask(a, Some("one"), "fd77:2::2", 80, wire);
        eventually("their pod", || reached().is_ok(), || format!("{:?}", reached()));
        assert_eq!(reached().as_deref(), Ok("fd77:1::2"), "its own address is seen, {wire:?}");
        let answer = ask_at(&b.machine, Some("pod"), "fd77:1::2", 80, wire);
        assert_eq!(answer.as_deref(), Ok("fd77:2::2"), "{wire:?}");
    }
    drop(server);
    runtime.shutdown_background();
}
