//! The threads that notice when links, addresses, routes, neighbours or rules of ours go, and when instances come.
//!
//! What goes with an instance that is taken back is no loss: its record goes, too. So where something of an instance goes, they
//! look for its record after a while, and only if it is still there all is compared.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use telaio_netlink::links::Link;
use telaio_netlink::losses::LossWatcher;
use telaio_netlink::nftables::{Notice, Watcher};
use telaio_pod_network::Host;
use telaio_pod_network::names::{HOST_LINK_PREFIX, VXLAN_LINK_PREFIX};
use telaio_pod_network::network::is_our_group;
use telaio_pod_network::overlay::ROUTE_PROTOCOL;
use telaio_pod_network::rules::forward::{FILTER, FORWARD, PASS};
use telaio_pod_network::rules::{TABLE, is_of_instances};
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
    pub(super) fn start(handle: &SyncHandle, host: &Host) -> Self {
        let mut watch = Self { threads: Vec::new(), ending: Arc::new(AtomicBool::new(false)) };
        let (for_links, ended, records) = (handle.clone(), Arc::clone(&watch.ending), host.clone());
        let links = LossWatcher::open(ROUTE_PROTOCOL, is_ours).map_err(|error| error.to_string());
        watch.spawn("telaio-losses", links, move |watcher| {
            watch_links(watcher, &for_links, &records, &ended);
        });
        // Changes come by many sockets of ours: they are known by who makes them.
        for table in [TABLE, FILTER] {
            let (for_rules, ended, records) =
                (handle.clone(), Arc::clone(&watch.ending), host.clone());
            let rules = Watcher::open(0, table).map_err(|error| error.to_string());
            let judge = if table == TABLE { in_ours } else { in_filter };
            watch.spawn("telaio-rules", rules, move |watcher| {
                watch_rules(watcher, judge, &for_rules, &records, &ended);
            });
        }
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

/// Links that we have made, or that bear our mark.
fn is_ours(link: &Link) -> bool {
    is_our_group(link.group)
        || link.name.starts_with(HOST_LINK_PREFIX)
        || link.name.starts_with(VXLAN_LINK_PREFIX)
}

/// What of instances went, and may have gone with them.
#[derive(Debug, Default)]
struct Doubts {
    links: HashSet<String>,
    neighbours: HashSet<IpAddr>,
}

impl Doubts {
    fn is_nothing(&self) -> bool {
        self.links.is_empty() && self.neighbours.is_empty()
    }

    /// Whether somebody is still there who misses it.
    fn are_justified(&self, host: &Host) -> bool {
        let Ok(attachments) = host.attachments() else { return true };
        attachments.iter().any(|it| {
            let mut addresses = it.addresses.iter().map(cidr::IpInet::address);
            self.links.contains(&it.host_link) || addresses.any(|ip| self.neighbours.contains(&ip))
        })
    }
}

fn watch_links(mut watcher: LossWatcher, handle: &SyncHandle, host: &Host, ending: &AtomicBool) {
    let mut doubts = Doubts::default();
    while !ending.load(Ordering::Relaxed) {
        let noticed = match watcher.next(PAUSE) {
            Ok(noticed) => noticed,
            Err(error) => {
                tracing::warn!(%error, "no longer watching links; what others remove is found later");
                return;
            }
        };
        let is_quiet = noticed.links.is_empty() && noticed.neighbours.is_empty();
        let (of_instances, of_node): (Vec<_>, Vec<_>) =
            noticed.links.into_iter().partition(|name| name.starts_with(HOST_LINK_PREFIX));
        let (far, near): (Vec<_>, Vec<_>) =
            noticed.neighbours.into_iter().partition(|(on, _)| on.starts_with(VXLAN_LINK_PREFIX));
        doubts.links.extend(of_instances);
        doubts.neighbours.extend(near.into_iter().map(|(_, ip)| ip));
        if noticed.went || !of_node.is_empty() || !far.is_empty() {
            doubts = Doubts::default();
            handle.drift_suspected();
        } else if !doubts.is_nothing() && is_quiet {
            // It is quiet again: whoever was taken back has no record any more.
            let doubts = std::mem::take(&mut doubts);
            if doubts.are_justified(host) { handle.drift_suspected() } else { handle.notify() }
        } else if noticed.came {
            handle.notify();
        }
    }
}

/// What a change of rules calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Nothing,
    /// To look whether instances' elements are there: whoever makes instances changes them.
    Doubt,
    /// To compare everything.
    Drift,
}

fn watch_rules(
    mut watcher: Watcher,
    judge: fn(&Notice) -> Judgement,
    handle: &SyncHandle,
    host: &Host,
    ending: &AtomicBool,
) {
    let mut is_doubted = false;
    while !ending.load(Ordering::Relaxed) {
        let judgement = match watcher.next(PAUSE) {
            Ok(Some(notice)) if is_foreign(&notice) => judge(&notice),
            // It is quiet again.
            Ok(None) if std::mem::take(&mut is_doubted) => {
                if host.has_rules().unwrap_or(false) {
                    Judgement::Nothing
                } else {
                    Judgement::Drift
                }
            }
            Ok(_) => Judgement::Nothing,
            Err(error) => {
                tracing::warn!(%error, "no longer watching rules; what others remove is found later");
                return;
            }
        };
        is_doubted |= judgement == Judgement::Doubt;
        if judgement == Judgement::Drift {
            is_doubted = false;
            handle.drift_suspected();
        }
    }
}

/// Somebody else has touched tables of ours.
fn in_ours(notice: &Notice) -> Judgement {
    let touched = &notice.touched;
    let is_about_rules =
        touched.anything || !touched.rules.is_empty() || !touched.chains.is_empty();
    let mut sets = touched.elements.keys().map(|(_, set)| set.as_str());
    if is_about_rules || sets.any(|set| !is_of_instances(set)) {
        return Judgement::Drift;
    }
    if touched.elements.is_empty() { Judgement::Nothing } else { Judgement::Doubt }
}

/// Somebody else has touched the chain that ours is led to from, or ours.
fn in_filter(notice: &Notice) -> Judgement {
    let touched = &notice.touched;
    let mut chains = touched.rules.iter().chain(&touched.chains).map(|(_, chain)| chain.as_str());
    if touched.anything || chains.any(|chain| [FORWARD, PASS].contains(&chain)) {
        return Judgement::Drift;
    }
    Judgement::Nothing
}

fn is_foreign(notice: &Notice) -> bool {
    let who = notice.process.split(" (").next().unwrap_or_default();
    ![SYNC_THREAD, PLUGIN].contains(&who)
}
