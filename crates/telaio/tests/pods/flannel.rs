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
    b.machine.sh("ip netns exec pod ping -c 1 -W 3 -s 4000 10.77.1.2");
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
