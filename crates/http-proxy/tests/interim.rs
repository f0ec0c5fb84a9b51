//! Interim responses, such as 103 Early Hints, reach the client by whatever way.
#![allow(clippy::expect_used, reason = "a test ends where its means fail")]

mod h2_support;
mod support;

use h2_support::{connect, read, request};
use http::{Method, Response, StatusCode};
use support::{BACKEND, Backend, Proxy};
use telaio_http_proxy::ProxySettings;
use telaio_http_proxy::table::{
    Backend as BackendSpec, Compress, Endpoint, Policy, UpstreamProtocol,
};
use tokio::net::TcpListener;

/// An HTTP/2 server that hints before it answers.
async fn hinting_h2() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(io).await else { return };
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let hint = Response::builder().status(103).header("link", "</a>").body(());
                    respond.send_informational(hint.expect("a hint")).expect("send");
                    let mut send = respond.send_response(Response::new(()), false).expect("send");
                    send.send_data("after".into(), true).expect("send");
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_reach_clients_of_h1_and_h2_by_streams_too() {
    let backend = Backend::start().await;
    let h1 = BackendSpec::new(BACKEND, vec![Endpoint::at(backend.address)]);
    let mut h2 = BackendSpec::new(BACKEND, vec![Endpoint::at(hinting_h2().await)]);
    h2.protocol = UpstreamProtocol::H2c;
    let compress = Compress { enabled: true, ..Compress::default() };
    let streamed = Policy { compress, ..Policy::default() };
    let cases = [
        ("h1", h1.clone(), Policy::default()),
        ("h1 as a stream", h1, streamed),
        ("h2", h2, Policy::default()),
    ];
    for (name, spec, policy) in cases {
        let proxy = Proxy::of_both(spec, policy, ProxySettings::default());
        let answer =
            proxy.raw("GET /interim HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        let lower = answer.to_ascii_lowercase();
        assert!(
            lower.starts_with("http/1.1 103 early hints\r\nlink: </a>\r\n\r\nhttp/1.1 200 "),
            "{name}: {answer}"
        );
        assert!(answer.contains("after"), "{name}: {answer}");
        // Who cannot know of them is not told.
        let answer = proxy.raw("GET /interim HTTP/1.0\r\nHost: a\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {answer}");

        let mut send = connect(proxy.address).await;
        let asked = request(Method::GET, "/interim");
        let (mut response, _) = send.send_request(asked, true).expect("send");
        let hint = std::future::poll_fn(|cx| response.poll_informational(cx)).await;
        let hint = hint.expect("a hint").expect("a hint");
        assert_eq!(
            (hint.status(), &hint.headers()["link"]),
            (StatusCode::EARLY_HINTS, &http::HeaderValue::from_static("</a>"))
        );
        let answer = read(response.await.expect("response")).await.expect("body");
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"after"[..]), "{name}");
    }
}
