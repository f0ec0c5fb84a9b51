//! The messages, and the real kernel in namespaces of their own.

use std::process::Command;

use super::*;
use crate::links::Links;
use crate::netns::Netns;

#[test]
fn lists_the_addresses_that_ip_has_set_and_no_peers() {
    let name = format!("telaio-addresses-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let found = netns.run(|| {
        for command in [
            "link set lo up",
            "link add west type veth peer name east",
            "address add 192.0.2.1 peer 192.0.2.2 dev west",
            "address add 198.51.100.7/24 dev east",
            "address add 2001:db8::7/64 dev east nodad",
        ] {
            let done = Command::new("ip").args(command.split(' ')).status().unwrap();
            assert!(done.success(), "ip {command}");
        }
        let east = Links::open().unwrap().find("east").unwrap().unwrap();
        [own_addresses().unwrap(), addresses_of(east).unwrap()]
    });
    Netns::remove(&name).unwrap();
    let [found, of_east] = found
        .unwrap()
        .map(|addresses| addresses.iter().map(ToString::to_string).collect::<Vec<String>>());
    assert_eq!(of_east, ["198.51.100.7", "2001:db8::7"]);
    assert_eq!(found, ["127.0.0.1", "192.0.2.1", "198.51.100.7", "::1", "2001:db8::7"]);
}

#[test]
fn an_address_has_the_form_that_the_kernel_knows() {
    let written = |ip: &str| {
        let mut request = Writer::new();
        put(&mut request, RTM_NEWADDR, NLM_F_REQUEST, 42, LinkIndex(7), ip.parse().unwrap());
        request.finish().unwrap().to_vec()
    };
    let bytes = written("192.0.2.1");
    let message = crate::wire::Messages(&bytes).next().unwrap();
    assert_eq!(message.body[..4], [2, 32, 0, 0]);
    assert_eq!(ne32(&message.body[4..]), Some(7));
    let attributes: Vec<_> = message.attributes(ADDRESS_HEADER_LEN).into_iter().collect();
    let ip = &[192, 0, 2, 1][..];
    assert_eq!(attributes, [(2, ip), (1, ip)]);

    let bytes = written("2001:db8::1");
    let message = crate::wire::Messages(&bytes).next().unwrap();
    assert_eq!(message.body[..4], [10, 128, 0, 0]);
    assert_eq!(message.attributes(ADDRESS_HEADER_LEN).ne32(8), Some(0x202));
    let expected =
        LinkAddress { link: LinkIndex(7), ip: "2001:db8::1".parse().unwrap(), prefix_len: 128 };
    assert_eq!(link_address(&message), Some(expected));
    for length in 0..message.body.len() {
        let cut = Message { body: &message.body[..length], ..message };
        assert!(link_address(&cut).is_none_or(|it| it == expected));
    }
}

#[test]
fn addresses_are_added_and_removed_as_ip_reads_them() {
    let name = format!("telaio-addresses-add-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(|| {
        let ip = |command: &str| {
            let done = Command::new("ip").args(command.split(' ')).output().unwrap();
            assert!(done.status.success(), "ip {command}: {done:?}");
            String::from_utf8(done.stdout).unwrap()
        };
        ip("link add west type bridge");
        ip("link set west up");
        let west = Links::open().unwrap().find("west").unwrap().unwrap();
        let ips: Vec<IpAddr> =
            ["10.96.0.1", "fd00:10:96::1"].iter().map(|ip| ip.parse().unwrap()).collect();
        let mut addresses = Addresses::open().unwrap();
        assert!(addresses.add(west, &ips).unwrap().is_empty());
        assert!(addresses.add(west, &ips).unwrap().is_empty(), "they are there");
        let listed = ip("-o address show dev west");
        assert!(listed.contains("inet 10.96.0.1/32 scope global"), "{listed}");
        let v6 = listed.lines().find(|line| line.contains("fd00:10:96::1/128")).unwrap();
        let usable = v6.contains("nodad") && !v6.contains("tentative");
        assert!(usable && v6.contains("noprefixroute"), "{v6}");
        // No route but those to the addresses themselves.
        assert_eq!(ip("route show dev west"), "");
        assert!(!ip("-6 route show dev west").contains("fd00"));
        let found: Vec<_> = addresses.list().unwrap();
        let found: Vec<_> = found.iter().filter(|it| ips.contains(&it.ip)).collect();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|it| it.link == west));

        assert!(addresses.delete(west, &ips).unwrap().is_empty());
        assert!(addresses.delete(west, &ips).unwrap().is_empty(), "they are gone");
        assert!(!ip("-o address show dev west").contains("10:96"));
        ip("link delete west");
        assert!(addresses.delete(west, &ips).unwrap().is_empty(), "the link is gone");
        assert_eq!(addresses.add(west, &ips).unwrap().len(), 2);
        assert_eq!(addresses.commands(), 12);
    });
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}
