//! The threads that notice when links, addresses, routes, neighbours or rules go, and when instances come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use telaio_netlink::links::Link;
use telaio_netlink::losses::LossWatcher;
use telaio_netlink::nftables::{Notice, Watcher};
use telaio_pod_network::names::HOST_LINK_PREFIX;
use telaio_pod_network::overlay::ROUTE_PROTOCOL;
use telaio_pod_network::rules::TABLE;
use telaio_reconcile::SyncHandle;

/// How often they look whether they should end.
const PAUSE: Duration = Duration::from_millis(200);
/// The thread that syncs, and the plugin: by their names the kernel tells who changes rules.
pub(super) const SYNC_THREAD: &str = "telaio-pods";
const PLUGIN: &str = "telaio-cni";

/// The running threads, ended when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    threads: Vec<JoinHandle<()>>,
    ending: Arc<AtomicBool>,
}

impl Watch {
    /// Begins. Where that cannot be, what goes is found by the periodic sync.
    pub(super) fn start(handle: &SyncHandle) -> Self {
        let mut watch = Self { threads: Vec::new(), ending: Arc::new(AtomicBool::new(false)) };
        let (for_links, ended) = (handle.clone(), Arc::clone(&watch.ending));
        let links = LossWatcher::open(ROUTE_PROTOCOL).map_err(|error| error.to_string());
        watch
            .spawn("telaio-losses", links, move |watcher| watch_links(watcher, &for_links, &ended));
        let (for_rules, ended) = (handle.clone(), Arc::clone(&watch.ending));
        // Changes come by many sockets of ours: they are known by who makes them.
        let rules = Watcher::open(0, TABLE).map_err(|error| error.to_string());
        watch.spawn("telaio-rules", rules, move |watcher| watch_rules(watcher, &for_rules, &ended));
        watch
    }

    fn spawn<T: Send + 'static>(
        &mut self,
        name: &str,
        watcher: Result<T, String>,
        run: impl FnOnce(T) + Send + 'static,
    ) {
        let spawned = watcher.and_then(|watcher| {
            let thread = thread::Builder::new().name(name.into()).spawn(move || run(watcher));
            thread.map_err(|error| error.to_string())
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                tracing::warn!(error, name, "cannot watch; what others remove is found later");
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that watches the kernel panicked");
            }
        }
    }
}

fn watch_links(mut watcher: LossWatcher, handle: &SyncHandle, ending: &AtomicBool) {
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

fn watch_rules(mut watcher: Watcher, handle: &SyncHandle, ending: &AtomicBool) {
    while !ending.load(Ordering::Relaxed) {
        match watcher.next(PAUSE) {
            Ok(Some(notice)) if is_foreign(&notice) => handle.drift_suspected(),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "no longer watching rules; what others remove is found later");
                return;
            }
        }
    }
}

/// Somebody else has touched rules, chains or tables. Elements come and go with instances, whoever makes them.
fn is_foreign(notice: &Notice) -> bool {
    let touched = &notice.touched;
    let is_about_rules =
        touched.anything || !touched.rules.is_empty() || !touched.chains.is_empty();
    let who = notice.process.split(" (").next().unwrap_or_default();
    is_about_rules && ![SYNC_THREAD, PLUGIN].contains(&who)
}
