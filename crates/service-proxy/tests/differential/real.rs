//! Real connections end where the tracer says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use telaio_model::{Endpoint, IpFamily, Protocol, ServiceType, TrafficPolicy};
use telaio_reconcile::PartReconciler;
use telaio_service_proxy::config::DetectLocal;
use telaio_service_proxy::iptables::Flavor;
use telaio_service_proxy::nftables::target::Kernel;
use telaio_service_proxy::trace::{Packet, Trace, Verdict};
use telaio_testkit::netns::{
    Cluster, Family, Host, Outcome, PATIENCE, Place, Transport, is_node_a, outside_client,
};

use crate::generate;
use crate::make::{endpoint, port, service, slice};
use crate::oracle::Backend;
use crate::readback::{Fixed, restored};
use crate::world::World;

/// The second port of the endpoints.
const SECOND_PORT: u16 = 9090;
/// How many connections of a world are tried.
const ATTEMPTS_MAX: usize = 90;
/// How many of them may be refused: with IPv6 that is heard only when the client tries again.
const REFUSED_MAX: usize = 12;
/// Silence takes its time to be heard.
const SILENT_MAX: usize = 2;

const SERVERS: [Host; 6] = [Host::NodeA, Host::NodeB, Host::A1, Host::A2, Host::B1, Host::B2];

fn family_of(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::V4 } else { Family::V6 }
}

fn host_at(ip: IpAddr) -> Option<Host> {
    SERVERS.into_iter().find(|host| host.address(family_of(ip)) == ip)
}

fn cluster() -> Cluster {
    let cluster = Cluster::start().unwrap();
    for host in SERVERS {
        cluster.serve(host, host.name(), SECOND_PORT).unwrap();
    }
    cluster
}

/// The next world in which enough connections come to an endpoint, and some are dropped.
fn lively_world(fixed: &mut Fixed, backend: Backend) -> World {
    for _ in 0..1000 {
        let world = world_on_hosts(fixed);
        let rules = world.rules();
        let first = packets(&world).into_iter().take(3 * ATTEMPTS_MAX);
        let verdicts: Vec<Verdict> =
            first.map(|(_, it)| rules.trace(backend, &it).verdict).collect();
        let served = verdicts.iter().filter(|it| **it == Verdict::Dnat).count();
        if served > ATTEMPTS_MAX / 3 && verdicts.contains(&Verdict::Drop) {
            return world;
        }
    }
    panic!("no such world");
}

/// A random world on the hosts that there are.
fn world_on_hosts(fixed: &mut Fixed) -> World {
    let mut world = fixed.one(generate::worlds());
    world.config.families = IpFamily::ALL.to_vec();
    world.config.detect_local = DetectLocal::ClusterCidr(
        ["10.244.0.0/16", "fd00:10:244::/48"].map(|net| net.parse().unwrap()).to_vec(),
    );
    for slice in &mut world.slices {
        slice.endpoints.retain(|endpoint| host_at(endpoint.address).is_some());
        for endpoint in &mut slice.endpoints {
            let node = host_at(endpoint.address).and_then(Host::node);
            endpoint.node = node.map(|node| node.name().into());
        }
    }
    world
}

/// Clients, each with the interface by which its packets come to node-a. Pods of the other node are
/// not among them: what is sent back to them does not pass node-a.
fn clients(family: Family) -> [(Place, IpAddr, Option<&'static str>); 6] {
    let of = |host: Host, interface| (Place::of(host), host.address(family), interface);
    let outside = |n| {
        let ip = outside_client(family, n);
        (Place::outside(ip), ip, Some("wan0"))
    };
    [
        of(Host::A1, Some("pod-a1")),
        of(Host::A2, Some("pod-a2")),
        of(Host::NodeA, None),
        of(Host::NodeB, Some("lan0")),
        outside(5),
        outside(50),
    ]
}

/// Where connections are tried: every place of a service, and each address at a port of nobody.
fn places(world: &World) -> BTreeSet<(SocketAddr, Protocol)> {
    let places = world.places();
    let nobodys = places.iter().map(|(to, protocol)| (SocketAddr::new(to.ip(), 7777), *protocol));
    let mut places: BTreeSet<_> = places.iter().copied().chain(nobodys).collect();
    // Nobody listens on loopback for us here; and the kernel may have no SCTP.
    places.retain(|(to, protocol)| !to.ip().is_loopback() && *protocol != Protocol::Sctp);
    places
}

/// All clients at all places, in an order that mixes them.
fn packets(world: &World) -> Vec<(Place, Packet)> {
    let mut packets = Vec::new();
    for (to, protocol) in places(world) {
        for (place, from, interface) in clients(family_of(to.ip())) {
            let interface = interface.map(str::to_owned);
            // The client's address: the route may choose another.
            let place = Place { address: Some(from), ..place };
            packets.push((place, Packet { from, to, protocol, interface }));
        }
    }
    let order = |i: usize| (i * 7919) % packets.len().max(1);
    let mut order: Vec<(usize, usize)> = (0..packets.len()).map(|i| (order(i), i)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, i)| packets[i].clone()).collect()
}

/// Whether what became of a connection is what the tracer said. Without an opinion: `None`.
fn is_as_traced(answer: &Trace, from: IpAddr, outcome: &Outcome) -> Option<bool> {
    match (answer.verdict, outcome) {
        (Verdict::None, _) => None,
        (Verdict::Reject, outcome) => Some(*outcome == Outcome::Refused),
        (Verdict::Drop, outcome) => Some(*outcome == Outcome::Silence),
        (Verdict::Dnat, Outcome::Answered { by, seen }) => {
            let host = Host::named(by)?;
            let at = |it: &SocketAddr| host.address(family_of(it.ip())) == it.ip();
            let right_one = answer.endpoints.iter().any(at);
            // From the node itself nobody can tell. What the node itself answers is marked for it,
            // but does not leave by the hook that does it. With several it may depend on which.
            let masqueraded = is_node_a(seen.ip());
            let right_source = is_node_a(from)
                || host == Host::NodeA
                || masqueraded == answer.masquerade
                || (answer.masquerade && answer.endpoints.len() > 1);
            Some(right_one && right_source)
        }
        (Verdict::Dnat, _) => Some(false),
    }
}

fn transport(protocol: Protocol) -> Transport {
    if protocol == Protocol::Udp { Transport::Udp } else { Transport::Tcp }
}

/// Tries all clients at all places. Gives how many of each verdict were tried.
fn try_all(cluster: &Cluster, world: &World, backend: Backend) -> BTreeMap<String, usize> {
    let rules = world.rules();
    let (mut tried, mut wrong) = (BTreeMap::new(), Vec::new());
    for (place, packet) in packets(world) {
        let answer = rules.trace(backend, &packet);
        let transport = transport(packet.protocol);
        let (attempts_max, patience) = match answer.verdict {
            Verdict::None => continue,
            Verdict::Dnat => (ATTEMPTS_MAX, PATIENCE),
            Verdict::Reject => (REFUSED_MAX, PATIENCE),
            Verdict::Drop => (SILENT_MAX, transport.silence()),
        };
        let attempts: &mut usize = tried.entry(format!("{:?}", answer.verdict)).or_default();
        if *attempts == attempts_max {
            continue;
        }
        *attempts += 1;
        let outcome = cluster.ask_for(place, packet.to, transport, patience);
        if is_as_traced(&answer, packet.from, &outcome) == Some(false) {
            wrong.push(format!("{packet:?}\n  is {outcome}\n  not {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{world:?}", wrong.join("\n"));
    tried
}

fn add(all: &mut BTreeMap<String, usize>, more: BTreeMap<String, usize>) {
    for (verdict, count) in more {
        *all.entry(verdict).or_default() += count;
    }
}

/// The tests prove nothing unless each verdict was met.
fn assert_met(tried: &BTreeMap<String, usize>) {
    for verdict in ["Dnat", "Reject", "Drop"] {
        assert!(tried.contains_key(verdict), "no {verdict} in {tried:?}");
    }
}

#[test]
fn connections_by_nftables_end_where_the_tracer_says() {
    let cluster = cluster();
    let mut fixed = Fixed::new();
    let mut tried = BTreeMap::new();
    for _ in 0..4 {
        let world = lively_world(&mut fixed, Backend::Nftables);
        cluster.on(Host::NodeA, || {
            let mut reconciler = PartReconciler::new(Kernel::open(&IpFamily::ALL).unwrap());
            reconciler.reconcile(&world.desired(&world.view())).unwrap();
        });
        add(&mut tried, try_all(&cluster, &world, Backend::Nftables));
    }
    assert_met(&tried);
}

#[test]
fn connections_by_iptables_end_where_the_tracer_says() {
    let mut fixed = Fixed::new();
    let mut tried = BTreeMap::new();
    for flavor in [Flavor::Nft, Flavor::Legacy] {
        let cluster = cluster();
        let world = lively_world(&mut fixed, Backend::Iptables);
        cluster.on(Host::NodeA, || {
            for family in IpFamily::ALL {
                restored(&world, flavor, family);
            }
        });
        add(&mut tried, try_all(&cluster, &world, Backend::Iptables));
    }
    assert_met(&tried);
}

/// A service whose clients' addresses decide: its endpoints are pods of both nodes, with weights.
fn hashing_world() -> World {
    let mut hash = service("hash", &["10.96.0.1", "fd00:10:96::1"]);
    hash.meta.annotations.insert("telaio.dev/balance".into(), "source-hash".into());
    hash.service_type = ServiceType::LoadBalancer;
    hash.external_ips = IpFamily::ALL.map(|family| generate::load_balancer(family, 9)).to_vec();
    hash.external_traffic_policy = TrafficPolicy::Local;
    let ports = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
    hash.ports = ports.map(|(name, protocol)| port(name, protocol, Some(30_080))).to_vec();
    let endpoints = |family: Family| {
        let hosts = [(Host::A1, 1), (Host::A2, 3), (Host::B1, 2), (Host::B2, 1)];
        let made = hosts.iter().map(|(host, weight)| Endpoint {
            weight: Some(*weight),
            ..endpoint(host.address(family), host.node().map(Host::name))
        });
        slice("hash", &["tcp", "udp"], made.collect())
    };
    World { services: vec![hash], slices: Family::ALL.map(endpoints).to_vec(), ..World::empty() }
}

#[test]
fn the_tracer_foretells_which_endpoint_a_source_hash_chooses() {
    let cluster = cluster();
    let world = hashing_world();
    let rules = world.rules();
    cluster.on(Host::NodeA, || {
        let mut reconciler = PartReconciler::new(Kernel::open(&IpFamily::ALL).unwrap());
        reconciler.reconcile(&world.desired(&world.view())).unwrap();
    });
    let mut met = BTreeSet::new();
    for family in Family::ALL {
        let ip_family = if family == Family::V4 { IpFamily::V4 } else { IpFamily::V6 };
        let places = [
            (SocketAddr::new(generate::cluster_ip(ip_family, 1), 80), Protocol::Tcp),
            (SocketAddr::new(generate::cluster_ip(ip_family, 1), 80), Protocol::Udp),
            (SocketAddr::new(generate::load_balancer(ip_family, 9), 80), Protocol::Tcp),
            (SocketAddr::new(Host::NodeA.address(family), 30_080), Protocol::Udp),
        ];
        for (to, protocol) in places {
            for n in 1..=40 {
                let from = outside_client(family, n);
                let interface = Some("wan0".to_owned());
                let answer =
                    rules.trace(Backend::Nftables, &Packet { from, to, protocol, interface });
                assert_eq!(answer.endpoints.len(), 1, "{from} to {to}: {answer:?}");
                let foretold = host_at(answer.endpoints.first().unwrap().ip()).unwrap();
                let outcome = cluster.ask(Place::outside(from), to, transport(protocol));
                assert_eq!(outcome.by(), Some(foretold.name()), "{from} to {to}: {answer:?}");
                met.insert((foretold, to.port()));
            }
        }
    }
    let hosts: BTreeSet<Host> = met.iter().map(|(host, _)| *host).collect();
    assert_eq!(hosts.len(), 4, "every endpoint has its share: {met:?}");
    let of_node_port: BTreeSet<Host> =
        met.iter().filter(|(_, port)| *port == 30_080).map(|(host, _)| *host).collect();
    assert_eq!(of_node_port, [Host::A1, Host::A2].into(), "policy Local");
}

#[test]
fn when_an_endpoint_leaves_only_its_clients_move() {
    let before = hashing_world();
    let mut after = before.clone();
    after.slices[0].endpoints.remove(0);
    let (before, after) = (before.rules(), after.rules());
    let mut moved = 0;
    for n in 1..=250 {
        let packet = Packet {
            from: outside_client(Family::V4, n),
            to: SocketAddr::new(generate::cluster_ip(IpFamily::V4, 1), 80),
            protocol: Protocol::Tcp,
            interface: Some("wan0".to_owned()),
        };
        let was = before.trace(Backend::Nftables, &packet).endpoints;
        let is = after.trace(Backend::Nftables, &packet).endpoints;
        assert_eq!((was.len(), is.len()), (1, 1), "{packet:?}");
        if was.iter().any(|it| it.ip() == Host::A1.address(Family::V4)) {
            moved += 1;
        } else {
            assert_eq!(was, is, "{packet:?}");
        }
    }
    // A seventh of the weight.
    assert!((15..75).contains(&moved), "{moved} of 250");
}
