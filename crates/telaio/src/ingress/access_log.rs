//! The access log's file: opened by the plane, which may, and written by the worker, which may not.
//!
//! The worker gets a Unix socket of its own for it at its start; by that come descriptors, the first at
//! once and another each time that the file is opened anew. So whoever moves log files away sends
//! SIGHUP, and the lines that follow are in the new one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;

use super::link::{receive_descriptor, send_descriptor};
use crate::cli::AccessLogTo;

/// The plane's side.
#[derive(Debug, Clone)]
pub(crate) struct LogFiles {
    to: AccessLogTo,
    /// To the worker that runs.
    worker: Arc<Mutex<Option<UnixStream>>>,
}

impl LogFiles {
    /// A log that goes there. That it can is found out now.
    pub(crate) fn new(to: AccessLogTo) -> Result<Self> {
        if let AccessLogTo::File(path) = &to {
            open(path).with_context(|| {
                format!("cannot write the access log to {} (--access-log)", path.display())
            })?;
        }
        Ok(Self { to, worker: Arc::default() })
    }

    /// What a new worker gets: the end of a socket by which its files come.
    pub(super) fn attach(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        // Two descriptors at most wait there; who does not take them misses nothing but a file.
        ours.set_nonblocking(true)?;
        *self.worker.lock() = Some(ours);
        self.send()?;
        Ok(theirs)
    }

    /// Opens the file anew, and has the worker go on there.
    pub(crate) fn reopen(&self) {
        if matches!(self.to, AccessLogTo::File(_))
            && let Err(error) = self.send()
        {
            tracing::error!(%error, "the access log cannot be opened anew; lines go where they went");
        }
    }

    fn send(&self) -> io::Result<()> {
        let file: OwnedFd = match &self.to {
            AccessLogTo::Off => return Ok(()),
            AccessLogTo::Stdout => io::stdout().as_fd().try_clone_to_owned()?,
            AccessLogTo::File(path) => open(path)?.into(),
        };
        match &*self.worker.lock() {
            Some(worker) => send_descriptor(worker, file.as_fd()),
            None => Ok(()),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// The worker's side: writes to the file that came last.
#[derive(Debug, Clone)]
pub(super) struct LogWriter(Arc<Mutex<File>>);

impl LogWriter {
    /// Takes the first file, and follows those that come after it.
    pub(super) fn follow(files: UnixStream) -> io::Result<Self> {
        let none = || io::Error::other("no file came for the access log");
        let first = receive_descriptor(&files)?.ok_or_else(none)?;
        let writer = Self(Arc::new(Mutex::new(File::from(first))));
        let current = Arc::downgrade(&writer.0);
        std::thread::Builder::new().name("access-log-file".into()).spawn(move || {
            while let Ok(Some(next)) = receive_descriptor(&files) {
                let Some(current) = current.upgrade() else { return };
                *current.lock() = File::from(next);
            }
        })?;
        Ok(writer)
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Lines that go together are in one file.
        self.0.lock().write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

    use super::*;

    #[test]
    fn lines_go_to_the_file_that_was_opened_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let files = LogFiles::new(AccessLogTo::File(path.clone())).unwrap();
        let mut writer = LogWriter::follow(files.attach().unwrap()).unwrap();
        writer.write_all(b"one\n").unwrap();
        std::fs::rename(&path, directory.path().join("access.log.1")).unwrap();
        files.reopen();
        // The file is swapped in the background.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::fs::read_to_string(&path).unwrap().is_empty() {
            assert!(std::time::Instant::now() < deadline);
            writer.write_all(b"two\n").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let old = std::fs::read_to_string(directory.path().join("access.log.1")).unwrap();
        assert!(old.starts_with("one\n"));
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("two\n"));
        let missing = directory.path().join("no/such/directory/x");
        let error = LogFiles::new(AccessLogTo::File(missing)).unwrap_err();
        assert!(error.to_string().contains("--access-log"), "{error}");
    }
}
