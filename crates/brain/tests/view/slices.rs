//! One endpoint in several slices, of several families, with and without a pod.

mod overlapping_slices {
    use crate::*;

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
    use crate::*;

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
    use crate::*;

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
    fn the_hash_does_not_see_ports_without_a_number() {
        // They do not travel from brain to brain, and all brains must give the same names.
        let nil = EndpointPort { port: None, ..slice_port("admin", 81) };
        let named = |ports: &[EndpointPort]| {
            let endpoint = Endpoint::at(ip("10.0.0.1"));
            ids(&case(web(), [slice("a", "web", ports, vec![endpoint])]))
        };
        let http = slice_port("http", 80);
        assert_eq!(named(&[http.clone(), nil]), named(&[http]));
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
