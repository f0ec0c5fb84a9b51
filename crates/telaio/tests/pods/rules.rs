//! What policies say beside who: ports by number, name and range, networks with exceptions, both directions, and what comes
//! in by a published port; on our own bridge, with packets.

use telaio_pod_network::Port;
use telaio_testkit::machine::Machine;

use crate::net::{SILENCE, Server, Wire, ask_from, serve};
use crate::stage::{Stage, eventually};

/// A Pod on `node-a` whose ports have names.
fn pod(name: &str, host: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: default\n  labels: {{app: {name}}}\n  \
         annotations: {{telaio.dev/ip: '10.77.1.{host},fd77:1::{host}'}}\nspec:\n  nodeName: node-a\n  containers:\n  - name: c\n    \
         ports: [{{name: http, containerPort: 8080}}, {{name: admin, containerPort: 8081}}]\n"
    )
}

fn policy(app: &str, spec: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: rule, namespace: default}}\n\
         spec:\n  podSelector: {{matchLabels: {{app: {app}}}}}\n{spec}"
    )
}

/// Who asks whom at which port, and whether there is an answer.
type Case = (&'static str, u8, u16, bool);

/// All cases come to be so, by both families.
fn come_to(machine: &Machine, what: &str, cases: &[Case]) {
    for (from, host, port, is_answered) in cases {
        for ip in [format!("10.77.1.{host}"), format!("fd77:1::{host}")] {
            for wire in [Wire::Tcp, Wire::Udp] {
                let asked = || ask_from(machine, Some(from), &ip, *port, wire, SILENCE * 2).is_ok();
                let name = format!("{what}: {from} to {ip}:{port} by {wire:?}: {is_answered}");
                eventually(&name, || asked() == *is_answered, || machine.sh("nft list ruleset"));
            }
        }
    }
}

#[test]
fn ports_networks_directions_and_published_ports_are_judged_on_our_own_bridge() {
    let stage = Stage::start("pods", &[]);
    let (a, outside) = (&stage.a.node, &stage.switch);
    let mut servers: Vec<Server> = Vec::new();
    for (name, host, published) in
        [("web", 2, vec![]), ("db", 3, vec![Port::new(7070, 8080)]), ("cache", 4, vec![])]
    {
        stage.write(name, &pod(name, host));
        a.instance(name, host, published);
        for ip in [format!("10.77.1.{host}"), format!("fd77:1::{host}")] {
            for port in [8080, 8081, 8085, 8090] {
                servers.extend(
                    [Wire::Tcp, Wire::Udp].map(|wire| serve(a, Some(name), &ip, port, wire)),
                );
            }
        }
    }
    let machine = &a.machine;
    come_to(machine, "without a policy", &[("web", 3, 8081, true), ("cache", 3, 8090, true)]);

    let ports = "[{port: http, protocol: TCP}, {port: http, protocol: UDP}]";
    stage.write("rule", &policy("db", &format!("  ingress: [{{ports: {ports}}}]\n")));
    // The Pod says TCP of its ports: of the other protocol it has none of that name.
    for ip in ["10.77.1.3", "fd77:1::3"] {
        let asked =
            |port, wire| ask_from(machine, Some("web"), ip, port, wire, SILENCE * 2).is_ok();
        let rules = || machine.sh("nft list ruleset");
        eventually("another port", || !asked(8081, Wire::Tcp), rules);
        eventually("a port by its name", || asked(8080, Wire::Tcp), rules);
        eventually("the name with another protocol", || !asked(8080, Wire::Udp), rules);
    }

    let ports =
        "[{port: 8081, endPort: 8085, protocol: TCP}, {port: 8081, endPort: 8085, protocol: UDP}]";
    stage.write("rule", &policy("db", &format!("  ingress: [{{ports: {ports}}}]\n")));
    come_to(
        machine,
        "a range of ports",
        &[
            ("web", 3, 8080, false),
            ("web", 3, 8081, true),
            ("web", 3, 8085, true),
            ("web", 3, 8090, false),
        ],
    );

    let from = "[{ipBlock: {cidr: 10.77.1.0/24, except: [10.77.1.2/32]}}, {ipBlock: {cidr: 'fd77:1::/64', except: ['fd77:1::2/128']}}]";
    stage.write("rule", &policy("db", &format!("  ingress: [{{from: {from}}}]\n")));
    come_to(
        machine,
        "a network with an exception",
        &[("web", 3, 8080, false), ("cache", 3, 8080, true)],
    );

    let to = "[{podSelector: {matchLabels: {app: db}}}]";
    let ports = "[{port: 8080, protocol: TCP}, {port: 8080, protocol: UDP}]";
    let egress = format!("  policyTypes: [Egress]\n  egress: [{{to: {to}, ports: {ports}}}]\n");
    stage.write("rule", &policy("web", &egress));
    come_to(
        machine,
        "what goes out",
        &[
            ("web", 3, 8081, false),
            ("web", 3, 8080, true),
            ("web", 4, 8080, false),
            ("cache", 3, 8081, true),
            ("db", 2, 8080, true),
        ],
    );

    let by_port =
        |who: &Machine, ip: &str| ask_from(who, None, ip, 7070, Wire::Tcp, SILENCE * 2).is_ok();
    let from = "[{ipBlock: {cidr: 192.168.5.99/32}}, {ipBlock: {cidr: 'fd05::99/128'}}]";
    stage.write("rule", &policy("db", &format!("  ingress: [{{from: {from}}}]\n")));
    come_to(machine, "neighbours", &[("web", 3, 8080, false), ("web", 4, 8080, true)]);
    let rules = || machine.sh("nft list ruleset");
    for ip in ["192.168.5.1", "fd05::1"] {
        eventually("by the published port", || by_port(outside, ip), rules);
    }
    stage.write("rule", &policy("db", "  ingress: []\n"));
    for ip in ["192.168.5.1", "fd05::1"] {
        eventually("no longer by the published port", || !by_port(outside, ip), rules);
        eventually("the node itself", || by_port(machine, ip), rules);
    }
    drop(servers);
}
