//! SCTP to a published port, with packets made by hand: no kernel needs to have its sockets.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "support/policies.rs"]
mod policies;
mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use policies::{keep, policy, select};
use socket2::{Domain, Socket, Type};
use support::{Node, enter, lan};
use telaio_model::{NetworkPolicy, PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Port, Protocol};
use telaio_testkit::machine::Machine;

const SCTP: i32 = 132;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const CLIENT_PORT: u16 = 40_000;
const TAG: u32 = 0x1234_5678;
const LONG: Duration = Duration::from_secs(40);

/// CRC-32C, as SCTP has it.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// A packet with one chunk that opens an association, or answers that.
fn packet(from: u16, to: u16, tag: u32, kind: u8) -> Vec<u8> {
    let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([kind, 0, 0, 20]);
    bytes.extend(TAG.to_be_bytes());
    // Room, streams either way, the first number.
    bytes.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    let sum = crc32c(&bytes).to_le_bytes();
    bytes[8..12].copy_from_slice(&sum);
    bytes
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
struct Came {
    from: IpAddr,
    ports: (u16, u16),
    kind: u8,
    is_sum_right: bool,
}

/// A raw socket of somebody: packets of SCTP as they are.
struct Raw {
    socket: UdpSocket,
}

impl Raw {
    fn open(machine: &Machine, instance: Option<&str>, at: &str) -> Self {
        let (at, instance) = (SocketAddr::new(at.parse().unwrap(), 0), instance.map(str::to_owned));
        let opened = machine.spawn(move || {
            enter(instance.as_deref());
            let domain = Domain::for_address(at);
            let socket = Socket::new(domain, Type::RAW, Some(SCTP.into())).unwrap();
            socket.bind(&at.into()).unwrap();
            // It is no UDP, but what is said of addresses is the same.
            UdpSocket::from(std::os::fd::OwnedFd::from(socket))
        });
        Self { socket: opened.join().unwrap() }
    }

    fn send(&self, to: &str, packet: &[u8]) {
        self.socket.send_to(packet, SocketAddr::new(to.parse().unwrap(), 0)).unwrap();
    }

    /// The next packet to a port within a time.
    fn next(&self, port: u16, patience: Duration) -> Option<Came> {
        let deadline = Instant::now() + patience;
        let mut buffer = [0; 2048];
        loop {
            let left =
                deadline.checked_duration_since(Instant::now()).filter(|it| !it.is_zero())?;
            self.socket.set_read_timeout(Some(left)).unwrap();
            let Ok((count, from)) = self.socket.recv_from(&mut buffer) else { continue };
            // Of IPv4 the kernel gives the header, too.
            let skipped = if from.is_ipv4() { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
            let bytes = &buffer[skipped..count];
            let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            if number(2) != port {
                continue;
            }
            let mut plain = bytes.to_vec();
            plain[8..12].fill(0);
            return Some(Came {
                from: from.ip(),
                ports: (number(0), number(2)),
                kind: bytes[12],
                is_sum_right: crc32c(&plain).to_le_bytes() == bytes[8..12],
            });
        }
    }
}

/// Sends until something comes: the first packets wait for neighbours to be found.
fn until(receiver: &Raw, port: u16, send: impl Fn()) -> Came {
    let deadline = Instant::now() + LONG;
    loop {
        send();
        if let Some(came) = receiver.next(port, Duration::from_millis(500)) {
            return came;
        }
        assert!(Instant::now() < deadline, "nothing comes to port {port}");
    }
}

#[test]
fn the_sum_is_the_one_of_the_standard() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn a_published_port_of_sctp_leads_to_the_instance_and_its_answer_comes_from_the_port() {
    let node = Node::bare("sctp", 1);
    let outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("a", 2, vec![Port::new(9090, 80).with_protocol(Protocol::Sctp)]);
    node.instance("b", 3, vec![]);
    for (host, instance, client, neighbour) in [
        ("192.168.5.1", "10.77.1.2", "192.168.5.99", "10.77.1.3"),
        ("fd05::1", "fd77:1::2", "fd05::99", "fd77:1::3"),
    ] {
        let server = Raw::open(&node.machine, Some("a"), instance);
        let clients = [
            (client, Raw::open(&outside, None, client)),
            (neighbour, Raw::open(&node.machine, Some("b"), neighbour)),
        ];
        for (address, client) in &clients {
            let init = packet(CLIENT_PORT, 9090, 0, INIT);
            let came = until(&server, 80, || client.send(host, &init));
            let wanted = Came {
                from: address.parse().unwrap(),
                ports: (CLIENT_PORT, 80),
                kind: INIT,
                is_sum_right: true,
            };
            assert_eq!(came, wanted, "where it is led");
            let answer = packet(80, CLIENT_PORT, TAG, INIT_ACK);
            let came = until(client, CLIENT_PORT, || server.send(address, &answer));
            let wanted = Came {
                from: host.parse().unwrap(),
                ports: (9090, CLIENT_PORT),
                kind: INIT_ACK,
                is_sum_right: true,
            };
            assert_eq!(came, wanted, "who seems to answer");
        }
        // What is published for nobody comes to nobody: once more to the one that is shows that all would have come.
        let (_, client) = &clients[0];
        let other = packet(CLIENT_PORT + 1, 9091, 0, INIT);
        client.send(host, &other);
        let again = packet(CLIENT_PORT + 2, 9090, 0, INIT);
        let came = until(&server, 80, || client.send(host, &again));
        // What was sent for the first one may have come late.
        assert_ne!(came.ports.0, CLIENT_PORT + 1, "{came:?}");
        assert_eq!(server.next(9091, Duration::from_millis(300)), None);
    }
    // UDP and TCP of the same number are not published.
    let rules = node.machine.sh("nft list map ip telaio-pods any-ports");
    assert!(rules.contains("sctp . 9090") && !rules.contains("tcp . 9090 "), "{rules}");
    node.clean("a", 2);
    let left = node.machine.sh("conntrack -L -p sctp 2>/dev/null || true");
    assert!(!left.contains("src=10.77.1.2"), "{left}");
    node.instance("a", 2, vec![]);
    let server = Raw::open(&node.machine, Some("a"), "10.77.1.2");
    let client = Raw::open(&outside, None, "192.168.5.99");
    client.send("192.168.5.1", &packet(CLIENT_PORT, 9090, 0, INIT));
    assert_eq!(server.next(80, support::SILENCE), None, "no longer published");
}

#[test]
fn sctp_goes_from_node_to_node_with_the_instances_own_addresses() {
    for backend in [Backend::default(), Backend::HostGw] {
        let nodes = [1, 2].map(|number| Node::bare(&format!("sctp{number}"), number));
        let [a, b] = &nodes;
        let _switch = lan(&[a, b]);
        for (node, peer) in [(a, b), (b, a)] {
            node.set_up(backend, None);
            let ips = [format!("192.168.5.{}", peer.number), format!("fd05::{}", peer.number)];
            let request = peer.request(&ips.map(|ip| ip.parse().unwrap()));
            node.machine.run(move || {
                telaio_pod_network::node::add_other_nodes(vec![request]).unwrap();
            });
            node.instance("i", 2, vec![]);
        }
        for (one, two) in [("10.77.1.2", "10.77.2.2"), ("fd77:1::2", "fd77:2::2")] {
            let client = Raw::open(&a.machine, Some("i"), one);
            let server = Raw::open(&b.machine, Some("i"), two);
            let came = |from: &str, ports, kind| Came {
                from: from.parse().unwrap(),
                ports,
                kind,
                is_sum_right: true,
            };
            let init = packet(CLIENT_PORT, 80, 0, INIT);
            let there = until(&server, 80, || client.send(two, &init));
            assert_eq!(there, came(one, (CLIENT_PORT, 80), INIT), "{backend:?}");
            let answer = packet(80, CLIENT_PORT, TAG, INIT_ACK);
            let back = until(&client, CLIENT_PORT, || server.send(one, &answer));
            assert_eq!(back, came(two, (80, CLIENT_PORT), INIT_ACK), "{backend:?}");
        }
    }
}

#[test]
fn a_policy_lets_a_port_of_sctp_pass_for_whom_it_names_and_nothing_else() {
    let node = Node::bare("judge", 1);
    node.set_up(Backend::default(), None);
    let pods = [("a", 2), ("b", 3), ("c", 4)];
    for (name, host) in pods {
        node.instance(name, host, vec![]);
    }
    let rule = |ports: &[u16]| PolicyRule {
        peers: vec![PolicyPeer::Pods { namespaces: None, pods: Some(select("b")) }],
        ports: ports
            .iter()
            .map(|port| PolicyPort {
                protocol: telaio_model::Protocol::Sctp,
                port: PolicyPortMatch::Range(*port, *port),
            })
            .collect(),
    };
    keep(&node, &pods, vec![NetworkPolicy { ingress: Some(vec![rule(&[80])]), ..policy("a") }]);
    for (ip, b, c) in
        [("10.77.1.2", "10.77.1.3", "10.77.1.4"), ("fd77:1::2", "fd77:1::3", "fd77:1::4")]
    {
        let server = Raw::open(&node.machine, Some("a"), ip);
        let [named, other] =
            [("b", b), ("c", c)].map(|(name, ip)| Raw::open(&node.machine, Some(name), ip));
        let init = |from, to| packet(from, to, 0, INIT);
        other.send(ip, &init(CLIENT_PORT, 80));
        named.send(ip, &init(CLIENT_PORT, 81));
        assert_eq!(server.next(80, support::SILENCE), None, "who is not named");
        named.send(ip, &init(CLIENT_PORT, 81));
        assert_eq!(server.next(81, support::SILENCE), None, "a port that is not named");
        let came = until(&server, 80, || named.send(ip, &init(CLIENT_PORT, 80)));
        assert_eq!((came.from, came.kind), (b.parse().unwrap(), INIT));
        // What answers it needs no rule.
        let answer = packet(80, CLIENT_PORT, TAG, INIT_ACK);
        let came = until(&named, CLIENT_PORT, || server.send(b, &answer));
        assert_eq!((came.from, came.kind), (ip.parse().unwrap(), INIT_ACK));
    }
    // A rule for SCTP is none for anything else.
    let ping = |from: &str| {
        node.machine.try_sh(&format!("ip netns exec telaio-i-{from} ping -c 1 -W 1 10.77.1.2"))
    };
    assert!(!ping("b"));
    keep(&node, &pods, vec![]);
    assert!((0..30).any(|_| ping("b")));
    let server = Raw::open(&node.machine, Some("a"), "10.77.1.2");
    let other = Raw::open(&node.machine, Some("c"), "10.77.1.4");
    until(&server, 80, || other.send("10.77.1.2", &packet(CLIENT_PORT, 80, 0, INIT)));
}
