use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use telaio_model::{
    Conditions, ContainerPort, IpFamily, Meta, PodPhase, Protocol, ServicePort, ServiceType,
    TargetPort, TrafficPolicy,
};

use super::*;
use crate::manifest::FamilyPolicy;

fn service(name: &str) -> Service {
    serde_json::from_value(serde_json::json!({
        "meta": {"namespace": "shop", "name": name},
        "ports": [{"port": 80, "targetPort": 8080}],
    }))
    .unwrap()
}

fn pod(name: &str, ip: &str) -> Pod {
    Pod {
        meta: Meta {
            labels: [(Arc::from("app"), Arc::from("web"))].into(),
            ..Meta::named(ObjectKey::new("shop", name))
        },
        node: None,
        host_network: false,
        hostname: None,
        ports: Vec::new(),
        ips: vec![ip.parse().unwrap()],
        phase: PodPhase::Running,
        ready: true,
        terminating: false,
    }
}

fn node(name: &str, zone: &str) -> Node {
    serde_json::from_value(serde_json::json!({
        "meta": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
    }))
    .unwrap()
}

fn set(object: impl Into<Object>) -> Change {
    let object = object.into();
    let file = format!("{}.yaml", object.key().name);
    Change::Set(Declared::new(object, Origin::new(file, 1)))
}

fn set_allocated(service: Service, allocation: ServiceAllocation) -> Change {
    let Change::Set(declared) = set(service) else { unreachable!() };
    Change::Set(Declared { allocation: Some(Box::new(allocation)), ..declared })
}

fn delete(kind: Kind, name: &str) -> Change {
    Change::Delete(ObjectRef::new(kind, ObjectKey::new("shop", name)))
}

fn options(cidrs: &[&str]) -> Options {
    Options {
        service_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        ..Options::default()
    }
}

/// A control plane together with all that it has said.
struct Watched {
    control_plane: ControlPlane,
    objects: BTreeMap<ObjectRef, Object>,
    errors: BTreeMap<ObjectKey, Vec<String>>,
}

impl Watched {
    fn new(options: Options, allocations: &Allocations) -> Self {
        let control_plane = ControlPlane::new(options, allocations);
        Self { control_plane, objects: BTreeMap::new(), errors: BTreeMap::new() }
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Outcome {
        let changes: Vec<Change> = changes.into_iter().collect();
        let single = changes.len() == 1;
        let outcome = self.control_plane.apply(changes);
        for change in &outcome.changes {
            // What is ours to make must not be sent without need; pods and nodes go through as they
            // come, and a service that goes and comes back in one batch is sent.
            let ours =
                matches!(change.object_ref().kind, Kind::Service | Kind::EndpointSlice) && single;
            match change.clone() {
                ObjectChange::Set(object) => {
                    let before = self.objects.insert(object.object_ref(), object.clone());
                    assert!(!ours || before.as_ref() != Some(&object), "{object:?} did not change");
                }
                ObjectChange::Delete(object) => {
                    let before = self.objects.remove(&object);
                    assert!(!ours || before.is_some(), "{object} was not there");
                }
            }
        }
        for (key, verdict) in &outcome.verdicts {
            let errors: Vec<_> = verdict.errors.iter().map(ToString::to_string).collect();
            if errors.is_empty() {
                self.errors.remove(key);
            } else {
                self.errors.insert(key.clone(), errors);
            }
        }
        outcome
    }

    fn service(&self, name: &str) -> Option<&Service> {
        let key = ObjectRef::new(Kind::Service, ObjectKey::new("shop", name));
        match self.objects.get(&key) {
            Some(Object::Service(service)) => Some(service),
            _ => None,
        }
    }

    fn ips(&self, name: &str) -> Vec<String> {
        let ips = self.service(name).map(|service| service.cluster_ips.as_slice());
        ips.unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    fn slices(&self) -> Vec<&EndpointSlice> {
        let slices = self.objects.values().filter_map(|object| match object {
            Object::EndpointSlice(slice) => Some(&**slice),
            _ => None,
        });
        slices.collect()
    }
}

#[test]
fn what_is_written_is_kept_as_it_is() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    let written = Service { cluster_ips: vec!["10.96.0.9".parse().unwrap()], ..service("web") };
    let outcome = watched.apply([set(written.clone())]);
    assert_eq!(watched.service("web"), Some(&written));
    assert!(!outcome.allocations_changed);
}

#[test]
fn an_address_stays_while_others_come_and_go() {
    let mut watched = Watched::new(options(&["10.96.0.0/24"]), &Allocations::new());
    watched.apply([set(service("web"))]);
    let ips = watched.ips("web");
    assert_eq!(ips.len(), 1);
    for round in 0..100 {
        watched.apply([set(service(&format!("other-{round}")))]);
        assert_eq!(watched.ips("web"), ips);
    }
    for round in 0..100 {
        watched.apply([delete(Kind::Service, &format!("other-{round}"))]);
    }
    assert_eq!(watched.ips("web"), ips);
    assert_eq!(watched.control_plane.allocations().len(), 1);
}

#[test]
fn the_same_service_gets_the_same_address_without_any_state() {
    let ips = |names: &[&str]| {
        let mut watched = Watched::new(options(&["10.96.0.0/12"]), &Allocations::new());
        watched.apply(names.iter().map(|name| set(service(name))));
        watched.ips("web")
    };
    assert_eq!(ips(&["web"]), ips(&["db", "web", "api"]));
}

#[test]
fn a_written_address_wins_over_a_given_one() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    watched.apply([set(service("web"))]);
    let given: IpAddr = watched.ips("web")[0].parse().unwrap();
    let outcome = watched.apply([set(Service { cluster_ips: vec![given], ..service("db") })]);
    assert_eq!(watched.ips("db"), [given.to_string()]);
    assert_ne!(watched.ips("web"), [given.to_string()]);
    assert_eq!(watched.ips("web").len(), 1);
    assert_eq!(watched.errors, BTreeMap::new());
    assert!(outcome.allocations_changed);
}

#[test]
fn writing_the_address_one_was_given_changes_nothing_for_others() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    watched.apply([set(service("web"))]);
    let given: IpAddr = watched.ips("web")[0].parse().unwrap();
    let outcome = watched.apply([set(Service { cluster_ips: vec![given], ..service("web") })]);
    assert_eq!(outcome.changes, []);
    assert!(watched.control_plane.allocations().is_empty());
}

#[test]
fn families_follow_the_policy() {
    use IpFamily::{V4, V6};
    let dual = options(&["10.96.0.0/16", "fd00::/108"]);
    let single = options(&["10.96.0.0/16"]);
    let wish = |families: &[_], policy| ServiceAllocation {
        families: families.to_vec(),
        policy,
        without_node_ports: false,
    };
    let families = |options: &Options, allocation: ServiceAllocation| {
        let mut watched = Watched::new(options.clone(), &Allocations::new());
        watched.apply([set_allocated(service("web"), allocation)]);
        match watched.service("web") {
            Some(service) => Ok(service.cluster_ips.iter().map(|ip| IpFamily::of(*ip)).collect()),
            None => Err(watched.errors.into_values().next().unwrap_or_default()),
        }
    };
    let missing = "spec.clusterIP: there is no IPv6 network to give an address from; add one to \
                   --service-cidr";
    for (options, allocation, expected) in [
        (&dual, wish(&[], None), Ok(vec![V4])),
        (&dual, wish(&[V6], None), Ok(vec![V6])),
        (&dual, wish(&[V6, V4], None), Ok(vec![V6, V4])),
        (&dual, wish(&[], Some(FamilyPolicy::PreferDualStack)), Ok(vec![V4, V6])),
        (&dual, wish(&[V6], Some(FamilyPolicy::RequireDualStack)), Ok(vec![V6, V4])),
        (&dual, wish(&[V6], Some(FamilyPolicy::SingleStack)), Ok(vec![V6])),
        (&single, wish(&[], Some(FamilyPolicy::PreferDualStack)), Ok(vec![V4])),
        (&single, wish(&[V6, V4], Some(FamilyPolicy::PreferDualStack)), Ok(vec![V4])),
        (&single, wish(&[], Some(FamilyPolicy::RequireDualStack)), Err(vec![missing.into()])),
        (&single, wish(&[V6], None), Err(vec![missing.into()])),
    ] {
        let described = format!("{allocation:?}");
        assert_eq!(families(options, allocation), expected, "{described}");
    }
}

#[test]
fn a_second_family_joins_an_address_that_is_written() {
    let mut watched = Watched::new(options(&["10.96.0.0/16", "fd00::/108"]), &Allocations::new());
    let written = Service { cluster_ips: vec!["fd00::9".parse().unwrap()], ..service("web") };
    let allocation = ServiceAllocation {
        policy: Some(FamilyPolicy::PreferDualStack),
        ..ServiceAllocation::default()
    };
    watched.apply([set_allocated(written, allocation)]);
    let ips = watched.ips("web");
    assert_eq!(ips[0], "fd00::9");
    assert!(ips[1].starts_with("10.96."), "{ips:?}");
}

#[test]
fn node_ports_are_given_where_the_type_has_them() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    let port = |protocol, port| ServicePort {
        name: format!("{protocol}-{port}").to_lowercase().into(),
        protocol,
        app_protocol: None,
        port,
        node_port: None,
        target_port: TargetPort::Number(port),
    };
    let ports = vec![port(Protocol::Tcp, 53), port(Protocol::Udp, 53), port(Protocol::Tcp, 54)];
    let declared = Service { ports, service_type: ServiceType::LoadBalancer, ..service("dns") };
    watched.apply([set(declared.clone())]);
    let given: Vec<u16> =
        watched.service("dns").unwrap().ports.iter().map(|p| p.node_port.unwrap()).collect();
    assert!(given.iter().all(|port| NODE_PORTS_DEFAULT.contains(port)), "{given:?}");
    assert_eq!(given[0], given[1], "TCP and UDP of one port share the number");
    assert_ne!(given[0], given[2]);
    // In another order they stay the same; as a ClusterIP there are none.
    let mut reversed = declared.clone();
    reversed.ports.reverse();
    watched.apply([set(reversed)]);
    let again: Vec<u16> =
        watched.service("dns").unwrap().ports.iter().rev().map(|p| p.node_port.unwrap()).collect();
    assert_eq!(again, given);
    watched.apply([set(Service { service_type: ServiceType::ClusterIP, ..declared.clone() })]);
    assert!(watched.service("dns").unwrap().ports.iter().all(|port| port.node_port.is_none()));
    let without = ServiceAllocation { without_node_ports: true, ..ServiceAllocation::default() };
    watched.apply([set_allocated(declared, without)]);
    assert!(watched.service("dns").unwrap().ports.iter().all(|port| port.node_port.is_none()));
}

#[test]
fn a_local_load_balancer_gets_a_port_for_its_health_check() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    let declared = Service {
        service_type: ServiceType::LoadBalancer,
        external_traffic_policy: TrafficPolicy::Local,
        ..service("web")
    };
    watched.apply([set(declared.clone())]);
    let served = watched.service("web").unwrap();
    let health = served.health_check_node_port.unwrap();
    assert_ne!(Some(health), served.ports[0].node_port);
    watched.apply([set(Service { external_traffic_policy: TrafficPolicy::Cluster, ..declared })]);
    assert_eq!(watched.service("web").unwrap().health_check_node_port, None);
}

#[test]
fn a_service_that_found_nothing_gets_what_another_gives_back() {
    let mut watched = Watched::new(options(&["10.96.0.0/30"]), &Allocations::new());
    watched.apply(["a", "b", "c", "d"].map(|name| set(service(name))));
    assert_eq!(
        watched.errors.values().flatten().collect::<Vec<_>>(),
        ["spec.clusterIP: no address is left in 10.96.0.0/30; add a network to --service-cidr"; 2]
    );
    let freed = watched.ips("a");
    watched.apply([delete(Kind::Service, "a")]);
    assert_eq!(watched.ips("c"), freed);
    assert_eq!(watched.errors.len(), 1);
}

#[test]
fn a_service_without_address_and_network_is_told_the_remedy() {
    let mut watched = Watched::new(options(&[]), &Allocations::new());
    let headless = Service { headless: true, ..service("headless") };
    watched.apply([set(service("web")), set(headless)]);
    assert!(watched.errors[&ObjectKey::new("shop", "web")][0].contains("set --service-cidr"));
    assert!(watched.service("headless").is_some());
}

#[test]
fn the_first_of_two_that_write_an_address_keeps_it() {
    let written = |name: &str, created_s| {
        let mut service =
            Service { cluster_ips: vec!["10.96.0.9".parse().unwrap()], ..service(name) };
        service.meta.created_s = created_s;
        set(service)
    };
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    watched.apply([written("b", None)]);
    watched.apply([written("a", None)]);
    assert!(watched.service("a").is_some() && watched.service("b").is_none());
    watched.apply([written("c", Some(5))]);
    assert!(watched.service("c").is_some() && watched.service("a").is_none());
    assert_eq!(
        watched.errors[&ObjectKey::new("shop", "b")],
        ["spec.clusterIPs[0]: 10.96.0.9 is the cluster address of Service shop/c (c.yaml:1) \
          already; choose another"]
    );
    watched.apply([delete(Kind::Service, "c"), delete(Kind::Service, "a")]);
    assert!(watched.service("b").is_some());
    assert_eq!(watched.errors, BTreeMap::new());
}

#[test]
fn allocations_survive_being_saved() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state/allocations.json");
    assert_eq!(load_allocations(&file).unwrap(), Allocations::new());
    let mut watched = Watched::new(options(&["10.96.0.0/16", "fd00::/64"]), &Allocations::new());
    let dual = ServiceAllocation {
        policy: Some(FamilyPolicy::RequireDualStack),
        ..ServiceAllocation::default()
    };
    let balancer = Service {
        service_type: ServiceType::LoadBalancer,
        external_traffic_policy: TrafficPolicy::Local,
        ..service("web")
    };
    watched.apply([set_allocated(balancer, dual), set(service("db"))]);
    let allocations = watched.control_plane.allocations();
    assert_eq!(allocations.len(), 2);
    save_allocations(&file, allocations).unwrap();
    assert_eq!(load_allocations(&file).unwrap(), *allocations);
    std::fs::write(&file, "{\"version\": 2}").unwrap();
    assert!(matches!(load_allocations(&file), Err(StateError::Version(2))));
    std::fs::write(&file, "{").unwrap();
    assert!(matches!(load_allocations(&file), Err(StateError::Damaged(_))));
}

#[test]
fn allocations_that_no_longer_fit_are_given_anew() {
    let given = |ips: &[&str]| GivenToService {
        cluster_ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..GivenToService::default()
    };
    let allocations = Allocations::from([
        (ObjectKey::new("shop", "a"), given(&["10.96.0.5"])),
        (ObjectKey::new("shop", "b"), given(&["10.96.0.5"])),
        (ObjectKey::new("shop", "c"), given(&["192.168.0.1"])),
    ]);
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &allocations);
    let outcome = watched.apply(["a", "b", "c"].map(|name| set(service(name))));
    assert_eq!(watched.ips("a"), ["10.96.0.5"]);
    assert_ne!(watched.ips("b"), ["10.96.0.5"]);
    assert!(watched.ips("c")[0].starts_with("10.96."));
    assert!(outcome.allocations_changed);
}

#[test]
fn what_absent_services_had_is_kept_until_it_is_known_that_they_are_gone() {
    let given = GivenToService {
        cluster_ips: vec!["10.96.0.5".parse().unwrap()],
        ..GivenToService::default()
    };
    let allocations = Allocations::from([(ObjectKey::new("shop", "gone"), given)]);
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &allocations);
    watched.apply([]);
    assert_eq!(*watched.control_plane.allocations(), allocations);
    assert!(watched.control_plane.release_undeclared());
    assert!(watched.control_plane.allocations().is_empty());
    assert!(!watched.control_plane.release_undeclared());
}

fn selecting(name: &str) -> Service {
    Service { selector: [(Arc::from("app"), Arc::from("web"))].into(), ..service(name) }
}

#[test]
fn a_pod_is_an_endpoint_in_the_state_it_is_in() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    let on_node = |mut pod: Pod| {
        pod.node = Some("n1".into());
        pod
    };
    let conditions = |watched: &Watched| {
        let slices = watched.slices();
        let endpoint = slices.first().and_then(|slice| slice.endpoints.first());
        endpoint.map(|endpoint| endpoint.conditions)
    };
    let conditions_of = |ready, serving, terminating| Conditions { ready, serving, terminating };
    watched.apply([
        set(selecting("web")),
        set(on_node(pod("p", "10.0.0.1"))),
        set(node("n1", "z1")),
    ]);
    let slices = watched.slices();
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].service.as_deref(), Some("web"));
    assert_eq!(slices[0].endpoints[0].zone.as_deref(), Some("z1"));
    assert_eq!(slices[0].ports[0].port, Some(8080));
    assert_eq!(conditions(&watched), Some(Conditions::READY));
    watched.apply([set(node("n1", "z2"))]);
    assert_eq!(watched.slices()[0].endpoints[0].zone.as_deref(), Some("z2"));
    watched.apply([set(Pod { ready: false, ..pod("p", "10.0.0.1") })]);
    assert_eq!(conditions(&watched), Some(conditions_of(false, false, false)));
    watched.apply([set(Service { publish_not_ready_addresses: true, ..selecting("web") })]);
    assert_eq!(conditions(&watched), Some(conditions_of(true, false, false)));
    watched.apply([set(selecting("web")), set(Pod { terminating: true, ..pod("p", "10.0.0.1") })]);
    assert_eq!(conditions(&watched), Some(conditions_of(false, true, true)));
    watched.apply([set(Pod { phase: PodPhase::Succeeded, ..pod("p", "10.0.0.1") })]);
    assert_eq!(conditions(&watched), None);
    assert_eq!(watched.slices().len(), 0);
}

#[test]
fn pods_with_different_numbers_for_a_named_port_are_in_different_slices() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    let named = |name: &str, ip: &str, number| Pod {
        ports: vec![ContainerPort {
            name: Some("http".into()),
            container_port: number,
            protocol: Protocol::Tcp,
            host_port: None,
            host_ip: None,
        }],
        ..pod(name, ip)
    };
    let mut web = selecting("web");
    web.ports[0].target_port = TargetPort::Name("http".into());
    watched.apply([
        set(web),
        set(named("a", "10.0.0.1", 8080)),
        set(named("b", "10.0.0.2", 9090)),
        set(named("c", "10.0.0.3", 8080)),
    ]);
    let mut found: Vec<(u16, usize)> = watched
        .slices()
        .iter()
        .map(|slice| (slice.ports[0].port.unwrap(), slice.endpoints.len()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, [(8080, 2), (9090, 1)]);
}

#[test]
fn slices_follow_selectors_labels_and_refusals() {
    let mut watched = Watched::new(options(&["10.96.0.0/16"]), &Allocations::new());
    let mut other = pod("p", "10.0.0.1");
    other.meta.labels = [(Arc::from("app"), Arc::from("db"))].into();
    watched.apply([set(selecting("web")), set(pod("p", "10.0.0.1"))]);
    assert_eq!(watched.slices().len(), 1);
    watched.apply([set(other)]);
    assert_eq!(watched.slices().len(), 0);
    let mut db = selecting("web");
    db.selector = [(Arc::from("app"), Arc::from("db"))].into();
    watched.apply([set(db)]);
    assert_eq!(watched.slices().len(), 1);
    watched.apply([delete(Kind::Service, "web")]);
    assert_eq!(watched.slices().len(), 0);
}

/// What can happen to a small world.
#[derive(Debug, Clone)]
enum Step {
    SetService { name: u8, ip: Option<u8>, node_port: Option<u16>, selects: Option<u8>, kind: u8 },
    DeleteService(u8),
    SetPod { name: u8, label: u8, ready: bool, node: u8, ip: u8 },
    DeletePod(u8),
    SetNode { name: u8, zone: u8 },
    DeleteNode(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..6u8;
    prop_oneof![
        4 => (name.clone(), prop::option::of(1..4u8), prop::option::of(30_000..30_003u16), prop::option::of(0..3u8), 0..3u8)
            .prop_map(|(name, ip, node_port, selects, kind)| {
                Step::SetService { name, ip, node_port, selects, kind }
            }),
        2 => name.clone().prop_map(Step::DeleteService),
        4 => (name.clone(), 0..3u8, any::<bool>(), 0..3u8, 1..250u8).prop_map(
            |(name, label, ready, node, ip)| Step::SetPod { name, label, ready, node, ip }
        ),
        2 => name.clone().prop_map(Step::DeletePod),
        1 => (0..3u8, 0..3u8).prop_map(|(name, zone)| Step::SetNode { name, zone }),
        1 => (0..3u8).prop_map(Step::DeleteNode),
    ]
}

impl Step {
    fn change(&self) -> Change {
        let value = |number: u8| -> Arc<str> { format!("v{number}").into() };
        match self.clone() {
            Self::SetService { name, ip, node_port, selects, kind } => {
                let mut service = service(&format!("s{name}"));
                service.cluster_ips =
                    ip.map(|ip| IpAddr::from([10, 96, 0, ip])).into_iter().collect();
                service.service_type = match kind {
                    0 => ServiceType::ClusterIP,
                    1 => ServiceType::NodePort,
                    _ => ServiceType::LoadBalancer,
                };
                if kind > 0 {
                    service.ports[0].node_port = node_port;
                }
                if let Some(label) = selects {
                    service.selector = [(Arc::from("app"), value(label))].into();
                }
                set(service)
            }
            Self::SetPod { name, label, ready, node, ip } => {
                let mut pod = pod(&format!("p{name}"), &format!("10.1.0.{ip}"));
                pod.meta.labels = [(Arc::from("app"), value(label))].into();
                pod.ready = ready;
                pod.node = Some(format!("n{node}").into());
                set(pod)
            }
            Self::SetNode { name, zone } => set(node(&format!("n{name}"), &format!("z{zone}"))),
            Self::DeleteService(name) => delete(Kind::Service, &format!("s{name}")),
            Self::DeletePod(name) => delete(Kind::Pod, &format!("p{name}")),
            Self::DeleteNode(name) => {
                Change::Delete(ObjectRef::new(Kind::Node, ObjectKey::cluster(format!("n{name}"))))
            }
        }
    }
}

fn object_of(change: &Change) -> ObjectRef {
    match change {
        Change::Set(declared) => declared.object.object_ref(),
        Change::Delete(object) => object.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// However the world came to be, what follows from it is the same, given what was allocated.
    #[test]
    fn step_by_step_is_the_same_as_all_at_once(
        steps in prop::collection::vec(step(), 1..40),
        batch in 1..5usize,
    ) {
        let world = options(&["10.96.0.0/24"]);
        let mut incremental = Watched::new(world.clone(), &Allocations::new());
        let mut declared: BTreeMap<ObjectRef, Change> = BTreeMap::new();
        for steps in steps.chunks(batch) {
            let changes: Vec<Change> = steps.iter().map(Step::change).collect();
            for change in &changes {
                match change {
                    Change::Set(_) => declared.insert(object_of(change), change.clone()),
                    Change::Delete(object) => declared.remove(object),
                };
            }
            incremental.apply(changes);
        }
        let allocations = incremental.control_plane.allocations().clone();
        let mut full = Watched::new(world.clone(), &allocations);
        full.apply(declared.values().cloned());
        prop_assert_eq!(&full.objects, &incremental.objects);
        prop_assert_eq!(&full.errors, &incremental.errors);
        prop_assert_eq!(full.control_plane.allocations(), &allocations);
        // And in another order, one by one.
        let mut reversed = Watched::new(world, &allocations);
        for change in declared.values().rev() {
            reversed.apply([change.clone()]);
        }
        prop_assert_eq!(&reversed.objects, &incremental.objects);
        prop_assert_eq!(&reversed.errors, &incremental.errors);
        prop_assert_eq!(reversed.control_plane.allocations(), &allocations);
    }
}
