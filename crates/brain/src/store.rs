//! The revisioned store: what the cluster is, and what changed since any recent revision.
//!
//! Writers apply [`Batch`]es; each that changes something makes one [`Commit`] and one revision.
//! Readers never copy the state: a new watcher gets a [`Snapshot`] of shared pointers, and one that
//! has a revision gets the commits since, each holding the service's state before and after. From
//! those two it makes its own node's view and sends the difference; so a watcher costs a cursor,
//! not a copy of what it was sent.
//!
//! Commits are kept only while a watcher may need them, and never more than
//! [`LOG_CHANGES_MAX`] changes (or one change per service): whoever falls further behind begins
//! anew with a snapshot. A slow watcher costs its own view, never more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::RwLock;
use telaio_model::{
    Batch, EndpointSlice, Kind, Node, Object, ObjectChange, ObjectKey, ObjectRef, Override, Service,
};
use tokio::sync::watch;

pub use crate::diff::ServiceDelta;
use crate::state::ServiceState;

/// A number that grows by one with each change of the state.
pub type Revision = u64;

/// How many changes are kept for watchers that are behind, at least; a cluster with more services
/// keeps one for each.
pub const LOG_CHANGES_MAX: usize = 16_384;

/// How many endpoints of replaced states the kept changes may hold, at least; a cluster with more
/// keeps as many as it has. So the log is never larger than one further copy of the state.
pub const LOG_ENDPOINTS_MAX: usize = 65_536;

/// One object of another kind before and after a commit.
#[derive(Debug)]
pub struct ObjectDelta {
    /// The object.
    pub object_ref: ObjectRef,
    /// What it was.
    pub before: Option<Object>,
    /// What it is.
    pub after: Option<Object>,
}

/// What one batch changed.
#[derive(Debug)]
pub struct Commit {
    /// The revision that it made.
    pub revision: Revision,
    /// When it was made, for whoever tells how long it took from there. Nothing is decided by it.
    pub at: SystemTime,
    /// Services that changed, with their endpoints.
    pub services: Vec<ServiceDelta>,
    /// Other objects that changed.
    pub objects: Vec<ObjectDelta>,
}

impl Commit {
    fn len(&self) -> usize {
        self.services.len() + self.objects.len()
    }

    /// The endpoints that only the log still holds.
    fn endpoints_replaced(&self) -> usize {
        let replaced = |delta: &ServiceDelta| {
            let now = delta.after.as_ref().map_or(&[][..], |state| &state.slices);
            let before = delta.before.iter().flat_map(|state| &state.slices);
            let gone = before.filter(|slice| !now.iter().any(|other| Arc::ptr_eq(slice, other)));
            gone.map(|slice| slice.endpoints.len()).sum::<usize>()
        };
        self.services.iter().map(replaced).sum()
    }
}

/// The whole state at one revision, shared.
#[derive(Debug)]
pub struct Snapshot {
    /// The revision.
    pub revision: Revision,
    /// Every service, ordered by name.
    pub services: Vec<Arc<ServiceState>>,
    /// Every other object, ordered.
    pub objects: Vec<Object>,
}

impl Snapshot {
    /// A node of the cluster.
    pub fn node(&self, name: &str) -> Option<&Node> {
        let wanted = ObjectRef::new(Kind::Node, ObjectKey::cluster(name));
        let order = |object: &Object| {
            object.kind().cmp(&wanted.kind).then_with(|| object.key().cmp(&wanted.key))
        };
        match self.objects.binary_search_by(order).map(|index| &self.objects[index]) {
            Ok(Object::Node(node)) => Some(node),
            _ => None,
        }
    }
}

/// How large the store is, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Services.
    pub services: usize,
    /// Endpoints in all slices.
    pub endpoints: usize,
    /// Other objects.
    pub objects: usize,
    /// Changes kept for watchers that are behind.
    pub log_changes: usize,
    /// Watchers.
    pub watchers: usize,
}

#[derive(Debug, Default)]
struct Entry {
    service: Option<Arc<Service>>,
    /// Ordered by name. Most services have one.
    slices: Vec<Arc<EndpointSlice>>,
    overrides: BTreeMap<ObjectKey, Arc<Override>>,
    state: Option<Arc<ServiceState>>,
}

impl Entry {
    fn build(&self, key: &ObjectKey, now_s: i64) -> Option<Arc<ServiceState>> {
        let overrides = self.overrides.values().filter(|it| it.is_active(now_s)).cloned();
        let state = ServiceState::new(
            key.clone(),
            self.service.clone(),
            self.slices.clone(),
            overrides.collect(),
        );
        (!state.is_empty()).then(|| Arc::new(state))
    }

    /// Where the slice of this name is, or belongs.
    fn slice(&self, name: &str) -> Result<usize, usize> {
        self.slices.binary_search_by(|slice| (*slice.key.name).cmp(name))
    }

    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty() && self.overrides.is_empty()
    }
}

#[derive(Debug, Default)]
struct Inner {
    revision: Revision,
    synced: bool,
    services: BTreeMap<ObjectKey, Entry>,
    /// To which service each slice belongs: a slice can change hands.
    slice_owners: BTreeMap<ObjectKey, ObjectKey>,
    objects: BTreeMap<ObjectRef, Object>,
    endpoints: usize,
    /// Each with the endpoints that only it holds.
    log: VecDeque<(usize, Arc<Commit>)>,
    log_changes: usize,
    log_endpoints: usize,
    /// How many watchers stand at each revision; those that have none yet are not in it.
    cursors: BTreeMap<Revision, usize>,
    watchers: usize,
    snapshot: Option<Arc<Snapshot>>,
    /// When each override that ends does so, so that time can be a change like any other.
    expiries: BTreeSet<(i64, ObjectKey)>,
    /// Pauses of routes that have ended: nobody is told of them, and a clock that is set back finds
    /// them here.
    ended: BTreeMap<ObjectRef, Object>,
    /// When each of those that have not does so.
    pauses: BTreeSet<(i64, ObjectRef)>,
    now_s: i64,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    inner: RwLock<Inner>,
    head: watch::Sender<Revision>,
    /// Watchers that are taking the whole state now.
    joining: AtomicUsize,
    /// Some of them have left wire forms with the services.
    wire_shared: AtomicBool,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            inner: RwLock::default(),
            head: watch::Sender::new(0),
            joining: AtomicUsize::new(0),
            wire_shared: AtomicBool::new(false),
        }
    }
}

impl Store {
    /// An empty store that nobody may act on until a batch says it is complete.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Applies a batch; returns the revision if anything changed.
    pub fn apply(&self, batch: Batch) -> Option<Revision> {
        let mut inner = self.inner.write();
        let mut dirty = BTreeSet::new();
        let mut objects = BTreeMap::new();
        for change in batch.changes {
            inner.apply_change(change, &mut dirty, &mut objects);
        }
        let newly_synced = batch.synced && !inner.synced;
        inner.synced |= batch.synced;
        let committed = inner.commit(dirty, objects);
        if newly_synced {
            inner.compact();
        }
        // Completeness alone is news too: an empty cluster is a state to act on.
        let revision = if committed || newly_synced { Some(inner.bump()) } else { None };
        let outdated = revision.and_then(|_| inner.snapshot.take());
        drop(inner);
        // It may be the last to hold a pointer to everything: nobody has to wait for that.
        drop(outdated);
        self.announce(revision)
    }

    /// Tells the store the time, in seconds since 1970: overrides that have ended by then no longer
    /// count.
    pub fn set_time(&self, now_s: i64) -> Option<Revision> {
        let mut inner = self.inner.write();
        let mut dirty = BTreeSet::new();
        let mut objects = BTreeMap::new();
        if now_s < inner.now_s {
            inner.revive_overrides(now_s, &mut dirty, &mut objects);
        }
        inner.now_s = now_s;
        while let Some((until, service)) = inner.expiries.first().cloned() {
            if until > now_s {
                break;
            }
            inner.expiries.remove(&(until, service.clone()));
            dirty.insert(service);
        }
        inner.end_pauses(&mut objects);
        let revision = if inner.commit(dirty, objects) { Some(inner.bump()) } else { None };
        let outdated = revision.and_then(|_| inner.snapshot.take());
        drop(inner);
        drop(outdated);
        self.announce(revision)
    }

    fn announce(&self, revision: Option<Revision>) -> Option<Revision> {
        if let Some(revision) = revision {
            // Of two writers the later one may come here first: its revision must stand.
            self.head.send_if_modified(|head| {
                let is_newer = revision > *head;
                *head = revision.max(*head);
                is_newer
            });
        }
        revision
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.inner.read().revision
    }

    /// Whether the state is complete.
    pub fn is_synced(&self) -> bool {
        self.inner.read().synced
    }

    /// How large the store is.
    pub fn size(&self) -> StoreSize {
        let inner = self.inner.read();
        StoreSize {
            services: inner.services.len(),
            endpoints: inner.endpoints,
            objects: inner.objects.len(),
            log_changes: inner.log_changes,
            watchers: inner.watchers,
        }
    }

    /// A receiver that wakes with each new revision.
    pub fn subscribe(&self) -> watch::Receiver<Revision> {
        self.head.subscribe()
    }

    /// The whole state now, if it is complete.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let inner = self.inner.read();
        if !inner.synced {
            return None;
        }
        if let Some(snapshot) = &inner.snapshot {
            return Some(snapshot.clone());
        }
        drop(inner);
        let mut inner = self.inner.write();
        Some(inner.make_snapshot())
    }

    /// The overrides that have ended, ordered by name: they count for nobody, and are still written
    /// where the source reads them.
    pub fn ended_overrides(&self) -> Vec<Arc<Override>> {
        let inner = self.inner.read();
        let first = ObjectRef::new(Kind::Override, ObjectKey::cluster(""));
        let kept = inner.objects.range(&first..).map(|(_, object)| object);
        let of = |object: &Object| match object {
            Object::Override(decided) => Some(Arc::clone(decided)),
            _ => None,
        };
        let kept = kept.map_while(of).filter(|it| !it.is_active(inner.now_s));
        let mut all: Vec<_> = kept.chain(inner.ended.values().filter_map(of)).collect();
        all.sort_by(|one, other| one.meta.key.cmp(&other.meta.key));
        all
    }

    /// A cursor for a new watcher, which keeps nothing until it is moved to a revision.
    pub(crate) fn cursor(self: &Arc<Self>) -> Cursor {
        self.inner.write().watchers += 1;
        Cursor { store: Arc::downgrade(self), at: None, counted: true }
    }

    /// A cursor for one who only looks on, and is no watcher of anybody's view.
    pub(crate) fn onlooker(self: &Arc<Self>) -> Cursor {
        Cursor { store: Arc::downgrade(self), at: None, counted: false }
    }

    /// The commits after `revision`, oldest first; `None` if they are no longer all kept.
    fn commits_since(&self, revision: Revision) -> Option<Vec<Arc<Commit>>> {
        let inner = self.inner.read();
        if revision >= inner.revision {
            return Some(Vec::new());
        }
        let first = inner.log.front().map_or(inner.revision + 1, |(_, commit)| commit.revision);
        if first > revision + 1 {
            return None;
        }
        // Found by halving: the log is as long as the slowest watcher makes it, and the others must
        // not pay for that.
        let start = inner.log.partition_point(|(_, commit)| commit.revision <= revision);
        Some(inner.log.range(start..).map(|(_, commit)| Arc::clone(commit)).collect())
    }
}

impl Inner {
    fn apply_change(
        &mut self,
        change: ObjectChange,
        dirty: &mut BTreeSet<ObjectKey>,
        objects: &mut BTreeMap<ObjectRef, Option<Object>>,
    ) {
        match change {
            ObjectChange::Set(Object::Service(service)) => {
                let key = service.meta.key.clone();
                let entry = self.services.entry(key.clone()).or_default();
                if entry.service.as_ref() != Some(&service) {
                    entry.service = Some(service);
                    dirty.insert(key);
                }
            }
            ObjectChange::Set(Object::EndpointSlice(slice)) => self.set_slice(slice, dirty),
            ObjectChange::Delete(ObjectRef { kind: Kind::Service, key }) => {
                if let Some(entry) = self.services.get_mut(&key)
                    && entry.service.take().is_some()
                {
                    dirty.insert(key);
                }
            }
            ObjectChange::Delete(ObjectRef { kind: Kind::EndpointSlice, key }) => {
                self.remove_slice(&key, dirty);
            }
            ObjectChange::Set(Object::Override(pause))
                if pause.is_about_routes() && !pause.is_active(self.now_s) =>
            {
                let object = Object::Override(pause);
                let object_ref = object.object_ref();
                let gone = ObjectChange::Delete(object_ref.clone());
                self.apply_change(gone, dirty, objects);
                self.ended.insert(object_ref, object);
            }
            ObjectChange::Set(object) => {
                let object_ref = object.object_ref();
                self.ended.remove(&object_ref);
                if self.objects.get(&object_ref) != Some(&object) {
                    self.index_override(&object_ref, Some(&object), dirty);
                    let before = self.objects.insert(object_ref.clone(), object);
                    objects.entry(object_ref).or_insert(before);
                }
            }
            ObjectChange::Delete(object_ref) => {
                self.ended.remove(&object_ref);
                self.index_override(&object_ref, None, dirty);
                if let Some(before) = self.objects.remove(&object_ref) {
                    objects.entry(object_ref).or_insert(Some(before));
                }
            }
        }
    }

    /// Gives back the room in maps that were filled one by one: with keys in order that is nearly as
    /// much as they hold. Built in one go they have none.
    fn compact(&mut self) {
        self.services = std::mem::take(&mut self.services).into_iter().collect();
        self.slice_owners = std::mem::take(&mut self.slice_owners).into_iter().collect();
    }

    fn set_slice(&mut self, slice: Arc<EndpointSlice>, dirty: &mut BTreeSet<ObjectKey>) {
        let Some(owner) = slice.service_key() else {
            return self.remove_slice(&slice.key, dirty);
        };
        if self.slice_owners.get(&slice.key).is_some_and(|it| *it != owner) {
            self.remove_slice(&slice.key, dirty);
        }
        let entry = self.services.entry(owner.clone()).or_default();
        let place = entry.slice(&slice.key.name);
        if place.is_ok_and(|at| entry.slices[at] == slice) {
            return;
        }
        self.endpoints += slice.endpoints.len();
        self.slice_owners.insert(slice.key.clone(), owner.clone());
        match place {
            Ok(at) => {
                let known = std::mem::replace(&mut entry.slices[at], slice);
                self.endpoints -= known.endpoints.len();
            }
            Err(at) => {
                entry.slices.reserve_exact(1);
                entry.slices.insert(at, slice);
            }
        }
        dirty.insert(owner);
    }

    fn remove_slice(&mut self, key: &ObjectKey, dirty: &mut BTreeSet<ObjectKey>) {
        let Some(owner) = self.slice_owners.remove(key) else { return };
        if let Some(entry) = self.services.get_mut(&owner)
            && let Ok(at) = entry.slice(&key.name)
        {
            let slice = entry.slices.remove(at);
            self.endpoints -= slice.endpoints.len();
            dirty.insert(owner);
        }
    }

    /// Keeps the overrides of each service with the service.
    fn index_override(
        &mut self,
        object_ref: &ObjectRef,
        after: Option<&Object>,
        dirty: &mut BTreeSet<ObjectKey>,
    ) {
        if let Some(Object::Override(old)) = self.objects.get(object_ref)
            && let Some(service) = old.service()
            && let Some(entry) = self.services.get_mut(service)
        {
            entry.overrides.remove(&object_ref.key);
            dirty.insert(service.clone());
        }
        let Some(Object::Override(new)) = after else { return };
        let Some(service) = new.service() else {
            if let Some(until) = new.until_s {
                self.pauses.insert((until, object_ref.clone()));
            }
            return;
        };
        let entry = self.services.entry(service.clone()).or_default();
        entry.overrides.insert(object_ref.key.clone(), Arc::clone(new));
        dirty.insert(service.clone());
        if let Some(until) = new.until_s {
            self.expiries.insert((until, service.clone()));
        }
    }

    /// Takes out the pauses that have ended by now.
    fn end_pauses(&mut self, objects: &mut BTreeMap<ObjectRef, Option<Object>>) {
        while let Some((until, _)) = self.pauses.first()
            && *until <= self.now_s
            && let Some((_, object_ref)) = self.pauses.pop_first()
        {
            // It may have been replaced since by one that lasts longer.
            let has_ended = |object: &Object| match object {
                Object::Override(pause) => !pause.is_active(self.now_s),
                _ => false,
            };
            if self.objects.get(&object_ref).is_some_and(has_ended)
                && let Some(object) = self.objects.remove(&object_ref)
            {
                objects.entry(object_ref.clone()).or_insert(Some(object.clone()));
                self.ended.insert(object_ref, object);
            }
        }
    }

    /// For a clock that was set back: overrides that had ended and now count again.
    fn revive_overrides(
        &mut self,
        now_s: i64,
        dirty: &mut BTreeSet<ObjectKey>,
        objects: &mut BTreeMap<ObjectRef, Option<Object>>,
    ) {
        for object in self.objects.values() {
            if let Object::Override(entry) = object
                && let Some(service) = entry.service()
                && let Some(until) = entry.until_s
                && (now_s + 1..=self.now_s).contains(&until)
            {
                self.expiries.insert((until, service.clone()));
                dirty.insert(service.clone());
            }
        }
        for (object_ref, object) in std::mem::take(&mut self.ended) {
            let Object::Override(entry) = &object else { continue };
            if !entry.is_active(now_s) {
                self.ended.insert(object_ref, object);
                continue;
            }
            if let Some(until) = entry.until_s {
                self.pauses.insert((until, object_ref.clone()));
            }
            objects.entry(object_ref.clone()).or_insert(None);
            self.objects.insert(object_ref, object);
        }
    }

    /// Builds the states that changed and logs the commit. Returns whether anything did.
    fn commit(
        &mut self,
        dirty: BTreeSet<ObjectKey>,
        objects: BTreeMap<ObjectRef, Option<Object>>,
    ) -> bool {
        let mut services = Vec::with_capacity(dirty.len());
        for key in dirty {
            let Some(entry) = self.services.get_mut(&key) else { continue };
            let after = entry.build(&key, self.now_s);
            let before = std::mem::replace(&mut entry.state, after.clone());
            if entry.is_empty() {
                self.services.remove(&key);
            }
            services.push(ServiceDelta::new(key, before, after));
        }
        let objects: Vec<ObjectDelta> = objects
            .into_iter()
            .map(|(object_ref, before)| {
                let after = self.objects.get(&object_ref).cloned();
                ObjectDelta { object_ref, before, after }
            })
            .filter(|delta| delta.before != delta.after)
            .collect();
        if services.is_empty() && objects.is_empty() {
            return false;
        }
        self.log(Commit { revision: self.revision + 1, at: SystemTime::now(), services, objects });
        true
    }

    fn log(&mut self, commit: Commit) {
        // Nobody watches an incomplete state, so nobody needs the way there.
        if self.synced {
            let endpoints = commit.endpoints_replaced();
            self.log_changes += commit.len();
            self.log_endpoints += endpoints;
            self.log.push_back((endpoints, Arc::new(commit)));
        }
    }

    fn bump(&mut self) -> Revision {
        self.revision += 1;
        self.trim_log();
        self.revision
    }

    /// Drops commits that every watcher has, and the oldest beyond the bound.
    fn trim_log(&mut self) {
        let needed_after = self.cursors.keys().next().copied().unwrap_or(Revision::MAX);
        let changes_max = LOG_CHANGES_MAX.max(self.services.len());
        let endpoints_max = LOG_ENDPOINTS_MAX.max(self.endpoints);
        while let Some((endpoints, first)) = self.log.front() {
            let fits = self.log_changes <= changes_max && self.log_endpoints <= endpoints_max;
            if first.revision > needed_after && fits {
                break;
            }
            self.log_changes -= first.len();
            self.log_endpoints -= endpoints;
            self.log.pop_front();
        }
    }

    fn make_snapshot(&mut self) -> Arc<Snapshot> {
        let snapshot = Arc::new(Snapshot {
            revision: self.revision,
            services: self.services.values().filter_map(|entry| entry.state.clone()).collect(),
            objects: self.objects.values().cloned().collect(),
        });
        // While nothing changes, every further new watcher shares it.
        self.snapshot = Some(Arc::clone(&snapshot));
        snapshot
    }
}

/// A watcher's place in the log. Commits after it are kept, within the bound; dropping it lets go.
/// It does not hold the store: when the last other owner drops that, the watcher ends too.
#[derive(Debug)]
pub(crate) struct Cursor {
    store: Weak<Store>,
    at: Option<Revision>,
    /// Whether it is one of the watchers.
    counted: bool,
}

impl Cursor {
    /// Takes the whole state and stands at its revision; `None` while it is not complete.
    pub(crate) fn begin(&mut self) -> Option<Arc<Snapshot>> {
        let store = self.store.upgrade()?;
        let mut inner = store.inner.write();
        if !inner.synced {
            return None;
        }
        let snapshot = match &inner.snapshot {
            Some(snapshot) => Arc::clone(snapshot),
            None => inner.make_snapshot(),
        };
        self.place(&mut inner, Some(snapshot.revision));
        Some(snapshot)
    }

    /// Moves on to a revision that the watcher has now.
    pub(crate) fn move_to(&mut self, revision: Revision) {
        if let Some(store) = self.store.upgrade() {
            self.place(&mut store.inner.write(), Some(revision));
        }
    }

    fn place(&mut self, inner: &mut Inner, revision: Option<Revision>) {
        if let Some(old) = std::mem::replace(&mut self.at, revision)
            && let Some(count) = inner.cursors.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                inner.cursors.remove(&old);
            }
        }
        if let Some(new) = revision {
            *inner.cursors.entry(new).or_default() += 1;
        }
        inner.trim_log();
    }

    /// The commits after `revision`, as [`Store::commits_since`]; `None` also if the store is gone.
    pub(crate) fn commits_since(&self, revision: Revision) -> Option<Vec<Arc<Commit>>> {
        self.store.upgrade()?.commits_since(revision)
    }
}

impl Cursor {
    /// Says that the watcher takes the whole state, for as long as the guard lives.
    pub(crate) fn joining(&self) -> Joining {
        if let Some(store) = self.store.upgrade() {
            store.joining.fetch_add(1, Ordering::Relaxed);
        }
        Joining { store: self.store.clone() }
    }
}

/// A watcher that is taking the whole state. With the last of them goes what they shared.
#[derive(Debug)]
pub(crate) struct Joining {
    store: Weak<Store>,
}

impl Joining {
    /// Whether others do so too, so that sharing the work pays.
    pub(crate) fn in_a_crowd(&self) -> bool {
        self.store.upgrade().is_some_and(|store| store.joining.load(Ordering::Relaxed) > 1)
    }

    /// Notes that something is left with a service, to be cleared at the end.
    pub(crate) fn left_something(&self) {
        if let Some(store) = self.store.upgrade() {
            store.wire_shared.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade()
            && store.joining.fetch_sub(1, Ordering::Relaxed) == 1
            && store.wire_shared.swap(false, Ordering::Relaxed)
        {
            let inner = store.inner.read();
            inner
                .services
                .values()
                .filter_map(|it| it.state.as_ref())
                .for_each(|it| it.wire.clear());
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            let mut inner = store.inner.write();
            self.place(&mut inner, None);
            if self.counted {
                inner.watchers -= 1;
            }
        }
    }
}
