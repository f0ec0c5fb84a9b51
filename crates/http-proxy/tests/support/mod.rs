//! A backend that does what the path says, a proxy before it, and clients that speak raw bytes.
#![allow(dead_code, clippy::expect_used, clippy::struct_field_names, clippy::large_stack_arrays)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend as BackendSpec, BackendId, Endpoint, HostMatch, PathMatch, Policy, Route, TableChange,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const BACKEND: &str = "default/web:80";

/// A server of our own: `/hello`, `/head` (what it was sent), `/chunked`, `/close`, `/big?BYTES`,
/// `/slow?MS`, `/status?CODE`, `/upgrade`, `/die`, `/cut`, `/early`, `/continue`.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    /// Every request: its head and its body as they came.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    pub(crate) connections: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
    running: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

impl Backend {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address")).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("bind");
        let address = listener.local_addr().expect("address");
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let connections: Arc<AtomicUsize> = Arc::default();
        let running: Arc<Mutex<Vec<tokio::task::AbortHandle>>> = Arc::default();
        let accepting = tokio::spawn({
            let (requests, connections, running) =
                (requests.clone(), connections.clone(), running.clone());
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::Relaxed);
                    let task = tokio::spawn(Box::pin(serve(stream, requests.clone())));
                    running.lock().push(task.abort_handle());
                }
            }
        });
        Self { address, requests, connections, accepting, running }
    }

    /// Closes everything at once, as a killed process does.
    pub(crate) fn kill(&self) {
        self.accepting.abort();
        self.running.lock().iter().for_each(tokio::task::AbortHandle::abort);
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads a head and its body; `None` at the end.
async fn read_request(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<(String, String)> {
    let mut piece = [0; 16 << 10];
    let head_end = loop {
        if let Some(at) = rest.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => rest.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    };
    let head = String::from_utf8_lossy(&rest[..head_end]).into_owned();
    rest.drain(..head_end);
    let lower = head.to_ascii_lowercase();
    if lower.contains("expect: 100-continue") && !head.contains("/early") {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
    }
    if head.contains("/early") {
        return Some((head, String::new()));
    }
    let length = lower
        .split("content-length: ")
        .nth(1)
        .and_then(|text| text.split("\r\n").next().and_then(|digits| digits.parse::<usize>().ok()));
    let done = |rest: &[u8]| match length {
        Some(length) => (rest.len() >= length).then_some(length),
        None if lower.contains("transfer-encoding: chunked") => {
            let text = String::from_utf8_lossy(rest).into_owned();
            let last = if text.starts_with("0\r\n") {
                Some(0)
            } else {
                text.find("\r\n0\r\n").map(|at| at + 2)
            };
            last.and_then(|at| text[at..].find("\r\n\r\n").map(|end| at + end + 4))
        }
        None => Some(0),
    };
    loop {
        if let Some(end) = done(rest) {
            let body = String::from_utf8_lossy(&rest[..end]).into_owned();
            rest.drain(..end);
            return Some((head, body));
        }
        match stream.read(&mut piece).await {
            Ok(count) if count > 0 => rest.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}

async fn serve(mut stream: TcpStream, requests: Arc<Mutex<Vec<String>>>) {
    let mut rest = Vec::new();
    while let Some((head, body)) = Box::pin(read_request(&mut stream, &mut rest)).await {
        requests.lock().push(format!("{head}{body}"));
        let target = head.split(' ').nth(1).unwrap_or("/").to_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let number: usize = query.parse().unwrap_or(0);
        let fixed =
            |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answer = match path {
            "/head" => fixed(&format!("{head}{body}")),
            "/chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                           3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nX-Sum: 7\r\n\r\n".to_owned(),
            "/close" => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end".to_owned(),
            "/big" => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n\r\n");
                if stream.write_all(head.as_bytes()).await.is_err() {
                    return;
                }
                let piece = [b'x'; 16 << 10];
                let mut left = number;
                while left > 0 {
                    let count = left.min(piece.len());
                    if stream.write_all(&piece[..count]).await.is_err() {
                        return;
                    }
                    left -= count;
                }
                continue;
            }
            "/slow" => {
                tokio::time::sleep(Duration::from_millis(number as u64)).await;
                fixed("slow")
            }
            "/status" => format!("HTTP/1.1 {number} Status\r\nContent-Length: 0\r\n\r\n"),
            "/interim" => format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{}", fixed("after")),
            "/hop" => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-inner, keep-alive\r\nX-Inner: 1\r\n\
                       Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nX-Outer: 1\r\n\r\nok".to_owned(),
            "/bad" => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            "/die" => return,
            "/cut" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await;
                return;
            }
            "/early" => {
                let _ = stream.write_all(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
                let _ = stream.shutdown().await;
                tokio::time::sleep(Duration::from_millis(200)).await;
                return;
            }
            "/upgrade" => {
                let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst";
                let _ = stream.write_all(switch.as_bytes()).await;
                let mut piece = [0; 4096];
                while let Ok(count) = stream.read(&mut piece).await {
                    if count == 0 || stream.write_all(&piece[..count]).await.is_err() {
                        return;
                    }
                }
                return;
            }
            _ if head.starts_with("HEAD") => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_owned(),
            _ => fixed("hello"),
        };
        if stream.write_all(answer.as_bytes()).await.is_err() || path == "/close" {
            return;
        }
    }
}

/// A proxy with one thread per core before some backends.
pub(crate) struct Proxy {
    pub(crate) proxy: Arc<HttpProxy>,
    pub(crate) address: SocketAddr,
    pub(crate) server: Server,
}

impl Proxy {
    pub(crate) fn before(backends: &[&Backend]) -> Self {
        Self::with(backends, Policy::default(), ProxySettings::default())
    }

    pub(crate) fn with_policy(backends: &[&Backend], policy: Policy) -> Self {
        Self::with(backends, policy, ProxySettings::default())
    }

    pub(crate) fn with(backends: &[&Backend], policy: Policy, settings: ProxySettings) -> Self {
        let proxy = Arc::new(HttpProxy::new(settings));
        let endpoints = backends.iter().map(|backend| Endpoint::at(backend.address)).collect();
        proxy.apply(&TableChange {
            routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
            backends: [(BackendId::new(BACKEND), Some(BackendSpec::new(BACKEND, endpoints)))]
                .into(),
            ..TableChange::default()
        });
        let sockets = listen("127.0.0.1:0".parse().expect("an address"), 2).expect("listen");
        let address = sockets[0].local_addr().expect("address");
        let server =
            Server::start(&proxy, vec![Listener { sockets, handler: None }], 2).expect("start");
        Self { proxy, address, server }
    }

    /// One that speaks HTTP/1.1 and HTTP/2 in clear.
    pub(crate) fn of_both(backend: BackendSpec, policy: Policy, settings: ProxySettings) -> Self {
        let proxy = Arc::new(HttpProxy::new(settings));
        let problems = proxy.apply(&TableChange {
            routes: [("r".into(), Some(route("r", HostMatch::Any, policy).into()))].into(),
            backends: [(BackendId::new(BACKEND), Some(backend))].into(),
            ..TableChange::default()
        });
        assert!(problems.is_empty(), "{problems:?}");
        let sockets = listen("127.0.0.1:0".parse().expect("an address"), 2).expect("listen");
        let address = sockets[0].local_addr().expect("address");
        let front = FrontHandler(Arc::new(Front::plain(Trust::new(Vec::new()))));
        let listener = Listener { sockets, handler: Some(Arc::new(front)) };
        let server = Server::start(&proxy, vec![listener], 2).expect("start");
        Self { proxy, address, server }
    }

    /// Sends bytes, closes the sending side, and reads all that comes.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        let _ = stream.write_all(request.as_ref()).await;
        read_all(&mut stream).await
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connect")
    }

    /// A GET on a connection of its own: status and body.
    pub(crate) async fn get(&self, target: &str) -> (u16, String) {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
        let answer = self.raw(request).await;
        (
            status(&answer),
            answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default(),
        )
    }
}

pub(crate) fn route(id: &str, host: HostMatch, policy: Policy) -> Route {
    Route {
        policy: Arc::new(policy),
        ..Route::forward(id, host, PathMatch::Prefix("/".into()), BackendId::new(BACKEND))
    }
}

pub(crate) fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Reads until the other side closes, or for ten seconds.
pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut all)).await;
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads one response with a length, and leaves the connection open.
pub(crate) async fn read_response(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lower = head.to_ascii_lowercase();
            let length = lower.split("content-length: ").nth(1).and_then(|text| {
                text.split("\r\n").next().and_then(|digits| digits.parse::<usize>().ok())
            });
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match tokio::time::timeout(Duration::from_secs(10), stream.read(&mut piece)).await {
            Ok(Ok(count)) if count > 0 => all.extend_from_slice(&piece[..count]),
            _ => return text,
        }
    }
}

/// How many others there are while somebody misbehaves.
pub(crate) const OTHERS: usize = 50;
/// How long each of them may wait: far longer than it does, and less than whoever misbehaves takes.
const SOON: Duration = Duration::from_secs(10);

/// Others, one after the other: each is answered, and soon.
pub(crate) async fn others_are_served(address: SocketAddr, target: &str) {
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n");
    for number in 0..OTHERS {
        let asking = async {
            let mut stream = TcpStream::connect(address).await.expect("connect");
            stream.write_all(request.as_bytes()).await.expect("write");
            read_all(&mut stream).await
        };
        let answer = tokio::time::timeout(SOON, asking).await;
        assert!(answer.is_ok(), "other {number} had to wait");
        let answer = answer.unwrap_or_default();
        assert!(answer.ends_with("hello"), "{answer:.300}");
    }
}

/// Raises the bound of open files to this, or fails: fewer connections would prove less.
pub(crate) fn allow_descriptors(wanted: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let maximum = now.maximum.map(|maximum| maximum.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    raised.expect("this test needs more open files: raise `ulimit -n` or run it as root");
}

/// The peak of this process's memory while something runs, beyond what it had before, in KiB.
pub(crate) struct Peak(usize);

impl Peak {
    pub(crate) fn begin() -> Self {
        // Lets the kernel begin its record anew.
        std::fs::write("/proc/self/clear_refs", "5").expect("clear_refs");
        Self(memory_kib("VmRSS:"))
    }

    pub(crate) fn grown_kib(&self) -> usize {
        memory_kib("VmHWM:").saturating_sub(self.0)
    }
}

fn memory_kib(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
