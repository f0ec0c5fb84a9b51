//! Claims of ports, and which flows are stale.

use std::net::SocketAddr;

use telaio_netlink::conntrack::{STATUS_DESTINATION_NAT, Tuple};

use super::*;
use crate::state::Host;

fn record(container: &str, ports: &[Port]) -> Attachment {
    Attachment {
        network: "net".to_owned(),
        container: container.to_owned(),
        interface: "eth0".to_owned(),
        netns: String::new(),
        netns_name: None,
        host_link: String::new(),
        is_routed: false,
        is_chained: false,
        is_going: false,
        asked_mac: None,
        mac: String::new(),
        addresses: vec!["10.1.0.2/24".parse().unwrap()],
        ports: ports.to_vec(),
        bandwidth: None,
        pod: None,
    }
}

/// SCTP: whether somebody listens is not looked at.
fn port(number: u16) -> Port {
    Port::new(number, 80).with_protocol(Protocol::Sctp)
}

#[test]
fn a_claim_is_refused_with_its_holders_name_and_all_or_none_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let state = Host::new(dir.path()).state().unwrap();
    let (a, b) = (record("a", &[port(80)]), record("b", &[port(81), port(80).at([10, 0, 0, 1])]));
    for (key, it) in [("a", &a), ("b", &b)] {
        state.begin_attachment(key, it).unwrap().unwrap();
    }
    claim(&state, "a", &a).unwrap();
    claim(&state, "a", &a).unwrap();
    let error = claim(&state, "b", &b).unwrap_err().to_string();
    assert!(error.contains("80/sctp is taken by instance a"), "{error}");
    assert!(claimed(&state, &b).is_empty(), "none of them");
    release(&state, &b).unwrap();
    assert_eq!(claimed(&state, &a).len(), 1, "another's is not given back");
    release(&state, &a).unwrap();
    claim(&state, "b", &b).unwrap();
    assert_eq!(claimed(&state, &b).len(), 2);
}

#[test]
fn a_process_that_listens_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = Port::new(listener.local_addr().unwrap().port(), 80).at(Ipv4Addr::LOCALHOST);
    let error = refuse_if_listened_to(&taken, &record("a", &[taken])).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    drop(listener);
}

fn flow(to: &str, served_by: &str, protocol: u8, status: u32) -> Flow {
    let client: SocketAddr = "192.0.2.9:4000".parse().unwrap();
    let original = Tuple { source: client, destination: to.parse().unwrap(), protocol };
    let reply = Tuple { source: served_by.parse().unwrap(), destination: client, protocol };
    Flow { original, reply, status, zone: 0, id: None, tcp_state: None }
}

#[test]
fn flows_are_stale_that_end_here_or_at_the_instance_and_no_others() {
    const UDP: u8 = 17;
    const TCP: u8 = 6;
    let own: HashSet<IpAddr> = [[10, 0, 0, 1].into()].into();
    let udp = Port::new(53, 5353).with_protocol(Protocol::Udp);
    let it = record("a", &[udp, Port::new(80, 8080)]);
    let nat = STATUS_DESTINATION_NAT;
    let cases = [
        (true, flow("10.0.0.1:53", "10.0.0.1:53", UDP, 0), "it ended here"),
        (true, flow("127.0.0.1:53", "127.0.0.1:53", UDP, 0), "and at localhost"),
        (true, flow("10.0.0.1:53", "10.1.0.2:5353", UDP, nat), "it went to the instance"),
        (false, flow("10.0.0.1:53", "10.1.0.9:5353", UDP, nat), "a service has sent it elsewhere"),
        (false, flow("198.51.100.1:53", "198.51.100.1:53", UDP, 0), "it passes by"),
        (false, flow("10.0.0.1:54", "10.0.0.1:54", UDP, 0), "another port"),
        (true, flow("10.0.0.1:80", "10.0.0.1:80", TCP, 0), "asked in vain"),
        (
            false,
            flow("10.0.0.1:80", "10.0.0.1:80", TCP, STATUS_ASSURED),
            "a connection that stands",
        ),
        (true, flow("10.0.0.1:80", "10.1.0.2:8080", TCP, nat | STATUS_ASSURED), "to the instance"),
        (false, flow("10.0.0.1:80", "10.0.0.1:80", UDP, 0), "another protocol"),
    ];
    for (expected, flow, why) in cases {
        assert_eq!(is_stale(&flow, &own, &it), expected, "{why}");
    }
}
