//! Whatever is refused is told of once, and nobody is told of it as somebody else's.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use support::{BACKEND, Backend, read_all, read_response, route, status};
use telaio_http_proxy::h1::relay::ClientTimeouts;
use telaio_http_proxy::proxy::{Observer, Outcome};
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Endpoint, HostMatch, Policy, TableChange,
};
use telaio_http_proxy::{HttpProxy, ProxySettings, RequestHead};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What an observer was told: the status, and all of the request that could come into a log.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<(u16, String)>>);

impl Observer for Told {
    fn finished(&self, request: &RequestHead, outcome: &Outcome<'_>) {
        let fields = request
            .headers
            .iter()
            .map(|field| format!("{}: {}", field.name, String::from_utf8_lossy(field.value)));
        let text = format!(
            "{} {} {} {:?} {:?}",
            request.method,
            request.asked_target(),
            request.authority(),
            request.trace,
            fields.collect::<Vec<_>>()
        );
        self.0.lock().push((outcome.status.as_u16(), text));
    }
}

/// A proxy of one thread, so that one client's memory is the next one's.
fn proxy(backend: &Backend) -> (std::net::SocketAddr, Arc<Told>, Arc<HttpProxy>, Server) {
    let timeouts = ClientTimeouts { head: Duration::from_millis(500), ..ClientTimeouts::default() };
    let settings = ProxySettings { timeouts, ..ProxySettings::default() };
    let told = Arc::new(Told::default());
    let proxy = Arc::new(HttpProxy::new(settings).with_observer(told.clone()));
    let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let own = route("r", HostMatch::Exact("a.example".into()), Policy::default());
    proxy.apply(&TableChange {
        routes: [("r".into(), Some(own.into()))].into(),
        backends: [(BackendId::new(BACKEND), Some(spec))].into(),
        ..TableChange::default()
    });
    let sockets = listen("127.0.0.1:0".parse().expect("an address"), 1).expect("listen");
    let address = sockets[0].local_addr().expect("address");
    let server =
        Server::start(&proxy, vec![Listener { sockets, handler: None }], 1).expect("start");
    (address, told, proxy, server)
}

/// What cannot be served: its bytes, the status, and how it is told.
fn refused() -> Vec<(Vec<u8>, u16, &'static str)> {
    let head = |text: &str| text.as_bytes().to_vec();
    let long = "x".repeat(40_000);
    vec![
        (head("GET /own HTTP/1.1\r\nHost: a.example\r\nBad Name: x\r\n\r\n"), 400, "GET /own "),
        (head("GET /own HTTP/1.1\r\nHost: a.example\n\r\n"), 400, "GET /own "),
        (head("GET /own HTTP/9\r\nHost: a.example\r\n\r\n"), 400, "GET /own "),
        (head("\r\nPUT /own?x HTTP/1.1\r\nHost a.example\r\n\r\n"), 400, "PUT /own?x "),
        (head("nonsense\r\n\r\n"), 400, "nonsense - "),
        (vec![0x16, 3, 1, 2, 0, b'\n', 1, 0, 1, 0xfc], 400, "- - "),
        // It stays unfinished, until the time for it is over.
        (head("POST /own HTTP/1.1\r\nHost: a.exa"), 408, "POST /own "),
        (format!("GET /own HTTP/1.1\r\nX: {long}").into_bytes(), 431, "GET /own "),
        (format!("GET /{long}").into_bytes(), 414, "GET "),
    ]
}

#[tokio::test]
async fn what_is_refused_before_it_is_a_request_is_told_of_once_and_as_its_own() {
    let backend = Backend::start().await;
    let (address, told, proxy, _server) = proxy(&backend);
    let mut other = TcpStream::connect(address).await.expect("connect");
    for (number, (bytes, expected, line)) in refused().into_iter().enumerate() {
        // Another client, whose request is over just before.
        let secret = "GET /secret?token=secret HTTP/1.1\r\nHost: a.example\r\nUser-Agent: secret\r\n\
                      Cookie: secret\r\nX-Request-Id: secret\r\n\
                      traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";
        other.write_all(secret.as_bytes()).await.expect("write");
        assert_eq!(status(&read_response(&mut other).await), 200);
        let mut client = TcpStream::connect(address).await.expect("connect");
        client.write_all(&bytes).await.expect("write");
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert_eq!(status(&read_all(&mut client).await), expected, "{shown}");
        // It is told when all is said.
        for _ in 0..500 {
            if told.0.lock().len() >= 2 * number + 2 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let all = told.0.lock();
        assert_eq!(all.len(), 2 * number + 2, "{shown}: {all:?}");
        let (status, text) = &all[2 * number + 1];
        assert_eq!(*status, expected, "{shown}");
        assert!(text.starts_with(line), "{shown}: {text:.200}");
        assert!(!text.contains("secret") && !text.contains("0af765"), "{shown}: {text:.200}");
    }
    let unrouted = proxy.stats().unrouted.read().errors;
    assert_eq!(unrouted, refused().len() as u64);
}

#[tokio::test]
async fn a_connection_on_which_nothing_comes_is_no_request() {
    let backend = Backend::start().await;
    let (address, told, _proxy, _server) = proxy(&backend);
    let mut silent = TcpStream::connect(address).await.expect("connect");
    assert_eq!(read_all(&mut silent).await, "");
    drop(TcpStream::connect(address).await.expect("connect"));
    let mut last = TcpStream::connect(address).await.expect("connect");
    last.write_all(b"GET /hello HTTP/1.1\r\nHost: a.example\r\n\r\n").await.expect("write");
    assert_eq!(status(&read_response(&mut last).await), 200);
    let all = told.0.lock();
    assert!(all.iter().all(|(status, _)| *status == 200), "{all:?}");
}
