//! Backends that are called for each change.

use std::sync::Arc;

use telaio_model::{EndpointRef, LocalEndpoint, LocalService, Object, ObjectKey, ObjectRef, Op};

use crate::kpng::sink::{Sink, SinkError};

/// A backend that is called for each change and acts at [`sync`](Self::sync).
pub trait Decoder: Send {
    /// Prepares everything, once.
    fn setup(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Called before each request for a diff; names the node whose view is wanted.
    fn wait_request(&mut self) -> Result<Arc<str>, SinkError>;

    /// The service is now this.
    fn set_service(&mut self, service: &Arc<LocalService>) -> Result<(), SinkError>;

    /// The service is no more.
    fn delete_service(&mut self, key: &ObjectKey) -> Result<(), SinkError>;

    /// The endpoint is now this.
    fn set_endpoint(&mut self, endpoint: &Arc<LocalEndpoint>) -> Result<(), SinkError>;

    /// The endpoint is no more.
    fn delete_endpoint(&mut self, key: &EndpointRef) -> Result<(), SinkError>;

    /// An object of another plane is now this.
    fn set_object(&mut self, _object: &Object) -> Result<(), SinkError> {
        Ok(())
    }

    /// Such an object is no more.
    fn delete_object(&mut self, _object_ref: &ObjectRef) -> Result<(), SinkError> {
        Ok(())
    }

    /// Forget everything: what follows, up to the next sync, is the whole state.
    fn reset(&mut self) -> Result<(), SinkError>;

    /// The state is consistent: act on it.
    fn sync(&mut self) -> Result<(), SinkError>;
}

/// A [`Decoder`] as a [`Sink`].
#[derive(Debug)]
pub struct DecoderSink<D> {
    decoder: D,
}

impl<D: Decoder> DecoderSink<D> {
    /// A sink that calls `decoder`.
    pub fn new(decoder: D) -> Self {
        Self { decoder }
    }

    /// The decoder.
    pub fn decoder(&self) -> &D {
        &self.decoder
    }

    /// The decoder.
    pub fn decoder_mut(&mut self) -> &mut D {
        &mut self.decoder
    }
}

impl<D: Decoder> Sink for DecoderSink<D> {
    fn setup(&mut self) -> Result<(), SinkError> {
        self.decoder.setup()
    }

    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        self.decoder.wait_request()
    }

    fn reset(&mut self) -> Result<(), SinkError> {
        self.decoder.reset()
    }

    fn send(&mut self, op: Op) -> Result<(), SinkError> {
        match op {
            Op::Reset => self.decoder.reset(),
            Op::SetService(service) => self.decoder.set_service(&service),
            Op::DeleteService(key) => self.decoder.delete_service(&key),
            Op::SetEndpoint(endpoint) => self.decoder.set_endpoint(&endpoint),
            Op::DeleteEndpoint(key) => self.decoder.delete_endpoint(&key),
            Op::SetObject(object) => self.decoder.set_object(&object),
            Op::DeleteObject(object_ref) => self.decoder.delete_object(&object_ref),
            Op::Sync => self.decoder.sync(),
        }
    }
}
