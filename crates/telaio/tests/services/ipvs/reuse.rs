//! A client that uses its port again at once is served at once. Kernels before 5.9 dropped its first packet
//! where connection tracking is on, and it tried again after a second.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use telaio_testkit::netns::{Cluster, Family, Host, PATIENCE};

use super::at;
use crate::manifest::{Service, node_port};
use crate::node::{Backend, Node};

in_guest!(
    ports_that_are_used_again_at_once_do_not_wait,
    ports_that_are_used_again_for_another_service_do_not_wait,
);

/// How many connections each port makes.
const ROUNDS: usize = 40;
pub(super) const PORTS: std::ops::Range<u16> = 20_000..20_004;

/// How many first packets were sent again by the TCP of the calling thread's namespace.
fn syn_retransmissions() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "TCPSynRetrans");
    found.unwrap().1.parse().unwrap()
}

/// How long it is waited for.
const PAUSE_FOR_BIND: Duration = Duration::from_millis(20);
/// How often a port is asked for that the client's own kernel has not let go of yet.
const BINDS_MAX: usize = 100;

/// One connection with this address and port of the client, to its first byte.
pub(super) fn connect(from: IpAddr, port: u16, to: SocketAddr) {
    let mut tries = 0;
    let socket = loop {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::new(from, port).into()).unwrap();
        // Closed at once: else the client itself would not use the port again for a minute.
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        match socket.connect_timeout(&to.into(), PATIENCE) {
            Ok(()) => break socket,
            // Nothing was sent yet: the connection before is still being taken down here.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && tries < BINDS_MAX => {
                tries += 1;
                std::thread::sleep(PAUSE_FOR_BIND);
            }
            Err(error) => {
                let sockets = ["tcp", "tcp6"].map(|name| {
                    std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap()
                });
                panic!("{to} from {from}, port {port}: {error}\n{}", sockets.concat())
            }
        }
    };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    assert_eq!(std::io::Read::read(&mut &socket, &mut byte).unwrap(), 1, "{to} from {port}");
}

/// IPVS knows answers by the endpoint and the client's port alone. What is left of a connection to one
/// service must not be in the way of the next one, to another service with the same endpoint.
fn ports_that_are_used_again_for_another_service_do_not_wait() {
    let one = |number: u8, endpoint: &str| {
        Service::new(format!("s{number}"), number).node_port().endpoints(endpoint)
    };
    let services = [one(1, "a1"), one(2, "a1"), one(3, "b1"), one(4, "b1")];
    let cluster = Cluster::start().unwrap();
    let _node = Node::started(&cluster, Backend::Ipvs, &services);
    for family in Family::ALL {
        let node_ip = |number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
        for (host, to) in [
            (Host::A2, [at(family, 1), at(family, 2)]),
            (Host::A2, [at(family, 3), at(family, 4)]),
            (Host::Outside, [node_ip(1), node_ip(2)]),
            (Host::Outside, [node_ip(3), at(family, 3)]),
        ] {
            let repeated = cluster.on(host, || {
                let before = syn_retransmissions();
                for round in 0..ROUNDS {
                    for port in PORTS {
                        connect(host.address(family), port, to[round % 2]);
                    }
                }
                syn_retransmissions() - before
            });
            assert_eq!(repeated, 0, "{} to {to:?}", host.name());
        }
    }
}

fn ports_that_are_used_again_at_once_do_not_wait() {
    let services = [
        Service::new("plain", 1).node_port().endpoints("a1 a2 b1 b2"),
        Service::new("local", 2).node_port().external_local().endpoints("a1 a2"),
    ];
    let cluster = Cluster::start().unwrap();
    let _node = Node::started(&cluster, Backend::Ipvs, &services);
    for family in Family::ALL {
        let node_ip = |number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
        for (host, to) in [
            (Host::Outside, node_ip(1)),
            (Host::Outside, node_ip(2)),
            (Host::Outside, at(family, 1)),
            (Host::B1, at(family, 2)),
        ] {
            let repeated = cluster.on(host, || {
                let before = syn_retransmissions();
                for _ in 0..ROUNDS {
                    for port in PORTS {
                        connect(host.address(family), port, to);
                    }
                }
                syn_retransmissions() - before
            });
            assert_eq!(repeated, 0, "{} to {to}", host.name());
        }
    }
}
