use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::tls::upstream::Verify;

fn mirrors() -> Mirrors {
    Mirrors::new(Arc::new(Client::new(&Verify::Off)))
}

fn filter(url: &str) -> MirrorFilter {
    MirrorFilter::new(&Mirror { url: url.into(), backend: None, body: true }).unwrap()
}

fn request() -> RequestHead {
    let mut head = RequestHead::new();
    head.method = Method::POST;
    head.set_authority("shop.org");
    head.set_target("/a?b").unwrap();
    head.headers.push("x-team", "blue");
    head.headers.push("connection", "close");
    head
}

#[tokio::test]
async fn a_copy_has_the_head_and_the_body() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mirrors = mirrors();
    let mut copy = filter(&url).begin(&request(), &mirrors);
    copy.push(b"hel");
    copy.push(b"lo");
    copy.send(&mirrors);
    let (mut io, _) = listener.accept().await.unwrap();
    let mut seen = String::new();
    while !seen.ends_with("hello") {
        seen.push(char::from(io.read_u8().await.unwrap()));
    }
    assert!(seen.starts_with("POST /a?b HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("host: shop.org\r\n") && seen.contains("x-team: blue\r\n"), "{seen}");
    assert!(seen.contains("content-length: 5\r\n") && !seen.contains("connection"), "{seen}");
}

#[tokio::test]
async fn what_is_too_much_is_not_mirrored_and_counted() {
    let mirrors = mirrors();
    let mut long = filter("http://127.0.0.1:1").begin(&request(), &mirrors);
    long.push(&vec![0; BODY_BYTES_MAX]);
    long.push(&[0]);
    assert!(long.body.is_empty());
    long.send(&mirrors);
    assert_eq!(mirrors.dropped(), 1);
    let _all = mirrors.places.clone().acquire_many_owned(UNDER_WAY_MAX as u32).await.unwrap();
    filter("http://127.0.0.1:1").begin(&request(), &mirrors).send(&mirrors);
    assert_eq!(mirrors.dropped(), 2);
}

#[tokio::test]
async fn bodies_are_bounded_together_too() {
    let mirrors = mirrors();
    let body = vec![0; BODY_BYTES_MAX];
    let mut copies = Vec::new();
    for _ in 0..BODIES_BYTES_MAX / BODY_BYTES_MAX {
        let mut copy = filter("http://127.0.0.1:1").begin(&request(), &mirrors);
        copy.push(&body);
        assert!(!copy.too_long);
        copies.push(copy);
    }
    let mut last = filter("http://127.0.0.1:1").begin(&request(), &mirrors);
    last.push(&body);
    assert!(last.too_long && last.body.is_empty());
    // What is over makes room.
    copies.pop();
    let mut next = filter("http://127.0.0.1:1").begin(&request(), &mirrors);
    next.push(&body);
    assert!(!next.too_long);
    drop((copies, last, next));
    assert_eq!(mirrors.held.load(Ordering::Relaxed), 0);
}
