//! Requests to the kernel, and what it then lists. On threads with a network of their own; they need root.

use std::os::fd::AsFd;

use super::*;
use crate::netns::{Netns, isolate_thread};

/// Runs on a thread with a network of its own.
fn alone<T: Send + 'static>(work: impl FnOnce(&mut Rtnetlink) -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        isolate_thread(&[]).expect("it needs root");
        work(&mut Rtnetlink::open().unwrap())
    });
    thread.join().unwrap()
}

#[test]
fn hardware_addresses_are_read_as_they_are_written() {
    let mac: Mac = "0a:58:0A:01:00:ff".parse().unwrap();
    assert_eq!(mac.to_string(), "0a:58:0a:01:00:ff");
    assert_eq!("0a-58-0a-01-00-ff".parse(), Ok(mac));
    for bad in ["", "0a:58", "0a:58:0a:01:00:ff:00", "0a:58:0a:01:00:fg", "01:00:00:00:00:01"] {
        assert!(bad.parse::<Mac>().unwrap_err().contains("hardware address"), "{bad}");
    }
}

#[test]
fn a_pair_with_its_end_elsewhere_its_bridge_and_its_neighbours_are_there_as_asked() {
    alone(|kernel| {
        let here = Netns::current().unwrap();
        let there = std::thread::spawn(|| {
            isolate_thread(&[]).unwrap();
            Netns::current().unwrap()
        });
        let there = there.join().unwrap();
        assert!(!there.is_same_as(&here).unwrap());
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let bridge = Bridge { name: "br7", mac: Some(mac), group: 77, ..Bridge::default() };
        kernel
            .all([Request::Bridge(bridge), Request::Set(SetLink::up(Which::Name("br7")))])
            .unwrap();
        let bridge = kernel.link("br7").unwrap().unwrap();
        assert_eq!((bridge.mac, bridge.group, bridge.is_up()), (Some(mac), 77, true));
        let peer = PeerPlace { name: "eth7", netns: Some(there.as_fd()), mac: Some(mac) };
        let veth = Veth {
            name: "veth7",
            mac: None,
            mtu: Some(1400),
            master: Some(bridge.index),
            group: 7,
            is_up: false,
            peer,
        };
        kernel.all([Request::Veth(veth)]).unwrap();
        let again = kernel.all([Request::Veth(veth)]).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
        let mut other = Rtnetlink::open_in(&there).unwrap().unwrap();
        let end = other.link("eth7").unwrap().unwrap();
        assert_eq!((end.mac, end.mtu, end.is_up()), (Some(mac), 1400, false));
        let ip: IpAddr = "10.7.0.2".parse().unwrap();
        let neighbour = Neighbour { link: bridge.index, ip, mac };
        let address = Address {
            link: bridge.index,
            ip: "10.7.0.1".parse().unwrap(),
            prefix_len: 24,
            no_prefix_route: false,
        };
        kernel.all([Request::AddAddress(address), Request::ReplaceNeighbour(neighbour)]).unwrap();
        assert!(kernel.neighbours().unwrap().contains(&neighbour));
        let route = Route::by("10.8.0.0".parse().unwrap(), 16, ip, bridge.index);
        kernel.all([Request::AddRoute(route), Request::ReplaceRoute(route)]).unwrap();
        let is_it = |it: &Route| {
            (it.destination, it.prefix_len, it.gateway) == (route.destination, 16, Some(ip))
        };
        assert!(kernel.routes().unwrap().iter().any(is_it));
        kernel.all([Request::DeleteRoute(route), Request::DeleteNeighbour(neighbour)]).unwrap();
        assert!(!kernel.routes().unwrap().iter().any(is_it));
        kernel.all([Request::DeleteGroup(7)]).unwrap();
        assert!(kernel.link("veth7").unwrap().is_none() && other.link("eth7").unwrap().is_none());
    });
}

#[test]
fn a_refusal_stops_none_of_the_others_and_can_be_passed_over() {
    alone(|kernel| {
        let make = |name| Request::Bridge(Bridge { name, ..Bridge::default() });
        let gone = Request::DeleteLink(Which::Name("nobody"));
        let failures = kernel.carry_out([make("br1"), gone, make("br2")]).unwrap();
        assert_eq!(failures.len(), 1);
        assert!(kernel.link("br2").unwrap().is_some());
        kernel.all_but(&[libc::ENODEV], [gone]).unwrap();
        assert_eq!(kernel.all([gone]).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    });
}
