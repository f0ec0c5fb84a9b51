//! Taking connections from a listening socket.
//!
//! The runtime's own listener asks for connections until the kernel has no more. Each of these last,
//! vain calls makes a socket and a file and throws them away, which costs more than a tenth of what a
//! connection does; to look first whether somebody waits costs a fifth of that.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use other::Acceptor;
#[cfg(unix)]
pub(crate) use unix::Acceptor;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{SocketAddr, TcpListener, TcpStream as StdStream};
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
