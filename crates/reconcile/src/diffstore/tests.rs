use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

type Map = BTreeMap<u8, u8>;

fn wanted(store: &DiffStore<u8, u8>) -> Map {
    store.iter().map(|(key, value)| (*key, *value)).collect()
}

fn operations(store: &DiffStore<u8, u8>) -> Vec<(u8, Operation)> {
    store.deltas().map(|delta| (*delta.key, delta.operation())).collect()
}

fn applied_store(content: &[(u8, u8)]) -> DiffStore<u8, u8> {
    let mut store = DiffStore::new();
    for (key, value) in content {
        store.set(*key, *value);
    }
    store.done();
    store.reset();
    store
}

#[test]
fn a_full_cycle_tells_created_updated_and_deleted_apart() {
    let mut store = applied_store(&[(1, 10), (2, 20), (3, 30)]);
    store.set(1, 10);
    store.set(2, 21);
    store.set(4, 40);
    store.done();
    assert_eq!(
        operations(&store),
        [(2, Operation::Update), (3, Operation::Delete), (4, Operation::Create)]
    );
    assert_eq!(store.changed().count(), 2);
    assert_eq!(store.deleted().map(|delta| delta.old).collect::<Vec<_>>(), [Some(&30)]);
}

#[test]
fn get_touches_and_peek_does_not() {
    let mut store = applied_store(&[(1, 10), (2, 20)]);
    assert_eq!(store.get(&1), Some(&10));
    assert_eq!(store.peek(&2), Some(&20));
    store.done();
    assert_eq!(operations(&store), [(2, Operation::Delete)]);
}

#[test]
fn a_full_cycle_that_takes_something_back_still_deletes_the_rest() {
    let mut store = applied_store(&[(1, 10), (2, 20)]);
    store.set(1, 10);
    store.set(3, 30);
    store.delete(&3);
    store.done();
    assert_eq!(operations(&store), [(2, Operation::Delete)]);
}

#[test]
fn an_incremental_cycle_leaves_the_rest_alone() {
    let mut store = applied_store(&[(1, 10), (2, 20), (3, 30)]);
    store.set(2, 22);
    assert!(store.delete(&3));
    assert!(!store.delete(&9));
    store.done_incremental();
    assert_eq!(operations(&store), [(2, Operation::Update), (3, Operation::Delete)]);
}

#[test]
fn changes_that_cancel_out_are_no_delta() {
    let mut store = applied_store(&[(1, 10), (2, 20)]);
    store.set(1, 11);
    store.set(1, 10);
    store.delete(&2);
    store.set(2, 20);
    store.set(3, 30);
    store.delete(&3);
    assert!(!store.has_changes());
}

#[test]
fn deletes_alone_are_changes() {
    let mut store = applied_store(&[(1, 10)]);
    store.done();
    assert!(store.has_changes());
    assert_eq!(store.delta_count(), 1);
}

#[test]
fn deltas_that_failed_come_again_and_those_committed_do_not() {
    let mut store = applied_store(&[(1, 10), (2, 20)]);
    store.set(1, 11);
    store.done();
    store.commit_key(&2);
    store.reset_keeping_deltas();
    assert_eq!(operations(&store), [(1, Operation::Update)]);
    assert_eq!(store.applied(&1), Some(&10));
    assert_eq!(store.applied(&2), None);
}

#[test]
fn rebase_compares_with_what_is_there_in_truth() {
    let mut store = applied_store(&[(1, 10), (2, 20), (3, 30)]);
    store.rebase(Map::from([(2, 99), (3, 30), (7, 70)]));
    assert_eq!(
        operations(&store),
        [(1, Operation::Create), (2, Operation::Update), (7, Operation::Delete)]
    );
}

/// One cycle, and what becomes of its deltas.
#[derive(Debug, Clone)]
enum Cycle {
    Full(Map),
    Incremental(Vec<(u8, Option<u8>)>),
}

#[derive(Debug, Clone)]
enum Outcome {
    Applied,
    Failed,
    Partly(BTreeSet<u8>),
    /// The machine turns out to have this.
    Rebased(Map),
}

fn map() -> impl Strategy<Value = Map> {
    proptest::collection::btree_map(0..12_u8, 0..3_u8, 0..8)
}

fn cycle() -> impl Strategy<Value = Cycle> {
    let step = (0..12_u8, proptest::option::of(0..3_u8));
    prop_oneof![
        map().prop_map(Cycle::Full),
        proptest::collection::vec(step, 0..10).prop_map(Cycle::Incremental),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        3 => Just(Outcome::Applied),
        2 => Just(Outcome::Failed),
        1 => proptest::collection::btree_set(0..12_u8, 0..8).prop_map(Outcome::Partly),
        1 => map().prop_map(Outcome::Rebased),
    ]
}

/// Applies a delta to a machine that takes nothing amiss silently.
fn apply_strictly(machine: &mut Map, delta: &Delta<'_, u8, u8>) {
    assert_ne!(delta.old, delta.new, "a delta that changes nothing");
    assert_eq!(machine.get(delta.key), delta.old, "the store is wrong about what is applied");
    match delta.new {
        Some(new) => machine.insert(*delta.key, *new),
        None => machine.remove(delta.key),
    };
}

proptest! {
    #[test]
    fn any_sequence_of_cycles_and_failures_ends_in_the_wanted_state(
        cycles in proptest::collection::vec((cycle(), outcome()), 1..20),
    ) {
        let mut store = DiffStore::new();
        let mut model = Map::new();
        let mut machine = Map::new();
        for (cycle, outcome) in cycles {
            match cycle {
                Cycle::Full(content) => {
                    for (key, value) in &content {
                        store.set(*key, *value);
                    }
                    store.done();
                    model = content;
                }
                Cycle::Incremental(steps) => {
                    for (key, value) in steps {
                        if let Some(value) = value {
                            store.set(key, value);
                            model.insert(key, value);
                        } else {
                            store.delete(&key);
                            model.remove(&key);
                        }
                    }
                    store.done_incremental();
                }
            }
            prop_assert_eq!(wanted(&store), model.clone());
            let mut updated = machine.clone();
            store.deltas().for_each(|delta| apply_strictly(&mut updated, &delta));
            prop_assert_eq!(&updated, &model, "the deltas lead to the wanted state");
            match outcome {
                Outcome::Applied => {
                    machine = updated;
                    store.reset();
                    prop_assert!(!store.has_changes());
                }
                Outcome::Failed => store.reset_keeping_deltas(),
                Outcome::Partly(keys) => {
                    for delta in store.clone().deltas().filter(|d| keys.contains(d.key)) {
                        apply_strictly(&mut machine, &delta);
                        store.commit_key(delta.key);
                    }
                    store.reset_keeping_deltas();
                }
                Outcome::Rebased(truth) => {
                    machine = truth.clone();
                    store.rebase(truth);
                    store.reset_keeping_deltas();
                }
            }
            for key in 0..12 {
                prop_assert_eq!(store.applied(&key), machine.get(&key));
            }
        }
    }
}
