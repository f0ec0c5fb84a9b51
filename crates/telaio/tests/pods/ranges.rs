//! A node with several ranges of a family, and one with a record that cannot be read.

use crate::cni::PluginCall;
use crate::net::{Wire, ask_from, serve_at};
use crate::stage::{Stage, eventually};

#[test]
fn pods_get_addresses_of_the_next_range_when_the_first_has_none_left() {
    let mut stage = Stage::new();
    stage.write(
        "node-a",
        "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n\
         spec: {podCIDRs: ['10.77.1.0/30', 'fd77:1::/64', '10.79.1.0/24']}\n\
         status: {addresses: [{type: InternalIP, address: 192.168.5.1}]}\n",
    );
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    let mut ips = Vec::new();
    for id in ["one", "two"] {
        machine.sh(&format!("ip netns add {id}"));
        let result = PluginCall::new(&stage.a, "ADD", id).make_on(&stage.a).unwrap();
        let addresses = result["ips"].as_array().unwrap().iter();
        let addresses: Vec<String> = addresses
            .map(|it| it["address"].as_str().unwrap().split('/').next().unwrap().to_owned())
            .collect();
        assert_eq!(addresses.len(), 2, "one of each family: {result}");
        ips.push(addresses[0].clone());
    }
    assert_eq!(ips, ["10.77.1.2", "10.79.1.2"]);
    let bridges = machine.sh("ip -o link | grep -c ': tlb'");
    assert_eq!(bridges.trim(), "1", "it is the node's network still");
    let _server = serve_at(machine, Some("two"), &ips[1], 8080, Wire::Tcp);
    let asked = ask_from(machine, Some("one"), &ips[1], 8080, Wire::Tcp, crate::net::PATIENCE);
    assert_eq!(asked.as_deref(), Ok("10.77.1.2"));
    // What the agent wants is what the plugin found: nothing is made anew.
    stage.a.wait("two instances", |status| status["pods"]["instance_count"] == 2);
    assert_eq!(stage.a.status()["pods"]["problems"], serde_json::Value::Null);
}

#[test]
fn an_instance_whose_record_cannot_be_read_is_named_by_the_status_and_the_agent_stays_healthy() {
    let mut stage = Stage::new();
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    stage.a.node.instance("one", 2, vec![]);
    stage.a.node.instance("two", 3, vec![]);
    stage.a.stop();
    let machine = &stage.a.node.machine;
    machine.sh(
        "cd /var/lib/telaio/pods/boot-*/attachments && echo garbage > $(grep -l '\"container\":\"two\"' *)",
    );
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    let problems = |status: &serde_json::Value| {
        let problems = status["pods"]["problems"].as_array().cloned().unwrap_or_default();
        problems.iter().filter(|it| it.as_str().unwrap().contains("/attachments/")).count()
    };
    stage.a.wait("the record's name, once", |status| problems(status) == 1);
    assert_eq!(stage.a.status()["healthy"], true);
    let _server = serve_at(machine, Some("two"), "10.77.1.3", 8080, Wire::Tcp);
    let asked =
        || ask_from(machine, Some("one"), "10.77.1.3", 8080, Wire::Tcp, crate::net::PATIENCE);
    eventually("the instance", || asked().is_ok(), || format!("{:?}", asked()));
}
