//! Node ports on loopback, beyond who answers there: what is left when nobody serves them, and who
//! keeps strangers out where loopback addresses are routed.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use telaio_testkit::netns::{Cluster, Family, Host, Outcome, Place, Transport};

use crate::manifest::{Service, node_port};
use crate::node::{Backend, Node};
use crate::support::{PATIENCE, run, telaio};
use crate::switch::traces;

fn service() -> Service {
    Service::new("plain", 1).node_port().endpoints("a1 b1")
}

fn localhost(family: Family) -> SocketAddr {
    let address = family.pick(Ipv4Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
    SocketAddr::new(address, node_port(1))
}

#[test]
fn an_agent_that_runs_once_leads_nobody_to_a_listener_that_is_gone() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::new(&cluster, Backend::Nftables, &[service()]);
    let once = |node: &Node<'_>| {
        let ended = node.run_to_end(node.run_command().arg("--once"));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let rules = node.output("nft", &["list", "ruleset"]);
        assert!(rules.contains("10.244.1.11") && !rules.contains("redirect"), "{rules}");
        for family in Family::ALL {
            let outcome = node.ask(Place::of(Host::NodeA), localhost(family), Transport::Tcp);
            assert_eq!(outcome, Outcome::Refused, "{family:?}");
            let to = SocketAddr::new(Host::NodeA.address(family), node_port(1));
            let outcome = node.ask(Place::of(Host::Outside), to, Transport::Tcp);
            assert!(outcome.by().is_some(), "{to}: {outcome}");
        }
    };
    once(&node);
    // Nor does it keep what one that stayed has left.
    node.start();
    node.settle();
    assert!(node.output("nft", &["list", "ruleset"]).contains("redirect"));
    node.end();
    once(&node);
}

/// A loopback address of node-a that node-b has a way to.
const VICTIM: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77)), 4711);

/// Lets node-b send packets to node-a's loopback, as a stranger on the same network can.
fn open_the_way(cluster: &Cluster) {
    let script = "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet\n\
                  ip route add 127.0.0.77 via 192.168.50.11 dev lan0 src 192.168.50.12 table local";
    let ended = cluster.on(Host::NodeB, || run(Command::new("sh").args(["-ec", script])));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Sets a flag when it goes, panic or not: whoever waits for it would wait for ever.
struct Sets<'f>(&'f AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn route_localnet(node: &Node<'_>) -> String {
    let path = "/proc/sys/net/ipv4/conf/all/route_localnet";
    node.output("cat", &[path]).trim().to_owned()
}

#[test]
fn a_connection_by_localhost_outlives_a_switch_to_nftables_and_strangers_stay_out() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::IptablesLegacy, &[service()]);
    let conversation = cluster.connect(Place::of(Host::NodeA), localhost(Family::V4)).unwrap();
    assert!(conversation.greeting().unwrap().by().is_some());
    open_the_way(&cluster);
    let victim = cluster.on(Host::NodeA, || UdpSocket::bind(VICTIM)).unwrap();
    victim.set_nonblocking(true).unwrap();
    let heard = || victim.recv_from(&mut [0; 16]).is_ok();
    let stranger = cluster.on(Host::NodeB, || UdpSocket::bind("192.168.50.12:0")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_the_end = Sets(&done);
        let sender = scope.spawn(|| {
            let mut sent = 0_u32;
            while !done.load(Ordering::Relaxed) {
                sent += u32::from(stranger.send_to(b"hello", VICTIM).is_ok());
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        node.end();
        node.backend = Backend::Nftables;
        node.start();
        node.settle();
        node.wait_until("end of the old rules", || {
            traces(&node, Backend::IptablesLegacy).is_empty()
        });
        conversation.echo(b"still there?").unwrap();
        assert_eq!(route_localnet(&node), "1", "connections of before need it");
        let outcome = node.ask(Place::of(Host::NodeA), localhost(Family::V4), Transport::Tcp);
        assert!(outcome.by().is_some(), "{outcome}");
        done.store(true, Ordering::Relaxed);
        assert!(sender.join().unwrap() > 10, "a stranger who says nothing proves nothing");
    });
    assert!(!heard(), "a stranger reached loopback");

    node.end();
    let ended = node.run_to_end(telaio().args(["cleanup", &node.state_dir()]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(route_localnet(&node), "0", "nobody needs it any more");
    // It was the rules that kept the stranger out: without them he is heard.
    node.output("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet"]);
    let deadline = std::time::Instant::now() + PATIENCE;
    while !heard() {
        assert!(std::time::Instant::now() < deadline, "there is no way from node-b to loopback");
        stranger.send_to(b"hello", VICTIM).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}
