//! The state directory: what must outlive the process, and who may use it.
//!
//! One process per plane: two agents that program the same kernel would undo each other's work. The
//! lock is the kernel's (`flock`), so a killed agent leaves none behind.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where state is kept unless said otherwise: the system's place for root, the user's for others.
pub(crate) fn default_path() -> PathBuf {
    if cfg!(windows) {
        let base =
            std::env::var_os("ProgramData").map_or_else(|| r"C:\ProgramData".into(), PathBuf::from);
        return base.join("telaio");
    }
    let system = PathBuf::from("/var/lib/telaio");
    if is_root() {
        return system;
    }
    let home = |key: &str, rest: &str| std::env::var_os(key).map(|dir| Path::new(&dir).join(rest));
    home("XDG_STATE_HOME", "telaio")
        .or_else(|| home("HOME", ".local/state/telaio"))
        .unwrap_or(system)
}

/// Whether we run as root, by the owner of our own entry in /proc.
#[cfg(unix)]
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

/// The state directory, with this process as the owner of one of its planes.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// Held, not read: the lock ends with the file.
    _lock: File,
}

impl StateDir {
    /// Makes the directory if need be and takes the lock of `plane`.
    pub(crate) fn lock(path: &Path, plane: &str) -> Result<Self> {
        std::fs::create_dir_all(path).with_context(|| {
            format!("cannot make the state directory {}; --state-dir names another", path.display())
        })?;
        let file_path = path.join(format!("{plane}.lock"));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&file_path)
            .with_context(|| format!("cannot open {}", file_path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "the {plane} plane of {} is in use by {}; stop it, or name another --state-dir",
                path.display(),
                owner(&mut file)
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", file_path.display()));
            }
        }
        // For people and for the message above; the lock itself does not need it.
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        file.flush()?;
        Ok(Self { path: path.to_owned(), _lock: file })
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Who holds the lock, as far as it says.
fn owner(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(32).read_to_string(&mut text) {
        Ok(_) if text.trim().parse::<u32>().is_ok() => format!("process {}", text.trim()),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_has_one_owner_and_the_second_learns_who() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/state");
        let first = StateDir::lock(&path, "services").unwrap();
        assert_eq!(first.path(), path);
        let message = StateDir::lock(&path, "services").unwrap_err().to_string();
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        StateDir::lock(&path, "pods").unwrap();
        drop(first);
        StateDir::lock(&path, "services").unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = StateDir::lock(&file.join("state"), "services").unwrap_err().to_string();
        assert!(message.contains("--state-dir"), "{message}");
    }
}
