use proptest::prelude::*;

use super::*;
use crate::kpng::State;
use crate::kpng::testing::{
    Recorder, any_step, endpoint, endpoint_ref, key, object, object_ref, replay, service,
};

fn send_all(sink: &mut FilterReset<Recorder>, ops: impl IntoIterator<Item = Op>) {
    for op in ops {
        sink.send(op).unwrap();
    }
}

/// A filter whose sink has two services with two endpoints each, and an object.
fn loaded() -> FilterReset<Recorder> {
    let mut sink = FilterReset::new(Recorder::default());
    send_all(&mut sink, [Op::SetService(service("a", 1)), Op::SetService(service("b", 1))]);
    for (name, id) in [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] {
        send_all(&mut sink, [Op::SetEndpoint(endpoint(name, id, 1))]);
    }
    send_all(&mut sink, [Op::SetObject(object("o", "1")), Op::Sync]);
    sink.inner.ops.clear();
    sink
}

#[test]
fn a_replay_of_the_same_sends_nothing_but_sync() {
    let mut sink = loaded();
    let ops = replay(&sink.inner.state);
    sink.reset().unwrap();
    send_all(&mut sink, [Op::Reset].into_iter().chain(ops).chain([Op::Sync]));
    assert_eq!(sink.inner.ops, [Op::Sync]);
}

#[test]
fn after_a_reset_differences_come_in_the_right_order() {
    let mut sink = loaded();
    send_all(
        &mut sink,
        [
            Op::Reset,
            Op::SetService(service("a", 2)),
            Op::SetService(service("c", 1)),
            Op::SetEndpoint(endpoint("a", "x", 1)),
            Op::SetEndpoint(endpoint("c", "x", 1)),
            Op::Sync,
        ],
    );
    assert_eq!(
        sink.inner.ops,
        [
            Op::SetService(service("a", 2)),
            Op::SetService(service("c", 1)),
            Op::SetEndpoint(endpoint("c", "x", 1)),
            Op::DeleteEndpoint(endpoint_ref("a", "y")),
            Op::DeleteEndpoint(endpoint_ref("b", "x")),
            Op::DeleteEndpoint(endpoint_ref("b", "y")),
            Op::DeleteService(key("b")),
            Op::DeleteObject(object_ref("o")),
            Op::Sync,
        ]
    );
}

#[test]
fn without_a_reset_changes_pass_and_nothing_is_deleted() {
    let mut sink = loaded();
    let ops = [Op::SetService(service("a", 2)), Op::DeleteEndpoint(endpoint_ref("a", "x"))];
    send_all(&mut sink, ops.clone().into_iter().chain([Op::Sync]));
    assert_eq!(sink.inner.ops[..2], ops);
    assert_eq!(sink.inner.ops[2..], [Op::Sync]);
}

#[test]
fn a_replay_that_is_cut_deletes_nothing() {
    let mut sink = loaded();
    send_all(&mut sink, [Op::Reset, Op::SetService(service("a", 1))]);
    sink.reset().unwrap();
    let ops = replay(&sink.inner.state);
    send_all(&mut sink, ops.into_iter().chain([Op::Sync]));
    assert_eq!(sink.inner.ops, [Op::Sync]);
}

#[test]
fn an_empty_state_after_a_reset_deletes_everything() {
    let mut sink = loaded();
    send_all(&mut sink, [Op::Reset, Op::Sync]);
    assert_eq!(sink.inner.state, State::default());
    assert_eq!(sink.inner.ops.last(), Some(&Op::Sync));
}

#[test]
fn a_failed_sync_does_not_cost_a_whole_replay() {
    let mut sink = loaded();
    sink.inner.fail_after = Some(0);
    assert!(sink.send(Op::Sync).is_err());
    let ops = replay(&sink.inner.state);
    send_all(&mut sink, [Op::Reset].into_iter().chain(ops).chain([Op::Sync]));
    assert_eq!(sink.inner.ops, [Op::Sync]);
}

#[test]
fn after_a_failed_op_the_reset_is_passed_on() {
    let mut sink = loaded();
    sink.inner.fail_after = Some(0);
    assert!(sink.send(Op::SetService(service("a", 2))).is_err());
    send_all(&mut sink, [Op::Reset, Op::SetService(service("b", 1)), Op::Sync]);
    assert_eq!(sink.inner.ops, [Op::Reset, Op::SetService(service("b", 1)), Op::Sync]);
}

#[test]
fn setup_and_node_name_are_those_of_the_sink_behind() {
    let mut sink = loaded();
    sink.setup().unwrap();
    assert_eq!(&*sink.wait_request().unwrap(), "node-1");
}

/// What the source does next.
#[derive(Debug, Clone)]
enum Feed {
    Step(Op),
    Sync,
    /// The connection breaks and everything is sent anew, but only so many ops of it arrive before
    /// it breaks again; `None`: all of it arrives.
    Reconnect(Option<usize>),
}

fn feed() -> impl Strategy<Value = Vec<Feed>> {
    let event = prop_oneof![
        8 => any_step().prop_map(Feed::Step),
        2 => Just(Feed::Sync),
        1 => proptest::option::of(0..10_usize).prop_map(Feed::Reconnect),
    ];
    proptest::collection::vec(event, 1..60)
}

/// Sends `truth` whole; or first only some of its ops, as if cut, and then whole.
fn resend(sink: &mut impl Sink, truth: &State, at_most: Option<usize>) -> Result<(), SinkError> {
    sink.reset()?;
    sink.send(Op::Reset)?;
    let ops = replay(truth).into_iter().take(at_most.unwrap_or(usize::MAX));
    ops.into_iter().try_for_each(|op| sink.send(op))?;
    if at_most.is_none() { sink.send(Op::Sync) } else { resend(sink, truth, None) }
}

/// A truth that has no orphans: the brain never sends any.
fn apply_to(truth: &mut State, op: &Op) -> Vec<Op> {
    let mut ops = vec![];
    match op {
        Op::SetEndpoint(endpoint) if truth.get(&endpoint.key.service).is_none() => return ops,
        Op::DeleteService(key) => {
            let entry = truth.get(key).into_iter().flat_map(|entry| entry.endpoints.iter());
            ops.extend(entry.map(|endpoint| Op::DeleteEndpoint(endpoint.key.clone())));
        }
        _ => {}
    }
    ops.push(op.clone());
    for op in &ops {
        truth.apply(op.clone());
    }
    ops
}

proptest! {
    #[test]
    fn reconnects_at_any_point_lead_to_the_same_state_and_send_only_changes(feed in feed()) {
        let mut sink = FilterReset::new(Recorder::default());
        let mut truth = State::default();
        for event in feed {
            match event {
                Feed::Step(op) => {
                    for op in apply_to(&mut truth, &op) {
                        sink.send(op).unwrap();
                    }
                }
                Feed::Sync => sink.send(Op::Sync).unwrap(),
                Feed::Reconnect(at_most) => resend(&mut sink, &truth, at_most).unwrap(),
            }
            // Each of these ends consistent, so the sink must have the truth at once.
            prop_assert_eq!(&sink.inner.state, &truth);
        }
        let mut seen = State::default();
        for op in sink.inner.ops {
            prop_assert_ne!(&op, &Op::Reset);
            let is_sync = op == Op::Sync;
            prop_assert!(seen.apply(op.clone()) || is_sync, "{:?} changes nothing", op);
        }
        prop_assert_eq!(seen, truth);
    }

    #[test]
    fn a_sink_that_fails_is_right_again_after_the_next_replay(
        feed in feed(),
        fail_after in 0..40_usize,
        fail_late: bool,
    ) {
        let inner = Recorder { fail_after: Some(fail_after), fail_late, ..Recorder::default() };
        let mut sink = FilterReset::new(inner);
        let mut truth = State::default();
        for event in feed {
            let outcome = match event {
                Feed::Step(op) => apply_to(&mut truth, &op).into_iter().try_for_each(|op| sink.send(op)),
                Feed::Sync => sink.send(Op::Sync),
                Feed::Reconnect(at_most) => resend(&mut sink, &truth, at_most),
            };
            if outcome.is_err() {
                resend(&mut sink, &truth, None).unwrap();
            }
            prop_assert_eq!(&sink.inner.state, &truth);
        }
    }
}
