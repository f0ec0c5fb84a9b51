use std::time::Instant;

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::tls::upstream::Verify;

fn outcome() -> Outcome<'static> {
    let status = StatusCode::BAD_GATEWAY;
    Outcome { status, duration: Duration::from_millis(5), ..Outcome::new(Instant::now()) }
}

fn request(exporter: &Exporter, parent: Option<&str>) -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority("shop.org");
    head.set_path("/a\"b");
    if let Some(parent) = parent {
        head.headers.push("traceparent", parent);
    }
    exporter.begin(&mut head);
    head
}

#[tokio::test]
async fn spans_reach_the_collector() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/traces", collector.local_addr().unwrap()).parse().unwrap();
    let (exporter, sending) = Exporter::new(url, "tel\"aio", 1, Client::new(&Verify::Off));
    let sending = tokio::spawn(sending);
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    exporter.finished(&request(&exporter, Some(given)), &outcome());
    let not_recorded = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-00";
    exporter.finished(&request(&exporter, Some(not_recorded)), &outcome());
    let (mut io, _) = collector.accept().await.unwrap();
    let mut seen = Vec::new();
    let body = loop {
        let mut piece = [0; 4096];
        let count = io.read(&mut piece).await.unwrap();
        seen.extend_from_slice(&piece[..count]);
        let text = String::from_utf8(seen.clone()).unwrap();
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str::<serde_json::Value>(body)
        {
            assert!(text.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{text}");
            break body;
        }
    };
    io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 1, "one was recorded");
    let span = &spans[0];
    assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
    assert_eq!(span["status"]["code"], 2);
    let start: u64 = span["startTimeUnixNano"].as_str().unwrap().parse().unwrap();
    let end: u64 = span["endTimeUnixNano"].as_str().unwrap().parse().unwrap();
    assert_eq!(end - start, 5_000_000);
    assert!(
        span["attributes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["value"]["stringValue"] == "/a\"b")
    );
    drop(exporter);
    sending.await.unwrap();
}

#[tokio::test]
async fn spans_that_nobody_takes_are_dropped_and_counted() {
    let url = "http://127.0.0.1:1/".parse().unwrap();
    let (exporter, _sending) = Exporter::new(url, "x", 1, Client::new(&Verify::Off));
    let head = request(&exporter, None);
    for _ in 0..SPANS_MAX + 10 {
        exporter.finished(&head, &outcome());
    }
    assert_eq!(exporter.dropped(), 10);
}
