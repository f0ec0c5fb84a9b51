//! A backend is killed under load: what can be sent again is, what cannot be fails with 502, and nothing is
//! done twice or in part.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use support::{Backend, Proxy, read_response, status};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::table::{BackendId, Endpoint, ErrorBackend, Policy};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Methods and statuses by the request's own name.
type Told = Arc<Mutex<Vec<(String, &'static str, u16)>>>;

/// Clients that ask without a pause: each request has a name of its own, and so has its body.
fn load(proxy: &Proxy, told: &Told, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
    (0..48)
        .map(|client| {
            let (address, told, stop) = (proxy.address, Arc::clone(told), Arc::clone(stop));
            tokio::spawn(async move {
                let method = ["GET", "POST", "PUT"][client % 3];
                let mut kept = None;
                for number in 0.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let mut stream = match kept.take() {
                        Some(stream) => stream,
                        None => TcpStream::connect(address).await.expect("connect"),
                    };
                    let name = format!("<{client}-{number}>");
                    let body = if method == "GET" { "" } else { &*name };
                    let request = format!(
                        "{method} /head HTTP/1.1\r\nHost: a\r\nX-Name: {name}\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    let request = request.replace("Content-Length: 0\r\n", "");
                    stream.write_all(request.as_bytes()).await.expect("write");
                    let answer = read_response(&mut stream).await;
                    let code = status(&answer);
                    if code == 200 {
                        assert!(answer.contains(&format!("X-Name: {name}\r\n")), "{answer}");
                        assert!(answer.ends_with(body), "{answer}");
                        kept = Some(stream);
                    }
                    told.lock().push((name, method, code));
                }
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_cannot_be_repeated_fails_and_nothing_is_done_twice() {
    // Bodies straight through, and as streams.
    let error_backend = ErrorBackend { backend: BackendId::new("none"), statuses: Vec::new() };
    let streamed = Policy { error_backend: Some(error_backend), ..Policy::default() };
    for policy in [Policy::default(), streamed] {
        let (dying, living) = (Backend::start().await, Backend::start().await);
        let proxy = Proxy::with_policy(&[&dying, &living], policy);
        let (told, stop) = (Told::default(), Arc::new(AtomicBool::new(false)));
        let clients = load(&proxy, &told, &stop);
        // Enough that what breaks can be paid for out of the budget of retries.
        for _ in 0..600 {
            if told.lock().len() > 500 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        dying.kill();
        let connections = dying.connections.load(Relaxed);
        let before = told.lock().len();
        // Until enough was asked since.
        for _ in 0..600 {
            if told.lock().len() > before + 2_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stop.store(true, Relaxed);
        for client in clients {
            client.await.expect("client");
        }
        assert!(!dying.seen().is_empty() && !living.seen().is_empty());
        let mut done: HashMap<String, usize> = HashMap::new();
        for request in dying.seen().into_iter().chain(living.seen()) {
            let name = request.split("X-Name: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let name = name.expect("a name").to_owned();
            if !request.starts_with("GET") {
                assert!(request.ends_with(&format!("\r\n\r\n{name}")), "its own body: {request}");
            }
            *done.entry(name).or_default() += 1;
        }
        let told = told.lock();
        let mut failed = 0;
        for (name, method, code) in &*told {
            let times = done.get(name).copied().unwrap_or(0);
            match (*method, *code) {
                (_, 200) => assert!(times >= 1, "{method} {name} was answered by nobody"),
                ("POST", 502) => failed += 1,
                _ => panic!("{method} {name}: {code}"),
            }
            assert!(*method != "POST" || times <= 1, "POST {name} was done {times} times");
        }
        assert!(failed <= connections, "{failed} of {}, {connections} connections", told.len());
        assert!(told.len() > 1_000, "{}", told.len());
    }
}

/// An endpoint of HTTP/2 that answers with the name and the body that it got, until it is killed.
struct H2Endpoint {
    address: SocketAddr,
    /// Names of what was acted on.
    done: Arc<Mutex<Vec<String>>>,
    dead: Arc<tokio::sync::watch::Sender<bool>>,
}

impl H2Endpoint {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (done, dead) = (Arc::default(), Arc::new(tokio::sync::watch::Sender::new(false)));
        let (acted, killed) = (Arc::clone(&done), dead.subscribe());
        tokio::spawn(async move {
            loop {
                let mut over = killed.clone();
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = over.wait_for(|dead| *dead) => return,
                };
                let (io, _) = accepted.expect("accept");
                let (acted, mut over) = (Arc::clone(&acted), killed.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = serve_names(io, acted) => {}
                        _ = over.wait_for(|dead| *dead) => {}
                    }
                });
            }
        });
        Self { address, done, dead }
    }
}

async fn serve_names(io: TcpStream, done: Arc<Mutex<Vec<String>>>) {
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let name = request.headers()["x-name"].clone();
            let mut receive = request.into_body();
            let mut body = Vec::new();
            while let Some(data) = receive.data().await {
                let Ok(data) = data else { return };
                body.extend_from_slice(&data);
            }
            let text = name.to_str().expect("text");
            assert!(body.is_empty() || body == text.as_bytes(), "its own body");
            done.lock().push(text.to_owned());
            let told = format!("X-Name: {text}\r\n{}", String::from_utf8_lossy(&body));
            let response = http::Response::builder().header("X-Name", name);
            let response = response.header("content-length", told.len()).body(());
            let sent = respond.send_response(response.expect("response"), false);
            if let Ok(mut send) = sent {
                let _ = send.send_data(told.into(), true);
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_requests_over_http2_too_only_what_cannot_be_repeated_fails() {
    let (dying, living) = (H2Endpoint::start().await, H2Endpoint::start().await);
    let mut backend = h2_support::h2c_backend(dying.address);
    backend.endpoints.push(Endpoint::at(living.address));
    let proxy = Proxy::of_both(backend, Policy::default(), ProxySettings::default());
    let (told, stop) = (Told::default(), Arc::new(AtomicBool::new(false)));
    let clients = load(&proxy, &told, &stop);
    let more = async |count: usize| {
        let before = told.lock().len();
        for _ in 0..1_200 {
            if told.lock().len() > before + count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    more(500).await;
    dying.dead.send_replace(true);
    more(1_000).await;
    stop.store(true, Relaxed);
    for client in clients {
        client.await.expect("client");
    }
    let mut done: HashMap<String, usize> = HashMap::new();
    for name in dying.done.lock().iter().chain(living.done.lock().iter()) {
        *done.entry(name.clone()).or_default() += 1;
    }
    for (name, method, code) in &*told.lock() {
        let times = done.get(name).copied().unwrap_or(0);
        match (*method, *code) {
            (_, 200) => assert!(times >= 1, "{method} {name} was answered by nobody"),
            ("POST", 502) => {}
            _ => panic!("{method} {name}: {code}"),
        }
        assert!(*method != "POST" || times <= 1, "POST {name} was done {times} times");
    }
    assert!(!dying.done.lock().is_empty() && told.lock().len() > 1_000);
}
