//! Taking connections from a listening socket.
//!
//! The runtime's own listener asks for connections until the kernel has no more. Each of these last,
//! vain calls makes a socket and a file and throws them away, which costs more than a tenth of what a
//! connection does; to look first whether somebody waits costs a fifth of that.

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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream as StdStream;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn acceptor() -> (Acceptor, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let acceptor = Acceptor::new(socket).unwrap();
        let address = acceptor.local_addr().unwrap();
        (acceptor, address)
    }

    /// All that had connected before anybody asked are taken, each once and with its address; then we
    /// wait, and who comes later wakes us.
    #[tokio::test]
    async fn everybody_is_taken_and_later_ones_wake() {
        let (mut acceptor, address) = acceptor();
        let wait = Duration::from_secs(20);
        for _ in 0..3 {
            let clients: Vec<_> = (0..50).map(|_| StdStream::connect(address).unwrap()).collect();
            let mut taken = Vec::new();
            for _ in &clients {
                let (_, peer) = timeout(wait, acceptor.accept()).await.unwrap().unwrap();
                taken.push(peer);
            }
            taken.sort();
            let mut expected: Vec<_> =
                clients.iter().map(|one| one.local_addr().unwrap()).collect();
            expected.sort();
            assert_eq!(taken, expected);
            let nobody = timeout(Duration::from_millis(50), acceptor.accept()).await;
            assert!(nobody.is_err(), "nobody was left");
        }
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let mut client = StdStream::connect(address).unwrap();
            client.read(&mut [0]).unwrap()
        });
        let (stream, _) = timeout(wait, acceptor.accept()).await.unwrap().unwrap();
        drop(stream);
        assert_eq!(late.join().unwrap(), 0);
    }
}
