//! A cluster that changes all the time, under load: no request may fail.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Echo;
use super::certificates::{authority, signed};
use super::cluster::{Cluster, until};

/// What changes while requests run.
const CHANGES: usize = 1_000;
/// Connections that are kept: in clear, by TLS, HTTP/2 by TLS, and HTTP/2 in clear.
const CONNECTIONS: [(Wire, usize); 4] =
    [(Wire::Plain, 80), (Wire::Tls, 60), (Wire::TlsH2, 60), (Wire::PlainH2, 20)];
/// Routes among which requests choose.
const HOSTS: usize = 12;
/// Between two requests of one connection, so that others come to work on a small machine.
const PAUSE: Duration = Duration::from_millis(150);
/// Between two changes.
const CHANGE_PAUSE: Duration = Duration::from_millis(8);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wire {
    Plain,
    Tls,
    TlsH2,
    PlainH2,
}

/// What the clients share.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    requests: AtomicUsize,
    failed: Mutex<Vec<String>>,
    /// Which settings of routes, and which backends, requests have met.
    met: Mutex<BTreeSet<String>>,
}

impl Tally {
    fn fail(&self, what: String) {
        let mut failed = self.failed.lock();
        if failed.len() < 20 {
            failed.push(what);
        }
    }
}

/// An open connection of either version.
pub(crate) enum Sender {
    One(http1::SendRequest<Empty<Bytes>>),
    Two(http2::SendRequest<Empty<Bytes>>),
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    is_h2: bool,
) -> hyper::Result<Sender> {
    let io = TokioIo::new(stream);
    if is_h2 {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        return Ok(Sender::Two(sender));
    }
    let (sender, connection) = http1::handshake(io).await?;
    tokio::spawn(connection);
    Ok(Sender::One(sender))
}

pub(crate) async fn connect(wire: Wire, to: [SocketAddr; 2], tls: &rustls::ClientConfig) -> Sender {
    let is_h2 = matches!(wire, Wire::TlsH2 | Wire::PlainH2);
    if matches!(wire, Wire::Plain | Wire::PlainH2) {
        let stream = TcpStream::connect(to[0]).await.unwrap();
        return open(stream, is_h2).await.unwrap();
    }
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![if is_h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let stream = TcpStream::connect(to[1]).await.unwrap();
    let name = ServerName::try_from("h0.example.com").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
    open(stream.unwrap(), is_h2).await.unwrap()
}

/// Sends requests on one connection until it is told to stop. The connection must last.
async fn client(number: usize, wire: Wire, mut sender: Sender, tally: Arc<Tally>) -> usize {
    let mut count = 0;
    while !tally.stop.load(Ordering::Relaxed) {
        let host = format!("h{}.example.com", (number + count) % HOSTS);
        let scheme = if matches!(wire, Wire::Plain | Wire::PlainH2) { "http" } else { "https" };
        let (target, version) = match &sender {
            Sender::One(_) => ("/x".to_owned(), http::Version::HTTP_11),
            Sender::Two(_) => (format!("{scheme}://{host}/x"), http::Version::HTTP_2),
        };
        let mut request = http::Request::get(target).version(version);
        if version == http::Version::HTTP_11 {
            request = request.header("host", &host);
        }
        let request = request.body(Empty::new()).unwrap();
        let answer = match &mut sender {
            Sender::One(sender) => match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(error) => Err(error),
            },
            Sender::Two(sender) => sender.send_request(request).await,
        };
        let what = format!("{wire:?} {number}, request {count} to {host}");
        let read = match answer {
            Ok(answer) => {
                let status = answer.status();
                answer.into_body().collect().await.map(|body| (status, body.to_bytes()))
            }
            Err(error) => Err(error),
        };
        match read {
            Ok((http::StatusCode::OK, body)) => note(&tally, &body),
            Ok((status, body)) => {
                tally.fail(format!("{what}: {status} {}", String::from_utf8_lossy(&body)));
            }
            Err(error) => {
                tally.fail(format!("{what}: {error:?}"));
                return count;
            }
        }
        count += 1;
        tally.requests.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    count
}

/// Notes what a backend says about itself and about the route that led to it.
fn note(tally: &Tally, body: &[u8]) {
    let seen: Value = serde_json::from_slice(body).unwrap();
    let mut met = tally.met.lock();
    met.insert(format!("backend {}", seen["backend"]));
    if let Some(prefix) = seen["headers"]["x-forwarded-prefix"].as_str() {
        met.insert(prefix.to_owned());
    }
}

/// A host's Ingress as it is at a step: another policy, another manner, another service.
fn ingress(host: usize, step: usize) -> Value {
    const BALANCES: [&str; 3] = ["round_robin", "ewma", "least_conn"];
    let service = ["web", "other"][(host + step) % 2];
    let mut annotations = json!({
        "nginx.ingress.kubernetes.io/x-forwarded-prefix": format!("/step-{step}"),
        "nginx.ingress.kubernetes.io/proxy-read-timeout": (30 + step % 30).to_string(),
        "nginx.ingress.kubernetes.io/load-balance": BALANCES[step % 3],
        "nginx.ingress.kubernetes.io/proxy-body-size": format!("{}k", 64 + step % 64),
    });
    if step.is_multiple_of(5) {
        annotations["nginx.ingress.kubernetes.io/affinity"] = "cookie".into();
        annotations["nginx.ingress.kubernetes.io/enable-cors"] = "true".into();
    }
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": format!("h{host}"), "namespace": "shop", "annotations": annotations},
        "spec": {"ingressClassName": "front", "rules": [{
            "host": format!("h{host}.example.com"),
            "http": {"paths": [{"path": "/", "pathType": "Prefix",
                "backend": {"service": {"name": service, "port": {"name": "http"}}}}]},
        }]},
    })
}

/// The endpoints of a service at a step: those that are there come and go, terminate and come back, and
/// one that is ready stays.
fn slices(cluster: &Cluster, service: &str, echoes: &[Echo], step: usize) {
    let place = step % echoes.len();
    for (number, echo) in echoes.iter().enumerate() {
        let name = format!("{service}-{number}");
        let conditions = match (number == place, step % 3) {
            (false, _) => json!({"ready": true}),
            (true, 0) => json!({"ready": false, "serving": true, "terminating": true}),
            (true, 1) => json!({"ready": false, "serving": false}),
            (true, _) => {
                cluster.server.delete("endpointslices", "shop", &name);
                continue;
            }
        };
        cluster.endpoints_of(service, &name, &super::cluster::echo_slice(echo, &conditions));
    }
}

pub(crate) fn tls_secret() -> (Value, rustls::ClientConfig) {
    let issuer = authority("load");
    let (certificate, key) = signed("*.example.com", &issuer);
    let encode = |text: String| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, text);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "cert", "namespace": "shop"},
        "data": {"tls.crt": encode(certificate), "tls.key": encode(key)},
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(issuer.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (secret, config)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_changes_under_load_cost_no_request() {
    let web = [0, 1, 2].map(|number| Echo::start_outside(&format!("web-{number}")));
    let other = [0, 1, 2].map(|number| Echo::start_outside(&format!("other-{number}")));
    let cluster = Cluster::start(&web[0]).await;
    cluster.server.delete("endpointslices", "shop", "web-1");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "other", "namespace": "shop"},
        "spec": {"clusterIP": "None", "clusterIPs": ["None"],
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]},
    });
    let (secret, tls) = tls_secret();
    cluster.server.apply_many([service, secret]).unwrap();
    slices(&cluster, "web", &web, 0);
    slices(&cluster, "other", &other, 0);
    cluster.server.apply_many((0..HOSTS).map(|host| ingress(host, 0))).unwrap();
    let (agent, http, https) =
        cluster.agent_with("loom-a", &["--ingress-process=own", "--default-tls-secret=shop/cert"]);

    let tally = Arc::new(Tally::default());
    let mut clients = Vec::new();
    for (wire, count) in CONNECTIONS {
        for _ in 0..count {
            let sender = connect(wire, [http, https], &tls).await;
            let number = clients.len();
            clients.push(tokio::spawn(client(number, wire, sender, Arc::clone(&tally))));
        }
    }
    assert!(clients.len() >= 200);
    for step in 1..=CHANGES {
        match step % 4 {
            0 | 2 => drop(cluster.server.apply(ingress(step % HOSTS, step)).unwrap()),
            1 => slices(&cluster, "web", &web, step / 4),
            _ => slices(&cluster, "other", &other, step / 4),
        }
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
    // The last change is in force, and every connection has had requests since the first.
    cluster.ingress("last", "last.example.com", "2026-01-01T00:00:00Z", None);
    until("the last change", || super::ask(http, "last.example.com", "/").status == 200);
    tally.stop.store(true, Ordering::Relaxed);
    let mut counts = Vec::new();
    for client in clients {
        counts.push(client.await.unwrap());
    }
    let failed = tally.failed.lock().clone();
    assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    assert!(counts.iter().all(|count| *count >= 3), "{counts:?}");
    assert_eq!(tally.requests.load(Ordering::Relaxed), counts.iter().sum::<usize>());
    // What was changed was met by requests: the routes' settings, and all backends.
    let met = tally.met.lock();
    let backends = met.iter().filter(|it| it.starts_with("backend")).count();
    let steps = met.iter().filter(|it| it.starts_with("/step-")).count();
    assert_eq!(backends, 6, "{met:?}");
    assert!(steps >= 50, "{steps} of 500 settings were met");
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("the ingress worker ended"), "{log}");
}

/// A backend that can be killed as a process is: it listens no more, and its connections break off.
struct Mortal {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
    running: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

impl Mortal {
    async fn start(name: &'static str, ip: IpAddr) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, running) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (count, all) = (Arc::clone(&requests), Arc::clone(&running));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let task = tokio::spawn(Self::serve(name, stream, Arc::clone(&count)));
                all.lock().push(task.abort_handle());
            }
        });
        Self { address, requests, accepting, running }
    }

    async fn serve(name: &'static str, mut stream: TcpStream, count: Arc<AtomicUsize>) {
        let body = json!({"backend": name, "headers": {}}).to_string();
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        let (mut head, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            match stream.read(&mut piece).await {
                Ok(1..) if head.len() > 1 << 16 => return,
                Ok(read @ 1..) => head.extend_from_slice(&piece[..read]),
                _ => return,
            }
            if head.ends_with(b"\r\n\r\n") {
                head.clear();
                count.fetch_add(1, Ordering::Relaxed);
                // So that some requests are under way whenever it is killed.
                tokio::time::sleep(Duration::from_millis(20)).await;
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    fn kill(&self) {
        self.accepting.abort();
        self.running.lock().iter().for_each(tokio::task::AbortHandle::abort);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_killed_under_load_costs_no_request_that_can_be_repeated() {
    let echo = Echo::start_outside("none");
    let cluster = Cluster::start(&echo).await;
    cluster.server.delete("endpointslices", "shop", "web-1");
    let (secret, tls) = tls_secret();
    cluster.server.apply(secret).unwrap();
    cluster.server.apply_many((0..HOSTS).map(|host| ingress(host, host % 2))).unwrap();
    let ip = echo.address.ip();
    let (dying, living) = (Mortal::start("dying", ip).await, Mortal::start("living", ip).await);
    for mortal in [&dying, &living] {
        let port = mortal.address.port();
        let parts = json!({
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [ip.to_string()], "conditions": {"ready": true}}],
        });
        cluster.endpoints_of("web", &format!("web-{port}"), &parts);
    }
    let flags = ["--ingress-process=own", "--default-tls-secret=shop/cert"];
    let (agent, http, https) = cluster.agent_with("loom-a", &flags);
    let tally = Arc::new(Tally::default());
    let mut clients = Vec::new();
    for wire in [Wire::Plain, Wire::Tls, Wire::TlsH2, Wire::PlainH2] {
        for _ in 0..8 {
            let sender = connect(wire, [http, https], &tls).await;
            let number = clients.len();
            clients.push(tokio::spawn(client(number, wire, sender, Arc::clone(&tally))));
        }
    }
    let asked = |of: &AtomicUsize, more: usize| {
        let before = of.load(Ordering::Relaxed);
        until("requests", || of.load(Ordering::Relaxed) > before + more);
    };
    asked(&dying.requests, 200);
    dying.kill();
    asked(&tally.requests, 400);
    tally.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let failed = tally.failed.lock().clone();
    assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    assert!(living.requests.load(Ordering::Relaxed) > 400);
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
}
