//! What changed, told one by one, and when it was in the kernel.
//!
//! Changes come from the store, or from the view that a brain makes. Those that mean nothing for this node's
//! rules are told and not waited for; the others wait until the backend has taken their revision and its sync
//! loop has nothing left that was asked for before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use telaio_brain::store::Commit;
use telaio_brain::{CommitWatch, History, NodeContext, Store, Wants};
use telaio_gui::events::EVENTS_MAX;
use telaio_gui::values::Key;
use telaio_gui::{EventLog, NewEvent};
use telaio_model::ObjectKey;
use telaio_reconcile::SyncStats;

use super::changes::{self, Told};
use crate::monitor::{Monitor, ViewChange, What};

/// How often it is looked whether changes have reached the kernel, while some have not.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// Events of one revision that wait to be in the kernel.
struct Waiting {
    ids: Vec<u64>,
    revision: u64,
    since: SystemTime,
    /// When the backend was seen to have taken them.
    taken: Option<(Instant, SystemTime)>,
}

/// Who tells of changes, and waits for them.
pub(super) struct Teller {
    pub(super) monitor: Arc<Monitor>,
    pub(super) events: Arc<EventLog>,
    /// The node whose rules are programmed, and what of the state they depend on; none where none are.
    pub(super) programs: Option<(Arc<str>, Wants)>,
    waiting: VecDeque<Waiting>,
}

impl Teller {
    pub(super) fn new(
        monitor: Arc<Monitor>,
        events: Arc<EventLog>,
        programs: Option<(Arc<str>, Wants)>,
    ) -> Self {
        Self { monitor, events, programs, waiting: VecDeque::new() }
    }

    /// Follows the store for as long as it is polled.
    pub(super) async fn follow(mut self, store: Arc<Store>) {
        let mut watch = CommitWatch::new(&store);
        let weak = Arc::downgrade(&store);
        drop(store);
        loop {
            match self.wait_or(watch.next()).await {
                None => {}
                Some(Err(_)) => return,
                Some(Ok(History::From(snapshot))) => {
                    let (services, objects) = (snapshot.services.len(), snapshot.objects.len());
                    self.whole(snapshot.revision, services, objects);
                }
                Some(Ok(History::Commits(commits))) => {
                    let Some(store) = weak.upgrade() else { return };
                    self.commits(&store, &commits);
                }
            }
            self.look();
        }
    }

    fn commits(&mut self, store: &Store, commits: &[Arc<Commit>]) {
        let node = self.programs.as_ref().map(|(name, wants)| {
            let snapshot = store.snapshot();
            let node = snapshot.as_ref().and_then(|it| it.node(name));
            (NodeContext::new(Arc::clone(name), node), wants.clone())
        });
        for commit in commits {
            self.commit(commit, node.as_ref());
        }
    }

    /// Follows the view that a brain makes, for as long as it is polled.
    pub(super) async fn follow_view(mut self) {
        let monitor = Arc::clone(&self.monitor);
        let followed = &monitor.feeding().followed;
        loop {
            let (news, left_out) = self.wait_or(followed.news()).await.unwrap_or_default();
            for change in news {
                self.view_change(change);
            }
            if left_out > 0 {
                let told = Told::source("changed", format!("{left_out} more changes came at once"));
                self.push(0, Key::new("", "state"), told, false);
            }
            self.look();
        }
    }

    /// The next of what comes; nothing when it is time to look at what waits.
    async fn wait_or<T>(&self, next: impl Future<Output = T>) -> Option<T> {
        if self.waiting.is_empty() {
            return Some(next.await);
        }
        tokio::time::timeout(LOOK_PERIOD, next).await.ok()
    }

    fn push(&self, revision: u64, object: Key, told: Told, programs: bool) -> u64 {
        let Told { kind, change, summary } = told;
        self.events.push(NewEvent {
            at_ms: None,
            revision,
            kind,
            object,
            change: change.to_owned(),
            summary,
            programs,
        })
    }

    fn whole(&self, revision: u64, services: usize, objects: usize) {
        let text =
            format!("the whole state was read: {services} services, {objects} other objects");
        self.push(revision, Key::new("", "state"), Told::source("changed", text), false);
    }

    fn commit(&mut self, commit: &Commit, node: Option<&(NodeContext, Wants)>) {
        let mut ids = Vec::new();
        for delta in &commit.services {
            let programs = node.is_some_and(|(node, wants)| delta.concerns(node, wants));
            let told = changes::service_change(delta.before.as_deref(), delta.after.as_deref());
            let id = self.push(commit.revision, key(&delta.key), told, programs);
            ids.extend(programs.then_some(id));
        }
        for delta in &commit.objects {
            let told = changes::object_change(delta);
            self.push(commit.revision, key(&delta.object_ref.key), told, false);
        }
        self.wait_for(ids, commit.revision, commit.at);
    }

    fn view_change(&mut self, change: ViewChange) {
        let ViewChange { revision, at, what } = change;
        match what {
            What::Whole(services, objects) => self.whole(revision, services, objects),
            What::Service(name, was, is) => {
                let told = changes::view_change(was.as_ref(), is.as_ref());
                let programs = self.programs.is_some();
                let id = self.push(revision, key(&name), told, programs);
                self.wait_for(programs.then_some(id).into_iter().collect(), revision, at);
            }
            What::Object(at, was, is) => {
                let name = key(&at.key);
                let told = changes::object_of_view(at, was, is);
                self.push(revision, name, told, false);
            }
        }
    }

    fn wait_for(&mut self, ids: Vec<u64>, revision: u64, since: SystemTime) {
        if ids.is_empty() {
            return;
        }
        match self.waiting.back_mut() {
            Some(last) if last.revision == revision => last.ids.extend(ids),
            _ => self.waiting.push_back(Waiting { ids, revision, since, taken: None }),
        }
        // What has left the log nobody asks for any more.
        let newest = self.waiting.back().and_then(|it| it.ids.last()).copied().unwrap_or(0);
        let is_gone = |it: &Waiting| {
            it.ids.last().is_none_or(|id| id.saturating_add(EVENTS_MAX as u64) <= newest)
        };
        while self.waiting.front().is_some_and(is_gone) {
            self.waiting.pop_front();
        }
    }

    /// Tells of what is in the kernel by now.
    fn look(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let taken = self.monitor.feeding().taken();
        // There is no loop yet, or nothing was synced: they wait on.
        let Some(handle) = self.monitor.services_loop() else { return };
        // First, so that a request that came with them is among what waits.
        let now = (Instant::now(), SystemTime::now());
        for it in &mut self.waiting {
            if it.taken.is_none() && it.revision <= taken {
                it.taken = Some(now);
            }
        }
        let stats = handle.stats();
        while let Some(first) = self.waiting.front() {
            let Some(done) = first.done(&stats) else { return };
            let ms = done.duration_since(first.since).unwrap_or_default().as_secs_f64() * 1000.0;
            let all: Vec<(u64, f64)> = first.ids.iter().map(|id| (*id, ms)).collect();
            self.events.programmed(&all);
            self.waiting.pop_front();
        }
    }
}

impl Waiting {
    /// Since when they are in the kernel, if they are.
    fn done(&self, stats: &SyncStats) -> Option<SystemTime> {
        let (seen, at) = self.taken?;
        let success = stats.last_success?;
        // Whatever was asked for until we saw them taken is done; a sync that failed is asked for again.
        let pending = stats.pending_age.is_some_and(|age| age >= seen.elapsed());
        if pending || stats.last_error.is_some() {
            return None;
        }
        // They may have needed no sync, as another change took them back.
        Some(if success >= self.since { success } else { at })
    }
}

fn key(key: &ObjectKey) -> Key {
    Key::new(&*key.namespace, &*key.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Facts;

    fn waiting(taken: Option<Duration>) -> Waiting {
        let ago = |age: Duration| (Instant::now().checked_sub(age).unwrap(), SystemTime::now());
        let since = SystemTime::now() - Duration::from_secs(10);
        Waiting { ids: vec![1], revision: 1, since, taken: taken.map(ago) }
    }

    fn stats(pending: Option<Duration>) -> SyncStats {
        let last_success = Some(SystemTime::now());
        SyncStats { last_success, pending_age: pending, ..SyncStats::default() }
    }

    #[test]
    fn a_change_is_in_the_kernel_when_what_was_asked_for_until_then_is_done() {
        let second = Duration::from_secs(1);
        assert_eq!(waiting(None).done(&stats(None)), None, "the backend has not been told");
        let taken = waiting(Some(second * 2));
        assert!(taken.done(&stats(None)).is_some());
        assert!(taken.done(&stats(Some(second))).is_some(), "what is asked for since is another's");
        assert_eq!(taken.done(&stats(Some(second * 3))), None, "its own sync is still to come");
        let failed = SyncStats { last_error: Some("no".into()), ..stats(None) };
        assert_eq!(taken.done(&failed), None);
        assert_eq!(taken.done(&SyncStats::default()), None, "nothing was ever synced");
    }

    #[test]
    fn what_needed_no_sync_counts_from_when_that_was_known() {
        let taken = waiting(Some(Duration::from_secs(1)));
        let long_ago = SystemTime::now() - Duration::from_secs(100);
        let stats = SyncStats { last_success: Some(long_ago), ..SyncStats::default() };
        assert!(taken.done(&stats).unwrap() > taken.since);
    }

    #[tokio::test]
    async fn only_what_the_log_still_holds_waits() {
        let monitor = Monitor::new(Facts::default(), Arc::default(), None);
        let mut teller = Teller::new(monitor, Arc::default(), None);
        for id in 0..3 * EVENTS_MAX as u64 {
            teller.wait_for(vec![id], id, SystemTime::now());
        }
        assert_eq!(teller.waiting.len(), EVENTS_MAX);
    }
}
