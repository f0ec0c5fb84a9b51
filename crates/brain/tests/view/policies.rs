//! Traffic policies, terminating fall-back, and what is left when nothing is.

mod traffic_policies {
    use crate::*;

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
    use crate::*;

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
    use crate::*;

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
