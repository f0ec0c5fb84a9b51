//! One agent takes over from another: the side of the newcomer. [`handover`](super::handover) says how.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::handover::{Owned, PATIENCE, SOCKET, hear, say};
use super::link::{Kept, Sockets};
use super::plane::take_address;

/// The agent that runs, from which we are to take over.
#[derive(Debug)]
pub(crate) struct Predecessor {
    link: StdUnixStream,
    /// Copies of its sockets, until they are ours or are not wanted.
    sockets: Option<Sockets>,
    owned: Owned,
    kept: Kept,
}

impl Predecessor {
    /// Asks the agent that has this state directory for its sockets. It goes on serving.
    pub(crate) fn ask(state_dir: &Path) -> io::Result<Self> {
        let link = StdUnixStream::connect(state_dir.join(SOCKET))?;
        link.set_read_timeout(Some(PATIENCE))?;
        link.set_write_timeout(Some(PATIENCE))?;
        let sockets = Sockets::receive(&link)?;
        let owned = hear(&link)?;
        Ok(Self { link, sockets: Some(sockets), owned, kept: Kept::NONE })
    }

    /// What it has besides.
    pub(crate) fn owned(&self) -> &Owned {
        &self.owned
    }

    /// The sockets of these addresses: its own where it has them, else new ones, which nobody can connect
    /// to yet. Its others are closed, by us now and by itself when it lets go.
    pub(crate) fn sockets(
        &mut self,
        http: SocketAddr,
        https: SocketAddr,
        threads: usize,
    ) -> Result<Sockets> {
        let Some(theirs) = self.sockets.take() else {
            anyhow::bail!("the sockets of the agent before us are in use already");
        };
        let address = |sockets: &[TcpListener]| sockets.first()?.local_addr().ok();
        let running: Vec<SocketAddr> =
            [address(&theirs.http), address(&theirs.https)].into_iter().flatten().collect();
        let keeps = |sockets: &[TcpListener], wanted| {
            address(sockets).is_some_and(|its| is_as_wanted(its, wanted))
        };
        self.kept = Kept { http: keeps(&theirs.http, http), https: keeps(&theirs.https, https) };
        let pick = |flag, theirs, kept, wanted| {
            if kept { Ok(theirs) } else { take_address(flag, wanted, threads, &running) }
        };
        Ok(Sockets {
            http: pick("--http-listen", theirs.http, self.kept.http, http)?,
            https: pick("--https-listen", theirs.https, self.kept.https, https)?,
        })
    }

    /// Waits until it ends without us, or sends us away for another newcomer, which is true. Cancel-safe.
    pub(crate) async fn gone(&self) -> Result<bool> {
        let link = self.link.try_clone()?;
        link.set_nonblocking(true)?;
        let mut link = UnixStream::from_std(link).context("cannot wait for the agent before us")?;
        // It has nothing else to say.
        Ok(link.read(&mut [0]).await.is_ok_and(|count| count > 0))
    }

    /// Tells it that we serve, and so that it may let go.
    pub(crate) fn take_over(self) -> io::Result<()> {
        self.link.set_nonblocking(false)?;
        say(&self.link, &self.kept)
    }
}

/// Whether a socket's address is the one that is wanted; of port 0 any is.
fn is_as_wanted(its: SocketAddr, wanted: SocketAddr) -> bool {
    its.ip() == wanted.ip() && (wanted.port() == 0 || wanted.port() == its.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_stays_where_its_address_is_still_asked_for() {
        let is =
            |its: &str, wanted: &str| is_as_wanted(its.parse().unwrap(), wanted.parse().unwrap());
        assert!(is("0.0.0.0:80", "0.0.0.0:80") && is("[::]:80", "[::]:80"));
        assert!(is("127.0.0.1:8123", "127.0.0.1:0"));
        assert!(!is("0.0.0.0:80", "127.0.0.1:80") && !is("0.0.0.0:80", "[::]:80"));
        assert!(!is("0.0.0.0:80", "0.0.0.0:81") && !is("127.0.0.1:80", "127.0.0.2:0"));
    }
}
