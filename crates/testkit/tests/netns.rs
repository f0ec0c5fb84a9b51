//! The test cluster itself: what its clients see is what the rules say.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use telaio_testkit::netns::{
    Cluster, Family, Host, Outcome, PATIENCE, Place, SERVER_PORT, Transport, is_node_a,
    node_a_second, outside_client,
};

const PODS: [Host; 4] = [Host::A1, Host::A2, Host::B1, Host::B2];
const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// Loads rules on node-a by the `nft` program.
fn nft(cluster: &Cluster, rules: &str) {
    cluster.on(Host::NodeA, || {
        let mut child =
            Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    });
}

fn seen_ip(outcome: &Outcome) -> IpAddr {
    match outcome {
        Outcome::Answered { seen, .. } => seen.ip(),
        other => panic!("{other}"),
    }
}

#[test]
fn everybody_reaches_every_pod_and_is_seen_as_who_he_is() {
    let cluster = Cluster::start().unwrap();
    for family in Family::ALL {
        for from in [Host::A1, Host::B2, Host::NodeA, Host::NodeB, Host::Outside] {
            for to in PODS {
                for transport in TRANSPORTS {
                    let address = SocketAddr::new(to.address(family), SERVER_PORT);
                    let outcome = cluster.ask(Place::of(from), address, transport);
                    assert_eq!(outcome.by(), Some(to.name()), "{from:?} to {to:?}: {outcome}");
                    // A node has several addresses, and a pod that asks itself uses its own.
                    let is_own = match from {
                        Host::NodeA => is_node_a(seen_ip(&outcome)),
                        Host::NodeB => true,
                        _ => seen_ip(&outcome) == from.address(family),
                    };
                    assert!(is_own, "{from:?} to {to:?}: {outcome}");
                }
            }
        }
        let stranger = outside_client(family, 200);
        let to = SocketAddr::new(Host::A1.address(family), SERVER_PORT);
        let outcome = cluster.ask(Place::outside(stranger), to, Transport::Tcp);
        assert_eq!(seen_ip(&outcome), stranger);
    }
}

#[test]
fn what_nobody_takes_is_unreachable_for_everybody() {
    let cluster = &Cluster::start().unwrap();
    for to in ["10.96.0.1:80", "[fd00:10:96::1]:80", "192.0.2.1:80", "[2001:db8:2::1]:80"] {
        // At once: with IPv6 it is the second packet, a second later, whose answer counts.
        std::thread::scope(|scope| {
            for from in [Host::A1, Host::B1, Host::NodeA, Host::NodeB, Host::Outside] {
                scope.spawn(move || {
                    let outcome = cluster.ask(Place::of(from), to.parse().unwrap(), Transport::Tcp);
                    assert_eq!(outcome, Outcome::Unreachable, "{from:?} to {to}");
                });
            }
        });
    }
}

#[test]
fn clients_tell_dnat_masquerade_reject_and_drop_apart() {
    let cluster = Cluster::start().unwrap();
    nft(
        &cluster,
        "table inet hand {
            chain pre { type nat hook prerouting priority dstnat;
                ip daddr 10.96.0.1 meta l4proto { tcp, udp } th dport 80 dnat ip to 10.244.2.11:8080
                ip6 daddr fd00:10:96::1 meta l4proto { tcp, udp } th dport 80 dnat ip6 to [fd00:10:244:2::11]:8080; }
            chain out { type nat hook output priority -100;
                ip daddr 10.96.0.1 tcp dport 80 dnat ip to 10.244.2.11:8080; }
            chain post { type nat hook postrouting priority srcnat;
                iifname wan0 masquerade; }
            chain onward { type filter hook forward priority filter;
                meta l4proto { tcp, udp } th dport 81 reject
                meta l4proto { tcp, udp } th dport 82 drop; }
        }",
    );
    let ask = |from: Host, to: &str, transport: Transport| {
        let patience = if to.ends_with("82") { transport.silence() } else { PATIENCE };
        cluster.ask_for(Place::of(from), to.parse().unwrap(), transport, patience)
    };
    for transport in TRANSPORTS {
        for address in ["10.96.0.1", "[fd00:10:96::1]"] {
            let from_pod = ask(Host::A1, &format!("{address}:80"), transport);
            assert_eq!(from_pod.by(), Some("b1"));
            assert!(!is_node_a(seen_ip(&from_pod)), "{from_pod}");
            let from_outside = ask(Host::Outside, &format!("{address}:80"), transport);
            assert_eq!(from_outside.by(), Some("b1"));
            assert!(is_node_a(seen_ip(&from_outside)), "{from_outside}");
            assert_eq!(ask(Host::A1, &format!("{address}:81"), transport), Outcome::Refused);
            assert_eq!(ask(Host::A1, &format!("{address}:82"), transport), Outcome::Silence);
        }
    }
    assert_eq!(ask(Host::NodeA, "10.96.0.1:80", Transport::Tcp).by(), Some("b1"));
    let own = SocketAddr::new(node_a_second(Family::V4), 9);
    assert_eq!(cluster.ask(Place::of(Host::NodeB), own, Transport::Tcp), Outcome::Refused);
}

#[test]
fn connections_and_flows_stay_and_a_prober_counts() {
    let cluster = Cluster::start().unwrap();
    let to = SocketAddr::new(Host::B1.address(Family::V6), SERVER_PORT);
    let from = Place::of(Host::Outside);
    let conversation = cluster.connect(from, to).unwrap();
    assert_eq!(conversation.greeting().unwrap().by(), Some("b1"));
    conversation.echo(b"still there?").unwrap();
    let flow = cluster.flow(from, to).unwrap();
    assert_eq!(flow.ask(PATIENCE).unwrap().by(), Some("b1"));
    let prober = cluster.probe(from, to, Transport::Tcp).unwrap();
    prober.wait_attempts(50);
    nft(
        &cluster,
        "table inet hand {
            chain onward { type filter hook forward priority filter; tcp flags syn reject; }
        }",
    );
    prober.wait_attempts(3);
    // What is established goes on.
    conversation.echo(b"and now?").unwrap();
    let tally = prober.stop();
    assert!(tally.answered["b1"] >= 50, "{tally}");
    assert!(tally.failures >= 3, "{tally}");
}

#[test]
fn a_cluster_leaves_nothing_behind_also_after_a_panic() {
    let ours = || {
        let listed = Command::new("ip").args(["netns", "list"]).output().unwrap().stdout;
        let prefix = format!("telaio-test-{}-", std::process::id());
        String::from_utf8(listed).unwrap().lines().filter(|line| line.starts_with(&prefix)).count()
    };
    let before = ours();
    let outcome = std::panic::catch_unwind(|| {
        let _cluster = Cluster::start().unwrap();
        assert!(ours() >= before + Host::ALL.len());
        panic!("as a failing test does");
    });
    assert!(outcome.is_err());
    assert_eq!(ours(), before);
}
