//! What the node has to offer before services can be programmed.

use std::sync::Arc;

use telaio_hcn::{
    Endpoint, FakeHcn, Hcn as _, HnsVersion, IpConfiguration, Ipam, Network, NetworkType, Subnet,
};
use telaio_model::IpFamily;
use telaio_service_proxy::config::{NodeFacts, ProxyConfig};
use telaio_service_proxy::hcn::{Core, HcnOptions, PreRunError};

use crate::rig::{NEW, NODE_IP, hns, ip, network_id, options};

fn pre_run(fake: &FakeHcn, options: HcnOptions) -> Result<Core, PreRunError> {
    let node = NodeFacts { addresses: vec![ip(NODE_IP)], ..NodeFacts::default() };
    let mut core = Core::new(Arc::new(fake.clone()), Arc::new(ProxyConfig::default()), options);
    core.pre_run(&node).map(|()| core)
}

fn refused(fake: &FakeHcn, options: HcnOptions) -> PreRunError {
    pre_run(fake, options).err().expect("to be refused")
}

fn add(fake: &FakeHcn, name: &str, kind: NetworkType) {
    fake.create_network(&Network { name: name.into(), kind, ..Network::default() }).unwrap();
}

#[test]
fn the_only_suitable_network_is_found_and_of_two_one_has_to_be_named() {
    let fake = hns(NEW, NetworkType::L2Bridge);
    add(&fake, "nat", NetworkType::Nat);
    assert_eq!(pre_run(&fake, options()).unwrap().ground().unwrap().network, network_id());
    add(&fake, "vxlan0", NetworkType::Overlay);
    let error = refused(&fake, options());
    assert!(matches!(&error, PreRunError::Ambiguous(names) if names == &["pods", "vxlan0"]));
    assert!(!error.may_pass());
    let named = HcnOptions { network_name: Some("PODS".into()), ..options() };
    assert_eq!(pre_run(&fake, named).unwrap().ground().unwrap().network, network_id());
    let wrong = HcnOptions { network_name: Some("nat".into()), ..options() };
    assert!(matches!(refused(&fake, wrong), PreRunError::WrongType { .. }));
}

#[test]
fn a_network_that_is_not_there_yet_is_waited_for() {
    let fake = FakeHcn::new(NEW);
    let error = refused(&fake, options());
    assert!(error.may_pass() && error.to_string().contains("CNI"), "{error}");
    let named = HcnOptions { network_name: Some("cbr0".into()), ..options() };
    assert!(refused(&fake, named).may_pass());
}

#[test]
fn what_this_hns_cannot_do_at_all_is_refused() {
    let fake = hns(HnsVersion::new(9, 0), NetworkType::L2Bridge);
    assert!(matches!(refused(&fake, options()), PreRunError::TooOld(_)));
    let fake = hns(HnsVersion::new(9, 2), NetworkType::L2Bridge);
    let dsr = HcnOptions { enable_dsr: Some(true), ..options() };
    assert!(matches!(refused(&fake, dsr), PreRunError::NoDsr(_)));
    assert!(pre_run(&fake, options()).is_ok());
}

#[test]
fn an_overlay_needs_a_source_address_from_the_operator_or_from_the_endpoint_reserved_for_it() {
    let fake = hns(NEW, NetworkType::Overlay);
    let unnamed = HcnOptions { source_vips: Vec::new(), ..options() };
    let error = refused(&fake, unnamed.clone());
    assert!(matches!(error, PreRunError::NoSourceVip(_)) && error.may_pass());
    let reserved = Endpoint {
        name: "pods_ep".into(),
        network: network_id(),
        ip_configurations: vec![IpConfiguration {
            ip_address: ip("10.244.1.3"),
            prefix_length: 24,
        }],
        ..Endpoint::default()
    };
    fake.create_endpoint(&reserved).unwrap();
    let core = pre_run(&fake, unnamed).unwrap();
    let ground = core.ground().unwrap();
    assert_eq!(ground.overlay.as_ref().unwrap().source_vips, [ip("10.244.1.3")]);
    assert_eq!(ground.families, [IpFamily::V4]);
}

#[test]
fn the_families_are_those_of_the_networks_subnets() {
    let fake = FakeHcn::new(NEW);
    let subnet = |net: &str| Subnet {
        ip_address_prefix: net.parse().unwrap(),
        policies: Vec::new(),
        routes: Vec::new(),
    };
    let network = Network {
        name: "cbr0".into(),
        kind: NetworkType::L2Bridge,
        ipams: vec![Ipam { kind: String::new(), subnets: vec![subnet("10.244.1.0/24")] }],
        ..Network::default()
    };
    fake.create_network(&network).unwrap();
    let core = pre_run(&fake, options()).unwrap();
    assert_eq!(core.ground().unwrap().families, [IpFamily::V4]);
}
