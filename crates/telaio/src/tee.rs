//! One view for several planes.
//!
//! The services plane gets all of the view, the pods plane only the objects in it. Both are fed by the same thread: neither does
//! more with what it gets than to leave it for its own sync loop.

use std::sync::Arc;

use telaio_model::Op;
use telaio_reconcile::kpng::{Sink, SinkError};

/// A sink that feeds others.
pub(crate) struct Tee {
    /// The node whose view it is.
    pub(crate) node: Arc<str>,
    /// Gets everything.
    pub(crate) services: Option<Box<dyn Sink>>,
    /// Gets objects.
    pub(crate) objects: Option<Box<dyn Sink>>,
}

impl Tee {
    fn each(
        &mut self,
        mut feed: impl FnMut(&mut dyn Sink) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let sinks = [&mut self.services, &mut self.objects].into_iter().flatten();
        let errors = sinks.filter_map(|sink| feed(sink.as_mut()).err()).collect();
        SinkError::gather(errors)
    }
}

impl Sink for Tee {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.each(|sink| sink.setup())
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        self.each(|sink| sink.wait_request().map(drop))?;
        Ok(Arc::clone(&self.node))
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.each(|sink| sink.reset())
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        let is_for_all =
            matches!(op, Op::Reset | Op::Sync | Op::SetObject(_) | Op::DeleteObject(_));
        if is_for_all {
            return self.each(|sink| sink.send(op.clone()));
        }
        self.services.as_mut().map_or(Ok(()), |sink| sink.send(op))
    }
}
