//! A directory of manifests as a source: `dir:PATH`.
//!
//! Every `*.yaml`, `*.yml` and `*.json` below the path is read, links followed and hidden entries
//! skipped, and watched from then on. What Kubernetes' control plane would add is added by
//! [`control_plane`](crate::control_plane). The path may also be a single file, and need not be
//! there yet.
//!
//! What always holds:
//! - a change of one file costs what that file holds, not what the directory holds;
//! - a file that becomes faulty keeps what it declared before, and says what is wrong; one that was
//!   never good declares what is good in it;
//! - without the root directory the last state stands, and nothing is synced before it was there.
//!
//! ```
//! use std::sync::Arc;
//! use telaio_source::dir::{DirOptions, DirSource};
//! use telaio_source::Status;
//!
//! let dir = tempfile::tempdir()?;
//! std::fs::write(dir.path().join("shop.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")?;
//! let status = Arc::new(Status::default());
//! let batch = DirSource::new(dir.path(), DirOptions::default(), status.clone()).load_once();
//! assert!(batch.synced && batch.changes.len() == 1 && status.problems().is_empty());
//! # Ok::<(), std::io::Error>(())
//! ```

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use telaio_model::ObjectChange;
use tokio::sync::{mpsc, oneshot};

use crate::control_plane::{
    Allocations, ControlPlane, NODE_PORTS_DEFAULT, Options, StateError, load_allocations,
    save_allocations,
};
use crate::intern::Interner;
use crate::manifest::Context;
use crate::{Batch, Problem, Status};

mod links;
mod load;
mod report;
mod scan;
mod store;
mod watch;

use report::Report;
use scan::{Findings, Scanner};
use store::Store;
use watch::{Debounce, Stopper, Wait, Watches};

/// The file in the state directory that holds what was given to services.
pub const ALLOCATIONS_FILE: &str = "allocations.json";

/// How often everything is looked at even without a notice.
const SCAN_INTERVAL: Duration = Duration::from_mins(1);
/// The same while there are no notices, or no root to notice anything in.
const SCAN_INTERVAL_UNWATCHED: Duration = Duration::from_secs(2);
/// How long a file must be left alone. Linux tells when its writer is done: there it is only time for
/// files that are written together.
const DEBOUNCE: Duration = Duration::from_millis(if cfg!(target_os = "linux") { 5 } else { 20 });
/// How long changes are gathered at most, and the end of a writer is waited for.
const DEBOUNCE_MAX: Duration = Duration::from_millis(200);

/// How a directory is read.
#[derive(Debug, Clone)]
pub struct DirOptions {
    /// The networks from which services that write no cluster address get one.
    pub service_cidrs: Vec<IpNet>,
    /// The range from which node ports are given.
    pub node_port_range: RangeInclusive<u16>,
    /// Where is kept what was given; `None`: nowhere, and every run begins anew. The same service
    /// then still gets the same address, unless another one has it.
    pub state_dir: Option<PathBuf>,
    /// The state directory belongs to somebody else: it is read and never written.
    pub state_read_only: bool,
    /// How long a file must be left alone before it is read.
    pub debounce: Duration,
}

impl Default for DirOptions {
    fn default() -> Self {
        Self {
            service_cidrs: Vec::new(),
            node_port_range: NODE_PORTS_DEFAULT,
            state_dir: None,
            state_read_only: false,
            debounce: DEBOUNCE,
        }
    }
}

/// A directory of manifests.
#[derive(Debug)]
pub struct DirSource {
    root: PathBuf,
    options: DirOptions,
    status: Arc<Status>,
}

impl DirSource {
    /// The directory, or single file, at `root`.
    pub fn new(root: impl Into<PathBuf>, options: DirOptions, status: Arc<Status>) -> Self {
        Self { root: root.into(), options, status }
    }

    /// Reads everything once. What is wrong stands in the status; the batch is synced unless the
    /// root is not there.
    pub fn load_once(&self) -> Batch {
        let mut worker = Worker::new(self, Watches::none());
        let changes = worker.scan_all();
        let synced = !worker.root_missing;
        if synced {
            self.status.set_synced();
        }
        Batch { changes, synced }
    }

    /// Reads everything, then sends what changes, until the receiver goes or this is dropped.
    pub async fn run(self, tx: mpsc::Sender<Batch>) {
        let watches = Watches::new();
        let _stop_on_drop = StopOnDrop(watches.stopper());
        let (done_tx, done) = oneshot::channel::<()>();
        let sender = tx.clone();
        // A thread of its own: files and parsing block, and an idle watch must not hold up the end
        // of the runtime, as a task for blocking work would.
        let thread = std::thread::Builder::new().name("dir-source".to_owned()).spawn(move || {
            Worker::new(&self, watches).run(&sender, self.options.debounce);
            drop(done_tx);
        });
        if let Err(error) = thread {
            tracing::error!(%error, "no thread can be started to read the manifests");
            return;
        }
        tokio::select! {
            () = tx.closed() => {}
            _ = done => {}
        }
    }
}

/// Ends the thread when nobody waits for it any more.
struct StopOnDrop(Stopper);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Turns scans into changes.
struct Worker {
    ctx: Context,
    status: Arc<Status>,
    scanner: Scanner,
    store: Store,
    control_plane: ControlPlane,
    report: Report,
    /// Where allocations are saved.
    state_file: Option<PathBuf>,
    root_missing: bool,
    /// Services that are gone since the last run have been noticed.
    released: bool,
}

impl Worker {
    fn new(source: &DirSource, watches: Watches) -> Self {
        let options = &source.options;
        let mut report = Report::new(source.status.clone());
        let state_file = options.state_dir.as_ref().map(|dir| dir.join(ALLOCATIONS_FILE));
        let allocations = match &state_file {
            Some(file) => restore(file, options.state_read_only, &mut report),
            None => Allocations::new(),
        };
        let control_plane_options = Options {
            service_cidrs: options.service_cidrs.clone(),
            node_ports: options.node_port_range.clone(),
        };
        Self {
            ctx: Context::directory(Interner::default()),
            status: source.status.clone(),
            scanner: Scanner::new(source.root.clone(), watches),
            store: Store::default(),
            control_plane: ControlPlane::new(control_plane_options, &allocations),
            report,
            state_file: state_file.filter(|_| !options.state_read_only),
            root_missing: false,
            released: false,
        }
    }

    fn scan_all(&mut self) -> Vec<ObjectChange> {
        let findings = self.scanner.scan_all();
        self.take(findings)
    }

    /// What follows from what a scan found.
    fn take(&mut self, findings: Findings) -> Vec<ObjectChange> {
        self.root_missing = findings.root_missing;
        for (path, problems) in findings.problems {
            self.report.scanned(&Arc::from(path), problems);
        }
        let gone = findings.gone.into_iter().map(|path| (Arc::from(path), None));
        let read = load::load(findings.to_read, &self.ctx);
        let mut contents = Vec::with_capacity(gone.len() + read.len());
        let read = read.into_iter().map(|(path, loaded)| {
            if loaded.read_failed {
                self.scanner.read_again(&path);
            }
            (path, loaded.content)
        });
        let read: Vec<_> = read.collect();
        for (file, content) in gone.chain(read) {
            let problems = content.as_ref().map(|content| content.problems.clone());
            self.report.read(&file, problems.unwrap_or_default());
            contents.push((file, content));
        }
        let store = self.store.update(contents);
        for ((file, object), problems) in store.duplicates {
            self.report.compared(&file, object, problems);
        }
        let mut outcome = self.control_plane.apply(store.changes);
        for (service, verdict) in std::mem::take(&mut outcome.verdicts) {
            self.report.judged(service, verdict);
        }
        let mut allocations_changed = outcome.allocations_changed;
        if !self.released && !self.root_missing && !self.report.has_unread_files() {
            self.released = true;
            if self.control_plane.release_undeclared() {
                // Services may have waited for what became free just now.
                let waited = self.control_plane.apply([]);
                for (service, verdict) in waited.verdicts {
                    self.report.judged(service, verdict);
                }
                outcome.changes.extend(waited.changes);
                allocations_changed = true;
            }
        }
        if allocations_changed {
            self.save();
        }
        self.report.publish();
        if self.root_missing {
            self.status.lost();
        } else {
            self.status.touch();
        }
        outcome.changes
    }

    /// Saves what was given before anybody learns of it.
    fn save(&mut self) {
        let Some(file) = &self.state_file else { return };
        let saved = save_allocations(file, self.control_plane.allocations());
        let problems = saved
            .err()
            .map(|error| state_problem(file, &error, "addresses may change at the next start"));
        self.report.read(&Arc::from(file.as_path()), problems.into_iter().collect());
    }

    /// Sends everything, then what changes, until nobody listens.
    fn run(mut self, tx: &mpsc::Sender<Batch>, quiet: Duration) {
        let debounce = Debounce { quiet, max: quiet.max(DEBOUNCE_MAX) };
        let mut synced = false;
        let mut changes = self.scan_all();
        loop {
            self.report_watch_failure();
            if !changes.is_empty() || (!synced && !self.root_missing) {
                synced |= !self.root_missing;
                if tx.blocking_send(Batch { changes, synced }).is_err() {
                    return;
                }
                if synced {
                    self.status.set_synced();
                }
            }
            let watched = self.scanner.watches().failure().is_none() && !self.root_missing;
            let interval = if watched { SCAN_INTERVAL } else { SCAN_INTERVAL_UNWATCHED };
            changes = match self.scanner.watches().wait(interval, debounce) {
                Wait::Stopped => return,
                Wait::TimedOut => self.scan_all(),
                Wait::Changed(changed) if changed.all => self.scan_all(),
                Wait::Changed(changed) => {
                    let findings = self.scanner.scan_paths(changed.paths);
                    self.take(findings)
                }
            };
        }
    }

    /// Without notices changes are found late; somebody should know.
    fn report_watch_failure(&mut self) {
        let problem = self.scanner.watches().failure().map(|failure| Problem {
            origin: "watch".to_owned(),
            object: None,
            field: None,
            message: format!(
                "some manifests cannot be watched ({failure}); they are scanned every {} s",
                SCAN_INTERVAL_UNWATCHED.as_secs()
            ),
        });
        self.report.read(&Arc::from(Path::new("watch")), problem.into_iter().collect());
        self.report.publish();
    }
}

/// What an earlier run gave. A file that cannot be used is laid aside and reported.
fn restore(file: &Path, read_only: bool, report: &mut Report) -> Allocations {
    let error = match load_allocations(file) {
        Ok(allocations) => return allocations,
        Err(error) => error,
    };
    let mut remedy = "addresses are given anew, but for those in use";
    if !read_only && !matches!(error, StateError::Io(_)) {
        let aside = file.with_extension("json.unusable");
        if std::fs::rename(file, &aside).is_ok() {
            remedy = "it is kept as allocations.json.unusable, and addresses are given anew, but \
                      for those in use";
        }
    }
    // Not as what was read: saving replaces that, and this must be seen.
    report.scanned(&Arc::from(file), vec![state_problem(file, &error, remedy)]);
    Allocations::new()
}

fn state_problem(file: &Path, error: &StateError, remedy: &str) -> Problem {
    Problem {
        origin: file.display().to_string(),
        object: None,
        field: None,
        message: format!("{error}; {remedy}"),
    }
}
