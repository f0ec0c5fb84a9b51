//! Every row of the expectations, on every backend.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use telaio_testkit::guest;
use telaio_testkit::netns::{Cluster, Host, Outcome, PATIENCE, Transport, is_node_a};

use crate::expectations::{Case, Expected, Section, SeenAs, sections};
use crate::fixtures;
use crate::node::{Backend, Node};

/// How many rows are asked at once: most of the time they wait.
const ASKED_AT_ONCE: usize = 24;
/// How often is asked at least, so that somebody who should not answer has his chance.
const ATTEMPTS_MIN: usize = 8;
/// How often is asked at most until everybody has answered who should. Of four that take turns by
/// chance, one is left out by all of them once in 10^24.
const ATTEMPTS_MAX: usize = 200;

/// The same on the guest kernel, which is slow: there endpoints take turns.
const ATTEMPTS_IN_GUEST_MIN: usize = 4;

on_backends_of_this_kernel!(every_row_of_the_expectations_holds);

// Two guests at once take half of the time.
on_ipvs!(every_row_without_flags_holds, every_row_with_flags_holds);

fn every_row_of_the_expectations_holds(backend: Backend) {
    rows_hold(backend, |_| true);
}

fn every_row_without_flags_holds(backend: Backend) {
    rows_hold(backend, |section| section.flags.is_empty());
}

fn every_row_with_flags_holds(backend: Backend) {
    rows_hold(backend, |section| !section.flags.is_empty());
}

fn rows_hold(backend: Backend, is_wanted: impl Fn(&Section) -> bool) {
    let cluster = Cluster::start().unwrap();
    for host in [Host::A1, Host::B1] {
        cluster.serve(host, &format!("{}-9000", host.name()), 9000).unwrap();
    }
    let services = fixtures::all();
    let mut node = Node::new(&cluster, backend, &services);
    let mut wrong = Vec::new();
    let sections = sections(backend.name(), &services);
    for section in sections.into_iter().filter(is_wanted) {
        node.flags.clone_from(&section.flags);
        node.start();
        node.settle();
        let found = ask_all(&cluster, &section.cases);
        if !found.is_empty() && std::env::var_os("TELAIO_TEST_RULES").is_some() {
            eprintln!("{}\n{}", node.log(), node.rules());
        }
        wrong.extend(found.into_iter().map(|what| format!("{:?} {what}", section.flags)));
        node.end();
    }
    assert!(wrong.is_empty(), "{} rows of {}:\n{}", wrong.len(), backend.name(), wrong.join("\n"));
}

/// Asks all, some at once; what was not as expected, in the order of the table.
fn ask_all(cluster: &Cluster, cases: &[Case]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..ASKED_AT_ONCE {
            scope.spawn(|| {
                while let Some((index, case)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|i| Some((i, cases.get(i)?)))
                {
                    if let Err(what) = ask(cluster, case) {
                        wrong.lock().unwrap().push((index, format!("{}: {what}", case.row)));
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    wrong.sort_unstable();
    wrong.into_iter().map(|(_, what)| what).collect()
}

fn ask(cluster: &Cluster, case: &Case) -> Result<(), String> {
    let once = |patience| cluster.ask_for(case.from, case.to, case.transport, patience);
    let (patience, expected) = match &case.expected {
        Expected::Answers(answers) => {
            let attempts_min =
                if guest::is_inside() { ATTEMPTS_IN_GUEST_MIN } else { ATTEMPTS_MIN };
            let mut missing: BTreeSet<&str> = answers.keys().map(String::as_str).collect();
            for attempt in 1..=ATTEMPTS_MAX {
                let outcome = once(PATIENCE);
                let Outcome::Answered { by, seen } = &outcome else {
                    return Err(format!("attempt {attempt}: {outcome}, expected {answers:?}"));
                };
                let Some(seen_as) = answers.get(by) else {
                    return Err(format!("{outcome}, expected {answers:?}"));
                };
                if !is_seen_as(*seen_as, seen.ip(), case.client) {
                    return Err(format!("{outcome}, expected {answers:?}"));
                }
                missing.remove(by.as_str());
                if missing.is_empty() && attempt >= attempts_min {
                    return Ok(());
                }
            }
            return Err(format!("{missing:?} never answered in {ATTEMPTS_MAX} attempts"));
        }
        Expected::Refused => (PATIENCE, Outcome::Refused),
        Expected::Dropped => (case.transport.silence(), Outcome::Silence),
        // UDP clients are not told.
        Expected::Unreachable if case.transport == Transport::Udp => {
            (case.transport.silence(), Outcome::Silence)
        }
        Expected::Unreachable => (PATIENCE, Outcome::Unreachable),
    };
    let outcome = once(patience);
    if outcome == expected {
        return Ok(());
    }
    Err(format!("{outcome}, expected {:?}", case.expected))
}

fn is_seen_as(seen_as: SeenAs, seen: IpAddr, client: Option<IpAddr>) -> bool {
    match (seen_as, client) {
        (SeenAs::Client, Some(client)) => seen == client,
        (SeenAs::Client, None) | (SeenAs::Node, _) => is_node_a(seen),
    }
}
