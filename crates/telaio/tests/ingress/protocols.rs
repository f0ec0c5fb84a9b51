//! What is spoken, on both sides, and services of other forms than the usual one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use super::{Echo, Ingress, Manifests, all_annotated, ask, ingress, service, service_at};
use crate::support::PATIENCE;

#[test]
fn clients_may_speak_http_2_in_clear_from_the_first_byte_and_http_1_beside_it() {
    for process in ["same", "own"] {
        let one = Echo::start("one");
        let manifests = Manifests::empty();
        let all = service("one", &[&one]) + &ingress("a", "a.example.com", "/", "one", "");
        manifests.write("all.yaml", &all);
        let plane = Ingress::start(manifests, process);
        let port = plane.http.port();
        for (flag, version) in [("--http2-prior-knowledge", "2"), ("--http1.1", "1.1")] {
            let url = format!("http://a.example.com:{port}/x");
            let out = Command::new("curl")
                .args(["-s", flag, "--max-time", "60", "-w", "\n%{http_code} %{http_version}"])
                .args(["--resolve", &format!("a.example.com:{port}:127.0.0.1")])
                .arg(&url)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stdout);
            let ended = text.ends_with(&format!("\n200 {version}"));
            assert!(ended && out.status.success(), "{process} {flag}: {out:?}");
        }
        let via = one.seen().iter().map(|it| it["headers"]["via"].to_string()).collect::<Vec<_>>();
        assert!(via[0].contains("2.0 ") && via[1].contains("1.1 "), "{via:?}");
        assert_eq!(ask(plane.http, "a.example.com", "/").status, 200);
    }
}

/// A service whose port says what is spoken there.
fn spoken(name: &str, at: SocketAddr, app_protocol: &str) -> String {
    service_at(name, &[at]).replace(
        "{name: http, port: 80,",
        &format!("{{name: http, appProtocol: {app_protocol}, port: 80,"),
    )
}

/// A backend that agrees to another protocol and then says everything twice.
fn agrees() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(1) = stream.read(&mut byte) else { return };
                    head.push(byte[0]);
                }
                let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                              Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
                while let Ok(1) = stream.read(&mut byte) {
                    if stream.write_all(&[byte[0], byte[0]]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn what_a_services_port_says_is_spoken_with_it() {
    let one = Echo::start("one");
    let manifests = Manifests::empty();
    let inner = service("one", &[&one]) + &ingress("in", "\"*.example.com\"", "/", "one", "");
    manifests.write("inner.yaml", &inner);
    let inner = Ingress::start(manifests, "same");
    let kinds = [
        ("h2c", "kubernetes.io/h2c", inner.http, "2.0"),
        ("grpc", "grpc", inner.http, "2.0"),
        ("http", "http", inner.http, "1.1"),
        ("https", "https", inner.https, ""),
        ("own", "example.com/own", inner.http, "1.1"),
    ];
    let manifests = Manifests::empty();
    let mut all = spoken("ws", agrees(), "kubernetes.io/ws")
        + &ingress("ws", "ws.example.com", "/", "ws", "");
    for (name, app_protocol, at, _) in kinds {
        let host = format!("{name}.example.com");
        all += &(spoken(name, at, app_protocol) + &ingress(name, &host, "/", name, ""));
    }
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    for (name, _, _, version) in kinds {
        let answer = ask(plane.http, &format!("{name}.example.com"), "/");
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        let by = one.seen().pop().unwrap()["headers"]["via"].as_str().unwrap().to_owned();
        let inner = by.rsplit(", ").next().unwrap();
        assert!(inner.starts_with(version) && by.contains(", "), "{name}: {by}");
    }
    let mut stream = TcpStream::connect(plane.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let question = "GET / HTTP/1.1\r\nHost: ws.example.com\r\nConnection: Upgrade\r\n\
                    Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(question.as_bytes()).unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    assert!(seen.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&seen));
    stream.write_all(b"ab").unwrap();
    let mut echoed = [0; 4];
    stream.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"aabb");
}

#[test]
fn a_mere_name_several_ports_and_a_services_own_address_are_reached() {
    let (one, admin) = (Echo::start("one"), Echo::start("admin"));
    // The service's own address is another than that of its endpoint, and may not be loopback.
    let at_service = Echo::start_outside("vip");
    let outside = "apiVersion: v1\nkind: Service\nmetadata: {name: outside, namespace: shop}\n\
                   spec: {type: ExternalName, externalName: localhost}\n---\n";
    let (http_port, admin_port) = (one.address.port(), admin.address.port());
    let both = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: both, namespace: shop}}\n\
         spec:\n  clusterIP: None\n  ports:\n  - {{name: http, port: 80, targetPort: {http_port}}}\n  \
         - {{name: admin, port: 9000, targetPort: {admin_port}}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: both-1, namespace: shop, labels: {{kubernetes.io/service-name: both}}}}\n\
         addressType: IPv4\n\
         ports: [{{name: http, port: {http_port}}}, {{name: admin, port: {admin_port}}}]\n\
         endpoints: [{{addresses: [127.0.0.1]}}]\n---\n"
    );
    let vip = service("vip", &[&one]).replace(
        "spec: {clusterIP: None, ports: [{name: http, port: 80,",
        &format!(
            "spec: {{clusterIP: {}, ports: [{{name: http, port: {},",
            at_service.address.ip(),
            at_service.address.port()
        ),
    );
    let port =
        |text: String, port: &str| text.replace("{name: http}}}", &format!("{{{port}}}}}}}"));
    let own = all_annotated(&[("service-upstream", "true")]);
    let all = outside.to_owned()
        + &both
        + &vip
        + &port(
            ingress("name", "name.example.com", "/", "outside", ""),
            &format!("number: {http_port}"),
        )
        + &ingress("web", "both.example.com", "/", "both", "")
        + &port(ingress("admin", "both.example.com", "/admin", "both", ""), "name: admin")
        + &port(ingress("number", "both.example.com", "/number", "both", ""), "number: 9000")
        + &ingress("endpoint", "endpoint.example.com", "/", "vip", "")
        + &ingress("service", "service.example.com", "/", "vip", &own);
    let manifests = Manifests::empty();
    manifests.write("all.yaml", &all);
    let plane = Ingress::start(manifests, "same");
    for (host, path, backend) in [
        ("name.example.com", "/", "one"),
        ("both.example.com", "/", "one"),
        ("both.example.com", "/admin", "admin"),
        ("both.example.com", "/number/x", "admin"),
        ("endpoint.example.com", "/", "one"),
        ("service.example.com", "/", "vip"),
    ] {
        let answer = ask(plane.http, host, path);
        assert_eq!(answer.backend().as_deref(), Some(backend), "{host}{path}: {answer:?}");
    }
}
