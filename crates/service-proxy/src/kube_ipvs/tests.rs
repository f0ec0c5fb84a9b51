//! Whose is what; and sets and links in namespaces of the host's kernel, which need not have IPVS.

use std::process::Command;

use telaio_netlink::netns::Netns;

use super::*;

fn at(protocol: u8, at: &str) -> Frontend {
    Frontend::Address { protocol, at: at.parse().unwrap() }
}

fn is_kube_proxys(name: &str) -> bool {
    Set::of_kube_proxy(name.to_owned()).is_some()
}

#[test]
fn sets_are_known_by_their_exact_names() {
    for name in [
        "KUBE-LOOP-BACK",
        "KUBE-6-LOOP-BACK",
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
        // Cut to the length that a set's name can have.
        "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
        "KUBE-6-LOAD-BALANCER-SOURCE-CID",
    ] {
        assert!(is_kube_proxys(name), "{name}");
    }
    // Sets of those who enforce network policies, among others.
    for name in ["KUBE-SRC-ABCDEFGHIJKLMNOP", "KUBE-DST-ABC", "KUBE-", "KUBE-CLUSTER-IP-2"] {
        assert!(!is_kube_proxys(name), "{name}");
    }
}

#[test]
fn services_are_kube_proxy_s_by_the_link_s_addresses_and_by_the_sets() {
    let mut claims = Claims {
        addresses: ["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()].into(),
        own: ["10.96.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap()].into(),
        ..Claims::default()
    };
    let port = |port| Member { ip: None, port: Some(port), protocol: None };
    claims.add(Members::NodePorts(TCP), port(30080));
    let place = |ip: &str, protocol, port| Member {
        ip: Some(ip.parse().unwrap()),
        port: Some(port),
        protocol: Some(protocol),
    };
    claims.add(Members::Frontends, place("192.0.2.1", SCTP, 30081));
    // An external address that the node has is not given to the link.
    claims.add(Members::Frontends, place("192.0.2.1", TCP, 443));

    for kube_proxys in [
        at(TCP, "10.96.0.1:80"),
        at(UDP, "[fd00::1]:53"),
        at(TCP, "192.0.2.1:30080"),
        at(SCTP, "192.0.2.1:30081"),
        at(TCP, "192.0.2.1:443"),
    ] {
        assert!(claims.cover(&kube_proxys), "{kube_proxys:?}");
    }
    for others in [
        at(UDP, "192.0.2.1:30080"),
        at(TCP, "192.0.2.1:30081"),
        at(TCP, "192.0.2.1:80"),
        at(TCP, "198.51.100.1:30080"),
        at(TCP, "198.51.100.1:443"),
        Frontend::Mark { is_v6: false, mark: 30080 },
    ] {
        assert!(!claims.cover(&others), "{others:?}");
    }
}

#[test]
fn sets_and_the_link_are_noticed_and_removed_and_others_stay() {
    let name = format!("telaio-kube-ipvs-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(|| {
        let shell = |command: &str| {
            let output = Command::new("sh").args(["-ec", command]).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(present(), None);
        assert_eq!(cleanup().unwrap(), [""; 0]);

        // Whatever its kind, the name is kube-proxy's.
        shell(
            "ip link add kube-ipvs0 type bridge
             ip address add 10.96.0.1/32 dev kube-ipvs0
             ip link add theirs type bridge
             ipset create KUBE-CLUSTER-IP hash:ip,port
             ipset create KUBE-6-CLUSTER-IP hash:ip,port family inet6
             ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
             ipset create KUBE-LOOP-BACK hash:ip,port,ip
             ipset create KUBE-SRC-ABC hash:ip
             iptables-legacy -A INPUT -m set --match-set KUBE-LOOP-BACK dst,dst,src -j ACCEPT",
        );
        assert_eq!(present().unwrap(), "the link kube-ipvs0");
        let error = cleanup().unwrap_err().to_string();
        assert!(error.contains("KUBE-LOOP-BACK"), "{error}");
        // What is busy keeps nothing else from going.
        assert_eq!(present().unwrap(), "the ipset KUBE-LOOP-BACK");
        shell("iptables-legacy -F INPUT");
        assert_eq!(cleanup().unwrap(), ["1 ipsets of kube-proxy"]);
        assert_eq!(present(), None);

        // nf_tables may hold a set a little longer than there is a rule that matches it.
        for _ in 0..10 {
            shell(
                "ipset create KUBE-CLUSTER-IP hash:ip,port
                 iptables-nft -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
                 iptables-nft -F INPUT",
            );
            assert_eq!(cleanup().unwrap(), ["1 ipsets of kube-proxy"]);
        }
        assert_eq!(shell("ipset list -name"), "KUBE-SRC-ABC\n");
        assert!(shell("ip -o link").contains("theirs"));
    });
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}
