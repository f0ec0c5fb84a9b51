//! Packets that reach an endpoint as they are: by its link address, or within another packet. The endpoint
//! has the service's address itself and answers the client past the node.

use std::net::SocketAddr;

use telaio_testkit::netns::{Cluster, Family, Host, Outcome, Place, Transport, outside_client};

use super::servers;
use crate::manifest::{SERVICE_PORT, Service, load_balancer_ip};
use crate::node::{Backend, Node};

in_guest!(
    direct_routing_leads_to_a_neighbour_that_has_the_address_and_answers_itself,
    a_tunnel_leads_to_an_endpoint_behind_a_router_that_answers_itself,
    one_endpoint_that_listens_elsewhere_has_all_served_by_nat,
);

/// The service whose endpoints have its address.
const NUMBER: u8 = 1;
/// How many connections each client makes.
const CONNECTIONS: u8 = 4;

/// Endpoints' own way to the clients: their answers come from an address of node-a, which would not take
/// them from anybody.
const WAY_OUT: &str = "
link add out0 type veth peer name in0 netns OUTSIDE
link set out0 up
addr add 192.168.61.1/24 dev out0
addr add fd00:61::1/64 dev out0 nodad
route add 203.0.113.0/24 via 192.168.61.2
route add 2001:db8:113::/64 via fd00:61::2
";
const WAY_IN: &str = "
link set in0 up
addr add 192.168.61.2/24 dev in0
addr add fd00:61::2/64 dev in0 nodad
";
/// A device that has the service's addresses.
const DUMMY: &str = "
link add vip0 type dummy
link set vip0 up
addr add 192.0.2.1/32 dev vip0
addr add 2001:db8:2::1/128 dev vip0 nodad
";
/// Devices that unpack, one per family, with the addresses.
const TUNNELS: &str = "
link set tunl0 up
addr add 192.0.2.1/32 dev tunl0
link set ip6tnl0 up
addr add 2001:db8:2::1/128 dev ip6tnl0 nodad
";

/// A cluster in which what `host` is configured with makes it answer at the service's addresses.
fn cluster_with(host: Host, script: &str) -> Cluster {
    let cluster = Cluster::start().unwrap();
    let outside = cluster.netns(Host::Outside).name().to_owned();
    cluster.ip(Host::NodeB, &WAY_OUT.replace("OUTSIDE", &outside)).unwrap();
    cluster.ip(Host::Outside, WAY_IN).unwrap();
    cluster.ip(host, script).unwrap();
    let vips =
        Family::ALL.map(|family| SocketAddr::new(load_balancer_ip(family, NUMBER), SERVICE_PORT));
    cluster.serve_at(host, "itself", &vips).unwrap();
    cluster
}

fn service(forwarding: &str, endpoints: &str) -> Service {
    Service::new("unchanged", NUMBER)
        .load_balancer()
        .annotation(&format!("telaio.dev/ipvs-forwarding: {forwarding}"))
        .endpoints(endpoints)
}

/// Clients outside are answered by who has the address, which sees them as they are.
fn is_answered_itself(cluster: &Cluster) {
    for family in Family::ALL {
        let to = SocketAddr::new(load_balancer_ip(family, NUMBER), SERVICE_PORT);
        for number in 1..=CONNECTIONS {
            let client = outside_client(family, number);
            for transport in [Transport::Tcp, Transport::Udp] {
                let outcome = cluster.ask(Place::outside(client), to, transport);
                let Outcome::Answered { by, seen } = outcome else {
                    panic!("{transport:?} {to}: {outcome}")
                };
                assert_eq!((by.as_str(), seen.ip()), ("itself", client), "{transport:?} {to}");
            }
        }
        // More than a first packet.
        let conversation = cluster.connect(Place::of(Host::Outside), to).unwrap();
        assert_eq!(conversation.greeting().unwrap().by(), Some("itself"));
        conversation.echo(&[7; 4000]).unwrap();
    }
}

/// How packets reach the endpoints at the load balancer's addresses, as `ipvsadm` says it.
fn methods(node: &Node<'_>) -> Vec<String> {
    let all = servers(node);
    let vips = Family::ALL.map(|family| load_balancer_ip(family, NUMBER).to_string());
    let of_vip = |line: &&str| vips.iter().any(|vip| line.contains(vip.as_str()));
    let endpoints = all.lines().filter(|line| line.starts_with("-a ")).filter(of_vip);
    endpoints.filter_map(|line| Some(line.split(' ').nth(5)?.to_owned())).collect()
}

fn direct_routing_leads_to_a_neighbour_that_has_the_address_and_answers_itself() {
    let cluster = cluster_with(Host::NodeB, DUMMY);
    let node = Node::started(&cluster, Backend::Ipvs, &[service("direct", "node-b:port=80")]);
    assert_eq!(methods(&node), ["-g"; 4], "{}", servers(&node));
    is_answered_itself(&cluster);
}

fn a_tunnel_leads_to_an_endpoint_behind_a_router_that_answers_itself() {
    for module in ["ipip", "ip6_tunnel"] {
        assert!(std::process::Command::new("modprobe").arg(module).status().unwrap().success());
    }
    let cluster = cluster_with(Host::B1, TUNNELS);
    let node = Node::started(&cluster, Backend::Ipvs, &[service("tunnel", "b1:port=80")]);
    assert_eq!(methods(&node), ["-i"; 4], "{}", servers(&node));
    is_answered_itself(&cluster);
}

fn one_endpoint_that_listens_elsewhere_has_all_served_by_nat() {
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, Backend::Ipvs, &[service("direct", "a1 b1")]);
    assert_eq!(methods(&node), ["-m"; 8], "{}", servers(&node));
    for family in Family::ALL {
        let to = SocketAddr::new(load_balancer_ip(family, NUMBER), SERVICE_PORT);
        let outcome = cluster.ask(Place::of(Host::Outside), to, Transport::Tcp);
        assert!(outcome.by().is_some(), "{to}: {outcome}");
    }
    let is_told = |line: &str| line.contains("WARN") && line.contains("cannot change ports");
    assert!(node.log().lines().any(is_told), "{}", node.log());
}
