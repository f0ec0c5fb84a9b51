//! Nodes that are machines of their own, and what instances on them say to each other.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    clippy::needless_pass_by_value,
    clippy::panic,
    reason = "tests; not every one uses all of it"
)]

pub mod cni;
pub mod frames;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cidr::{IpInet, Ipv4Inet, Ipv6Inet};
use telaio_netlink::netns::Netns;
use telaio_pod_network::Port;
use telaio_pod_network::instance::{
    CleanInstanceRequest, SetupInstanceRequest, clean_instance, setup_instance,
};
use telaio_pod_network::node::{NodeIp, NodeRequest, SetupNodeRequest, setup_node};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::utils::get_namespace_name;
use telaio_testkit::machine::{Machine, connect};

/// How long an answer may take: longer than any load, shorter than a test's patience.
pub const PATIENCE: Duration = Duration::from_secs(12);
/// After how long it is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long silence is waited for.
pub const SILENCE: Duration = Duration::from_millis(400);

/// A node: its number is in its networks, 10.77.N.0/24 and fd77:N::/64.
pub struct Node {
    pub name: String,
    pub number: u8,
    pub machine: Machine,
}

impl Node {
    /// A machine without anything of ours.
    pub fn bare(name: &str, number: u8) -> Self {
        Self { name: name.to_owned(), number, machine: Machine::start(name) }
    }

    /// A node alone.
    pub fn start(name: &str, number: u8) -> Self {
        let node = Self::bare(name, number);
        node.set_up(Backend::default(), None);
        node
    }

    /// Sets it up.
    pub fn set_up(&self, backend: Backend, tunnel: Option<IpAddr>) {
        let (name, number) = (self.name.clone(), self.number);
        self.machine.run(move || {
            let mut request = SetupNodeRequest::new(name, gateway4(number), Vec::new())
                .with_node_ip(gateway6(number))
                .with_backend(backend);
            request.tunnel_address = tunnel;
            setup_node(request).unwrap();
        });
    }

    /// What other nodes are told of it.
    pub fn request(&self, external: &[IpAddr]) -> NodeRequest {
        let mut ip =
            NodeIp::new(gateway4(self.number), external[0]).with_cluster_ip(gateway6(self.number));
        for other in &external[1..] {
            ip = ip.with_external_ip(*other);
        }
        NodeRequest::new(self.name.clone(), ip)
    }

    /// What an instance should be.
    pub fn wanted(&self, id: &str, host: u8, ports: Vec<Port>) -> SetupInstanceRequest {
        let number = self.number;
        let ip = Ipv4Inet::from_str(&format!("10.77.{number}.{host}/24")).unwrap();
        let ip6 = Ipv6Inet::from_str(&format!("fd77:{number}::{host}/64")).unwrap();
        SetupInstanceRequest::new(self.name.clone(), gateway4(number).address(), id, ip, ports)
            .with_instance_ip(ip6)
    }

    /// Sets an instance up.
    pub fn instance(&self, id: &str, host: u8, ports: Vec<Port>) {
        self.try_instance(id, host, ports).unwrap();
    }

    /// Sets an instance of IPv4 only up.
    pub fn instance_v4(&self, id: &str, host: u8) {
        let mut request = self.wanted(id, host, vec![]);
        request.instance_ip_cidrs.truncate(1);
        self.machine.run(move || setup_instance(request).unwrap());
    }

    /// Tries to.
    pub fn try_instance(&self, id: &str, host: u8, ports: Vec<Port>) -> Result<(), String> {
        let request = self.wanted(id, host, ports);
        self.machine.run(move || setup_instance(request).map(drop).map_err(|it| it.to_string()))
    }

    /// Cleans an instance up.
    pub fn clean(&self, id: &str, host: u8) {
        let ip = IpInet::from_str(&format!("10.77.{}.{host}/24", self.number)).unwrap();
        let id = id.to_owned();
        self.machine
            .run(move || clean_instance(CleanInstanceRequest::new(id, Vec::new(), ip)).unwrap());
    }

    /// What is there of links, addresses, routes, rules, namespaces and files: to compare before and after.
    pub fn inventory(&self) -> String {
        self.machine.sh(
            "ip -o link | sed 's/^[0-9]*: //; s/@.*//; s/:.*//' | sort; ip route | sed 's/ linkdown//; s/ *$//' | sort; \
             ip -6 route | grep -v fe80 | sed 's/ linkdown//' | sort; ip neigh show nud permanent | sort; bridge fdb show | grep ' dst ' | sort; \
             ls /run/netns 2>/dev/null; nft list ruleset; \
             find /var/lib/telaio -type f 2>/dev/null | grep -v 'lock$' | sort; true",
        )
    }
}

/// Numbers by chance, the same in every run.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Two inventories are the same; else the lines that differ. In which order a set has its elements is the kernel's to say.
pub fn assert_same(now: &str, before: &str, when: &str) {
    let (now, before) = (in_order(now), in_order(before));
    let only = |these: &[&str], those: &[&str]| {
        let lines = these.iter().filter(|line| !those.contains(line));
        lines.map(|line| (*line).to_owned()).collect::<Vec<_>>()
    };
    let (more, less) = (only(&now, &before), only(&before, &now));
    assert!(now == before, "{when}: there is too much: {more:#?}, and too little: {less:#?}");
}

/// Lines, and elements of sets each as one.
fn in_order(inventory: &str) -> Vec<&str> {
    let bare = |line| str::trim_start_matches(str::trim(line), "elements = { ");
    let lines = inventory.split(['\n', ',']).map(bare);
    let mut lines: Vec<&str> = lines.map(|line| line.trim_end_matches([' ', '}'])).collect();
    lines.sort_unstable();
    lines
}

fn gateway4(number: u8) -> Ipv4Inet {
    Ipv4Inet::from_str(&format!("10.77.{number}.1/24")).unwrap()
}

fn gateway6(number: u8) -> Ipv6Inet {
    Ipv6Inet::from_str(&format!("fd77:{number}::1/64")).unwrap()
}

/// Two or three nodes on one cable: 192.168.5.N and fd05::N, and somebody outside at .99.
pub fn lan(nodes: &[&Node]) -> Machine {
    let switch = Machine::start("switch");
    switch.sh("ip link add sw0 type bridge && ip link set sw0 up && ip address add 192.168.5.99/24 dev sw0 && ip address add fd05::99/64 dev sw0 nodad");
    for node in nodes {
        let number = node.number;
        let port = format!("port{number}");
        let addresses = format!("192.168.5.{number}/24,fd05::{number}/64");
        connect(&node.machine, "lan0", &addresses, &switch, &port, "");
        switch.sh(&format!("ip link set {port} master sw0"));
        node.machine
            .sh("ip route add default via 192.168.5.99 && ip -6 route add default via fd05::99");
    }
    switch
}

/// Takes all ports of a bridge that are left: who comes now hangs on none, and is routed to.
pub fn fill(machine: &Machine, bridge: &str) {
    machine.sh(&format!(
        "for n in $(seq 1 1023); do echo link add {FILLER}$n master {bridge} type ifb; done | ip -batch - 2>/dev/null; \
         test $(bridge link | grep -c 'master {bridge} ') = 1023"
    ));
}

/// How the links are called that take ports.
const FILLER: &str = "filler";

/// An inventory without those that only take ports.
pub fn without_fillers(inventory: &str) -> String {
    let others = inventory.lines().filter(|line| !line.contains(FILLER));
    others.flat_map(|line| [line, "\n"]).collect()
}

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Tcp,
    Udp,
}

/// A server that says who asks; it ends with this value.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Has the calling thread be in an instance, for good.
pub fn enter(instance: Option<&str>) {
    if let Some(id) = instance {
        let ours = Netns::open(&get_namespace_name(id));
        ours.or_else(|_| Netns::open(id)).unwrap().enter().unwrap();
    }
}

/// Serves in a container of a machine.
pub fn serve_at(
    machine: &Machine,
    container: Option<&str>,
    ip: &str,
    port: u16,
    wire: Wire,
) -> Server {
    serve_on(machine, container, ip, port, wire)
}

/// Asks from a container of a machine.
pub fn ask_at(
    machine: &Machine,
    container: Option<&str>,
    ip: &str,
    port: u16,
    wire: Wire,
) -> Result<String, String> {
    ask_from(machine, container, ip, port, wire, PATIENCE)
}

/// Serves in an instance of a node, or on the node itself.
pub fn serve(node: &Node, instance: Option<&str>, ip: &str, port: u16, wire: Wire) -> Server {
    serve_on(&node.machine, instance, ip, port, wire)
}

/// Serves on a machine.
pub fn serve_on(
    machine: &Machine,
    instance: Option<&str>,
    ip: &str,
    port: u16,
    wire: Wire,
) -> Server {
    let stop = Arc::new(AtomicBool::new(false));
    let (at, instance) = (SocketAddr::new(ip.parse().unwrap(), port), instance.map(str::to_owned));
    let stopped = Arc::clone(&stop);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let thread = machine.spawn(move || {
        enter(instance.as_deref());
        match wire {
            Wire::Tcp => {
                let listener = TcpListener::bind(at).unwrap();
                listener.set_nonblocking(true).unwrap();
                ready.send(()).unwrap();
                while !stopped.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((mut stream, from)) => {
                            stream.set_nonblocking(false).unwrap();
                            std::thread::spawn(move || {
                                let _ = stream.write_all(format!("{}\n", from.ip()).as_bytes());
                                let _ =
                                    std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
                            });
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
            }
            Wire::Udp => {
                let socket = UdpSocket::bind(at).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                ready.send(()).unwrap();
                let mut buffer = vec![0; 65536];
                while !stopped.load(Ordering::Relaxed) {
                    if let Ok((count, from)) = socket.recv_from(&mut buffer) {
                        let mut answer = format!("{}\n", from.ip()).into_bytes();
                        answer.extend_from_slice(&buffer[..count]);
                        let _ = socket.send_to(&answer, from);
                    }
                }
            }
        }
    });
    is_ready.recv().expect("the server could not listen");
    Server { stop, thread: Some(thread) }
}

/// Asks from an instance of a node, or from the node itself: whom the server saw.
pub fn ask(
    node: &Node,
    instance: Option<&str>,
    ip: &str,
    port: u16,
    wire: Wire,
) -> Result<String, String> {
    ask_from(&node.machine, instance, ip, port, wire, PATIENCE)
}

/// Asks from a machine.
pub fn ask_from(
    machine: &Machine,
    instance: Option<&str>,
    ip: &str,
    port: u16,
    wire: Wire,
    patience: Duration,
) -> Result<String, String> {
    let (to, instance) = (SocketAddr::new(ip.parse().unwrap(), port), instance.map(str::to_owned));
    let client = machine.spawn(move || -> std::io::Result<String> {
        enter(instance.as_deref());
        match wire {
            Wire::Tcp => {
                let stream = TcpStream::connect_timeout(&to, patience)?;
                stream.set_read_timeout(Some(patience))?;
                let mut text = Vec::new();
                let mut byte = [0];
                while !text.ends_with(b"\n") {
                    (&stream).read_exact(&mut byte)?;
                    text.push(byte[0]);
                }
                Ok(String::from_utf8_lossy(&text).trim().to_owned())
            }
            Wire::Udp => {
                let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
                let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
                socket.connect(to)?;
                let mut buffer = [0; 2048];
                let count = recv_answer(&socket, &mut buffer, patience)?;
                let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
                Ok(text.lines().next().unwrap_or_default().to_owned())
            }
        }
    });
    client.join().unwrap().map_err(|error| error.to_string())
}

/// Asks again and again, for one datagram may be lost while neighbours are found.
fn recv_answer(
    socket: &UdpSocket,
    buffer: &mut [u8],
    patience: Duration,
) -> std::io::Result<usize> {
    let deadline = Instant::now() + patience;
    loop {
        socket.send(b"?")?;
        let left = deadline.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.clamp(Duration::from_millis(1), AGAIN)))?;
        match socket.recv(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
            outcome => return outcome,
        }
    }
}

/// Sends this many bytes to a server, which sends them back: whether they are the same.
pub fn echo(
    machine: &Machine,
    instance: Option<&str>,
    ip: &str,
    port: u16,
    (wire, count): (Wire, usize),
) -> Result<(), String> {
    let (to, instance) = (SocketAddr::new(ip.parse().unwrap(), port), instance.map(str::to_owned));
    let bytes: Vec<u8> = (0..count).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let client = machine.spawn(move || {
        enter(instance.as_deref());
        match wire {
            Wire::Tcp => echo_stream(to, bytes),
            Wire::Udp => echo_datagram(to, &bytes),
        }
    });
    client.join().unwrap().map_err(|error| format!("{ip}: {error}"))
}

fn differs(what: &str) -> std::io::Error {
    std::io::Error::other(format!("{what} is not what was sent"))
}

fn echo_stream(to: SocketAddr, bytes: Vec<u8>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE * 3))?;
    stream.set_write_timeout(Some(PATIENCE * 3))?;
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
    }
    let (mut writing, sent) = (stream.try_clone()?, bytes.clone());
    let writer = std::thread::spawn(move || writing.write_all(&sent));
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back)?;
    writer.join().unwrap()?;
    if back == bytes { Ok(()) } else { Err(differs("what came back")) }
}

fn echo_datagram(to: SocketAddr, bytes: &[u8]) -> std::io::Result<()> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; 65536];
    let mut outcome = Ok(0);
    // One of many fragments may be lost while neighbours are found.
    for _ in 0..3 {
        socket.send(bytes)?;
        outcome = socket.recv(&mut buffer);
        if outcome.is_ok() {
            break;
        }
    }
    let count = outcome?;
    if buffer[..count].ends_with(bytes) { Ok(()) } else { Err(differs("what came back")) }
}

/// A receiver that notes who sends.
pub struct Senders {
    socket: UdpSocket,
}

/// Receives datagrams in an instance of a node, or on the node itself.
pub fn senders(node: &Node, instance: Option<&str>, ip: &str, port: u16) -> Senders {
    senders_on(&node.machine, instance, ip, port)
}

/// Receives datagrams in a container of a machine.
pub fn senders_on(machine: &Machine, instance: Option<&str>, ip: &str, port: u16) -> Senders {
    let (at, instance) = (SocketAddr::new(ip.parse().unwrap(), port), instance.map(str::to_owned));
    let bound = machine.spawn(move || {
        enter(instance.as_deref());
        UdpSocket::bind(at).unwrap()
    });
    Senders { socket: bound.join().unwrap() }
}

impl Senders {
    /// All who have sent, until this one has.
    pub fn until(self, last: &str) -> std::collections::BTreeSet<String> {
        let mut seen = std::collections::BTreeSet::new();
        self.socket.set_read_timeout(Some(PATIENCE * 3)).unwrap();
        let mut buffer = [0; 64];
        while !seen.contains(last) {
            let (_, from) = self.socket.recv_from(&mut buffer).expect("nobody sends any more");
            seen.insert(from.ip().to_string());
        }
        seen
    }
}

/// Sends a datagram from an instance, with whatever source.
pub fn spoof(node: &Node, instance: &str, source: &str, to: &str, port: u16) {
    spoof_on(&node.machine, instance, source, to, port);
}

/// Sends a datagram from a container of a machine, with whatever source.
pub fn spoof_on(machine: &Machine, instance: &str, source: &str, to: &str, port: u16) {
    let from = SocketAddr::new(source.parse().unwrap(), 0);
    let to = SocketAddr::new(to.parse().unwrap(), port);
    let instance = instance.to_owned();
    let sent = machine.spawn(move || {
        enter(Some(&instance));
        // Any address is this machine's own, in the instance's eyes.
        let kind = if from.is_ipv4() { "-4" } else { "-6" };
        let length = if from.is_ipv4() { 32 } else { 128 };
        let route = format!("{}/{length}", from.ip());
        let _ = std::process::Command::new("ip")
            .args([kind, "address", "add", &route, "dev", "lo", "nodad"])
            .output();
        let socket = UdpSocket::bind(from).unwrap();
        for _ in 0..3 {
            // Whether it arrives is what the test is about.
            let _ = socket.send_to(b"!", to);
        }
    });
    sent.join().unwrap();
}
