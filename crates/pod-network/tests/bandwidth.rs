//! Limits with real traffic: a limited flow passes far less in the same time than an unlimited one, in its direction only.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use telaio_netlink::links::Links;
use telaio_netlink::netns::Netns;
use telaio_netlink::tc::TrafficControl;
use telaio_pod_network::Bandwidth;
use telaio_pod_network::bandwidth::{self, limit_link};

const HOST_LINK: &str = "tlvtest00000001";
/// A mebibyte per second: far below what two namespaces pass each other on any machine.
const RATE: u64 = 8 << 20;
/// How long a machine under load may take to send anything.
const LONG: Duration = Duration::from_secs(30);
/// For how long each flow runs.
const TIME: Duration = Duration::from_millis(1500);

/// A node and an instance, each its namespace.
struct Pair {
    node: Netns,
    instance: Netns,
}

impl Pair {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |who: &str| format!("telaio-bw-{}-{number}-{who}", std::process::id());
        let pair = Self {
            node: Netns::create(&name("node")).unwrap(),
            instance: Netns::create(&name("instance")).unwrap(),
        };
        pair.node
            .run(|| {
                ip(&format!(
                    "link add {HOST_LINK} type veth peer name eth0 netns {}",
                    name("instance")
                ));
            })
            .unwrap();
        pair.node.run(|| ip(&format!("addr add 10.0.0.1/24 dev {HOST_LINK}"))).unwrap();
        pair.node.run(|| ip(&format!("link set {HOST_LINK} up"))).unwrap();
        pair.instance.run(|| ip("addr add 10.0.0.2/24 dev eth0")).unwrap();
        pair.instance.run(|| ip("link set eth0 up")).unwrap();
        pair
    }

    fn set(&self, limits: &Bandwidth) {
        self.node.run(|| bandwidth::set(HOST_LINK, limits)).unwrap().unwrap();
    }

    /// How many bytes pass into the instance.
    fn bytes_in(&self) -> u64 {
        passed(&self.node, &self.instance, "10.0.0.2:7777")
    }

    /// How many come out of it.
    fn bytes_out(&self) -> u64 {
        passed(&self.instance, &self.node, "10.0.0.1:7777")
    }

    fn links(&self) -> Vec<String> {
        let links = self.node.run(|| Links::open().unwrap().list().unwrap()).unwrap();
        links.into_iter().map(|link| link.name).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for netns in [&self.node, &self.instance] {
            let _ = Netns::remove(netns.name());
        }
    }
}

fn ip(command: &str) {
    let done = Command::new("ip").args(command.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {command}: {done:?}");
}

/// What arrives within the time, of all that can be sent.
fn passed(from: &Netns, to: &Netns, address: &str) -> u64 {
    let listener = to.run(|| TcpListener::bind(address)).unwrap().unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            from.run(|| {
                let mut stream = TcpStream::connect(address).unwrap();
                let bytes = vec![0; 64 << 10];
                // Until the other side has had enough.
                while stream.write_all(&bytes).is_ok() {}
            })
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let (begin, mut count) = (Instant::now(), 0);
        let mut buffer = vec![0; 256 << 10];
        while begin.elapsed() < TIME {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => count += len as u64,
                Err(error) => panic!("nothing comes any more: {error}"),
            }
        }
        drop(stream);
        sender.join().unwrap().unwrap();
        count
    })
}

/// Ten times less, and still something.
fn assert_limited(limited: u64, free: u64) {
    assert!(limited > 0 && limited * 10 < free, "{limited} bytes with, {free} without the limit");
}

#[test]
fn what_goes_into_an_instance_is_limited_and_nothing_else() {
    let pair = Pair::new();
    let free = pair.bytes_in();
    pair.set(&Bandwidth { ingress_rate: RATE, ..Bandwidth::default() });
    assert_limited(pair.bytes_in(), free);
    assert_limited(pair.bytes_in(), pair.bytes_out());
    assert!(!pair.links().contains(&limit_link(HOST_LINK)));
    pair.set(&Bandwidth::default());
    let limits = pair.node.run(|| TrafficControl::open().unwrap().limits().unwrap()).unwrap();
    assert_eq!(limits, []);
}

#[test]
fn what_comes_out_of_an_instance_is_limited_and_nothing_else() {
    let pair = Pair::new();
    let free = pair.bytes_out();
    // Twice: it takes the place of what was there.
    for rate in [RATE * 2, RATE] {
        pair.set(&Bandwidth { egress_rate: rate, egress_burst: 1 << 20, ..Bandwidth::default() });
    }
    assert_limited(pair.bytes_out(), free);
    assert_limited(pair.bytes_out(), pair.bytes_in());
    assert!(pair.links().contains(&limit_link(HOST_LINK)));
    pair.node.run(|| bandwidth::clear(HOST_LINK)).unwrap().unwrap();
    assert!(!pair.links().contains(&limit_link(HOST_LINK)));
    pair.node.run(|| bandwidth::clear(HOST_LINK)).unwrap().unwrap();
}

#[test]
fn both_ways_can_be_limited_and_a_link_that_is_not_there_is_named() {
    let pair = Pair::new();
    pair.set(&Bandwidth { ingress_rate: RATE, egress_rate: RATE, ..Bandwidth::default() });
    let limits = pair.node.run(|| TrafficControl::open().unwrap().limits().unwrap()).unwrap();
    assert_eq!(limits.len(), 2, "{limits:?}");
    assert!(limits.iter().all(|(_, bucket)| bucket.rate == RATE / 8), "{limits:?}");
    pair.set(&Bandwidth::default());
    assert!(!pair.links().contains(&limit_link(HOST_LINK)));
    let wanted = Bandwidth { ingress_rate: RATE, ..Bandwidth::default() };
    let error = pair.node.run(|| bandwidth::set("tlvnothere", &wanted)).unwrap().unwrap_err();
    assert!(error.to_string().contains("tlvnothere"), "{error}");
}
