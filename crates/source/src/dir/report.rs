//! What is wrong with the directory, file by file, kept in the [`Status`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use telaio_model::{Kind, ObjectKey, ObjectRef};

use crate::control_plane::Verdict;
use crate::{Problem, Status};

/// What found a problem. The problems of one source replace earlier ones of the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Finder {
    /// The scan of the directory.
    Scan,
    /// The reading of the file.
    Read,
    /// The comparison with other files.
    Duplicate(ObjectRef),
    /// The control plane.
    Service(ObjectKey),
}

/// The problems of all files.
pub(super) struct Report {
    status: Arc<Status>,
    files: BTreeMap<Arc<Path>, BTreeMap<Finder, Vec<Problem>>>,
    /// Where the problems of a service stand.
    services: BTreeMap<ObjectKey, Arc<Path>>,
    changed: BTreeSet<Arc<Path>>,
}

impl Report {
    pub(super) fn new(status: Arc<Status>) -> Self {
        Self { status, files: BTreeMap::new(), services: BTreeMap::new(), changed: BTreeSet::new() }
    }

    /// Whether some file could not be read as it is meant.
    pub(super) fn has_unread_files(&self) -> bool {
        self.files
            .values()
            .any(|finders| finders.keys().any(|f| matches!(f, Finder::Scan | Finder::Read)))
    }

    pub(super) fn scanned(&mut self, file: &Arc<Path>, problems: Vec<Problem>) {
        self.set(file, Finder::Scan, problems);
    }

    pub(super) fn read(&mut self, file: &Arc<Path>, problems: Vec<Problem>) {
        self.set(file, Finder::Read, problems);
    }

    pub(super) fn compared(&mut self, file: &Arc<Path>, object: ObjectRef, problems: Vec<Problem>) {
        self.set(file, Finder::Duplicate(object), problems);
    }

    pub(super) fn judged(&mut self, service: ObjectKey, verdict: Verdict) {
        if let Some(file) = self.services.remove(&service) {
            self.set(&file, Finder::Service(service.clone()), Vec::new());
        }
        if verdict.errors.is_empty() {
            return;
        }
        let object = ObjectRef::new(Kind::Service, service.clone()).to_string();
        let problems = verdict.errors.into_iter().map(|error| Problem {
            origin: verdict.origin.to_string(),
            object: Some(object.clone()),
            field: Some(error.path),
            message: error.message,
        });
        let file = verdict.origin.file.clone();
        self.services.insert(service.clone(), file.clone());
        self.set(&file, Finder::Service(service), problems.collect());
    }

    fn set(&mut self, file: &Arc<Path>, finder: Finder, problems: Vec<Problem>) {
        if problems.is_empty() && !self.files.contains_key(file) {
            return;
        }
        let finders = self.files.entry(file.clone()).or_default();
        if finders.get(&finder).map(Vec::as_slice).unwrap_or_default() != problems {
            self.changed.insert(file.clone());
        }
        if problems.is_empty() {
            finders.remove(&finder);
        } else {
            finders.insert(finder, problems);
        }
        if finders.is_empty() {
            self.files.remove(file);
        }
    }

    /// Hands what has changed to the status, and to the log.
    pub(super) fn publish(&mut self) {
        for file in std::mem::take(&mut self.changed) {
            let finders = self.files.get(&file);
            let problems: Vec<Problem> =
                finders.into_iter().flat_map(BTreeMap::values).flatten().cloned().collect();
            if problems.is_empty() {
                tracing::info!(file = %file.display(), "the file has no problems any more");
            }
            for problem in &problems {
                tracing::warn!(%problem, "a manifest cannot be used");
            }
            self.status.set_problems(&file.display().to_string(), problems);
        }
    }
}
