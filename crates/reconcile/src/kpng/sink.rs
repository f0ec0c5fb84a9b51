//! Where a node view goes.

use std::sync::Arc;

use telaio_model::Op;

use crate::target::ApplyError;

/// Takes a node view as a stream of [`Op`]s.
///
/// Whoever feeds it calls [`setup`](Self::setup) once, then for each diff
/// [`wait_request`](Self::wait_request) followed by [`send`](Self::send) for each op up to and with
/// [`Op::Sync`]. When the feed is cut it calls [`reset`](Self::reset) before it starts anew.
pub trait Sink: Send {
    /// Prepares everything, once, before anything else is called.
    fn setup(&mut self) -> Result<(), SinkError>;

    /// Called before each request for a diff. Returns the node whose view is wanted, as soon as the
    /// sink is ready for more.
    fn wait_request(&mut self) -> Result<Arc<str>, SinkError>;

    /// What follows, up to the next [`Op::Sync`], is the whole state; the same as [`Op::Reset`].
    fn reset(&mut self) -> Result<(), SinkError>;

    /// Takes one step.
    ///
    /// An error for [`Op::Sync`] means that the state was taken but could not be acted upon; the
    /// next `Sync` tries again. After an error for any other op, feed everything again with a reset.
    fn send(&mut self, op: Op) -> Result<(), SinkError>;
}

impl<S: Sink + ?Sized> Sink for Box<S> {
    fn setup(&mut self) -> Result<(), SinkError> {
        (**self).setup()
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        (**self).wait_request()
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        (**self).reset()
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        (**self).send(op)
    }
}

/// Why a sink could not take what it was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The machine lacks something that the sink needs.
    #[error("set-up failed: {0}")]
    Setup(String),
    /// The state was taken but could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The sink was stopped; nothing more will be taken.
    #[error("the sink is closed")]
    Closed,
    /// Several sinks behind this one failed.
    #[error("{} stages failed; the first: {}", .0.len(), first(.0))]
    Several(Vec<SinkError>),
    /// A fault in the backend: it panicked.
    #[error("internal fault, please report it: {0}")]
    Panicked(String),
    /// Anything else.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

fn first(errors: &[SinkError]) -> String {
    errors.first().map_or_else(|| "none".to_owned(), ToString::to_string)
}

impl SinkError {
    /// Wraps any error.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// All is well if there is no error; one stands for itself.
    pub fn gather(mut errors: Vec<Self>) -> Result<(), Self> {
        if errors.len() > 1 {
            return Err(Self::Several(errors));
        }
        errors.pop().map_or(Ok(()), Err)
    }
}
