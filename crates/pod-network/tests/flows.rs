//! Flows that the kernel keeps in mind end where a port changes hands.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use support::{Node, PATIENCE, Wire, ask_from, lan, serve};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Port, Protocol};
use telaio_testkit::machine::Machine;

const LONG: Duration = Duration::from_secs(30);

/// A node with somebody outside.
fn node(name: &str) -> (Node, Machine) {
    let node = Node::bare(name, 1);
    let outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    (node, outside)
}

fn udp(port: u16) -> Vec<Port> {
    vec![Port::new(port, 80).with_protocol(Protocol::Udp)]
}

/// One socket that asks whenever it is told to: always the same flow. The answer's first line, or nothing.
fn one_socket(machine: &Machine, to: &'static str) -> (Sender<()>, Receiver<Option<String>>) {
    let ((ask, asked), (answer, answers)) = (channel::<()>(), channel());
    machine.spawn(move || {
        let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut buffer = [0; 2048];
        for () in asked {
            socket.send_to(b"?", to).unwrap();
            let text = socket.recv_from(&mut buffer).ok().map(|(count, _)| {
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                text.lines().next().unwrap_or_default().to_owned()
            });
            answer.send(text).unwrap();
        }
    });
    (ask, answers)
}

/// Asks until there is an answer.
fn answered(socket: &(Sender<()>, Receiver<Option<String>>), what: &str) {
    let deadline = Instant::now() + LONG;
    loop {
        socket.0.send(()).unwrap();
        if socket.1.recv().unwrap().is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: no answer");
    }
}

fn flows(node: &Node, port: u16) -> String {
    let line = format!(
        "conntrack -L 2>/dev/null | grep 'dport={port} ' || true; conntrack -L -f ipv6 2>/dev/null | grep 'dport={port} ' || true"
    );
    node.machine.sh(&line)
}

#[test]
fn a_udp_flow_follows_its_port_to_the_instance_that_has_it_now() {
    let (node, outside) = node("udp");
    for to in ["192.168.5.1:5353", "[fd05::1]:5353"] {
        let socket = one_socket(&outside, to);
        // Nobody is there, but the flow is known from now on.
        socket.0.send(()).unwrap();
        assert_eq!(socket.1.recv().unwrap(), None, "{to}");
        assert!(flows(&node, 5353).contains("dport=5353"), "the flow is tracked");
        for (id, host) in [("a", 2), ("b", 3)] {
            node.instance(id, host, udp(5353));
            let ip = if to.starts_with('[') {
                format!("fd77:1::{host}")
            } else {
                format!("10.77.1.{host}")
            };
            let server = serve(&node, Some(id), &ip, 80, Wire::Udp);
            // The same socket, port and address: only a new flow leads there.
            answered(&socket, &format!("{to} by {id}"));
            drop(server);
            node.clean(id, host);
            assert!(!flows(&node, 5353).contains(&ip), "{}", flows(&node, 5353));
        }
    }
}

#[test]
fn a_tcp_connection_that_was_begun_before_the_port_was_published_reaches_the_instance() {
    let (node, outside) = node("syn");
    // As a firewall does that says nothing: whoever asks goes on asking.
    node.machine.sh(
        "nft 'table ip quiet { chain out { type filter hook output priority -400; tcp sport 8080 drop; }; }'",
    );
    let client = outside.spawn(|| {
        let to = "192.168.5.1:8080".parse().unwrap();
        let mut stream =
            TcpStream::connect_timeout(&to, LONG).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(|error| error.to_string())
    });
    let deadline = Instant::now() + LONG;
    while !flows(&node, 8080).contains("UNREPLIED") {
        assert!(Instant::now() < deadline, "{}", flows(&node, 8080));
        std::thread::sleep(Duration::from_millis(50));
    }
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert_eq!(client.join().unwrap(), Ok(()));
}

#[test]
fn no_flow_of_a_published_port_outlives_the_instance_and_others_stay() {
    let (node, outside) = node("tcp");
    node.machine.sh("nft 'table ip track { chain f { type filter hook forward priority 0; ct state new accept; }; }'");
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    node.instance("b", 3, vec![Port::new(8081, 80)]);
    let _servers = [("a", "10.77.1.2"), ("b", "10.77.1.3")]
        .map(|(id, ip)| serve(&node, Some(id), ip, 80, Wire::Tcp));
    let streams = outside.run(|| {
        ["192.168.5.1:8080", "192.168.5.1:8081"].map(|to| {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut first = [0; 1];
            stream.read_exact(&mut first).unwrap();
            stream
        })
    });
    // What an instance has to do with the same port of somebody else is none of the port's.
    let elsewhere = support::serve_on(&outside, None, "192.168.5.99", 8080, Wire::Tcp);
    let stays = node.machine.spawn(|| {
        telaio_netlink::netns::Netns::open("telaio-i-b").unwrap().enter().unwrap();
        TcpStream::connect("192.168.5.99:8080").unwrap()
    });
    let stays = stays.join().unwrap();
    assert!(flows(&node, 8080).contains("src=10.77.1.2"), "{}", flows(&node, 8080));
    node.clean("a", 2);
    let left = flows(&node, 8080);
    assert!(!left.contains("src=10.77.1.2"), "{left}");
    assert!(left.contains("dst=192.168.5.99"), "{left}");
    assert!(flows(&node, 8081).contains("src=10.77.1.3"), "{}", flows(&node, 8081));
    let [_gone, mut other] = streams;
    outside.run(move || {
        other.write_all(b"still there?\n").unwrap();
        let mut text = [0; 16];
        assert!(other.read(&mut text).unwrap() > 0);
    });
    drop((stays, elsewhere));
}

#[test]
fn a_living_connection_to_the_node_outlives_that_its_port_is_published() {
    let (node, outside) = node("alive");
    let listener = serve(&node, None, "192.168.5.1", 8080, Wire::Tcp);
    let mut stream = outside.run(|| TcpStream::connect("192.168.5.1:8080").unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 64];
    assert!(stream.read(&mut buffer).unwrap() > 0);
    // It stops to listen; who is connected stays.
    drop(listener);
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
    assert!(ask_from(&outside, None, "192.168.5.1", 8080, Wire::Tcp, PATIENCE).is_ok());
    stream.write_all(b"echo\n").unwrap();
    assert!(stream.read(&mut buffer).unwrap() > 0);
}
