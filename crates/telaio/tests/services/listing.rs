//! Everybody else's tools can read what we program.

use std::net::SocketAddr;

use telaio_testkit::netns::{Cluster, Family, Host, Place, Transport};

use crate::fixtures;
use crate::manifest::{SERVICE_PORT, Service};
use crate::node::{Backend, Node};

on_every_backend!(independent_programs_print_everything_of_ours);

fn independent_programs_print_everything_of_ours(backend: Backend) {
    let mut services = fixtures::all();
    for (number, balance) in (200..).zip(["random", "round-robin", "source-hash"]) {
        let service = Service::new(balance, number).balance(balance);
        services.push(service.endpoints("a1:weight=3 a2 b1"));
    }
    services.push(Service::new("sticky", 210).affinity(600).endpoints("a1 b1"));
    services.push(Service::new("sctp", 211).protocols(&["SCTP"]).node_port().endpoints("a1 b1"));
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &services);
    // Somebody has been here: what the kernel remembers of a client is printed as well.
    for service in &services[services.len() - 5..services.len() - 1] {
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
