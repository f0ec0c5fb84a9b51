//! The messages, and the real kernel in namespaces of their own.

use std::process::Command;

use super::*;
use crate::netns::Netns;
use crate::wire::Messages;

#[test]
fn a_deletion_names_the_link_by_its_number() {
    let request = delete_request(LinkIndex(7), 42);
    let message = Messages(request.finish().unwrap()).next().unwrap();
    assert_eq!((message.message_type, message.sequence), (RTM_DELLINK, 42));
    assert_eq!(message.body.len(), LINK_HEADER_LEN);
    assert_eq!(ne32(&message.body[4..]), Some(7));
}

#[test]
fn a_link_is_found_by_its_name_and_removed() {
    let name = format!("telaio-links-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(|| {
        let ip = |command: &str| {
            let done = Command::new("ip").args(command.split(' ')).output().unwrap();
            assert!(done.status.success(), "ip {command}: {done:?}");
            String::from_utf8(done.stdout).unwrap()
        };
        ip("link add west type veth peer name east");
        ip("link add stays type bridge");
        let mut links = Links::open().unwrap();
        let west = links.find("west").unwrap().unwrap();
        let listed = ip("-o link show west");
        assert!(listed.starts_with(&format!("{}: west", west.0)), "{listed}");
        assert!(links.delete(west).unwrap());
        assert!(!links.delete(west).unwrap(), "it is gone already");
        for gone in ["west", "east", "", "a-name-that-is-too-long"] {
            assert_eq!(links.find(gone).unwrap(), None, "{gone}");
        }
        assert!(links.find("stays").unwrap().is_some());
    });
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

#[test]
fn a_new_link_is_asked_for_by_its_kind() {
    let request = create_request("dummy7", &NewLink::Dummy, 42);
    let message = Messages(request.finish().unwrap()).next().unwrap();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    assert_eq!((message.message_type, message.flags), (RTM_NEWLINK, flags));
    let attributes = message.attributes(LINK_HEADER_LEN);
    assert_eq!(attributes.str(3), Some("dummy7"));
    assert_eq!(attributes.nested(18).unwrap().str(1), Some("dummy"));
}

#[test]
fn switching_touches_no_other_flag() {
    for (is_up, flags) in [(true, 1), (false, 0)] {
        let request = switch_request(LinkIndex(7), is_up, 42);
        let message = Messages(request.finish().unwrap()).next().unwrap();
        let numbers = [4, 8, 12].map(|at| ne32(&message.body[at..]).unwrap());
        assert_eq!(numbers, [7, flags, 1]);
    }
}

#[test]
fn half_a_link_and_a_bridge_s_word_about_its_port_are_none() {
    let told = |family: u8, number: u16, body_len: usize, name: Option<&str>| {
        let mut body = vec![0; body_len];
        body[0] = family;
        let mut request = Writer::new();
        request.begin(number, 0, 1, &body);
        if let Some(name) = name {
            request.put_str(IFLA_IFNAME, name);
        }
        request.end();
        link(&Messages(request.finish().unwrap()).next().unwrap())
    };
    let found = told(0, RTM_NEWLINK, LINK_HEADER_LEN, Some("west")).unwrap();
    assert_eq!((found.name.as_str(), found.kind.as_ref(), found.is_up()), ("west", None, false));
    assert_eq!(told(0, RTM_NEWLINK, LINK_HEADER_LEN, None), None);
    assert_eq!(told(0, RTM_NEWLINK, 4, Some("west")), None);
    assert_eq!(told(0, 20, LINK_HEADER_LEN, Some("west")), None);
    assert_eq!(told(libc::AF_BRIDGE as u8, RTM_DELLINK, LINK_HEADER_LEN, Some("west")), None);
}

#[test]
fn links_are_listed_and_switched() {
    let name = format!("telaio-links-list-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(|| {
        let mut links = Links::open().unwrap();
        let lo = links.get("lo").unwrap().unwrap();
        assert_eq!((lo.kind.as_deref(), lo.is_up(), lo.mtu), (None, false, 65_536));
        links.set_up(lo.index, true).unwrap();
        assert!(links.get("lo").unwrap().unwrap().is_up());
        let done = Command::new("ip").args(["link", "add", "west", "type", "bridge"]).status();
        assert!(done.unwrap().success());
        let listed = links.list().unwrap();
        let found = listed.iter().find(|link| link.name == "west").unwrap();
        assert_eq!(found.kind.as_deref(), Some("bridge"));
        assert_eq!(links.get("west").unwrap().as_ref(), Some(found));
        links.set_up(lo.index, false).unwrap();
        assert!(!links.get("lo").unwrap().unwrap().is_up());
        let error = links.set_up(LinkIndex(12_345), true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let error = links.create("west", &NewLink::Dummy).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(links.create("a-name-that-is-too-long", &NewLink::Dummy).is_err());
        assert!(links.create("", &NewLink::Dummy).is_err());
    });
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}
