//! With real connections and real redirect rules, each in a namespace of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::companions::place::Place;

const NODE_PORT: u16 = 30_080;
const TIME_MAX: Duration = Duration::from_secs(20);

/// A node with an address of each family beside loopback, and the rules that a backend makes: node
/// ports on loopback go to the proxy, those on the node's address to an endpoint.
struct Node {
    place: Place,
    proxy: LocalhostProxy,
}

const ADDRESS: &str = "192.0.2.1";
const ADDRESS6: &str = "2001:db8::1";

impl Node {
    fn new(name: &str, limits: Limits) -> Self {
        let place = Place::new(name);
        place.shell(
            "ip link add node type veth peer name net
             ip address add 192.0.2.1/24 dev node; ip address add 2001:db8::1/64 dev node nodad
             ip link set node up; ip link set net up",
        );
        let proxy =
            place.run(|| LocalhostProxy::start_with(&IpFamily::ALL, 0x4000, limits).unwrap());
        let (port, port6) = (proxy.port(IpFamily::V4).unwrap(), proxy.port(IpFamily::V6).unwrap());
        place.shell(&format!(
            "nft 'table inet t {{
               chain output {{ type nat hook output priority -100;
                 ip daddr 127.0.0.0/8 tcp dport {{ 30080, 30081 }} redirect to :{port}
                 ip6 daddr ::1 tcp dport {{ 30080, 30081 }} redirect to :{port6}
                 ip daddr 192.0.2.1 tcp dport 30080 dnat ip to 192.0.2.1:8080
                 ip6 daddr 2001:db8::1 tcp dport 30080 dnat ip6 to [2001:db8::1]:8080
               }}
             }}'"
        ));
        proxy.set_addresses(
            // The first exists only in front of the machine.
            ["203.0.113.9", "127.0.0.1", ADDRESS, ADDRESS6].map(|ip| ip.parse().unwrap()).into(),
        );
        let both = IpFamily::ALL.map(|family| (family, NODE_PORT));
        proxy.change_node_ports(&[], &both);
        Self { place, proxy }
    }

    fn endpoint(&self, address: &str) -> TcpListener {
        self.place.run(|| TcpListener::bind((address, 8080)).unwrap())
    }

    fn connect(&self, address: &str, port: u16) -> TcpStream {
        let stream = self.place.run(|| TcpStream::connect((address, port)).unwrap());
        stream.set_read_timeout(Some(TIME_MAX)).unwrap();
        stream
    }
}

/// Answers each connection with what it said, after it has said all.
fn echo(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut said = Vec::new();
                stream.read_to_end(&mut said).unwrap();
                stream.write_all(&said).unwrap();
            });
        }
    });
}

#[test]
fn a_node_port_on_loopback_reaches_the_service_in_both_families() {
    let node = Node::new("lo-both", Limits::default());
    echo(node.endpoint(ADDRESS));
    echo(node.endpoint(ADDRESS6));
    for address in ["127.0.0.1", "127.3.2.1", "::1"] {
        let mut stream = node.connect(address, NODE_PORT);
        // More than all buffers on the way hold; the answer comes only after the half-close.
        let said = vec![b'x'; 3 << 20];
        let mut writer = stream.try_clone().unwrap();
        let writing = thread::spawn(move || {
            writer.write_all(&said).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        writing.join().unwrap();
        assert_eq!(heard.len(), 3 << 20, "{address}");
    }
    assert_eq!(node.proxy.figures(), LocalhostFigures { carried_total: 3, refused_total: 0 });
}

fn is_refused(mut stream: TcpStream) -> bool {
    stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

#[test]
fn what_is_no_node_port_is_refused_however_it_comes() {
    let node = Node::new("lo-refuse", Limits::default());
    // Something on the node's address that only the rules' owner may open to loopback.
    let _other = node.place.run(|| TcpListener::bind((ADDRESS, 30_081)).unwrap());
    assert!(is_refused(node.connect("127.0.0.1", 30_081)), "redirected, but no node port");
    let own_port = node.proxy.port(IpFamily::V4).unwrap();
    assert!(is_refused(node.connect("127.0.0.1", own_port)), "not redirected");
    assert!(is_refused(node.connect("127.0.0.1", NODE_PORT)), "nobody serves");
    assert_eq!(node.proxy.figures(), LocalhostFigures { carried_total: 0, refused_total: 3 });
}

#[test]
fn a_node_port_is_served_until_its_last_service_leaves_it() {
    let node = Node::new("lo-ports", Limits::default());
    echo(node.endpoint(ADDRESS));
    let port = [(IpFamily::V4, NODE_PORT)];
    // Another service takes the port over before the first has let go.
    node.proxy.change_node_ports(&[], &port);
    node.proxy.change_node_ports(&port, &[]);
    let mut stream = node.connect("127.0.0.1", NODE_PORT);
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
    node.proxy.change_node_ports(&port, &[]);
    assert!(is_refused(node.connect("127.0.0.1", NODE_PORT)));
}

#[test]
fn a_connection_waits_for_a_port_that_becomes_known_a_moment_later() {
    let node = Node::new("lo-late", Limits::default());
    echo(node.place.run(|| TcpListener::bind((ADDRESS, 30_081)).unwrap()));
    let mut stream = node.connect("127.0.0.1", 30_081);
    node.proxy.change_node_ports(&[], &[(IpFamily::V4, 30_081)]);
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
}

#[test]
fn a_reset_at_one_end_is_a_reset_at_the_other() {
    let node = Node::new("lo-reset", Limits::default());
    let listener = node.endpoint(ADDRESS);
    let client = node.connect("127.0.0.1", NODE_PORT);
    let (server, _) = listener.accept().unwrap();
    socket2::SockRef::from(&server).set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    assert!(is_refused(client));
}

#[test]
fn when_there_is_no_room_the_idlest_gives_way_and_others_wait() {
    let limits = Limits {
        connections_max: 2,
        idle_to_give_way: Duration::from_hours(1),
        ..Limits::default()
    };
    let node = Node::new("lo-full", limits);
    let listener = node.endpoint(ADDRESS);
    let begin = || (node.connect("127.0.0.1", NODE_PORT), listener.accept().unwrap().0);
    let (first, first_server) = begin();
    let (_second, _second_server) = begin();
    // Nobody is idle for long enough, so a third waits until one has ended.
    let third = node.connect("127.0.0.1", NODE_PORT);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
    drop((first, first_server));
    let (mut third_server, _) = listener.accept().unwrap();
    third_server.write_all(b"at last").unwrap();
    drop(third_server);
    let mut heard = String::new();
    (&third).read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "at last");
}

#[test]
fn an_idle_connection_ends_at_once_when_a_newcomer_needs_its_place() {
    let limits =
        Limits { connections_max: 1, idle_to_give_way: Duration::ZERO, ..Limits::default() };
    let node = Node::new("lo-idle", limits);
    let listener = node.endpoint(ADDRESS);
    let mut idle = node.connect("127.0.0.1", NODE_PORT);
    let (_idle_server, _) = listener.accept().unwrap();
    let _newcomer = node.connect("127.0.0.1", NODE_PORT);
    let _ = listener.accept().unwrap();
    let mut rest = Vec::new();
    let ended = idle.read_to_end(&mut rest);
    assert!(ended.is_err() || rest.is_empty());
}

#[test]
fn a_connection_that_is_idle_for_too_long_ends() {
    let limits = Limits { idle_time_max: Duration::from_millis(50), ..Limits::default() };
    let node = Node::new("lo-old", limits);
    let listener = node.endpoint(ADDRESS);
    let client = node.connect("127.0.0.1", NODE_PORT);
    let _server = listener.accept().unwrap();
    assert!(is_refused(client));
}
