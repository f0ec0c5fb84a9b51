//! Rules in a real kernel, read back, answer as those that were compiled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use telaio_model::IpFamily;
use telaio_netlink::netns::Netns;
use telaio_reconcile::{ApplyError, PartReconciler, SyncKind};
use telaio_service_proxy::iptables::compile::Context;
use telaio_service_proxy::iptables::proxier::{Changes, Kernel as IptablesKernel, View};
use telaio_service_proxy::iptables::restore::Limits;
use telaio_service_proxy::iptables::{self, Flavor, Iptables, Programs, Ruleset, Services};
use telaio_service_proxy::nftables;
use telaio_service_proxy::nftables::target::Kernel;
use telaio_service_proxy::trace::{Packet, Trace};

use crate::generate;
use crate::incremental::{Mishap, Syncer, at_once, mishaps, same};
use crate::oracle::Backend;
use crate::story::{Follower, steps};
use crate::world::{World, facts};

/// A namespace that is gone when the test ends.
pub(crate) struct Namespace(Netns);

impl Namespace {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("tl-diff-{name}-{}", std::process::id());
        Self(Netns::create(&name).expect("these tests need root"))
    }

    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Netns::remove(self.0.name()).unwrap();
    }
}

/// Always the same values: a real kernel is slow, so it gets few, and those must not change.
pub(crate) struct Fixed(TestRunner);

impl Fixed {
    pub(crate) fn new() -> Self {
        Self(TestRunner::deterministic())
    }

    pub(crate) fn one<S: Strategy>(&mut self, strategy: S) -> S::Value {
        strategy.new_tree(&mut self.0).unwrap().current()
    }
}

/// What counts of an answer.
fn fate(trace: Trace) -> impl PartialEq + std::fmt::Debug {
    (trace.verdict, trace.endpoints, trace.masquerade)
}

#[test]
fn nftables_read_from_the_kernel_traces_as_compiled() {
    let namespace = Namespace::new("read-nft");
    let mut fixed = Fixed::new();
    for _ in 0..12 {
        let world = fixed.one(generate::worlds());
        let shots = fixed.one(vec(generate::shots(), 300));
        let packets: Vec<Packet> = shots.iter().map(|shot| shot.at(&world)).collect();
        let rules = world.rules();
        let live = namespace.run(|| {
            let kernel = Kernel::open(&world.config.families).unwrap();
            let mut reconciler = PartReconciler::new(kernel);
            reconciler.reconcile(&world.desired(&world.view())).unwrap();
            // Not the one that wrote them: it might remember.
            Kernel::open(&world.config.families).unwrap().read().unwrap().items
        });
        same(&live, &rules.nftables).unwrap_or_else(|differences| panic!("{differences}"));
        for packet in &packets {
            let compiled = rules.trace(Backend::Nftables, packet);
            let read = nftables::trace(packet, &rules.around, &live);
            assert_eq!(fate(read), fate(compiled), "{packet:?}");
        }
    }
}

#[test]
fn nftables_changed_step_by_step_in_the_kernel_is_as_compiled_at_once() {
    let namespace = Namespace::new("steps-nft");
    let mut fixed = Fixed::new();
    for _ in 0..6 {
        let mut world = fixed.one(generate::worlds());
        let story = fixed.one(steps(10));
        namespace.run(|| {
            let kernel = Kernel::open(&world.config.families).unwrap();
            let mut syncer = Syncer::new(kernel, &world);
            let mut follower = Follower::new();
            for (i, step) in story.iter().enumerate() {
                world = step.take(&world);
                let changed = follower.tell(&world);
                syncer.sync(&follower, changed).unwrap();
                let live = Kernel::open(&world.config.families).unwrap().read().unwrap().items;
                same(&live, &at_once(&world)).unwrap_or_else(|it| panic!("step {i}: {it}"));
            }
        });
    }
}

/// Runs a program with a text, and gives what it prints.
fn program(name: &str, arguments: &[&str], text: &str) -> String {
    use std::io::Write as _;
    let mut child = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{name} is needed: {error}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {said}\n{text}");
    String::from_utf8(output.stdout).unwrap()
}

/// Such as `ip6tables-legacy-save`.
fn tool(flavor: Flavor, family: IpFamily, what: &str) -> String {
    let flavor = if flavor == Flavor::Legacy { "legacy" } else { "nft" };
    let base = if family == IpFamily::V4 { "iptables" } else { "ip6tables" };
    format!("{base}-{flavor}-{what}")
}

/// Puts a world's rules where nothing is, and reads them.
pub(crate) fn restored(world: &World, flavor: Flavor, family: IpFamily) -> String {
    let text = world.iptables_text(&world.view(), family);
    program(&tool(flavor, family, "restore"), &["--noflush"], &text);
    program(&tool(flavor, family, "save"), &[], "")
}

#[test]
fn iptables_read_from_the_kernel_traces_as_compiled() {
    let mut fixed = Fixed::new();
    for (i, flavor) in [Flavor::Nft, Flavor::Legacy, Flavor::Nft, Flavor::Legacy].iter().enumerate()
    {
        let world = fixed.one(generate::worlds());
        let shots = fixed.one(vec(generate::shots(), 300));
        let packets: Vec<Packet> = shots.iter().map(|shot| shot.at(&world)).collect();
        let namespace = Namespace::new(&format!("read-ipt-{i}"));
        let rules = world.rules();
        let live: BTreeMap<IpFamily, Ruleset> = namespace.run(|| {
            let families = world.config.families.iter();
            let read = |family| Ruleset::parse(&restored(&world, *flavor, family));
            families.map(|family| (*family, read(*family))).collect()
        });
        let of_family = |it: &&Packet| live.contains_key(&IpFamily::of(it.to.ip()));
        for packet in packets.iter().filter(of_family) {
            let compiled = rules.trace(Backend::Iptables, packet);
            let family = IpFamily::of(packet.to.ip());
            let read = iptables::trace(packet, &rules.around, &live[&family]);
            assert_eq!(fate(read), fate(compiled), "{packet:?}");
        }
    }
}

/// The programs, with a mishap now and then.
struct Clumsy {
    programs: Programs,
    mishaps: Arc<Mutex<VecDeque<Mishap>>>,
}

impl IptablesKernel for Clumsy {
    fn save(&mut self) -> Result<String, ApplyError> {
        IptablesKernel::save(&mut self.programs)
    }

    fn restore(&mut self, text: &[&str]) -> Result<(), ApplyError> {
        let failed = || Err(ApplyError::Conflict("as it was to be".to_owned()));
        match self.mishaps.lock().pop_front() {
            Some(Mishap::Refused | Mishap::TakenAway) => failed(),
            Some(Mishap::AnswerLost) => {
                self.programs.restore(text)?;
                failed()
            }
            Some(Mishap::Nothing) | None => self.programs.restore(text),
        }
    }

    fn limits(&self) -> Limits {
        self.programs.limits()
    }
}

/// Our chains and their rules, whatever their order.
fn ours(saved: &str) -> BTreeSet<(String, String)> {
    let mut table = String::new();
    let mut ours = BTreeSet::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            name.clone_into(&mut table);
        } else if line.contains("TELAIO-") {
            let line = line.split(" [").next().unwrap_or_default();
            ours.insert((table.clone(), line.to_owned()));
        }
    }
    ours
}

fn iptables_step_by_step(flavor: Flavor, with_mishaps: bool) {
    let mut fixed = Fixed::new();
    for round in 0..3 {
        let mut world = fixed.one(generate::worlds());
        world.config.families = IpFamily::ALL.to_vec();
        let story = fixed.one(steps(6));
        let luck = fixed.one(vec(mishaps(), 60));
        let luck = if with_mishaps { luck } else { Vec::new() };
        for family in IpFamily::ALL {
            let name = format!("{round}-{family}-{}", tool(flavor, family, "x"));
            let (stepped, fresh) =
                (Namespace::new(&format!("s{name}")), Namespace::new(&format!("f{name}")));
            let mut world = world.clone();
            let stepped = stepped.run(|| {
                let mishaps = Arc::new(Mutex::new(VecDeque::from(luck.clone())));
                let programs = Programs::find(flavor, family).unwrap();
                let kernel = Clumsy { programs, mishaps: Arc::clone(&mishaps) };
                let mut follower = Follower::new();
                let node = facts(&follower.state);
                let context = Context::new(&world.config, &node, family);
                let mut iptables = Iptables::new(Box::new(kernel), context);
                let mut services = Services::new();
                let mut changes = Changes::new();
                for step in &story {
                    world = step.take(&world);
                    let changed = follower.tell(&world).into_iter();
                    changes.extend(
                        changed.map(|key| (key.clone(), follower.state.get(&key).cloned())),
                    );
                    let node = facts(&follower.state);
                    iptables.set_context(Context::new(&world.config, &node, family));
                    let view = View { before: &services, changes: &changes };
                    if iptables.sync(SyncKind::Changes, view).is_ok() {
                        keep(&mut services, &mut changes);
                    }
                }
                mishaps.lock().clear();
                let view = View { before: &services, changes: &changes };
                iptables.sync(SyncKind::Changes, view).unwrap();
                program(&tool(flavor, family, "save"), &[], "")
            });
            let fresh = fresh.run(|| restored(&world, flavor, family));
            let (stepped, fresh) = (ours(&stepped), ours(&fresh));
            assert!(!fresh.is_empty(), "there are chains in any case");
            let more: Vec<_> = stepped.difference(&fresh).collect();
            let less: Vec<_> = fresh.difference(&stepped).collect();
            assert!(
                more.is_empty() && less.is_empty(),
                "{family}: too many {more:#?}\ntoo few {less:#?}"
            );
        }
    }
}

fn keep(services: &mut Services, changes: &mut Changes) {
    for (key, change) in std::mem::take(changes) {
        match change {
            Some(entry) => drop(services.insert(key, entry)),
            None => drop(services.remove(&key)),
        }
    }
}

#[test]
fn iptables_nft_changed_step_by_step_is_as_written_at_once() {
    iptables_step_by_step(Flavor::Nft, false);
}

#[test]
fn iptables_legacy_changed_step_by_step_is_as_written_at_once() {
    iptables_step_by_step(Flavor::Legacy, false);
}

#[test]
fn iptables_nft_recovers_from_errors() {
    iptables_step_by_step(Flavor::Nft, true);
}

#[test]
fn iptables_legacy_recovers_from_errors() {
    iptables_step_by_step(Flavor::Legacy, true);
}
