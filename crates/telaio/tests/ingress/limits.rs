//! How long requests may take and how often they are tried: what annotations say about it, with real
//! backends that are silent, deaf, absent or talk nonsense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::{
    Answer, Echo, Ingress, Manifests, all_annotated, ask, ingress, send, service, service_at,
};
use crate::support::PATIENCE;

fn to(name: &str, service: &str, pairs: &[(&str, &str)]) -> String {
    ingress(name, &format!("{name}.example.com"), "/", service, &all_annotated(pairs))
}

/// A port at which the kernel takes no connection: its queue is full, and nobody accepts.
struct Full {
    address: SocketAddr,
    _listener: socket2::Socket,
    _queued: Vec<TcpStream>,
}

impl Full {
    fn start() -> Self {
        let listener =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        listener.bind(&any.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            queued.push(stream);
            assert!(queued.len() < 16, "the queue has no end");
        }
        Self { address, _listener: listener, _queued: queued }
    }
}

/// A backend that answers every request with these bytes.
fn talks(bytes: &'static [u8]) -> (SocketAddr, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asked = std::sync::Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let asked = std::sync::Arc::clone(&asked);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(1..) = stream.read(&mut piece) {
                    asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if stream.write_all(bytes).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, count)
}

#[test]
fn each_part_of_a_request_may_take_as_long_as_asked() {
    let one = Echo::start("one");
    let full = Full::start();
    // Takes connections, by its kernel, and reads nothing.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let once = ("proxy-next-upstream-tries", "1");
    let manifests = Manifests::empty();
    let all = service("one", &[&one])
        + &service_at("full", &[full.address])
        + &service_at("deaf", &[deaf.local_addr().unwrap()])
        + &to("connect", "full", &[("proxy-connect-timeout", "200ms"), once])
        + &to("patient", "full", &[("proxy-connect-timeout", "1h"), once])
        + &to("send", "deaf", &[("proxy-send-timeout", "300ms"), ("proxy-body-size", "0"), once])
        + &to("whole", "one", &[("telaio.dev/request-timeout", "300ms")]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let mut patient = TcpStream::connect(plane.http).unwrap();
    patient.write_all(b"GET / HTTP/1.1\r\nHost: patient.example.com\r\n\r\n").unwrap();
    assert_eq!(ask(plane.http, "connect.example.com", "/").status, 504);
    patient.set_nonblocking(true).unwrap();
    let waits = patient.read(&mut [0; 64]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "it still tries");
    drop(patient);

    let mut stream = TcpStream::connect(plane.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let head =
            "POST / HTTP/1.1\r\nHost: send.example.com\r\nContent-Length: 1000000000\r\n\r\n";
        let piece = vec![b'x'; 1 << 16];
        // Ends when nobody takes any more.
        let mut sent = writer.write_all(head.as_bytes());
        while sent.is_ok() {
            sent = writer.write_all(&piece);
        }
    });
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 504");
    drop(stream.shutdown(std::net::Shutdown::Both));
    sending.join().unwrap();

    assert_eq!(ask(plane.http, "whole.example.com", "/slower").status, 504);
    assert_eq!(ask(plane.http, "whole.example.com", "/").status, 200);
}

#[test]
fn another_endpoint_is_tried_after_the_failures_that_are_named_and_no_others() {
    const WORDS: [(&str, u16); 7] = [
        ("http_500", 500),
        ("http_502", 502),
        ("http_503", 503),
        ("http_504", 504),
        ("http_429", 429),
        ("http_403", 403),
        ("http_404", 404),
    ];
    let manifests = Manifests::empty();
    let mut all = String::new();
    let mut echoes = Vec::new();
    // Each has endpoints of its own: what may be retried is counted by backend.
    let mut add = |name: &str, pairs: &[(&str, &str)]| {
        let own = [Echo::start(name), Echo::start(name), Echo::start(name)];
        all += &service(name, &own.iter().collect::<Vec<_>>());
        all += &to(name, name, pairs);
        echoes.push((name.to_owned(), own));
    };
    let never = ("telaio.dev/eject-after", "0");
    for (word, status) in WORDS {
        add(&format!("w{status}"), &[("proxy-next-upstream", word), never]);
    }
    add("late", &[("proxy-next-upstream", "timeout"), ("proxy-read-timeout", "200ms"), never]);
    add("notlate", &[("proxy-next-upstream", "error"), ("proxy-read-timeout", "200ms"), never]);
    add("post", &[("proxy-next-upstream", "http_503 non_idempotent"), never]);
    add("nopost", &[("proxy-next-upstream", "http_503"), never]);
    add("soon", &[("proxy-next-upstream", "http_503"), ("proxy-next-upstream-timeout", "300ms")]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let tries = |name: &str, method: &str, path: &str, body: &str| {
        let (_, own) = echoes.iter().find(|(it, _)| it == name).unwrap();
        let asked = || own.iter().map(Echo::requests).sum::<usize>();
        let before = asked();
        let answer = send(plane.http, method, &format!("{name}.example.com"), path, "", body);
        (answer.status, asked() - before)
    };
    for (word, status) in WORDS {
        let name = format!("w{status}");
        let path = format!("/?status={status}");
        assert_eq!(tries(&name, "GET", &path, ""), (status, 3), "{word}");
        for (_, other) in WORDS.into_iter().filter(|(_, other)| *other != status) {
            let path = format!("/?status={other}");
            assert_eq!(tries(&name, "GET", &path, ""), (other, 1), "{word}: {other}");
        }
    }
    assert_eq!(tries("late", "GET", "/slow", ""), (504, 3));
    assert_eq!(tries("notlate", "GET", "/slow", ""), (504, 1));
    assert_eq!(tries("post", "POST", "/?status=503", "x"), (503, 3));
    assert_eq!(tries("nopost", "POST", "/?status=503", "x"), (503, 1));
    assert_eq!(tries("nopost", "GET", "/?status=503", ""), (503, 3));
    assert_eq!(tries("soon", "GET", "/slow?status=503", ""), (503, 1), "its time was over");
    assert_eq!(tries("soon", "GET", "/?status=503", ""), (503, 3));
}

#[test]
fn an_answer_that_cannot_be_read_is_followed_by_another_try_where_that_is_asked_for() {
    let one = Echo::start("one");
    let (nonsense, asked) = talks(b"HELLO WORLD\r\n\r\n");
    let turn = ("load-balance", "round_robin");
    let never = ("telaio.dev/eject-after", "0");
    let manifests = Manifests::empty();
    let all = service_at("half", &[one.address, nonsense])
        + &to("again", "half", &[("proxy-next-upstream", "invalid_header"), turn, never])
        + &to("once", "half", &[("proxy-next-upstream", "error"), turn, never]);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let statuses = |host: &str, method: &str, body: &str| {
        let all = (0..6).map(|_| send(plane.http, method, host, "/", "", body).status);
        all.collect::<Vec<_>>()
    };
    let failed = |statuses: &[u16]| statuses.iter().filter(|it| **it == 502).count();
    let before = asked.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(statuses("again.example.com", "GET", ""), [200; 6]);
    assert!(asked.load(std::sync::atomic::Ordering::Relaxed) > before, "it was asked first");
    assert_eq!(failed(&statuses("once.example.com", "GET", "")), 3);
    // What may not be sent twice is not.
    let posts = statuses("again.example.com", "POST", "x");
    assert!(failed(&posts) > 0, "{posts:?}");
}

#[test]
fn errors_are_answered_by_the_default_backend_unless_that_is_switched_off() {
    let (one, errors) = (Echo::start("one"), Echo::start("errors"));
    let pairs = [("custom-http-errors", "404,503"), ("default-backend", "errors")];
    let off = [pairs[0], pairs[1], ("disable-proxy-intercept-errors", "true")];
    let manifests = Manifests::empty();
    let all = service("one", &[&one])
        + &service("errors", &[&errors])
        + &to("on", "one", &pairs)
        + &to("off", "one", &off);
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    let whose = |host: &str, path: &str| {
        let answer: Answer = ask(plane.http, host, path);
        (answer.status, answer.body.contains("\"backend\":\"errors\""))
    };
    assert_eq!(whose("on.example.com", "/?status=404"), (200, true), "with the page's own status");
    assert_eq!(whose("on.example.com", "/?status=500"), (500, false));
    assert_eq!(whose("off.example.com", "/?status=404"), (404, false));
    assert_eq!(errors.seen()[0]["headers"]["x-code"], "404");
}

#[test]
fn heads_idle_connections_and_the_cache_are_bounded_as_the_operator_says() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    manifests.write(
        "all.yaml",
        &(service("one", &[&one]) + &to("kept", "one", &[("telaio.dev/cache", "true")])),
    );
    let flags = [
        "--ingress-head-size=4k",
        "--ingress-head-timeout=5s",
        "--ingress-keep-alive=5s",
        "--ingress-cache-size=4Mi",
        "--ingress-cache-entry-size=16k",
    ];
    let plane = Ingress::start_with(manifests, "own", &flags);
    let with = |fields: &str| super::ask_with(plane.http, "kept.example.com", "/", fields).status;
    assert_eq!(with(&format!("X-Long: {}\r\n", "x".repeat(2_000))), 200);
    assert_eq!(with(&format!("X-Long: {}\r\n", "x".repeat(5_000))), 431);
    assert_eq!(ask(plane.http, "kept.example.com", &format!("/{}", "x".repeat(1_500))).status, 414);

    // A head that stays half is answered, and a connection without a request is closed.
    for (sent, answered) in [("GET / HTTP/1.1\r\nHost: kept", 408), ("", 200)] {
        let mut stream = TcpStream::connect(plane.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let whole = "GET / HTTP/1.1\r\nHost: kept.example.com\r\n\r\n";
        let sent = if sent.is_empty() { whole } else { sent };
        stream.write_all(sent.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // Ends when the connection does; with the usual times that would be after a minute.
        stream.read_to_end(&mut answer).unwrap();
        let answer = Answer::read(&String::from_utf8_lossy(&answer)).unwrap();
        assert_eq!(answer.status, answered, "{answer:?}");
    }

    let hit = |path: &str| {
        let twice = [(); 2].map(|()| ask(plane.http, "kept.example.com", path));
        twice[1].field("cache-status").is_some_and(|it| it.contains("hit"))
    };
    super::operations::wait_until("a hit", || hit("/?max-age=600&size=1000").then_some(()));
    assert!(!hit("/?max-age=600&size=40000"), "it is larger than what is kept");
}
