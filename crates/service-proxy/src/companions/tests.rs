//! All together, as a backend drives them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use telaio_model::{
    Conditions, EndpointRef, Families, Labels, LocalEndpoint, LocalEndpointPort, LocalService,
    LocalServicePort, Protocol, Scopes, ServiceType,
};

use super::place::Place;
use super::*;
use crate::config::NodePortAddresses;

const TIME_MAX: Duration = Duration::from_secs(20);
const HEALTH_PORT: u16 = 31_999;

fn key() -> ObjectKey {
    ObjectKey::new("shop", "front")
}

fn port(name: &str, protocol: Protocol, port: u16, node_port: u16) -> LocalServicePort {
    LocalServicePort {
        name: name.into(),
        protocol,
        port,
        node_port: Some(node_port),
        target_port: None,
        target_port_name: None,
        app_protocol: None,
        has_endpoints: Families { v4: true, v6: false },
    }
}

fn endpoint(id: &str, ip: &str, local: bool, udp_port: u16) -> Arc<LocalEndpoint> {
    let scopes = Scopes { internal: true, external: local, cluster: true, local };
    let port = |name: &str, port| LocalEndpointPort { name: name.into(), port, scopes };
    Arc::new(LocalEndpoint {
        key: EndpointRef { service: key(), id: id.into() },
        pod: None,
        hostname: None,
        ips: vec![ip.parse().unwrap()],
        local,
        ports: vec![port("web", 8080), port("dns", udp_port)],
        unlisted_ports: None,
        conditions: Conditions::READY,
        weight: 1,
        node: None,
        zone: None,
    })
}

fn service(endpoints: Vec<Arc<LocalEndpoint>>) -> ServiceEndpoints {
    let service = LocalService {
        key: key(),
        service_type: ServiceType::LoadBalancer,
        headless: false,
        cluster_ips: vec!["10.0.0.10".parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        ports: vec![port("web", Protocol::Tcp, 80, 30_080), port("dns", Protocol::Udp, 53, 30_053)],
        external_traffic_to_local: true,
        internal_traffic_to_local: false,
        session_affinity: None,
        health_check_node_port: Some(HEALTH_PORT),
        external_name: None,
        labels: Labels::new(),
        annotations: Labels::new(),
    };
    ServiceEndpoints { service: Arc::new(service), endpoints: endpoints.into() }
}

struct Node {
    place: Place,
    companions: Companions,
    facts: NodeFacts,
}

impl Node {
    fn new(name: &str) -> Self {
        let place = Place::new(name);
        place.shell(
            "ip link add node type veth peer name net
             ip address add 192.0.2.1/24 dev node
             ip link set node up; ip link set net up; ip route add default dev node",
        );
        let options = CompanionsOptions {
            config: Arc::new(ProxyConfig::default()),
            healthy: Arc::new(|| true),
            localhost_proxy: true,
        };
        let companions = place.run(|| Companions::start(options).unwrap());
        let redirect = companions.localhost_ports().v4.unwrap();
        place.shell(&format!(
            "nft 'table ip t {{
               chain output {{ type nat hook output priority -100;
                 ip daddr 127.0.0.0/8 tcp dport 30080 redirect to :{redirect}
                 ip daddr 192.0.2.1 tcp dport 30080 dnat to 192.0.2.1:8080
                 ip daddr 10.0.0.10 udp dport 53 dnat to 192.0.2.1:6001
               }}
             }}'"
        ));
        let facts = NodeFacts {
            addresses: vec!["192.0.2.1".parse().unwrap()],
            pod_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
        };
        Self { place, companions, facts }
    }

    fn programmed(&self, entry: Option<ServiceEndpoints>) {
        self.synced(false, &BTreeMap::from([(key(), entry)]));
    }

    fn synced(&self, first: bool, changed: &BTreeMap<ObjectKey, Option<ServiceEndpoints>>) {
        self.place.run(|| {
            self.companions.programmed(&Programmed {
                kind: SyncKind::Changes,
                first,
                changed,
                node: &self.facts,
            });
        });
        assert!(self.companions.machine.stale_flows.wait_idle(TIME_MAX));
    }

    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        self.place.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)))
    }
}

fn talk(mut stream: TcpStream, say: &str) -> io::Result<String> {
    stream.set_read_timeout(Some(TIME_MAX)).unwrap();
    stream.write_all(say.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn every_companion_follows_a_service_from_its_first_endpoint_to_its_end() {
    let node = Node::new("companions");
    let web = node.place.run(|| TcpListener::bind("192.0.2.1:8080").unwrap());
    thread::spawn(move || {
        for stream in web.incoming() {
            stream.unwrap().write_all(b"from the endpoint").unwrap();
        }
    });
    node.programmed(Some(service(vec![endpoint("a", "192.0.2.1", true, 6001)])));

    let health = talk(node.connect(HEALTH_PORT).unwrap(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(health.unwrap().starts_with("HTTP/1.1 200"));
    let page = talk(node.connect(30_080).unwrap(), "");
    assert_eq!(page.unwrap(), "from the endpoint");
    let client = node.place.run(|| UdpSocket::bind("192.0.2.1:0").unwrap());
    client.send_to(b"hello", "10.0.0.10:53").unwrap();
    let flows = || node.place.shell("conntrack -L -p udp 2>/dev/null");
    assert_eq!(flows().lines().count(), 1);

    // Another endpoint, elsewhere: nothing for load balancers here, and the flow is stale.
    node.programmed(Some(service(vec![endpoint("b", "10.1.0.2", false, 6001)])));
    let health = talk(node.connect(HEALTH_PORT).unwrap(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(health.unwrap().starts_with("HTTP/1.1 503"));
    assert_eq!(flows(), "");
    let figures = node.companions.figures();
    assert_eq!(figures.stale_flows.deleted_total, BTreeMap::from([(IpFamily::V4, 1)]));
    assert_eq!(figures.localhost.carried_total, 1);
    // Two ports with a policy Local, both without endpoints here.
    let lacking = NoLocalEndpoints { internal: 0, external: 2 };
    assert_eq!(figures.no_local_endpoints[&IpFamily::V4], lacking);

    node.programmed(None);
    assert!(talk(node.connect(30_080).unwrap(), "").is_err(), "no node port any more");
    let figures = node.companions.figures();
    assert_eq!(figures.localhost.refused_total, 1);
    assert_eq!(figures.no_local_endpoints[&IpFamily::V4], NoLocalEndpoints::default());
    // Its listener is closed on its own thread, so soon, not at once.
    while node.connect(HEALTH_PORT).is_ok() {
        thread::yield_now();
    }
}

#[test]
fn a_service_that_ended_while_backends_changed_is_forgotten() {
    let node = Node::new("companions-next");
    node.programmed(Some(service(vec![endpoint("a", "192.0.2.1", true, 6001)])));
    assert_eq!(node.companions.health_checks.services().len(), 1);
    assert_eq!(node.companions.machine.stale_flows.services().len(), 1);
    node.synced(false, &BTreeMap::new());
    assert_eq!(node.companions.health_checks.services().len(), 1, "nothing changed");
    node.synced(true, &BTreeMap::new());
    assert_eq!(node.companions.health_checks.services().len(), 0);
    assert_eq!(node.companions.machine.stale_flows.services().len(), 0);
    assert!(talk(node.connect(30_080).unwrap(), "").is_err(), "no node port any more");
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn addresses_are_those_that_serve_node_ports() {
    let own: BTreeSet<IpAddr> =
        ips(&["127.0.0.1", "192.0.2.1", "198.51.100.1", "::1", "2001:db8::1", "fe80::1"])
            .into_iter()
            .collect();
    let node = NodeFacts { addresses: ips(&["198.51.100.1"]), ..NodeFacts::default() };
    let choose = |node_port_addresses| {
        let config = ProxyConfig { node_port_addresses, ..ProxyConfig::default() };
        let chosen = NodeAddresses::choose(&config, &node, &own);
        (chosen.health_checks.into_iter().collect::<Vec<_>>(), chosen.node_ports)
    };
    let wildcards: Vec<IpAddr> = vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    assert_eq!(
        choose(NodePortAddresses::All),
        (wildcards, ips(&["198.51.100.1", "192.0.2.1", "2001:db8::1"])),
        "the Node object's come first; loopback and link-local never"
    );
    let primary = choose(NodePortAddresses::Primary);
    let where_none_serves = "2001:db8::1";
    assert_eq!(primary, (ips(&["198.51.100.1"]), ips(&["198.51.100.1", where_none_serves])));
    let nets: Vec<IpNet> = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    let both = ips(&["192.0.2.1", "2001:db8::1"]);
    assert_eq!(choose(NodePortAddresses::Within(nets)), (both.clone(), both));
}
