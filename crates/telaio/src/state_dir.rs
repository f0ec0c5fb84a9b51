//! The state directory: what must outlive the process, and who may use it.
//!
//! One process per part: two agents that program the same plane would undo each other's work, and two
//! that give addresses would give one twice. The lock is the kernel's (`flock`), so a killed agent
//! leaves none behind.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::plane::Plane;

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
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

/// Opening fails where the last part of a path is a link.
#[cfg(unix)]
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// What of a state directory one process has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A plane of the node.
    Plane(Plane),
    /// The addresses that a directory source gave.
    Allocations,
    /// The services of the whole machine, where no network namespace can stand for it.
    #[cfg(not(target_os = "linux"))]
    Machine,
}

impl Part {
    /// Its lock's name.
    fn file_name(self) -> String {
        match self {
            Self::Plane(plane) => format!("{plane}.lock"),
            Self::Allocations => "allocations.lock".to_owned(),
            #[cfg(not(target_os = "linux"))]
            Self::Machine => "machine.lock".to_owned(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plane(plane) => write!(f, "the {plane} plane"),
            Self::Allocations => f.write_str("the list of given addresses"),
            #[cfg(not(target_os = "linux"))]
            Self::Machine => f.write_str("the machine"),
        }
    }
}

/// The state directory, with this process as the owner of one of its parts.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// Held, not read: the lock ends with the file.
    _lock: File,
}

/// What became of taking a lock.
#[derive(Debug)]
pub(crate) enum Taken {
    /// We have it.
    Ours(StateDir),
    /// Somebody else has it: this one.
    By(String),
}

impl StateDir {
    /// Makes the directory if need be and takes the lock of `part`.
    pub(crate) fn lock(path: &Path, part: Part) -> Result<Self> {
        match Self::take(path, part)? {
            Taken::Ours(taken) => Ok(taken),
            Taken::By(owner) => bail!(
                "{part} of {} is in use by {owner}; stop it, or give another --state-dir",
                path.display()
            ),
        }
    }

    /// Likewise; that somebody else has it is no error.
    pub(crate) fn take(path: &Path, part: Part) -> Result<Taken> {
        std::fs::create_dir_all(path).with_context(|| {
            format!("cannot make the state directory {}; --state-dir names another", path.display())
        })?;
        check_owner(path)?;
        let file_path = path.join(part.file_name());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // A link that somebody laid here must not lead us to another file.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, NO_FOLLOW);
        let mut file = options
            .open(&file_path)
            .with_context(|| format!("cannot open {}", file_path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Taken::By(owner(&mut file, &file_path))),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", file_path.display()));
            }
        }
        // For people and for the message above; the lock itself does not need it.
        let us = format!("{}\n", std::process::id());
        if cfg!(windows) {
            std::fs::write(owner_path(&file_path), us)?;
        } else {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(us.as_bytes())?;
            file.flush()?;
        }
        Ok(Taken::Ours(Self { path: path.to_owned(), _lock: file }))
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// As root, makes sure that only root can write the directory: what is in it decides what root does.
/// One that others may write, as containers get them, is closed; one that is another's is refused.
#[cfg(unix)]
fn check_owner(path: &Path) -> Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let about = std::fs::metadata(path)?;
    if !is_root() {
        return Ok(());
    }
    if about.uid() != 0 {
        bail!(
            "the state directory {0} belongs to another user; run `chown root {0}`, or give another \
             --state-dir",
            path.display()
        );
    }
    if about.mode() & WRITABLE_BY_OTHERS != 0 {
        let closed = std::fs::Permissions::from_mode(about.mode() & !WRITABLE_BY_OTHERS);
        std::fs::set_permissions(path, closed).with_context(|| {
            format!("the state directory {} can be changed by others than root", path.display())
        })?;
    }
    Ok(())
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as elsewhere")]
fn check_owner(_: &Path) -> Result<()> {
    Ok(())
}

/// What nobody else can lock on Windows, nobody else can read either: there the owner stands beside it.
fn owner_path(lock: &Path) -> PathBuf {
    lock.with_extension("pid")
}

/// Who holds the lock, as far as it says.
fn owner(file: &mut File, path: &Path) -> String {
    let mut text = String::new();
    let read = if cfg!(windows) {
        File::open(owner_path(path)).and_then(|file| file.take(32).read_to_string(&mut text))
    } else {
        file.take(32).read_to_string(&mut text)
    };
    match read {
        Ok(_) if text.trim().parse::<u32>().is_ok() => format!("process {}", text.trim()),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICES: Part = Part::Plane(Plane::Services);

    #[test]
    fn a_part_has_one_owner_and_the_second_learns_who() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/state");
        let first = StateDir::lock(&path, SERVICES).unwrap();
        assert_eq!(first.path(), path);
        let message = StateDir::lock(&path, SERVICES).unwrap_err().to_string();
        assert!(message.contains(&format!("process {}", std::process::id())), "{message}");
        StateDir::lock(&path, Part::Plane(Plane::Pods)).unwrap();
        StateDir::lock(&path, Part::Allocations).unwrap();
        drop(first);
        StateDir::lock(&path, SERVICES).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = StateDir::lock(&file.join("state"), SERVICES).unwrap_err().to_string();
        assert!(message.contains("--state-dir"), "{message}");
    }
}
