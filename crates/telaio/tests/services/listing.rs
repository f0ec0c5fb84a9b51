//! Everybody else's tools can read what we program.

use std::net::SocketAddr;
use std::process::Command;

use telaio_testkit::netns::{Cluster, Family, Host, Place, Transport};

use crate::fixtures;
use crate::manifest::{SERVICE_PORT, Service};
use crate::node::{Backend, Node, comparable};
use crate::support::run;

on_every_backend!(independent_programs_print_everything_of_ours);

/// Services of every kind, and every way of choosing.
fn every_kind() -> Vec<Service> {
    let mut services = fixtures::all();
    for (number, balance) in (200..).zip(["random", "round-robin", "source-hash"]) {
        let service = Service::new(balance, number).balance(balance);
        services.push(service.endpoints("a1:weight=3 a2 b1"));
    }
    services.push(Service::new("sctp", 211).protocols(&["SCTP"]).node_port().endpoints("a1 b1"));
    services
}

fn independent_programs_print_everything_of_ours(backend: Backend) {
    let mut services = every_kind();
    services.push(Service::new("sticky", 210).affinity(600).endpoints("a1 b1"));
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &services);
    // Somebody has been here: what the kernel remembers of a client is printed as well.
    let called = ["random", "round-robin", "source-hash", "sticky"];
    for service in services.iter().filter(|service| called.contains(&service.name.as_str())) {
        for family in Family::ALL {
            let to = SocketAddr::new(service.cluster_ip(family), SERVICE_PORT);
            assert!(node.ask(Place::of(Host::Outside), to, Transport::Tcp).by().is_some());
        }
    }
    match backend {
        Backend::Nftables => {
            let text = node.output("nft", &["list", "ruleset"]);
            assert!(
                text.lines().any(|l| l.starts_with("table ") && l.contains(" telaio ")),
                "{text}"
            );
            // Addresses of both families, in the clear.
            for wanted in ["10.96.0.1", "fd00:10:96::1", "10.244.1.11", "203.0.113.0/28", "sctp"] {
                assert!(text.contains(wanted), "no {wanted} in\n{text}");
            }
            let json = node.output("nft", &["-j", "list", "ruleset"]);
            serde_json::from_str::<serde_json::Value>(&json).unwrap();
        }
        Backend::Ipvs => {
            let servers = node.output("ipvsadm", &["-S", "-n"]);
            for wanted in [
                "-A -t 10.96.0.1:80 -s rr",
                "-a -t 10.96.0.1:80 -r 10.244.1.11:8080 -m -w 1",
                "-A -u [fd00:10:96::1]:80 -s rr",
                "-A -t 10.96.0.201:80 -s wrr",
                "-a -t 10.96.0.201:80 -r 10.244.1.11:8080 -m -w 3",
                "-A -t 10.96.0.202:80 -s mh",
                "-A -t 10.96.0.210:80 -s rr -p 600",
                "--sctp-service 10.96.0.211:80",
                "-A -f ",
            ] {
                assert!(servers.contains(wanted), "no {wanted} in\n{servers}");
            }
            let sets = node.output("ipset", &["-o", "save", "list"]);
            for wanted in [
                "add TELAIO-CLUSTER-IP 10.96.0.1,tcp:80",
                "add TELAIO-6-CLUSTER-IP fd00:10:96::1,udp:80",
                "add TELAIO-ALLOWED 192.0.2.6,tcp:80,203.0.113.0/28",
                "add TELAIO-IPVS-IPS 10.96.0.1",
            ] {
                assert!(sets.contains(wanted), "no {wanted} in\n{sets}");
            }
            for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
                let rules = node.output(program, &[]);
                assert!(rules.contains("-j TELAIO-IPVS-"), "{rules}");
            }
        }
        Backend::IptablesNft | Backend::IptablesLegacy => {
            let flavor = if backend == Backend::IptablesNft { "nft" } else { "legacy" };
            let v4 = node.output(&format!("iptables-{flavor}-save"), &[]);
            let v6 = node.output(&format!("ip6tables-{flavor}-save"), &[]);
            for (text, wanted) in [(&v4, "10.96.0.1/32"), (&v6, "fd00:10:96::1/128")] {
                for wanted in [wanted, "TELAIO-SERVICES", "sctp", "test/cluster"] {
                    assert!(text.contains(wanted), "no {wanted} in\n{text}");
                }
            }
        }
    }
}

/// Old releases of nft have too few registers for IPv6 affinity when they read it, though the kernel
/// has enough: so here affinity is IPv4's.
#[test]
fn nft_reads_back_what_it_lists_of_ours() {
    let mut services = every_kind();
    services.retain(|service| service.name != "affine");
    let sticky = Service::new("sticky", 210).only(Family::V4).node_port().affinity(600);
    let to = SocketAddr::new(sticky.cluster_ip(Family::V4), SERVICE_PORT);
    services.push(sticky.endpoints("a1 b1"));
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, Backend::Nftables, &services);
    assert!(node.ask(Place::of(Host::Outside), to, Transport::Tcp).by().is_some());
    let file = tempfile::NamedTempFile::new().unwrap();
    let listing = node.output("nft", &["list", "ruleset"]);
    std::fs::write(&file, &listing).unwrap();
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--net", "sh", "-ec", "nft -f \"$1\"; nft --stateless list ruleset", "sh"]);
    let ended = run(elsewhere.arg(file.path()));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{listing}");
    let once = node.output("nft", &["--stateless", "list", "ruleset"]);
    assert_eq!(comparable(&ended.stdout), comparable(&once));
}
