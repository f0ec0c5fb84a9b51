//! The thread that notices when links, addresses, routes or neighbours go, and when instances come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use telaio_netlink::links::Link;
use telaio_netlink::losses::LossWatcher;
use telaio_pod_network::names::HOST_LINK_PREFIX;
use telaio_pod_network::overlay::ROUTE_PROTOCOL;
use telaio_reconcile::SyncHandle;

/// How often it looks whether it should end.
const PAUSE: Duration = Duration::from_millis(200);

/// The running thread, ended when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    thread: Option<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
}

impl Watch {
    /// Begins. Where that cannot be, what goes is found by the periodic sync.
    pub(super) fn start(handle: SyncHandle) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let watcher = LossWatcher::open(ROUTE_PROTOCOL).map_err(|error| error.to_string());
        let ended = Arc::clone(&ending);
        let thread = watcher.and_then(|watcher| {
            let run = move || watch(watcher, &handle, &ended);
            let spawned = thread::Builder::new().name("telaio-losses".into()).spawn(run);
            spawned.map_err(|error| error.to_string())
        });
        if let Err(error) = &thread {
            tracing::warn!(error, "cannot watch links; what others remove is found later");
        }
        Self { thread: thread.ok(), ending }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches links panicked");
        }
    }
}

fn watch(mut watcher: LossWatcher, handle: &SyncHandle, ending: &AtomicBool) {
    let is_instance = |link: &Link| link.name.starts_with(HOST_LINK_PREFIX);
    while !ending.load(Ordering::Relaxed) {
        match watcher.next(PAUSE, is_instance) {
            Ok(noticed) if noticed.went => handle.drift_suspected(),
            Ok(noticed) if noticed.came => handle.notify(),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "no longer watching links; what others remove is found later");
                return;
            }
        }
    }
}
