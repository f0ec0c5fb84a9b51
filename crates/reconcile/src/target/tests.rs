use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::pacer::SyncKind;

type Items = BTreeMap<u8, u8>;
/// Services, each with the items that it wants.
type Input = BTreeMap<u8, Items>;

/// What goes wrong in an `apply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Nothing is done.
    BeforeAnything,
    /// Everything of ours is gone, and nothing is done.
    EverythingLost,
    /// Everything is done, and yet an error comes back.
    AnswerLost,
    /// Only the first change is done.
    HalfDone,
    /// Nothing is done, and trying again is no use.
    Refused,
}

/// A machine in memory that refuses whatever does not fit what it has.
#[derive(Debug, Default)]
struct Machine {
    items: Items,
    /// What the next applies meet, last first; none: they go well.
    faults: Vec<Fault>,
    observe_fails: bool,
    observations: usize,
    looks: usize,
    /// What the last look was told that we had left.
    applied_told: Vec<u8>,
    applies: usize,
    parts_compiled: std::cell::Cell<usize>,
}

impl Machine {
    fn carry_out(&mut self, change: &Change<u8, u8>) -> Result<(), ApplyError> {
        if self.items.get(change.key()) != change.old() {
            return Err(ApplyError::Conflict(format!("{change:?}")));
        }
        match change.new_item() {
            Some(new) => self.items.insert(*change.key(), *new),
            None => self.items.remove(change.key()),
        };
        Ok(())
    }
}

impl Target for Machine {
    type Input = Input;
    type Key = u8;
    type Item = u8;

    fn compile(&self, input: &Input) -> Items {
        compile_by_parts(self, input)
    }

    fn observe(&mut self) -> Result<Observed<u8, u8>, ApplyError> {
        self.observations += 1;
        if self.observe_fails {
            return Err(ApplyError::Transient("observe".into()));
        }
        Ok(Observed::new(self.items.clone()))
    }

    fn apply(&mut self, changes: &[Change<u8, u8>]) -> Result<(), ApplyError> {
        self.applies += 1;
        assert!(changes.is_sorted_by_key(|change| *change.key()));
        let fault = self.faults.pop();
        match fault {
            Some(Fault::BeforeAnything) => return Err(ApplyError::Transient("busy".into())),
            Some(Fault::Refused) => return Err(ApplyError::Refused("bad".into())),
            Some(Fault::EverythingLost) => {
                self.items.clear();
                return Err(ApplyError::Transient("lost".into()));
            }
            Some(Fault::HalfDone) => {
                changes.iter().take(1).try_for_each(|change| self.carry_out(change))?;
                return Err(ApplyError::Transient("half".into()));
            }
            Some(Fault::AnswerLost) | None => {}
        }
        let before = self.items.clone();
        for change in changes {
            if let Err(error) = self.carry_out(change) {
                self.items = before;
                return Err(error);
            }
        }
        if fault.is_some() { Err(ApplyError::Transient("answer lost".into())) } else { Ok(()) }
    }
}

impl PartialTarget for Machine {
    type Part = u8;

    fn parts(&self, input: &Input) -> Vec<u8> {
        input.keys().rev().copied().collect()
    }

    fn compile_part(&self, input: &Input, part: &u8) -> Vec<(u8, u8)> {
        self.parts_compiled.set(self.parts_compiled.get() + 1);
        input.get(part).cloned().unwrap_or_default().into_iter().collect()
    }
}

impl TouchTarget for Machine {
    /// `None`: nobody knows.
    type Touched = Option<BTreeSet<u8>>;

    fn observe_touched(
        &mut self,
        touched: &Option<BTreeSet<u8>>,
        applied: &Applied<'_, u8, u8>,
    ) -> Result<Option<ItemsNow<Self>>, ApplyError> {
        self.looks += 1;
        if self.observe_fails {
            return Err(ApplyError::Transient("look".into()));
        }
        self.applied_told =
            touched.iter().flatten().filter_map(|key| applied.get(key).copied()).collect();
        let now = |key: &u8| (*key, self.items.get(key).copied());
        Ok(touched.as_ref().map(|keys| keys.iter().map(now).collect()))
    }
}

fn input(parts: &[(u8, &[(u8, u8)])]) -> Input {
    parts.iter().map(|(part, items)| (*part, items.iter().copied().collect())).collect()
}

fn with_faults(faults: &[Fault]) -> Machine {
    Machine { faults: faults.to_vec(), ..Machine::default() }
}

#[test]
fn only_the_difference_is_applied_and_none_costs_nothing() {
    let mut reconciler = Reconciler::new(Machine::default());
    let first = input(&[(1, &[(1, 10), (2, 20)])]);
    let report = reconciler.reconcile(&first).unwrap();
    assert_eq!(report, SyncReport { created: 2, ..SyncReport::default() });
    let report = reconciler.reconcile(&first).unwrap();
    assert_eq!(report.changes(), 0);
    assert_eq!((reconciler.target().applies, reconciler.target().observations), (1, 1));
    let report = reconciler.reconcile(&input(&[(1, &[(2, 21)])])).unwrap();
    assert_eq!(report, SyncReport { updated: 1, deleted: 1, ..SyncReport::default() });
}

#[test]
fn what_an_earlier_run_left_is_taken_over_at_start() {
    let left = Items::from([(1, 10), (2, 99), (3, 30)]);
    let mut reconciler = Reconciler::new(Machine { items: left, ..Machine::default() });
    let report = reconciler.reconcile(&input(&[(1, &[(1, 10), (2, 20)])])).unwrap();
    assert_eq!(report, SyncReport { updated: 1, deleted: 1, ..SyncReport::default() });
    assert_eq!(reconciler.target().items, Items::from([(1, 10), (2, 20)]));
}

#[test]
fn before_the_first_input_nothing_is_removed() {
    let left = Items::from([(1, 10)]);
    let mut reconciler = Reconciler::new(Machine { items: left, ..Machine::default() });
    assert!(reconciler.check_drift().unwrap().is_clean());
    assert_eq!(reconciler.retry().unwrap().changes(), 0);
    assert_eq!(reconciler.target().items.len(), 1);
}

#[test]
fn an_error_is_answered_by_observing_and_repairing() {
    for fault in [Fault::BeforeAnything, Fault::EverythingLost, Fault::AnswerLost, Fault::HalfDone]
    {
        let mut reconciler = Reconciler::new(with_faults(&[fault]));
        let wanted = input(&[(1, &[(1, 10), (2, 20)])]);
        reconciler.reconcile(&wanted).unwrap();
        assert_eq!(reconciler.target().items, wanted[&1], "{fault:?}");
        assert_eq!(reconciler.target().observations, 2, "{fault:?}");
    }
}

#[test]
fn a_second_error_is_the_callers_and_a_retry_needs_no_input() {
    let mut reconciler = Reconciler::new(with_faults(&[Fault::EverythingLost, Fault::HalfDone]));
    let wanted = input(&[(1, &[(1, 10), (2, 20)])]);
    assert!(reconciler.reconcile(&wanted).unwrap_err().can_retry());
    reconciler.retry().unwrap();
    assert_eq!(reconciler.target().items, wanted[&1]);
}

#[test]
fn what_was_refused_is_not_tried_twice() {
    let mut reconciler = Reconciler::new(with_faults(&[Fault::Refused]));
    let error = reconciler.reconcile(&input(&[(1, &[(1, 10)])])).unwrap_err();
    assert!(!error.can_retry());
    assert_eq!(reconciler.target().applies, 1);
}

#[test]
fn a_conflict_with_what_somebody_else_did_is_repaired() {
    let mut reconciler = Reconciler::new(Machine::default());
    reconciler.reconcile(&input(&[(1, &[(1, 10)])])).unwrap();
    reconciler.target_mut().items.insert(1, 77);
    reconciler.reconcile(&input(&[(1, &[(1, 11)])])).unwrap();
    assert_eq!(reconciler.target().items, Items::from([(1, 11)]));
}

#[test]
fn drift_is_told_and_mended() {
    let mut reconciler = Reconciler::new(Machine::default());
    let wanted = input(&[(1, &[(1, 10), (2, 20), (3, 30)])]);
    reconciler.reconcile(&wanted).unwrap();
    reconciler.target_mut().items = Items::from([(2, 99), (3, 30), (4, 40)]);
    let drift = reconciler.check_drift().unwrap();
    assert_eq!(drift, DriftReport { missing: vec![1], altered: vec![2], unexpected: vec![4] });
    assert_eq!(drift.to_sync_report().drift_repairs, 3);
    assert_eq!(reconciler.target().items, wanted[&1]);
    assert!(reconciler.check_drift().unwrap().is_clean());
    assert_eq!(reconciler.target().applies, 2);
}

#[test]
fn what_was_touched_is_told_and_mended_without_observing_everything() {
    let mut reconciler = Reconciler::new(Machine::default());
    reconciler.reconcile(&input(&[(1, &[(1, 10), (2, 20), (3, 30)])])).unwrap();
    reconciler.target_mut().items = Items::from([(2, 99), (3, 30), (4, 40)]);
    let touched = Some(BTreeSet::from([1, 2, 3, 4]));
    let drift = reconciler.check_touched(&touched).unwrap();
    assert_eq!(drift, DriftReport { missing: vec![1], altered: vec![2], unexpected: vec![4] });
    assert_eq!(reconciler.target().applied_told, [10, 20, 30]);
    assert_eq!(reconciler.target().items, Items::from([(1, 10), (2, 20), (3, 30)]));
    assert!(reconciler.check_touched(&touched).unwrap().is_clean());
    assert_eq!(reconciler.target().observations, 1, "only the first reconcile's");
}

#[test]
fn where_nobody_knows_what_was_touched_everything_is_observed() {
    let mut reconciler = Reconciler::new(Machine::default());
    let wanted = input(&[(1, &[(1, 10)])]);
    assert!(reconciler.check_touched(&None).unwrap().is_clean(), "nothing is wanted yet");
    reconciler.reconcile(&wanted).unwrap();
    reconciler.target_mut().items.clear();
    assert_eq!(reconciler.check_touched(&None).unwrap().missing, [1]);
    assert_eq!(reconciler.target().observations, 2);
    // Nor after an error: what was not touched may have been lost with it.
    reconciler.target_mut().observe_fails = true;
    assert!(reconciler.check_touched(&Some(BTreeSet::from([7]))).is_err());
    reconciler.target_mut().observe_fails = false;
    reconciler.target_mut().items.clear();
    assert_eq!(reconciler.check_touched(&Some(BTreeSet::from([7]))).unwrap().missing, [1]);
}

#[test]
fn a_drift_check_that_cannot_observe_is_an_error_and_the_next_one_mends() {
    let mut reconciler = Reconciler::new(Machine::default());
    let wanted = input(&[(1, &[(1, 10)])]);
    reconciler.reconcile(&wanted).unwrap();
    reconciler.target_mut().items.clear();
    reconciler.target_mut().observe_fails = true;
    assert!(reconciler.check_drift().is_err());
    reconciler.target_mut().observe_fails = false;
    assert_eq!(reconciler.check_drift().unwrap().missing, [1]);
}

#[test]
fn a_thorough_sync_counts_drift_apart_from_changes() {
    let mut reconciler = Reconciler::new(Machine::default());
    reconciler.sync(SyncKind::Full, &input(&[(1, &[(1, 10)])])).unwrap();
    reconciler.target_mut().items.clear();
    let changed = input(&[(1, &[(1, 10), (2, 20)])]);
    assert_eq!(reconciler.sync(SyncKind::Changes, &changed).unwrap().drift_repairs, 0);
    let report = reconciler.sync(SyncKind::Drift, &changed).unwrap();
    assert_eq!(report, SyncReport { created: 1, drift_repairs: 1, ..SyncReport::default() });
}

#[test]
fn a_part_is_compiled_alone() {
    let mut reconciler = PartReconciler::new(Machine::default());
    let mut all = input(&[(1, &[(1, 10)]), (2, &[(2, 20)]), (3, &[(3, 30)])]);
    reconciler.reconcile(&all).unwrap();
    reconciler.target().parts_compiled.set(0);

    all.insert(2, Items::from([(2, 21), (5, 50)]));
    all.remove(&3);
    let report = reconciler.reconcile_part(&[2, 3], &all).unwrap();
    assert_eq!((report.created, report.updated, report.deleted), (1, 1, 1));
    assert_eq!(reconciler.target().parts_compiled.get(), 2);
    assert_eq!(reconciler.target().items, compile_by_parts(&Machine::default(), &all));
}

#[test]
fn the_first_part_brings_all_the_others() {
    let left = Items::from([(1, 10), (2, 20)]);
    let mut reconciler = PartReconciler::new(Machine { items: left, ..Machine::default() });
    let all = input(&[(1, &[(1, 10)]), (2, &[(2, 20)])]);
    assert_eq!(reconciler.reconcile_part(&[1], &all).unwrap().changes(), 0);
}

#[test]
fn a_key_that_two_parts_want_goes_to_the_first_and_then_to_the_next() {
    let mut reconciler = PartReconciler::new(Machine::default());
    let mut all = input(&[(1, &[(9, 11)]), (2, &[(9, 22)]), (3, &[(9, 33)])]);
    reconciler.reconcile(&all).unwrap();
    assert_eq!(reconciler.target().items, Items::from([(9, 11)]));
    let contested: Vec<_> =
        reconciler.contested().map(|(key, parts)| (*key, parts.copied().collect())).collect();
    assert_eq!(contested, [(9, vec![1, 2, 3])]);

    all.remove(&1);
    reconciler.reconcile_part(&[1], &all).unwrap();
    assert_eq!(reconciler.target().items, Items::from([(9, 22)]));
    all.remove(&3);
    all.remove(&2);
    reconciler.reconcile_part(&[3, 2], &all).unwrap();
    assert!(reconciler.target().items.is_empty());
    assert_eq!(reconciler.contested().count(), 0);
}

#[test]
fn io_errors_say_whether_trying_again_can_help() {
    let from = |kind: std::io::ErrorKind| ApplyError::from_io("opening", kind.into());
    assert!(!from(std::io::ErrorKind::PermissionDenied).can_retry());
    assert!(from(std::io::ErrorKind::Interrupted).can_retry());
    assert!(from(std::io::ErrorKind::NotFound).can_retry());
    let some = vec![from(std::io::ErrorKind::Unsupported), from(std::io::ErrorKind::TimedOut)];
    assert!(ApplyError::several(some).unwrap().can_retry());
    assert!(ApplyError::several(vec![]).is_none());
}

#[derive(Debug, Clone)]
enum Step {
    /// The part gets these items; none of them: it goes.
    Change(u8, Items),
    Reconcile,
    CheckDrift,
    /// Somebody else sets or removes an item.
    Tamper(u8, Option<u8>),
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        Just(Fault::BeforeAnything),
        Just(Fault::EverythingLost),
        Just(Fault::AnswerLost),
        Just(Fault::HalfDone),
        Just(Fault::Refused),
    ];
    proptest::collection::vec(fault, 0..4)
}

fn steps() -> impl Strategy<Value = Vec<(Step, Vec<Fault>)>> {
    let items = proptest::collection::btree_map(0..10_u8, 0..3_u8, 0..5);
    let step = prop_oneof![
        6 => (0..5_u8, items).prop_map(|(part, items)| Step::Change(part, items)),
        1 => Just(Step::Reconcile),
        1 => Just(Step::CheckDrift),
        1 => (0..10_u8, proptest::option::of(0..3_u8)).prop_map(|(k, v)| Step::Tamper(k, v)),
    ];
    proptest::collection::vec((step, prop_oneof![2 => Just(vec![]), 1 => faults()]), 1..25)
}

fn change(all: &mut Input, part: u8, items: Items) {
    if items.is_empty() {
        all.remove(&part);
    } else {
        all.insert(part, items);
    }
}

proptest! {
    #[test]
    fn whatever_happens_a_last_good_reconcile_leaves_what_was_compiled(steps in steps()) {
        let mut reconciler = Reconciler::new(Machine::default());
        let mut all = Input::new();
        for (step, faults) in steps {
            reconciler.target_mut().faults = faults;
            // Errors are part of the game; what counts is the end.
            let _ = match step {
                Step::Change(part, items) => {
                    change(&mut all, part, items);
                    reconciler.reconcile(&all).map(|_| ())
                }
                Step::Reconcile => reconciler.sync(SyncKind::Full, &all).map(|_| ()),
                Step::CheckDrift => reconciler.check_drift().map(|_| ()),
                // Only a drift check can see this; the end has none.
                Step::Tamper(..) => Ok(()),
            };
        }
        reconciler.target_mut().faults.clear();
        reconciler.reconcile(&all).unwrap();
        let wanted = reconciler.target().compile(&all);
        prop_assert_eq!(&reconciler.target().items, &wanted);
        prop_assert!(reconciler.check_drift().unwrap().is_clean());
    }

    #[test]
    fn looking_where_it_was_touched_mends_as_well_as_looking_everywhere(steps in steps()) {
        let mut reconciler = PartReconciler::new(Machine::default());
        let mut all = Input::new();
        let mut touched = BTreeSet::new();
        for (step, faults) in steps {
            reconciler.target_mut().faults = faults;
            match step {
                Step::Change(part, items) => {
                    change(&mut all, part, items);
                    let _ = reconciler.reconcile_part(&[part], &all);
                }
                Step::Reconcile => {
                    let _ = reconciler.reconcile(&all);
                }
                Step::CheckDrift => {
                    if reconciler.check_touched(&Some(touched.clone())).is_ok() {
                        touched.clear();
                    }
                }
                Step::Tamper(key, value) => {
                    touched.insert(key);
                    match value {
                        Some(value) => _ = reconciler.target_mut().items.insert(key, value),
                        None => _ = reconciler.target_mut().items.remove(&key),
                    }
                }
            }
        }
        reconciler.target_mut().faults.clear();
        reconciler.reconcile(&all).unwrap();
        reconciler.check_touched(&Some(touched)).unwrap();
        let whole = compile_by_parts(&Machine::default(), &all);
        prop_assert_eq!(&reconciler.target().items, &whole);
    }

    #[test]
    fn part_by_part_leads_to_the_same_as_the_whole(steps in steps()) {
        let mut reconciler = PartReconciler::new(Machine::default());
        let mut all = Input::new();
        let mut tampered = false;
        for (step, faults) in steps {
            reconciler.target_mut().faults = faults;
            match step {
                Step::Change(part, items) => {
                    change(&mut all, part, items);
                    let outcome = reconciler.reconcile_part(&[part], &all);
                    if outcome.is_ok() && !tampered {
                        let whole = compile_by_parts(&Machine::default(), &all);
                        prop_assert_eq!(&reconciler.target().items, &whole);
                    }
                }
                Step::Reconcile => {
                    let _ = reconciler.reconcile(&all);
                }
                Step::CheckDrift => tampered &= reconciler.check_drift().is_err(),
                Step::Tamper(key, Some(value)) => {
                    tampered = true;
                    reconciler.target_mut().items.insert(key, value);
                }
                Step::Tamper(key, None) => {
                    tampered = true;
                    reconciler.target_mut().items.remove(&key);
                }
            }
        }
        reconciler.target_mut().faults.clear();
        reconciler.reconcile(&all).unwrap();
        reconciler.check_drift().unwrap();
        let whole = compile_by_parts(&Machine::default(), &all);
        let wanted: Items = reconciler.wanted().map(|(key, item)| (*key, *item)).collect();
        prop_assert_eq!(&wanted, &whole);
        prop_assert_eq!(&reconciler.target().items, &whole);
    }
}
