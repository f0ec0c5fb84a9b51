//! A proxy for conformance tests of HTTP/2: `h2_conformance LISTEN`. Behind it stands a server of
//! HTTP/1.1 in the same process that answers every request with a few bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use telaio_http_proxy::front::{Front, FrontHandler};
use telaio_http_proxy::proxy_protocol::Trust;
use telaio_http_proxy::server::{Listener, Server, listen};
use telaio_http_proxy::table::{
    Backend, BackendId, Endpoint, HostMatch, PathMatch, Route, TableChange,
};
use telaio_http_proxy::{HttpProxy, ProxySettings};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).ok_or("usage: h2_conformance LISTEN")?;
    let address: SocketAddr = address.parse()?;
    let behind = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = Endpoint::at(behind.local_addr()?);
    std::thread::spawn(move || {
        for stream in behind.incoming().flatten() {
            std::thread::spawn(move || answer_all(stream));
        }
    });
    let id = BackendId::new("default/web:80");
    let path = PathMatch::Prefix("/".into());
    let route = Route::forward("default/any/0/0", HostMatch::Any, path, id.clone());
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    let problems = proxy.apply(&TableChange {
        routes: [(route.id.clone(), Some(route.into()))].into(),
        backends: [(id, Some(Backend::new("default/web:80", vec![endpoint])))].into(),
        ..TableChange::default()
    });
    if !problems.is_empty() {
        return Err(format!("{problems:?}").into());
    }
    let handler = FrontHandler(Arc::new(Front::plain(Trust::default())));
    let listener = Listener { sockets: listen(address, 1)?, handler: Some(Arc::new(handler)) };
    let _server = Server::start(&proxy, vec![listener], 1)?;
    println!("listening on {address}");
    loop {
        std::thread::park();
    }
}

/// Answers requests until the connection ends; bodies are read and thrown away.
fn answer_all(stream: TcpStream) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut input = BufReader::new(stream);
    loop {
        let (mut length, mut chunked) = (0, false);
        loop {
            let mut line = String::new();
            if input.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().ok()?;
            }
            chunked |= line == "transfer-encoding: chunked";
        }
        std::io::copy(&mut input.by_ref().take(length), &mut std::io::sink()).ok()?;
        loop {
            if !chunked {
                break;
            }
            let mut line = String::new();
            input.read_line(&mut line).ok()?;
            let size = u64::from_str_radix(line.trim_end(), 16).ok()?;
            if size == 0 {
                // Trailers, and the empty line that ends them.
                while line != "\r\n" {
                    line.clear();
                    if input.read_line(&mut line).ok()? == 0 {
                        return None;
                    }
                }
                break;
            }
            std::io::copy(&mut input.by_ref().take(size + 2), &mut std::io::sink()).ok()?;
        }
        out.write_all(ANSWER).ok()?;
    }
}
