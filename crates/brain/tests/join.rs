//! Joining in a crowd: what is shared must be what each would have got alone. And lingering: what a
//! watcher that does not come back costs is bounded.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::sync::Arc;

use telaio_api::local::{decode_op, encode_op};
use telaio_brain::store::LOG_ENDPOINTS_MAX;
use telaio_brain::{LocalWatch, Store, Wants};
use telaio_model::{Batch, EndpointSlice, Kind, Node, ObjectChange, Op, Service};

fn from_json<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// Three nodes in two zones; services with endpoints on some of them, with and without pods, hinted
/// for zones, with policy Local, and one that no service proxy serves.
fn cluster() -> Arc<Store> {
    let mut changes = Vec::new();
    for (name, zone) in [("node-1", "a"), ("node-2", "a"), ("node-3", "b")] {
        let labels = serde_json::json!({"topology.kubernetes.io/zone": zone});
        let node: Node = from_json(serde_json::json!({"meta": {"name": name, "labels": labels}}));
        changes.push(ObjectChange::Set(node.into()));
    }
    for number in 0..20 {
        let name = format!("service-{number}");
        let policy = if number % 3 == 0 { "Local" } else { "Cluster" };
        let service: Service = from_json(serde_json::json!({
            "meta": {"namespace": "default", "name": name},
            "clusterIps": [format!("10.96.0.{}", number + 1)], "headless": number == 7,
            "internalTrafficPolicy": policy,
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        }));
        let endpoint = |index: usize| {
            let node = format!("node-{}", (number + index) % 4);
            let pod = index.is_multiple_of(2).then(|| format!("{name}-{index}"));
            let zones = if number % 4 == 0 { vec![["a", "b"][index % 2]] } else { vec![] };
            serde_json::json!({
                "address": format!("10.0.{number}.{index}"), "node": node, "pod": pod,
                "hints": {"zones": zones},
            })
        };
        let slice: EndpointSlice = from_json(serde_json::json!({
            "key": {"namespace": "default", "name": format!("{name}-slice")},
            "service": name, "addressType": "IPv4",
            "endpoints": (1..=4).map(endpoint).collect::<Vec<_>>(),
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        }));
        changes.push(ObjectChange::Set(service.into()));
        changes.push(ObjectChange::Set(slice.into()));
    }
    let store = Store::new();
    store.apply(Batch { changes, synced: true });
    store
}

fn wants() -> Wants {
    Wants { serving_endpoints: true, all_services: false, kinds: [Kind::Node].into() }
}

#[tokio::test]
async fn a_crowd_gets_what_each_of_it_would_get_alone() {
    let store = cluster();
    for node in ["node-1", "node-2", "node-3", "stranger"] {
        let alone: Vec<Op> = LocalWatch::new(&store, node, wants()).next().await.unwrap().collect();
        assert!(alone.len() > 40, "{node} sees only {alone:?}");
        // Others join too, of each zone and without one: all but the first find shared work.
        let mut crowd = Vec::new();
        for other in ["node-1", "node-2", "node-3", "stranger", "another", node] {
            let mut watch = LocalWatch::new(&store, other, wants());
            crowd.push((watch.next().await.unwrap(), watch));
        }
        let (own, _watch) = crowd.pop().unwrap();
        for (diff, _) in crowd {
            assert!(diff.into_wire().all(|item| item.is_ok()));
        }
        let mut neighbour = LocalWatch::new(&store, "neighbour", wants());
        let _neighbour = neighbour.next().await.unwrap();
        let shared: Vec<_> = own.into_wire().map(Result::unwrap).collect();
        let expected: Vec<_> = alone.iter().map(|op| encode_op(op).unwrap()).collect();
        assert_eq!(shared, expected, "{node}");
        assert_eq!(decode_op(shared[0].clone()).unwrap(), Some(Op::Reset));
    }
}

#[tokio::test]
async fn a_watcher_that_lingers_holds_no_more_than_a_bounded_number_of_endpoints() {
    const ENDPOINTS: usize = 1_000;
    let slice = |generation: usize| -> EndpointSlice {
        let endpoint = |index: usize| {
            let address = format!("10.{}.{}.{}", generation % 2, index / 250, index % 250 + 1);
            serde_json::json!({"address": address})
        };
        from_json(serde_json::json!({
            "key": {"namespace": "default", "name": "large"}, "service": "large",
            "addressType": "IPv4", "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
        }))
    };
    let store = cluster();
    let mut lingering = LocalWatch::new(&store, "node-1", wants());
    lingering.next().await.unwrap().for_each(drop);
    for generation in 0..200 {
        let changes = vec![ObjectChange::Set(slice(generation).into())];
        assert!(store.apply(Batch { changes, synced: true }).is_some());
    }
    let kept = store.size().log_changes;
    assert!(kept > 0 && kept * ENDPOINTS <= LOG_ENDPOINTS_MAX, "{kept} changes are kept");
    // When it comes back it gets everything, and is up to date.
    assert_eq!(lingering.next().await.unwrap().next(), Some(Op::Reset));
}
