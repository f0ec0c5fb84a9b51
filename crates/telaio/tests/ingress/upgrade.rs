//! The binary is replaced while it serves: by agents whose worker is a process, and whose namespaces are
//! their own, as two pods of a DaemonSet.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::lifecycle::worker_of;
use super::operations::wait_until;
use super::{Echo, Manifests, ask, ingress, service};
use crate::support::{PATIENCE, telaio};

/// An agent that shares the network and the state directory with others, and nothing else.
struct Apart {
    /// What made the namespaces; the agent is its child.
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Apart {
    fn start(state: &Path, manifests: &Manifests) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let agent = telaio();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]);
        command.arg(agent.get_program());
        for (name, value) in agent.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command
            .args(["run", "--planes=ingress", "--node=loom-a", "--ingress-process=own"])
            .args(["--http-listen=127.0.0.1:0", "--https-listen=127.0.0.1:0", "--log-format=json"])
            .args(["--admin-listen=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"])
            .args(["--healthz-bind-address=127.0.0.1:0", "--ingress-threads=2"])
            .arg(format!("--state-dir={}", state.display()))
            .arg(manifests.source())
            .stdin(std::process::Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .expect("this test needs root and unshare");
        Self { child, log }
    }

    fn wait_log(&self, text: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read_to_string(self.log.path()).unwrap();
            let mut entries = log.lines().filter_map(|line| serde_json::from_str(line).ok());
            if let Some(found) = entries.find(|it: &Value| it["message"] == text) {
                return found;
            }
            assert!(Instant::now() < deadline, "no {text} in:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The agent itself, by its number outside.
    fn pid(&self) -> u32 {
        worker_of(self.child.id()).expect("an agent")
    }

    /// Which namespace of a kind the agent is in.
    fn namespace(&self, kind: &str) -> String {
        let link = std::fs::read_link(format!("/proc/{}/ns/{kind}", self.pid())).unwrap();
        link.to_string_lossy().into_owned()
    }

    /// Waits for the end, which must be a good one.
    fn ended(mut self) {
        let status = self.child.wait().unwrap();
        let log = std::fs::read_to_string(self.log.path()).unwrap();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // With it ends what is in its namespaces. It may have ended already, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks by TLS, twice on one connection; what was wrong.
fn curl(https: SocketAddr, version: &str) -> Result<(), String> {
    let url = format!("https://a.example.com:{}/x", https.port());
    let out = Command::new("curl")
        .args(["-sk", version, "--max-time", "60", "-o", "/dev/null", "-o", "/dev/null"])
        .args(["-w", "%{http_code} ", "--resolve"])
        .arg(format!("a.example.com:{}:127.0.0.1", https.port()))
        .args([&url, &url])
        .output()
        .unwrap();
    let codes = String::from_utf8_lossy(&out.stdout);
    if out.status.success() && codes == "200 200 " { Ok(()) } else { Err(format!("{out:?}")) }
}

#[test]
fn agents_of_namespaces_of_their_own_follow_each_other_without_a_lost_request() {
    const AGENTS: usize = 3;
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    manifests.write(
        "all.yaml",
        &(service("one", &[&one]) + &ingress("a", "a.example.com", "/", "one", "")),
    );
    let state = tempfile::tempdir().unwrap();
    crate::support::put_token(state.path());
    let mut agents = vec![Apart::start(state.path(), &manifests)];
    let listening = agents[0].wait_log("the ingress listens");
    let address = |name: &str| -> SocketAddr { listening[name].as_str().unwrap().parse().unwrap() };
    let (http, https) = (address("http"), address("https"));
    agents[0].wait_log("the ingress serves");

    let stop = Arc::new(AtomicBool::new(false));
    let counts: [Arc<AtomicUsize>; 3] = std::array::from_fn(|_| Arc::default());
    let asking = |at: usize, mut once: Box<dyn FnMut() -> Result<(), String> + Send>| {
        let (stop, count) = (Arc::clone(&stop), Arc::clone(&counts[at]));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                once()?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), String>(())
        })
    };
    let clients = [
        asking(
            0,
            Box::new(move || match ask(http, "a.example.com", "/") {
                answer if answer.status == 200 => Ok(()),
                answer => Err(format!("{answer:?}")),
            }),
        ),
        asking(1, Box::new(move || curl(https, "--http2"))),
        asking(2, Box::new(move || curl(https, "--http1.1"))),
    ];
    for number in 1..=AGENTS {
        let before = &agents[number - 1];
        for kind in ["pid", "mnt"] {
            let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert_ne!(before.namespace(kind), ours.to_string_lossy(), "{kind}");
        }
        let next = Apart::start(state.path(), &manifests);
        next.wait_log("the ingress serves");
        before.wait_log("another agent took over; ending when the requests that run have");
        let worker = worker_of(next.pid()).expect("a worker");
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        assert!(status.contains("CapEff:\t0000000000000000\n"), "{status}");
        agents.push(next);
        // Everybody has asked this one.
        let asked = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = asked();
        wait_until("requests of everybody", || {
            let over = clients.iter().any(std::thread::JoinHandle::is_finished);
            let more = asked().iter().zip(before).all(|(now, before)| *now > before + 1);
            (over || more).then_some(())
        });
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap().unwrap_or_else(|failed| panic!("{failed}"));
    }
    let last = agents.pop().unwrap();
    agents.into_iter().for_each(Apart::ended);
    assert_eq!(ask(http, "a.example.com", "/").status, 200);
    let pid = last.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    last.ended();
}
