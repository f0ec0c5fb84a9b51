//! Requests to a kernel that refuses some of them, in namespaces of their own.

use std::net::{IpAddr, Ipv4Addr};

use crate::addresses::Addresses;
use crate::links::{LinkIndex, Links};
use crate::netns::Netns;

/// Runs in a namespace of its own that is gone afterwards.
fn apart(name: &str, work: impl FnOnce() + Send) {
    let name = format!("telaio-batch-{name}-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(work);
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

fn ip(number: usize) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + number as u32).into()
}

fn loopback() -> LinkIndex {
    Links::open().unwrap().find("lo").unwrap().unwrap()
}

#[test]
fn what_is_refused_is_known_by_its_place_in_every_piece() {
    apart("places", || {
        let mut addresses = Addresses::open().unwrap();
        let mut ips: Vec<_> = (0..1500).map(ip).collect();
        // No machine can have them. At the ends of all and of pieces, and beside each other.
        let bad = [0, 1, 511, 512, 700, 1499];
        for place in bad {
            ips[place] = "ff02::1".parse().unwrap();
        }
        let failures = addresses.add(loopback(), &ips).unwrap();
        let places: Vec<_> = failures.iter().map(|failure| failure.index).collect();
        assert_eq!(places, bad);
        assert_eq!(addresses.list().unwrap().len(), 1500 - bad.len());
        assert_eq!(addresses.commands(), 1500);
    });
}

#[test]
fn answers_have_room_even_if_everything_is_refused() {
    apart("room", || {
        let nowhere = LinkIndex(12_345);
        let ips: Vec<_> = (0..5000).map(ip).collect();
        let failures = Addresses::open().unwrap().add(nowhere, &ips).unwrap();
        let places: Vec<_> = failures.iter().map(|failure| failure.index).collect();
        assert_eq!(places, (0..5000).collect::<Vec<_>>());
        let error = &failures[4999].error;
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    });
}

#[test]
fn places_are_right_also_where_numbers_begin_anew() {
    use crate::socket::{Protocol, Socket};
    apart("wrap", || {
        let mut socket = Socket::open(Protocol::Route).unwrap();
        socket.start_sequence_at(u32::MAX - 3);
        // An address of no link is refused; a control message does nothing.
        let (new_address, nothing) = (20, 10);
        let failures = socket
            .carry_out(0..8, "testing", |request, flags, sequence, number| {
                let kind = if number % 2 == 0 { new_address } else { nothing };
                request.begin(kind, flags, sequence, &[2, 32, 0, 0, 0, 0, 0, 0]);
                request.end();
            })
            .unwrap();
        let places: Vec<_> = failures.iter().map(|failure| failure.index).collect();
        assert_eq!(places, [0, 2, 4, 6]);
    });
}

#[test]
fn nothing_to_do_is_nothing_sent() {
    apart("none", || {
        let mut addresses = Addresses::open().unwrap();
        assert!(addresses.add(LinkIndex(12_345), &[]).unwrap().is_empty());
        assert_eq!(addresses.commands(), 0);
    });
}
