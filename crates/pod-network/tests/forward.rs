//! Others' chains that drop what they do not know, as docker's and ufw's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use support::{Node, PATIENCE, SILENCE, Wire, ask_from, lan, serve, serve_on};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Host, Port, rules};

fn refusing(node: &Node) {
    node.machine.sh("iptables-nft -P FORWARD DROP && ip6tables-nft -P FORWARD DROP");
}

fn shown(node: &Node) -> String {
    node.machine.sh("iptables-nft -S; ip6tables-nft -S")
}

#[test]
fn instances_pass_a_chain_that_drops_what_it_does_not_know() {
    let node = Node::bare("drop", 1);
    let outside = lan(&[&node]);
    refusing(&node);
    let before = shown(&node);
    node.set_up(Backend::default(), None);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    node.instance("b", 3, vec![]);
    let works = |when: &str| {
        for (own, far, published) in
            [("10.77.1.2", "192.168.5.99", "192.168.5.1"), ("fd77:1::2", "fd05::99", "fd05::1")]
        {
            let _servers = (
                serve(&node, Some("a"), own, 80, Wire::Tcp),
                serve_on(&outside, None, far, 80, Wire::Tcp),
            );
            let b = |ip: &str| ask_from(&node.machine, Some("b"), ip, 80, Wire::Tcp, PATIENCE);
            assert!(b(own).is_ok(), "{when}: between instances, {own}");
            assert!(b(far).is_ok(), "{when}: to the outside, {far}");
            let published = ask_from(&outside, None, published, 8080, Wire::Tcp, PATIENCE);
            assert!(published.is_ok(), "{when}: from outside, {own}");
        }
    };
    works("at first");
    // Their owner's programs still understand them.
    let now = shown(&node);
    assert!(
        now.contains("-A FORWARD -j TELAIO-POD-PASS")
            && now.contains("-A TELAIO-POD-PASS -i tlb-drop -j ACCEPT"),
        "{now}"
    );
    for damage in [
        "iptables-nft -F FORWARD; ip6tables-nft -F FORWARD",
        "iptables-nft -F; ip6tables-nft -F TELAIO-POD-PASS",
    ] {
        node.machine.sh(damage);
        node.machine.run(|| Host::default().repair().unwrap());
        works(damage);
    }
    // However often, and whoever writes the table anew.
    node.machine.sh("iptables-nft-save | iptables-nft-restore");
    node.machine.run(|| Host::default().repair().unwrap());
    assert_eq!(
        shown(&node).matches("-A FORWARD -j TELAIO-POD-PASS").count(),
        2,
        "{}",
        shown(&node)
    );
    // What others refuse is refused.
    node.machine.sh("iptables-nft -I FORWARD -d 10.77.1.2 -j DROP");
    {
        let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
        assert!(ask_from(&node.machine, Some("b"), "10.77.1.2", 80, Wire::Tcp, SILENCE).is_err());
    }
    node.machine.sh("iptables-nft -D FORWARD -d 10.77.1.2 -j DROP");
    // Where nothing is dropped, there is no need.
    node.machine.sh("iptables-nft -P FORWARD ACCEPT");
    node.machine.run(|| Host::default().repair().unwrap());
    assert_eq!(shown(&node).matches("-A FORWARD -j TELAIO-POD-PASS").count(), 1);
    refusing(&node);
    node.machine.run(|| Host::default().repair().unwrap());
    works("again");
    node.machine.run(|| Host::default().remove_all().unwrap());
    assert_eq!(shown(&node), before);
}

#[test]
fn chains_that_only_their_owner_can_open_are_told() {
    let node = Node::start("told", 1);
    let told = || node.machine.run(|| rules::refusing_chains().unwrap());
    refusing(&node);
    assert!(told().is_empty(), "{:?}", told());
    node.machine.sh(
        "nft -f - <<'END'\ntable inet theirs {\n chain passing { type filter hook forward priority 0; policy drop; }\n \
         chain here { type filter hook input priority 0; policy drop; }\n}\nEND",
    );
    assert_eq!(told(), ["inet theirs passing"]);
}

#[test]
fn a_chain_of_iptables_legacy_that_drops_is_told_until_it_lets_our_links_pass() {
    let node = Node::start("legacy", 1);
    let told = || node.machine.run(|| rules::refusing_chains().unwrap());
    assert!(told().is_empty(), "{:?}", told());
    let names = "cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>/dev/null || true";
    assert!(!node.machine.sh(names).contains("filter"), "looking makes no table");
    node.machine.sh("iptables-legacy -L -n; ip6tables-legacy -P FORWARD ACCEPT");
    assert!(told().is_empty(), "{:?}", told());
    node.machine.sh("iptables-legacy -P FORWARD DROP; ip6tables-legacy -P FORWARD DROP; iptables-legacy -A INPUT -i lo -j ACCEPT");
    assert_eq!(told(), ["iptables-legacy filter FORWARD", "ip6tables-legacy filter FORWARD"]);
    for way in ["-i", "-o"] {
        node.machine.sh(&format!("iptables-legacy -A FORWARD {way} tl+ -j ACCEPT"));
    }
    assert_eq!(told(), ["ip6tables-legacy filter FORWARD"]);
}
