//! Several callbacks behind one node view.
//!
//! A [`Pipe`] is itself a [`FullStateCallback`] and hands the view to each of its stages. Each stage
//! works in two halves: it is *sent* the view ([`FullStateCallback::callback`]) and then *closed*
//! ([`FullStateCallback::close`]). The [`Strategy`] says how the halves of different stages lie in
//! time:
//!
//! | strategy | sent | closed |
//! |---|---|---|
//! | [`Sequence`](Strategy::Sequence) | one stage after another | each right after it was sent |
//! | [`Parallel`](Strategy::Parallel) | all at the same time | each right after it was sent |
//! | [`ParallelSendSequenceClose`](Strategy::ParallelSendSequenceClose) | all at the same time | one after another, when all have been sent |
//!
//! The last is for stages that compile for long but must change the machine in a fixed order.
//!
//! Where order means something a failure ends it: in a sequence the stages after a failed one are
//! not reached. In parallel every stage runs, and the errors are gathered. A stage must bear to be
//! given the same change twice, because after any error all of them are.

use std::thread;

use crate::kpng::full_state::{Changed, FullStateCallback, State};
use crate::kpng::sink::SinkError;

#[cfg(test)]
mod tests;

/// How the stages of a [`Pipe`] lie in time; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// One stage after another.
    Sequence,
    /// All at the same time.
    Parallel,
    /// All are sent to at the same time, then closed one after another.
    ParallelSendSequenceClose,
}

/// Several callbacks as one.
pub struct Pipe {
    strategy: Strategy,
    stages: Vec<Box<dyn FullStateCallback>>,
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe")
            .field("strategy", &self.strategy)
            .field("stages", &self.stages.len())
            .finish()
    }
}

impl Pipe {
    /// A pipe through `stages`, in this order where order counts.
    pub fn new(strategy: Strategy, stages: Vec<Box<dyn FullStateCallback>>) -> Self {
        Self { strategy, stages }
    }

    /// The stages one after another.
    pub fn sequence(stages: Vec<Box<dyn FullStateCallback>>) -> Self {
        Self::new(Strategy::Sequence, stages)
    }

    /// The stages at the same time.
    pub fn parallel(stages: Vec<Box<dyn FullStateCallback>>) -> Self {
        Self::new(Strategy::Parallel, stages)
    }

    /// The stages sent to at the same time, then closed one after another.
    pub fn parallel_send_sequence_close(stages: Vec<Box<dyn FullStateCallback>>) -> Self {
        Self::new(Strategy::ParallelSendSequenceClose, stages)
    }

    fn at_the_same_time(
        &mut self,
        work: impl Fn(&mut dyn FullStateCallback) -> Result<(), SinkError> + Sync,
    ) -> Result<(), SinkError> {
        let errors = thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = self
                .stages
                .iter_mut()
                .map(|stage| scope.spawn(move || work(stage.as_mut())))
                .collect();
            let outcomes = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| {
                    Err(SinkError::Panicked(crate::panic_text(panic.as_ref())))
                })
            });
            outcomes.filter_map(Result::err).collect()
        });
        SinkError::gather(errors)
    }
}

impl FullStateCallback for Pipe {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.stages.iter_mut().try_for_each(|stage| stage.setup())
    }

    fn callback(&mut self, state: &State, changed: &Changed) -> Result<(), SinkError> {
        let both_halves = |stage: &mut dyn FullStateCallback| {
            stage.callback(state, changed)?;
            stage.close()
        };
        match self.strategy {
            Strategy::Sequence => {
                self.stages.iter_mut().try_for_each(|stage| both_halves(stage.as_mut()))
            }
            Strategy::Parallel => self.at_the_same_time(both_halves),
            Strategy::ParallelSendSequenceClose => {
                self.at_the_same_time(|stage| stage.callback(state, changed))
            }
        }
    }

    fn close(&mut self) -> Result<(), SinkError> {
        match self.strategy {
            Strategy::Sequence | Strategy::Parallel => Ok(()),
            Strategy::ParallelSendSequenceClose => {
                self.stages.iter_mut().try_for_each(|stage| stage.close())
            }
        }
    }
}
