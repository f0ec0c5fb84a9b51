//! Writing only what changes comes to the same as writing everything.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use telaio_model::{IpFamily, ObjectKey, Protocol, ServiceEndpoints};
use telaio_reconcile::SyncKind;

use super::super::compile::Context;
use super::super::names::{PREFIX, Table};
use super::super::proxier::{Changes, Iptables, Kernel, RuleCounts, Services, View};
use super::super::restore::Limits;
use super::super::{Ruleset, trace};
use super::fake::FakeKernel;
use crate::config::{DetectLocal, NodeFacts, ProxyConfig};
use crate::fixture::Fixture;
use crate::trace::{Packet, Surroundings, Trace, Verdict};

/// Parts so small that every change of more than a service is split.
const SPLIT: Limits = Limits { chains_per_commit: 3, rules_per_delete: usize::MAX };

fn context() -> Context {
    let config = ProxyConfig {
        detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]),
        ..ProxyConfig::default()
    };
    Context::new(&config, &NodeFacts::default(), IpFamily::V4)
}

const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 100));

/// What a packet meets.
type Fate = (Verdict, BTreeSet<SocketAddr>, bool);

/// A family's rules in a kernel that is only played, and the services they stand for.
struct Bench {
    kernel: FakeKernel,
    iptables: Iptables,
    services: Services,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        let kernel = FakeKernel::new(limits);
        let iptables = Iptables::new(Box::new(kernel.clone()), context());
        Self { kernel, iptables, services: Services::new() }
    }

    fn sync(&mut self, kind: SyncKind, changes: Changes) -> telaio_reconcile::SyncReport {
        let view = View { before: &self.services, changes: &changes };
        let report = self.iptables.sync(kind, view).unwrap();
        for (key, change) in changes {
            match change {
                Some(entry) => drop(self.services.insert(key, entry)),
                None => drop(self.services.remove(&key)),
            }
        }
        report
    }

    fn set(&mut self, entries: &[ServiceEndpoints]) -> telaio_reconcile::SyncReport {
        let changes = entries.iter().map(|it| (it.service.key.clone(), Some(it.clone())));
        self.sync(SyncKind::Changes, changes.collect())
    }

    /// The same services, written where nothing is there.
    fn fresh(&self) -> String {
        let mut fresh = Self::new(Limits::LEGACY);
        fresh.services = self.services.clone();
        fresh.sync(SyncKind::Full, Changes::new());
        fresh.kernel.sorted()
    }

    /// How many rules our chains have in the kernel.
    fn counted(&self) -> RuleCounts {
        let state = self.kernel.state.lock();
        let count = |table| {
            let ours = state.tables[&table].iter().filter(|(chain, _)| chain.starts_with(PREFIX));
            ours.map(|(_, rules)| rules.len()).sum()
        };
        RuleCounts { nat: count(Table::Nat), filter: count(Table::Filter) }
    }

    /// What packets of all kinds meet.
    fn fates(&self) -> Vec<Fate> {
        let rules = Ruleset::parse(&self.kernel.text());
        let around = Surroundings { addresses: [NODE].into() };
        let mut fates = Vec::new();
        for n in 0..4_u8 {
            let places = [
                SocketAddr::new([10, 96, 0, n].into(), 80),
                SocketAddr::new([192, 0, 2, n].into(), 80),
                SocketAddr::new(NODE, 30000 + u16::from(n)),
            ];
            let sources =
                [[10, 244, 1, 9].into(), [203, 0, 113, 5].into(), [8, 8, 8, 8].into(), NODE];
            for (to, from) in places.into_iter().flat_map(|to| sources.map(|from| (to, from))) {
                let packet = Packet { from, to, protocol: Protocol::Tcp, interface: None };
                let Trace { verdict, endpoints, masquerade, .. } = trace(&packet, &around, &rules);
                fates.push((verdict, endpoints, masquerade));
            }
        }
        fates
    }
}

fn web() -> Fixture {
    Fixture::new("web").cluster_ip([10, 96, 0, 1])
}

#[test]
fn one_endpoint_changed_writes_its_chains_and_nothing_else() {
    let mut bench = Bench::new(Limits::NFT);
    let others = (0..50)
        .map(|n| Fixture::new(&format!("s{n}")).cluster_ip([10, 96, 1, n]).remote([10, 244, 3, n]));
    let mut all: Vec<_> = others.map(|it| it.build()).collect();
    all.push(web().remote([10, 244, 2, 1]).build());
    bench.set(&all);
    let saves = bench.kernel.state.lock().saves;
    bench.set(&[web().remote([10, 244, 2, 2]).build()]);
    let state = bench.kernel.state.lock();
    let text = state.texts.last().unwrap();
    // The service's chain, the new endpoint's and the old one's; no dispatch, no other service.
    assert_eq!(text.lines().filter(|line| line.starts_with(':')).count(), 3, "{text}");
    assert!(!text.contains("TELAIO-SERVICES") && !text.contains("*filter"), "{text}");
    assert_eq!((state.texts.len(), state.saves), (2, saves));
}

#[test]
fn a_change_that_changes_nothing_runs_no_program() {
    let mut bench = Bench::new(Limits::NFT);
    bench.set(&[web().remote([10, 244, 2, 1]).build()]);
    let runs = bench.kernel.state.lock().texts.len();
    let labelled =
        web().remote([10, 244, 2, 1]).with(|it| _ = it.labels.insert("a".into(), "b".into()));
    bench.set(&[labelled.build()]);
    assert_eq!(bench.kernel.state.lock().texts.len(), runs);
}

#[test]
fn a_removed_service_leaves_nothing() {
    let mut bench = Bench::new(Limits::NFT);
    bench.set(&[]);
    let empty = bench.kernel.text();
    bench.set(&[web()
        .node_port(30080)
        .load_balancer_ip([192, 0, 2, 9])
        .remote([10, 244, 2, 1])
        .build()]);
    bench.sync(SyncKind::Changes, Changes::from([(ObjectKey::new("test", "web"), None)]));
    assert_eq!(bench.kernel.text(), empty);
}

#[test]
fn a_failed_change_is_mended_at_once() {
    let mut bench = Bench::new(Limits::NFT);
    bench.set(&[web().remote([10, 244, 2, 1]).build()]);
    bench.kernel.state.lock().fail_after = Some(0);
    bench.set(&[web().remote([10, 244, 2, 2]).build()]);
    assert_eq!(bench.kernel.sorted(), bench.fresh());
    let counters = bench.iptables.counters();
    assert_eq!((counters.failures, counters.partial_failures), (1, 1));
    assert_eq!(counters.rules, bench.counted());
}

#[test]
fn a_mend_that_fails_counts_as_a_failure_but_not_of_a_change() {
    let mut bench = Bench::new(Limits::NFT);
    bench.kernel.state.lock().fail_after = Some(0);
    let nothing = Services::new();
    let view = View { before: &nothing, changes: &Changes::new() };
    assert!(bench.iptables.sync(SyncKind::Full, view).is_err());
    let counters = bench.iptables.counters();
    assert_eq!((counters.failures, counters.partial_failures), (1, 0));
    assert_eq!((counters.rules, counters.rules_last), Default::default());
}

#[test]
fn the_rules_that_a_sync_writes_are_counted_by_table() {
    let mut bench = Bench::new(Limits::NFT);
    bench.set(&[web().remote([10, 244, 2, 1]).build()]);
    let first = bench.iptables.counters();
    assert!(first.rules_last.nat >= first.rules.nat && first.rules.nat > 0, "{first:?}");
    assert!(first.rules_last.filter >= first.rules.filter && first.rules.filter > 0, "{first:?}");
    // Another endpoint: the service's own chain and the endpoint's.
    bench.set(&[web().remote([10, 244, 2, 2]).build()]);
    let second = bench.iptables.counters();
    assert!((1..first.rules_last.nat).contains(&second.rules_last.nat), "{second:?}");
    assert_eq!((second.rules_last.filter, second.rules), (0, first.rules));
    bench.sync(SyncKind::Full, Changes::new());
    assert_eq!(bench.iptables.counters().rules_last, RuleCounts::default());
}

#[test]
fn drift_is_found_counted_and_mended_and_others_rules_stay() {
    let mut bench = Bench::new(Limits::NFT);
    bench.set(&[web().remote([10, 244, 2, 1]).node_port(30080).build()]);
    let right = bench.kernel.text();
    {
        let mut state = bench.kernel.state.lock();
        let nat = state.tables.get_mut(&Table::Nat).unwrap();
        nat.get_mut("PREROUTING").unwrap().clear();
        nat.get_mut("PREROUTING").unwrap().push("-j DOCKER".to_owned());
        nat.insert("DOCKER".to_owned(), vec!["-j RETURN".to_owned()]);
        nat.get_mut("TELAIO-SERVICES").unwrap().retain(|rule| !rule.contains("10.96.0.1"));
        nat.get_mut("TELAIO-MARK-MASQ").unwrap().push("-j RETURN".to_owned());
        nat.insert("TELAIO-STRANGE".to_owned(), vec![]);
        nat.get_mut("TELAIO-NODEPORTS").unwrap().push("-j TELAIO-STRANGE".to_owned());
    }
    let report = bench.sync(SyncKind::Drift, Changes::new());
    // The jump, the dispatch rule, a changed chain, a strange chain and the rule that leads to it.
    assert_eq!(report.drift_repairs, 5);
    let text = bench.kernel.text();
    assert!(text.contains("-A PREROUTING -j DOCKER\n"), "{text}");
    let ours = text.replace("-A PREROUTING -j DOCKER\n", "").replace("-A DOCKER -j RETURN\n", "");
    assert_eq!(ours.replace(":DOCKER - [0:0]\n", ""), right);
    assert_eq!(bench.sync(SyncKind::Drift, Changes::new()).changes(), 0);
}

#[test]
fn chains_that_are_known_to_be_wrong_are_written_without_reading_anything() {
    let mut bench = Bench::new(Limits::LEGACY);
    bench.set(&[web().remote([10, 244, 2, 1]).build()]);
    let right = bench.kernel.text();
    let own = |text: &str| {
        let line = text.lines().find(|line| line.contains("--to-destination")).unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    };
    let chain = own(&right);
    let saves = bench.kernel.state.lock().saves;
    let break_it = |bench: &Bench, chain: &str| {
        let mut state = bench.kernel.state.lock();
        let rules = state.tables.get_mut(&Table::Nat).unwrap().get_mut(chain).unwrap();
        *rules.last_mut().unwrap() = "-j DROP".to_owned();
    };
    let mend = |bench: &mut Bench, chains: &[&str]| {
        let chains = chains.iter().map(|chain| (Table::Nat, *chain)).collect();
        let view = View { before: &bench.services, changes: &Changes::new() };
        bench.iptables.mend_chains(&chains, view).unwrap()
    };
    break_it(&bench, &chain);
    let report = mend(&mut bench, &[&chain, "DOCKER"]).unwrap();
    assert_eq!((report.updated, report.drift_repairs), (1, 1));
    assert_eq!(bench.kernel.text(), right);
    // Another's chain alone is nothing to us.
    assert_eq!(mend(&mut bench, &["DOCKER"]).map(|it| it.changes()), Some(0));
    assert_eq!(bench.kernel.state.lock().saves, saves);
    // What services share, and what stands whatever they are.
    let others = ["TELAIO-SERVICES", "TELAIO-POSTROUTING"];
    for chain in others {
        break_it(&bench, chain);
    }
    let report = mend(&mut bench, &others).unwrap();
    assert_eq!((report.updated, report.drift_repairs), (2, 2));
    assert_eq!(bench.kernel.text(), right);
    assert_eq!(bench.kernel.state.lock().saves, saves);
    // Chains of ours that we do not know, and the kernel's own, have to be compared.
    let texts = bench.kernel.state.lock().texts.len();
    for told in ["TELAIO-SEP-UNKNOWN", ""] {
        assert_eq!(mend(&mut bench, &[&chain, told]), None, "{told}");
    }
    assert_eq!(bench.kernel.state.lock().texts.len(), texts);
}

#[test]
fn a_restart_keeps_what_is_right() {
    let mut bench = Bench::new(Limits::NFT);
    bench.set(&[web().remote([10, 244, 2, 1]).build()]);
    let mut restarted = Bench::new(Limits::NFT);
    restarted.kernel = bench.kernel.clone();
    restarted.iptables = Iptables::new(Box::new(bench.kernel.clone()), context());
    let runs = bench.kernel.state.lock().texts.len();
    let report = restarted.set(&[web().remote([10, 244, 2, 1]).build()]);
    assert_eq!((report.changes(), report.drift_repairs), (0, 0));
    assert_eq!(bench.kernel.state.lock().texts.len(), runs);
}

#[test]
fn of_two_that_claim_an_address_the_same_wins_whoever_comes_first() {
    let owner = web().remote([10, 244, 2, 1]).build();
    let thief = Fixture::new("aaa").cluster_ip([10, 96, 0, 99]);
    let thief = thief.with(|it| it.external_ips = vec![[10, 96, 0, 1].into()]);
    let thief = thief.remote([10, 244, 6, 6]).build();
    for order in [[&owner, &thief], [&thief, &owner]] {
        let mut bench = Bench::new(Limits::NFT);
        bench.set(&[]);
        for entry in order {
            bench.set(std::slice::from_ref(entry));
        }
        assert_eq!(bench.kernel.sorted(), bench.fresh());
        let text = bench.kernel.text();
        let rules = text
            .lines()
            .filter(|line| line.contains("-d 10.96.0.1/32 ") && line.contains("SERVICES"));
        assert!(rules.clone().count() == 1 && text.contains("test/web cluster IP"), "{text}");
        bench.sync(SyncKind::Changes, Changes::from([(owner.service.key.clone(), None)]));
        assert!(bench.kernel.text().contains("test/aaa external IP"));
    }
}

fn some_service() -> impl Strategy<Value = ServiceEndpoints> {
    let endpoints = proptest::collection::vec((0_u8..6, any::<bool>(), 1_u16..4), 0..4);
    let policies = (any::<bool>(), any::<bool>());
    let extras = (any::<bool>(), any::<bool>(), any::<bool>(), 0_usize..3);
    (0_u8..6, 0_u8..4, endpoints, policies, extras).prop_map(
        |(name, ip, endpoints, (etp, itp), (external, sticky, ranges, balance))| {
            // Few addresses, so that services claim each other's.
            let mut service = Fixture::new(&format!("s{name}"))
                .cluster_ip([10, 96, 0, ip])
                .balance(["random", "round-robin", "source-hash"][balance]);
            if external {
                service =
                    service.node_port(30000 + u16::from(ip)).load_balancer_ip([192, 0, 2, ip]);
            }
            if sticky {
                service = service.sticky(60);
            }
            service = service.with(|it| {
                it.external_traffic_to_local = etp;
                it.internal_traffic_to_local = itp;
                if ranges {
                    it.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
                }
            });
            for (host, local, weight) in endpoints {
                let ip = [10, 244, u8::from(local), host];
                service = if local { service.local(ip) } else { service.remote(ip) };
                service = service.weight(weight);
            }
            service.build()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn many_small_syncs_come_to_the_same_as_one(
        steps in proptest::collection::vec(
            proptest::collection::vec((some_service(), any::<bool>()), 1..5),
            1..8,
        ),
        limits in prop_oneof![Just(Limits::LEGACY), Just(SPLIT), Just(Limits { rules_per_delete: 1, ..SPLIT })],
    ) {
        let mut bench = Bench::new(limits);
        for step in steps {
            let changes = step.into_iter().map(|(entry, there)| (entry.service.key.clone(), there.then_some(entry)));
            bench.sync(SyncKind::Changes, changes.collect());
            prop_assert_eq!(bench.kernel.sorted(), bench.fresh());
            prop_assert_eq!(bench.iptables.counters().failures, 0);
            prop_assert_eq!(bench.iptables.counters().rules, bench.counted());
        }
        prop_assert_eq!(bench.kernel.state.lock().saves, 1);
        let drift = bench.sync(SyncKind::Drift, Changes::new());
        prop_assert_eq!(drift.changes(), 0);
    }

    #[test]
    fn wherever_a_sync_is_cut_each_packet_meets_what_was_or_what_will_be(
        from in proptest::collection::vec(some_service(), 1..5),
        to in proptest::collection::vec((some_service(), any::<bool>()), 1..5),
        limits in prop_oneof![Just(Limits::LEGACY), Just(SPLIT)],
    ) {
        let mut bench = Bench::new(limits);
        bench.set(&from);
        let (old, tables) = (bench.fates(), bench.kernel.state.lock().tables.clone());
        let runs = bench.kernel.state.lock().texts.len();
        let changes = to.into_iter().map(|(entry, there)| (entry.service.key.clone(), there.then_some(entry)));
        bench.sync(SyncKind::Changes, changes.collect());
        let new = bench.fates();
        let texts = bench.kernel.state.lock().texts[runs..].concat();
        bench.kernel.state.lock().tables = tables;
        for part in texts.split_inclusive("COMMIT\n") {
            bench.kernel.restore(&[part]).unwrap();
            for ((now, old), new) in bench.fates().iter().zip(&old).zip(&new) {
                prop_assert!(now == old || now == new, "{:?} between {:?} and {:?} after\n{}", now, old, new, part);
            }
        }
        prop_assert_eq!(bench.fates(), new);
    }

    #[test]
    fn a_restart_with_other_services_comes_to_the_same(
        from in proptest::collection::vec(some_service(), 0..6),
        to in proptest::collection::vec(some_service(), 0..6),
        limits in prop_oneof![Just(Limits::LEGACY), Just(SPLIT), Just(Limits { rules_per_delete: 1, ..SPLIT })],
    ) {
        let mut bench = Bench::new(limits);
        bench.set(&from);
        bench.services.clear();
        bench.iptables = Iptables::new(Box::new(bench.kernel.clone()), context());
        let report = bench.set(&to);
        prop_assert_eq!(bench.kernel.sorted(), bench.fresh());
        prop_assert_eq!(report.drift_repairs, 0);
        prop_assert_eq!(bench.iptables.counters().failures, 0);
        prop_assert_eq!(bench.iptables.counters().rules, bench.counted());
    }
}
