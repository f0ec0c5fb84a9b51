//! Servers that say who they are and whom they see.
//!
//! On each connection a TCP server first writes one line, its name and the client's address, and then
//! sends back whatever comes. A UDP server answers each datagram with such a line. All servers of a
//! cluster share one thread; when the value goes, so do they and every connection with them.

use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;

use telaio_netlink::netns::Netns;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::ClusterError;

/// The port on which every server of a cluster answers, TCP and UDP.
pub const SERVER_PORT: u16 = 8080;

/// The running servers of a cluster.
#[derive(Debug)]
pub(super) struct Servers {
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    pub(super) fn start() -> Result<Self, ClusterError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(ClusterError::Server)?;
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new()
            .name("servers".to_owned())
            // Ends also when the sender is gone without a word.
            .spawn(move || _ = runtime.block_on(stopped))
            .map_err(ClusterError::Server)?;
        Ok(Self { runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Serves TCP and UDP at these addresses of a namespace. At each on its own: a socket for all
    /// addresses would answer datagrams from the one that suits the route, not the one that was asked.
    pub(super) fn serve(
        &self,
        netns: &Netns,
        name: &str,
        addresses: &[SocketAddr],
    ) -> Result<(), ClusterError> {
        let _runtime = self.runtime.enter();
        for address in addresses {
            let sockets = netns.run(|| -> io::Result<_> {
                let tcp = std::net::TcpListener::bind(address)?;
                let udp = std::net::UdpSocket::bind(address)?;
                tcp.set_nonblocking(true)?;
                udp.set_nonblocking(true)?;
                Ok((tcp, udp))
            })?;
            let (tcp, udp) = sockets.map_err(ClusterError::Server)?;
            let tcp = TcpListener::from_std(tcp).map_err(ClusterError::Server)?;
            let udp = UdpSocket::from_std(udp).map_err(ClusterError::Server)?;
            self.runtime.spawn(serve_tcp(tcp, name.to_owned()));
            self.runtime.spawn(serve_udp(udp, name.to_owned()));
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The line by which a server says who it is and whom it sees.
fn line(name: &str, client: SocketAddr) -> String {
    format!("{name} {client}\n")
}

async fn serve_tcp(listener: TcpListener, name: String) {
    loop {
        // A client that is gone before it is accepted is no reason to end.
        let Ok((stream, client)) = listener.accept().await else { continue };
        tokio::spawn(echo(stream, line(&name, client)));
    }
}

/// Ends with its connection; how it ends is the client's to judge.
async fn echo(mut stream: TcpStream, greeting: String) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(greeting.as_bytes()).await?;
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

async fn serve_udp(socket: UdpSocket, name: String) {
    let mut buffer = [0; 2048];
    loop {
        let Ok((_, client)) = socket.recv_from(&mut buffer).await else { continue };
        // Who does not hear it asks again.
        let _ = socket.send_to(line(&name, client).as_bytes(), client).await;
    }
}
