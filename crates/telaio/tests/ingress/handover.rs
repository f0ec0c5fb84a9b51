//! A newcomer takes over from an agent that serves: when it is ready, and not before. One that fails has
//! changed nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};

use super::load::{Sender, Wire, connect, tls_secret};
use super::operations::wait_until;
use super::{Echo, Ingress, Manifests, ask, ingress, service, service_at};
use crate::support::{PATIENCE, telaio};

const READY: &str = "another agent serves; taking over from it when we are ready";
const TOOK_OVER: &str = "took over from the agent before us";
const TAKEN: &str = "another agent took over; ending when the requests that run have";

fn manifests(one: &Echo) -> Manifests {
    let manifests = Manifests::empty();
    let text = service("one", &[one]) + &ingress("a", "a.example.com", "/", "one", "");
    manifests.write("all.yaml", &text);
    manifests
}

/// An agent that finds another where it wants to be.
struct Newcomer {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Newcomer {
    /// With the state directory and the manifests of the first; later arguments win.
    fn start(first: &Ingress, process: &str, more: &[&str]) -> Self {
        Self::start_from(first, &first.manifests.source(), process, more)
    }

    fn start_from(first: &Ingress, source: &str, process: &str, more: &[&str]) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let has = |name: &str| more.iter().any(|it| it.starts_with(name));
        let usual = [
            ("--http-listen", "127.0.0.1:0"),
            ("--https-listen", "127.0.0.1:0"),
            ("--admin-listen", "127.0.0.1:0"),
            ("--metrics-bind-address", "127.0.0.1:0"),
            ("--healthz-bind-address", "127.0.0.1:0"),
            ("--ingress-threads", "2"),
            ("--drain-timeout", "10s"),
        ];
        let usual = usual.iter().filter(|(name, _)| !has(name));
        let child = telaio()
            .args(["run", "--planes=ingress", "--node=loom-a", "--log-format=json", source])
            .arg(format!("--ingress-process={process}"))
            .arg(format!("--state-dir={}", first.agent.state.path().display()))
            .args(usual.map(|(name, value)| format!("{name}={value}")))
            .args(more)
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    fn wait_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "no {text} in:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        // It may have ended already, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Somebody who asks all the while, and fails with the first request that does.
struct Asking {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<()>,
}

impl Asking {
    fn begin(http: SocketAddr) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (over, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let answer = ask(http, "a.example.com", "/");
                assert_eq!(answer.status, 200, "{answer:?}");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { stop, count, thread }
    }

    /// Waits for some more answers.
    fn go_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        wait_until("requests", || {
            let more = self.count.load(Ordering::Relaxed) > before + 50;
            (more || self.thread.is_finished()).then_some(())
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_newcomer_without_its_source_waits_and_the_agent_before_it_serves_on() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let first = Ingress::start(manifests(&one), process);
        let asking = Asking::begin(first.http);
        // Nobody listens there, nor may anybody.
        let mut lost =
            Newcomer::start_from(&first, "--source=brain:http://127.0.0.1:1", process, &[]);
        lost.wait_log(READY);
        first.agent.wait_log("another agent makes itself ready to take over; serving until it is");
        asking.go_on();
        assert!(!lost.log().contains("the ingress serves"), "{process}: {}", lost.log());
        lost.signal("-TERM");
        assert_eq!(lost.code(), Some(0), "{process}: {}", lost.log());
        assert!(!lost.log().contains(TOOK_OVER), "{process}: {}", lost.log());
        first.agent.wait_log("the agent that wanted to take over is gone; serving on");
        asking.go_on();
        // The next one has what it needs.
        let mut next = Newcomer::start(&first, process, &[]);
        next.wait_log(TOOK_OVER);
        first.agent.wait_log(TAKEN);
        asking.go_on();
        asking.end();
        next.signal("-TERM");
        assert_eq!(next.code(), Some(0), "{process}: {}", next.log());
    }
}

#[test]
fn a_newcomer_that_is_killed_before_it_is_ready_leaves_everything_as_it_was() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let first = Ingress::start(manifests(&one), process);
        let (http, asking) = (first.http, Asking::begin(first.http));
        for _ in 0..3 {
            let mut killed =
                Newcomer::start_from(&first, "--source=brain:http://127.0.0.1:1", process, &[]);
            killed.wait_log("\"the ingress listens\"");
            killed.signal("-KILL");
            assert_eq!(killed.code(), None);
            asking.go_on();
        }
        asking.end();
        // Its sockets are nobody else's: they close with it.
        assert_eq!(first.agent.end().0.code(), Some(0), "{process}");
        wait_until("closed ports", || TcpStream::connect(http).is_err().then_some(()));
    }
}

#[test]
fn a_newcomer_that_wants_a_port_of_somebody_else_fails_and_the_agent_before_it_serves_on() {
    let one = Echo::start("one");
    let first = Ingress::start(manifests(&one), "same");
    let asking = Asking::begin(first.http);
    let somebody = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = somebody.local_addr().unwrap();
    for flag in ["--admin-listen", "--metrics-bind-address", "--http-listen", "--https-listen"] {
        let mut failed = Newcomer::start(&first, "same", &[&format!("{flag}={port}")]);
        assert_eq!(failed.code(), Some(1), "{}", failed.log());
        let log = failed.log();
        assert!(log.contains("is in use by") && log.contains(flag), "{log}");
    }
    // What can be checked before is.
    let mut failed = Newcomer::start(&first, "same", &["--admin-token-file=/nonexistent"]);
    assert_eq!(failed.code(), Some(2), "{}", failed.log());
    asking.go_on();
    asking.end();
    assert_eq!(first.agent.end().0.code(), Some(0));
}

#[test]
fn ports_of_the_agent_before_are_the_newcomers_when_it_has_taken_over() {
    let one = Echo::start("one");
    let first = Ingress::start(manifests(&one), "same");
    let (admin, metrics, healthz) = (first.agent.admin, first.agent.metrics, first.agent.healthz);
    let asking = Asking::begin(first.http);
    let flags = [
        format!("--http-listen={}", first.http),
        format!("--https-listen={}", first.https),
        format!("--admin-listen={admin}"),
        format!("--metrics-bind-address={metrics}"),
        format!("--healthz-bind-address={healthz}"),
    ];
    let mut next = Newcomer::start(&first, "same", &flags.each_ref().map(String::as_str));
    next.wait_log(TOOK_OVER);
    next.wait_log("\"listening\"");
    first.agent.wait_log(TAKEN);
    let ready = || (ask(healthz, "localhost", "/ready").status == 200).then_some(());
    wait_until("readiness", ready);
    assert_eq!(ask(metrics, "localhost", "/metrics").status, 200);
    asking.go_on();
    asking.end();
    next.signal("-TERM");
    assert_eq!(next.code(), Some(0), "{}", next.log());
}

#[test]
fn the_newest_newcomer_takes_over() {
    let one = Echo::start("one");
    let first = Ingress::start(manifests(&one), "same");
    let asking = Asking::begin(first.http);
    let mut lost = Newcomer::start_from(&first, "--source=brain:http://127.0.0.1:1", "same", &[]);
    lost.wait_log(READY);
    let mut next = Newcomer::start(&first, "same", &[]);
    next.wait_log(TOOK_OVER);
    assert_eq!(lost.code(), Some(1), "{}", lost.log());
    assert!(lost.log().contains("another agent came after us"), "{}", lost.log());
    asking.go_on();
    asking.end();
    next.signal("-TERM");
    assert_eq!(next.code(), Some(0), "{}", next.log());
}

#[test]
fn agents_with_other_numbers_of_threads_accept_from_every_socket() {
    let one = Echo::start("one");
    let first = Ingress::start_with(manifests(&one), "same", &["--ingress-threads=5"]);
    let http = first.http;
    let mut last = None;
    for threads in [1, 3, 7] {
        let next = Newcomer::start(&first, "same", &[&format!("--ingress-threads={threads}")]);
        next.wait_log(TOOK_OVER);
        // The kernel gives each socket its share of these.
        let asking = (0..60).map(|_| std::thread::spawn(move || ask(http, "a.example.com", "/")));
        for asked in asking.collect::<Vec<_>>() {
            assert_eq!(asked.join().unwrap().status, 200, "{threads}");
        }
        last = Some(next);
    }
    let mut last = last.unwrap();
    last.signal("-TERM");
    assert_eq!(last.code(), Some(0), "{}", last.log());
}

/// A port that nobody has at the moment.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn addresses_that_changed_are_opened_those_that_stayed_are_kept_and_others_closed() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let first = Ingress::start(manifests(&one), process);
        let (old, https) = (first.http, first.https);
        let new = free_port();
        let wide = SocketAddr::from(([0, 0, 0, 0], new.port()));
        let mut agents = Vec::new();
        // First another port, then the same port of all addresses.
        for (before, address, asked) in [(old, new, new), (new, wide, new)] {
            let flags = [format!("--http-listen={address}"), format!("--https-listen={https}")];
            let next = Newcomer::start(&first, process, &flags.each_ref().map(String::as_str));
            next.wait_log(TOOK_OVER);
            assert!(next.log().contains(&format!("\"http\":\"{address}\"")), "{}", next.log());
            assert!(next.log().contains(&format!("\"https\":\"{https}\"")), "{}", next.log());
            for _ in 0..20 {
                assert_eq!(ask(asked, "a.example.com", "/").status, 200, "{process}");
            }
            let _ = TcpStream::connect(https).unwrap();
            if before != asked {
                let closed = || TcpStream::connect(before).is_err().then_some(());
                wait_until("a closed port", closed);
            }
            agents.push(next);
        }
        let last = agents.pop().unwrap();
        last.signal("-TERM");
        for mut agent in agents.into_iter().chain([last]) {
            assert_eq!(agent.code(), Some(0), "{process}: {}", agent.log());
        }
    }
}

/// A backend that agrees to any upgrade and then says back what it hears.
fn parrot() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || -> std::io::Result<()> {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    stream.read_exact(&mut byte)?;
                    head.push(byte[0]);
                }
                stream.write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                )?;
                let mut piece = [0; 1024];
                loop {
                    let count = stream.read(&mut piece)?;
                    if count == 0 {
                        return Ok(());
                    }
                    stream.write_all(&piece[..count])?;
                }
            });
        }
    });
    address
}

#[test]
fn a_websocket_outlives_the_hand_over_to_its_last_message() {
    for process in ["same", "own"] {
        let manifests = Manifests::empty();
        let text =
            service_at("parrot", &[parrot()]) + &ingress("a", "a.example.com", "/", "parrot", "");
        manifests.write("all.yaml", &text);
        let first = Ingress::start_with(manifests, process, &["--drain-timeout=1m"]);
        let mut stream = TcpStream::connect(first.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "GET /chat HTTP/1.1\r\nHost: a.example.com\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        let mut say = |text: &str| {
            stream.write_all(text.as_bytes()).unwrap();
            let mut heard = vec![0; text.len()];
            stream.read_exact(&mut heard).unwrap();
            assert_eq!(String::from_utf8_lossy(&heard), text, "{process}");
        };
        say("before");
        let mut next = Newcomer::start(&first, process, &[]);
        next.wait_log(TOOK_OVER);
        first.agent.wait_log(TAKEN);
        for number in 0..20 {
            say(&format!("after {number}"));
        }
        // The agent before is there for it alone, and ends with it.
        next.signal("-TERM");
        assert_eq!(next.code(), Some(0), "{}", next.log());
        say("last");
        drop(stream);
        let (status, log) = first.agent.ended();
        assert_eq!(status.code(), Some(0), "{process}: {log}");
    }
}

#[test]
fn an_agent_in_a_pod_waits_to_be_told_to_end_when_another_has_taken_over() {
    let one = Echo::start("one");
    let first = Ingress::start_with(manifests(&one), "own", &["--wait-after-takeover"]);
    let next = Newcomer::start(&first, "own", &[]);
    next.wait_log(TOOK_OVER);
    first.agent.wait_log("another agent serves; waiting to be told to end");
    assert_eq!(ask(first.http, "a.example.com", "/").backend().as_deref(), Some("one"));
    // Its worker has ended; it has not, and takes nothing back.
    assert!(Path::new(&format!("/proc/{}", first.agent.pid())).exists());
    assert_eq!(super::lifecycle::worker_of(first.agent.pid()), None);
    let http = first.http;
    let (status, log) = first.agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(ask(http, "a.example.com", "/").backend().as_deref(), Some("one"));
}

/// A backend that answers each request when it is let, and how many wait.
fn gated() -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (waiting, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, may) = (Arc::clone(&waiting), Arc::clone(&open));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (count, may) = (Arc::clone(&count), Arc::clone(&may));
            std::thread::spawn(move || -> std::io::Result<()> {
                loop {
                    let (mut head, mut byte) = (Vec::new(), [0]);
                    while !head.ends_with(b"\r\n\r\n") {
                        stream.read_exact(&mut byte)?;
                        head.push(byte[0]);
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    while !may.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")?;
                }
            });
        }
    });
    (address, waiting, open)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_http2_end_well_after_the_hand_over_and_the_next_are_the_newcomers() {
    const STREAMS: usize = 10;
    let (slow, waiting, open) = gated();
    let one = Echo::start("one");
    let (secret, tls) = tls_secret();
    let manifests = Manifests::empty();
    let text = service("one", &[&one])
        + &service_at("slow", &[slow])
        + &ingress("slow", "h0.example.com", "/slow", "slow", "")
        + &ingress("a", "h0.example.com", "/", "one", "")
        + &format!("{secret}\n");
    manifests.write("all.yaml", &text);
    let flags = ["--default-tls-secret=shop/cert", "--drain-timeout=2m"];
    let first = tokio::task::block_in_place(|| Ingress::start_with(manifests, "own", &flags));
    let to = [first.http, first.https];
    let Sender::Two(mut sender) = connect(Wire::TlsH2, to, &tls).await else { panic!("no h2") };
    let request = |path: &str| {
        let request = http::Request::get(format!("https://h0.example.com{path}"));
        request.version(http::Version::HTTP_2).body(Empty::<Bytes>::new()).unwrap()
    };
    let read = |answer: hyper::Response<hyper::body::Incoming>| async move {
        let status = answer.status().as_u16();
        (status, answer.into_body().collect().await.unwrap().to_bytes())
    };
    let asked: Vec<_> = (0..STREAMS)
        .map(|number| tokio::spawn(sender.send_request(request(&format!("/slow/{number}")))))
        .collect();
    let next = tokio::task::block_in_place(|| {
        wait_until("all streams", || (waiting.load(Ordering::Relaxed) >= STREAMS).then_some(()));
        let next = Newcomer::start(&first, "own", &["--default-tls-secret=shop/cert"]);
        next.wait_log(TOOK_OVER);
        first.agent.wait_log(TAKEN);
        next
    });
    // Who connects now is the newcomer's, while all streams of before are still open.
    let Sender::Two(mut other) = connect(Wire::TlsH2, to, &tls).await else { panic!("no h2") };
    let answer = read(other.send_request(request("/")).await.unwrap()).await;
    assert_eq!(answer.0, 200);
    assert!(asked.iter().all(|it| !it.is_finished()));
    open.store(true, Ordering::Relaxed);
    for answer in asked {
        let answer = read(answer.await.unwrap().unwrap()).await;
        assert_eq!(answer, (200, Bytes::from_static(b"whole")));
    }
    // The connection says that it is over; nothing that was sent on it is lost.
    drop(sender);
    let (status, log) = tokio::task::block_in_place(|| first.agent.ended());
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("not all requests ended in time"), "{log}");
    drop(next);
}
