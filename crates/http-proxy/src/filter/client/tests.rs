use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const WITHIN: Duration = Duration::from_secs(20);

/// Answers each request by `answer`; counts connections. Closes after `per_connection` requests.
pub(crate) async fn server(
    answer: &'static str,
    per_connection: usize,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                for _ in 0..per_connection {
                    let mut seen = Vec::new();
                    while !seen.ends_with(b"\r\n\r\n") {
                        match io.read_u8().await {
                            Ok(byte) => seen.push(byte),
                            Err(_) => return,
                        }
                    }
                    io.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (address, connections)
}

fn get(address: SocketAddr) -> Request<Bytes> {
    Request::get(format!("http://{address}/a?b")).header("host", "x").body(Bytes::new()).unwrap()
}

#[tokio::test]
async fn connections_are_used_again_and_replaced_when_closed() {
    let client = Client::new(&Verify::Off);
    let (address, connections) = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 3).await;
    for _ in 0..9 {
        let answer = client.ask(get(address), WITHIN, 100).await.unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::OK, &b"ok"[..]));
    }
    let made = connections.load(Ordering::SeqCst);
    assert!((3..=4).contains(&made), "{made}");
}

#[tokio::test]
async fn an_answer_that_is_long_late_or_missing_is_an_error() {
    let client = Client::new(&Verify::Off);
    let (long, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789", 1).await;
    let error = client.ask(get(long), WITHIN, 8).await.unwrap_err();
    assert!(matches!(error, ClientError::Body(..)), "{error}");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let error = client.ask(get(address), Duration::from_millis(100), 8).await.unwrap_err();
    assert!(matches!(error, ClientError::TimedOut(_)), "{error}");
    drop(silent);
    let error = client.ask(get(address), WITHIN, 8).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(..)), "{error}");
    let request = Request::get("/relative").body(Bytes::new()).unwrap();
    let error = client.ask(request, WITHIN, 8).await.unwrap_err();
    assert!(matches!(error, ClientError::Address(_)), "{error}");
}
