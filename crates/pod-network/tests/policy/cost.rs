//! What a packet costs does not grow with the number of policies: they are elements of maps, and packets meet rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use telaio_model::{
    IpFamily, Meta, NetworkPolicy, ObjectKey, Pod, PodPhase, PolicyPeer, PolicyPort,
    PolicyPortMatch, PolicyRule, Protocol,
};
use telaio_pod_network::policy::{Kernel, World};
use telaio_reconcile::{PartReconciler, Target};

use crate::cases::{labels, select};
use crate::generate::HERE;
use crate::kernel::{nft, within};

/// So many pods, each with a policy of its own: peer, port and network differ in all of them.
fn world(count: u16) -> World {
    let mut world = World::new(HERE);
    for number in 0..count {
        let [high, low] = number.to_be_bytes();
        let (own, next) = (number.to_string(), ((number + 1) % count).to_string());
        let key = ObjectKey::new(format!("ns{}", number % 7), format!("it{number}"));
        let pod = Pod {
            meta: Meta { labels: labels(&[("n", &own)]), ..Meta::named(key.clone()) },
            node: Some(HERE.into()),
            host_network: false,
            hostname: None,
            ports: vec![],
            ips: [format!("10.244.{high}.{low}"), format!("fd00:244::{number:x}")]
                .map(|ip| ip.parse().unwrap())
                .to_vec(),
            phase: PodPhase::Running,
            ready: true,
            terminating: false,
        };
        world.set_pod(&key, Some(Arc::new(pod)));
        let block = |net: String| PolicyPeer::Block { cidr: net.parse().unwrap(), except: vec![] };
        let port = PolicyPortMatch::Range(8000 + number, 8000 + number);
        let everywhere = telaio_model::LabelSelector::default;
        let policy = NetworkPolicy {
            meta: Meta::named(key.clone()),
            pods: select(&[("n", &own)]),
            ingress: Some(vec![PolicyRule {
                peers: vec![PolicyPeer::Pods {
                    namespaces: Some(everywhere()),
                    pods: Some(select(&[("n", &next)])),
                }],
                ports: vec![PolicyPort { protocol: Protocol::Tcp, port }],
            }]),
            egress: Some(vec![PolicyRule {
                peers: vec![
                    block(format!("172.{}.{low}.0/24", 16 + high)),
                    block(format!("2001:db8:{number:x}::/48")),
                ],
                ports: vec![],
            }]),
        };
        world.set_policy(&key, Some(Arc::new(policy)));
    }
    world
}

/// How many rules each chain has that packets of all pods meet, and the longest of those that each meets one of.
fn rules(family: &str) -> (BTreeMap<String, usize>, usize) {
    let listed = nft(&["list", "table", family, "telaio-policy"]);
    let (mut shared, mut longest) = (BTreeMap::new(), 0);
    let mut lines = listed.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("chain ").and_then(|it| it.strip_suffix(" {")) else {
            continue;
        };
        let body = lines.by_ref().take_while(|line| *line != "}");
        let count = body.filter(|line| !line.starts_with("type ")).count();
        if name.starts_with("gate-") {
            longest = longest.max(count);
        } else {
            shared.insert(name.to_owned(), count);
        }
    }
    (shared, longest)
}

#[test]
fn a_packet_meets_as_many_rules_with_five_hundred_policies_as_with_ten() {
    let found = [10, 500].map(|count| {
        let mut found = None;
        within(&format!("cost{count}"), || {
            let mut world = world(count);
            world.settle();
            let kernel = Kernel::open(&IpFamily::ALL).unwrap();
            PartReconciler::new(kernel).reconcile(&world).unwrap();
            let items = Kernel::open(&IpFamily::ALL).unwrap().observe().unwrap().items.len();
            found = Some((["ip", "ip6"].map(rules), items));
        });
        found.unwrap()
    });
    let [(few, few_items), (many, many_items)] = found;
    assert_eq!(few, many);
    let (shared, longest) = &few[0];
    assert!(shared["ingress"] > 0 && shared["egress"] > 0 && *longest > 0, "{few:?}");
    assert!(many_items > few_items * 20, "all of them are there: {few_items}, {many_items}");
}
