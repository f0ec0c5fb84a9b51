//! One agent takes the listening sockets over from another, as when its binary is replaced.
//!
//! The agent that runs listens on a Unix socket in the state directory. A newcomer that finds the
//! plane taken asks there; it gets the sockets, says so, and the one before lets go of everything but
//! the requests that run. In between connections wait in the sockets, which are never closed.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::oneshot;

use super::link::{HeldSockets, Sockets};
use crate::plane::Plane;
use crate::state_dir::{Part, StateDir};

/// The socket's name in the state directory.
const SOCKET: &str = "ingress.sock";
/// How long the one before may take to answer, and to let go.
const PATIENCE: Duration = Duration::from_secs(15);

/// Asks the agent that has the plane, if one does, to hand it over, and gives its sockets. Without one
/// there is nothing to do, and an agent that does not answer keeps what it has.
pub(crate) fn claim(state_dir: &Path) -> Result<Option<Sockets>> {
    let lock = StateDir::lock(state_dir, Part::Plane(Plane::Ingress));
    let Err(busy) = lock else { return Ok(None) };
    let Ok(mut link) = StdUnixStream::connect(state_dir.join(SOCKET)) else { return Err(busy) };
    link.set_read_timeout(Some(PATIENCE))?;
    link.set_write_timeout(Some(PATIENCE))?;
    let sockets =
        Sockets::receive(&link).context("the agent that runs does not hand its sockets over")?;
    link.write_all(b"taken")?;
    tracing::info!("took the listening sockets over; waiting for the agent before us to let go");
    // It closes the link when it has let go of everything but the requests that run.
    let mut rest = Vec::new();
    let _ = link.read_to_end(&mut rest);
    let deadline = Instant::now() + PATIENCE;
    while StateDir::lock(state_dir, Part::Plane(Plane::Ingress)).is_err()
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Some(sockets))
}

/// Waits for somebody who takes over.
#[derive(Debug)]
pub(crate) struct Handover {
    path: PathBuf,
    taken: oneshot::Receiver<StdUnixStream>,
    is_taken: bool,
}

impl Handover {
    /// Listens in the state directory. Who may connect is who may write there: ourselves and root.
    pub(crate) fn listen(state_dir: &Path, sockets: Arc<HeldSockets>) -> Result<Self> {
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
        let (tell, taken) = oneshot::channel();
        std::thread::Builder::new().name("ingress-handover".into()).spawn(move || {
            for link in listener.incoming().flatten() {
                // None are left when we end.
                let Some(taken) = sockets.begin_hand_over() else { return };
                match hand_over(&link, &taken) {
                    Ok(()) => {
                        // Nobody may be there any more to let go.
                        let _ = tell.send(link);
                        return;
                    }
                    Err(error) => {
                        sockets.keep();
                        tracing::warn!(%error, "the sockets were not handed over");
                    }
                }
            }
        })?;
        Ok(Self { path, taken, is_taken: false })
    }

    /// Somebody has taken over; the link is to be closed when we have let go. Cancel-safe.
    pub(crate) async fn taken(&mut self) -> StdUnixStream {
        match (&mut self.taken).await {
            Ok(link) => {
                self.is_taken = true;
                link
            }
            Err(_) => std::future::pending().await,
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

fn hand_over(mut link: &StdUnixStream, sockets: &Sockets) -> io::Result<()> {
    link.set_read_timeout(Some(PATIENCE))?;
    link.set_write_timeout(Some(PATIENCE))?;
    sockets.send(link)?;
    let mut answer = [0; 5];
    link.read_exact(&mut answer)?;
    if &answer == b"taken" {
        Ok(())
    } else {
        Err(io::Error::other("the other end did not take them"))
    }
}
