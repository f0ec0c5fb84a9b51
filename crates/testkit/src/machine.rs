//! Machines that are threads: each with a network and a file system tree of its own.
//!
//! What runs on a [`Machine`] sees an empty `/run` and `/var/lib`, and no link but loopback and those that
//! [`connect`] laid. Programs that are started there are there, too. So a test can have many nodes, each with the
//! state directory and the named namespaces that a real one has, and nothing of it outlives the test.
//!
//! ```no_run
//! use telaio_testkit::machine::{Machine, connect};
//!
//! let (a, b) = (Machine::start("a"), Machine::start("b"));
//! connect(&a, "lan0", "192.168.7.1/24", &b, "lan0", "192.168.7.2/24");
//! a.run(|| std::net::TcpStream::connect("192.168.7.2:80")).unwrap_err();
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test that has no machine has failed; there is nobody else to tell"
)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use telaio_netlink::netns::{Netns, isolate_thread};

/// Directories that every machine has for itself.
const OWN_DIRECTORIES: [&str; 2] = ["/run", "/var/lib"];

type Work = Box<dyn FnOnce() + Send>;

/// A machine.
#[derive(Debug)]
pub struct Machine {
    name: String,
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    netns: Arc<Netns>,
}

impl Machine {
    /// Starts one. Needs root.
    pub fn start(name: &str) -> Self {
        let (work, todo): (Sender<Work>, Receiver<Work>) = channel();
        let (ready, is_ready) = channel();
        let body = move || {
            isolate();
            ready.send(Netns::current().unwrap()).unwrap();
            for work in todo {
                work();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
        let netns = is_ready.recv().expect("a machine needs root");
        Self {
            name: name.to_owned(),
            work: Some(work),
            thread: Some(thread),
            netns: Arc::new(netns),
        }
    }

    /// Runs `work` there and waits for it. It panics when `work` does, as a test should.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = channel();
        let caught = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            _ = done.send(outcome);
        };
        self.work.as_ref().unwrap().send(Box::new(caught)).unwrap();
        match outcome.recv().unwrap() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Starts a thread there that goes on by itself.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // A new thread is where the thread is that starts it.
        self.run(move || std::thread::spawn(work))
    }

    /// Runs a program there, given as a line; its output. A program that fails is a test that fails.
    pub fn sh(&self, line: &str) -> String {
        let (name, owned) = (self.name.clone(), line.to_owned());
        self.run(move || {
            let done = Command::new("sh").args(["-c", &owned]).output().unwrap();
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            let errors = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{name}: {owned}: {}{text}{errors}", done.status);
            text
        })
    }

    /// Whether a program succeeds there.
    pub fn try_sh(&self, line: &str) -> bool {
        let line = line.to_owned();
        self.run(move || Command::new("sh").args(["-c", &line]).output().unwrap().status.success())
    }

    /// Its network.
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Lays a cable between two machines: a link with an address (or several, by comma) on each.
pub fn connect(a: &Machine, link: &str, addresses: &str, b: &Machine, there: &str, others: &str) {
    use std::os::fd::AsFd;
    use telaio_netlink::rtnl::{PeerPlace, Request, Rtnetlink, Veth};
    let (here, peer_name, netns) = (link.to_owned(), there.to_owned(), Arc::clone(&b.netns));
    a.run(move || {
        let peer = PeerPlace { name: &peer_name, netns: Some(netns.as_fd()), mac: None };
        let veth =
            Veth { name: &here, mac: None, mtu: None, master: None, group: 0, is_up: true, peer };
        Rtnetlink::open().unwrap().all([Request::Veth(veth)]).unwrap();
    });
    b.sh(&format!("ip link set {there} up"));
    for (machine, link, addresses) in [(a, link, addresses), (b, there, others)] {
        for address in addresses.split(',').filter(|address| !address.is_empty()) {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            machine.sh(&format!("ip address add {address} dev {link}{nodad}"));
        }
    }
}

/// Makes the calling thread a machine for good, with a link `uplink0` (192.168.77.2/24) that the default route
/// leads to: for examples in documentation.
pub fn become_one() -> Result<(), String> {
    isolate();
    let script = "ip link add uplink0 type veth peer name nowhere && ip link set uplink0 up && \
                  ip link set nowhere up && ip address add 192.168.77.2/24 dev uplink0 && \
                  ip route add default via 192.168.77.1";
    let done = Command::new("sh").args(["-c", script]).output().map_err(|it| it.to_string())?;
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(errors) }
}

fn isolate() {
    let directories = OWN_DIRECTORIES.map(Path::new);
    isolate_thread(&directories).expect("a machine needs root");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
}
