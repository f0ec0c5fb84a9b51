//! One agent takes over from another, as when its binary is replaced: the side of the one that runs.
//!
//! ```text
//!  newcomer                         the agent that runs, serving all the while
//!     │ connects                          │
//!     │ ◄──── its sockets, what it has ───│
//!     │ reaches its source, loads routes  │
//!     │ opens what is new, serves         │
//!     │ ───── what it goes on with ─────► │
//!     │ waits for the locks               │ lets go of everything but the requests that run
//! ```
//!
//! It listens on a Unix socket in the state directory. A newcomer gets copies of the listening sockets and
//! makes itself ready; only when it serves is it said so, and only then does the one before let go. A
//! newcomer that fails before has changed nothing. The newest newcomer counts: whoever came before it and
//! was not ready is sent away.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::link::{HeldSockets, Kept, Sockets};
use crate::state_dir::Part;

/// The socket's name in the state directory.
pub(super) const SOCKET: &str = "ingress.sock";
/// How long either side may take for what needs no preparation.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// What a newcomer is told when there is a newer one; there is nothing to be read if we have ended.
const SENT_AWAY: &[u8] = b"another";
/// The longest thing that is said.
const WORDS_BYTES_MAX: u32 = 64 << 10;

/// What an agent has besides the sockets, and gives up when somebody has taken over.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Owned {
    /// Parts of the state directory, by name.
    parts: Vec<String>,
    /// Ports of other servers.
    pub(crate) ports: Vec<SocketAddr>,
}

impl Owned {
    pub(crate) fn new(parts: &[Part], ports: Vec<SocketAddr>) -> Self {
        Self { parts: parts.iter().map(ToString::to_string).collect(), ports }
    }

    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part.to_string())
    }
}

/// Says something: its length, then JSON.
pub(super) fn say(mut to: &StdUnixStream, what: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(what)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_be_bytes()[..], &json].concat())
}

/// Hears it.
pub(super) fn hear<T: DeserializeOwned>(mut from: &StdUnixStream) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > WORDS_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too much is said"));
    }
    let mut json = vec![0; length as usize];
    from.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

/// Waits for somebody who takes over.
#[derive(Debug)]
pub(crate) struct Handover {
    path: PathBuf,
    taken: mpsc::Receiver<()>,
    is_taken: bool,
}

impl Handover {
    /// Listens in the state directory. Who may connect is who may write there: ourselves and root.
    pub(crate) fn listen(
        state_dir: &Path,
        sockets: Arc<HeldSockets>,
        owned: Owned,
    ) -> Result<Self> {
        let path = state_dir.join(SOCKET);
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
        }
        let listener = StdUnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let (tell, taken) = mpsc::channel(1);
        let desk = Arc::new(Desk { sockets, owned, tell });
        let attending = Mutex::new(None::<StdUnixStream>);
        std::thread::Builder::new().name("ingress-handover".into()).spawn(move || {
            for link in listener.incoming().flatten() {
                let ours = link.try_clone().ok();
                if let Some(mut former) = std::mem::replace(&mut *attending.lock(), ours) {
                    // It is sent away, if it still waits, and so its thread ends.
                    let _ = former.write_all(SENT_AWAY);
                    let _ = former.shutdown(Shutdown::Both);
                }
                let desk = Arc::clone(&desk);
                let name = "ingress-newcomer".to_owned();
                let attend = move || desk.attend(&link);
                if let Err(error) = std::thread::Builder::new().name(name).spawn(attend) {
                    tracing::warn!(%error, "nobody can attend to a newcomer");
                }
            }
        })?;
        Ok(Self { path, taken, is_taken: false })
    }

    /// Somebody has taken over, and serves. Cancel-safe.
    pub(crate) async fn taken(&mut self) {
        match self.taken.recv().await {
            Some(()) => self.is_taken = true,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // Once somebody has taken over, what is there may be theirs.
        if !self.is_taken {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What newcomers are told, and what they tell.
struct Desk {
    sockets: Arc<HeldSockets>,
    owned: Owned,
    tell: mpsc::Sender<()>,
}

impl Desk {
    /// Attends to a newcomer until it serves or is gone.
    fn attend(&self, link: &StdUnixStream) {
        if let Some(sockets) = self.sockets.lend() {
            self.lend(link, &sockets);
        }
        // There is another copy of it, so that it would not be closed by itself.
        let _ = link.shutdown(Shutdown::Both);
    }

    fn lend(&self, link: &StdUnixStream, sockets: &Sockets) {
        let ready = || -> io::Result<Kept> {
            link.set_write_timeout(Some(PATIENCE))?;
            sockets.send(link)?;
            say(link, &self.owned)?;
            tracing::info!("another agent makes itself ready to take over; serving until it is");
            // It takes as long as its source does.
            hear(link)
        };
        match ready() {
            Ok(kept) if self.sockets.hand_over(kept) => {
                // Nobody may be there any more to let go.
                let _ = self.tell.try_send(());
            }
            Ok(_) => {}
            Err(error) => {
                self.sockets.give_back();
                tracing::warn!(%error, "the agent that wanted to take over is gone; serving on");
            }
        }
    }
}
