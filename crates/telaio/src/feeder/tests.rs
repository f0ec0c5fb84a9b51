//! A sink that misbehaves is fed as the contract says.

use std::collections::VecDeque;

use parking_lot::Mutex;
use telaio_model::{Batch, Meta, Node, ObjectChange, ObjectKey, ServiceCidr};
use telaio_reconcile::ApplyError;

use super::*;
use crate::monitor::Facts;

/// Notes what it is sent, and answers as it is told to.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<NotesInner>>);

#[derive(Default)]
struct NotesInner {
    ops: Vec<&'static str>,
    answers: VecDeque<Result<(), SinkError>>,
}

impl Sink for Notes {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.0.lock().ops.push("setup");
        Ok(())
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        Ok("loom-a".into())
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.0.lock().ops.push("reset");
        Ok(())
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        let mut inner = self.0.lock();
        inner.ops.push(match op {
            Op::Reset => "op reset",
            Op::Sync => "op sync",
            Op::SetObject(_) => "op set",
            _ => "op other",
        });
        inner.answers.pop_front().unwrap_or(Ok(()))
    }
}

fn node(name: &str, deleting: bool) -> ObjectChange {
    ObjectChange::Set(
        Node {
            meta: Meta::named(ObjectKey::cluster(name)),
            addresses: vec![],
            pod_cidrs: vec![],
            taints: vec![],
            deleting,
        }
        .into(),
    )
}

struct Stage {
    store: Arc<Store>,
    monitor: Arc<Monitor>,
    notes: Notes,
    feeder: Feeder,
}

fn stage(answers: Vec<Result<(), SinkError>>, changes: Vec<ObjectChange>) -> Stage {
    let store = Store::new();
    store.apply(Batch { changes, synced: true });
    let monitor =
        Monitor::new(Facts::default(), Arc::new(Status::default()), Some(Arc::clone(&store)));
    let notes = Notes::default();
    notes.0.lock().answers.extend(answers);
    let origin = ViewOrigin::Store(Arc::clone(&store), wants());
    let feeder = Feeder::start(origin, Box::new(notes.clone()), Arc::clone(&monitor)).unwrap();
    Stage { store, monitor, notes, feeder }
}

fn failure() -> SinkError {
    SinkError::Apply(ApplyError::Transient("busy".into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_gets_the_whole_state_and_then_the_end() {
    let mut stage = stage(vec![], vec![]);
    assert!(matches!(stage.feeder.next_event().await, FeederEvent::FirstState));
    drop(stage.feeder);
    assert_eq!(stage.notes.0.lock().ops, ["setup", "op reset", "op sync"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_operation_begins_everything_anew() {
    let mut stage = stage(vec![Err(failure())], vec![]);
    assert!(matches!(stage.feeder.next_event().await, FeederEvent::FirstState));
    let ops = stage.notes.0.lock().ops.clone();
    assert_eq!(ops, ["setup", "op reset", "reset", "op reset", "op sync"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_is_left_to_the_backend_and_the_feed_goes_on() {
    let mut stage = stage(vec![Ok(()), Err(failure())], vec![]);
    assert!(matches!(stage.feeder.next_event().await, FeederEvent::FirstState));
    stage.store.apply(Batch { changes: vec![node("other", false)], synced: true });
    while !stage.notes.0.lock().ops.ends_with(&["op set", "op sync"]) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_sink_ends_the_feed() {
    let mut stage = stage(vec![Err(SinkError::Closed)], vec![]);
    let event = stage.feeder.next_event().await;
    assert!(matches!(event, FeederEvent::Failed(SinkError::Closed)), "{event:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_own_nodes_leaving_is_noted_and_anothers_is_not() {
    let mut stage = stage(vec![], vec![node("loom-a", false), node("loom-b", true)]);
    assert!(matches!(stage.feeder.next_event().await, FeederEvent::FirstState));
    assert!(!stage.monitor.health().node_leaving);
    stage.store.apply(Batch { changes: vec![node("loom-a", true)], synced: true });
    while !stage.monitor.health().node_leaving {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_come_back_with_a_whole_state_is_leaving() {
    let mut meta = Meta::named(ObjectKey::cluster("loom-a"));
    meta.labels.insert("topology.kubernetes.io/zone".into(), "north".into());
    let own = Node { meta, addresses: vec![], pod_cidrs: vec![], taints: vec![], deleting: false };
    let mut stage = stage(vec![], vec![ObjectChange::Set(own.into())]);
    assert!(matches!(stage.feeder.next_event().await, FeederEvent::FirstState));
    // Without its node the watcher has another zone, so it begins anew: no deletion is sent.
    let own = telaio_model::ObjectRef::new(Kind::Node, ObjectKey::cluster("loom-a"));
    stage.store.apply(Batch { changes: vec![ObjectChange::Delete(own)], synced: true });
    while !stage.monitor.health().node_leaving {
        tokio::task::yield_now().await;
    }
    assert!(!stage.notes.0.lock().ops.contains(&"op other"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_agent_is_given_its_node_and_the_networks_of_services() {
    let cidr = ServiceCidr {
        meta: Meta::named(ObjectKey::cluster("kubernetes")),
        cidrs: vec!["10.96.0.0/16".parse().unwrap()],
    };
    let changes = vec![node("loom-a", false), ObjectChange::Set(cidr.into())];
    let mut stage = stage(vec![], changes);
    assert!(matches!(stage.feeder.next_event().await, FeederEvent::FirstState));
    let ops = stage.notes.0.lock().ops.clone();
    assert_eq!(ops, ["setup", "op reset", "op set", "op set", "op sync"]);
}
