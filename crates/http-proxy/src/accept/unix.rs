//! Looks before it asks.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::client_stream::ClientStream;

/// A listening socket of one thread.
pub(crate) struct Acceptor {
    /// The runtime has no type for a listening socket that may be asked in one's own way. That of
    /// connections only waits and asks; nothing is ever read from or written to it.
    socket: TcpStream,
    /// The last call got a connection, and nothing said since that there is another.
    unsure: bool,
}

impl Acceptor {
    /// Takes a socket that does not block.
    pub(crate) fn new(socket: TcpListener) -> io::Result<Self> {
        let socket = TcpStream::from_std(OwnedFd::from(socket).into())?;
        Ok(Self { socket, unsure: false })
    }

    /// The address that is listened on.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits until there may be a connection to take.
    pub(crate) async fn somebody_waits(&mut self) -> io::Result<()> {
        let socket = &self.socket;
        let look = || {
            if somebody_waits(socket.as_fd())? {
                return Ok(());
            }
            Err(io::ErrorKind::WouldBlock.into())
        };
        socket.async_io(Interest::READABLE, look).await
    }

    /// Waits for the next connection. Nothing is lost if the future is dropped.
    pub(crate) async fn accept(&mut self) -> io::Result<(ClientStream, SocketAddr)> {
        let Self { socket, unsure } = self;
        let take = || {
            if std::mem::take(unsure) && !somebody_waits(socket.as_fd())? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (stream, peer) = acceptfrom_with(socket.as_fd(), flags)?;
            *unsure = true;
            Ok((std::net::TcpStream::from(stream), peer))
        };
        let (stream, peer) = socket.async_io(Interest::READABLE, take).await?;
        let peer = match peer {
            Some(peer) => SocketAddr::try_from(peer)?,
            // The client has gone already.
            None => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        Ok((ClientStream::new(stream), peer))
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn somebody_waits(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut sockets = [PollFd::new(&socket, PollFlags::IN)];
    Ok(poll(&mut sockets, Some(&Timespec::default()))? > 0)
}
