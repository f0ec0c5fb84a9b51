//! What a source delivers, folded into a state that tests can ask.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telaio_model::{
    Batch, EndpointSlice, Kind, Object, ObjectChange, ObjectKey, ObjectRef, Service,
};
use telaio_source::Status;
use telaio_source::kube::{KubeOptions, KubeSource};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Nothing that a test waits for takes longer, unless it is broken.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running source and the state it has delivered.
pub(crate) struct Watched {
    pub(crate) status: Arc<Status>,
    pub(crate) objects: BTreeMap<ObjectRef, Object>,
    /// Every change to an object that the test looks at, as `+Kind name` or `-Kind name`.
    pub(crate) history: Vec<String>,
    batches: mpsc::Receiver<Batch>,
    synced: bool,
    running: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Options that do not make tests wait.
pub(crate) fn options() -> KubeOptions {
    KubeOptions {
        backoff_min: Duration::from_millis(10),
        backoff_max: Duration::from_millis(100),
        ..KubeOptions::default()
    }
}

impl Watched {
    /// Starts a source.
    pub(crate) async fn start(kubeconfig: &Path, options: KubeOptions) -> Self {
        let status = Arc::new(Status::default());
        let source = KubeSource::connect(Some(kubeconfig.to_owned()), options, status.clone());
        let source = source.await.unwrap();
        let (tx, batches) = mpsc::channel(telaio_source::BATCH_QUEUE_MAX);
        let running = tokio::spawn(source.run(tx));
        Self {
            status,
            objects: BTreeMap::new(),
            history: Vec::new(),
            batches,
            synced: false,
            running,
        }
    }

    /// Starts a source and waits until its state is complete.
    pub(crate) async fn synced(kubeconfig: &Path, options: KubeOptions) -> Self {
        let mut watched = Self::start(kubeconfig, options).await;
        watched.sync().await;
        watched
    }

    /// Waits until the state is complete.
    pub(crate) async fn sync(&mut self) {
        while !self.synced {
            self.next().await;
        }
    }

    /// Takes the next batch.
    pub(crate) async fn next(&mut self) {
        let batch = tokio::time::timeout(PATIENCE, self.batches.recv()).await;
        let batch = batch.expect("no batch came in time").expect("the source ended");
        assert!(!self.synced || batch.synced, "a synced state stays synced");
        assert!(batch.synced || !self.synced);
        self.synced = batch.synced;
        for change in batch.changes {
            let object_ref = change.object_ref();
            match change {
                ObjectChange::Set(object) => {
                    self.history.push(format!("+{object_ref}"));
                    let before = self.objects.insert(object_ref.clone(), object);
                    assert_ne!(before.as_ref(), self.objects.get(&object_ref), "no difference");
                }
                ObjectChange::Delete(_) => {
                    self.history.push(format!("-{object_ref}"));
                    assert!(
                        self.objects.remove(&object_ref).is_some(),
                        "{object_ref} was not there"
                    );
                }
            }
        }
    }

    /// Takes batches until the state is as wanted.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Self) -> bool) {
        while !wanted(self) {
            self.next().await;
        }
    }

    /// Takes what comes for a while, and says that nothing should.
    pub(crate) async fn expect_silence(&mut self, duration: Duration) {
        let batch = tokio::time::timeout(duration, self.batches.recv()).await;
        assert!(batch.is_err(), "{batch:?}");
    }

    pub(crate) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Object> {
        self.objects.get(&ObjectRef::new(kind, ObjectKey::new(namespace, name)))
    }

    pub(crate) fn has(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.get(kind, namespace, name).is_some()
    }

    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        match self.get(Kind::Service, namespace, name)? {
            Object::Service(service) => Some(service),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn slice(&self, namespace: &str, name: &str) -> Option<&EndpointSlice> {
        match self.get(Kind::EndpointSlice, namespace, name)? {
            Object::EndpointSlice(slice) => Some(slice),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the status is as wanted. The status has no event of its own to wait for.
    pub(crate) async fn until_status(&self, wanted: impl Fn(&Status) -> bool) {
        let poll = async {
            while !wanted(&self.status) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, poll).await;
        in_time.unwrap_or_else(|_| panic!("the status never came: {:?}", self.status));
    }
}
