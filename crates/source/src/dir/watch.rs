//! Which paths have changed, from the kernel's notices.
//!
//! Directories are watched by their real path, one by one: the kernel knows directories, not paths,
//! and a recursive watch could not follow links or be in place before a new directory is listed. The
//! notices are turned into the paths that the scanner knows, and gathered until they can be handled
//! together.
//!
//! What always holds: the set of changed paths is bounded; when it overflows, here or in the kernel,
//! everything is scanned.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::{Condvar, Mutex};

use super::links::DirEntryName;

/// How many changed paths are kept apart.
const CHANGED_PATHS_MAX: usize = 10_000;

/// What is to be looked at again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// These paths, and what is below them.
    pub(super) paths: BTreeSet<PathBuf>,
    /// Everything.
    pub(super) all: bool,
}

/// What is of interest in a watched directory.
#[derive(Debug, Default)]
struct Interest {
    /// The paths under which the directory is listed; then every entry that is not hidden counts.
    listed_as: BTreeSet<PathBuf>,
    /// The paths that depend on single entries, through links.
    names: BTreeMap<OsString, BTreeSet<PathBuf>>,
}

#[derive(Debug, Default)]
struct Inner {
    interests: BTreeMap<PathBuf, Interest>,
    /// For each path that is reached through links: the entries it depends on.
    entries: BTreeMap<PathBuf, Vec<DirEntryName>>,
    /// Changed paths; true while somebody is writing.
    paths: BTreeMap<PathBuf, bool>,
    all: bool,
    events: u64,
    stopped: bool,
}

/// What the watcher's thread and the source's thread share.
#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    wake: Condvar,
}

/// The end of a source from outside.
#[derive(Debug, Clone)]
pub(super) struct Stopper(Arc<Shared>);

impl Stopper {
    /// Ends the wait, for good.
    pub(super) fn stop(&self) {
        self.0.inner.lock().stopped = true;
        self.0.wake.notify_all();
    }
}

/// How long changes are gathered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Debounce {
    /// Until nothing has happened for so long,
    pub(super) quiet: Duration,
    /// but no longer than this.
    pub(super) max: Duration,
}

/// What a wait ended with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Something changed.
    Changed(Changed),
    /// Nothing did for the time given.
    TimedOut,
    /// The source is to end.
    Stopped,
}

/// The watched directories.
pub(super) struct Watches {
    shared: Arc<Shared>,
    /// `None` where the system gives no notices; then only scans find changes.
    watcher: Option<RecommendedWatcher>,
    /// Why some directory is not watched.
    failure: Option<String>,
}

impl Watches {
    /// Watches that notice nothing, for a single scan.
    pub(super) fn none() -> Self {
        Self { shared: Arc::default(), watcher: None, failure: None }
    }

    /// Watches by the means of the system.
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let handler = shared.clone();
        let watcher = notify::recommended_watcher(move |event| handler.take(event));
        match watcher {
            Ok(watcher) => Self { shared, watcher: Some(watcher), failure: None },
            Err(error) => Self { shared, watcher: None, failure: Some(error.to_string()) },
        }
    }

    pub(super) fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    /// Why not everything is watched.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Watches the directory `real`, which is listed as `path`. To be called before listing it.
    pub(super) fn watch_listing(&mut self, real: &Path, path: &Path) {
        let mut inner = self.shared.inner.lock();
        let interest = inner.interests.entry(real.to_owned()).or_default();
        interest.listed_as.insert(path.to_owned());
        drop(inner);
        self.watch(real);
    }

    /// Watches the entries by which `path` is what it is, and no longer those that it was by. Says
    /// whether they are others than before.
    pub(super) fn watch_entries(&mut self, path: &Path, entries: Vec<DirEntryName>) -> bool {
        let mut inner = self.shared.inner.lock();
        for entry in &entries {
            let interest = inner.interests.entry(entry.dir.clone()).or_default();
            interest.names.entry(entry.name.clone()).or_default().insert(path.to_owned());
        }
        let before = inner.entries.insert(path.to_owned(), entries.clone()).unwrap_or_default();
        let are_new = before != entries;
        let outdated: Vec<_> =
            before.into_iter().filter(|entry| !entries.contains(entry)).collect();
        let unused = inner.forget_entries(path, &outdated);
        drop(inner);
        // The same path can be another directory by now, so it is watched again in any case.
        for entry in entries {
            self.watch(&entry.dir);
        }
        self.unwatch(unused);
        are_new
    }

    /// Watches nothing for `path` any more; `real` is the directory it was, if it was one.
    pub(super) fn forget(&mut self, path: &Path, real: Option<&Path>) {
        let mut inner = self.shared.inner.lock();
        let entries = inner.entries.remove(path).unwrap_or_default();
        let unused = inner.forget_entries(path, &entries);
        drop(inner);
        self.unwatch(unused);
        if let Some(real) = real {
            self.forget_listing(path, real);
        }
    }

    /// The directory `real` is no longer listed as `path`.
    pub(super) fn forget_listing(&mut self, path: &Path, real: &Path) {
        let mut inner = self.shared.inner.lock();
        if let Some(interest) = inner.interests.get_mut(real) {
            interest.listed_as.remove(path);
        }
        let unused = inner.drop_if_unused(real);
        drop(inner);
        self.unwatch(unused);
    }

    fn watch(&mut self, real: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        // The lock is not held: the watcher answers from the thread that also calls `take`.
        match watcher.watch(real, RecursiveMode::NonRecursive) {
            Ok(()) => {}
            // It went meanwhile, of which there is a notice.
            Err(error) if matches!(error.kind, notify::ErrorKind::PathNotFound) => {}
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn unwatch(&mut self, unused: impl IntoIterator<Item = PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for real in unused {
            // A directory that is gone is not watched any more either.
            let _ = watcher.unwatch(&real);
        }
    }

    /// Waits for changes, and then until they have all been made.
    pub(super) fn wait(&self, timeout: Duration, debounce: Debounce) -> Wait {
        let deadline = Instant::now() + timeout;
        let mut inner = self.shared.inner.lock();
        while !inner.is_changed() {
            if inner.stopped {
                return Wait::Stopped;
            }
            if self.shared.wake.wait_until(&mut inner, deadline).timed_out() {
                return if inner.stopped { Wait::Stopped } else { Wait::TimedOut };
            }
        }
        let latest = Instant::now() + debounce.max;
        loop {
            if inner.stopped {
                return Wait::Stopped;
            }
            let quiet_until = (Instant::now() + debounce.quiet).min(latest);
            let events = inner.events;
            while inner.events == events && !inner.stopped {
                let until = if inner.is_being_written() { latest } else { quiet_until };
                if self.shared.wake.wait_until(&mut inner, until).timed_out() {
                    return Wait::Changed(inner.take_changed());
                }
            }
        }
    }
}

impl Inner {
    fn is_changed(&self) -> bool {
        self.all || !self.paths.is_empty()
    }

    fn is_being_written(&self) -> bool {
        self.paths.values().any(|writing| *writing)
    }

    fn take_changed(&mut self) -> Changed {
        let paths = std::mem::take(&mut self.paths);
        Changed { paths: paths.into_keys().collect(), all: std::mem::take(&mut self.all) }
    }

    fn forget_entries(&mut self, path: &Path, entries: &[DirEntryName]) -> Vec<PathBuf> {
        let mut unused = Vec::new();
        for entry in entries {
            if let Some(interest) = self.interests.get_mut(&entry.dir)
                && let Some(paths) = interest.names.get_mut(&entry.name)
            {
                paths.remove(path);
                if paths.is_empty() {
                    interest.names.remove(&entry.name);
                }
            }
            unused.extend(self.drop_if_unused(&entry.dir));
        }
        unused
    }

    fn drop_if_unused(&mut self, real: &Path) -> Option<PathBuf> {
        let interest = self.interests.get(real)?;
        if interest.listed_as.is_empty() && interest.names.is_empty() {
            self.interests.remove(real).map(|_| real.to_owned())
        } else {
            None
        }
    }

    /// Notes a change at a real path.
    fn changed(&mut self, real: &Path, writing: bool) {
        let mut paths = BTreeSet::new();
        // The directory itself: moved, gone, or no longer ours to read.
        if let Some(interest) = self.interests.get(real) {
            paths.extend(interest.listed_as.iter().cloned());
            paths.extend(interest.names.values().flatten().cloned());
        }
        if let (Some(dir), Some(name)) = (real.parent(), real.file_name())
            && let Some(interest) = self.interests.get(dir)
        {
            paths.extend(interest.names.get(name).into_iter().flatten().cloned());
            if !super::scan::is_hidden(name) {
                paths.extend(interest.listed_as.iter().map(|listed| listed.join(name)));
            }
        }
        for path in paths {
            if self.paths.len() >= CHANGED_PATHS_MAX {
                self.paths.clear();
                self.all = true;
            }
            if !self.all {
                self.paths.insert(path, writing);
            }
        }
    }
}

impl Shared {
    /// Takes a notice; called from the watcher's own thread.
    fn take(&self, event: notify::Result<notify::Event>) {
        let mut inner = self.inner.lock();
        match event {
            Ok(event) if event.need_rescan() => inner.all = true,
            Ok(event) => {
                let is_news = match event.kind {
                    EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
                    // The two halves of a rename are told by themselves.
                    EventKind::Modify(ModifyKind::Name(mode)) => mode != RenameMode::Both,
                    _ => true,
                };
                if !is_news {
                    return;
                }
                // A writer closes the file when it is done. Other systems do not tell.
                let writing = cfg!(target_os = "linux")
                    && matches!(event.kind, EventKind::Modify(ModifyKind::Data(_)));
                for path in &event.paths {
                    inner.changed(path, writing);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of the manifests failed; scanning all of them");
                inner.all = true;
            }
        }
        if inner.is_changed() {
            inner.events += 1;
            drop(inner);
            self.wake.notify_all();
        }
    }
}
