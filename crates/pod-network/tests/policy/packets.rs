//! The cases with real packets: TCP and UDP, both families, both directions, same node and across nodes.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use telaio_model::{
    IpFamily, LabelSelector, Meta, Namespace, NetworkPolicy, ObjectKey, PolicyPeer, PolicyPort,
    PolicyPortMatch, PolicyRule, Protocol,
};
use telaio_pod_network::policy::Keeper;
use telaio_reconcile::SyncKind;
use telaio_testkit::netns::{
    Cluster, Family, Host, Outcome, PATIENCE, Place, SERVER_PORT, Transport,
};

use crate::cases::{self, SECOND_PORT};
use crate::oracle::{self, Connection};

const NODES: [Host; 2] = [Host::NodeA, Host::NodeB];
const PODS: [Host; 4] = [Host::A1, Host::A2, Host::B1, Host::B2];

/// The namespaces with a keeper on each node.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) keepers: Vec<(Host, Keeper)>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let cluster = Cluster::start().unwrap();
        for host in PODS {
            cluster.serve(host, host.name(), SECOND_PORT).unwrap();
        }
        let open =
            |node: Host| cluster.on(node, || Keeper::open(node.name(), &IpFamily::ALL).unwrap());
        let keepers = NODES.map(|node| (node, open(node))).into();
        Self { cluster, keepers }
    }

    /// Tells both nodes what the cluster is.
    pub(crate) fn tell(&mut self, before: &[NetworkPolicy], world: &oracle::Cluster) {
        for (_, keeper) in &mut self.keepers {
            let told = keeper.world_mut();
            for policy in before {
                told.set_policy(&policy.meta.key, None);
            }
            for (name, labels) in &world.namespaces {
                let meta = Meta::named(ObjectKey::cluster(name.as_str()));
                let namespace = Namespace { meta: Meta { labels: labels.clone(), ..meta } };
                told.set_namespace(&name.as_str().into(), Some(&namespace));
            }
            for (key, pod) in &world.pods {
                told.set_pod(key, Some(Arc::new(pod.clone())));
            }
            for (key, policy) in &world.policies {
                told.set_policy(key, Some(Arc::new(policy.clone())));
            }
            keeper.sync(SyncKind::Changes).unwrap();
        }
    }
}

struct Try {
    from: Place,
    to: SocketAddr,
    transport: Transport,
    target: Host,
    is_allowed: bool,
}

/// Everybody tries to reach every pod.
fn tries(world: &oracle::Cluster) -> Vec<Try> {
    let mut tries = Vec::new();
    let sources = PODS.into_iter().chain(NODES).chain([Host::Outside]);
    for (source, target) in sources.flat_map(|source| PODS.map(|target| (source, target))) {
        for family in Family::ALL {
            for (transport, protocol) in
                [(Transport::Tcp, Protocol::Tcp), (Transport::Udp, Protocol::Udp)]
            {
                for port in [SERVER_PORT, SECOND_PORT] {
                    let to = target.address(family);
                    let connection = Connection {
                        from: source.address(family),
                        to,
                        port: Some((protocol, port)),
                    };
                    // What a node itself sends, it does not judge.
                    let judged =
                        |node: &Host| *node != source && is_on_the_way(source, target, *node);
                    let is_allowed = NODES
                        .iter()
                        .filter(|node| judged(node))
                        .all(|node| world.allows(node.name(), &connection));
                    let from = Place { host: source, address: Some(source.address(family)) };
                    tries.push(Try { from, to: (to, port).into(), transport, target, is_allowed });
                }
            }
        }
    }
    tries
}

/// Whether packets between the two pass a node.
fn is_on_the_way(source: Host, target: Host, node: Host) -> bool {
    source.node() == Some(node)
        || target.node() == Some(node)
        || node == Host::NodeA && source == Host::Outside
}

fn attempt(cluster: &Cluster, it: &Try) -> Outcome {
    let patience = if it.is_allowed { PATIENCE } else { it.transport.silence() };
    cluster.ask_for(it.from, it.to, it.transport, patience)
}

/// Makes all of them, many at a time: most of the time is waiting for nothing.
fn check(name: &str, cluster: &Cluster, tries: &[Try]) {
    const AT_ONCE: usize = 120;
    for some in tries.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|it| (it, scope.spawn(|| attempt(cluster, it)))).collect();
            for (it, outcome) in running {
                let outcome = outcome.join().unwrap();
                let expected = it.is_allowed.then(|| it.target.name());
                assert_eq!(
                    outcome.by(),
                    expected,
                    "{name}: {} to {} by {:?}: {outcome}",
                    it.from.host.name(),
                    it.to,
                    it.transport
                );
            }
        });
    }
}

#[test]
fn packets_pass_where_the_text_of_the_api_allows_it_and_nowhere_else() {
    let mut stage = Stage::new();
    let mut before: Vec<NetworkPolicy> = Vec::new();
    let mut denied = 0;
    for (name, policies) in cases::all() {
        let mut world = cases::pods();
        world.policies = policies.iter().map(|it| (it.meta.key.clone(), it.clone())).collect();
        stage.tell(&before, &world);
        let tries = tries(&world);
        denied += tries.iter().filter(|it| !it.is_allowed).count();
        check(name, &stage.cluster, &tries);
        before = policies;
    }
    assert!(denied > 100, "the cases deny something: {denied}");
}

#[test]
fn a_connection_that_stands_goes_on_and_answers_pass() {
    let mut stage = Stage::new();
    let mut world = cases::pods();
    stage.tell(&[], &world);
    let to = |host: Host, family| SocketAddr::new(host.address(family), SERVER_PORT);
    for family in Family::ALL {
        let stands = stage.cluster.connect(Place::of(Host::B1), to(Host::A2, family)).unwrap();
        stands.greeting().unwrap();
        let deny = NetworkPolicy {
            ingress: Some(vec![]),
            egress: Some(vec![]),
            ..cases::policy("back", "deny", cases::select(&[]))
        };
        world.policies.insert(deny.meta.key.clone(), deny.clone());
        stage.tell(&[], &world);
        stands.echo(b"still here").unwrap();
        let new = stage.cluster.ask_for(
            Place::of(Host::B1),
            to(Host::A2, family),
            Transport::Tcp,
            Transport::Tcp.silence(),
        );
        assert_eq!(new, Outcome::Silence);
        world.policies.clear();
        stage.tell(&[deny], &world);
        let again = stage.cluster.ask(Place::of(Host::B1), to(Host::A2, family), Transport::Tcp);
        assert_eq!(again.by(), Some("a2"));
    }
}

/// Whether who is asked answers to ICMP.
fn pings(cluster: &Cluster, from: Host, to: Host, family: Family, patience: &str) -> bool {
    let ip = to.address(family).to_string();
    cluster.on(from, || {
        let done = Command::new("ping").args(["-c", "1", "-W", patience, &ip]).output().unwrap();
        done.status.success()
    })
}

#[test]
fn what_has_no_ports_passes_where_a_rule_asks_for_none() {
    let any = LabelSelector::default;
    let front = || PolicyPeer::Pods {
        namespaces: Some(cases::select(&[("tier", "front")])),
        pods: Some(any()),
    };
    let of_front = |ports| NetworkPolicy {
        ingress: Some(vec![PolicyRule { peers: vec![front()], ports }]),
        ..cases::policy("back", "front", any())
    };
    let every_tcp = PolicyPort { protocol: Protocol::Tcp, port: PolicyPortMatch::All };
    let leave = NetworkPolicy { egress: Some(vec![]), ..cases::policy("front", "stay", any()) };
    // Who asks `a2`, of `back`: `a1` and `b1` are of `front`, `b2` is not.
    let askers = [Host::A1, Host::B1, Host::B2, Host::NodeA];
    let mut stage = Stage::new();
    let mut before = Vec::new();
    for (name, policy, answers) in [
        ("none", None, [true; 4]),
        ("any port", Some(of_front(vec![])), [true, true, false, true]),
        ("ports of TCP", Some(of_front(vec![every_tcp])), [false, false, false, true]),
        ("nobody leaves", Some(leave), [false, false, true, true]),
    ] {
        let mut world = cases::pods();
        world.policies = policy.iter().map(|it| (it.meta.key.clone(), it.clone())).collect();
        stage.tell(&before, &world);
        before = policy.into_iter().collect();
        for family in Family::ALL {
            for (from, answers) in askers.into_iter().zip(answers) {
                let patience = if answers { "5" } else { "1" };
                let there = pings(&stage.cluster, from, Host::A2, family, patience);
                assert_eq!(there, answers, "{name}: {} {family:?}", from.name());
            }
            // The answer to what was allowed is no new connection.
            let back = pings(&stage.cluster, Host::A2, Host::A1, family, "5");
            assert!(back, "{name}: a2 asks {family:?}");
        }
    }
}
