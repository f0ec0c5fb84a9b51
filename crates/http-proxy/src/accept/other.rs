//! The runtime's own way, for systems that are only built for.

use std::future::{Ready, ready};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

use tokio::net::TcpListener;

use crate::client_stream::ClientStream;

/// A listening socket of one thread.
pub(crate) struct Acceptor(TcpListener);

impl Acceptor {
    /// Takes a socket that does not block.
    pub(crate) fn new(socket: StdListener) -> io::Result<Self> {
        TcpListener::from_std(socket).map(Self)
    }

    /// The address that is listened on.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Here nobody knows; whoever asks has somebody give way in advance, as long as there is a socket.
    pub(crate) fn somebody_waits(&mut self) -> Ready<io::Result<()>> {
        ready(self.local_addr().map(drop))
    }

    /// Waits for the next connection. Nothing is lost if the future is dropped.
    pub(crate) async fn accept(&mut self) -> io::Result<(ClientStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((ClientStream::new(stream.into_std()?), peer))
    }
}
