//! The ingress plane as it lives: real sockets, real backends, the real binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

#[path = "../support/mod.rs"]
mod support;

mod annotations;
mod backends;
mod cached;
mod certificates;
mod choices;
mod cluster;
mod decisions;
mod deployed;
mod every;
mod guards;
mod handover;
mod lifecycle;
mod limits;
mod load;
mod manage;
mod operations;
mod pages;
mod protocols;
mod reach;
mod routes;
mod shown;
mod tools;
mod upgrade;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use backends::Echo;
use serde_json::Value;
use support::{Agent, Manifests, PATIENCE};

/// A running agent with an ingress, and the manifests that it follows.
struct Ingress {
    agent: Agent,
    manifests: Manifests,
    http: SocketAddr,
    https: SocketAddr,
}

impl Ingress {
    /// Starts an agent whose ingress works in a thread, or in a process of its own.
    fn start(manifests: Manifests, process: &str) -> Self {
        Self::start_with(manifests, process, &[])
    }

    /// As [`start`](Self::start), with further arguments.
    fn start_with(manifests: Manifests, process: &str, more: &[&str]) -> Self {
        let source = manifests.source();
        Self::start_from(manifests, &source, process, more)
    }

    /// The same from another source.
    fn start_from(manifests: Manifests, source: &str, process: &str, more: &[&str]) -> Self {
        let process = format!("--ingress-process={process}");
        let mut arguments = vec![
            "run",
            "--planes=ingress",
            "--node=loom-a",
            "--http-listen=127.0.0.1:0",
            "--https-listen=127.0.0.1:0",
            "--ingress-threads=2",
            // Servers of tests are on loopback.
            "--ingress-local-targets",
            &process,
            "--drain-timeout=10s",
            source,
        ];
        // What is asked for wins.
        let name = |argument: &str| argument.split('=').next().unwrap_or_default().to_owned();
        arguments.retain(|usual| !more.iter().any(|it| name(it) == name(usual)));
        arguments.extend(more);
        let agent = Agent::start_with_state(&arguments, tempfile::tempdir().unwrap());
        let listening = agent.wait_log("the ingress listens");
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (http, https) = (address("http"), address("https"));
        agent.wait_log("the ingress serves");
        Self { agent, manifests, http, https }
    }

    /// Asks until the answer is as wanted.
    fn ask_until(&self, host: &str, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = ask(self.http, host, path);
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{host}{path} still answers {answer:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// An HTTP answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// What came, if it is an answer.
    fn read(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok())?;
        Some(Self { status, head: head.to_owned(), body: body.to_owned() })
    }

    /// A field of it, by its name in lower case.
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(':')?;
            own.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// What the backend says that it was asked.
    fn seen(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The backend's name, which it says.
    fn backend(&self) -> Option<String> {
        let json: Value = serde_json::from_str(&self.body).ok()?;
        json["backend"].as_str().map(str::to_owned)
    }
}

/// One request on a connection of its own.
fn ask(address: SocketAddr, host: &str, path: &str) -> Answer {
    ask_with(address, host, path, "")
}

fn ask_with(address: SocketAddr, host: &str, path: &str, headers: &str) -> Answer {
    send(address, "GET", host, path, headers, "")
}

fn send(
    address: SocketAddr,
    method: &str,
    host: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length =
        if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}{length}Connection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    Answer::read(&answer).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// A service in the namespace shop whose endpoints are these.
fn service(name: &str, endpoints: &[&Echo]) -> String {
    service_at(name, &endpoints.iter().map(|echo| echo.address).collect::<Vec<_>>())
}

fn service_at(name: &str, endpoints: &[SocketAddr]) -> String {
    use std::fmt::Write as _;
    let port = endpoints.first().map_or(1, SocketAddr::port);
    let mut all = String::new();
    for endpoint in endpoints {
        let (ip, port) = (endpoint.ip(), endpoint.port());
        write!(
            all,
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}-{port}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
             addressType: IPv4\nports: [{{name: http, port: {port}}}]\n\
             endpoints: [{{addresses: [{ip}]}}]\n"
        )
        .unwrap();
    }
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{clusterIP: None, ports: [{{name: http, port: 80, targetPort: {port}}}]}}\n{all}---\n"
    )
}

/// An Ingress of one path; `more` stands in its metadata.
fn ingress(name: &str, host: &str, path: &str, service: &str, more: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\n\
         metadata:\n  name: {name}\n  namespace: shop\n{more}\
         spec:\n  rules:\n  - host: {host}\n    http:\n      paths:\n      - path: {path}\n        \
         pathType: Prefix\n        backend: {{service: {{name: {service}, port: {{name: http}}}}}}\n---\n"
    )
}

fn annotated(name: &str, value: &str) -> String {
    format!("  annotations: {{nginx.ingress.kubernetes.io/{name}: {value:?}}}\n")
}

/// Several annotations: ingress-nginx's by their name, others with their prefix.
fn all_annotated(pairs: &[(&str, &str)]) -> String {
    let each = pairs.iter().map(|(name, value)| {
        let prefix = if name.contains('/') { "" } else { "nginx.ingress.kubernetes.io/" };
        format!("    {prefix}{name}: {}\n", serde_json::json!(value))
    });
    ["  annotations:\n".to_owned()].into_iter().chain(each).collect()
}
