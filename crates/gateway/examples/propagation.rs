//! What one change costs among many Ingresses: `propagation [COUNT…]`, 10 and 10000 unless said.
//!
//! Measured is the way from the event to the table in force: the gateway's commit and the proxy's
//! taking over, for a changed endpoint and for a changed Ingress. Median and worst of many changes.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use telaio_gateway::class::ClassSettings;
use telaio_gateway::{Gateway, GatewaySettings, IngressEvent, ServiceNews};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use telaio_model::{
    Conditions, EndpointRef, Families, Ingress, IngressBackend, IngressPath, IngressRule, Labels,
    LocalEndpoint, LocalEndpointPort, LocalService, LocalServicePort, Meta, ObjectKey, PathType,
    PortRef, Protocol, Scopes, ServiceType,
};

/// How many changes of each kind are measured.
const CHANGES: usize = 1_000;

fn ingress(number: usize, path: &str) -> IngressEvent {
    let backend =
        IngressBackend { service: format!("s{number}").into(), port: PortRef::Number(80) };
    let path = IngressPath { path: path.into(), path_type: PathType::Prefix, backend };
    let host = Some(format!("host-{number}.example.com").into());
    IngressEvent::Add(Arc::new(Ingress {
        meta: Meta::named(ObjectKey::new("shop", format!("i{number}"))),
        class: None,
        default_backend: None,
        rules: vec![IngressRule { host, paths: vec![path] }],
        tls: vec![],
        status_ips: vec![],
        status_hostnames: vec![],
    }))
}

fn service(number: usize, turn: usize) -> IngressEvent {
    let key = ObjectKey::new("shop", format!("s{number}"));
    let place = u32::try_from(number * 4 + turn % 2).unwrap_or_default();
    let endpoint = LocalEndpoint {
        key: EndpointRef { service: key.clone(), id: "p".into() },
        pod: None,
        hostname: None,
        ips: vec![Ipv4Addr::from_bits(0x0a01_0000 + place).into()],
        local: false,
        ports: vec![LocalEndpointPort {
            name: "http".into(),
            port: 8080,
            scopes: Scopes { internal: true, cluster: true, ..Scopes::NONE },
        }],
        unlisted_ports: None,
        conditions: Conditions::READY,
        weight: 1,
        node: None,
        zone: None,
    };
    let port = LocalServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
        target_port: Some(8080),
        target_port_name: None,
        app_protocol: None,
        has_endpoints: Families::default(),
    };
    let service = LocalService {
        key: key.clone(),
        service_type: ServiceType::ClusterIP,
        headless: false,
        cluster_ips: vec![],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        ports: vec![port],
        external_traffic_to_local: false,
        internal_traffic_to_local: false,
        session_affinity: None,
        health_check_node_port: None,
        external_name: None,
        labels: Labels::new(),
        annotations: Labels::new(),
    };
    let (service, endpoints) = (Arc::new(service), vec![Arc::new(endpoint)]);
    let news = ServiceNews { service, endpoints, addresses: vec![] };
    IngressEvent::Service(key, Some(Arc::new(news)))
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    format!("median {:.0} µs, p99 {:.0} µs, worst {:.0} µs", at(50), at(99), at(100))
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn measure(count: usize) {
    let class = ClassSettings { classless: true, ..ClassSettings::default() };
    let mut gateway = Gateway::new(GatewaySettings { class, ..GatewaySettings::default() });
    let proxy = HttpProxy::new(ProxySettings::default());
    let began = Instant::now();
    for number in 0..count {
        gateway.take(service(number, 0));
        gateway.take(ingress(number, "/"));
    }
    proxy.apply(&gateway.commit().table);
    let first_ms = began.elapsed().as_secs_f64() * 1e3;
    println!("{count} Ingresses: first state {first_ms:.0} ms, {:.0} MiB resident", resident_mib());
    let mut run = |event: &dyn Fn(usize) -> IngressEvent| {
        let mut times = Vec::with_capacity(CHANGES);
        for turn in 1..=CHANGES {
            let event = event(turn);
            let began = Instant::now();
            gateway.take(event);
            proxy.apply(&gateway.commit().table);
            times.push(began.elapsed());
        }
        spread(times)
    };
    println!("  a changed endpoint: {}", run(&|turn| service(turn % count, turn / count + 1)));
    let path = |turn: usize| if (turn / count).is_multiple_of(2) { "/a" } else { "/b" };
    println!("  a changed Ingress:  {}", run(&|turn| ingress(turn % count, path(turn))));
}

fn main() {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|it| it.parse().ok()).collect();
    for count in if counts.is_empty() { vec![10, 10_000] } else { counts } {
        measure(count);
    }
}
