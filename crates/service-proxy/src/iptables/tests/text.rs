//! The texts themselves.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;
use telaio_model::{IpFamily, Protocol};

use super::super::names::ChainName;
use super::super::rule::{Directions, Is, Match, Rule, States, Target};
use super::super::{Services, render};
use crate::config::{DetectLocal, NodeFacts, ProxyConfig};
use crate::fixture::Fixture;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn services(all: &[Fixture]) -> Services {
    all.iter().map(Fixture::build).map(|entry| (entry.service.key.clone(), entry)).collect()
}

fn config() -> ProxyConfig {
    let nets = ["10.244.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
    ProxyConfig { detect_local: DetectLocal::ClusterCidr(nets.to_vec()), ..ProxyConfig::default() }
}

#[test]
fn two_services_are_rendered_as_reviewed() {
    let web = Fixture::new("web")
        .cluster_ip(ip("10.96.0.1"))
        .load_balancer_ip(ip("192.0.2.7"))
        .node_port(30080)
        .with(|service| service.source_ranges = vec!["203.0.113.0/24".parse().unwrap()])
        .sticky(600)
        .local(ip("10.244.1.2"))
        .remote(ip("10.244.2.2"));
    let nobody = Fixture::new("nobody").cluster_ip(ip("10.96.0.2")).node_port(30081);
    let text = render(&services(&[web, nobody]), &NodeFacts::default(), &config(), IpFamily::V4);
    insta::assert_snapshot!(text);
}

#[test]
fn a_local_service_of_ipv6_is_rendered_as_reviewed() {
    let dns = Fixture::new("dns")
        .cluster_ip(ip("fd00:96::1"))
        .protocol(Protocol::Udp)
        .node_port(30053)
        .with(|service| {
            service.external_traffic_to_local = true;
            service.health_check_node_port = Some(32000);
        })
        .balance("round-robin")
        .local(ip("fd00:244::2"))
        .remote(ip("fd00:244:1::2"))
        .weight(2);
    let text = render(&services(&[dns]), &NodeFacts::default(), &config(), IpFamily::V6);
    insta::assert_snapshot!(text);
}

#[test]
fn a_name_from_outside_cannot_add_a_rule() {
    let evil = Fixture::new("x\" -j ACCEPT\nCOMMIT\n*filter\n-P INPUT DROP\n")
        .cluster_ip(ip("10.96.0.1"))
        .remote(ip("10.244.2.2"));
    let text = render(&services(&[evil]), &NodeFacts::default(), &config(), IpFamily::V4);
    assert!(!text.contains("-P INPUT DROP\n"), "{text}");
    assert_eq!(text.matches("*nat").count(), 1);
    for line in text.lines().filter(|line| line.contains("comment")) {
        assert_eq!(line.matches('"').count(), 2, "{line}");
    }
}

prop_compose! {
    fn address(family: IpFamily)(bits in any::<u128>()) -> IpAddr {
        match family {
            IpFamily::V4 => IpAddr::V4((bits as u32).into()),
            // Neither mapped nor compatible: those are not ours.
            IpFamily::V6 => IpAddr::V6((bits | 0xfd << 120).into()),
        }
    }
}

fn net(family: IpFamily) -> impl Strategy<Value = Is<IpNet>> {
    let bits = if family == IpFamily::V4 { 1_u8..=32 } else { 1..=128 };
    (address(family), bits, any::<bool>())
        .prop_map(|(ip, bits, invert)| Is { value: IpNet::new(ip, bits).unwrap().trunc(), invert })
}

fn some_match(family: IpFamily) -> impl Strategy<Value = Match> {
    let list = ChainName::new("TELAIO-SEP-SXIVWICOYRO3J4NJ").unwrap();
    prop_oneof![
        "[a-z/: ]{1,40}".prop_map(|text| Match::Comment(text.into())),
        any::<u16>().prop_map(|port| Match::Port(Protocol::Sctp, port)),
        Just(Match::LocalSource),
        Just(Match::LocalDestination),
        any::<bool>().prop_map(|invert| {
            let value = States::KNOWN.or(States::DNAT);
            Match::State(Is { value, invert })
        }),
        (any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(value, mask, invert)| Match::Mark {
            value,
            mask,
            invert
        }),
        ("[A-Z0-9-]{1,31}", some_directions(), any::<bool>()).prop_map(
            |(name, directions, invert)| Match::Set { name: name.into(), directions, invert }
        ),
        (0..=1_u32 << 31).prop_map(Match::Random),
        (1_u32..999, 0_u32..9).prop_map(|(every, packet)| Match::Nth { every, packet }),
        any::<u32>().prop_map(move |seconds| Match::RecentCheck { list, seconds, family }),
        Just(Match::RecentSet { list, family }),
    ]
}

fn some_directions() -> impl Strategy<Value = Directions> {
    prop_oneof![
        Just(Directions::Source),
        Just(Directions::Destination),
        Just(Directions::DestinationPort),
        Just(Directions::DestinationPortSource),
    ]
}

fn some_target(family: IpFamily) -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Jump(ChainName::new("TELAIO-SERVICES").unwrap())),
        Just(Target::Return),
        Just(Target::Accept),
        Just(Target::Drop),
        Just(Target::Reject(family)),
        Just(Target::Masquerade),
        (address(family), any::<u16>()).prop_map(|(ip, port)| Target::Dnat((ip, port).into())),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Target::SetMark { value, mask }),
        "[A-Z0-9-]{1,31}".prop_map(|set| Target::MapMark { set: set.into() }),
    ]
}

fn some_rule() -> impl Strategy<Value = Rule> {
    prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)].prop_flat_map(|family| {
        let interface = proptest::option::of(("[a-z]{1,8}[+]?", any::<bool>()));
        (
            proptest::option::of(net(family)),
            proptest::option::of(net(family)),
            interface.clone(),
            interface,
            proptest::option::of(Just(Protocol::Sctp)),
            proptest::collection::vec(some_match(family), 0..4),
            some_target(family),
        )
            .prop_map(|(source, destination, from, to, protocol, matches, target)| Rule {
                source,
                destination,
                interface: from.map(|(name, invert)| Is { value: name.into(), invert }),
                out_interface: to.map(|(name, invert)| Is { value: name.into(), invert }),
                protocol,
                matches,
                target,
            })
    })
}

proptest! {
    #[test]
    fn a_rule_that_is_read_back_is_the_same(rule in some_rule()) {
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }

    #[test]
    fn no_text_makes_the_reader_fail(text in ".{0,200}") {
        let _ = text.parse::<Rule>();
        let _ = super::super::Ruleset::parse(&text);
    }
}
