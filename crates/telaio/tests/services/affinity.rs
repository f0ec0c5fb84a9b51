//! Session affinity: who stays where, for how long, and no longer than the endpoint itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use telaio_testkit::netns::{
    Cluster, Family, Host, Outcome, PATIENCE, Place, SERVER_PORT, Transport, outside_client,
};

use crate::manifest::{SERVICE_PORT, Service, load_balancer_ip, node_port};
use crate::node::{Backend, Node};
use crate::support::run;

/// Clients outside, enough that all of them choosing the same twice by chance is out of the question.
const CLIENTS: std::ops::Range<u8> = 20..36;

on_every_backend!(
    a_client_stays_until_its_service_s_own_time_out,
    a_client_never_stays_with_an_endpoint_that_is_gone,
    local_policy_and_affinity_hold_together,
);

fn who(outcome: &Outcome) -> String {
    outcome.by().unwrap_or_else(|| panic!("{outcome}")).to_owned()
}

/// Who answers each client outside at this address.
fn each_client(
    node: &Node<'_>,
    family: Family,
    to: SocketAddr,
    transport: Transport,
) -> BTreeMap<u8, String> {
    let ask = |n| {
        let from = Place::outside(outside_client(family, n));
        (n, who(&node.ask(from, to, transport)))
    };
    CLIENTS.map(ask).collect()
}

fn a_client_stays_until_its_service_s_own_time_out(backend: Backend) {
    const SHORT_S: u32 = 3;
    let short = Service::new("short", 1).node_port().affinity(SHORT_S).endpoints("a1 a2 b1 b2");
    let long = Service::new("long", 2).node_port().affinity(600).endpoints("a1 a2 b1 b2");
    let cluster = Cluster::start().unwrap();
    let mut node = Node::new(&cluster, backend, &[short, long]);
    // IPVS forgets a client only when it has forgotten its connections, and that takes TCP minutes.
    let transport = if backend == Backend::Ipvs {
        node.flags = vec!["--ipvs-udp-timeout=1s".to_owned()];
        Transport::Udp
    } else {
        Transport::Tcp
    };
    node.start();
    node.settle();
    let to = |family, number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
    // Both families and both services at once: the time-out passes once.
    let ask = |number| {
        Family::ALL.map(|family| each_client(&node, family, to(family, number), transport))
    };
    let (first_short, first_long) = (ask(1), ask(2));
    for seen in first_short.iter().chain(&first_long) {
        let mut endpoints: Vec<_> = seen.values().collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        assert!(endpoints.len() > 1, "affinity is per client, and they went to {seen:?}");
    }
    // Each connection begins the time anew, so whoever comes back in time stays for longer than it.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(u64::from(SHORT_S) + 1) {
        let asked = Instant::now();
        assert_eq!(ask(1), first_short);
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "too slow a machine to come back in time"
        );
    }
    assert_eq!(ask(2), first_long);
    std::thread::sleep(Duration::from_secs(u64::from(SHORT_S) + 2));
    // Where clients are served in turn, one more of them makes the next turn another one.
    for family in Family::ALL {
        let from = Place::outside(outside_client(family, CLIENTS.end));
        who(&node.ask(from, to(family, 1), transport));
    }
    let (last_short, last_long) = (ask(1), ask(2));
    for (first, last) in first_short.iter().zip(&last_short) {
        assert_ne!(first, last, "the time is over, and all of them stayed");
    }
    assert_eq!(first_long, last_long, "its own time is not over");
}

fn a_client_never_stays_with_an_endpoint_that_is_gone(backend: Backend) {
    let service = |endpoints: &str| Service::new("affine", 1).affinity(600).endpoints(endpoints);
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service("a1 a2 b1")]);
    let places = [Place::of(Host::A2), Place::of(Host::NodeA), Place::of(Host::Outside)];
    for family in Family::ALL {
        for transport in [Transport::Tcp, Transport::Udp] {
            node.apply(&service("a1 a2 b1"));
            node.settle();
            let to = SocketAddr::new(service("").cluster_ip(family), SERVICE_PORT);
            for from in places {
                let first = who(&node.ask(from, to, transport));
                assert_eq!(who(&node.ask(from, to, transport)), first);
                // As many as before, so that only who they are has changed; then fewer.
                for replacement in ["b2", ""] {
                    let stays = ["a1", "a2", "b1"]
                        .map(|name| if name == first { replacement } else { name });
                    node.apply(&service(&stays.join(" ")));
                    node.settle();
                    let next = who(&node.ask(from, to, transport));
                    assert_ne!(next, first, "{from:?} {transport:?} {family:?}");
                    assert!(stays.contains(&next.as_str()), "{next} is not in {stays:?}");
                    assert_eq!(who(&node.ask(from, to, transport)), next);
                }
                node.apply(&service("a1 a2 b1"));
                node.settle();
            }
        }
    }
}

fn local_policy_and_affinity_hold_together(backend: Backend) {
    let service = Service::new("local", 1)
        .load_balancer()
        .external_local()
        .affinity(600)
        .endpoints("a1 a2 b1 b2");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service]);
    for family in Family::ALL {
        let to = SocketAddr::new(load_balancer_ip(family, 1), SERVICE_PORT);
        let first = each_client(&node, family, to, Transport::Tcp);
        assert!(first.values().all(|by| by.starts_with('a')), "{first:?}");
        assert!(
            first.values().any(|by| by == "a1") && first.values().any(|by| by == "a2"),
            "{first:?}"
        );
        assert_eq!(each_client(&node, family, to, Transport::Tcp), first);
        // The node itself takes the cluster's, and stays as well.
        let from = Place::of(Host::NodeA);
        let first = who(&node.ask(from, to, Transport::Tcp));
        for _ in 0..8 {
            assert_eq!(who(&node.ask(from, to, Transport::Tcp)), first);
        }
    }
}

/// How many clients race, each once.
const RACERS: u16 = 3000;
/// How many of them race without a pause.
const HEAT: usize = 50;
/// When a datagram counts as lost.
const REPEAT_AFTER: Duration = Duration::from_millis(500);
/// One more network of clients outside, large enough for them.
const RACERS_NETWORK: &str = "198.18.0.0/16";

fn racer(family: Family, n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    family.pick(
        Ipv4Addr::new(198, 18, high, low),
        Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0x18, n),
    )
}

/// A line at which two runners wait for each other, awake: they go on at the same moment.
#[derive(Default)]
struct StartLine {
    arrivals: AtomicUsize,
}

impl StartLine {
    fn go(&self) {
        let all = (self.arrivals.fetch_add(1, Ordering::AcqRel) / 2 + 1) * 2;
        let start = Instant::now();
        while self.arrivals.load(Ordering::Acquire) < all {
            // So long nobody waits who runs on another core: the other must be in need of this one.
            if start.elapsed() > Duration::from_millis(2) {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < 2 * PATIENCE, "the other runner did not come");
        }
    }
}

/// Who answers a datagram that was sent. It is sent again if it is lost: where two flows get the same
/// port of the node at the same moment, the kernel lets one packet go.
fn answer(socket: &UdpSocket) -> String {
    let start = Instant::now();
    let mut line = [0; 64];
    loop {
        match socket.recv(&mut line) {
            Ok(count) => {
                let text = std::str::from_utf8(&line[..count]).unwrap();
                return text.split(' ').next().unwrap().to_owned();
            }
            Err(error) => assert!(start.elapsed() < PATIENCE, "no answer: {error}"),
        }
        socket.send(b"?").unwrap();
    }
}

/// Who answers each racer, by UDP, on one of the two threads.
fn run_race(family: Family, to: SocketAddr, line: &StartLine) -> Vec<String> {
    let clients: Vec<IpAddr> = (0..RACERS).map(|n| racer(family, n)).collect();
    let mut answers = Vec::new();
    for heat in clients.chunks(HEAT) {
        let socket = |client: &IpAddr| {
            let socket = UdpSocket::bind((*client, 0)).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(REPEAT_AFTER)).unwrap();
            socket
        };
        let sockets: Vec<UdpSocket> = heat.iter().map(socket).collect();
        for socket in &sockets {
            line.go();
            socket.send(b"?").unwrap();
        }
        answers.extend(sockets.iter().map(answer));
    }
    answers
}

#[test]
fn two_first_packets_of_a_client_at_the_same_moment_reach_one_endpoint() {
    let service = Service::new("affine", 1).affinity(600).endpoints("a1 a2 b1 b2");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, Backend::Nftables, std::slice::from_ref(&service));
    node.output("ip", &["route", "add", RACERS_NETWORK, "via", "192.168.60.2"]);
    let local = ["route", "add", "local", RACERS_NETWORK, "dev", "lo"];
    let ended = cluster.on(Host::Outside, || run(std::process::Command::new("ip").args(local)));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for family in Family::ALL {
        let to = SocketAddr::new(service.cluster_ip(family), SERVICE_PORT);
        let line = StartLine::default();
        let race = || cluster.on(Host::Outside, || run_race(family, to, &line));
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(race);
            (race(), other.join().unwrap())
        });
        let split = one.iter().zip(&other).filter(|(one, other)| one != other).count();
        assert_eq!(split, 0, "of {RACERS} clients, {family:?}");
        for endpoint in ["a1", "a2", "b1", "b2"] {
            assert!(one.iter().any(|by| by == endpoint), "{endpoint} never, {family:?}");
        }
    }
}

/// More services than there is room for in a small cluster's tables.
const MANY: u16 = 9000;

/// The cluster address of one of the many.
fn one_of_many(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 96, 1 + high, low).into()
}

fn many_yaml() -> String {
    let endpoint = Host::A1.address(Family::V4);
    let one = |n| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: many-{n}\n  namespace: test\n\
             spec:\n  clusterIP: {ip}\n  clusterIPs: [{ip}]\n  ipFamilies: [IPv4]\n  \
             ports:\n  - port: {SERVICE_PORT}\n---\napiVersion: discovery.k8s.io/v1\n\
             kind: EndpointSlice\nmetadata:\n  name: many-{n}\n  namespace: test\n  labels:\n    \
             kubernetes.io/service-name: many-{n}\naddressType: IPv4\nports:\n\
             - port: {SERVER_PORT}\nendpoints:\n- addresses: [{endpoint}]\n  nodeName: node-a\n",
            ip = one_of_many(n),
        )
    };
    (0..MANY).map(one).collect()
}

#[test]
fn a_client_stays_while_the_tables_outgrow_their_room() {
    // Kubernetes' default time-out.
    let service = Service::new("affine", 1).node_port().affinity(10_800).endpoints("a1 a2 b1 b2");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, Backend::Nftables, std::slice::from_ref(&service));
    let places = Family::ALL.map(|family| {
        let cluster_ip = SocketAddr::new(service.cluster_ip(family), SERVICE_PORT);
        (family, [cluster_ip, SocketAddr::new(Host::NodeA.address(family), node_port(1))])
    });
    let ask =
        || places.map(|(family, to)| to.map(|to| each_client(&node, family, to, Transport::Tcp)));
    let room = || {
        let listing = node.output("nft", &["list", "map", "ip", "telaio", "services"]);
        let size = listing.lines().find_map(|line| line.trim().strip_prefix("size "));
        size.unwrap_or_else(|| panic!("{listing}")).parse::<u32>().unwrap()
    };
    let (first, room_before) = (ask(), room());
    node.write("many", &many_yaml());
    node.settle();
    assert!(room() > room_before, "nothing was outgrown: there was room for {room_before}");
    assert_eq!(ask(), first);
    for n in [0, MANY / 2, MANY - 1] {
        let to = SocketAddr::new(one_of_many(n), SERVICE_PORT);
        let outcome = node.ask(Place::of(Host::A2), to, Transport::Tcp);
        assert_eq!(outcome.by(), Some("a1"), "{to}: {outcome}");
    }
}
