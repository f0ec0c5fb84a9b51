//! Which services are shown, and which slices serve which of their ports.

mod kinds {
    use crate::*;

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
    use crate::*;

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
