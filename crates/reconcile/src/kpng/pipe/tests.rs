use std::sync::{Arc, Barrier};

use parking_lot::Mutex;
use telaio_model::Op;

use super::*;
use crate::kpng::testing::service;
use crate::kpng::{FullState, Sink};

type Log = Arc<Mutex<Vec<String>>>;

/// A stage that logs, and where asked waits in `callback` until others are there too.
struct Stage {
    name: &'static str,
    log: Log,
    meet: Option<Arc<Barrier>>,
    fails: bool,
}

impl Stage {
    fn boxed(name: &'static str, log: &Log) -> Box<dyn FullStateCallback> {
        Box::new(Self { name, log: Arc::clone(log), meet: None, fails: false })
    }

    fn failing(name: &'static str, log: &Log) -> Box<dyn FullStateCallback> {
        Box::new(Self { name, log: Arc::clone(log), meet: None, fails: true })
    }

    fn meeting(name: &'static str, log: &Log, meet: &Arc<Barrier>) -> Box<dyn FullStateCallback> {
        let meet = Some(Arc::clone(meet));
        Box::new(Self { name, log: Arc::clone(log), meet, fails: false })
    }
}

impl FullStateCallback for Stage {
    fn callback(&mut self, state: &State, _changed: &Changed) -> Result<(), SinkError> {
        assert_eq!(state.len(), 1, "each stage gets every service");
        if let Some(meet) = &self.meet {
            meet.wait();
        }
        self.log.lock().push(format!("send {}", self.name));
        if self.fails { Err(SinkError::Setup(self.name.to_owned())) } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), SinkError> {
        self.log.lock().push(format!("close {}", self.name));
        Ok(())
    }
}

fn run(pipe: Pipe) -> Result<(), SinkError> {
    let mut sink = FullState::new("node-1", pipe);
    sink.setup()?;
    sink.send(Op::SetService(service("a", 1)))?;
    sink.send(Op::Sync)
}

#[test]
fn a_sequence_finishes_each_stage_before_the_next() {
    let log = Log::default();
    run(Pipe::sequence(vec![Stage::boxed("1", &log), Stage::boxed("2", &log)])).unwrap();
    assert_eq!(*log.lock(), ["send 1", "close 1", "send 2", "close 2"]);
}

#[test]
fn a_sequence_ends_at_the_first_error() {
    let log = Log::default();
    let stages = vec![Stage::boxed("1", &log), Stage::failing("2", &log), Stage::boxed("3", &log)];
    assert!(run(Pipe::sequence(stages)).is_err());
    assert_eq!(*log.lock(), ["send 1", "close 1", "send 2"]);
}

#[test]
fn parallel_stages_run_at_the_same_time() {
    let log = Log::default();
    // Nobody passes the barrier alone: one after another would hang.
    let meet = Arc::new(Barrier::new(2));
    run(Pipe::parallel(vec![Stage::meeting("1", &log, &meet), Stage::meeting("2", &log, &meet)]))
        .unwrap();
    assert_eq!(log.lock().len(), 4);
}

#[test]
fn parallel_stages_all_run_and_their_errors_are_gathered() {
    let log = Log::default();
    let stages =
        vec![Stage::failing("1", &log), Stage::boxed("2", &log), Stage::failing("3", &log)];
    let Err(SinkError::Several(errors)) = run(Pipe::parallel(stages)) else {
        panic!("two errors make several")
    };
    assert_eq!(errors.len(), 2);
    assert!(log.lock().contains(&"close 2".to_owned()));
}

#[test]
fn parallel_send_sequence_close_closes_in_order_after_all_was_sent() {
    let log = Log::default();
    let meet = Arc::new(Barrier::new(2));
    let stages = vec![Stage::meeting("1", &log, &meet), Stage::meeting("2", &log, &meet)];
    run(Pipe::parallel_send_sequence_close(stages)).unwrap();
    let log = log.lock();
    assert_eq!(log[2..], ["close 1", "close 2"]);
}

#[test]
fn a_panicking_stage_is_an_error_and_spares_the_others() {
    let log = Log::default();
    let panics = |_: &State, _: &Changed| -> Result<(), SinkError> { panic!("a fault") };
    let outcome = run(Pipe::parallel(vec![Box::new(panics), Stage::boxed("2", &log)]));
    assert!(matches!(outcome, Err(SinkError::Panicked(text)) if text == "a fault"));
    assert_eq!(*log.lock(), ["send 2", "close 2"]);
}

#[test]
fn a_pipe_without_stages_does_nothing() {
    for strategy in [Strategy::Sequence, Strategy::Parallel, Strategy::ParallelSendSequenceClose] {
        run(Pipe::new(strategy, vec![])).unwrap();
    }
}
