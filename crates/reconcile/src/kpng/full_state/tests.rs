use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::kpng::testing::{any_step, endpoint, endpoint_ref, key, object, object_ref, service};

/// What each callback saw.
#[derive(Debug, Default)]
struct Seen {
    calls: Vec<(State, Changed)>,
    fail: bool,
    fail_close: bool,
    set_up: bool,
}

struct Callback(Arc<Mutex<Seen>>);

impl FullStateCallback for Callback {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.0.lock().set_up = true;
        Ok(())
    }

    fn callback(&mut self, state: &State, changed: &Changed) -> Result<(), SinkError> {
        let mut seen = self.0.lock();
        if seen.fail {
            return Err(SinkError::other("told to fail"));
        }
        seen.calls.push((state.clone(), changed.clone()));
        Ok(())
    }

    fn close(&mut self) -> Result<(), SinkError> {
        if self.0.lock().fail_close { Err(SinkError::Closed) } else { Ok(()) }
    }
}

fn full_state() -> (FullState<Callback>, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    (FullState::new("node-1", Callback(Arc::clone(&seen))), seen)
}

fn send_all(sink: &mut impl Sink, ops: impl IntoIterator<Item = Op>) {
    for op in ops {
        sink.send(op).unwrap();
    }
}

fn changed(services: &[&str]) -> Changed {
    Changed { services: services.iter().map(|name| key(name)).collect(), ..Changed::default() }
}

#[test]
fn the_whole_state_comes_in_order_with_the_names_of_what_changed() {
    let (mut sink, seen) = full_state();
    sink.setup().unwrap();
    assert!(seen.lock().set_up);
    assert_eq!(&*sink.wait_request().unwrap(), "node-1");
    send_all(
        &mut sink,
        [
            Op::SetService(service("b", 1)),
            Op::SetService(service("a", 1)),
            Op::SetEndpoint(endpoint("a", "y", 1)),
            Op::SetEndpoint(endpoint("a", "x", 1)),
            Op::Sync,
            Op::SetEndpoint(endpoint("b", "x", 1)),
            Op::SetService(service("a", 1)),
            Op::Sync,
        ],
    );
    let calls = &seen.lock().calls;
    let (state, first) = &calls[0];
    let names: Vec<_> = state.services().map(|entry| entry.service.key.clone()).collect();
    assert_eq!(names, [key("a"), key("b")]);
    let ids: Vec<_> = state.get(&key("a")).unwrap().endpoints.iter().map(|e| &*e.key.id).collect();
    assert_eq!(ids, ["x", "y"]);
    assert_eq!(*first, Changed { all: true, ..changed(&["a", "b"]) });
    assert_eq!(calls[1].1, changed(&["b"]), "what is set to what it was has not changed");
}

#[test]
fn an_empty_view_is_called_back() {
    let (mut sink, seen) = full_state();
    send_all(&mut sink, [Op::Reset, Op::Sync]);
    assert_eq!(seen.lock().calls.len(), 1);
    assert!(seen.lock().calls[0].1.all);
}

#[test]
fn an_endpoint_without_a_service_waits_for_it() {
    let (mut sink, seen) = full_state();
    send_all(
        &mut sink,
        [
            Op::SetEndpoint(endpoint("a", "x", 1)),
            Op::SetEndpoint(endpoint("a", "y", 1)),
            Op::DeleteEndpoint(endpoint_ref("a", "y")),
            Op::DeleteEndpoint(endpoint_ref("nowhere", "y")),
            Op::Sync,
        ],
    );
    assert!(seen.lock().calls[0].0.is_empty());
    assert_eq!(sink.state().orphan_count(), 1);
    send_all(&mut sink, [Op::SetService(service("a", 1)), Op::Sync]);
    assert_eq!(*sink.state().get(&key("a")).unwrap().endpoints, [endpoint("a", "x", 1)]);
    assert_eq!(sink.state().orphan_count(), 0);

    // The service goes before its endpoint does, and comes back.
    send_all(&mut sink, [Op::DeleteService(key("a")), Op::Sync]);
    assert_eq!((sink.state().len(), sink.state().orphan_count()), (0, 1));
    send_all(&mut sink, [Op::SetService(service("a", 2)), Op::Sync]);
    assert_eq!(sink.state().get(&key("a")).unwrap().endpoints.len(), 1);
    assert_eq!(seen.lock().calls.last().unwrap().1, changed(&["a"]));
}

#[test]
fn after_an_error_what_changed_is_told_again() {
    let (mut sink, seen) = full_state();
    send_all(&mut sink, [Op::Sync, Op::SetService(service("a", 1))]);
    seen.lock().fail = true;
    assert!(sink.send(Op::Sync).is_err());
    seen.lock().fail = false;
    seen.lock().fail_close = true;
    send_all(&mut sink, [Op::SetService(service("b", 1))]);
    assert!(sink.send(Op::Sync).is_err());
    seen.lock().fail_close = false;
    send_all(&mut sink, [Op::Sync, Op::Sync]);
    let calls = &seen.lock().calls;
    assert_eq!(calls[2].1, changed(&["a", "b"]));
    assert!(calls[3].1.is_empty());
}

#[test]
fn a_reset_names_what_is_gone() {
    let (mut sink, seen) = full_state();
    send_all(
        &mut sink,
        [Op::SetService(service("a", 1)), Op::SetObject(object("o", "1")), Op::Sync],
    );
    send_all(&mut sink, [Op::Reset, Op::SetService(service("b", 1)), Op::Sync]);
    let calls = &seen.lock().calls;
    let (state, told) = &calls[1];
    assert_eq!(state.len(), 1);
    assert!(told.all && told.objects.contains(&object_ref("o")));
    assert_eq!(told.services, changed(&["a", "b"]).services);
}

#[test]
fn across_a_reset_only_what_differs_is_told_and_the_rest_is_held_once() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut sink = FullState::across_resets("node-1", Callback(Arc::clone(&seen)));
    let view = |port: u16| {
        [
            Op::Reset,
            Op::SetService(service("b", 1)),
            Op::SetEndpoint(endpoint("b", "x", 1)),
            Op::SetService(service("a", port)),
            Op::SetObject(object("o", "1")),
        ]
    };
    send_all(&mut sink, view(1));
    send_all(&mut sink, [Op::SetService(service("gone", 1)), Op::Sync]);
    // The second time the connection is cut off once.
    send_all(&mut sink, [Op::Reset, Op::SetService(service("b", 7))]);
    send_all(&mut sink, view(2));
    send_all(&mut sink, [Op::Sync]);
    let calls = &seen.lock().calls;
    assert!(calls[0].1.all && calls[0].1.objects.contains(&object_ref("o")));
    assert_eq!(calls[0].1.services, changed(&["a", "b", "gone"]).services);
    assert_eq!(calls[1].1, changed(&["a", "gone"]));
    let [before, after] = [&calls[0].0, &calls[1].0].map(|state| state.get(&key("b")).unwrap());
    assert!(Arc::ptr_eq(&before.service, &after.service));
    assert!(Arc::ptr_eq(&before.endpoints, &after.endpoints));
}

#[test]
fn objects_of_other_planes_are_found_by_name_and_by_kind() {
    let (mut sink, seen) = full_state();
    send_all(
        &mut sink,
        [
            Op::SetObject(object("o", "1")),
            Op::SetObject(object("p", "1")),
            Op::Sync,
            Op::SetObject(object("o", "2")),
            Op::DeleteObject(object_ref("p")),
            Op::DeleteObject(object_ref("q")),
            Op::Sync,
        ],
    );
    let state = sink.state();
    assert_eq!(state.object(&object_ref("o")), Some(&object("o", "2")));
    assert_eq!(state.objects_of(Kind::ConfigMap).count(), 1);
    assert_eq!(state.objects_of(Kind::Pod).count(), 0);
    assert_eq!(state.objects().count(), 1);
    let told = &seen.lock().calls[1].1;
    assert_eq!(told.objects, BTreeSet::from([object_ref("o"), object_ref("p")]));
}

proptest! {
    #[test]
    fn following_only_what_changed_gives_the_whole_state(
        steps in proptest::collection::vec(
            prop_oneof![
                8 => any_step().prop_map(|op| (op, false)),
                2 => any::<bool>().prop_map(|fails| (Op::Sync, fails)),
                1 => Just((Op::Reset, false)),
            ],
            1..80,
        ),
        across_resets: bool,
    ) {
        let mut truth = State::default();
        let fails = Arc::new(Mutex::new(false));
        let followed = Arc::new(Mutex::new(BTreeMap::<ObjectKey, ServiceEndpoints>::new()));
        let callback = {
            let (fails, followed) = (Arc::clone(&fails), Arc::clone(&followed));
            move |state: &State, changed: &Changed| {
                if *fails.lock() {
                    return Err(SinkError::Closed);
                }
                for key in &changed.services {
                    match state.get(key) {
                        Some(entry) => followed.lock().insert(key.clone(), entry.clone()),
                        None => followed.lock().remove(key),
                    };
                }
                Ok(())
            }
        };
        let make = if across_resets { FullState::across_resets } else { FullState::new };
        let mut sink = make("node-1", callback);
        for (op, fail) in steps {
            *fails.lock() = fail;
            truth.apply(op.clone());
            let is_good_sync = op == Op::Sync && !fail;
            let _ = sink.send(op);
            if is_good_sync {
                prop_assert_eq!(&*followed.lock(), &sink.state().services);
                prop_assert_eq!(&truth, sink.state());
            }
        }
    }
}
