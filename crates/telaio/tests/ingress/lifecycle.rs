//! Starting, crashing, ending and being replaced.

use std::process::Command;
use std::time::{Duration, Instant};

use super::{Answer, Echo, Ingress, Manifests, ask, ingress, service};
use crate::support::PATIENCE;

fn manifests(one: &Echo) -> Manifests {
    let manifests = Manifests::empty();
    manifests.write(
        "all.yaml",
        &(service("one", &[one]) + &ingress("a", "a.example.com", "/", "one", "")),
    );
    manifests
}

/// The process of the worker, which is its agent's only child.
pub(crate) fn worker_of(agent: u32) -> Option<u32> {
    let path = format!("/proc/{agent}/task");
    std::fs::read_dir(path).unwrap().flatten().find_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

#[test]
fn as_root_the_worker_is_a_process_without_privileges_that_is_started_again() {
    let one = Echo::start("one");
    let plane = Ingress::start(manifests(&one), "own");
    assert_eq!(ask(plane.http, "a.example.com", "/").backend().as_deref(), Some("one"));
    let worker = worker_of(plane.agent.pid()).expect("a worker");
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    assert_eq!(field("Uid:"), ["65534"; 4], "these tests run as root");
    assert_eq!(field("Gid:"), ["65534"; 4]);
    assert_eq!(field("CapEff:"), ["0000000000000000"]);
    assert!(field("Groups:").is_empty());

    assert!(Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap().success());
    plane.agent.wait_log("the ingress worker ended; starting another");
    // The sockets were never closed: connections wait until there is another worker.
    assert_eq!(ask(plane.http, "a.example.com", "/").backend().as_deref(), Some("one"));
    assert_ne!(worker_of(plane.agent.pid()), Some(worker));
}

#[test]
fn a_request_that_runs_ends_well_when_the_agent_is_told_to_end() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let plane = Ingress::start(manifests(&one), process);
        let http = plane.http;
        let slow = std::thread::spawn(move || ask(http, "a.example.com", "/slow"));
        let deadline = Instant::now() + PATIENCE;
        while one.requests() == 0 {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
        let (status, log) = plane.agent.end();
        assert_eq!(status.code(), Some(0), "{process}: {log}");
        let slow = slow.join().unwrap();
        assert_eq!(slow.status, 200, "{process}: {slow:?}");
        assert_eq!(slow.field("connection"), Some("close"), "{process}: {slow:?}");
    }
}

#[test]
fn another_agent_takes_the_sockets_over_without_a_lost_connection() {
    let one = Echo::start("one");
    let first = Ingress::start(manifests(&one), "same");
    let http = first.http;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asking = {
        let stop = std::sync::Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let answer = ask(http, "a.example.com", "/");
                assert_eq!(answer.status, 200, "{answer:?}");
                count += 1;
            }
            count
        })
    };
    let state = first.agent.state.path().to_owned();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut second = crate::support::telaio()
        .args(["run", "--planes=ingress", "--node=loom-a", "--ingress-process=same"])
        .args(["--http-listen=127.0.0.1:0", "--https-listen=127.0.0.1:0", "--log-format=json"])
        .args(["--admin-listen=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"])
        .arg("--healthz-bind-address=127.0.0.1:0")
        .arg(format!("--state-dir={}", state.display()))
        .arg(first.manifests.source())
        .stderr(log.reopen().unwrap())
        .spawn()
        .unwrap();
    first.agent.wait_log("another agent took over; ending when the requests that run have");
    let deadline = Instant::now() + PATIENCE;
    let read = || std::fs::read_to_string(log.path()).unwrap();
    while !read().contains("the ingress serves") {
        assert!(Instant::now() < deadline, "{}", read());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(http, "a.example.com", "/").status, 200);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(asking.join().unwrap() > 0);
    let pid = second.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(second.wait().unwrap().code(), Some(0), "{}", read());
}

/// Waits until somebody has asked so often.
fn wait_requests(one: &Echo, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while one.requests() < count {
        assert!(Instant::now() < deadline, "{} of {count} requests came", one.requests());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn while_it_drains_who_waited_is_served_and_who_comes_is_refused() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let plane = Ingress::start(manifests(&one), process);
        let http = plane.http;
        let keep = |path: &str| {
            let mut stream = std::net::TcpStream::connect(http).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a.example.com\r\n\r\n");
            std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
            stream
        };
        let whole = |mut stream: std::net::TcpStream| {
            let mut answer = Vec::new();
            std::io::Read::read_to_end(&mut stream, &mut answer).unwrap();
            Answer::read(&String::from_utf8_lossy(&answer)).unwrap()
        };
        let slow = keep("/slower");
        let slow = std::thread::spawn(move || whole(slow));
        wait_requests(&one, 1);
        // While nobody accepts, connections wait in the kernel.
        let pid = plane.agent.pid();
        let serving = worker_of(pid).filter(|_| process == "own").unwrap_or(pid);
        signal("-STOP", serving);
        let waiting: Vec<_> = (0..20).map(|_| keep("/")).collect();
        signal("-TERM", pid);
        signal("-CONT", serving);
        for stream in waiting {
            let answer = whole(stream);
            assert_eq!(answer.status, 200, "{process}: {answer:?}");
        }
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(http).is_ok() {
            assert!(Instant::now() < deadline && !slow.is_finished(), "{process}: still open");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!slow.is_finished(), "{process}: the ports closed only with the last request");
        let slow = slow.join().unwrap();
        assert_eq!(slow.status, 200, "{process}: {slow:?}");
        assert_eq!(slow.field("connection"), Some("close"), "{process}: {slow:?}");
    }
}

#[test]
fn told_to_end_it_is_not_ready_and_serves_on_as_long_as_asked() {
    let one = Echo::start("one");
    let plane = Ingress::start_with(manifests(&one), "same", &["--drain-delay=1h"]);
    let health = plane.agent.healthz;
    let ready = || crate::ask(health, "localhost", "/ready");
    assert_eq!(ready().status, 200);
    signal("-TERM", plane.agent.pid());
    let deadline = Instant::now() + PATIENCE;
    while ready().status != 503 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(ready().seen()["ending"], true);
    assert_eq!(ask(plane.http, "a.example.com", "/").status, 200);
    // A second signal does not wait.
    assert_eq!(plane.agent.end().0.code(), Some(0));
}

#[test]
fn requests_on_kept_connections_survive_one_agent_after_another() {
    for process in ["same", "own"] {
        survive_one_agent_after_another(process);
    }
}

fn survive_one_agent_after_another(process: &str) {
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicBool, Ordering};

    const AGENTS: usize = 5;
    const CLIENTS: usize = 8;
    let one = Echo::start("one");
    let first = Ingress::start(manifests(&one), process);
    let (http, stop) = (first.http, std::sync::Arc::new(AtomicBool::new(false)));
    // POSTs must not be sent twice, so a client only opens another connection when it was told to.
    let post = move |stop: &AtomicBool| {
        let (mut kept, mut count) = (None, 0);
        while !stop.load(Ordering::Relaxed) {
            let mut stream = kept.take().unwrap_or_else(|| {
                let stream = std::net::TcpStream::connect(http).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream
            });
            let request = b"POST / HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 1\r\n\r\nx";
            stream.write_all(request).unwrap();
            let mut answer = Vec::new();
            let whole = |answer: &[u8]| {
                let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head.split("content-length: ").nth(1)?.split("\r\n").next()?;
                (body.len() >= length.parse().ok()?).then(|| head.contains("connection: close"))
            };
            let closes = loop {
                if let Some(closes) = whole(&answer) {
                    break closes;
                }
                let mut piece = [0; 4096];
                let count = stream.read(&mut piece).unwrap();
                assert!(count > 0, "closed without an answer: {answer:?}");
                answer.extend_from_slice(&piece[..count]);
            };
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
            count += 1;
            kept = Some(stream).filter(|_| !closes);
            std::thread::sleep(Duration::from_millis(5));
        }
        count
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let stop = std::sync::Arc::clone(&stop);
            std::thread::spawn(move || post(&stop))
        })
        .collect();
    let state = first.agent.state.path().to_owned();
    let mut agents = Vec::new();
    for _ in 0..AGENTS {
        let log = tempfile::NamedTempFile::new().unwrap();
        let agent = crate::support::telaio()
            .args(["run", "--planes=ingress", "--node=loom-a"])
            .arg(format!("--ingress-process={process}"))
            .args(["--http-listen=127.0.0.1:0", "--https-listen=127.0.0.1:0", "--log-format=json"])
            .args(["--admin-listen=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"])
            .arg("--healthz-bind-address=127.0.0.1:0")
            .arg(format!("--state-dir={}", state.display()))
            .arg(first.manifests.source())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        agents.push(agent);
        let deadline = Instant::now() + PATIENCE;
        let read = || std::fs::read_to_string(log.path()).unwrap();
        while !read().contains("the ingress serves") {
            assert!(Instant::now() < deadline, "{}", read());
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    stop.store(true, Ordering::Relaxed);
    let counts: Vec<usize> = clients.into_iter().map(|it| it.join().unwrap()).collect();
    assert!(counts.iter().all(|count| *count > AGENTS), "{counts:?}");
    assert_eq!(one.requests(), counts.iter().sum::<usize>(), "each came once");
    signal("-TERM", agents[AGENTS - 1].id());
    for mut agent in agents {
        assert_eq!(agent.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_worker_that_hangs_or_dies_keeps_no_service_waiting() {
    use std::fmt::Write as _;
    let (one, two) = (Echo::start("one"), Echo::start("two"));
    // What a backend of services is told of is the same with each; this one says it.
    let flags = ["--planes=services,ingress", "--backend=view"];
    // With an address: what has none is nothing to program.
    let web = |echo: &Echo| {
        service("one", &[echo]).replace("clusterIP: None, ", "")
            + &ingress("a", "a.example.com", "/", "one", "")
    };
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &web(&one));
    let plane = Ingress::start_with(manifests, "own", &flags);
    plane.agent.wait_out("name: one");
    let worker = worker_of(plane.agent.pid()).expect("a worker");
    signal("-STOP", worker);
    // More than the worker's link takes, and then a change.
    let mut many = String::new();
    for number in 0..3_000 {
        write!(
            many,
            "apiVersion: v1\nkind: Service\nmetadata: {{name: many-{number}, namespace: shop}}\n\
             spec: {{ports: [{{name: http, port: 80}}]}}\n---\n"
        )
        .unwrap();
    }
    plane.manifests.write("many.yaml", &many);
    plane.agent.wait_out("name: many-2999");
    plane.manifests.write("all.yaml", &web(&two));
    plane.agent.wait_out(&format!("port: {}", two.address.port()));
    // The next worker is told how things are then.
    signal("-KILL", worker);
    plane.ask_until("a.example.com", "/", |answer| answer.backend().as_deref() == Some("two"));
    assert_ne!(worker_of(plane.agent.pid()), Some(worker));
    let late = service("late", &[&one]).replace("clusterIP: None, ", "");
    plane.manifests.write("late.yaml", &late);
    plane.agent.wait_out("name: late");
}
