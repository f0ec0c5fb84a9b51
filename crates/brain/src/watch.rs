//! Watchers: from a place in the log to the operations that bring a receiver up to date.
//!
//! [`LocalWatch`] gives one node's view, [`GlobalWatch`] the raw cluster. Both are pulled: nothing is
//! computed for a receiver until it asks, and whatever happened in between comes as one difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use telaio_api::global::GlobalOp;
use telaio_model::{Kind, Object, ObjectKey, Op};
use tokio::sync::watch;

use crate::diff::{Phases, ServiceDelta};
use crate::global::{GlobalPhases, global_service_ops};
use crate::store::{Commit, Cursor, ObjectDelta, Revision, Snapshot, Store};
use crate::view::{NodeContext, Wants};
use crate::whole::{LocalDiff, WholeView};

/// The store was dropped: there will never be another difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store has ended")]
pub struct Ended;

/// Every service that changed between two revisions: its first change and its last.
fn service_changes(
    commits: &[Arc<Commit>],
) -> BTreeMap<&ObjectKey, (&ServiceDelta, &ServiceDelta)> {
    let mut changes = BTreeMap::new();
    for delta in commits.iter().flat_map(|commit| &commit.services) {
        changes.entry(&delta.key).and_modify(|(_, last)| *last = delta).or_insert((delta, delta));
    }
    changes
}

/// Likewise for objects of other kinds that the receiver wants.
fn object_changes(
    commits: &[Arc<Commit>],
    wanted: impl Fn(Kind) -> bool,
) -> Vec<(Option<Object>, Option<Object>)> {
    let mut changes = BTreeMap::new();
    for delta in commits.iter().flat_map(|commit| &commit.objects) {
        if wanted(delta.object_ref.kind) {
            changes
                .entry(&delta.object_ref)
                .and_modify(|(_, after): &mut (_, Option<Object>)| after.clone_from(&delta.after))
                .or_insert_with(|| (delta.before.clone(), delta.after.clone()));
        }
    }
    changes.into_values().filter(|(before, after)| before != after).collect()
}

/// The part of a watcher that both kinds share: where it stands, and waiting for news.
#[derive(Debug)]
struct Follower {
    cursor: Cursor,
    head: watch::Receiver<Revision>,
    at: Option<Revision>,
}

/// What a follower finds when it looks.
enum News {
    /// Begin anew with the whole state.
    Whole(Arc<Snapshot>),
    /// These commits, up to this revision.
    Commits(Vec<Arc<Commit>>, Revision),
}

impl Follower {
    fn new(store: &Arc<Store>) -> Self {
        Self { cursor: store.cursor(), head: store.subscribe(), at: None }
    }

    /// Waits for something new.
    async fn news(&mut self) -> Result<News, Ended> {
        loop {
            let head = *self.head.borrow_and_update();
            match self.at {
                Some(at) if at >= head => {}
                Some(at) => match self.cursor.commits_since(at) {
                    Some(commits) if commits.is_empty() => self.at = Some(head),
                    Some(commits) => {
                        let last = commits.last().map_or(head, |commit| commit.revision);
                        return Ok(News::Commits(commits, last));
                    }
                    // Fell too far behind: what was needed is no longer kept.
                    None => self.at = None,
                },
                None => {}
            }
            if self.at.is_none()
                && let Some(snapshot) = self.cursor.begin()
            {
                self.at = Some(snapshot.revision);
                return Ok(News::Whole(snapshot));
            }
            self.head.changed().await.map_err(|_| Ended)?;
        }
    }

    fn restart(&mut self) {
        self.at = None;
    }

    fn arrived(&mut self, revision: Revision) {
        self.at = Some(revision);
        self.cursor.move_to(revision);
    }
}

/// What happened to the store.
#[derive(Debug)]
pub enum History {
    /// It begins here, or what happened before is no longer kept.
    From(Arc<Snapshot>),
    /// These commits, oldest first.
    Commits(Vec<Arc<Commit>>),
}

/// Follows what happens to the store, change by change: for those who tell people of it.
#[derive(Debug)]
pub struct CommitWatch {
    follower: Follower,
}

impl CommitWatch {
    /// A watch of this store.
    pub fn new(store: &Arc<Store>) -> Self {
        let (cursor, head) = (store.onlooker(), store.subscribe());
        Self { follower: Follower { cursor, head, at: None } }
    }

    /// Waits for what happens next. Cancel-safe.
    pub async fn next(&mut self) -> Result<History, Ended> {
        match self.follower.news().await? {
            News::Whole(snapshot) => {
                self.follower.arrived(snapshot.revision);
                Ok(History::From(snapshot))
            }
            News::Commits(commits, last) => {
                self.follower.arrived(last);
                Ok(History::Commits(commits))
            }
        }
    }
}

/// Follows one node's view.
#[derive(Debug)]
pub struct LocalWatch {
    follower: Follower,
    wants: Wants,
    node: NodeContext,
    taken: Option<Arc<AtomicU64>>,
}

impl LocalWatch {
    /// A watch for the node of this name, which need not be known yet.
    pub fn new(store: &Arc<Store>, node: impl Into<Arc<str>>, wants: Wants) -> Self {
        let node = NodeContext { name: node.into(), zone: None };
        Self { follower: Follower::new(store), wants, node, taken: None }
    }

    /// As it goes on, leaves in `taken` up to which revision the receiver has everything: it has when it asks for
    /// more, and where nothing was for it.
    #[must_use]
    pub fn telling(mut self, taken: Arc<AtomicU64>) -> Self {
        self.taken = Some(taken);
        self
    }

    fn tell_taken(&self) {
        if let (Some(taken), Some(at)) = (&self.taken, self.follower.at) {
            taken.fetch_max(at, Ordering::Release);
        }
    }

    /// Waits until the node's view differs from what was last given, and gives the difference: the
    /// first time `Reset`, everything, `Sync`; then what changed and `Sync`. It begins with `Reset`
    /// again when it has fallen too far behind, or when its node has moved to another zone.
    pub async fn next(&mut self) -> Result<LocalDiff, Ended> {
        loop {
            self.tell_taken();
            match self.follower.news().await? {
                News::Whole(snapshot) => {
                    self.node =
                        NodeContext::new(self.node.name.clone(), snapshot.node(&self.node.name));
                    let joining = self.follower.cursor.joining();
                    let (node, wants) = (self.node.clone(), self.wants.clone());
                    return Ok(LocalDiff::whole(WholeView::new(snapshot, node, wants, joining)));
                }
                News::Commits(commits, _) if self.node_moved(&commits) => self.follower.restart(),
                News::Commits(commits, revision) => {
                    let ops = self.difference(&commits);
                    self.follower.arrived(revision);
                    if !ops.is_empty() {
                        return Ok(LocalDiff::part(ops));
                    }
                }
            }
        }
    }

    fn difference(&self, commits: &[Arc<Commit>]) -> Vec<Op> {
        let mut phases = Phases::default();
        for (key, (first, last)) in service_changes(commits) {
            if std::ptr::eq(first, last) {
                phases.append(&last.phases(&self.node, &self.wants));
            } else {
                let (before, after) = (first.before.as_deref(), last.after.as_deref());
                phases.append(&Phases::between(key, before, after, &self.node, &self.wants));
            }
        }
        for change in object_changes(commits, |kind| self.wants.kinds.contains(&kind)) {
            phases.add_object(match change {
                (_, Some(object)) => Op::SetObject(object),
                (Some(object), None) => Op::DeleteObject(object.object_ref()),
                (None, None) => continue,
            });
        }
        phases.into_ops()
    }

    /// Whether a commit gave the watcher's own node another zone: then every service may look
    /// different, and beginning anew is the whole answer.
    fn node_moved(&self, commits: &[Arc<Commit>]) -> bool {
        let own = |delta: &&ObjectDelta| {
            delta.object_ref.kind == Kind::Node && delta.object_ref.key.name == self.node.name
        };
        let deltas = commits.iter().flat_map(|commit| &commit.objects);
        deltas.rev().find(own).is_some_and(|delta| {
            let node = match &delta.after {
                Some(Object::Node(node)) => Some(&**node),
                _ => None,
            };
            NodeContext::new(self.node.name.clone(), node) != self.node
        })
    }
}

/// Follows the raw cluster.
#[derive(Debug)]
pub struct GlobalWatch {
    follower: Follower,
    kinds: BTreeSet<Kind>,
}

impl GlobalWatch {
    /// A watch of services, endpoints and nodes, and of objects of these kinds.
    pub fn new(store: &Arc<Store>, kinds: BTreeSet<Kind>) -> Self {
        Self { follower: Follower::new(store), kinds }
    }

    /// As [`LocalWatch::next`], for the whole cluster.
    pub async fn next(&mut self) -> Result<Box<dyn Iterator<Item = GlobalOp> + Send>, Ended> {
        loop {
            match self.follower.news().await? {
                News::Whole(snapshot) => return Ok(Box::new(self.whole(snapshot))),
                News::Commits(commits, revision) => {
                    let ops = self.difference(&commits);
                    self.follower.arrived(revision);
                    if !ops.is_empty() {
                        return Ok(Box::new(ops.into_iter().chain([GlobalOp::Sync])));
                    }
                }
            }
        }
    }

    fn whole(&self, snapshot: Arc<Snapshot>) -> impl Iterator<Item = GlobalOp> + Send + use<> {
        let kinds = self.kinds.clone();
        let objects = Arc::clone(&snapshot);
        let objects = (0..objects.objects.len()).filter_map(move |index| {
            let object = objects.objects[index].clone();
            match object {
                Object::Node(node) => Some(GlobalOp::SetNode(node)),
                object if kinds.contains(&object.kind()) => Some(GlobalOp::SetObject(object)),
                _ => None,
            }
        });
        let services = (0..snapshot.services.len()).flat_map(move |index| {
            let mut phases = GlobalPhases::default();
            let state = &snapshot.services[index];
            global_service_ops(&state.key, None, Some(state), &mut phases);
            phases.into_ops()
        });
        [GlobalOp::Reset].into_iter().chain(objects).chain(services).chain([GlobalOp::Sync])
    }

    fn difference(&self, commits: &[Arc<Commit>]) -> Vec<GlobalOp> {
        let mut phases = GlobalPhases::default();
        let wanted = |kind| kind == Kind::Node || self.kinds.contains(&kind);
        for change in object_changes(commits, wanted) {
            phases.objects.push(match change {
                (_, Some(Object::Node(node))) => GlobalOp::SetNode(node),
                (Some(Object::Node(node)), None) => GlobalOp::DeleteNode(node.meta.key.clone()),
                (_, Some(object)) => GlobalOp::SetObject(object),
                (Some(object), None) => GlobalOp::DeleteObject(object.object_ref()),
                (None, None) => continue,
            });
        }
        for (key, (first, last)) in service_changes(commits) {
            global_service_ops(key, first.before.as_deref(), last.after.as_deref(), &mut phases);
        }
        phases.into_ops()
    }
}
