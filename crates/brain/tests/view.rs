//! The node view, case by case: what kube-proxy would decide, said as addresses and scopes.
//!
//! A line such as `10.0.0.1:80 iecl` reads: this endpoint's port is used for **i**nternal traffic,
//! for **e**xternal traffic, and stands in the **c**luster and in the **l**ocal set. The node is `n1`
//! in zone `z1` unless a test says otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use support::follower::Follower;
use support::*;
use telaio_brain::{
    LocalWatch, NodeContext, ServiceState, ServiceView, Store, Wants, service_view,
};
use telaio_model::service::{LABEL_HEADLESS, LABEL_PROXY_NAME};
use telaio_model::{
    AddressType, ClientIpAffinity, Endpoint, EndpointPort, EndpointSlice, Families, IpMode, Kind,
    Node, Object, ObjectRef, OverrideAction, OverrideTarget, Protocol, Service, ServiceType,
    TargetPort,
};

/// A case: a service, its slices and overrides, the node, and what the receiver asked for.
struct Case {
    service: Option<Service>,
    slices: Vec<EndpointSlice>,
    overrides: Vec<telaio_model::Override>,
    node: Option<Node>,
    wants: Wants,
}

fn case(service: Service, slices: impl IntoIterator<Item = EndpointSlice>) -> Case {
    Case {
        service: Some(service),
        slices: slices.into_iter().collect(),
        overrides: vec![],
        node: Some(node("n1", Some("z1"))),
        wants: Wants::default(),
    }
}

/// A case of one slice.
fn one(service: Service, endpoints: impl IntoIterator<Item = Endpoint>) -> Case {
    case(service, [web_slice("web-1", endpoints.into_iter().collect())])
}

impl Case {
    fn on(mut self, node: Option<Node>) -> Self {
        self.node = node;
        self
    }

    fn overridden(mut self, target: OverrideTarget, action: OverrideAction) -> Self {
        let name = format!("o{}", self.overrides.len());
        self.overrides.push(web_override(&name, target, action));
        self
    }

    fn serving_endpoints(mut self) -> Self {
        self.wants.serving_endpoints = true;
        self
    }

    fn all_services(mut self) -> Self {
        self.wants.all_services = true;
        self
    }

    fn try_view(&self) -> Option<ServiceView> {
        let state = ServiceState::new(
            key("web"),
            self.service.clone().map(Arc::new),
            self.slices.iter().cloned().map(Arc::new).collect(),
            self.overrides.iter().cloned().map(Arc::new).collect(),
        );
        let node = NodeContext::new("n1".into(), self.node.as_ref());
        service_view(&state, &node, &self.wants)
    }

    fn view(&self) -> ServiceView {
        self.try_view().expect("the service is in the view")
    }

    /// Every endpoint's use of the port `name`, one line for each address.
    fn port(&self, name: &str) -> Vec<String> {
        let view = self.view();
        let port = view.service.ports.iter().find(|port| &*port.name == name).unwrap();
        let external = self.service.as_ref().unwrap().is_externally_accessible();
        let mut lines = BTreeSet::new();
        for endpoint in view.endpoints.values() {
            let Some((number, scopes)) = endpoint.port_for(port) else { continue };
            let letters = [
                (scopes.internal, 'i'),
                // Without a way in from outside, it does not matter what is said of such traffic.
                (scopes.external && external, 'e'),
                (scopes.cluster, 'c'),
                (scopes.local, 'l'),
            ];
            let letters: String =
                letters.iter().filter(|(set, _)| *set).map(|(_, letter)| letter).collect();
            for address in &endpoint.ips {
                let line = format!("{address}:{number} {letters}");
                assert!(lines.insert(line.clone()), "{line} is there twice");
            }
        }
        lines.into_iter().collect()
    }

    fn http(&self) -> Vec<String> {
        self.port("http")
    }

    fn has_endpoints(&self, name: &str) -> Families {
        let view = self.view();
        view.service.ports.iter().find(|port| &*port.name == name).unwrap().has_endpoints
    }
}

const V4: Families = Families { v4: true, v6: false };
const V6: Families = Families { v4: false, v6: true };
const BOTH: Families = Families { v4: true, v6: true };
const NEITHER: Families = Families { v4: false, v6: false };

fn here(number: u8) -> Endpoint {
    pod(&format!("here-{number}"), &format!("10.0.1.{number}"), "n1")
}

fn there(number: u8) -> Endpoint {
    pod(&format!("there-{number}"), &format!("10.0.2.{number}"), "n2")
}

mod traffic_policies {
    use super::*;

    #[test]
    fn policy_cluster_uses_every_ready_endpoint() {
        assert_eq!(one(web(), [here(1), there(1)]).http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn policy_cluster_from_outside_too() {
        let case = one(web().node_ports(), [here(1), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 iec", "10.0.2.1:80 iec"]);
    }

    #[test]
    fn internal_policy_local_uses_this_node_only_and_no_cluster_set() {
        assert_eq!(one(web().itp_local(), [here(1), there(1)]).http(), ["10.0.1.1:80 il"]);
    }

    #[test]
    fn internal_policy_local_leaves_traffic_from_outside_to_the_cluster_set() {
        let case = one(web().itp_local().node_ports(), [here(1), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 iecl", "10.0.2.1:80 ec"]);
    }

    #[test]
    fn external_policy_local_keeps_the_cluster_path_for_inside() {
        let case = one(web().etp_local().node_ports(), [here(1), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 iecl", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn external_policy_local_means_nothing_without_a_way_in_from_outside() {
        let case = one(web().etp_local(), [here(1), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn both_local_still_show_the_cluster_path_of_pods_to_external_addresses() {
        let case = one(web().itp_local().etp_local().node_ports(), [here(1), there(1)]);
        // A backend that reads no scopes must not be given what serves none that it knows.
        assert_eq!(case.http(), ["10.0.1.1:80 iecl"]);
        assert_eq!(case.serving_endpoints().http(), ["10.0.1.1:80 iecl", "10.0.2.1:80 c"]);
    }

    #[test]
    fn both_local_without_a_way_in_use_this_node_only() {
        let case = one(web().itp_local().etp_local(), [here(1), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 il"]);
    }

    #[test]
    fn an_external_address_and_a_load_balancer_are_ways_in() {
        let mut by_address = web().etp_local();
        by_address.external_ips.push(ip("192.0.2.1"));
        let by_balancer = web().etp_local().load_balancer("192.0.2.2", IpMode::Vip);
        for service in [by_address, by_balancer] {
            let case = one(service, [here(1), there(1)]);
            assert_eq!(case.http(), ["10.0.1.1:80 iecl", "10.0.2.1:80 ic"]);
        }
    }

    #[test]
    fn a_load_balancer_that_proxies_is_no_way_in() {
        let case =
            one(web().itp_local().load_balancer("192.0.2.2", IpMode::Proxy), [here(1), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 il"]);
    }

    #[test]
    fn an_endpoint_of_no_node_is_local_to_none() {
        let mut anywhere = here(1);
        anywhere.node = None;
        assert_eq!(one(web().itp_local(), [anywhere]).http(), [""; 0]);
    }

    #[test]
    fn policies_are_told_to_the_backend() {
        let view = one(web().itp_local().etp_local().node_ports(), []).view();
        assert!(view.service.internal_traffic_to_local);
        assert!(view.service.external_traffic_to_local);
    }

    #[test]
    fn the_view_says_which_endpoints_run_here() {
        let view = one(web(), [here(1), there(1)]).view();
        assert!(view.endpoints["here-1"].local);
        assert!(!view.endpoints["there-1"].local);
        assert_eq!(view.endpoints["there-1"].node.as_deref(), Some("n2"));
    }
}

mod fall_back {
    use super::*;

    #[test]
    fn what_leaves_is_used_when_nothing_is_ready_anywhere() {
        let case = one(web(), [here(1).is(LEAVING), there(1).is(LEAVING), there(2).is(GONE)]);
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn what_leaves_is_not_used_while_one_is_ready() {
        let case = one(web(), [here(1).is(LEAVING), there(1)]);
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn what_serves_and_stays_but_is_not_ready_is_never_used() {
        assert_eq!(one(web(), [here(1).is(SERVING)]).http(), [""; 0]);
    }

    #[test]
    fn ready_counts_even_while_terminating() {
        let both = telaio_model::Conditions { ready: true, serving: true, terminating: true };
        let case = one(web(), [here(1).is(both), there(1).is(LEAVING)]);
        assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
    }

    #[test]
    fn the_local_set_falls_back_by_itself() {
        let case = one(web().etp_local().node_ports(), [here(1).is(LEAVING), there(1)]);
        assert_eq!(case.http(), ["10.0.1.1:80 el", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn the_local_set_does_not_fall_back_while_one_is_ready_here() {
        let case = one(web().etp_local().node_ports(), [here(1), here(2).is(LEAVING)]);
        assert_eq!(case.http(), ["10.0.1.1:80 iecl"]);
    }

    #[test]
    fn both_sets_fall_back_together_when_all_leave() {
        let case = one(web().etp_local().node_ports(), [here(1).is(LEAVING), there(1).is(LEAVING)]);
        assert_eq!(case.http(), ["10.0.1.1:80 iecl", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn internal_policy_local_falls_back_here_only() {
        let case = one(web().itp_local(), [here(1).is(LEAVING), there(1), there(2).is(LEAVING)]);
        assert_eq!(case.http(), ["10.0.1.1:80 il"]);
    }

    #[test]
    fn each_family_falls_back_by_itself() {
        let service = web().cluster_ips(&["10.96.0.1", "fd00:96::1"]);
        let v4 = web_slice("web-4", vec![here(1).is(LEAVING)]);
        let v6 = web_slice(
            "web-6",
            vec![pod("x", "fd00::1", "n1"), { pod("y", "fd00::2", "n1").is(LEAVING) }],
        );
        assert_eq!(case(service, [v4, v6]).http(), ["10.0.1.1:80 ic", "fd00::1:80 ic"]);
    }
}

mod reject_or_drop {
    use super::*;

    #[test]
    fn no_endpoint_anywhere_is_a_reject() {
        for endpoints in [vec![], vec![here(1).is(UNREADY)], vec![there(1).is(GONE)], {
            vec![here(1).is(SERVING)]
        }] {
            assert_eq!(one(web(), endpoints).has_endpoints("http"), NEITHER);
        }
    }

    #[test]
    fn policy_local_with_endpoints_only_elsewhere_is_a_drop() {
        for service in [web().itp_local(), web().etp_local().node_ports()] {
            for there in [there(1), there(1).is(LEAVING)] {
                let case = one(service.clone(), [there]);
                assert_eq!(case.has_endpoints("http"), V4);
                assert!(!case.http().iter().any(|line| line.contains('l')));
            }
        }
    }

    #[test]
    fn policy_local_with_no_endpoint_anywhere_is_a_reject() {
        let case = one(web().itp_local(), [there(1).is(SERVING), here(1).is(UNREADY)]);
        assert_eq!(case.has_endpoints("http"), NEITHER);
    }

    #[test]
    fn each_family_and_port_is_told_apart() {
        let service = web()
            .cluster_ips(&["10.96.0.1", "fd00:96::1"])
            .ports(&[port("http", 80), port("admin", 81)]);
        let v4 = slice("a", "web", &[slice_port("http", 80)], vec![here(1)]);
        let v6 = slice(
            "b",
            "web",
            &[slice_port("http", 80), slice_port("admin", 81)],
            vec![pod("x", "fd00::1", "n1")],
        );
        let case = case(service, [v4, v6]);
        assert_eq!(case.has_endpoints("http"), BOTH);
        assert_eq!(case.has_endpoints("admin"), V6);
    }
}

mod topology {
    use super::*;

    #[test]
    fn zone_hints_keep_traffic_in_the_zone() {
        let case = one(
            web(),
            [
                here(1).for_zones(&["z1"]),
                there(1).for_zones(&["z2", "z1"]),
                there(2).for_zones(&["z2"]),
            ],
        );
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn one_ready_endpoint_without_a_zone_hint_makes_all_be_used() {
        let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"]), there(2)]);
        assert_eq!(case.http().len(), 3);
    }

    #[test]
    fn an_endpoint_that_is_not_ready_needs_no_hint() {
        let case = one(
            web(),
            [
                here(1).for_zones(&["z1"]),
                there(1).for_zones(&["z2"]),
                there(2).is(SERVING),
                there(3).is(LEAVING),
                there(4).is(UNREADY),
            ],
        );
        assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
    }

    #[test]
    fn hints_of_endpoints_that_are_not_ready_do_not_count() {
        let case =
            one(web(), [here(1).is(SERVING).for_zones(&["z1"]), there(1).for_zones(&["z2"])]);
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn zone_hints_that_name_other_zones_only_are_not_followed() {
        let case = one(web(), [here(1).for_zones(&["z2"]), there(1).for_zones(&["z3"])]);
        assert_eq!(case.http().len(), 2);
    }

    #[test]
    fn a_node_without_a_zone_uses_all() {
        for node in [Some(node("n1", None)), None] {
            let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])]);
            assert_eq!(case.on(node).http().len(), 2);
        }
    }

    #[test]
    fn node_hints_keep_traffic_on_the_node() {
        let case = one(
            web(),
            [
                here(1).for_nodes(&["n1"]).for_zones(&["z1"]),
                there(1).for_nodes(&["n2"]).for_zones(&["z1"]),
            ],
        );
        assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
    }

    #[test]
    fn node_hints_hold_for_a_node_that_the_cluster_does_not_know() {
        let case = one(web(), [here(1).for_nodes(&["n2"]), there(1).for_nodes(&["n1"])]);
        assert_eq!(case.on(None).http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn zone_hints_are_next_when_no_node_hint_names_this_node() {
        let case = one(
            web(),
            [
                there(1).for_nodes(&["n2"]).for_zones(&["z1"]),
                there(2).for_nodes(&["n3"]).for_zones(&["z2"]),
            ],
        );
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn zone_hints_are_next_when_one_lacks_a_node_hint() {
        let case = one(
            web(),
            [
                here(1).for_nodes(&["n1"]).for_zones(&["z1"]),
                there(1).for_zones(&["z1"]),
                there(2).for_zones(&["z2"]),
            ],
        );
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn all_are_used_when_neither_kind_of_hint_is_complete() {
        let case = one(web(), [here(1).for_nodes(&["n1"]), there(1).for_zones(&["z1"])]);
        assert_eq!(case.http().len(), 2);
    }

    #[test]
    fn hints_do_not_bind_the_local_set() {
        let case = one(
            web().etp_local().node_ports(),
            [here(1).for_zones(&["z2"]), there(1).for_zones(&["z1"])],
        );
        assert_eq!(case.http(), ["10.0.1.1:80 el", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn hints_do_not_bind_the_fall_back() {
        let case = one(
            web(),
            [here(1).is(LEAVING).for_zones(&["z1"]), there(1).is(LEAVING).for_zones(&["z2"])],
        );
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn hints_are_weighed_for_each_port_and_family_by_itself() {
        let service = web()
            .cluster_ips(&["10.96.0.1", "fd00:96::1"])
            .ports(&[port("http", 80), port("admin", 81)]);
        let hinted = slice(
            "a",
            "web",
            &[slice_port("http", 80), slice_port("admin", 81)],
            vec![here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])],
        );
        let unhinted = slice("b", "web", &[slice_port("admin", 81)], vec![there(2)]);
        let v6 = web_slice(
            "c",
            vec![pod("x", "fd00::1", "n1").for_zones(&["z1"]), pod("y", "fd00::2", "n2")],
        );
        let case = case(service, [hinted, unhinted, v6]);
        assert_eq!(
            case.http(),
            ["10.0.1.1:80 ic", "10.0.2.1:80 ", "fd00::1:80 ic", "fd00::2:80 ic"]
        );
        assert_eq!(case.port("admin").len(), 3);
    }

    #[test]
    fn a_change_of_hints_alone_reaches_the_view() {
        let store = Store::new();
        let hinted = |zone: &str| {
            web_slice("web-1", vec![here(1).for_zones(&["z1"]), there(1).for_zones(&[zone])])
        };
        store.apply(set([web().into(), node("n1", Some("z1")).into(), hinted("z2").into()]));
        let mut watch = LocalWatch::new(&store, "n1", Wants::default());
        let mut follower = Follower::default();
        follower.pull(&mut watch);
        assert_eq!(follower.endpoints.len(), 1);
        assert!(store.apply(set([hinted("z1").into()])).is_some());
        assert!(follower.pull(&mut watch));
        assert_eq!(follower.endpoints.len(), 2);
    }
}

mod services {
    use super::*;

    #[test]
    fn services_of_other_proxies_are_left_out() {
        for value in ["", "cilium"] {
            assert!(one(web().label(LABEL_PROXY_NAME, value), [here(1)]).try_view().is_none());
        }
    }

    #[test]
    fn headless_services_are_left_out() {
        let mut headless = web();
        headless.headless = true;
        headless.cluster_ips.clear();
        assert!(one(headless, [here(1)]).try_view().is_none());
        assert!(one(web().label(LABEL_HEADLESS, ""), [here(1)]).try_view().is_none());
    }

    #[test]
    fn names_for_names_are_left_out() {
        let mut external = web();
        external.service_type = ServiceType::ExternalName;
        external.cluster_ips.clear();
        external.external_name = Some("example.com".into());
        assert!(one(external, []).try_view().is_none());
    }

    #[test]
    fn a_receiver_that_wants_all_services_gets_those_too() {
        let mut headless = web();
        headless.headless = true;
        headless.cluster_ips.clear();
        let case = one(headless, [here(1), there(1)]).all_services();
        assert!(case.view().service.headless);
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 ic"]);

        let mut external = web();
        external.service_type = ServiceType::ExternalName;
        external.cluster_ips.clear();
        external.external_name = Some("example.com".into());
        let view = one(external, []).all_services().view();
        assert_eq!(view.service.external_name.as_deref(), Some("example.com"));
    }

    #[test]
    fn a_load_balancer_address_is_used_only_as_a_vip() {
        let service = web()
            .load_balancer("192.0.2.1", IpMode::Vip)
            .load_balancer("192.0.2.2", IpMode::Proxy)
            .load_balancer("2001:db8::1", IpMode::Vip);
        let view = one(service, []).view();
        assert_eq!(view.service.load_balancer_ips, [ip("192.0.2.1"), ip("2001:db8::1")]);
    }

    #[test]
    fn what_the_backend_must_know_is_carried_over() {
        let mut service = web().node_ports();
        service.external_ips = vec![ip("192.0.2.7")];
        service.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
        service.session_affinity = Some(ClientIpAffinity { timeout_s: 7 });
        service.health_check_node_port = Some(32_000);
        service.ports[0].app_protocol = Some("kubernetes.io/h2c".into());
        service.ports.push(telaio_model::ServicePort {
            protocol: Protocol::Sctp,
            target_port: TargetPort::Name("sig".into()),
            ..port("sctp", 9)
        });
        service.meta.annotations.insert("a".into(), "b".into());
        let view = one(service.label("l", "m"), []).view();
        let local = &view.service;
        assert_eq!(local.key, key("web"));
        assert_eq!(local.service_type, ServiceType::NodePort);
        assert_eq!(local.cluster_ips, [ip("10.96.0.1")]);
        assert_eq!(local.external_ips, [ip("192.0.2.7")]);
        assert_eq!(local.source_ranges, ["192.0.2.0/24".parse().unwrap()]);
        assert_eq!(local.session_affinity, Some(ClientIpAffinity { timeout_s: 7 }));
        assert_eq!(local.health_check_node_port, Some(32_000));
        assert_eq!(local.labels.get("l").map(|it| &**it), Some("m"));
        assert_eq!(local.annotations.get("a").map(|it| &**it), Some("b"));
        assert_eq!(local.ports[0].node_port, Some(30_000));
        assert_eq!(local.ports[0].target_port, Some(80));
        assert_eq!(local.ports[0].app_protocol.as_deref(), Some("kubernetes.io/h2c"));
        assert_eq!(local.ports[1].protocol, Protocol::Sctp);
        assert_eq!(local.ports[1].target_port, None);
        assert_eq!(local.ports[1].target_port_name.as_deref(), Some("sig"));
    }

    #[test]
    fn endpoints_without_their_service_are_in_no_view() {
        let mut orphan = one(web(), [here(1)]);
        orphan.service = None;
        assert!(orphan.all_services().serving_endpoints().try_view().is_none());
    }

    #[test]
    fn endpoints_that_came_before_their_service_are_found_when_it_comes() {
        let store = Store::new();
        store.apply(set([web_slice("web-1", vec![here(1)]).into()]));
        let mut watch = LocalWatch::new(&store, "n1", Wants::default());
        let mut follower = Follower::default();
        follower.pull(&mut watch);
        assert!(follower.services.is_empty() && follower.endpoints.is_empty());
        store.apply(set([web().into()]));
        assert!(follower.pull(&mut watch));
        assert_eq!(follower.endpoints.len(), 1);
        store.apply(delete([ObjectRef::new(Kind::Service, key("web"))]));
        assert!(follower.pull(&mut watch));
        assert!(follower.services.is_empty() && follower.endpoints.is_empty());
    }
}

mod ports {
    use super::*;

    #[test]
    fn each_port_is_served_by_the_slices_that_have_it() {
        let service = web().ports(&[port("http", 80), port("admin", 81)]);
        let a = slice("a", "web", &[slice_port("http", 8080)], vec![here(1)]);
        let b = slice("b", "web", &[slice_port("admin", 8081)], vec![there(1)]);
        let case = case(service, [a, b]);
        assert_eq!(case.http(), ["10.0.1.1:8080 ic"]);
        assert_eq!(case.port("admin"), ["10.0.2.1:8081 ic"]);
    }

    #[test]
    fn fall_back_is_decided_for_each_port_by_itself() {
        let service = web().ports(&[port("http", 80), port("admin", 81)]);
        let a = slice("a", "web", &[slice_port("http", 80)], vec![here(1)]);
        let ports = [slice_port("http", 80), slice_port("admin", 81)];
        let b = slice("b", "web", &ports, vec![there(1).is(LEAVING)]);
        let case = case(service, [a, b]);
        assert_eq!(case.http(), ["10.0.1.1:80 ic", "10.0.2.1:80 "]);
        assert_eq!(case.port("admin"), ["10.0.2.1:81 ic"]);
    }

    #[test]
    fn a_port_by_name_can_have_another_number_in_each_slice() {
        let mut service = web();
        service.ports[0].target_port = TargetPort::Name("web".into());
        let a = slice("a", "web", &[slice_port("http", 8080)], vec![here(1)]);
        let b = slice("b", "web", &[slice_port("http", 9090)], vec![there(1)]);
        assert_eq!(case(service, [a, b]).http(), ["10.0.1.1:8080 ic", "10.0.2.1:9090 ic"]);
    }

    #[test]
    fn the_protocol_must_be_the_same() {
        let udp = EndpointPort { protocol: Some(Protocol::Udp), ..slice_port("http", 80) };
        let case = case(web(), [slice("a", "web", &[udp], vec![here(1)])]);
        assert_eq!(case.http(), [""; 0]);
        assert_eq!(case.has_endpoints("http"), NEITHER);
    }

    #[test]
    fn an_unsaid_protocol_is_any() {
        let any = EndpointPort { protocol: None, ..slice_port("http", 80) };
        assert_eq!(
            case(web(), [slice("a", "web", &[any], vec![here(1)])]).http(),
            ["10.0.1.1:80 ic"]
        );
    }

    #[test]
    fn a_port_without_a_number_serves_nothing() {
        let nil = EndpointPort { port: None, ..slice_port("http", 80) };
        let case = case(web(), [slice("a", "web", &[nil], vec![here(1)])]);
        assert_eq!(case.http(), [""; 0]);
        assert_eq!(case.has_endpoints("http"), NEITHER);
    }

    #[test]
    fn a_port_without_a_name_serves_the_port_without_a_name() {
        let case = case(
            web().ports(&[port("", 80)]),
            [
                slice("a", "web", &[slice_port("", 8080)], vec![here(1)]),
                slice("b", "web", &[slice_port("http", 8080)], vec![there(1)]),
            ],
        );
        assert_eq!(case.port(""), ["10.0.1.1:8080 ic"]);
    }

    #[test]
    fn a_slice_without_ports_serves_nothing() {
        let case = case(web(), [slice("a", "web", &[], vec![here(1)])]);
        assert_eq!(case.http(), [""; 0]);
        assert_eq!(case.has_endpoints("http"), NEITHER);
    }

    #[test]
    fn a_slice_of_host_names_serves_nothing() {
        let mut fqdn = web_slice("a", vec![]);
        fqdn.address_type = AddressType::Fqdn;
        assert_eq!(case(web(), [fqdn]).has_endpoints("http"), NEITHER);
    }

    #[test]
    fn a_port_that_the_service_does_not_have_is_not_shown() {
        let ports = [slice_port("http", 80), slice_port("metrics", 9000)];
        let view = case(web(), [slice("a", "web", &ports, vec![here(1)])]).view();
        assert_eq!(view.endpoints["here-1"].ports.len(), 1);
    }
}

mod overlapping_slices {
    use super::*;

    #[test]
    fn the_first_slice_by_name_wins() {
        let a = web_slice("a", vec![there(1).is(UNREADY)]);
        let b = web_slice("b", vec![there(1), there(2)]);
        assert_eq!(case(web(), [a, b]).http(), ["10.0.2.2:80 ic"]);
    }

    #[test]
    fn the_first_slice_wins_for_both_sets_also_here() {
        let a = web_slice("a", vec![here(1)]);
        let b = web_slice("b", vec![here(1).is(LEAVING)]);
        let case = case(web().etp_local().node_ports(), [a, b]);
        assert_eq!(case.http(), ["10.0.1.1:80 iecl"]);
    }

    #[test]
    fn ports_of_one_pod_from_two_slices_are_one_endpoint() {
        let service = web().ports(&[port("http", 80), port("admin", 81)]);
        let a = slice("a", "web", &[slice_port("http", 80)], vec![here(1)]);
        let b = slice("b", "web", &[slice_port("admin", 81)], vec![here(1)]);
        let case = case(service, [a, b]);
        assert_eq!(case.view().endpoints.len(), 1);
        assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
        assert_eq!(case.port("admin"), ["10.0.1.1:81 ic"]);
    }

    #[test]
    fn ports_of_one_pod_in_two_states_keep_each_its_state() {
        let service = web().ports(&[port("http", 80), port("admin", 81)]);
        let a = slice("a", "web", &[slice_port("http", 80)], vec![here(1)]);
        let b = slice("b", "web", &[slice_port("admin", 81)], vec![here(1).is(UNREADY)]);
        let case = case(service, [a, b]);
        assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
        assert_eq!(case.has_endpoints("admin"), NEITHER);
        assert!(!case.port("admin").iter().any(|line| line.contains('c')));
    }

    #[test]
    fn a_later_slice_serves_the_port_that_an_earlier_one_lacks() {
        let a = slice("a", "web", &[slice_port("other", 81)], vec![here(1).is(UNREADY)]);
        let b = web_slice("b", vec![here(1)]);
        assert_eq!(case(web(), [a, b]).http(), ["10.0.1.1:80 ic"]);
    }

    #[test]
    fn one_address_at_two_numbers_of_a_port_is_two_endpoints() {
        let a = slice("a", "web", &[slice_port("http", 8080)], vec![there(1)]);
        let b = slice("b", "web", &[slice_port("http", 9090)], vec![there(1)]);
        assert_eq!(case(web(), [a, b]).http(), ["10.0.2.1:8080 ic", "10.0.2.1:9090 ic"]);
    }

    #[test]
    fn an_address_twice_in_one_slice_is_one_endpoint() {
        let a = web_slice("a", vec![there(1), there(1)]);
        assert_eq!(case(web(), [a]).http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn one_address_under_two_pod_names_is_served_once() {
        let mut other = there(1);
        other.pod = Some("other".into());
        let case = case(web(), [web_slice("a", vec![there(1)]), web_slice("b", vec![other])]);
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }
}

mod dual_stack {
    use super::*;

    fn both() -> Service {
        web().cluster_ips(&["10.96.0.1", "fd00:96::1"])
    }

    #[test]
    fn one_pod_with_two_addresses_is_one_endpoint() {
        let v4 = web_slice("a", vec![pod("p", "10.0.0.1", "n1")]);
        let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
        for slices in [
            [v4.clone(), v6.clone()],
            [EndpointSlice { key: key("b"), ..v4 }, EndpointSlice { key: key("a"), ..v6 }],
        ] {
            let mut slices = slices;
            slices.sort_by(|a, b| a.key.cmp(&b.key));
            let case = case(both(), slices);
            let view = case.view();
            assert_eq!(view.endpoints.len(), 1);
            assert_eq!(view.endpoints["p"].ips, [ip("10.0.0.1"), ip("fd00::1")]);
            assert!(view.endpoints["p"].is_named());
        }
    }

    #[test]
    fn one_pod_whose_ports_are_in_two_slices_of_one_family_is_one_endpoint() {
        let service = both().ports(&[port("http", 80), port("admin", 81)]);
        let [http, admin] = [slice_port("http", 80), slice_port("admin", 81)];
        let v4 = || vec![pod("p", "10.0.0.1", "n1")];
        let v6 = vec![pod("p", "fd00::1", "n1")];
        let case = case(
            service,
            [
                slice("a", "web", std::slice::from_ref(&http), v4()),
                slice("b", "web", std::slice::from_ref(&admin), v4()),
                slice("c", "web", &[http, admin], v6),
            ],
        );
        assert_eq!(case.view().endpoints.len(), 1);
        assert_eq!(case.http(), ["10.0.0.1:80 ic", "fd00::1:80 ic"]);
        assert_eq!(case.port("admin"), ["10.0.0.1:81 ic", "fd00::1:81 ic"]);
    }

    #[test]
    fn one_pod_in_two_states_is_two_endpoints() {
        let v4 = web_slice("a", vec![pod("p", "10.0.0.1", "n1").is(LEAVING)]);
        let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
        let case = case(both(), [v4, v6]);
        assert_eq!(case.http(), ["10.0.0.1:80 ic", "fd00::1:80 ic"]);
        let view = case.view();
        assert_eq!(view.endpoints.len(), 2);
        for endpoint in view.endpoints.values() {
            assert_eq!(endpoint.ips.len(), 1);
            assert_eq!(endpoint.conditions.ready, endpoint.ips[0].is_ipv6());
            assert_eq!(endpoint.pod.as_deref(), Some("p"));
        }
    }

    #[test]
    fn one_pod_with_different_scopes_keeps_each() {
        let v4 = web_slice(
            "a",
            vec![
                pod("p", "10.0.0.1", "n1").for_zones(&["z2"]),
                pod("q", "10.0.0.2", "n2").for_zones(&["z1"]),
            ],
        );
        let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
        let case = case(both(), [v4, v6]).serving_endpoints();
        assert_eq!(case.http(), ["10.0.0.1:80 ", "10.0.0.2:80 ic", "fd00::1:80 ic"]);
    }

    #[test]
    fn one_pod_with_different_port_numbers_keeps_each() {
        let a = slice("a", "web", &[slice_port("http", 8080)], vec![pod("p", "10.0.0.1", "n1")]);
        let b = slice("b", "web", &[slice_port("http", 9090)], vec![pod("p", "fd00::1", "n1")]);
        assert_eq!(case(both(), [a, b]).http(), ["10.0.0.1:8080 ic", "fd00::1:9090 ic"]);
    }

    #[test]
    fn two_addresses_of_one_family_under_one_pod_name_are_both_served() {
        let a = web_slice("a", vec![pod("p", "10.0.0.1", "n1"), pod("p", "10.0.0.2", "n1")]);
        assert_eq!(case(web(), [a]).http(), ["10.0.0.1:80 ic", "10.0.0.2:80 ic"]);
    }
}

mod names {
    use super::*;

    fn ids(case: &Case) -> Vec<String> {
        case.view().endpoints.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn an_endpoint_without_a_pod_is_named_by_a_hash() {
        let case = one(web(), [Endpoint::at(ip("10.0.0.1")), Endpoint::at(ip("10.0.0.2"))]);
        let ids = ids(&case);
        assert_eq!(ids.len(), 2);
        for (id, endpoint) in &case.view().endpoints {
            assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
            assert!(!endpoint.is_named());
            assert_eq!(endpoint.key.id, *id);
            assert_eq!(endpoint.key.service, key("web"));
        }
    }

    #[test]
    fn the_hash_stays_while_the_state_changes() {
        let plain = Endpoint::at(ip("10.0.0.1"));
        let mut hinted = plain.clone().for_zones(&["z1"]).is(LEAVING).weighs(3);
        hinted.node = Some("n1".into());
        hinted.zone = Some("z1".into());
        assert_eq!(ids(&one(web(), [plain.clone()])), ids(&one(web(), [hinted])));
        let with_more = one(web(), [Endpoint::at(ip("10.0.0.9")), plain.clone()]);
        assert!(ids(&with_more).contains(&ids(&one(web(), [plain]))[0]));
    }

    #[test]
    fn a_pods_endpoint_is_named_after_it() {
        let case = one(web(), [here(1)]);
        assert_eq!(ids(&case), ["here-1"]);
        assert!(case.view().endpoints["here-1"].is_named());
    }

    #[test]
    fn a_host_name_is_kept() {
        let mut endpoint = here(1);
        endpoint.hostname = Some("web-0".into());
        endpoint.zone = Some("z9".into());
        let view = one(web(), [endpoint]).view();
        assert_eq!(view.endpoints["here-1"].hostname.as_deref(), Some("web-0"));
        assert_eq!(view.endpoints["here-1"].zone.as_deref(), Some("z9"));
    }
}

mod overrides {
    use super::*;
    use OverrideAction::{Drain, Weight};

    fn weights(case: &Case) -> BTreeMap<String, u16> {
        let view = case.view();
        view.endpoints.iter().map(|(id, it)| (id.to_string(), it.weight)).collect()
    }

    fn by_address() -> OverrideTarget {
        OverrideTarget::Address(ip("10.0.1.1"))
    }

    #[test]
    fn a_drained_endpoint_gets_nothing_new() {
        for target in
            [by_address(), OverrideTarget::Pod("here-1".into()), OverrideTarget::Node("n1".into())]
        {
            let case = one(web().etp_local().node_ports(), [here(1), there(1)]);
            assert_eq!(case.overridden(target, Drain).http(), ["10.0.2.1:80 ic"]);
        }
    }

    #[test]
    fn a_drained_endpoint_is_shown_to_who_wants_what_serves() {
        let case = one(web(), [here(1), there(1)]).overridden(by_address(), Drain);
        assert_eq!(case.serving_endpoints().http(), ["10.0.1.1:80 ", "10.0.2.1:80 ic"]);
    }

    #[test]
    fn nothing_falls_back_to_a_drained_endpoint() {
        let case = one(web(), [here(1).is(LEAVING)]).overridden(by_address(), Drain);
        assert_eq!(case.http(), [""; 0]);
        let case = one(web(), [here(1)]).overridden(by_address(), Drain);
        assert_eq!(case.http(), [""; 0]);
    }

    #[test]
    fn the_rest_serves_as_if_the_drained_endpoint_were_not_there() {
        // Its hint no longer holds traffic in a zone where nobody is left.
        let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])])
            .overridden(by_address(), Drain);
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
        // Nor does its lack of one open the zone.
        let case = one(web(), [here(1), here(2).for_zones(&["z1"]), there(1).for_zones(&["z2"])])
            .overridden(by_address(), Drain);
        assert_eq!(case.http(), ["10.0.1.2:80 ic"]);
        // What leaves serves when all that is ready is drained.
        let case = one(web(), [here(1), there(1).is(LEAVING)]).overridden(by_address(), Drain);
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn a_weight_is_carried() {
        for target in
            [by_address(), OverrideTarget::Pod("here-1".into()), OverrideTarget::Node("n1".into())]
        {
            let case = one(web(), [here(1), there(1)]).overridden(target, Weight(5));
            assert_eq!(weights(&case), [("here-1".into(), 5), ("there-1".into(), 1)].into());
        }
    }

    #[test]
    fn a_weight_of_zero_takes_nothing_new() {
        let case = one(web(), [here(1), there(1)]).overridden(by_address(), Weight(0));
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
        let case = one(web(), [here(1).weighs(0), there(1)]);
        assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
    }

    #[test]
    fn a_person_overrules_the_weight_of_the_cluster() {
        let case =
            one(web(), [here(1).weighs(0), there(1).weighs(7)]).overridden(by_address(), Weight(3));
        assert_eq!(weights(&case), [("here-1".into(), 3), ("there-1".into(), 7)].into());
    }

    #[test]
    fn a_drain_holds_beside_a_weight() {
        for actions in [[Drain, Weight(5)], [Weight(5), Drain]] {
            let mut case = one(web(), [here(1), there(1)]);
            for action in actions {
                case = case.overridden(by_address(), action);
            }
            assert_eq!(case.http(), ["10.0.2.1:80 ic"]);
        }
    }

    #[test]
    fn an_override_of_nobody_changes_nothing() {
        for target in [
            OverrideTarget::Address(ip("10.9.9.9")),
            OverrideTarget::Pod("nobody".into()),
            OverrideTarget::Node("n9".into()),
        ] {
            let case = one(web(), [here(1), there(1)]).overridden(target, Drain);
            assert_eq!(case.http().len(), 2);
        }
    }

    #[test]
    fn draining_one_address_of_a_pod_leaves_the_other() {
        let service = web().cluster_ips(&["10.96.0.1", "fd00:96::1"]);
        let v4 = web_slice("a", vec![pod("p", "10.0.1.1", "n1")]);
        let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
        let case = case(service, [v4, v6]).overridden(by_address(), Drain);
        assert_eq!(case.http(), ["fd00::1:80 ic"]);
    }

    #[test]
    fn weighting_one_address_of_a_pod_leaves_the_other() {
        let service = web().cluster_ips(&["10.96.0.1", "fd00:96::1"]);
        let v4 = web_slice("a", vec![pod("p", "10.0.1.1", "n1")]);
        let v6 = web_slice("b", vec![pod("p", "fd00::1", "n1")]);
        let view = case(service, [v4, v6]).overridden(by_address(), Weight(9)).view();
        for endpoint in view.endpoints.values() {
            for address in &endpoint.ips {
                assert_eq!(endpoint.weight, if address.is_ipv4() { 9 } else { 1 }, "{address}");
            }
        }
    }

    /// What a store's watcher at `n1` has of `web`, as addresses.
    fn addresses(follower: &Follower) -> Vec<String> {
        follower.endpoints.values().flat_map(|it| &it.ips).map(ToString::to_string).collect()
    }

    #[test]
    fn an_override_ends_at_its_time() {
        let store = Store::new();
        let mut drain = web_override("o", by_address(), Drain);
        drain.until_s = Some(100);
        store.set_time(50);
        let slice = web_slice("web-1", vec![here(1), there(1)]);
        store.apply(set([web().into(), slice.into(), drain.clone().into()]));
        let mut watch = LocalWatch::new(&store, "n1", Wants::default());
        let mut follower = Follower::default();
        follower.pull(&mut watch);
        assert_eq!(addresses(&follower), ["10.0.2.1"]);
        assert_eq!(store.set_time(99), None);
        assert!(!follower.pull(&mut watch));
        assert!(store.set_time(100).is_some());
        assert!(follower.pull(&mut watch));
        assert_eq!(addresses(&follower), ["10.0.1.1", "10.0.2.1"]);
        // Prolonged, it counts again.
        drain.until_s = Some(200);
        store.apply(set([drain.clone().into()]));
        assert!(follower.pull(&mut watch));
        assert_eq!(addresses(&follower), ["10.0.2.1"]);
        // Shortened into the past, it no longer does.
        drain.until_s = Some(60);
        store.apply(set([drain.into()]));
        assert!(follower.pull(&mut watch));
        assert_eq!(addresses(&follower), ["10.0.1.1", "10.0.2.1"]);
    }

    #[test]
    fn an_override_can_come_before_its_service_and_go_again() {
        let store = Store::new();
        store.apply(set([web_override("o", by_address(), Drain).into()]));
        let slice = web_slice("web-1", vec![here(1), there(1)]);
        store.apply(set([web().into(), slice.into()]));
        let mut watch = LocalWatch::new(&store, "n1", Wants::default());
        let mut follower = Follower::default();
        follower.pull(&mut watch);
        assert_eq!(addresses(&follower), ["10.0.2.1"]);
        store.apply(delete([ObjectRef::new(Kind::Override, key("o"))]));
        assert!(follower.pull(&mut watch));
        assert_eq!(addresses(&follower), ["10.0.1.1", "10.0.2.1"]);
    }

    #[test]
    fn an_override_can_move_to_another_service() {
        let store = Store::new();
        let mut drain = web_override("o", by_address(), Drain);
        let other = slice("other-1", "other", &[slice_port("http", 80)], vec![here(1)]);
        let ours = web_slice("web-1", vec![here(1)]);
        store.apply(set([
            web().into(),
            service("other", "10.96.0.2").into(),
            ours.into(),
            other.into(),
            drain.clone().into(),
        ]));
        let mut watch = LocalWatch::new(&store, "n1", Wants::default());
        let mut follower = Follower::default();
        follower.pull(&mut watch);
        let services = |follower: &Follower| -> Vec<String> {
            follower.endpoints.keys().map(|it| it.service.name.to_string()).collect()
        };
        assert_eq!(services(&follower), ["other"]);
        drain.service = key("other");
        store.apply(set([drain.into()]));
        assert!(follower.pull(&mut watch));
        assert_eq!(services(&follower), ["web"]);
    }
}

mod wants {
    use super::*;

    #[test]
    fn what_serves_in_no_scope_is_shown_only_when_wanted() {
        let endpoints = || {
            [
                here(1),
                here(2).is(LEAVING),
                there(1).is(SERVING),
                there(2).is(UNREADY),
                there(3).is(GONE),
            ]
        };
        assert_eq!(one(web(), endpoints()).http(), ["10.0.1.1:80 ic"]);
        assert_eq!(
            one(web(), endpoints()).serving_endpoints().http(),
            ["10.0.1.1:80 ic", "10.0.1.2:80 ", "10.0.2.1:80 "]
        );
    }

    #[test]
    fn ready_endpoints_that_policy_or_topology_leaves_out_are_shown_when_wanted() {
        let case = one(web().itp_local(), [here(1), there(1)]).serving_endpoints();
        assert_eq!(case.http(), ["10.0.1.1:80 il", "10.0.2.1:80 "]);
        let case = one(web(), [here(1).for_zones(&["z1"]), there(1).for_zones(&["z2"])]);
        assert_eq!(case.http(), ["10.0.1.1:80 ic"]);
        assert_eq!(case.serving_endpoints().http(), ["10.0.1.1:80 ic", "10.0.2.1:80 "]);
    }

    #[test]
    fn what_is_wanted_besides_changes_no_decision() {
        let endpoints = [here(1).is(LEAVING), there(1), there(2).is(LEAVING)];
        let plain = one(web().etp_local().node_ports(), endpoints.clone());
        let more = one(web().etp_local().node_ports(), endpoints).serving_endpoints();
        assert_eq!(plain.has_endpoints("http"), more.has_endpoints("http"));
        let used = |case: &Case| -> Vec<String> {
            case.http().into_iter().filter(|line| !line.ends_with(' ')).collect()
        };
        assert_eq!(used(&plain), used(&more));
        assert_eq!(plain.http(), used(&plain));
    }

    #[test]
    fn other_objects_come_only_when_wanted() {
        let store = Store::new();
        let namespace: Object = telaio_model::Namespace {
            meta: telaio_model::Meta::named(telaio_model::ObjectKey::cluster("default")),
        }
        .into();
        store.apply(set([namespace.clone(), node("n1", None).into()]));
        let mut plain = LocalWatch::new(&store, "n1", Wants::default());
        let mut follower = Follower::default();
        follower.pull(&mut plain);
        assert!(follower.objects.is_empty());
        let wants = Wants { kinds: [Kind::Namespace].into(), ..Wants::default() };
        let mut more = LocalWatch::new(&store, "n1", wants);
        let mut follower = Follower::default();
        follower.pull(&mut more);
        assert_eq!(follower.objects.values().collect::<Vec<_>>(), [&namespace]);
        store.apply(delete([namespace.object_ref()]));
        assert!(plain.next().now_or_never().is_none(), "nothing that it wanted has changed");
        assert!(follower.pull(&mut more));
        assert!(follower.objects.is_empty());
    }
}
