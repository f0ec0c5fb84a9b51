//! The backend as a whole: operations in, documents out.

use std::io::Write;
use std::time::Duration;

use parking_lot::Mutex;
use telaio_model::{LocalService, Op, ServiceType};
use telaio_reconcile::PacerConfig;
use telaio_source::Status;

use super::*;
use crate::monitor::{Facts, Monitor};

/// What was printed.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Page {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
    }
}

struct Printer {
    sink: Box<dyn Sink>,
    page: Page,
    monitor: Arc<Monitor>,
}

impl Printer {
    fn new() -> Self {
        let page = Page::default();
        let status = Arc::new(Status::default());
        let monitor = Monitor::new(Facts::default(), status, None);
        let context = BackendContext {
            node: "loom-a".into(),
            pacing: PacerConfig { min_sync_period: Duration::ZERO, ..PacerConfig::default() },
            monitor: Arc::clone(&monitor),
            output: Arc::new(Mutex::new(page.clone())),
            services: None,
        };
        let mut backend = Box::new(ViewBackend::new(context));
        backend.setup().unwrap();
        let mut sink: Box<dyn Sink> = backend.sink();
        sink.setup().unwrap();
        Self { sink, page, monitor }
    }

    /// What is printed for these operations, once they are synced.
    fn printed(&mut self, ops: Vec<Op>) -> String {
        assert_eq!(&*self.sink.wait_request().unwrap(), "loom-a");
        for op in ops.into_iter().chain([Op::Sync]) {
            self.sink.send(op).unwrap();
        }
        assert!(self.monitor.sync_loop().unwrap().wait_synced(Duration::from_mins(1)));
        self.page.take()
    }
}

fn service(name: &str, port: Option<u16>) -> Arc<LocalService> {
    Arc::new(LocalService {
        key: ObjectKey::new("shop", name),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        ports: vec![],
        external_traffic_to_local: false,
        internal_traffic_to_local: false,
        session_affinity: None,
        health_check_node_port: port,
        external_name: None,
        labels: telaio_model::Labels::new(),
        annotations: telaio_model::Labels::new(),
    })
}

#[test]
fn each_sync_prints_one_document_of_what_changed() {
    let mut printer = Printer::new();
    let first = printer.printed(vec![
        Op::Reset,
        Op::SetService(service("b", None)),
        Op::SetService(service("a", None)),
    ]);
    insta::assert_snapshot!(first, @r#"
    ---
    created:
    - namespace: shop
      name: a
      type: ClusterIP
      clusterIPs:
      - 10.96.0.1
      endpoints: []
    - namespace: shop
      name: b
      type: ClusterIP
      clusterIPs:
      - 10.96.0.1
      endpoints: []
    "#);
    let second = printer.printed(vec![
        Op::SetService(service("a", Some(32000))),
        Op::DeleteService(ObjectKey::new("shop", "b")),
    ]);
    insta::assert_snapshot!(second, @r#"
    ---
    updated:
    - namespace: shop
      name: a
      type: ClusterIP
      clusterIPs:
      - 10.96.0.1
      healthCheckNodePort: 32000
      endpoints: []
    deleted:
    - shop/b
    "#);
}

#[test]
fn what_did_not_change_is_not_printed_again() {
    let mut printer = Printer::new();
    printer.printed(vec![Op::SetService(service("a", None))]);
    let again = printer.printed(vec![Op::Reset, Op::SetService(service("a", None))]);
    assert_eq!(again, "");
}

#[test]
fn an_empty_view_is_synced_too() {
    let mut printer = Printer::new();
    assert_eq!(printer.printed(vec![Op::Reset]), "");
    assert_eq!(printer.monitor.sync_loop().unwrap().stats().syncs_total, 1);
}
