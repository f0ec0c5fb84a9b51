//! What the kernel tells of addresses and links that others change.

use std::net::IpAddr;
use std::process::Command;

use super::*;
use crate::addresses::Addresses;
use crate::links::{LinkIndex, Links};
use crate::netns::Netns;

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs in a namespace of its own that is gone afterwards.
fn apart(name: &str, work: impl FnOnce() + Send) {
    let name = format!("telaio-watch-{name}-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(work);
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

fn ip(command: &str) {
    let done = Command::new("ip").args(command.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {command}: {done:?}");
}

/// Reads notices until there is such a change; tells those before it.
fn until(watcher: &mut Watcher, is_it: impl Fn(&Change) -> bool) -> Vec<Change> {
    let mut before = Vec::new();
    loop {
        let notice = watcher.next(PATIENCE).unwrap().expect("a change is told in time");
        assert!(!notice.lost);
        for change in notice.changes {
            if is_it(&change) {
                return before;
            }
            before.push(change);
        }
    }
}

fn is_at(address: &LinkAddress, link: LinkIndex, ip: &str) -> bool {
    address.link == link && address.ip == ip.parse::<IpAddr>().unwrap()
}

#[test]
fn addresses_and_links_of_others_come_and_go() {
    apart("all", || {
        let mut watcher = Watcher::open(None).unwrap();
        assert_eq!(watcher.next(Duration::ZERO).unwrap(), None);
        ip("link add west type bridge");
        until(&mut watcher, |it| matches!(it, Change::LinkCame(link) if link.name == "west"));
        let west = Links::open().unwrap().find("west").unwrap().unwrap();
        ip("link set west up");
        until(&mut watcher, |it| matches!(it, Change::LinkCame(link) if link.is_up()));
        for address in ["192.0.2.1", "2001:db8::1"] {
            ip(&format!("address add {address} dev west"));
            let came =
                |it: &Change| matches!(it, Change::AddressCame(it) if is_at(it, west, address));
            until(&mut watcher, came);
            ip(&format!("address delete {address} dev west"));
            let went =
                |it: &Change| matches!(it, Change::AddressWent(it) if is_at(it, west, address));
            until(&mut watcher, went);
        }
        ip("link delete west");
        until(&mut watcher, |it| matches!(it, Change::LinkWent(link) if link.index == west));
    });
}

#[test]
fn our_own_addresses_of_ipv4_are_no_news() {
    apart("own", || {
        let lo = Links::open().unwrap().find("lo").unwrap().unwrap();
        let mut addresses = Addresses::open().unwrap();
        let mut watcher = Watcher::open(Some(addresses.port())).unwrap();
        let mut all = Watcher::open(None).unwrap();
        addresses.add(lo, &["192.0.2.1".parse().unwrap()]).unwrap();
        ip("address add 192.0.2.2 dev lo");
        let is_last =
            |it: &Change| matches!(it, Change::AddressCame(it) if is_at(it, lo, "192.0.2.2"));
        assert_eq!(until(&mut watcher, is_last), []);
        assert_eq!(until(&mut all, is_last).len(), 1, "who ignores nobody is told");
    });
}

#[test]
fn what_was_lost_is_told() {
    apart("lost", || {
        let lo = Links::open().unwrap().find("lo").unwrap().unwrap();
        let mut watcher = Watcher::open(None).unwrap();
        watcher.socket.set_receive_buffer(4096).unwrap();
        let ips: Vec<IpAddr> =
            (0..500_u32).map(|it| std::net::Ipv4Addr::from(0x0a00_0000 + it).into()).collect();
        assert!(Addresses::open().unwrap().add(lo, &ips).unwrap().is_empty());
        let notice = watcher.next(PATIENCE).unwrap().unwrap();
        assert!(notice.lost && notice.changes.len() < 500, "{notice:?}");
    });
}
