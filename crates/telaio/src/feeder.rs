//! From a node's view to a backend: the thread that feeds the sink.
//!
//! A thread and not a task, for a sink may block: it talks to the kernel, or waits until it is ready
//! for more. The view comes from the store of this process or straight from another brain.
//!
//! What always holds: a sink that could not take an operation is fed everything anew; one that could
//! not act on a state gets the next state as if nothing had happened, for its own loop tries again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use telaio_brain::{LocalWatch, Store, Wants};
use telaio_gateway::listener::KINDS;
use telaio_model::{Kind, Object, Op};
use telaio_reconcile::kpng::{Sink, SinkError};
use telaio_source::Status;
use telaio_source::brain::{BrainOptions, LocalClient};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::monitor::{ChangesSeen, Monitor};
use crate::plane::Plane;

/// How long to wait before a sink that refused an operation is fed anew.
const REFEED_PAUSE: Duration = Duration::from_secs(1);

/// Where a node's view comes from.
#[derive(Debug, Clone)]
pub(crate) enum ViewOrigin {
    /// The store of this process, and what is wanted of it.
    Store(Arc<Store>, Wants),
    /// Another brain, which makes the view for us.
    Brain(BrainOptions, Arc<Status>),
}

/// A view that is being followed.
enum View {
    Store(LocalWatch),
    Brain(Box<LocalClient>),
}

/// The objects that a node agent asks for besides its services: nodes, for its own addresses and pod
/// networks and to know when it is about to go, and the networks of cluster addresses.
pub(crate) const OBJECT_KINDS: &[Kind] = &[Kind::Node, Kind::ServiceCidr];

/// What an agent asks for that manages services.
pub(crate) fn wants() -> Wants {
    wants_for(&[Plane::Services])
}

/// What the ingress asks for: all services, their endpoints also while they drain, and its objects.
pub(crate) fn ingress_wants() -> Wants {
    let mut wants = Wants { serving_endpoints: true, all_services: true, ..Wants::default() };
    wants.kinds.extend(KINDS);
    wants
}

/// What an agent asks for that manages these planes.
pub(crate) fn wants_for(planes: &[Plane]) -> Wants {
    Wants { kinds: object_kinds(planes), ..Wants::services() }
}

/// The objects that these planes ask for besides services.
pub(crate) fn object_kinds(planes: &[Plane]) -> BTreeSet<Kind> {
    let of = |plane: &Plane| match plane {
        #[cfg(target_os = "linux")]
        Plane::Pods => crate::pods::OBJECT_KINDS,
        _ => OBJECT_KINDS,
    };
    planes.iter().flat_map(of).copied().collect()
}

impl ViewOrigin {
    fn follow(&self, node: &Arc<str>, monitor: &Monitor) -> View {
        match self {
            Self::Store(store, wants) => {
                let watch = LocalWatch::new(store, Arc::clone(node), wants.clone());
                View::Store(watch.telling(Arc::clone(&monitor.feeding().taken)))
            }
            Self::Brain(options, status) => {
                let (options, status) = (options.clone(), Arc::clone(status));
                View::Brain(Box::new(LocalClient::new(options, Arc::clone(node), status)))
            }
        }
    }
}

type Ops = Box<dyn Iterator<Item = Op> + Send>;

impl View {
    /// The next difference; `None` when there will be no other.
    async fn next(&mut self) -> Option<Ops> {
        match self {
            Self::Store(watch) => watch.next().await.ok().map(|diff| Box::new(diff) as Ops),
            Self::Brain(client) => Some(Box::new(client.next().await.into_iter())),
        }
    }
}

/// What happens to the feeding.
#[derive(Debug)]
pub(crate) enum FeederEvent {
    /// The sink has been given the first full state.
    FirstState,
    /// The sink cannot be fed any more.
    Failed(SinkError),
}

/// The running thread.
#[derive(Debug)]
pub(crate) struct Feeder {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    first: Option<oneshot::Receiver<()>>,
    ended: oneshot::Receiver<SinkError>,
}

impl Feeder {
    /// Starts to feed `sink`. Must be called within the runtime.
    pub(crate) fn start(
        origin: ViewOrigin,
        sink: Box<dyn Sink>,
        monitor: Arc<Monitor>,
    ) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (first_sender, first) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let mut feed = Feed {
            runtime: Handle::current(),
            origin,
            sink,
            monitor,
            stopped,
            first: Some(first_sender),
            own_node: OwnNode::default(),
        };
        let thread = std::thread::Builder::new()
            .name("telaio-feed".into())
            .spawn(move || {
                if let Err(error) = feed.run() {
                    // Nobody listens any more when we are ending anyway.
                    let _ = ended_sender.send(error);
                }
            })
            .context("cannot start the feeding thread")?;
        Ok(Self { stop, thread: Some(thread), first: Some(first), ended })
    }

    /// The next thing that happens to the feeding. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> FeederEvent {
        if let Some(first) = &mut self.first {
            tokio::select! {
                Ok(()) = first => {
                    self.first = None;
                    return FeederEvent::FirstState;
                }
                error = &mut self.ended => {
                    return FeederEvent::Failed(error.unwrap_or(SinkError::Closed));
                }
            }
        }
        FeederEvent::Failed((&mut self.ended).await.unwrap_or(SinkError::Closed))
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed; ending goes on.
            let _ = thread.join();
        }
    }
}

struct Feed {
    runtime: Handle,
    origin: ViewOrigin,
    sink: Box<dyn Sink>,
    monitor: Arc<Monitor>,
    stopped: watch::Receiver<bool>,
    first: Option<oneshot::Sender<()>>,
    /// Whether the source knows our own node, and whether it has named it since a reset.
    own_node: OwnNode,
}

#[derive(Debug, Default, Clone, Copy)]
struct OwnNode {
    known: bool,
    missing: bool,
}

impl Feed {
    fn run(&mut self) -> Result<(), SinkError> {
        self.sink.setup()?;
        let mut view: Option<(Arc<str>, View)> = None;
        loop {
            let node = self.sink.wait_request()?;
            let (_, following) = match &mut view {
                Some(following) if following.0 == node => following,
                other => {
                    let following = self.origin.follow(&node, &self.monitor);
                    other.insert((Arc::clone(&node), following))
                }
            };
            let mut stopped = self.stopped.clone();
            let ops = self.runtime.block_on(async {
                tokio::select! {
                    ops = following.next() => ops,
                    _ = stopped.wait_for(|stop| *stop) => None,
                }
            });
            let Some(ops) = ops else { return Ok(()) };
            if let Err(error) = self.send(&node, ops) {
                if matches!(error, SinkError::Closed) {
                    return Err(error);
                }
                tracing::error!(%error, "the backend refused a change; giving it everything anew");
                std::thread::sleep(REFEED_PAUSE);
                self.sink.reset()?;
                view = None;
            }
        }
    }

    fn send(&mut self, node: &str, ops: Ops) -> Result<(), SinkError> {
        let mut seen = ChangesSeen::default();
        // Nobody else here has the view that a brain makes.
        let mut followed =
            matches!(self.origin, ViewOrigin::Brain(..)).then(|| (Vec::new(), 0_u64));
        for op in ops {
            self.note_own_node(node, &op);
            seen.count(&op);
            if let Some((steps, revision)) = &mut followed {
                steps.push(op.clone());
                if op == Op::Sync {
                    *revision = self.monitor.feeding().followed.take(std::mem::take(steps));
                }
            }
            if op == Op::Sync {
                // Before the backend hears of it: it may be done with them in no time.
                self.monitor.changes_seen(std::mem::take(&mut seen));
            }
            let is_sync = op == Op::Sync;
            match self.sink.send(op) {
                Ok(()) => {}
                Err(SinkError::Closed) => return Err(SinkError::Closed),
                Err(error) if is_sync => tracing::error!(%error, "the backend could not sync"),
                Err(error) => return Err(error),
            }
            if let (true, Some((_, revision))) = (is_sync, &followed) {
                self.monitor.feeding().has_taken(*revision);
            }
            if is_sync && let Some(first) = self.first.take() {
                // Nobody may be waiting.
                let _ = first.send(());
            }
        }
        Ok(())
    }

    /// Follows whether our own node is about to go. After a reset the whole state comes again: a node
    /// that was known and does not come with it was deleted while nobody told us.
    fn note_own_node(&mut self, node: &str, op: &Op) {
        match op {
            Op::Reset => self.own_node.missing = self.own_node.known,
            Op::SetObject(Object::Node(object)) if &*object.meta.key.name == node => {
                self.own_node = OwnNode { known: true, missing: false };
                self.monitor.set_node_leaving(object.is_leaving());
            }
            Op::DeleteObject(object) if object.kind == Kind::Node && &*object.key.name == node => {
                self.own_node = OwnNode::default();
                self.monitor.set_node_leaving(true);
            }
            Op::Sync if self.own_node.missing => {
                self.own_node = OwnNode::default();
                self.monitor.set_node_leaving(true);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
