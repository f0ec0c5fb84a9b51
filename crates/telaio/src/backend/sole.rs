//! One agent for the services of a network namespace.
//!
//! Two would undo each other's work for ever, whatever their state directories. The lock is an
//! abstract Unix socket: its name belongs to the network namespace, like the rules, and goes with the
//! process that has it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;

use crate::exit::CommandError;

/// The name of the socket.
const NAME: &str = "telaio-services";
/// How long the last agent may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to look.
const PAUSE: Duration = Duration::from_millis(100);

/// Held for as long as this process is the one. `None` inside: somebody who could not program
/// anything holds the name, which must not keep us out.
#[derive(Debug)]
pub(crate) struct Sole(#[expect(dead_code, reason = "held, not read")] Option<UnixListener>);

impl Sole {
    /// Becomes the one, waiting a moment for another that is ending.
    pub(crate) fn take() -> Result<Self, CommandError> {
        let failed = |error: std::io::Error| {
            CommandError::failed(format!("cannot make sure that no other agent runs: {error}"))
        };
        let address = SocketAddr::from_abstract_name(NAME).map_err(failed)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Self::hold(listener).map_err(failed),
                Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
                    return Err(failed(error));
                }
                Err(_) => {}
            }
            match owner(&address) {
                Some((pid, uid)) if uid != 0 && uid != own_uid() => {
                    tracing::warn!(
                        pid,
                        uid,
                        "a stranger holds the lock of agents; going on without"
                    );
                    return Ok(Self(None));
                }
                Some((pid, _)) if Instant::now() >= deadline => {
                    return Err(CommandError::failed(format!(
                        "another agent programs the services of this network namespace (process \
                         {pid}); stop it first"
                    )));
                }
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Sole {
    /// Keeps the name, and takes the calls of others who ask for its owner.
    fn hold(listener: UnixListener) -> std::io::Result<Self> {
        let calls = listener.try_clone()?;
        std::thread::Builder::new()
            .name("telaio-sole".into())
            .spawn(move || calls.incoming().for_each(drop))?;
        Ok(Self(Some(listener)))
    }
}

/// Process and user that have the name now.
fn owner(address: &SocketAddr) -> Option<(i32, u32)> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let peer = socket_peercred(&stream).ok()?;
    Some((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}
