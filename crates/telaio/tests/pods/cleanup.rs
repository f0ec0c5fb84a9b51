//! `telaio cleanup` leaves nothing.

use telaio_pod_network::{Bandwidth, Port};

use crate::stage::{Stage, pod};

#[test]
fn cleanup_removes_every_trace_of_pods() {
    let mut stage = Stage::new();
    let before = stage.a.node.inventory();
    stage.write("one", &pod("one", 1, 2, "web"));
    stage.write(
        "policy",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: default}\n\
         spec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n",
    );
    let manifests = stage.manifests();
    std::fs::create_dir(stage.a.path("cni-conf")).unwrap();
    std::fs::write(stage.a.path("cni-conf/10-other.conflist"), "{}").unwrap();
    stage.a.start(&manifests, "services,pods", &["--take-over-cni"]);
    let a = &stage.a.node;
    let limits =
        Bandwidth { ingress_rate: 1_000_000, egress_rate: 1_000_000, ..Bandwidth::default() };
    let limited = a.wanted("one", 2, vec![Port::new(8081, 8080)]).with_bandwidth(limits);
    a.machine.run(move || telaio_pod_network::instance::setup_instance(limited).unwrap());
    a.instance("two", 3, vec![]);
    stage.a.wait("the plugin", |status| {
        status["pods"]["cni"].as_str().is_some_and(|state| state.starts_with("installed"))
    });
    assert!(stage.a.path("cni-conf/05-telaio.conflist").exists());
    assert!(!stage.a.path("cni-conf/10-other.conflist").exists());
    assert!(stage.a.node.inventory().contains("tli"), "what limits is there");

    stage.a.stop();
    let said = stage.a.cleanup();
    for what in
        ["instance one", "instance two", "network node-a", "table ip telaio-policy", "telaio-cni"]
    {
        assert!(said.contains(what), "{what} in {said}");
    }
    assert_eq!(stage.a.node.inventory(), before);
    assert!(stage.a.path("cni-conf/10-other.conflist").exists());
    assert!(!stage.a.path("cni-conf/05-telaio.conflist").exists());
    assert!(stage.a.cleanup().contains("there is nothing of ours here"));
}
