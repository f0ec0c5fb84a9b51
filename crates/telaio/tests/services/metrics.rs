//! kube-proxy's metrics, by its names: what a dashboard of kube-proxy's shows is what happened.

use telaio_testkit::netns::Cluster;

use crate::manifest::Service;
use crate::node::{Backend, Node};

on_every_backend!(every_name_is_there_and_the_backends_own_figures_are_right);

/// The families with their programs' prefixes.
const FAMILIES: [(&str, &str); 2] = [("IPv4", "iptables"), ("IPv6", "ip6tables")];

/// Everything that kube-proxy shows, without its prefix.
const NAMES: [&str; 21] = [
    "sync_proxy_rules_duration_seconds_count",
    "sync_full_proxy_rules_duration_seconds_count",
    "sync_partial_proxy_rules_duration_seconds_count",
    "network_programming_duration_seconds_count",
    "sync_proxy_rules_last_timestamp_seconds",
    "sync_proxy_rules_last_queued_timestamp_seconds",
    "sync_proxy_rules_service_changes_pending",
    "sync_proxy_rules_service_changes_total",
    "sync_proxy_rules_endpoint_changes_pending",
    "sync_proxy_rules_endpoint_changes_total",
    "sync_proxy_rules_no_local_endpoints_total",
    "sync_proxy_rules_iptables_total",
    "sync_proxy_rules_iptables_last",
    "sync_proxy_rules_iptables_restore_failures_total",
    "sync_proxy_rules_iptables_partial_restore_failures_total",
    "sync_proxy_rules_nftables_sync_failures_total",
    "sync_proxy_rules_nftables_cleanup_failures_total",
    "proxy_healthz_total",
    "proxy_livez_total",
    "conntrack_reconciler_sync_duration_seconds_count",
    "conntrack_reconciler_deleted_entries_total",
];

fn of_family(node: &Node<'_>, name: &str, family: &str) -> f64 {
    node.metric(&format!("kubeproxy_{name}{{ip_family=\"{family}\"}}"))
}

fn of_table(node: &Node<'_>, name: &str, family: &str, table: &str) -> f64 {
    let name = format!("kubeproxy_sync_proxy_rules_iptables_{name}");
    node.metric(&format!("{name}{{ip_family=\"{family}\",table=\"{table}\"}}"))
}

/// `nft` or `legacy`.
fn flavor(backend: Backend) -> Option<&'static str> {
    match backend {
        Backend::Nftables => None,
        Backend::IptablesNft => Some("nft"),
        Backend::IptablesLegacy | Backend::Ipvs => Some("legacy"),
    }
}

/// How many rules our chains in a table have, as `iptables-save` has it; none with nftables.
fn rules_there(node: &Node<'_>, program: &str, table: &str) -> u32 {
    let Some(flavor) = flavor(node.backend) else { return 0 };
    let text = node.output(&format!("{program}-{flavor}-save"), &["-t", table]);
    let ours = text.lines().filter(|line| line.starts_with("-A TELAIO-"));
    ours.count().try_into().unwrap()
}

/// Waits until the totals are those of the kernel: the rules come a moment before their count.
fn rules_are_counted(node: &Node<'_>) {
    for (family, program) in FAMILIES {
        for table in ["nat", "filter"] {
            let there = f64::from(rules_there(node, program, table));
            node.wait_until(&format!("right number of rules in {table}, {family}"), || {
                (of_table(node, "total", family, table) - there).abs() < 0.5
            });
            let has_some = of_table(node, "total", family, table) > 0.0;
            assert_eq!(has_some, node.backend != Backend::Nftables, "{family} {table}");
        }
    }
}

fn every_name_is_there_and_the_backends_own_figures_are_right(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let service = |endpoints: &str| Service::new("web", 1).load_balancer().endpoints(endpoints);
    let none = Service::new("none", 2).load_balancer();
    let node = Node::started(&cluster, backend, &[service("a1 b1"), none.clone()]);
    let page = node.metrics();
    for name in NAMES {
        let sample = format!("kubeproxy_{name}");
        let is_it = |line: &str| line.split(['{', ' ']).next() == Some(sample.as_str());
        assert!(page.lines().any(is_it), "no {sample} in\n{page}");
    }
    rules_are_counted(&node);
    // What changes a few rules only, in both tables, keeps the count right.
    node.apply(&service("a2 b1 b2"));
    node.apply(&none.endpoints("a1"));
    node.settle();
    rules_are_counted(&node);
    node.remove("web");
    node.settle();
    rules_are_counted(&node);
    for (family, _) in FAMILIES {
        // One for each time that we waited for the kernel, at least.
        node.wait_until("count of three syncs", || {
            of_family(&node, "sync_proxy_rules_duration_seconds_count", family) >= 3.0
        });
        assert!(of_family(&node, "sync_proxy_rules_last_timestamp_seconds", family) > 0.0);
        for failures in [
            "iptables_restore_failures_total",
            "iptables_partial_restore_failures_total",
            "nftables_sync_failures_total",
            "nftables_cleanup_failures_total",
        ] {
            let name = format!("sync_proxy_rules_{failures}");
            assert_eq!(of_family(&node, &name, family).to_string(), "0", "{name} {family}");
        }
    }
}

/// A stranger's rule leads to a service's chain, so that it cannot be removed as if it were only ours.
fn a_failed_restore_is_counted_for_its_family(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let service = Service::new("web", 1).endpoints("a1");
    let node = Node::started(&cluster, backend, &[service]);
    let flavor = flavor(backend).unwrap();
    let saved = node.output(&format!("iptables-{flavor}-save"), &["-t", "nat"]);
    let rules = saved.lines().filter(|line| line.starts_with("-A TELAIO-SERVICES "));
    let mut ours = rules.filter(|line| line.contains("test/web"));
    let (_, chain) = ours.find_map(|line| line.rsplit_once(" -j ")).expect("a rule");
    let iptables = format!("iptables-{flavor}");
    node.output(&iptables, &["-t", "nat", "-N", "STRANGER"]);
    node.output(&iptables, &["-t", "nat", "-A", "STRANGER", "-j", chain]);
    node.remove("web");
    node.settle();
    rules_are_counted(&node);
    for (family, count) in [("IPv4", "1"), ("IPv6", "0")] {
        for name in ["restore_failures_total", "partial_restore_failures_total"] {
            let name = format!("sync_proxy_rules_iptables_{name}");
            assert_eq!(of_family(&node, &name, family).to_string(), count, "{name} {family}");
        }
    }
}

#[test]
fn a_failed_restore_of_iptables_nft_is_counted_for_its_family() {
    a_failed_restore_is_counted_for_its_family(Backend::IptablesNft);
}

#[test]
fn a_failed_restore_of_iptables_legacy_is_counted_for_its_family() {
    a_failed_restore_is_counted_for_its_family(Backend::IptablesLegacy);
}

#[test]
fn another_backends_rules_that_cannot_be_removed_are_counted_until_they_can() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::IptablesNft, &[]);
    node.end();
    // iptables does not see this chain, and what it leads to cannot be removed.
    let stranger = "add chain ip nat stranger { type nat hook prerouting priority 10 ; }";
    let jump = "add rule ip nat stranger ip saddr 192.0.2.77 jump TELAIO-SERVICES";
    node.output("nft", &[stranger]);
    node.output("nft", &[jump]);
    node.backend = Backend::Nftables;
    node.start();
    node.settle();
    for (family, _) in FAMILIES {
        node.wait_until("count of the failure", || {
            of_family(&node, "sync_proxy_rules_nftables_cleanup_failures_total", family) > 0.0
        });
    }
    node.output("nft", &["delete chain ip nat stranger"]);
    node.wait_until("end of the old rules", || {
        crate::switch::traces(&node, Backend::IptablesNft).is_empty()
    });
}
