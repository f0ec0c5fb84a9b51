//! Changes applied one by one, with errors in between, come to the same as everything at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use telaio_model::{IpFamily, ObjectKey};
use telaio_reconcile::{ApplyError, Change, Observed, PartReconciler, PartialTarget, Target};
use telaio_service_proxy::config::NodeFacts;
use telaio_service_proxy::nftables::compile::{Item, Key};
use telaio_service_proxy::nftables::desired::{Desired, Part};
use telaio_service_proxy::nftables::target::Kernel;

use crate::generate;
use crate::packets::cases;
use crate::story::{Follower, Step, steps};
use crate::world::{World, facts};

/// What goes wrong with a change that is to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    Nothing,
    /// It is not carried out.
    Refused,
    /// It is carried out, and nobody hears of it.
    AnswerLost,
    /// Somebody takes something away just before.
    TakenAway,
}

pub(crate) fn mishaps() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        4 => Just(Mishap::Nothing),
        1 => Just(Mishap::Refused),
        1 => Just(Mishap::AnswerLost),
        1 => Just(Mishap::TakenAway),
    ]
}

/// A kernel that is only played. The real one is there to compile, which asks it nothing.
struct Played {
    real: Kernel,
    items: BTreeMap<Key, Item>,
    mishap: Mishap,
}

impl Target for Played {
    type Input = Desired;
    type Key = Key;
    type Item = Item;

    fn compile(&self, input: &Desired) -> BTreeMap<Key, Item> {
        self.real.compile(input)
    }

    fn observe(&mut self) -> Result<Observed<Key, Item>, ApplyError> {
        Ok(Observed::new(self.items.clone()))
    }

    fn apply(&mut self, changes: &[Change<Key, Item>]) -> Result<(), ApplyError> {
        let mishap = std::mem::replace(&mut self.mishap, Mishap::Nothing);
        let failed = || ApplyError::Conflict("as it was to be".to_owned());
        match mishap {
            Mishap::Refused => return Err(failed()),
            Mishap::TakenAway => {
                self.items.pop_first();
                return Err(failed());
            }
            Mishap::Nothing | Mishap::AnswerLost => {}
        }
        for change in changes {
            // The kernel refuses what does not fit what is there.
            let there = self.items.get(change.key());
            assert_eq!(there, change.old(), "{}: not what is there", change.key());
            match change {
                Change::Create { key, new } | Change::Update { key, new, .. } => {
                    self.items.insert(key.clone(), new.clone());
                }
                Change::Delete { key, .. } => drop(self.items.remove(key)),
            }
        }
        if mishap == Mishap::AnswerLost { Err(failed()) } else { Ok(()) }
    }
}

impl PartialTarget for Played {
    type Part = Part;

    fn parts(&self, input: &Desired) -> Vec<Part> {
        self.real.parts(input)
    }

    fn compile_part(&self, input: &Desired, part: &Part) -> Vec<(Key, Item)> {
        self.real.compile_part(input, part)
    }
}

/// What the nftables backend does with each view, in short.
pub(crate) struct Syncer<T: PartialTarget<Input = Desired, Part = Part>> {
    pub(crate) reconciler: PartReconciler<T>,
    desired: Desired,
    unapplied: BTreeSet<ObjectKey>,
    shared: bool,
    everything: bool,
}

impl<T: PartialTarget<Input = Desired, Part = Part>> Syncer<T> {
    pub(crate) fn new(target: T, world: &World) -> Self {
        let config = Arc::new(world.config.clone());
        let desired = Desired::new(config, NodeFacts::default(), world.localhost());
        Self {
            reconciler: PartReconciler::new(target),
            desired,
            unapplied: BTreeSet::new(),
            shared: false,
            everything: false,
        }
    }

    pub(crate) fn sync(
        &mut self,
        follower: &Follower,
        changed: BTreeSet<ObjectKey>,
    ) -> Result<(), ApplyError> {
        self.everything |= self.desired.set_node(facts(&follower.state));
        for key in changed {
            self.shared |= self.desired.set_service(&key, follower.state.get(&key).cloned());
            self.unapplied.insert(key);
        }
        if self.everything {
            self.reconciler.reconcile(&self.desired)?;
        } else {
            let shared = self.shared.then_some(Part::Shared);
            let parts: Vec<Part> =
                self.unapplied.iter().flat_map(Part::of_service).chain(shared).collect();
            self.reconciler.reconcile_part(&parts, &self.desired)?;
        }
        (self.everything, self.shared) = (false, false);
        self.unapplied.clear();
        Ok(())
    }
}

/// What would stand there, had this been the first that anybody heard of the cluster.
pub(crate) fn at_once(world: &World) -> BTreeMap<Key, Item> {
    world.desired(&world.view()).items()
}

/// Nothing is different, said so that a person sees what is.
pub(crate) fn same(is: &BTreeMap<Key, Item>, wanted: &BTreeMap<Key, Item>) -> Result<(), String> {
    let wrong = |(key, item): &(&Key, &Item)| wanted.get(*key) != Some(item);
    let more = is.iter().filter(wrong).map(|(key, item)| format!("is {key}: {item:?}"));
    let wrong = |(key, item): &(&Key, &Item)| is.get(*key) != Some(item);
    let less = wanted.iter().filter(wrong).map(|(key, item)| format!("wanted {key}: {item:?}"));
    let differences: Vec<String> = more.chain(less).collect();
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

fn follow(world: &World, steps: &[Step], mishaps: &[Mishap]) -> Result<(), TestCaseError> {
    let real = Kernel::open(&world.config.families).unwrap();
    let target = Played { real, items: BTreeMap::new(), mishap: Mishap::Nothing };
    let mut syncer = Syncer::new(target, world);
    let mut follower = Follower::new();
    let mut world = world.clone();
    for (i, step) in steps.iter().enumerate() {
        world = step.take(&world);
        let changed = follower.tell(&world);
        syncer.reconciler.target_mut().mishap = mishaps.get(i).copied().unwrap_or(Mishap::Nothing);
        if syncer.sync(&follower, changed).is_ok() {
            let is = &syncer.reconciler.target().items;
            let differs = same(is, &at_once(&world)).err();
            prop_assert!(differs.is_none(), "after step {i}: {}", differs.unwrap());
        }
    }
    prop_assert_eq!(&follower.state, &world.view(), "the view itself differs");
    syncer.reconciler.target_mut().mishap = Mishap::Nothing;
    prop_assert!(syncer.sync(&follower, BTreeSet::new()).is_ok());
    let differs = same(&syncer.reconciler.target().items, &at_once(&world)).err();
    prop_assert!(differs.is_none(), "at the end: {}", differs.unwrap());
    Ok(())
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn changes_one_by_one_come_to_the_same_as_all_at_once(
        world in generate::worlds(),
        steps in steps(8),
    ) {
        follow(&world, &steps, &[])?;
    }

    #[test]
    fn errors_in_between_leave_no_trace(
        world in generate::worlds(),
        steps in steps(8),
        mishaps in vec(mishaps(), 8),
    ) {
        follow(&world, &steps, &mishaps)?;
    }
}

/// Every family's tables belong to a sync, whatever the cluster has.
#[test]
fn an_empty_cluster_has_its_tables() {
    let mut world = World::empty();
    world.config.families = IpFamily::ALL.to_vec();
    let items = at_once(&world);
    for family in IpFamily::ALL {
        assert!(items.keys().any(|key| key.family() == family), "{family}");
    }
}
