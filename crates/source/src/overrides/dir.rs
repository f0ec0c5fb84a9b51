//! Overrides in a directory of manifests: one file of ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use telaio_model::{Object, ObjectKey, Override};

use super::{Change, Checked, OVERRIDES_MAX, WriteError, manifest, now_s, same};
use crate::intern::Interner;
use crate::manifest::{Context, Format, read_file_content};

/// The file's name.
pub const FILE: &str = "telaio-overrides.yaml";
/// Held while the file is replaced. Hidden, so that no source reads it.
const LOCK: &str = ".telaio-overrides.lock";

/// How deep manifests are looked for.
const DEPTH_MAX: usize = 32;

/// Writes overrides into a directory.
#[derive(Debug, Clone)]
pub struct DirWriter {
    root: PathBuf,
}

impl DirWriter {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The file.
    pub(super) fn path(&self) -> PathBuf {
        self.root.join(FILE)
    }

    pub(super) fn write(&self, changes: &[Change]) -> Result<(), WriteError> {
        let path = self.path();
        if !self.root.is_dir() {
            let message = "overrides are written beside the manifests, into a directory; name a \
                           directory with --source dir:PATH";
            return Err(WriteError::ReadOnly(format!("{}: {message}", self.root.display())));
        }
        let _lock = lock(&self.root.join(LOCK))?;
        let mut all = read(&path)?;
        let now_s = now_s();
        for change in changes {
            if change.check(all.get(&change.key), now_s)? == Checked::NotThere {
                change.not_there(path.display().to_string(), self.elsewhere(&change.key))?;
            }
        }
        for Change { key, after, .. } in changes {
            match after {
                Some(decided) => drop(all.insert(key.clone(), decided.clone())),
                None => drop(all.remove(key)),
            }
        }
        if all.len() > OVERRIDES_MAX {
            return Err(WriteError::TooMany(OVERRIDES_MAX));
        }
        replace(&path, &all)
    }

    /// The manifest that has an override, of those that are not ours.
    fn elsewhere(&self, key: &ObjectKey) -> Option<String> {
        let ctx = Context::directory(Interner::default());
        let is_it = |object: &Object| matches!(object, Object::Override(it) if it.meta.key == *key);
        let found = manifests(&self.root, DEPTH_MAX).into_iter().find(|(path, format)| {
            let Ok(bytes) = fs::read(path) else { return false };
            let content = read_file_content("manifest", &bytes, *format, &ctx);
            content.objects.iter().any(|found| is_it(&found.object))
        });
        found.map(|(path, _)| path.display().to_string())
    }

    /// Removes those that are still there as they were seen; says which.
    pub(super) fn remove_seen(&self, seen: &[Override]) -> Result<Vec<ObjectKey>, WriteError> {
        let path = self.path();
        if !path.exists() {
            return Ok(Vec::new());
        }
        let _lock = lock(&self.root.join(LOCK))?;
        let mut all = read(&path)?;
        let is_there = |it: &&Override| all.get(&it.meta.key).is_some_and(|found| same(found, it));
        let gone: Vec<ObjectKey> =
            seen.iter().filter(is_there).map(|it| it.meta.key.clone()).collect();
        if !gone.is_empty() {
            all.retain(|key, _| !gone.contains(key));
            replace(&path, &all)?;
        }
        Ok(gone)
    }
}

/// The manifests of a directory, and of those in it.
fn manifests(directory: &Path, depth: usize) -> Vec<(PathBuf, Format)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() && depth > 0 {
            found.extend(manifests(&path, depth - 1));
        } else if let Some(format) = Format::of(&path) {
            found.push((path, format));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn failed(path: &Path, error: &std::io::Error) -> WriteError {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; overrides are written beside the manifests: let telaio write there, or edit them by hand"
        }
        _ => "",
    };
    WriteError::File { path: path.to_owned(), message: format!("{error}{hint}") }
}

/// Two agents may share the directory.
fn lock(path: &Path) -> Result<File, WriteError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file = options.open(path).map_err(|error| failed(path, &error))?;
    file.lock().map_err(|error| failed(path, &error))?;
    Ok(file)
}

/// What the file holds. One that cannot be read is not replaced: somebody wrote into it.
fn read(path: &Path) -> Result<BTreeMap<ObjectKey, Override>, WriteError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(failed(path, &error)),
    };
    let ctx = Context::directory(Interner::default());
    let content = read_file_content(FILE, &bytes, Format::Yaml, &ctx);
    if let Some(problem) = content.problems.first() {
        let message = format!("{problem}; mend the file or remove it");
        return Err(WriteError::File { path: path.to_owned(), message });
    }
    let overrides = content.objects.into_iter().filter_map(|found| match found.object {
        Object::Override(decided) => Some((decided.meta.key.clone(), Override::clone(&decided))),
        _ => None,
    });
    Ok(overrides.collect())
}

fn replace(path: &Path, all: &BTreeMap<ObjectKey, Override>) -> Result<(), WriteError> {
    if all.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path, &error)),
            _ => Ok(()),
        };
    }
    let mut text = String::from(
        "# Written by telaio, for people who decided something by its page or command line.\n\
         # telaio overrides lists them.\n",
    );
    for decided in all.values() {
        // JSON is YAML, and Value's Display does not fail.
        let _ = writeln!(text, "---\n{:#}", manifest(decided));
    }
    let fresh = path.with_file_name(format!(".{FILE}.{}", std::process::id()));
    let written = File::create(&fresh).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&fresh);
        failed(path, &error)
    })
}
