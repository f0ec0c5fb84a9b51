use std::sync::Arc;

use telaio_model::{EndpointRef, LocalEndpoint, LocalService, ObjectKey, Op};

use super::*;
use crate::kpng::testing::{endpoint, endpoint_ref, key, object, object_ref, service};
use crate::kpng::{Decoder, DecoderSink, FilterReset};

/// A backend that writes down what it is called with.
#[derive(Default)]
struct Paper {
    header: String,
    lines: Vec<String>,
}

impl Paper {
    /// There is always room for another line; `Ok` spares each caller a line of its own.
    #[expect(clippy::unnecessary_wraps)]
    fn line(&mut self, text: String) -> Result<(), SinkError> {
        self.lines.push(text);
        Ok(())
    }
}

impl Decoder for Paper {
    fn wait_request(&mut self) -> Result<Arc<str>, SinkError> {
        Ok("node-1".into())
    }
    fn set_service(&mut self, service: &Arc<LocalService>) -> Result<(), SinkError> {
        self.line(format!("set {}", service.key))
    }
    fn delete_service(&mut self, key: &ObjectKey) -> Result<(), SinkError> {
        self.line(format!("delete {key}"))
    }
    fn set_endpoint(&mut self, endpoint: &Arc<LocalEndpoint>) -> Result<(), SinkError> {
        self.line(format!("set {}", endpoint.key))
    }
    fn delete_endpoint(&mut self, key: &EndpointRef) -> Result<(), SinkError> {
        self.line(format!("delete {key}"))
    }
    fn reset(&mut self) -> Result<(), SinkError> {
        self.line("reset".into())
    }
    fn sync(&mut self) -> Result<(), SinkError> {
        self.line("sync".into())
    }
}

impl Backend for Paper {
    fn name(&self) -> &'static str {
        "paper"
    }
    fn flags(&self) -> &'static [FlagSpec] {
        &[FlagSpec { name: "header", help: "the first line", default: "telaio" }]
    }
    fn bind_flags(&mut self, values: &FlagValues) -> Result<(), FlagError> {
        values.text("header")?.clone_into(&mut self.header);
        Ok(())
    }
    fn setup(&mut self) -> Result<(), SinkError> {
        let header = self.header.clone();
        self.line(header)
    }
    fn reset(&mut self) {
        self.lines.clear();
    }
    fn sync(&mut self) -> Result<(), SinkError> {
        Decoder::sync(self)
    }
    fn sink(self: Box<Self>) -> Box<dyn Sink> {
        Box::new(FilterReset::new(DecoderSink::new(*self)))
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.register("paper", || Box::new(Paper::default())).unwrap();
    registry
}

#[test]
fn a_registered_backend_is_made_set_up_and_fed() {
    let mut backend = registry().get("paper").unwrap();
    let given = [("header", "ours")];
    backend.bind_flags(&FlagValues::new(backend.flags(), given).unwrap()).unwrap();
    backend.setup().unwrap();
    backend.sync().unwrap();
    backend.reset();
    assert_eq!(backend.name(), "paper");
    let mut sink = backend.sink();
    sink.setup().unwrap();
    sink.reset().unwrap();
    assert_eq!(&*sink.wait_request().unwrap(), "node-1");
    sink.send(Op::Sync).unwrap();
}

#[test]
fn a_name_is_registered_once() {
    let again = registry().register("paper", || Box::new(Paper::default()));
    assert_eq!(again, Err(RegistryError::Duplicate("paper")));
}

#[test]
fn an_unknown_name_is_refused_with_the_known_ones() {
    let Err(error) = registry().get("papre") else { panic!("there is no such backend") };
    assert_eq!(error.to_string(), "no backend named \"papre\"; this program has: paper");
}

#[test]
fn a_decoder_gets_each_op_by_its_method() {
    let mut sink = DecoderSink::new(Paper::default());
    let ops = [
        Op::Reset,
        Op::SetService(service("a", 1)),
        Op::SetEndpoint(endpoint("a", "x", 1)),
        Op::DeleteEndpoint(endpoint_ref("a", "x")),
        Op::DeleteService(key("a")),
        // Nothing of a decoder that does not ask for them.
        Op::SetObject(object("o", "1")),
        Op::DeleteObject(object_ref("o")),
        Op::Sync,
    ];
    for op in ops {
        sink.send(op).unwrap();
    }
    sink.reset().unwrap();
    assert_eq!(
        sink.decoder().lines,
        [
            "reset",
            "set default/a",
            "set default/a/x",
            "delete default/a/x",
            "delete default/a",
            "sync",
            "reset"
        ]
    );
}
