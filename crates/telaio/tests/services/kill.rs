//! SIGKILL at a random moment of a sync: the rules are the old or the new ones, never something
//! between, and the next start finishes the work.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use telaio_testkit::netns::{Cluster, Family, Host, Outcome, PATIENCE, Place, Transport};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip, load_balancer_ip};
use crate::node::{Backend, Node};

/// How often it is killed; on the guest kernel, which is slow, fewer times.
const KILLS: usize = 100;
const KILLS_IN_GUEST: usize = 6;
/// Services that change together.
const CHANGING: std::ops::Range<u8> = 10..30;

on_every_backend!(a_kill_at_any_moment_leaves_the_old_rules_or_the_new_ones);

/// A small generator of random numbers (xorshift); its seed is printed, to repeat what failed.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let chosen = std::env::var("TELAIO_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let seed = chosen.unwrap_or(now.as_nanos() as u64 | 1);
        println!("TELAIO_TEST_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % bound.as_nanos().max(1) as u64)
    }
}

/// All that change, in one of two states: endpoints, policies, ranges and balance with it.
fn changing(state: bool) -> String {
    let endpoint = if state { "a1" } else { "b1" };
    let service = |number: u8| {
        let service = Service::new(format!("changing-{number}"), number).endpoints(endpoint);
        match (number % 4, state) {
            (0, true) => service.balance("round-robin"),
            (1, _) => service.load_balancer().external_ips(),
            (2, true) => service.load_balancer().source_ranges(crate::fixtures::RANGES),
            (2, false) => service.load_balancer(),
            (3, true) => service.node_port().internal_local(),
            (3, false) => service.node_port(),
            _ => service,
        }
    };
    CHANGING.map(|number| service(number).yaml()).collect()
}

/// Who serves those that change, in one family: one of the two, or the rules are between.
fn serves(cluster: &Cluster, family: Family) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for number in CHANGING {
        let mut ask = |from: Host, to| {
            let to = SocketAddr::new(to, SERVICE_PORT);
            let outcome = cluster.ask(Place::of(from), to, Transport::Tcp);
            seen.insert(outcome.by().map_or_else(|| format!("{to}: {outcome}"), str::to_owned));
        };
        ask(Host::NodeA, cluster_ip(family, number));
        if matches!(number % 4, 1 | 2) {
            ask(Host::Outside, load_balancer_ip(family, number));
        }
    }
    seen
}

/// A snapshot without endpoints that drain.
fn wanted(snapshot: &BTreeMap<String, String>) -> BTreeMap<String, Vec<String>> {
    let stays = |line: &&str| !line.ends_with(" -w 0");
    let lines = |text: &String| text.lines().filter(stays).map(str::to_owned).collect();
    snapshot.iter().map(|(part, text)| (part.clone(), lines(text))).collect()
}

/// Waits until nothing runs on node-a any more: a program that the agent started may outlive it.
pub(crate) fn wait_for_quiet(cluster: &Cluster) {
    let name = cluster.netns(Host::NodeA).name().to_owned();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = Command::new("ip").args(["netns", "pids", &name]).output().unwrap();
        // This process has threads there now and then, but is not of it.
        let pids = String::from_utf8(output.stdout).unwrap();
        if pids.trim().is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "still running: {pids}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn a_kill_at_any_moment_leaves_the_old_rules_or_the_new_ones(backend: Backend) {
    let mut random = Random::seeded();
    let stable = Service::new("stable", 1).node_port().endpoints("a1 b1");
    let cluster = Cluster::start().unwrap();
    let mut node = Node::new(&cluster, backend, &[stable]);
    let mut state = true;
    node.write("changing", &changing(state));
    let start = Instant::now();
    node.start();
    node.settle();
    let start_time = start.elapsed();
    let one = node.snapshot();
    let change = Instant::now();
    state = !state;
    node.write("changing", &changing(state));
    node.settle();
    let change_time = change.elapsed();
    let other = node.snapshot();
    node.kill();

    let stable = SocketAddr::new(cluster_ip(Family::V4, 1), SERVICE_PORT);
    let conversation = cluster.connect(Place::of(Host::A2), stable).unwrap();
    assert!(matches!(conversation.greeting().unwrap(), Outcome::Answered { .. }));
    let prober = cluster.probe(Place::of(Host::A2), stable, Transport::Tcp).unwrap();
    let mut ended_new = 0;
    let mut before = Family::ALL.map(|family| serves(&cluster, family));
    let kills = if backend == Backend::Ipvs { KILLS_IN_GUEST } else { KILLS };
    for round in 0..kills {
        state = !state;
        // In turn: while it starts over the rules of before, and while it follows a change.
        if round % 3 == 0 {
            node.start();
            node.settle();
            state = !state;
            node.write("changing", &changing(state));
            std::thread::sleep(random.below(change_time));
        } else {
            node.write("changing", &changing(state));
            node.start();
            std::thread::sleep(random.below(start_time));
        }
        node.kill();
        wait_for_quiet(&cluster);
        let after = Family::ALL.map(|family| serves(&cluster, family));
        for (family, after) in Family::ALL.into_iter().zip(&after) {
            // IPVS has no transactions: there each service is the old one or the new one.
            let is_one = after.len() == 1 || backend == Backend::Ipvs;
            let is_whole = is_one && after.iter().all(|by| by == "a1" || by == "b1");
            assert!(is_whole, "round {round}, {family:?}: {after:?}\n{}", node.rules());
        }
        let parts = if backend == Backend::Ipvs { BTreeMap::new() } else { node.snapshot() };
        for (part, now) in parts {
            let (one, other) = (&one[&part], &other[&part]);
            assert!(now == *one || now == *other, "round {round}: {part} is between:\n{now}");
        }
        ended_new += usize::from(before != after);
        before = after;
        conversation.echo(b"not my concern").unwrap();
    }
    println!("{ended_new} of {kills} were killed after the change");
    node.start();
    node.settle();
    let expected = BTreeSet::from([if state { "a1" } else { "b1" }.to_owned()]);
    for family in Family::ALL {
        assert_eq!(serves(&cluster, family), expected, "what a kill left is finished");
    }
    if backend == Backend::Ipvs {
        let expected = wanted(if state { &one } else { &other });
        node.wait_until("end of what a kill left", || wanted(&node.snapshot()) == expected);
    }
    let tally = prober.stop();
    println!("{tally}");
    assert_eq!(tally.failures, 0, "{tally}");
}
