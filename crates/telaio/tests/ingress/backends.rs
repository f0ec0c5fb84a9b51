//! Backends that say who they are and what they were asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// A backend on loopback. A path that begins with `/slow` is answered after a second, one with
/// `/slower` after five. Of the query,
/// `status=` is the answer's status, `max-age=` makes it fresh for so long, `cdn=` is its
/// `CDN-Cache-Control`, and `size=` its text so long.
/// The field `X-Echo-Status` is a status, too, and `X-Echo-Cookie` a cookie to set.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

/// What its connections share.
#[derive(Default)]
struct Shared {
    name: String,
    connections: AtomicUsize,
    requests: AtomicUsize,
    seen: Mutex<Vec<Value>>,
    ended: AtomicBool,
    /// Paths that begin with `/health` are answered with 500.
    sick: AtomicBool,
    /// Every answer takes so much longer.
    late_ms: AtomicU64,
}

impl Echo {
    pub(crate) fn start(name: &str) -> Self {
        Self::start_at(name, "127.0.0.1")
    }

    /// At an address of this machine that is not loopback, as a cluster's endpoints must be.
    pub(crate) fn start_outside(name: &str) -> Self {
        // Nothing is sent: the kernel says which address it would take.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("198.51.100.1:9").expect("this test needs a route to somewhere");
        Self::start_at(name, &socket.local_addr().unwrap().ip().to_string())
    }

    /// On this address.
    pub(crate) fn start_at(name: &str, ip: &str) -> Self {
        Self::start_on(name, TcpListener::bind((ip, 0)).unwrap())
    }

    /// On this socket.
    pub(crate) fn start_on(name: &str, listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { name: name.to_owned(), ..Shared::default() });
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if all.ended.load(Ordering::Relaxed) {
                    return;
                }
                all.connections.fetch_add(1, Ordering::Relaxed);
                let own = Arc::clone(&all);
                std::thread::spawn(move || {
                    // A client that breaks off ends this thread and nothing else.
                    let _ = serve(&stream, &own);
                });
            }
        });
        Self { address, shared }
    }

    /// Whether it says that it is not well.
    pub(crate) fn set_sick(&self, sick: bool) {
        self.shared.sick.store(sick, Ordering::Relaxed);
    }

    /// How much longer its answers take from now on.
    pub(crate) fn set_late(&self, by: Duration) {
        self.shared.late_ms.store(by.as_millis().try_into().unwrap(), Ordering::Relaxed);
    }

    /// How many connections came.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// What it was asked: method, path, headers and body of each request.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let name = &*shared.name;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || shared.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let method = line.split(' ').next().unwrap_or_default().to_owned();
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = serde_json::Map::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.into());
        }
        let chunked = headers.get("transfer-encoding").is_some_and(|it| it == "chunked");
        let sent = if chunked {
            read_chunks(&mut reader)?
        } else {
            let length = headers.get("content-length").and_then(|it| it.as_str()?.parse().ok());
            let mut sent = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut sent)?;
            sent
        };
        let sent = String::from_utf8_lossy(&sent).into_owned();
        shared.requests.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(shared.late_ms.load(Ordering::Relaxed)));
        if path.starts_with("/slow") {
            let seconds = if path.starts_with("/slower") { 5 } else { 1 };
            std::thread::sleep(Duration::from_secs(seconds));
        }
        let asked = |name: &str| {
            let query = path.split_once('?').map_or("", |(_, query)| query);
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let by_field = headers.get("x-echo-status").and_then(Value::as_str);
        let sick = shared.sick.load(Ordering::Relaxed) && path.starts_with("/health");
        let sick = sick.then_some("500");
        let status = sick.or(asked("status")).or(by_field).unwrap_or("200").to_owned();
        let cookie = headers.get("x-echo-cookie").and_then(Value::as_str);
        let cookie = cookie.map_or_else(String::new, |it| format!("set-cookie: {it}\r\n"));
        let fresh = asked("max-age")
            .map_or_else(String::new, |seconds| format!("cache-control: max-age={seconds}\r\n"));
        let cdn =
            asked("cdn").map_or_else(String::new, |text| format!("cdn-cache-control: {text}\r\n"));
        let padding = "x".repeat(asked("size").and_then(|size| size.parse().ok()).unwrap_or(0));
        let body = serde_json::json!({
            "backend": name, "method": method, "path": path, "headers": headers, "body": sent,
            "padding": padding
        });
        shared.seen.lock().unwrap().push(body.clone());
        let body = if method == "HEAD" { String::new() } else { body.to_string() };
        write!(
            writer,
            "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\nx-echo: {name}\r\n{fresh}{cdn}{cookie}content-length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
}

/// A chunked body, whole: who answers before it is here may be quicker than what is tested.
fn read_chunks(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let bad = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let mut sent = Vec::new();
    loop {
        let mut size = String::new();
        reader.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(|_| bad())?;
        let begin = sent.len();
        sent.resize(begin + size, 0);
        reader.read_exact(&mut sent[begin..])?;
        let mut end = String::new();
        reader.read_line(&mut end)?;
        if size == 0 {
            return Ok(sent);
        }
        if end != "\r\n" {
            return Err(bad());
        }
    }
}
