//! A backend is killed under load: what can be sent again is, what cannot be fails with 502, and nothing is
//! done twice or in part.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use support::{Backend, Proxy, read_response, status};
use telaio_http_proxy::table::{BackendId, ErrorBackend, Policy};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

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
    for (is_streamed, policy) in [(false, Policy::default()), (true, streamed)] {
        let (dying, living) = (Backend::start().await, Backend::start().await);
        let proxy = Proxy::with_policy(&[&dying, &living], policy);
        let (told, stop) = (Told::default(), Arc::new(AtomicBool::new(false)));
        let clients = load(&proxy, &told, &stop);
        tokio::time::sleep(Duration::from_millis(500)).await;
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
                // Of a stream nothing is left to be sent again.
                ("PUT", 502) if is_streamed => failed += 1,
                _ => panic!("{method} {name}: {code}"),
            }
            assert!(*method != "POST" || times <= 1, "POST {name} was done {times} times");
        }
        assert!(failed <= connections, "{failed} of {}, {connections} connections", told.len());
        assert!(told.len() > 1_000, "{}", told.len());
    }
}
