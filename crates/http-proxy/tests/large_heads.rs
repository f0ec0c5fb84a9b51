//! Heads as large as they may be arrive whole, whatever both sides speak.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use std::fmt::Write as _;
use std::net::SocketAddr;

use h2_support::{read, request};
use http::{HeaderName, HeaderValue, Method, Response};
use support::{BACKEND, Backend, Proxy};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::table::{
    Backend as BackendSpec, Compress, Endpoint, Policy, UpstreamProtocol,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Fields of together so many bytes: in a few large ones, or in many.
fn fields(bytes: usize, each: usize) -> Vec<(String, String)> {
    (0..bytes / each)
        .map(|number| (format!("x-{number:03}"), format!("{number:03}{}", "v".repeat(each - 12))))
        .collect()
}

fn lines(fields: &[(String, String)]) -> String {
    fields.iter().fold(String::new(), |mut all, (name, value)| {
        let _ = write!(all, "{name}: {value}\r\n");
        all
    })
}

/// Servers of HTTP/1.1 and of HTTP/2 that answer with these fields.
async fn servers(fields: Vec<(String, String)>) -> [BackendSpec; 2] {
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.expect("bind") };
    let (h1, h2) = (bind().await, bind().await);
    let address = |listener: &TcpListener| listener.local_addr().expect("address");
    let spec = |address| BackendSpec::new(BACKEND, vec![Endpoint::at(address)]);
    let mut specs = [spec(address(&h1)), spec(address(&h2))];
    specs[1].protocol = UpstreamProtocol::H2c;
    let answer = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 5\r\n\r\nhello", lines(&fields));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = h1.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut piece = vec![0; 64 << 10];
                while stream.read(&mut piece).await.is_ok_and(|count| count > 0) {
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    tokio::spawn(async move {
        while let Ok((io, _)) = h2.accept().await {
            let fields = fields.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(io).await else { return };
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut response = Response::new(());
                    for (name, value) in &fields {
                        let name = HeaderName::from_bytes(name.as_bytes()).expect("name");
                        let value = HeaderValue::from_str(value).expect("value");
                        response.headers_mut().append(name, value);
                    }
                    let mut send = respond.send_response(response, false).expect("send");
                    send.send_data("hello".into(), true).expect("send");
                }
            });
        }
    });
    specs
}

fn policies() -> [Policy; 2] {
    let compress = Compress { enabled: true, ..Compress::default() };
    [Policy::default(), Policy { compress, ..Policy::default() }]
}

async fn h2_client(address: SocketAddr) -> h2::client::SendRequest<bytes::Bytes> {
    let io = TcpStream::connect(address).await.expect("connect");
    let mut builder = h2::client::Builder::new();
    builder.max_header_list_size(1 << 20);
    let (send, connection) = builder.handshake(io).await.expect("handshake");
    tokio::spawn(connection);
    send.ready().await.expect("ready")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_thirty_kilobytes_arrive_whole() {
    let backend = Backend::start().await;
    for (each, bytes) in [(4_000, 30_000), (300, 28_000)] {
        let fields = fields(bytes, each);
        for policy in policies() {
            let spec = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
            let proxy = Proxy::of_both(spec, policy, ProxySettings::default());
            let ask = format!(
                "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{}\r\n",
                lines(&fields)
            );
            assert!(proxy.raw(&ask).await.ends_with("hello"));
            let mut send = h2_client(proxy.address).await;
            let mut asked = request(Method::GET, "/hello");
            for (name, value) in &fields {
                let name = HeaderName::from_bytes(name.as_bytes()).expect("name");
                asked.headers_mut().append(name, HeaderValue::from_str(value).expect("value"));
            }
            let (response, _) = send.send_request(asked, true).expect("send");
            let answer = read(response.await.expect("response")).await.expect("body");
            assert_eq!(answer.body, b"hello");
            let seen = backend.seen();
            for request in &seen[seen.len() - 2..] {
                let lower = request.to_ascii_lowercase();
                for (name, value) in &fields {
                    assert!(lower.contains(&format!("\r\n{name}: {value}\r\n")), "{name}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_of_sixty_kilobytes_arrive_whole() {
    for (each, bytes) in [(4_000, 60_000), (600, 56_000)] {
        let fields = fields(bytes, each);
        for spec in servers(fields.clone()).await {
            for policy in policies() {
                let proxy = Proxy::of_both(spec.clone(), policy, ProxySettings::default());
                let ask = "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                let answer = proxy.raw(ask).await.to_ascii_lowercase();
                assert!(answer.contains("\r\nhello"), "{answer:.300}");
                for (name, value) in &fields {
                    assert!(answer.contains(&format!("\r\n{name}: {value}\r\n")), "{name}");
                }
                let mut send = h2_client(proxy.address).await;
                let (response, _) =
                    send.send_request(request(Method::GET, "/hello"), true).expect("send");
                let answer = read(response.await.expect("response")).await.expect("body");
                assert_eq!(answer.body, b"hello");
                for (name, value) in &fields {
                    assert_eq!(answer.headers[name.as_str()], value.as_str());
                }
            }
        }
    }
}
