//! Against the real kernel, in namespaces of their own, and compared with conntrack(8).

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use super::*;
use crate::netns::Netns;

/// A namespace that is removed at the end, also of a test that fails.
struct Place {
    netns: Netns,
}

impl Place {
    fn new(name: &str) -> Self {
        let netns = Netns::create(&format!("telaio-ct-{name}-{}", std::process::id())).unwrap();
        let place = Self { netns };
        place.shell("ip link set lo up");
        // Tracking begins with the first rule that asks for it.
        place.shell(
            "nft 'table inet t { chain out { type nat hook output priority -100; \
             ip daddr 127.0.0.9 udp dport 5000 dnat to 127.0.0.1:6000; \
             ip6 daddr ::1 udp dport 5000 dnat to [::1]:6000; }; }'",
        );
        place
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run(work).unwrap()
    }

    fn shell(&self, command: &str) -> String {
        let output = self.run(|| Command::new("sh").args(["-ec", command]).output().unwrap());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Netns::remove(self.netns.name());
    }
}

fn listed(selection: Selection) -> Vec<Flow> {
    let mut found = Vec::new();
    let each = |flow: &Flow| {
        found.push(*flow);
        Ok(())
    };
    Conntrack::open().unwrap().each(selection, each).unwrap();
    found.sort_by_key(|flow| flow.original);
    found
}

fn send(from: &str, to: &str) -> SocketAddr {
    let socket = UdpSocket::bind(from).unwrap();
    socket.send_to(b"hello", to).unwrap();
    socket.local_addr().unwrap()
}

#[test]
fn lists_what_a_flow_asked_for_and_who_serves_it() {
    let place = Place::new("list");
    place.run(|| {
        let server = UdpSocket::bind("127.0.0.1:6000").unwrap();
        let server6 = UdpSocket::bind("[::1]:6000").unwrap();
        for (family, from, to, served_by) in [
            (Family::V4, "127.0.0.1:0", "127.0.0.9:5000", server.local_addr().unwrap()),
            (Family::V6, "[::1]:0", "[::1]:5000", server6.local_addr().unwrap()),
        ] {
            let client = send(from, to);
            let flows = listed(Selection { protocol: Some(UDP), ..Selection::family(family) });
            let [flow] = flows[..] else { panic!("{flows:?}") };
            assert_eq!(
                flow.original,
                Tuple { source: client, destination: to.parse().unwrap(), protocol: UDP }
            );
            assert_eq!(flow.reply.source, served_by);
            assert!(flow.is_destination_nat());
            assert_eq!(flow.status & STATUS_SEEN_REPLY, 0);
            assert!(flow.id.is_some());
        }
    });
}

#[test]
fn selects_by_protocol_and_by_status() {
    let place = Place::new("select");
    place.run(|| {
        let _server = UdpSocket::bind("127.0.0.1:6000").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        send("127.0.0.1:0", "127.0.0.9:5000");
        send("127.0.0.1:0", "127.0.0.1:6000");
        let all = Selection::family(Family::V4);
        assert_eq!(listed(all).len(), 3);
        let tcp = listed(Selection { protocol: Some(TCP), ..all });
        assert_eq!(tcp.len(), 1);
        assert_eq!(tcp[0].original.source, stream.local_addr().unwrap());
        assert!(tcp[0].is_open(), "{tcp:?}");
        drop((stream, listener));
        let closed = listed(Selection { protocol: Some(TCP), ..all });
        assert!(closed.iter().all(|flow| !flow.is_open()), "{closed:?}");
        let changed = listed(Selection { status: STATUS_DESTINATION_NAT, ..all });
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].original.destination.to_string(), "127.0.0.9:5000");
        assert!(listed(Selection::family(Family::V6)).is_empty());
    });
}

#[test]
fn the_kernel_itself_selects() {
    let place = Place::new("kernel");
    place.run(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        send("127.0.0.1:0", "127.0.0.9:5000");
        let told = |selection| {
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            let sequence = socket.next_sequence();
            let request = list_request(selection, sequence);
            socket.send(request.finish().unwrap(), "test").unwrap();
            let mut messages = 0;
            let each = |_: &Message<'_>| {
                messages += 1;
                Ok(())
            };
            socket.list(sequence, "test", each).unwrap();
            messages
        };
        let all = Selection::family(Family::V4);
        assert_eq!(told(all), 2);
        assert_eq!(told(Selection { protocol: Some(TCP), ..all }), 1);
        assert_eq!(told(Selection { status: STATUS_DESTINATION_NAT, ..all }), 1);
        let neither = Selection { protocol: Some(TCP), status: STATUS_DESTINATION_NAT, ..all };
        assert_eq!(told(neither), 0);
    });
}

#[test]
fn deletes_one_flow_and_no_other_and_says_when_it_was_gone() {
    let place = Place::new("delete");
    let all = Selection::family(Family::V4);
    let (gone, stays) = place.run(|| {
        let _server = UdpSocket::bind("127.0.0.1:6000").unwrap();
        (send("127.0.0.1:0", "127.0.0.9:5000"), send("127.0.0.1:0", "127.0.0.1:6000"))
    });
    place.run(|| {
        let flow = *listed(all).iter().find(|flow| flow.original.source == gone).unwrap();
        let mut conntrack = Conntrack::open().unwrap();
        let another = Flow { id: flow.id.map(|id| id ^ 1), ..flow };
        assert!(!conntrack.delete(&another).unwrap(), "a later flow of the same addresses stays");
        assert!(conntrack.delete(&flow).unwrap());
        assert!(!conntrack.delete(&flow).unwrap());
    });
    let told = place.shell("conntrack -L -p udp 2>/dev/null");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains(&format!("sport={}", stays.port())), "{told}");
}

#[test]
fn deletes_while_a_long_list_is_read() {
    let place = Place::new("many");
    place.run(|| {
        // Far more than one datagram of the list holds.
        let ports = 20_000..22_000;
        for port in ports.clone() {
            let socket = UdpSocket::bind(("127.0.0.1", port)).unwrap();
            socket.send_to(b"x", "127.0.0.9:5000").unwrap();
        }
        let udp = Selection { protocol: Some(UDP), ..Selection::family(Family::V4) };
        let mut delete = Conntrack::open().unwrap();
        let mut deleted = 0;
        let each = |flow: &Flow| {
            deleted += usize::from(delete.delete(flow)?);
            Ok(())
        };
        Conntrack::open().unwrap().each(udp, each).unwrap();
        assert_eq!(deleted, ports.len());
        assert!(listed(udp).is_empty());
    });
}
