//! Asked by real HTTP over loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use telaio_model::{
    Conditions, EndpointRef, Labels, LocalEndpoint, LocalEndpointPort, LocalService, Scopes,
};

use super::*;

const TIME_MAX: Duration = Duration::from_secs(20);

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

fn service(name: &str, port: Option<u16>) -> LocalService {
    LocalService {
        key: key(name),
        service_type: ServiceType::LoadBalancer,
        headless: false,
        cluster_ips: vec!["10.0.0.1".parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        ports: Vec::new(),
        external_traffic_to_local: true,
        internal_traffic_to_local: false,
        session_affinity: None,
        health_check_node_port: port,
        external_name: None,
        labels: Labels::new(),
        annotations: Labels::new(),
    }
}

fn endpoint(service: &str, id: &str, ip: &str) -> LocalEndpoint {
    let scopes = Scopes { internal: true, external: true, cluster: true, local: true };
    LocalEndpoint {
        key: EndpointRef { service: key(service), id: id.into() },
        pod: None,
        hostname: None,
        ips: vec![ip.parse().unwrap()],
        local: true,
        ports: vec![LocalEndpointPort { name: "".into(), port: 80, scopes }],
        unlisted_ports: None,
        conditions: Conditions::READY,
        weight: 1,
        node: None,
        zone: None,
    }
}

fn entry(service: LocalService, endpoints: Vec<LocalEndpoint>) -> ServiceEndpoints {
    let endpoints: Vec<_> = endpoints.into_iter().map(Arc::new).collect();
    ServiceEndpoints { service: Arc::new(service), endpoints: endpoints.into() }
}

fn servers(healthy: &Arc<AtomicBool>) -> HealthCheckServers {
    let healthy = Arc::clone(healthy);
    let servers = HealthCheckServers::start(Arc::new(move || healthy.load(Ordering::Relaxed)));
    let servers = servers.unwrap();
    servers.set_addresses([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into());
    servers
}

/// A port that was free a moment ago, on both families. Below those that the kernel gives out, and
/// far from those of other test processes.
fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let base = std::process::id() as usize * 31;
    loop {
        let offset = (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = u16::try_from(10_000 + offset).unwrap();
        let is_free = |ip: &str| TcpListener::bind((ip, port)).is_ok();
        if is_free("127.0.0.1") && is_free("::1") {
            return port;
        }
    }
}

fn connect(ip: impl Into<IpAddr>, port: u16) -> TcpStream {
    let stream = TcpStream::connect((ip.into(), port)).unwrap();
    stream.set_read_timeout(Some(TIME_MAX)).unwrap();
    stream
}

fn ask(mut stream: TcpStream) -> String {
    let request = "GET /any/path HTTP/1.1\r\nHost: balancer\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(ip: impl Into<IpAddr>, port: u16) -> String {
    ask(connect(ip, port))
}

/// Waits for what another thread brings about.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME_MAX;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_service_with_local_endpoints_is_announced_as_kube_proxy_does() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let port = free_port();
    let endpoints = vec![endpoint("front", "a", "10.1.0.1"), endpoint("front", "b", "10.1.0.2")];
    servers.set(&key("front"), Some(&entry(service("front", Some(port)), endpoints)));
    let answer = get(Ipv4Addr::LOCALHOST, port).to_ascii_lowercase();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("http/1.1 200 ok"), "{head}");
    for line in [
        "content-type: application/json",
        "x-content-type-options: nosniff",
        "x-load-balancing-endpoint-weight: 2",
    ] {
        assert!(head.lines().any(|it| it == line), "{line} in {head}");
    }
    assert_eq!(
        body,
        r#"{"service":{"namespace":"shop","name":"front"},"localendpoints":2,"serviceproxyhealthy":true}"#
    );
}

#[test]
fn the_answer_follows_endpoints_and_the_proxy_s_health() {
    let healthy = Arc::new(AtomicBool::new(true));
    let servers = servers(&healthy);
    let port = free_port();
    let set = |endpoints| {
        servers.set(&key("front"), Some(&entry(service("front", Some(port)), endpoints)));
    };
    set(Vec::new());
    let none = get(Ipv4Addr::LOCALHOST, port);
    assert!(none.starts_with("HTTP/1.1 503"), "{none}");
    assert!(none.contains(r#""localEndpoints":0,"serviceProxyHealthy":true"#), "{none}");
    set(vec![endpoint("front", "a", "10.1.0.1")]);
    assert!(get(Ipv4Addr::LOCALHOST, port).starts_with("HTTP/1.1 200"));
    healthy.store(false, Ordering::Relaxed);
    let ill = get(Ipv4Addr::LOCALHOST, port);
    assert!(ill.starts_with("HTTP/1.1 503"), "{ill}");
    assert!(ill.contains(r#""localEndpoints":1,"serviceProxyHealthy":false"#), "{ill}");
}

#[test]
fn each_family_counts_its_own_endpoints() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let port = free_port();
    let mut front = service("front", Some(port));
    front.cluster_ips.push("fd00::1".parse().unwrap());
    let endpoints = vec![endpoint("front", "a", "fd01::1")];
    servers.set(&key("front"), Some(&entry(front, endpoints)));
    assert!(get(Ipv4Addr::LOCALHOST, port).starts_with("HTTP/1.1 503"));
    assert!(get(Ipv6Addr::LOCALHOST, port).starts_with("HTTP/1.1 200"));
    assert_eq!(servers.listening(), 2);
}

#[test]
fn both_families_can_have_the_port_on_all_addresses() {
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    let port = free_port();
    let first = bind(SocketAddr::new(v4.into(), port)).unwrap();
    let second = bind(SocketAddr::new(v6.into(), port)).unwrap();
    assert!(bind(SocketAddr::new(v4.into(), port)).is_err(), "and only once");
    drop((first, second));
}

#[test]
fn only_load_balancers_with_policy_local_have_the_port() {
    let with = |change: fn(&mut LocalService)| {
        let mut service = service("front", Some(30_000));
        change(&mut service);
        HealthCheck::of(&entry(service, Vec::new()))
    };
    assert!(with(|_| ()).is_some());
    assert_eq!(with(|service| service.service_type = ServiceType::NodePort), None);
    assert_eq!(with(|service| service.external_traffic_to_local = false), None);
    assert_eq!(with(|service| service.health_check_node_port = None), None);
}

#[test]
fn an_endpoint_counts_once_if_it_is_here_ready_and_in_use() {
    let mut elsewhere = endpoint("front", "b", "10.1.0.2");
    elsewhere.local = false;
    let mut ending = endpoint("front", "c", "10.1.0.3");
    ending.conditions = Conditions { ready: false, serving: true, terminating: true };
    let mut drained = endpoint("front", "d", "10.1.0.4");
    drained.ports[0].scopes = Scopes::NONE;
    let same = endpoint("front", "e", "10.1.0.1");
    let endpoints = vec![endpoint("front", "a", "10.1.0.1"), elsewhere, ending, drained, same];
    let check = HealthCheck::of(&entry(service("front", Some(30_000)), endpoints)).unwrap();
    assert_eq!(check.local_endpoints, BTreeMap::from([(IpFamily::V4, 1)]));
}

#[test]
fn ports_open_move_and_close_with_their_service() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let (old, new) = (free_port(), free_port());
    let refused = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err();
    let front = |port| entry(service("front", port), vec![endpoint("front", "a", "10.1.0.1")]);
    servers.set(&key("front"), Some(&front(Some(old))));
    assert!(get(Ipv4Addr::LOCALHOST, old).starts_with("HTTP/1.1 200"));
    servers.set(&key("front"), Some(&front(Some(new))));
    assert!(get(Ipv4Addr::LOCALHOST, new).starts_with("HTTP/1.1 200"));
    eventually("the old port closes", || refused(old));
    servers.set(&key("front"), None);
    eventually("the new port closes", || refused(new));
    eventually("nothing listens", || servers.listening() == 0);
}

#[test]
fn a_port_that_somebody_has_is_taken_when_it_is_free() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let port = free_port();
    let somebody = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    servers.set(&key("front"), Some(&entry(service("front", Some(port)), Vec::new())));
    let other = free_port();
    servers.set(&key("other"), Some(&entry(service("other", Some(other)), Vec::new())));
    assert!(get(Ipv4Addr::LOCALHOST, other).starts_with("HTTP/1.1 503"), "others do not wait");
    assert_eq!(servers.listening(), 1);
    drop(somebody);
    eventually("the port is taken", || servers.listening() == 2);
    assert!(get(Ipv4Addr::LOCALHOST, port).contains("front"));
}

#[test]
fn two_services_that_want_one_port_get_it_one_after_the_other() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let port = free_port();
    for name in ["first", "second"] {
        servers.set(&key(name), Some(&entry(service(name, Some(port)), Vec::new())));
    }
    assert!(get(Ipv4Addr::LOCALHOST, port).contains("first"));
    servers.set(&key("first"), None);
    eventually("the second gets it", || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        stream.is_ok_and(|mut stream| {
            let mut answer = String::new();
            let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains("second")
        })
    });
}

#[test]
fn silent_clients_keep_nobody_out() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let port = free_port();
    let endpoints = vec![endpoint("front", "a", "10.1.0.1")];
    servers.set(&key("front"), Some(&entry(service("front", Some(port)), endpoints)));
    let silent: Vec<TcpStream> =
        (0..CONNECTIONS_MAX + 10).map(|_| connect(Ipv4Addr::LOCALHOST, port)).collect();
    let last = connect(Ipv4Addr::LOCALHOST, port);
    assert!(ask(last).starts_with("HTTP/1.1 200"));
    // The first of them was shown the door.
    let mut first = &silent[0];
    let mut rest = Vec::new();
    let ended = first.read_to_end(&mut rest);
    assert!(ended.is_err() || rest.is_empty(), "{rest:?}");
}

#[test]
fn a_change_of_addresses_moves_open_ports() {
    let servers = servers(&Arc::new(AtomicBool::new(true)));
    let port = free_port();
    servers.set(&key("front"), Some(&entry(service("front", Some(port)), Vec::new())));
    get(Ipv4Addr::LOCALHOST, port);
    servers.set_addresses([Ipv4Addr::new(127, 0, 0, 2).into()].into());
    get(Ipv4Addr::new(127, 0, 0, 2), port);
    eventually("the old address is left", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()
    });
}
