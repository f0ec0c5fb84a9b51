//! Instances of one bridge and of two nodes, services between them, and policies that hold.

use crate::net::{PATIENCE, SILENCE, Wire, ask_from, serve};
use crate::stage::{Agent, Stage, eventually, pod};

/// Everybody comes in to `app: db`, or only who is named.
fn policy(from: Option<&str>) -> String {
    let peers = from.map_or(String::new(), |app| {
        format!("[{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]")
    });
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: db, namespace: default}}\n\
         spec:\n  podSelector: {{matchLabels: {{app: db}}}}\n  policyTypes: [Ingress]\n  ingress: {}\n",
        if peers.is_empty() { "[]" } else { &peers }
    )
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: default}\n\
    spec:\n  clusterIP: 10.96.0.10\n  clusterIPs: [10.96.0.10, 'fd00:96::10']\n  \
    ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv4, IPv6]\n  selector: {app: db}\n  \
    ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]\n";

const SERVICE_CIDRS: &[&str] = &["--service-cidr=10.96.0.0/16,fd00:96::/112"];

/// How the instance `db` is reached: directly and through its service, both families.
const WAYS: [(&str, u16); 4] =
    [("10.77.1.3", 8080), ("fd77:1::3", 8080), ("10.96.0.10", 80), ("fd00:96::10", 80)];

/// Who asks: an instance on a node, or a node itself.
struct Asker<'a> {
    agent: &'a Agent,
    instance: Option<&'a str>,
}

impl Asker<'_> {
    fn reaches(&self, ip: &str, port: u16, wire: Wire) -> bool {
        ask_from(&self.agent.node.machine, self.instance, ip, port, wire, SILENCE * 2).is_ok()
    }

    /// On all ways it comes to be so.
    fn come_to(&self, reached: bool, why: &str) {
        for (ip, port) in WAYS {
            for wire in [Wire::Tcp, Wire::Udp] {
                let what = format!("{why}: {:?} to {ip}:{port} by {wire:?}", self.instance);
                let rules = || self.agent.node.machine.sh("nft list ruleset");
                eventually(&what, || self.reaches(ip, port, wire) == reached, rules);
            }
        }
    }
}

#[test]
fn a_service_between_instances_of_one_bridge_works_and_a_policy_between_them_holds() {
    a_service_works_and_a_policy_holds("vxlan", true);
}

#[test]
fn by_vxlan_services_and_policies_hold_where_bridged_packets_are_not_shown_to_rules() {
    a_service_works_and_a_policy_holds("vxlan", false);
}

#[test]
fn by_host_gw_services_and_policies_hold_where_bridged_packets_are_shown_to_rules() {
    a_service_works_and_a_policy_holds("host-gw", true);
}

#[test]
fn by_host_gw_services_and_policies_hold_where_bridged_packets_are_not_shown_to_rules() {
    a_service_works_and_a_policy_holds("host-gw", false);
}

/// Whether the kernel shows bridged packets to rules (`br_netfilter`).
fn show_bridged(agent: &Agent, is_shown: bool) {
    let value = u8::from(is_shown);
    for kind in ["iptables", "ip6tables"] {
        let set = format!("echo {value} > /proc/sys/net/bridge/bridge-nf-call-{kind}");
        let hint = "this kernel does not show bridged packets to rules: modprobe br_netfilter";
        assert!(agent.node.machine.try_sh(&set), "{hint}");
    }
}

/// On one bridge and from the other node, by both families.
fn a_service_works_and_a_policy_holds(backend: &str, is_bridged_shown: bool) {
    let stage = Stage::new();
    for agent in [&stage.a, &stage.b] {
        show_bridged(agent, is_bridged_shown);
    }
    stage.write("web", &pod("web", 1, 2, "web"));
    stage.write("db", &pod("db", 1, 3, "db"));
    stage.write("far", &pod("far", 2, 2, "web"));
    stage.write("service", SERVICE);
    let mut stage = stage;
    let manifests = stage.manifests();
    let backend = format!("--pod-backend={backend}");
    let more: Vec<&str> = SERVICE_CIDRS.iter().copied().chain([backend.as_str()]).collect();
    stage.a.start(&manifests, "services,pods", &more);
    stage.b.start(&manifests, "services,pods", &more);
    let (a, b) = (&stage.a.node, &stage.b.node);
    a.instance("web", 2, vec![]);
    a.instance("db", 3, vec![]);
    b.instance("far", 2, vec![]);
    let ips = ["10.77.1.3", "fd77:1::3"];
    let wires = [Wire::Tcp, Wire::Udp];
    let _servers: Vec<_> =
        ips.iter().flat_map(|ip| wires.map(|wire| serve(a, Some("db"), ip, 8080, wire))).collect();
    let web = Asker { agent: &stage.a, instance: Some("web") };
    let far = Asker { agent: &stage.b, instance: Some("far") };
    let own = Asker { agent: &stage.a, instance: None };
    let db = Asker { agent: &stage.a, instance: Some("db") };
    for who in [&web, &far, &own, &db] {
        who.come_to(true, "without a policy");
    }
    // Through the service and not: the server sees the instance itself.
    for (ip, port) in WAYS {
        let seen = ask_from(&a.machine, Some("web"), ip, port, Wire::Tcp, PATIENCE).unwrap();
        let own = if ip.contains(':') { "fd77:1::2" } else { "10.77.1.2" };
        assert!(seen.contains(own), "by {ip}: {seen}");
    }

    stage.write("policy", &policy(None));
    for who in [&web, &far] {
        who.come_to(false, "with a policy that allows nobody");
    }
    own.come_to(true, "the node's own probes pass");
    db.come_to(true, "an instance reaches itself, through its service too");

    stage.write("policy", &policy(Some("web")));
    for who in [&web, &far] {
        who.come_to(true, "with a policy that allows them");
    }
    stage.write("far", &pod("far", 2, 2, "cache"));
    far.come_to(false, "it is another pod now");
    web.come_to(true, "it is the same as before");

    stage.remove("policy");
    far.come_to(true, "the policy is gone");
}

#[test]
fn policies_that_others_remove_from_the_kernel_come_back() {
    let stage = Stage::start("pods", &[]);
    stage.write("web", &pod("web", 1, 2, "web"));
    stage.write("db", &pod("db", 1, 3, "db"));
    stage.write("policy", &policy(None));
    let a = &stage.a.node;
    a.instance("web", 2, vec![]);
    a.instance("db", 3, vec![]);
    let _server = serve(a, Some("db"), "10.77.1.3", 8080, Wire::Tcp);
    let web = Asker { agent: &stage.a, instance: Some("web") };
    let denied = || !web.reaches("10.77.1.3", 8080, Wire::Tcp);
    let rules = || a.machine.sh("nft list ruleset");
    eventually("the policy", denied, rules);
    let is_there =
        || a.machine.try_sh("nft list table ip telaio-policy && nft list table ip telaio-pods");
    for damage in ["nft delete table ip telaio-policy", "nft flush ruleset"] {
        a.machine.sh(damage);
        eventually(damage, is_there, rules);
        eventually(damage, denied, rules);
    }
}
