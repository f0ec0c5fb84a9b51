//! SCTP, with real packets: the guest kernel has its sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use telaio_testkit::netns::{Cluster, Family, Host, PATIENCE, SERVER_PORT};

use super::at;
use crate::manifest::{Service, node_port};
use crate::node::{Backend, Node};

in_guest!(sctp_is_served_like_the_others);

const SCTP: i32 = 132;

fn socket(at: SocketAddr) -> Socket {
    Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::from(SCTP))).unwrap()
}

/// A server that says its name, for as long as the test runs.
fn serve(cluster: &Cluster, host: Host) {
    for family in Family::ALL {
        let at = SocketAddr::new(host.address(family), SERVER_PORT);
        let socket = cluster.on(host, || {
            let socket = socket(at);
            socket.bind(&at.into()).unwrap();
            socket.listen(16).unwrap();
            socket
        });
        std::thread::spawn(move || {
            for stream in TcpListener::from(socket).incoming().flatten() {
                let _ = (&stream).write_all(host.name().as_bytes());
                // Until the client goes.
                let _ = (&stream).read(&mut [0]);
            }
        });
    }
}

/// Who answers; or why nobody does.
fn ask(
    cluster: &Cluster,
    from: Host,
    to: SocketAddr,
    patience: Duration,
) -> Result<String, std::io::Error> {
    cluster.on(from, || {
        let socket = socket(to);
        socket.connect_timeout(&to.into(), patience)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(patience))?;
        let mut name = [0; 16];
        let count = stream.read(&mut name)?;
        Ok(String::from_utf8_lossy(&name[..count]).into_owned())
    })
}

fn sctp_is_served_like_the_others() {
    let service = |name, number| Service::new(name, number).protocols(&["SCTP"]).node_port();
    let services = [
        service("plain", 1).endpoints("a1 b1"),
        service("local", 2).external_local().endpoints("a1 b1"),
        service("none", 3),
    ];
    let cluster = Cluster::start().unwrap();
    for host in [Host::A1, Host::B1] {
        serve(&cluster, host);
    }
    let _node = Node::started(&cluster, Backend::Ipvs, &services);
    for family in Family::ALL {
        let node_ip = |number| SocketAddr::new(Host::NodeA.address(family), node_port(number));
        for (from, to, wanted) in [
            (Host::A2, at(family, 1), &["a1", "b1"][..]),
            (Host::NodeA, at(family, 1), &["a1", "b1"]),
            (Host::Outside, node_ip(1), &["a1", "b1"]),
            (Host::Outside, node_ip(2), &["a1"]),
            (Host::A2, node_ip(2), &["a1", "b1"]),
        ] {
            let turn = |_| ask(&cluster, from, to, PATIENCE).map_err(|error| error.to_string());
            let mut seen: Vec<_> = (0..wanted.len()).map(turn).collect();
            seen.sort();
            let wanted: Vec<_> = wanted.iter().map(|by| Ok((*by).to_owned())).collect();
            assert_eq!(seen, wanted, "{} to {to}", from.name());
        }
        // The kernel's SCTP does not hear that a port is refused.
        let nobody = ask(&cluster, Host::A2, at(family, 3), Duration::from_secs(1));
        assert!(nobody.is_err(), "{nobody:?}");
    }
}
