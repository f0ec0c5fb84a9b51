//! What is sent to HNS, to the letter: a snapshot of each kind of document, and that reading a document
//! gives back what was written.
#![cfg(not(windows))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::net::IpAddr;

use proptest::collection::{btree_set, vec};
use proptest::option::of as option_of;
use proptest::prelude::*;
use serde_json::{Value, json};
use telaio_hcn::{
    Acl, AclAction, AclDirection, AclRuleType, Distribution, Dns, Endpoint, EndpointFlags,
    EndpointPolicy, Guid, IpConfiguration, Ipam, IsolationId, LoadBalancer, LoadBalancerFlags,
    MacAddress, MacPool, MacRange, NatFlags, NatPortMapping, Network, NetworkFlags, NetworkPolicy,
    NetworkType, OutBoundNat, PROTOCOL_TCP, PolicyChange, PortMapping, PortMappingFlags,
    ProviderAddress, Query, RawPolicy, RemoteSubnetRoute, RequestType, Route, SdnRoute, Subnet,
    SubnetPolicy,
};

fn guid(byte: u8) -> Guid {
    Guid::from_bytes([byte; 16])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pretty(document: &Value) -> String {
    serde_json::to_string_pretty(document).unwrap()
}

fn acl() -> EndpointPolicy {
    EndpointPolicy::Acl(Acl {
        protocols: vec![6],
        action: AclAction::Block,
        direction: AclDirection::In,
        local_addresses: vec!["10.96.0.10".into()],
        remote_addresses: vec!["203.0.113.0/24".into(), "198.51.100.7".into()],
        local_ports: vec!["80".into(), "8000-8010".into()],
        remote_ports: vec![],
        rule_type: Some(AclRuleType::Switch),
        priority: 200,
    })
}

#[test]
fn a_network_is_sent_like_this() {
    let network = Network {
        id: Some(guid(0x1f)),
        name: "vxlan0".into(),
        owner: "telaio".into(),
        kind: NetworkType::Overlay,
        policies: vec![NetworkPolicy::RemoteSubnetRoute(RemoteSubnetRoute {
            destination_prefix: "10.244.2.0/24".parse().unwrap(),
            isolation_id: 4096,
            provider_address: ip("192.0.2.8"),
            distributed_router_mac_address: Some(MacAddress([0x00, 0x15, 0x5d, 1, 2, 3])),
        })],
        mac_pool: MacPool {
            ranges: vec![MacRange {
                start_mac_address: MacAddress([0x00, 0x15, 0x5d, 0x52, 0xc0, 0x00]),
                end_mac_address: MacAddress([0x00, 0x15, 0x5d, 0x52, 0xcf, 0xff]),
            }],
        },
        dns: Dns {
            suffix: "cluster.local".into(),
            search: vec!["svc.cluster.local".into()],
            server_list: vec!["10.96.0.10".into()],
            options: vec!["ndots:5".into()],
        },
        ipams: vec![Ipam {
            kind: "Static".into(),
            subnets: vec![Subnet {
                ip_address_prefix: "10.244.1.0/24".parse().unwrap(),
                policies: vec![SubnetPolicy::Vsid(IsolationId { isolation_id: 4096 })],
                routes: vec![Route {
                    next_hop: Some(ip("10.244.1.1")),
                    destination_prefix: "0.0.0.0/0".parse().unwrap(),
                    metric: 10,
                }],
            }],
        }],
        flags: NetworkFlags::ENABLE_NON_PERSISTENT,
    };
    insta::assert_snapshot!(pretty(&network.to_document()));
}

#[test]
fn a_remote_endpoint_is_sent_like_this() {
    let endpoint = Endpoint {
        id: Some(guid(0x2e)),
        name: "telaio 10.244.2.5".into(),
        owner: "telaio".into(),
        network: guid(0x1f),
        ip_configurations: vec![
            IpConfiguration { ip_address: ip("10.244.2.5"), prefix_length: 24 },
            IpConfiguration { ip_address: ip("fd00:10:244:2::5"), prefix_length: 64 },
        ],
        mac_address: Some(MacAddress([0x02, 0x11, 10, 244, 2, 5])),
        policies: vec![EndpointPolicy::ProviderAddress(ProviderAddress {
            provider_address: ip("192.0.2.8"),
        })],
        flags: EndpointFlags::REMOTE_ENDPOINT,
        ..Endpoint::default()
    };
    insta::assert_snapshot!(pretty(&endpoint.to_document()));
}

#[test]
fn a_local_endpoint_is_sent_like_this() {
    let endpoint = Endpoint {
        network: guid(0x1f),
        namespace: Some(guid(0x77)),
        policies: vec![
            acl(),
            EndpointPolicy::OutBoundNat(OutBoundNat {
                virtual_ip: Some(ip("192.0.2.7")),
                exceptions: vec!["10.96.0.0/12".into()],
                destinations: vec![],
                flags: NatFlags::NONE,
            }),
            EndpointPolicy::SdnRoute(SdnRoute {
                destination_prefix: "10.96.0.0/12".parse().unwrap(),
                next_hop: None,
                need_encap: true,
            }),
            EndpointPolicy::PortMapping(NatPortMapping {
                protocol: PROTOCOL_TCP,
                internal_port: 80,
                external_port: 8080,
                vip: None,
                flags: NatFlags::LOCAL_ROUTED_VIP,
            }),
            EndpointPolicy::Other(RawPolicy {
                kind: "QOS".into(),
                settings: json!({"MaximumOutgoingBandwidthInBytes": 125_000}),
            }),
        ],
        dns: Dns { server_list: vec!["10.96.0.10".into()], ..Dns::default() },
        routes: vec![Route {
            next_hop: Some(ip("10.244.1.1")),
            destination_prefix: "0.0.0.0/0".parse().unwrap(),
            metric: 0,
        }],
        ..Endpoint::default()
    };
    insta::assert_snapshot!(pretty(&endpoint.to_document()));
}

#[test]
fn a_load_balancer_is_sent_like_this() {
    let load_balancer = LoadBalancer {
        id: Some(guid(0x3d)),
        endpoints: [guid(0x2e), guid(0x2f)].into(),
        source_vip: Some(ip("10.244.1.2")),
        frontend_vips: [ip("10.96.0.10")].into(),
        port_mappings: vec![PortMapping {
            protocol: PROTOCOL_TCP,
            internal_port: 8080,
            external_port: 80,
            distribution_type: Distribution::SourceIp,
            flags: PortMappingFlags::INTERNAL | PortMappingFlags::PRESERVE_DESTINATION,
        }],
        flags: LoadBalancerFlags::DSR,
    };
    insta::assert_snapshot!(pretty(&load_balancer.to_document()));
}

#[test]
fn a_node_port_is_sent_like_this() {
    let load_balancer = LoadBalancer {
        endpoints: [guid(0x2e)].into(),
        port_mappings: vec![PortMapping {
            protocol: PROTOCOL_TCP,
            internal_port: 8080,
            external_port: 30080,
            distribution_type: Distribution::Connection,
            flags: PortMappingFlags::LOCAL_ROUTED_VIP,
        }],
        ..LoadBalancer::default()
    };
    insta::assert_snapshot!(pretty(&load_balancer.to_document()));
}

#[test]
fn a_change_of_policies_is_sent_like_this() {
    let change = PolicyChange { request: RequestType::Update, policies: vec![acl()] };
    insta::assert_snapshot!(pretty(&change.document()));
}

#[test]
fn queries_are_sent_like_this() {
    let queries = [
        Query::All,
        Query::Id(guid(0x2e)),
        Query::Name("vxlan0".into()),
        Query::OnNetwork(guid(0x1f)),
    ];
    let documents: Vec<_> = queries.iter().map(Query::document).collect();
    insta::assert_snapshot!(pretty(&json!(documents)));
}

fn any_guid() -> impl Strategy<Value = Guid> {
    any::<[u8; 16]>().prop_map(Guid::from_bytes)
}

fn any_policy() -> impl Strategy<Value = EndpointPolicy> {
    prop_oneof![
        any::<IpAddr>().prop_map(|provider_address| {
            EndpointPolicy::ProviderAddress(ProviderAddress { provider_address })
        }),
        (vec(any::<u8>(), 0..3), vec("[0-9]{1,4}", 0..3), any::<u16>()).prop_map(
            |(protocols, local_ports, priority)| {
                let EndpointPolicy::Acl(acl) = acl() else { unreachable!() };
                EndpointPolicy::Acl(Acl { protocols, local_ports, priority, ..acl })
            }
        ),
        ("[A-Z][a-z]{1,8}", ".{0,8}").prop_map(|(kind, text)| {
            EndpointPolicy::Other(RawPolicy { kind, settings: json!({ "id": text, "Null": null }) })
        }),
    ]
}

prop_compose! {
    fn any_endpoint()(
        id in any_guid(), name in ".{0,12}", network in any_guid(), namespace in option_of(any_guid()),
        policies in vec(any_policy(), 0..4), addresses in vec(any::<(IpAddr, u8)>(), 0..3),
        mac in option_of(any::<[u8; 6]>()), flags in any::<u32>(),
    ) -> Endpoint {
        let address = |(ip_address, prefix_length)| IpConfiguration { ip_address, prefix_length };
        Endpoint {
            id: Some(id), name, network, namespace, policies,
            ip_configurations: addresses.into_iter().map(address).collect(),
            mac_address: mac.map(MacAddress),
            flags: EndpointFlags::from_bits(flags),
            ..Endpoint::default()
        }
    }
}

prop_compose! {
    fn any_load_balancer()(
        id in any_guid(), endpoints in btree_set(any_guid(), 0..5),
        source_vip in option_of(any::<IpAddr>()), frontend_vips in btree_set(any::<IpAddr>(), 0..3),
        ports in vec(any::<(u32, u16, u16, u32)>(), 0..4), flags in any::<u32>(),
    ) -> LoadBalancer {
        let mapping = |(protocol, internal_port, external_port, flags)| PortMapping {
            protocol, internal_port, external_port,
            distribution_type: Distribution::try_from(flags % 3).unwrap(),
            flags: PortMappingFlags::from_bits(flags),
        };
        LoadBalancer {
            id: Some(id), endpoints, source_vip, frontend_vips,
            port_mappings: ports.into_iter().map(mapping).collect(),
            flags: LoadBalancerFlags::from_bits(flags),
        }
    }
}

/// The document with every name of HCN's in lower case, as an HNS might answer.
fn in_lower_case(document: &Value) -> Value {
    match document {
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                let value = if name == "Settings" { value.clone() } else { in_lower_case(value) };
                (name.to_ascii_lowercase(), value)
            })
            .collect(),
        Value::Array(items) => items.iter().map(in_lower_case).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn an_endpoint_that_is_written_reads_back_the_same(endpoint in any_endpoint()) {
        let document = endpoint.to_document();
        prop_assert_eq!(&Endpoint::from_document(&document).unwrap(), &endpoint);
        prop_assert_eq!(&Endpoint::from_document(&in_lower_case(&document)).unwrap(), &endpoint);
        prop_assert!(endpoint.is_satisfied_by(&endpoint));
    }

    #[test]
    fn a_load_balancer_that_is_written_reads_back_the_same(load_balancer in any_load_balancer()) {
        let document = load_balancer.to_document();
        prop_assert_eq!(&LoadBalancer::from_document(&document).unwrap(), &load_balancer);
        prop_assert_eq!(&LoadBalancer::from_document(&in_lower_case(&document)).unwrap(), &load_balancer);
    }

    #[test]
    fn an_answer_that_is_cut_off_or_garbled_never_panics(
        endpoint in any_endpoint(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut text = endpoint.to_document().to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        for text in [&text[..], &text[..at]] {
            if let Ok(document) = serde_json::from_slice(text) {
                let _ = Endpoint::from_document(&document);
                let _ = Network::from_document(&document);
                let _ = LoadBalancer::from_document(&document);
            }
        }
    }
}
