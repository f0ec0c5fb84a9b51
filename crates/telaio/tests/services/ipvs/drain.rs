//! Endpoints that leave: their connections go on, new ones go elsewhere, and they are removed in the end.

use std::net::SocketAddr;

use telaio_testkit::netns::{
    Cluster, Conversation, Family, Host, Outcome, Place, SERVER_PORT, Transport,
};

use super::{ask, at, servers, weight};
use crate::manifest::{SERVICE_PORT, Service, load_balancer_ip};
use crate::node::{Backend, IPVS_DEVICE, Node};

in_guest!(
    an_endpoint_that_leaves_keeps_its_connections_also_when_the_agent_is_killed,
    a_service_that_goes_keeps_its_connections_and_its_address_until_they_end,
);

fn service(endpoints: &str) -> Service {
    Service::new("draining", 1).endpoints(endpoints)
}

/// A connection from a pod to this endpoint.
fn connect_to(cluster: &Cluster, to: SocketAddr, wanted: Host) -> Conversation {
    for _ in 0..8 {
        let conversation = cluster.connect(Place::of(Host::A2), to).unwrap();
        if conversation.greeting().unwrap().by() == Some(wanted.name()) {
            return conversation;
        }
    }
    panic!("{} never answered", wanted.name());
}

fn an_endpoint_that_leaves_keeps_its_connections_also_when_the_agent_is_killed() {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &[service("a1 b1")]);
    let a1 = |family| SocketAddr::new(Host::A1.address(family), SERVER_PORT);
    let conversations = Family::ALL.map(|family| connect_to(&cluster, at(family, 1), Host::A1));
    let leaves = |node: &Node<'_>| {
        for (family, conversation) in Family::ALL.into_iter().zip(&conversations) {
            conversation.echo(b"still here").unwrap();
            assert_eq!(weight(node, "t", at(family, 1), a1(family)), Some(0));
            assert_eq!(weight(node, "u", at(family, 1), a1(family)), None, "UDP goes at once");
            for _ in 0..4 {
                assert_eq!(ask(node, Place::of(Host::A2), at(family, 1)), "b1");
            }
        }
    };
    node.apply(&service("b1"));
    node.settle();
    leaves(&node);
    node.kill();
    leaves(&node);
    node.start();
    node.settle();
    leaves(&node);

    // It comes back, and gets its share again.
    node.apply(&service("a1 b1"));
    node.settle();
    for (family, conversation) in Family::ALL.into_iter().zip(&conversations) {
        conversation.echo(b"still here").unwrap();
        assert_eq!(weight(&node, "t", at(family, 1), a1(family)), Some(1));
        let both: Vec<_> = (0..2).map(|_| ask(&node, Place::of(Host::A2), at(family, 1))).collect();
        assert!(both.iter().any(|by| by == "a1") && both.iter().any(|by| by == "b1"), "{both:?}");
    }

    // It leaves for good: when nobody is there any more, it goes.
    node.apply(&service("b1"));
    node.settle();
    leaves(&node);
    drop(conversations);
    for family in Family::ALL {
        node.wait_until("end of the endpoint", || {
            weight(&node, "t", at(family, 1), a1(family)).is_none()
        });
        assert_eq!(ask(&node, Place::of(Host::A2), at(family, 1)), "b1");
    }
}

fn a_service_that_goes_keeps_its_connections_and_its_address_until_they_end() {
    let going = Service::new("going", 2).load_balancer().external_local().endpoints("a1");
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &[service("a1"), going]);
    let places = Family::ALL.map(|family| {
        let balancer = SocketAddr::new(load_balancer_ip(family, 2), SERVICE_PORT);
        [(Host::A2, at(family, 2)), (Host::Outside, balancer)]
    });
    let conversations = places.map(|places| {
        places.map(|(host, to)| {
            let conversation = cluster.connect(Place::of(host), to).unwrap();
            assert_eq!(conversation.greeting().unwrap().by(), Some("a1"), "{to}");
            conversation
        })
    });
    node.remove("going");
    node.settle();
    let check = |node: &Node<'_>| {
        for (conversation, (_, to)) in
            conversations.iter().flatten().zip(places.into_iter().flatten())
        {
            let said = conversation.echo(b"still here");
            said.unwrap_or_else(|error| panic!("{to}: {error}\n{}", node.rules()));
        }
        for (host, to) in places.into_iter().flatten() {
            assert_eq!(node.ask(Place::of(host), to, Transport::Tcp), Outcome::Refused, "{to}");
        }
    };
    check(&node);
    node.kill();
    node.start();
    node.settle();
    check(&node);
    drop(conversations);
    node.wait_until("end of the service", || {
        let addresses = node.output("ip", &["-o", "address", "show", "dev", IPVS_DEVICE]);
        let all = servers(&node) + &addresses + &node.output("ipset", &["-o", "save", "list"]);
        let ends = |ip: std::net::IpAddr| {
            let here = |mark: &str| all.contains(&format!("{ip}{mark}"));
            ["/", ":", "]", ",", "\n"].into_iter().any(here)
        };
        !places.iter().flatten().any(|(_, to)| ends(to.ip())) && !all.contains("-A -f ")
    });
    assert_eq!(ask(&node, Place::of(Host::A2), at(Family::V4, 1)), "a1");
}
