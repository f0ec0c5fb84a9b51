//! Which files there are.
//!
//! Hidden entries are skipped; links are followed, to hidden targets too, as Kubernetes needs for
//! mounted ConfigMaps. A directory is watched before it is listed, so nothing that comes later is
//! missed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::links::entries_behind;
use super::watch::Watches;
use crate::Problem;
use crate::manifest::Format;

/// How deep directories may be nested, links included.
const DEPTH_MAX: usize = 32;
/// How many files are read; more is a wrong directory.
const FILES_MAX: usize = 500_000;

/// Whether an entry is skipped for its name.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

/// By what a scan tells whether a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    size_bytes: u64,
    modified: Option<SystemTime>,
    /// Device, inode and the time of the last change to it, where there are such things.
    identity: (u64, u64, i64, i64),
}

impl Stamp {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self {
            size_bytes: metadata.len(),
            modified: metadata.modified().ok(),
            identity: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    #[cfg(not(unix))]
    fn of(metadata: &Metadata) -> Self {
        Self {
            size_bytes: metadata.len(),
            modified: metadata.modified().ok(),
            identity: (0, 0, 0, 0),
        }
    }
}

/// What a scan found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Files that are new or may have changed, in order.
    pub(super) to_read: Vec<Arc<Path>>,
    /// Files that are no more.
    pub(super) gone: BTreeSet<PathBuf>,
    /// Paths that were looked at, with what is wrong with them.
    pub(super) problems: BTreeMap<PathBuf, Vec<Problem>>,
    /// The root is not there, so nothing is known about what it holds.
    pub(super) root_missing: bool,
}

/// Knows the files below a root.
pub(super) struct Scanner {
    root: PathBuf,
    watches: Watches,
    /// Each directory with its real path.
    dirs: BTreeMap<PathBuf, PathBuf>,
    files: BTreeMap<Arc<Path>, Stamp>,
    /// Files that could not be read, to be tried again though they did not change.
    again: BTreeSet<PathBuf>,
    /// Paths with a problem of their own.
    with_problems: BTreeSet<PathBuf>,
}

impl Scanner {
    pub(super) fn new(root: PathBuf, watches: Watches) -> Self {
        Self {
            root,
            watches,
            dirs: BTreeMap::new(),
            files: BTreeMap::new(),
            again: BTreeSet::new(),
            with_problems: BTreeSet::new(),
        }
    }

    pub(super) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Looks at everything; files with an unchanged stamp are not read again.
    pub(super) fn scan_all(&mut self) -> Findings {
        self.scan([self.root.clone()], false)
    }

    /// Looks at these paths and what is below them; those that are files are read again in any case.
    pub(super) fn scan_paths(&mut self, paths: impl IntoIterator<Item = PathBuf>) -> Findings {
        self.scan(paths, true)
    }

    fn scan(&mut self, paths: impl IntoIterator<Item = PathBuf>, read_anyway: bool) -> Findings {
        let mut findings = Findings::default();
        let mut done: Option<PathBuf> = None;
        if std::fs::metadata(&self.root).is_err() {
            // Files that go together with the root are not deleted by anybody: it may come back.
            self.look_at_root(&mut findings);
            return findings;
        }
        for path in paths {
            // Paths come in order: what is below the one before has just been looked at, except for
            // files, which are to be read whatever their stamp says.
            let below = done.as_ref().is_some_and(|done| path.starts_with(done));
            if below && !self.files.contains_key(&*path) {
                continue;
            }
            let known = self.known_below(&path);
            let mut seen = HashSet::new();
            let is_link = std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink());
            self.look(&path, is_link, read_anyway, &mut seen, &mut findings);
            for gone in known.iter().filter(|path| !seen.contains(*path)) {
                self.forget(gone, &mut findings);
            }
            for mended in known {
                if !findings.problems.contains_key(&mended) && self.with_problems.remove(&mended) {
                    findings.problems.insert(mended, Vec::new());
                }
            }
            if !below {
                done = Some(path);
            }
        }
        findings.to_read.sort_unstable();
        findings.to_read.dedup();
        findings
    }

    /// The known files and directories at and below a path.
    fn known_below(&self, path: &Path) -> BTreeSet<PathBuf> {
        let from = (Bound::Included(path), Bound::Unbounded);
        let files = self.files.range::<Path, _>(from).map(|(path, _)| &**path);
        let dirs = self.dirs.range::<Path, _>(from).map(|(path, _)| &**path);
        let problems = self.with_problems.range::<Path, _>(from).map(|path| &**path);
        files
            .take_while(|known| known.starts_with(path))
            .chain(dirs.take_while(|known| known.starts_with(path)))
            .chain(problems.take_while(|known| known.starts_with(path)))
            .map(Path::to_owned)
            .collect()
    }

    fn forget(&mut self, path: &Path, findings: &mut Findings) {
        let real = self.dirs.remove(path);
        self.watches.forget(path, real.as_deref());
        if self.files.remove(path).is_some() {
            findings.to_read.retain(|to_read| **to_read != *path);
            findings.gone.insert(path.to_owned());
        }
        if self.with_problems.remove(path) {
            findings.problems.entry(path.to_owned()).or_default();
        }
    }

    /// Notes that a file could not be read: the next scan finds it, changed or not.
    pub(super) fn read_again(&mut self, path: &Path) {
        self.again.insert(path.to_owned());
    }

    /// Notes that the root is not there, and waits for it.
    fn look_at_root(&mut self, findings: &mut Findings) {
        let root = self.root.clone();
        self.watch_entries(&root);
        let error = match std::fs::metadata(&root) {
            // It has come meanwhile, of which there is a notice.
            Ok(_) => "it was not there for a moment".to_owned(),
            Err(error) => error.to_string(),
        };
        findings.root_missing = true;
        let message = format!("cannot be read: {error}; what was read before stands");
        self.problem(&root, message, &mut HashSet::new(), findings);
    }

    /// Watches the links that a path is reached through.
    fn watch_entries(&mut self, path: &Path) {
        // What is found can change before it is watched; then there is something else to watch.
        const TRIES_MAX: usize = 8;
        for _ in 0..TRIES_MAX {
            if !self.watches.watch_entries(path, entries_behind(path)) {
                return;
            }
        }
    }

    /// Looks at one path.
    fn look(
        &mut self,
        path: &Path,
        is_link: bool,
        read_anyway: bool,
        seen: &mut HashSet<PathBuf>,
        findings: &mut Findings,
    ) {
        let is_root = path == self.root;
        let is_manifest = is_root || Format::of(path).is_some();
        if is_root || (is_link && (is_manifest || path.extension().is_none() || path.is_dir())) {
            self.watch_entries(path);
        }
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.look_into(path, seen, findings),
            Ok(metadata) if metadata.is_file() && is_manifest => {
                self.look_at_file(path, &metadata, read_anyway, seen, findings);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if is_link && is_manifest {
                    let message = "is a link to something that is not there".to_owned();
                    self.problem(path, message, seen, findings);
                }
            }
            Err(error) if is_manifest || !self.known_below(path).is_empty() => {
                // What was read of it, or below it, before stands.
                self.problem(path, format!("cannot be read: {error}"), seen, findings);
                seen.extend(self.known_below(path));
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn look_at_file(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        read_anyway: bool,
        seen: &mut HashSet<PathBuf>,
        findings: &mut Findings,
    ) {
        let stamp = Stamp::of(metadata);
        let known = self.files.get(path).copied();
        if known.is_none() && self.files.len() >= FILES_MAX {
            let message = format!("is not read: there are more than {FILES_MAX} files");
            self.problem(&self.root.clone(), message, seen, findings);
            return;
        }
        seen.insert(path.to_owned());
        let again = self.again.remove(path);
        if read_anyway || again || known != Some(stamp) {
            // One copy for all who keep it.
            let path: Arc<Path> = Arc::from(path);
            self.files.insert(Arc::clone(&path), stamp);
            findings.to_read.push(path);
        }
    }

    fn look_into(&mut self, path: &Path, seen: &mut HashSet<PathBuf>, findings: &mut Findings) {
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(error) => {
                self.problem(path, format!("cannot be read: {error}"), seen, findings);
                seen.extend(self.known_below(path));
                return;
            }
        };
        if self.leads_back(path, &real) {
            tracing::warn!(path = %path.display(), "a link leads back to a directory that holds it");
            return;
        }
        let below_root = path.strip_prefix(&self.root).map_or(0, |rest| rest.components().count());
        if below_root > DEPTH_MAX {
            let message = format!("is not read: directories are nested deeper than {DEPTH_MAX}");
            self.problem(path, message, seen, findings);
            return;
        }
        if let Some(before) = self.dirs.get(path).filter(|before| **before != real) {
            self.watches.forget_listing(path, before);
        }
        self.watches.watch_listing(&real, path);
        self.dirs.insert(path.to_owned(), real);
        seen.insert(path.to_owned());
        let names = match list(path) {
            Ok(names) => names,
            Err(error) => {
                self.problem(path, format!("cannot be listed: {error}"), seen, findings);
                seen.extend(self.known_below(path));
                return;
            }
        };
        for (name, is_link) in names {
            self.look(&path.join(name), is_link, false, seen, findings);
        }
    }

    /// Whether a directory is one of those above it, reached once more through a link.
    fn leads_back(&self, path: &Path, real: &Path) -> bool {
        path.ancestors().skip(1).any(|above| self.dirs.get(above).is_some_and(|dir| dir == real))
    }

    fn problem(
        &mut self,
        path: &Path,
        message: String,
        seen: &mut HashSet<PathBuf>,
        findings: &mut Findings,
    ) {
        let origin = path.display().to_string();
        let problem = Problem { origin, object: None, field: None, message };
        findings.problems.entry(path.to_owned()).or_default().push(problem);
        self.with_problems.insert(path.to_owned());
        seen.insert(path.to_owned());
    }
}

/// The names in a directory that are not hidden, in order, and whether they are links.
fn list(path: &Path) -> io::Result<BTreeMap<OsString, bool>> {
    let mut names = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_hidden(&name) {
            let is_link = entry.file_type().is_ok_and(|file_type| file_type.is_symlink());
            names.insert(name, is_link);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_could_not_be_read_is_tried_again_though_it_did_not_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let file = root.join("a.yaml");
        std::fs::write(&file, "# nothing").unwrap();
        let mut scanner = Scanner::new(root, Watches::none());
        let found = [Arc::from(file.as_path())];
        assert_eq!(scanner.scan_all().to_read, found);
        assert_eq!(scanner.scan_all().to_read, []);
        scanner.read_again(&file);
        assert_eq!(scanner.scan_all().to_read, found);
        assert_eq!(scanner.scan_all().to_read, []);
    }
}
