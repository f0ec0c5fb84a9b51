//! No instance can pass itself off as another, and none sends what is of no network.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use support::{Node, senders, spoof};

/// Addresses that are not the sender's: a neighbour's, one that nobody has, one of elsewhere.
const FALSE: [[&str; 3]; 2] =
    [["10.77.1.3", "10.77.1.77", "192.0.2.7"], ["fd77:1::3", "fd77:1::77", "2001:db8::7"]];
const OWN: [&str; 2] = ["10.77.1.2", "fd77:1::2"];
const TO: [&str; 2] = ["10.77.1.4", "fd77:1::4"];

fn set_of(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn what_an_instance_sends_with_a_false_source_goes_nowhere() {
    for (family, to) in TO.into_iter().enumerate() {
        let node = Node::start("guard", 1);
        for (id, host) in [("a", 2), ("b", 3), ("c", 4)] {
            node.instance(id, host, vec![]);
        }
        let send = || {
            let receiver = senders(&node, Some("c"), to, 99);
            for source in FALSE[family] {
                spoof(&node, "a", source, to, 99);
            }
            // The last one that comes is true: then all others would have been there.
            spoof(&node, "a", OWN[family], to, 99);
            receiver.until(OWN[family])
        };
        assert_eq!(send(), set_of(&[OWN[family]]), "to a neighbour");
        let to_node = if family == 0 { "10.77.1.1" } else { "fd77:1::1" };
        let receiver = senders(&node, None, to_node, 98);
        for source in FALSE[family] {
            spoof(&node, "a", source, to_node, 98);
        }
        spoof(&node, "a", OWN[family], to_node, 98);
        assert_eq!(receiver.until(OWN[family]), set_of(&[OWN[family]]), "to the node");
        // Without the rules they would arrive: the test can tell.
        node.machine.sh("nft delete table bridge telaio-pods");
        let neighbours = set_of(&[OWN[family], FALSE[family][0], FALSE[family][1]]);
        assert_eq!(send(), neighbours, "from elsewhere is refused by its route alone");
        node.machine.sh(
            "nft flush chain ip telaio-pods localnet; nft flush chain ip6 telaio-pods localnet",
        );
        node.machine.sh("echo 0 | tee /proc/sys/net/ipv4/conf/*/rp_filter");
        let mut all = neighbours;
        all.insert(FALSE[family][2].to_owned());
        assert_eq!(send(), all, "without any rule");
        node.machine.run(|| telaio_pod_network::Host::default().repair().unwrap());
        assert_eq!(send(), set_of(&[OWN[family]]), "rules that somebody removed are back");
    }
}

#[test]
fn who_had_an_address_cannot_send_with_it_when_it_is_somebody_elses() {
    let node = Node::start("again", 1);
    node.instance("a", 2, vec![]);
    node.instance("c", 4, vec![]);
    let rules = || node.machine.sh("nft list table bridge telaio-pods");
    assert!(rules().contains("10.77.1.2"), "{}", rules());
    node.clean("a", 2);
    assert!(!rules().contains("10.77.1.2") && !rules().contains("fd77:1::2"), "{}", rules());
    node.instance("b", 2, vec![]);
    let receiver = senders(&node, Some("c"), TO[0], 99);
    spoof(&node, "b", OWN[0], TO[0], 99);
    assert_eq!(receiver.until(OWN[0]), set_of(&[OWN[0]]));
}
