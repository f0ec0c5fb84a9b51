//! People decide by the command line, and packets follow.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use telaio_testkit::netns::{Cluster, Family, Host, Place, Transport};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip};
use crate::node::{Backend, Node, comes_true};
use crate::support::id_of;

on_backends_of_this_kernel!(
    a_drain_by_hand_moves_packets_and_its_undoing_moves_them_back,
    packets_follow_a_weight_and_backends_that_come_and_go_by_hand,
);

fn a_drain_by_hand_moves_packets_and_its_undoing_moves_them_back(backend: Backend) {
    let service = Service::new("web", 1).endpoints("a1 b1");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service]);
    let to = SocketAddr::new(cluster_ip(Family::V4, 1), SERVICE_PORT);
    let served_by = || {
        let mut by: Vec<String> = (0..40)
            .filter_map(|_| {
                let outcome = node.ask(Place::of(Host::NodeA), to, Transport::Tcp);
                outcome.by().map(str::to_owned)
            })
            .collect();
        by.sort();
        by.dedup();
        by
    };
    let question = format!("/api/v1/trace?from=10.1.1.1&to={to}");
    let traced = |kernel: bool| {
        let answer = node.admin(&format!("{question}&kernel={kernel}"));
        assert_eq!(answer["verdict"], "dnat", "{answer}");
        answer["endpoints"].as_array().unwrap().len()
    };
    assert_eq!((served_by().len(), traced(false), traced(true)), (2, 2, 2));
    let rules = node.admin("/api/v1/services/test/web/rules");
    let text = rules["text"].as_str().unwrap();
    assert!(text.contains(&to.ip().to_string()), "the service's own rules: {rules}");
    assert_eq!(rules["origin"], "kernel", "{rules}");
    assert!(rules["notes"].to_string().contains("go where our rules say"), "{rules}");

    let done = node.manage(&["drain", "test/web", "node-b", "--output=json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let done: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(comes_true(|| traced(true) == 1), "the drain is not in the kernel");
    assert_eq!((served_by(), traced(false)), (vec!["a1".to_owned()], 1));
    let told = comes_true(|| {
        let events = node.admin("/api/v1/events?q=web");
        let items = events["items"].as_array().unwrap().clone();
        items.iter().any(|it| it["programmed_ms"].as_f64().is_some_and(|ms| ms < 10_000.0))
    });
    assert!(told, "no event tells when it was in the kernel");

    let undone = node.manage(&["overrides", "undo", &id_of(&done)]);
    assert_eq!(undone.code, Some(0), "{undone:?}");
    assert!(comes_true(|| traced(true) == 2), "the undoing is not in the kernel");
    assert_eq!(served_by().len(), 2);
    let synced = node.manage(&["overrides", "resync"]);
    assert_eq!(synced.code, Some(0), "{synced:?}");
}

fn packets_follow_a_weight_and_backends_that_come_and_go_by_hand(backend: Backend) {
    let service = Service::new("web", 1).endpoints("a1 b1");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service]);
    let to = SocketAddr::new(cluster_ip(Family::V4, 1), SERVICE_PORT);
    let shares = |attempts: u32| {
        let mut by = BTreeMap::<String, u32>::new();
        for _ in 0..attempts {
            let outcome = node.ask(Place::of(Host::NodeA), to, Transport::Tcp);
            let who = outcome.by().unwrap_or_else(|| panic!("{outcome}")).to_owned();
            *by.entry(who).or_default() += 1;
        }
        by
    };
    let who = || shares(40).into_keys().collect::<Vec<String>>();
    // The kernel's own rules: what is asked for is a moment ahead of them.
    let in_kernel = |count: usize| {
        let question = format!("/api/v1/trace?from=10.1.1.1&to={to}&kernel=true");
        comes_true(|| {
            let answer = node.admin(&question);
            answer["endpoints"].as_array().is_some_and(|all| all.len() == count)
        })
    };
    let done = |args: &[&str]| {
        let ended = node.manage(args);
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:?}");
    };
    let [a1, a2, b1] =
        [Host::A1, Host::A2, Host::B1].map(|host| host.address(Family::V4).to_string());

    done(&["weight", "test/web", &b1, "9"]);
    let many = comes_true(|| {
        // Nine of ten are expected.
        shares(100).get("b1").is_some_and(|count| *count >= 75)
    });
    assert!(many, "the weight is not in the kernel: {:?}", shares(100));
    done(&["weight", "test/web", &b1, "0"]);
    assert!(in_kernel(1), "who weighs nothing is still in the kernel");
    assert_eq!(who(), ["a1"]);
    done(&["undrain", "test/web", &b1]);
    assert!(in_kernel(2));

    done(&["overrides", "add", "test/web", &a2]);
    assert!(in_kernel(3), "who was added is not in the kernel");
    assert_eq!(who(), ["a1", "a2", "b1"]);
    done(&["overrides", "remove", "test/web", &a1]);
    assert!(in_kernel(2), "who was removed is still in the kernel");
    assert_eq!(who(), ["a2", "b1"]);
    // What was added by hand goes by hand, and what was removed comes back.
    done(&["overrides", "remove", "test/web", &a2]);
    assert!(in_kernel(1));
    done(&["undrain", "test/web", &a1]);
    assert!(in_kernel(2));
    assert_eq!(who(), ["a1", "b1"]);
}
