//! Health check ports: load balancers ask a node whether it has local endpoints.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use telaio_testkit::netns::{Cluster, Family, Host, PATIENCE};

use crate::manifest::Service;
use crate::node::{Backend, Node};

on_every_backend!(a_load_balancer_learns_whether_the_node_has_local_endpoints);

const HEALTH_PORT: u16 = 32_100;

/// Status, head and body of an answer to a client outside; `None` if nobody listens.
fn ask(cluster: &Cluster, family: Family) -> Option<(u16, String, Value)> {
    let to = SocketAddr::new(Host::NodeA.address(family), HEALTH_PORT);
    cluster.on(Host::Outside, || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, head.to_lowercase(), serde_json::from_str(body).unwrap()))
    })
}

fn a_load_balancer_learns_whether_the_node_has_local_endpoints(backend: Backend) {
    let service = |endpoints: &str| {
        Service::new("local", 1)
            .load_balancer()
            .external_local()
            .spec(&format!("healthCheckNodePort: {HEALTH_PORT}"))
            .endpoints(endpoints)
    };
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &[service("a1 a2 b1")]);
    for (endpoints, status, count) in
        [("a1 a2 b1", 200, 2), ("b1", 503, 0), ("a1 b1", 200, 1), ("a1:not-ready b1", 503, 0)]
    {
        node.apply(&service(endpoints));
        node.settle();
        for family in Family::ALL {
            node.wait_until("answer", || ask(&cluster, family).is_some_and(|it| it.0 == status));
            let (_, head, body) = ask(&cluster, family).unwrap();
            let weight = format!("x-load-balancing-endpoint-weight: {count}");
            assert!(head.contains(&weight), "{endpoints}: {head}");
            assert_eq!(body["localEndpoints"], count, "{body}");
            assert_eq!(body["service"]["name"], "local", "{body}");
            assert_eq!(body["service"]["namespace"], "test", "{body}");
            assert_eq!(body["serviceProxyHealthy"], true, "{body}");
        }
    }
    node.remove("local");
    node.settle();
    node.wait_until("end of the health check port", || ask(&cluster, Family::V4).is_none());
}
