//! The messages, and the real kernel in namespaces of their own, filled and read by ipset(8).

use std::process::Command;

use super::*;
use crate::netns::Netns;
use crate::wire::Messages;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// Runs in a namespace of its own that is gone afterwards.
fn apart(name: &str, work: impl FnOnce() + Send) {
    let name = format!("telaio-ipset-{name}-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(work);
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn members(ipset: &mut Ipset, name: &str) -> Vec<Member> {
    let mut found = Vec::new();
    ipset.each_member(name, |member| found.push(member)).unwrap();
    found.sort();
    found
}

#[test]
fn a_destruction_always_names_a_set() {
    for name in ["blue", ""] {
        let request = destroy_request(name, 42);
        let message = Messages(request.finish().unwrap()).next().unwrap();
        assert_eq!((message.message_type, message.sequence), (0x0603, 42));
        assert_eq!(attributes(&message).u8(ATTR_PROTOCOL), Some(6));
        assert_eq!(attributes(&message).str(ATTR_SET_NAME), Some(name));
    }
}

#[test]
fn lists_what_ipset_has_made() {
    apart("list", || {
        let mut ipset = Ipset::open().unwrap();
        assert_eq!(ipset.names().unwrap(), [""; 0]);
        shell(
            "ipset create ports bitmap:port range 0-65535
             ipset add ports 30080
             ipset add ports 1-3000
             ipset create places hash:ip,port
             ipset add places 192.0.2.1,tcp:80
             ipset add places 192.0.2.1,sctp:81
             ipset create places6 hash:ip,port family inet6
             ipset add places6 2001:db8::1,udp:53
             ipset create loops hash:ip,port,ip
             ipset add loops 192.0.2.1,tcp:80,192.0.2.2",
        );
        let mut names = ipset.names().unwrap();
        names.sort();
        assert_eq!(names, ["loops", "places", "places6", "ports"]);

        // More than one message has room for.
        let ports: Vec<_> =
            members(&mut ipset, "ports").iter().map(|it| it.port.unwrap()).collect();
        assert_eq!(ports, (1..=3000).chain([30080]).collect::<Vec<u16>>());
        let at = |ip: &str, protocol, port| Member {
            ip: Some(ip.parse().unwrap()),
            port: Some(port),
            protocol: Some(protocol),
        };
        let expected = [at("192.0.2.1", TCP, 80), at("192.0.2.1", SCTP, 81)];
        assert_eq!(members(&mut ipset, "places"), expected);
        assert_eq!(members(&mut ipset, "places6"), [at("2001:db8::1", UDP, 53)]);
        assert_eq!(members(&mut ipset, "loops"), [at("192.0.2.1", TCP, 80)]);
        assert_eq!(members(&mut ipset, "absent"), []);
    });
}

#[test]
fn destroys_one_set_unless_a_rule_needs_it() {
    apart("destroy", || {
        shell(
            "ipset create blue hash:ip,port
             ipset create red hash:ip,port
             ipset create green hash:ip,port
             iptables-legacy -A INPUT -m set --match-set red dst,dst -j ACCEPT",
        );
        let mut ipset = Ipset::open().unwrap();
        assert!(ipset.destroy("blue").unwrap());
        assert!(!ipset.destroy("blue").unwrap(), "it is gone already");
        let busy = ipset.destroy("red").unwrap_err();
        assert!(busy.is_busy() && busy.to_string().contains("red"), "{busy}");
        shell("iptables-legacy -F INPUT");
        assert!(ipset.destroy("red").unwrap());
        assert!(!ipset.destroy("").unwrap(), "no name is not every name");
        assert_eq!(shell("ipset list -name"), "green\n");
    });
}
