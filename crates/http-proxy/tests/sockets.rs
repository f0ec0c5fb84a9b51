//! Listening sockets: who accepts from them, and when they are open.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod support;

use std::net::TcpStream as StdStream;
use std::sync::Arc;
use std::time::Duration;

use support::{Backend, Proxy, read_all, status};
use telaio_http_proxy::server::{Closing, Listener, Server, bind, listen, open};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn every_socket_is_accepted_from_whatever_the_number_of_threads() {
    let backend = Backend::start().await;
    let other = Proxy::before(&[&backend]);
    for (count, threads) in [(1, 1), (4, 1), (5, 2), (7, 3), (2, 3), (1, 4)] {
        let sockets = listen("127.0.0.1:0".parse().unwrap(), count).unwrap();
        let address = sockets[0].local_addr().unwrap();
        let listener = Listener { sockets, handler: None };
        let server = Server::start(&other.proxy, vec![listener], threads).unwrap();
        // The kernel gives each socket its share: of so many none is left out.
        let asking = (0..64).map(|_| async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = b"GET /hello HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await.unwrap();
            status(&read_all(&mut stream).await)
        });
        let asking: Vec<_> = asking.map(tokio::spawn).collect();
        for one in asking {
            assert_eq!(one.await.unwrap(), 200, "{count} sockets, {threads} threads");
        }
        server.stop(Closing::ForGood);
        assert!(tokio::task::spawn_blocking(move || server.drain(WAIT)).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_connects_to_a_bound_socket_before_it_is_opened() {
    let address = "127.0.0.1:0".parse().unwrap();
    let sockets = bind(address, 3).unwrap();
    let address = sockets[0].local_addr().unwrap();
    assert!(sockets.iter().all(|socket| socket.local_addr().unwrap() == address));
    assert!(StdStream::connect(address).is_err());
    open(&sockets).unwrap();
    let _ = StdStream::connect(address).unwrap();
    // Nor is one closed that is open.
    open(&sockets).unwrap();
    let _ = StdStream::connect(address).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_listeners_one_is_closed_for_good_and_the_other_goes_on_elsewhere() {
    let backend = Backend::start().await;
    let other = Proxy::before(&[&backend]);
    let both = [(); 2].map(|()| listen("127.0.0.1:0".parse().unwrap(), 2).unwrap());
    let [gone, kept] = [0, 1].map(|at| both[at][0].local_addr().unwrap());
    let held: Vec<_> = both[1].iter().map(|socket| socket.try_clone().unwrap()).collect();
    let listeners = both.map(|sockets| Listener { sockets, handler: None });
    let server = Server::start(&other.proxy, listeners.into(), 2).unwrap();
    server.stop_each(&[Closing::ForGood, Closing::HandedOver]);
    let deadline = std::time::Instant::now() + WAIT;
    while server.is_listening() {
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(StdStream::connect(gone).is_err());
    let listener = Listener { sockets: held, handler: None };
    let _next = Server::start(&Arc::clone(&other.proxy), vec![listener], 2).unwrap();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(kept).await.unwrap();
        let request = b"GET /hello HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        assert_eq!(status(&read_all(&mut stream).await), 200);
    }
}
