//! Policies hold from an instance's first packet on, whatever the agent is busy with.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use serde_json::{Value, json};
use telaio_testkit::machine::Machine;

use crate::cni::{PluginCall, pending};
use crate::net::{SILENCE, enter};
use crate::stage::{Agent, Stage, eventually};

/// Nobody comes in to `app: db`.
const DENY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: default}\n\
    spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}\n";

/// Sends to one address after the other, all the time, from before there is anybody; ended when this is dropped.
struct Knocking {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Knocking {
    fn start(machine: &Machine, from: &'static str, port: u16) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let thread = machine.spawn(move || {
            enter(Some(from));
            let (v4, v6) =
                (UdpSocket::bind("0.0.0.0:0").unwrap(), UdpSocket::bind("[::]:0").unwrap());
            while !until.load(Ordering::Relaxed) {
                for host in 2..30 {
                    // Nobody may be there yet.
                    let _ = v4.send_to(b"knock", (format!("10.77.1.{host}").as_str(), port));
                    let _ = v6.send_to(b"knock", (format!("fd77:1::{host:x}").as_str(), port));
                }
                sleep(Duration::from_micros(300));
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Knocking {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A namespace that counts, before it has any link, what arrives at a port.
fn counting(machine: &Machine, name: &str, port: u16) {
    machine.sh(&format!(
        "ip netns add {name}; ip netns exec {name} nft 'table inet count {{ chain in {{ type filter hook input priority 0; \
         meta nfproto ipv4 udp dport {port} counter; meta nfproto ipv6 udp dport {port} counter; }}; }}'"
    ));
}

/// How many packets arrived, by IPv4 and by IPv6.
fn counted(machine: &Machine, name: &str) -> [u64; 2] {
    let text = machine.sh(&format!(
        "ip netns exec {name} nft list table inet count | grep -o 'packets [0-9]*' | cut -d' ' -f2"
    ));
    let mut counts = text.lines().map(|line| line.parse().unwrap());
    [counts.next().unwrap(), counts.next().unwrap()]
}

/// Whether no instance waits for the word of the agent.
fn nobody_waits(machine: &Machine) -> bool {
    machine.try_sh(
        "! nft list table ip telaio-policy | grep -A3 'set unjudged\\|set arrived' | grep elements",
    )
}

fn add(agent: &Agent, id: &str) -> Result<Value, Value> {
    PluginCall::new(agent, "ADD", id).make_on(agent)
}

#[test]
fn nothing_arrives_that_a_policy_forbids_and_without_an_agent_a_pod_is_refused() {
    let mut stage = Stage::new();
    stage.write("web", &pending("web", "web"));
    stage.write("db", &pending("db", "db"));
    stage.write("policy", DENY);
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    machine.sh("ip netns add web");
    add(&stage.a, "web").unwrap();
    for name in ["db", "free", "late"] {
        counting(machine, name, 99);
    }
    let knocking = Knocking::start(machine, "web", 99);
    let rules = || machine.sh("nft list ruleset");
    // Once it has heard of the first pod, the agent is there and does nothing.
    eventually("web is judged", || nobody_waits(machine), rules);
    stage.a.signal("STOP");
    let error = add(&stage.a, "db").unwrap_err();
    assert_eq!(error["code"], 11, "{error}");
    let message = error["msg"].as_str().unwrap();
    assert!(
        message.contains("default/db") && message.contains("telaio run --planes pods"),
        "{error}"
    );
    assert_eq!(machine.sh("ip -n db -o link | wc -l").trim(), "1", "it is taken back");
    assert!(nobody_waits(machine), "{}", rules());
    // Where no policy is about it, nobody is waited for.
    PluginCall::new(&stage.a, "ADD", "free").of("other").make_on(&stage.a).unwrap();
    eventually(
        "what no policy forbids",
        || counted(machine, "free").iter().all(|it| *it > 0),
        rules,
    );
    stage.a.signal("CONT");
    add(&stage.a, "db").unwrap();
    sleep(SILENCE);
    assert_eq!(counted(machine, "db"), [0, 0], "from the first packet on");
    // A node's own probes pass.
    let ip = machine.sh("ip -n db -4 -o address show dev eth0 | awk '{print $4}' | cut -d/ -f1");
    machine.sh(&format!("ping -c 1 -W 20 {}", ip.trim()));
    // A pod that the agent has not heard of yet is waited for.
    let call = PluginCall::new(&stage.a, "ADD", "late");
    let late = machine.spawn(move || call.make());
    eventually(
        "late waits",
        || machine.try_sh("nft list set ip telaio-policy unjudged | grep elements"),
        rules,
    );
    stage.write("late", &pending("late", "web"));
    late.join().unwrap().unwrap();
    eventually("nobody forbids it", || counted(machine, "late").iter().all(|it| *it > 0), rules);
    assert_eq!(counted(machine, "db"), [0, 0]);
    stage.remove("policy");
    eventually("the knocking is heard", || counted(machine, "db").iter().all(|it| *it > 0), rules);
    drop(knocking);
    for id in ["web", "db", "late"] {
        PluginCall::new(&stage.a, "DEL", id).make_on(&stage.a).unwrap();
    }
    PluginCall::new(&stage.a, "DEL", "free").of("other").make_on(&stage.a).unwrap();
    eventually("nobody is told of any more", || nobody_waits(machine), rules);
}

#[test]
fn flows_of_whoever_had_an_address_before_are_not_the_next_ones() {
    let mut stage = Stage::new();
    stage.write("web", &pending("web", "web"));
    stage.write("db", &pending("db", "db"));
    stage.write("policy", DENY);
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    let ips = json!({"ips": ["10.77.1.20", "fd77:1::20"]});
    machine.sh("ip netns add web; ip netns add old");
    add(&stage.a, "web").unwrap();
    let old = |command| PluginCall::new(&stage.a, command, "old").of("other").with(ips.clone());
    old("ADD").make_on(&stage.a).unwrap();
    let flows: Vec<_> = [("10.77.1.20:99", "0.0.0.0:0"), ("[fd77:1::20]:99", "[::]:0")]
        .into_iter()
        .map(|(to, any)| {
            let server = machine.spawn(move || {
                enter(Some("old"));
                let socket = UdpSocket::bind(to).unwrap();
                let (_, from) = socket.recv_from(&mut [0; 8]).unwrap();
                socket.send_to(b"!", from).unwrap();
            });
            let client = machine.spawn(move || {
                enter(Some("web"));
                let socket = UdpSocket::bind(any).unwrap();
                socket.set_read_timeout(Some(SILENCE)).unwrap();
                // Until the server is there.
                for _ in 0..150 {
                    socket.send_to(b"?", to).unwrap();
                    if socket.recv_from(&mut [0; 8]).is_ok() {
                        return socket;
                    }
                }
                panic!("nobody answers");
            });
            let socket = client.join().unwrap();
            server.join().unwrap();
            (socket, to)
        })
        .collect();
    old("DEL").make_on(&stage.a).unwrap();
    counting(machine, "db", 99);
    PluginCall::new(&stage.a, "ADD", "db").with(ips.clone()).make_on(&stage.a).unwrap();
    for _ in 0..20 {
        for (socket, to) in &flows {
            let _ = socket.send_to(b"?", to);
        }
        sleep(SILENCE / 20);
    }
    assert_eq!(
        counted(machine, "db"),
        [0, 0],
        "{}",
        machine.sh("conntrack -L; conntrack -L -f ipv6")
    );
}
