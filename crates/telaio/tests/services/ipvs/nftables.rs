//! To nftables and back: nobody notices, and what IPVS has goes when its last connection has ended.
//!
//! It takes a kernel that has both; see `telaio_testkit::guest::qemu`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use telaio_testkit::guest::{GuestError, qemu};
use telaio_testkit::netns::{Cluster, Family, Host, PATIENCE, Place};

use super::{at, servers};
use crate::kill::wait_for_quiet;
use crate::manifest::Service;
use crate::node::{Backend, Node};
use crate::restart::{Witnesses, services};
use crate::support;
use crate::switch::traces;

/// Between two words of who talks.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at what is left.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// How long IPVS keeps a flow of UDP that is silent. It has no other end, and a test is to see it.
const UDP_TIMEOUT: &str = "--ipvs-udp-timeout=5s";
/// The service of who talks, which is nobody else's.
const NUMBER: u8 = 9;

#[test]
#[ignore = "takes minutes on an emulated machine: cargo xtask test --long"]
fn nobody_notices_a_switch_from_ipvs_to_nftables_or_back() -> Result<(), GuestError> {
    let name = "ipvs::nftables::nobody_notices_a_switch_from_ipvs_to_nftables_or_back";
    qemu::inside(name, &[Path::new(env!("CARGO_BIN_EXE_telaio"))], switch_and_back)
}

/// A connection of TCP and a flow of UDP per family that are never silent for long.
struct Talk {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Talk {
    fn begin(cluster: &Cluster) -> Self {
        let places = Family::ALL.map(|family| (Place::of(Host::A2), at(family, NUMBER)));
        let parties = places.map(|(from, to): (Place, SocketAddr)| {
            let conversation = cluster.connect(from, to).unwrap();
            assert!(conversation.greeting().unwrap().by().is_some());
            let flow = cluster.flow(from, to).unwrap();
            let by = flow.ask(PATIENCE).unwrap().by().unwrap().to_owned();
            (to, conversation, flow, by)
        });
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for (to, conversation, flow, by) in &parties {
                    let heard = conversation.echo(b"still there?");
                    heard.unwrap_or_else(|error| panic!("TCP {to}: {error}"));
                    let outcome = flow.ask(PATIENCE);
                    let outcome = outcome.unwrap_or_else(|error| panic!("UDP {to}: {error}"));
                    assert_eq!(outcome.by(), Some(by.as_str()), "UDP {to}");
                }
                std::thread::sleep(PAUSE);
            }
        });
        Self { stop, thread }
    }

    /// Ends both; neither may have been cut, or led elsewhere.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// What is left of the backend `ipvs`, with its rules by whichever iptables.
fn left(node: &Node<'_>) -> Vec<String> {
    let mut all = traces(node, Backend::Ipvs);
    all.extend(traces(node, Backend::IptablesNft));
    all
}

/// Waits until nothing is. Whoever looks all the time has the only core, which is slow.
fn wait_for_end(node: &Node<'_>) {
    let deadline = Instant::now() + support::PATIENCE;
    loop {
        let left = left(node);
        if left.is_empty() {
            return;
        }
        let connections = node.output("ipvsadm", &["-l", "-c", "-n"]);
        assert!(Instant::now() < deadline, "{left:#?}\n{connections}\n{}", node.log());
        std::thread::sleep(LOOK_PERIOD);
    }
}

/// Ends the agent, and starts it with another backend and these flags on what the old one left.
fn switch(node: &mut Node<'_>, to: Backend, flags: &[&str]) {
    node.end();
    node.backend = to;
    node.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    node.start();
    node.settle();
}

/// Kills the agent, and starts it again.
fn kill_and_start(node: &mut Node<'_>, witnesses: &Witnesses) {
    node.kill();
    wait_for_quiet(node.cluster);
    witnesses.wait();
    node.start();
    node.settle();
}

/// Waits until IPVS takes no new connections and has those that stand.
fn wait_for_weight_0(node: &Node<'_>) {
    node.wait_until("end of new connections by IPVS", || {
        let all = servers(node);
        let mut endpoints = all.lines().filter(|line| line.starts_with("-a "));
        let talked = Family::ALL.map(|family| at(family, NUMBER)).iter().all(|to| {
            ["t", "u"].iter().all(|protocol| all.contains(&format!("-a -{protocol} {to} ")))
        });
        talked && endpoints.all(|line| line.ends_with(" -w 0"))
    });
}

fn switch_and_back() {
    let cluster = Cluster::start().unwrap();
    let mut all = services();
    all.push(Service::new("talk", NUMBER).endpoints("a1 b1"));
    let mut node = Node::new(&cluster, Backend::Ipvs, &all);
    node.flags = vec![UDP_TIMEOUT.to_owned()];
    node.start();
    node.settle();

    let (witnesses, talk) = (Witnesses::of(&cluster), Talk::begin(&cluster));
    switch(&mut node, Backend::Nftables, &[]);
    wait_for_weight_0(&node);
    witnesses.wait();
    kill_and_start(&mut node, &witnesses);
    wait_for_weight_0(&node);
    witnesses.have_noticed_nothing();
    talk.end();
    wait_for_end(&node);
    assert!(!traces(&node, Backend::Nftables).is_empty());

    let (witnesses, talk) = (Witnesses::of(&cluster), Talk::begin(&cluster));
    switch(&mut node, Backend::Ipvs, &[UDP_TIMEOUT]);
    node.wait_until("end of nftables", || traces(&node, Backend::Nftables).is_empty());
    assert!(!traces(&node, Backend::Ipvs).is_empty());
    kill_and_start(&mut node, &witnesses);
    witnesses.have_noticed_nothing();
    talk.end();
}
