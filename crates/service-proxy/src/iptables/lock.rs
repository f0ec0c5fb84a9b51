//! Noticing that somebody uses iptables-legacy, by the file that all its programs lock.
//!
//! The older tables tell nobody when they change. But each program that changes them takes a lock, and
//! lets go of it when the change is made; closing the lock's file is what we see. The file is the
//! machine's, not the network namespace's, so a use may well have changed nothing here.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Where the file is, unless this variable says otherwise.
const LOCK_FILE: &str = "/run/xtables.lock";
const LOCK_FILE_VARIABLE: &str = "XTABLES_LOCKFILE";
/// Room for some hundred notices, which have no names here.
const BUFFER_BYTES: usize = 4096;

/// Counts how often a lock was let go.
pub(crate) trait LockUses: Send {
    /// How often since the last time, at least: uses right after each other may look like one.
    fn take(&mut self) -> u64;

    /// What rings when there is something to take.
    fn bell(&self) -> Option<Bell> {
        None
    }
}

/// Rings when the lock was used.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// Waits for it, but no longer than this.
    pub(crate) fn wait(&self, time_max: Duration) {
        let mut rings = [PollFd::new(&self.0, PollFlags::IN)];
        let time_max = Timespec::try_from(time_max).ok();
        if poll(&mut rings, time_max.as_ref()).is_err() {
            // Interrupted; or it cannot be waited for, and then we must not run in circles.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The lock of iptables-legacy.
#[derive(Debug)]
pub(super) struct LockFile {
    path: PathBuf,
    notices: OwnedFd,
    /// The file is there and is watched.
    watched: bool,
}

impl LockFile {
    /// The file that the programs lock, as far as we know: one that is not there yet is watched once
    /// it is.
    pub(super) fn of_programs() -> io::Result<Self> {
        let path = std::env::var_os(LOCK_FILE_VARIABLE).filter(|path| !path.is_empty());
        Self::open(path.map_or_else(|| LOCK_FILE.into(), PathBuf::from))
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        let notices = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let mut file = Self { path, notices, watched: false };
        match file.watch() {
            Ok(()) | Err(Errno::NOENT) => Ok(file),
            Err(error) => Err(error.into()),
        }
    }

    fn watch(&mut self) -> Result<(), Errno> {
        // Attributes change when the file is removed, and then another one takes its place.
        // Opening is of no interest, but keeps two closings apart: the kernel tells the same thing
        // twice only if there is another between.
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE | WatchFlags::ATTRIB;
        let outcome = inotify::add_watch(&self.notices, &self.path, flags);
        self.watched = outcome.is_ok();
        outcome.map(drop)
    }
}

impl LockUses for LockFile {
    fn bell(&self) -> Option<Bell> {
        self.notices.try_clone().ok().map(Bell)
    }

    fn take(&mut self) -> u64 {
        let mut uses = 0;
        if !self.watched {
            // It may have been used between being made and being watched.
            uses += u64::from(self.watch().is_ok());
        }
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.notices, &mut buffer);
        let mut replaced = false;
        // Ends when none is left; they cannot come faster than programs start.
        while let Ok(notice) = reader.next() {
            let what = notice.events();
            replaced |= what.intersects(ReadFlags::ATTRIB | ReadFlags::IGNORED);
            let is_use =
                ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE | ReadFlags::QUEUE_OVERFLOW;
            uses += u64::from(what.intersects(is_use));
        }
        if replaced && self.watch().is_ok() {
            uses += 1;
        }
        uses
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_use_of_the_file_is_noticed_and_reading_it_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        File::create(&path).unwrap();
        let mut lock = LockFile::open(path.clone()).unwrap();
        assert_eq!(lock.take(), 0);
        let held = File::open(&path).unwrap();
        assert_eq!(lock.take(), 0, "what is changed under the lock is not there yet");
        drop(held);
        drop(File::open(&path).unwrap());
        lock.bell().unwrap().wait(Duration::from_mins(1));
        assert_eq!(lock.take(), 2);
        assert_eq!(lock.take(), 0);
    }

    #[test]
    fn a_file_that_comes_later_or_is_replaced_is_watched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let mut lock = LockFile::open(path.clone()).unwrap();
        assert_eq!(lock.take(), 0);
        for _ in 0..2 {
            File::create(&path).unwrap();
            assert!(lock.take() > 0);
            drop(File::open(&path).unwrap());
            assert!(lock.take() > 0);
            fs::remove_file(&path).unwrap();
            lock.take();
            assert_eq!(lock.take(), 0);
        }
    }
}
