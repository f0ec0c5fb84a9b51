//! The fixed rules of the IPVS backend on the real kernel: both flavours of iptables, both families, in
//! namespaces that each test makes for itself. The rules need ipsets and no virtual server.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::process::Command;

use telaio_model::IpFamily;
use telaio_netlink::netns::Netns;
use telaio_reconcile::SyncKind;
use telaio_service_proxy::config::{DetectLocal, LocalSources, NodeFacts, ProxyConfig};
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::iptables::compile::Context;
use telaio_service_proxy::iptables::proxier::{Changes, View};
use telaio_service_proxy::iptables::{
    FixedRules, Flavor, Iptables, Owner, Programs, Ruleset, Services, cleanup, cleanup_of,
};
use telaio_service_proxy::ipvs::rules::{self, RulesContext};
use telaio_service_proxy::ipvs::sets::{MemberKind, SetKind, SetName};

const FLAVORS: [Flavor; 2] = [Flavor::Nft, Flavor::Legacy];

/// A namespace with all our sets, empty; gone when the test ends.
struct Namespace(Netns);

impl Namespace {
    fn new(name: &str, flavor: Flavor) -> Self {
        let name = format!("tl-ipvsr-{name}-{flavor:?}-{}", std::process::id());
        let namespace = Self(Netns::create(&name).expect("these tests need root"));
        namespace.run(make_sets);
        namespace
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Netns::remove(self.0.name()).unwrap();
    }
}

fn make_sets() {
    IpFamily::ALL.into_iter().flat_map(SetName::all).for_each(make_set);
}

fn make_set(set: SetName) {
    let members = match set.kind.members() {
        MemberKind::Ip => "hash:ip",
        MemberKind::IpPort | MemberKind::IpPortMark => "hash:ip,port",
        MemberKind::IpPortIp => "hash:ip,port,ip",
        MemberKind::IpPortNet => "hash:ip,port,net",
    };
    let mark = if set.kind.members() == MemberKind::IpPortMark { "skbinfo" } else { "" };
    let family = if set.family == IpFamily::V4 { "inet" } else { "inet6" };
    output(&format!("ipset create {set} {members} family {family} {mark}"));
}

/// What a program prints; it must succeed.
fn output(command: &str) -> String {
    let output = Command::new("/bin/sh").args(["-c", command]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn program(flavor: Flavor, family: IpFamily) -> &'static str {
    match (flavor, family) {
        (Flavor::Legacy, IpFamily::V4) => "iptables-legacy",
        (Flavor::Legacy, IpFamily::V6) => "ip6tables-legacy",
        (_, IpFamily::V4) => "iptables-nft",
        (_, IpFamily::V6) => "ip6tables-nft",
    }
}

/// The lines of a family that say something of a rule or a chain, without counters.
fn saved(flavor: Flavor, family: IpFamily) -> Vec<String> {
    output(&format!("{}-save", program(flavor, family)))
        .lines()
        .filter(|line| line.starts_with([':', '-', '*']))
        .map(|line| line.split(" [").next().unwrap().to_owned())
        .collect()
}

fn read(flavor: Flavor, family: IpFamily, owner: Owner) -> Ruleset {
    Ruleset::of(owner, &saved(flavor, family).join("\n"))
}

fn context(family: IpFamily) -> RulesContext {
    let nets = ["10.244.0.0/16", "10.245.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
    let detect_local = DetectLocal::ClusterCidr(nets.to_vec());
    let config = ProxyConfig { detect_local, ..ProxyConfig::default() };
    RulesContext::new(&config, &NodeFacts::default(), family)
}

fn fixed(flavor: Flavor, family: IpFamily) -> FixedRules {
    let programs = Programs::find(flavor, family).unwrap();
    let scaffold = rules::scaffold(&context(family));
    FixedRules::new(Owner::Ipvs, Box::new(programs), family, scaffold)
}

fn every_flavor_and_family(name: &str, work: impl Fn(Flavor, IpFamily) + Sync) {
    for flavor in FLAVORS {
        let namespace = Namespace::new(name, flavor);
        namespace.run(|| IpFamily::ALL.iter().for_each(|family| work(flavor, *family)));
    }
}

#[test]
fn what_is_written_is_read_back_word_for_word() {
    every_flavor_and_family("words", |flavor, family| {
        let mut contexts = vec![context(family)];
        for local in [
            LocalSources::Nowhere,
            LocalSources::Interface("cbr0".into()),
            LocalSources::InterfacePrefix("veth".into()),
        ] {
            contexts.push(RulesContext { local, masquerade_all: true, ..context(family) });
        }
        let mut fixed = fixed(flavor, family);
        let states = contexts.iter().map(rules::scaffold);
        for scaffold in states.chain([rules::leaving_scaffold(&contexts[0])]) {
            fixed.set_scaffold(scaffold.clone());
            let commits = fixed.counters().commits;
            fixed.sync(SyncKind::Changes).unwrap();
            assert!(fixed.counters().commits > commits, "it had to change something");
            let lines = saved(flavor, family);
            for (_, chain, rules) in &scaffold.chains {
                let found: Vec<&String> =
                    lines.iter().filter(|it| it.starts_with(&format!("-A {chain} "))).collect();
                let wanted: Vec<String> =
                    rules.iter().map(|rule| format!("-A {chain} {rule}")).collect();
                assert_eq!(found, wanted.iter().collect::<Vec<_>>());
            }
            for (_, chain, rule) in &scaffold.jumps {
                assert!(lines.contains(&format!("-A {chain} {rule}")), "{rule}\n{lines:#?}");
            }
            let commits = fixed.counters().commits;
            let report = fixed.sync(SyncKind::Full).unwrap();
            assert_eq!((report.changes(), fixed.counters().commits), (0, commits));
        }
    });
}

#[test]
fn the_rendered_text_is_what_a_sync_programs() {
    every_flavor_and_family("text", |flavor, family| {
        let text = rules::render(&context(family));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        let program = program(flavor, family);
        output(&format!("{program}-restore --noflush < {}", file.path().display()));
        assert_eq!(fixed(flavor, family).sync(SyncKind::Full).unwrap().changes(), 0);
    });
}

#[test]
fn what_somebody_else_changes_is_mended() {
    every_flavor_and_family("drift", |flavor, family| {
        let mut fixed = fixed(flavor, family);
        fixed.sync(SyncKind::Changes).unwrap();
        let right = saved(flavor, family);
        let program = program(flavor, family);
        for (how, faults) in [
            ("-t mangle -D TELAIO-IPVS-INPUT 1", 1),
            ("-t mangle -F TELAIO-IPVS-REMOTE", 1),
            ("-t mangle -F INPUT", 1),
            ("-t mangle -A TELAIO-IPVS-OUTPUT -j ACCEPT", 1),
            ("-t filter -N TELAIO-IPVS-FOREIGN", 1),
            ("-t filter -R TELAIO-IPVS-FILTER 1 -j DROP", 1),
            ("-t nat -X TELAIO-IPVS-CANARY", 1),
            ("-t nat -F", 2),
        ] {
            output(&format!("{program} {how}"));
            let report = fixed.sync(SyncKind::Drift).unwrap();
            assert_eq!(report.drift_repairs, faults, "{program} {how}");
            let (mut mended, mut right) = (saved(flavor, family), right.clone());
            mended.sort();
            right.sort();
            assert_eq!(mended, right, "{program} {how}");
        }
    });
}

#[test]
fn rules_of_others_stay_and_nothing_of_ours_does() {
    every_flavor_and_family("clean", |flavor, family| {
        let program = program(flavor, family);
        output(&format!("{program} -t mangle -N OTHER"));
        output(&format!("{program} -t mangle -A INPUT -j OTHER"));
        output(&format!("{program} -t filter -A INPUT -p tcp -j ACCEPT"));
        output(&format!("{program} -t nat -A POSTROUTING -p tcp -j ACCEPT"));
        let before = saved(flavor, family);
        let mut fixed = fixed(flavor, family);
        fixed.sync(SyncKind::Changes).unwrap();
        assert_ne!(saved(flavor, family), before);
        assert!(!cleanup_of(Owner::Ipvs, &[flavor]).unwrap().is_empty());
        assert_eq!(saved(flavor, family), before);
        assert!(cleanup_of(Owner::Ipvs, &[flavor]).unwrap().is_empty());
        // The same by a sync without any rules.
        fixed.sync(SyncKind::Full).unwrap();
        fixed.set_scaffold(rules::no_scaffold());
        fixed.sync(SyncKind::Changes).unwrap();
        assert_eq!(saved(flavor, family), before);
        // What no rule asks about any more can go.
        for set in SetName::all(family) {
            output(&format!("ipset destroy {set}"));
        }
    });
}

#[test]
fn each_backend_leaves_the_other_alone() {
    every_flavor_and_family("both", |flavor, family| {
        let mut fixed = fixed(flavor, family);
        let programs = Box::new(Programs::find(flavor, family).unwrap());
        let context = Context::new(&ProxyConfig::default(), &NodeFacts::default(), family);
        let mut iptables = Iptables::new(programs, context);
        let web = match family {
            IpFamily::V4 => Fixture::new("web").cluster_ip([10, 96, 0, 1]).remote([10, 244, 2, 1]),
            IpFamily::V6 => Fixture::new("web")
                .cluster_ip([0xfd00, 0x96, 0, 0, 0, 0, 0, 1])
                .remote([0xfd00, 0x244, 0, 0, 0, 0, 0, 1]),
        };
        let web = web.build();
        let services = Services::from([(web.service.key.clone(), web)]);
        let changes = Changes::new();
        let view = View { before: &services, changes: &changes };
        fixed.sync(SyncKind::Changes).unwrap();
        iptables.sync(SyncKind::Changes, view).unwrap();
        for kind in [SyncKind::Full, SyncKind::Drift] {
            assert_eq!(fixed.sync(kind).unwrap().changes(), 0);
            assert_eq!(iptables.sync(kind, view).unwrap().changes(), 0);
        }
        let of = |owner| read(flavor, family, owner);
        let (ipvs, other) = (of(Owner::Ipvs), of(Owner::Iptables));
        cleanup(&[flavor]).unwrap();
        assert_eq!((of(Owner::Ipvs), of(Owner::Iptables)), (ipvs, Ruleset::default()));
        iptables.sync(SyncKind::Full, view).unwrap();
        cleanup_of(Owner::Ipvs, &[flavor]).unwrap();
        assert_eq!((of(Owner::Ipvs), of(Owner::Iptables)), (Ruleset::default(), other));
    });
}

#[test]
fn a_set_that_is_missing_is_named_and_once_it_is_there_all_is_well() {
    every_flavor_and_family("noset", |flavor, family| {
        let local = SetName { kind: SetKind::Local, family };
        output(&format!("ipset destroy {local}"));
        let mut fixed = fixed(flavor, family);
        let error = fixed.sync(SyncKind::Changes).unwrap_err();
        assert!(error.to_string().contains(local.as_str()), "{error}");
        make_set(local);
        fixed.sync(SyncKind::Changes).unwrap();
        assert_eq!(fixed.sync(SyncKind::Full).unwrap().changes(), 0);
    });
}
