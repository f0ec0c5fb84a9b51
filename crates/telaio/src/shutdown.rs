//! What the world asks of a long-running command: end, or read the settings again.
//!
//! SIGTERM and SIGINT end gracefully; what is in the kernel stays there. SIGHUP and a changed
//! configuration file ask for a reload. On Windows the console asks to end (Ctrl-C, Ctrl-Break, a closed
//! window, a shutdown, which is also how a container is stopped), and the service manager asks for both.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// End, because of this.
    End(&'static str),
    /// Read the settings again, because of this.
    Reload(&'static str),
}

/// How often the configuration file is looked at. It is asked for its state, not watched: a look
/// sees every way of replacing a file alike (renames, symlink swaps, network file systems).
const FILE_LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Listens for requests.
#[derive(Debug)]
pub(crate) struct Requests {
    signals: Signals,
    file: Option<WatchedFile>,
    looks: tokio::time::Interval,
}

impl Requests {
    /// Begins to listen; signals that come before the first [`next`](Self::next) are kept. Must be
    /// called within the runtime.
    pub(crate) fn listen(config: Option<&Path>) -> Result<Self> {
        let mut looks = tokio::time::interval(FILE_LOOK_PERIOD);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Ok(Self { signals: Signals::listen()?, file: config.map(WatchedFile::new), looks })
    }

    /// The next request. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Request {
        loop {
            tokio::select! {
                request = self.signals.next() => return request,
                _ = self.looks.tick(), if self.file.is_some() => {
                    if self.file.as_mut().is_some_and(WatchedFile::look) {
                        return Request::Reload("the configuration file changed");
                    }
                }
            }
        }
    }
}

#[cfg(unix)]
#[derive(Debug)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::End("SIGTERM"),
            _ = self.interrupt.recv() => Request::End("SIGINT"),
            _ = self.hangup.recv() => Request::Reload("SIGHUP"),
        }
    }
}

#[cfg(windows)]
#[derive(Debug)]
struct Signals {
    ctrl_c: tokio::signal::windows::CtrlC,
    ctrl_break: tokio::signal::windows::CtrlBreak,
    close: tokio::signal::windows::CtrlClose,
    shutdown: tokio::signal::windows::CtrlShutdown,
}

#[cfg(windows)]
impl Signals {
    fn listen() -> Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
        let failed = "cannot listen to the console";
        Ok(Self {
            ctrl_c: ctrl_c().context(failed)?,
            ctrl_break: ctrl_break().context(failed)?,
            close: ctrl_close().context(failed)?,
            shutdown: ctrl_shutdown().context(failed)?,
        })
    }

    async fn next(&mut self) -> Request {
        tokio::select! {
            request = asked::next() => request,
            _ = self.ctrl_c.recv() => Request::End("Ctrl-C"),
            _ = self.ctrl_break.recv() => Request::End("Ctrl-Break"),
            _ = self.close.recv() => Request::End("the console closes"),
            _ = self.shutdown.recv() => Request::End("Windows shuts down"),
        }
    }
}

/// Requests from within the process: Windows' service manager calls us, instead of sending signals.
#[cfg(windows)]
pub(crate) mod asked {
    use std::collections::VecDeque;

    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::Request;

    /// How many may wait. Nobody has reason to ask for more.
    const WAITING_MAX: usize = 16;

    static WAITING: Mutex<VecDeque<Request>> = Mutex::new(VecDeque::new());
    static NOTICE: Notify = Notify::const_new();

    /// Asks; kept until somebody listens.
    pub(crate) fn put(request: Request) {
        let mut waiting = WAITING.lock();
        if waiting.len() < WAITING_MAX {
            waiting.push_back(request);
        }
        NOTICE.notify_one();
    }

    /// The next one. Cancel-safe.
    pub(super) async fn next() -> Request {
        loop {
            if let Some(request) = WAITING.lock().pop_front() {
                return request;
            }
            NOTICE.notified().await;
        }
    }
}

/// What tells two states of a file apart without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    bytes: u64,
    modified: Option<SystemTime>,
    #[cfg(unix)]
    inode: u64,
}

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    seen: Option<FileState>,
}

impl WatchedFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: state_of(path) }
    }

    /// Whether the file is another than when last asked. A missing file is not a change: an editor
    /// may be in the middle of replacing it.
    fn look(&mut self) -> bool {
        match state_of(&self.path) {
            Some(now) if self.seen.as_ref() != Some(&now) => {
                self.seen = Some(now);
                true
            }
            _ => false,
        }
    }
}

fn state_of(path: &Path) -> Option<FileState> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(FileState {
        bytes: metadata.len(),
        modified: metadata.modified().ok(),
        #[cfg(unix)]
        inode: std::os::unix::fs::MetadataExt::ino(&metadata),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_a_change_and_a_missing_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "a").unwrap();
        let mut file = WatchedFile::new(&path);
        assert!(!file.look());
        std::fs::write(&path, "ab").unwrap();
        assert!(file.look());
        assert!(!file.look());
        std::fs::remove_file(&path).unwrap();
        assert!(!file.look());
        std::fs::write(dir.path().join("next"), "ab").unwrap();
        std::fs::rename(dir.path().join("next"), &path).unwrap();
        assert!(file.look());
    }

    #[cfg(unix)]
    #[test]
    fn a_swapped_symlink_is_a_change() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            std::fs::write(dir.path().join(name), "same").unwrap();
        }
        let (link, next) = (dir.path().join("c.toml"), dir.path().join("next"));
        std::os::unix::fs::symlink("one", &link).unwrap();
        let mut file = WatchedFile::new(&link);
        std::os::unix::fs::symlink("two", &next).unwrap();
        std::fs::rename(&next, &link).unwrap();
        assert!(file.look());
    }
}
