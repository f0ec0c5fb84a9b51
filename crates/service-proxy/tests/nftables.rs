//! The nftables backend on the real kernel, in namespaces that each test makes for itself.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::process::Command;
use std::sync::Arc;

use telaio_model::{IpFamily, ObjectKey, ServiceEndpoints};
use telaio_netlink::netns::Netns;
use telaio_reconcile::PartReconciler;
use telaio_service_proxy::config::{DetectLocal, NodeFacts, ProxyConfig};
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::nftables::compile::Key;
use telaio_service_proxy::nftables::desired::{Desired, Part};
use telaio_service_proxy::nftables::target::Kernel;
use telaio_service_proxy::options::LocalhostPorts;

/// A namespace that is gone when the test ends.
struct Namespace(Netns);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("tl-nft-{name}-{}", std::process::id());
        Self(Netns::create(&name).expect("these tests need root"))
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).unwrap()
    }

    /// What a program prints there; it must succeed.
    fn output(&self, program: &str, arguments: &[&str]) -> String {
        let output = self
            .run(|| Command::new(program).args(arguments).output())
            .unwrap_or_else(|error| panic!("{program} is needed: {error}"));
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Netns::remove(self.0.name()).unwrap();
    }
}

fn config() -> Arc<ProxyConfig> {
    Arc::new(ProxyConfig {
        detect_local: DetectLocal::ClusterCidr(vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:244::/56".parse().unwrap(),
        ]),
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..ProxyConfig::default()
    })
}

/// Services of every kind.
fn services() -> Vec<ServiceEndpoints> {
    let v6 = |last: u16| Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, last);
    vec![
        Fixture::new("plain")
            .cluster_ip([10, 96, 0, 1])
            .remote([10, 244, 1, 1])
            .local([10, 244, 0, 1])
            .build(),
        Fixture::new("dual")
            .cluster_ip([10, 96, 0, 2])
            .cluster_ip([0xfd00, 0x96, 0, 0, 0, 0, 0, 2])
            .node_port(30002)
            .remote([10, 244, 1, 1])
            .remote(v6(1))
            .local(v6(2))
            .build(),
        Fixture::new("sticky")
            .cluster_ip([10, 96, 0, 3])
            .cluster_ip([0xfd00, 0x96, 0, 0, 0, 0, 0, 3])
            .node_port(30003)
            .sticky(60)
            .remote([10, 244, 1, 1])
            .remote([10, 244, 1, 2])
            .remote(v6(1))
            .build(),
        Fixture::new("turns")
            .cluster_ip([10, 96, 0, 4])
            .balance("round-robin")
            .remote([10, 244, 1, 1])
            .remote([10, 244, 1, 2])
            .weight(3)
            .build(),
        Fixture::new("hash")
            .cluster_ip([10, 96, 0, 5])
            .balance("source-hash")
            .remote([10, 244, 1, 1])
            .remote([10, 244, 1, 2])
            .build(),
        Fixture::new("limited")
            .cluster_ip([10, 96, 0, 6])
            .load_balancer_ip([192, 0, 2, 6])
            .node_port(30006)
            .sticky(10)
            .with(|service| {
                service.external_traffic_to_local = true;
                service.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
            })
            .remote([10, 244, 1, 1])
            .local([10, 244, 0, 1])
            .build(),
        Fixture::new("nobody").cluster_ip([10, 96, 0, 7]).node_port(30007).build(),
        Fixture::new("elsewhere")
            .cluster_ip([10, 96, 0, 8])
            .with(|service| service.internal_traffic_to_local = true)
            .remote([10, 244, 1, 1])
            .build(),
    ]
}

fn desired(services: &[ServiceEndpoints]) -> Desired {
    let ports = LocalhostPorts { v4: Some(4000), v6: Some(4001), routed: true };
    let mut desired = Desired::new(config(), NodeFacts::default(), ports);
    for service in services {
        desired.set_service(&service.service.key, Some(service.clone()));
    }
    desired
}

fn kernel() -> PartReconciler<Kernel> {
    PartReconciler::new(Kernel::open(&IpFamily::ALL).unwrap())
}

#[test]
fn what_was_written_is_read_back_the_same() {
    let namespace = Namespace::new("roundtrip");
    let wanted = desired(&services());
    namespace.run(|| {
        let mut reconciler = kernel();
        reconciler.reconcile(&wanted).unwrap();
        let found = reconciler.target_mut().read().unwrap().items;
        let items = wanted.items();
        let keys = |items: &BTreeMap<_, _>| items.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&found), keys(&items));
        for (key, item) in &items {
            assert_eq!(&found[key], item, "{key}");
        }
    });
}

#[test]
fn the_oldest_nft_in_use_prints_the_whole_table() {
    let namespace = Namespace::new("list");
    let wanted = desired(&services());
    namespace.run(|| kernel().reconcile(&wanted).unwrap());
    let listed = namespace.output("nft", &["list", "ruleset"]);
    for expected in ["table ip telaio", "table ip6 telaio", "map services", "10.96.0.3 . tcp . 80"]
    {
        assert!(listed.contains(expected), "{expected} in\n{listed}");
    }
}

/// Operators save rulesets and load them at boot; a table of ours must not break that. Session affinity
/// on IPv6 is the exception: nft 1.0.6 has too few registers for the key and aborts.
#[test]
fn what_nft_lists_and_what_we_render_it_can_read() {
    let namespace = Namespace::new("reload");
    let mut services = services();
    services.retain(|entry| &*entry.service.key.name != "sticky");
    let wanted = desired(&services);
    namespace.run(|| kernel().reconcile(&wanted).unwrap());
    let listed = namespace.output("nft", &["list", "ruleset"]);
    let rendered = telaio_service_proxy::nftables::render(&wanted.items(), &IpFamily::ALL);
    let directory = tempfile::tempdir().unwrap();
    let rebooted = Namespace::new("rebooted");
    for (name, text) in [("rendered", rendered), ("listed", listed)] {
        let file = directory.path().join(name);
        std::fs::write(&file, &text).unwrap();
        rebooted.output("nft", &["--check", "--file", file.to_str().unwrap()]);
        if name == "listed" {
            rebooted.output("nft", &["--file", file.to_str().unwrap()]);
        }
    }
    // What was loaded is what was saved, down to the elements; only the rules, which nft cannot say
    // just so, are put right.
    let loaded = rebooted.run(|| {
        let mut reconciler = kernel();
        reconciler.target_mut().read_what_is_there().unwrap()
    });
    for (key, item) in wanted.items().into_iter().filter(|(key, _)| !matches!(key, Key::Chain(..)))
    {
        assert_eq!(loaded.get(&key), Some(&item), "{key}");
    }
}

#[test]
fn a_new_agent_finds_what_the_last_one_left_and_changes_nothing() {
    let namespace = Namespace::new("adopt");
    let wanted = desired(&services());
    namespace.run(|| {
        kernel().reconcile(&wanted).unwrap();
        let report = kernel().reconcile(&wanted).unwrap();
        assert_eq!(report.changes(), 0);
    });
}

#[test]
fn services_come_change_and_go_and_leave_nothing() {
    let namespace = Namespace::new("churn");
    let all = services();
    namespace.run(|| {
        let mut reconciler = kernel();
        let mut wanted = desired(&[]);
        reconciler.reconcile(&wanted).unwrap();
        let empty = reconciler.target_mut().read().unwrap();
        let mut apply = |wanted: &mut Desired, key: &ObjectKey, now: Option<ServiceEndpoints>| {
            wanted.set_service(key, now);
            let mut parts = Part::of_service(key).to_vec();
            parts.push(Part::Shared);
            reconciler.reconcile_part(&parts, wanted).unwrap();
        };
        for service in &all {
            apply(&mut wanted, &service.service.key, Some(service.clone()));
        }
        // Each becomes each: every kind of change happens.
        for one in &all {
            for other in &all {
                let mut service = (*other.service).clone();
                service.key = one.service.key.clone();
                let other = ServiceEndpoints { service: Arc::new(service), ..other.clone() };
                apply(&mut wanted, &one.service.key, Some(other));
            }
            apply(&mut wanted, &one.service.key, Some(one.clone()));
        }
        for service in &all {
            apply(&mut wanted, &service.service.key, None);
        }
        assert!(reconciler.check_drift().unwrap().is_clean());
        assert_eq!(reconciler.target_mut().read().unwrap(), empty);
    });
}

#[test]
fn what_others_delete_or_change_is_put_back() {
    let namespace = Namespace::new("drift");
    let wanted = desired(&services());
    let break_it = |line: &str| namespace.output("nft", &[line]);
    let mut reconciler = namespace.run(|| {
        let mut reconciler = kernel();
        reconciler.reconcile(&wanted).unwrap();
        reconciler
    });
    for (line, wrong) in [
        ("delete element ip telaio cluster-ips { 10.96.0.1 }", 1),
        ("add element ip telaio cluster-ips { 10.96.0.99 }", 1),
        ("flush chain ip telaio pick-2", 1),
        ("insert rule ip telaio services accept", 1),
        ("flush map ip telaio services", 8),
    ] {
        break_it(line);
        let drift = reconciler.check_drift().unwrap();
        assert!(drift.count() >= wrong, "{line}: {drift:?}");
        assert!(reconciler.check_drift().unwrap().is_clean(), "{line}");
    }
    for line in [
        "add chain ip telaio nat-prerouting { policy drop; }",
        "add table ip telaio { flags dormant; }",
    ] {
        break_it(line);
        assert!(!reconciler.check_drift().unwrap().is_clean(), "{line}");
        assert!(reconciler.check_drift().unwrap().is_clean(), "{line}");
    }
    break_it("delete table ip telaio");
    assert!(!reconciler.check_drift().unwrap().is_clean());
    break_it("flush ruleset");
    assert!(!reconciler.check_drift().unwrap().is_clean());
    assert!(reconciler.check_drift().unwrap().is_clean());
}

#[test]
fn what_is_too_large_for_one_transaction_takes_several_between_services() {
    let namespace = Namespace::new("split");
    namespace.run(|| {
        let wanted = desired(&services());
        let mut reconciler = kernel();
        reconciler.target_mut().set_transaction_bytes_max(1);
        let before = reconciler.target_mut().nft().generation().unwrap();
        reconciler.reconcile(&wanted).unwrap();
        let transactions = reconciler.target_mut().nft().generation().unwrap() - before;
        assert!(transactions as usize > services().len(), "{transactions}");
        assert!(reconciler.check_drift().unwrap().is_clean());
        // And all away again.
        reconciler.reconcile(&desired(&[])).unwrap();
        assert!(reconciler.check_drift().unwrap().is_clean());
    });
}

#[test]
fn a_table_that_is_made_anew_remembers_who_stays_where() {
    let namespace = Namespace::new("kept");
    let mut wanted = desired(&services());
    let mut reconciler = namespace.run(|| {
        let mut reconciler = kernel();
        reconciler.reconcile(&wanted).unwrap();
        reconciler
    });
    // One with the map's own time-out, which the kernel does not tell, and one with another.
    for (port, timeout) in [(80, "3h"), (81, "60s")] {
        let key = format!("10.244.0.9 . 10.96.0.3 . tcp . {port} timeout {timeout} : 0x80000001");
        namespace.output("nft", &[&format!("add element ip telaio affinity {{ {key} }}")]);
    }
    for i in 0..10_000_u32 {
        let [_, b, c, d] = (i + 0x0100).to_be_bytes();
        let service = Fixture::new(&format!("s{i}")).cluster_ip([10, 96 + b, c, d]).build();
        wanted.set_service(&service.service.key.clone(), Some(service));
    }
    reconciler.reconcile(&wanted).unwrap();
    assert!(reconciler.check_drift().unwrap().is_clean());
    let kept = namespace.output("nft", &["list", "map", "ip", "telaio", "affinity"]);
    assert!(
        kept.contains("10.96.0.3 . tcp . 80") && kept.contains("10.96.0.3 . tcp . 81"),
        "{kept}"
    );
}

#[test]
fn maps_that_are_outgrown_are_made_larger() {
    let namespace = Namespace::new("grow");
    namespace.run(|| {
        let mut reconciler = kernel();
        let mut wanted = desired(&services());
        reconciler.reconcile(&wanted).unwrap();
        for i in 0..20_000_u32 {
            let [_, b, c, d] = (i + 0x0100).to_be_bytes();
            let service = Fixture::new(&format!("s{i}"))
                .cluster_ip([10, 96 + b, c, d])
                .remote([10, 244, c, d])
                .build();
            wanted.set_service(&service.service.key.clone(), Some(service));
        }
        reconciler.reconcile(&wanted).unwrap();
        assert!(reconciler.check_drift().unwrap().is_clean());
    });
}
