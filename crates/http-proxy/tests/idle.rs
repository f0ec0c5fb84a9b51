//! Connections that are kept alive and idle: what they cost, and that they give way where others come.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use support::{BACKEND, Backend, Peak, Proxy, others_are_served, read_all, read_response, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::table::{Backend as BackendSpec, Endpoint, Policy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ASK: &[u8] = b"GET /hello HTTP/1.1\r\nHost: a.example\r\n\r\n";
const WAIT: Duration = Duration::from_secs(20);

/// Where the clients of the first test are to connect to, and how: they are a process of their own, so that
/// what they need is not counted.
const IDLE_AT: &str = "TELAIO_TEST_KEPT_AT";
const IDLE: usize = 2_000;

/// An idle connection's two ways.
enum Kept {
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, StdStream>>),
    /// With the number of the next stream.
    H2(StdStream, u32),
}

impl Kept {
    fn open(kind: &str, address: &str, tls: &Arc<rustls::ClientConfig>) -> Self {
        let mut stream = StdStream::connect(address).expect("connect");
        if kind == "tls" {
            let name = "a.example".try_into().expect("a name");
            let connection = rustls::ClientConnection::new(Arc::clone(tls), name).expect("client");
            return Self::Tls(Box::new(rustls::StreamOwned::new(connection, stream)));
        }
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("write");
        Self::H2(stream, 1)
    }

    /// Asks once, and reads the answer.
    fn ask(&mut self) {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        let stream: &mut dyn Read = match self {
            Self::Tls(stream) => {
                stream.write_all(ASK).expect("write");
                stream
            }
            Self::H2(stream, id) => {
                // GET http://a/hello, with nothing behind it.
                let block = b"\x82\x86\x01\x01a\x04\x06/hello";
                let [_, a, b, c] = (block.len() as u32).to_be_bytes();
                let frame = [&[a, b, c, 1, 5][..], &id.to_be_bytes(), block].concat();
                stream.write_all(&frame).expect("write");
                *id += 2;
                stream
            }
        };
        while !all.ends_with(b"hello") {
            let count = stream.read(&mut piece).expect("read");
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&all));
            all.extend_from_slice(&piece[..count]);
        }
    }
}

/// Asks once on each connection and keeps them. Ends with its input.
fn hold_idle(what: &str) {
    let mut parts = what.splitn(3, ' ');
    let mut part = || parts.next().expect("three parts");
    let (kind, address, pem) = (part(), part(), part());
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate"))
        .expect("root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let mut kept: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut one = Kept::open(kind, address, &config);
            one.ask();
            one
        })
        .collect();
    std::fs::write("/dev/stderr", "idle\n").expect("tell");
    std::io::stdin().read_exact(&mut [0]).expect("a word");
    for one in kept.iter_mut().step_by(IDLE / 10) {
        one.ask();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_tls_and_of_h2_cost_little_and_disturb_nobody() {
    support::allow_descriptors(2 * IDLE as u64 + 1_000);
    if let Ok(what) = std::env::var(IDLE_AT) {
        return tokio::task::block_in_place(|| hold_idle(&what));
    }
    let backend = Backend::start().await;
    let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let proxy = h2_support::proxy(spec, Policy::default(), &[]);
    // In a build without optimisation. Most of it is the library's: keys and buffers of rustls, windows and
    // tables of h2.
    for (kind, address, bytes_max) in [("tls", proxy.tls, 24_000), ("h2", proxy.plain, 24_000)] {
        let peak = Peak::begin();
        let mut clients = Command::new(std::env::current_exe().expect("this program"))
            .args(["idle_connections_of_tls_and_of_h2_cost_little_and_disturb_nobody", "--exact"])
            .arg("--nocapture")
            .env(IDLE_AT, format!("{kind} {address} {}", proxy.certificate_pem))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("clients");
        let mut told = std::io::BufReader::new(clients.stderr.take().expect("piped"));
        let mut line = String::new();
        tokio::task::block_in_place(|| told.read_line(&mut line)).expect("a line");
        assert_eq!(line, "idle\n", "{kind}");
        others_are_served(proxy.plain, "/hello").await;
        let each = peak.grown_kib() * 1024 / IDLE;
        println!("{kind}: {each} bytes per connection");
        assert!(each < bytes_max, "{kind}: {each} bytes per connection");
        clients.stdin.take().expect("piped").write_all(b"x").expect("write");
        let ended = tokio::task::block_in_place(|| clients.wait()).expect("clients");
        assert!(ended.success(), "{kind}");
    }
}

fn at_most(connections_max: usize) -> ProxySettings {
    ProxySettings { connections_max, ..ProxySettings::default() }
}

async fn ask(stream: &mut TcpStream) -> u16 {
    stream.write_all(ASK).await.expect("write");
    status(&read_response(stream).await)
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(WAIT, stream.read(&mut [0; 64])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

/// Asks once and reads the answer, on a connection that ends with it.
async fn newcomer(address: SocketAddr) -> u16 {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let request = b"GET /hello HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.expect("write");
    status(&read_all(&mut stream).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_places_are_taken_the_longest_idle_gives_way() {
    const PLACES: usize = 6;
    let backend = Backend::start().await;
    let proxy = Proxy::with(&[&backend], Policy::default(), at_most(PLACES));
    let mut kept = Vec::new();
    for _ in 0..PLACES {
        let mut stream = proxy.connect().await;
        assert_eq!(ask(&mut stream).await, 200);
        kept.push(stream);
    }
    // The first is used again: now the second has been idle for longest.
    assert_eq!(ask(&mut kept[0]).await, 200);
    for gone in [1, 2] {
        let mut stays = proxy.connect().await;
        assert_eq!(ask(&mut stays).await, 200);
        assert!(is_closed(&mut kept[gone]).await, "{gone}");
        kept[gone] = stays;
    }
    for (number, stream) in kept.iter_mut().enumerate() {
        assert_eq!(ask(stream).await, 200, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_who_is_served_gives_way() {
    const PLACES: usize = 4;
    let backend = Backend::start().await;
    let proxy = Proxy::with(&[&backend], Policy::default(), at_most(PLACES));
    let mut busy = Vec::new();
    for _ in 0..PLACES {
        let mut stream = proxy.connect().await;
        // Idle for a while, then no more.
        assert_eq!(ask(&mut stream).await, 200);
        busy.push(stream);
    }
    for stream in &mut busy {
        stream.write_all(b"GET /slow?1000 HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("write");
    }
    while backend.seen().len() < 2 * PLACES {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let waiting = tokio::spawn(newcomer(proxy.address));
    for stream in &mut busy {
        let answer = read_response(stream).await;
        assert!(answer.ends_with("slow"), "{answer}");
    }
    assert_eq!(waiting.await.expect("newcomer"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_of_h2_gives_way_too() {
    let backend = Backend::start().await;
    let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let proxy = Proxy::of_both(spec, Policy::default(), at_most(1));
    let io = TcpStream::connect(proxy.address).await.expect("connect");
    let (send, connection) = h2::client::handshake(io).await.expect("handshake");
    let connection = tokio::spawn(connection);
    let mut send = send.ready().await.expect("ready");
    assert_eq!(h2_support::get(&mut send, "/hello").await.status, 200);
    assert_eq!(newcomer(proxy.address).await, 200);
    // It was told in peace.
    let ended = tokio::time::timeout(WAIT, connection).await.expect("in time").expect("task");
    assert!(ended.is_ok(), "{ended:?}");
}
