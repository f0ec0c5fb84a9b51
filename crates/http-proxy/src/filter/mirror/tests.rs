use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::tls::upstream::Verify;

fn mirrors() -> Mirrors {
    Mirrors::new(Arc::new(Client::new(&Verify::Off)))
}

fn mirror(url: &str, host: Option<&str>) -> Mirror {
    Mirror { url: url.into(), host: host.map(Into::into), backend: None, body: true }
}

fn filter(url: &str) -> MirrorFilter {
    MirrorFilter::new(&mirror(url, None)).unwrap()
}

fn begin(filter: &MirrorFilter, mirrors: &Mirrors) -> RequestCopy {
    filter.begin(&request(), &Policy::default(), mirrors)
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

/// What a mirror gets of a request with the body `hello`.
async fn copied(head: &RequestHead, policy: &Policy, host: Option<&str>) -> (String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mirrors = mirrors();
    let filter = MirrorFilter::new(&mirror(&format!("http://{address}"), host)).unwrap();
    let mut copy = filter.begin(head, policy, &mirrors);
    copy.push(b"hel");
    copy.push(b"lo");
    copy.send(&mirrors);
    let (mut io, _) = listener.accept().await.unwrap();
    let mut seen = String::new();
    while !seen.ends_with("hello") {
        seen.push(char::from(io.read_u8().await.unwrap()));
    }
    (seen, address)
}

#[tokio::test]
async fn a_copy_has_the_head_and_the_body() {
    let (seen, address) = copied(&request(), &Policy::default(), None).await;
    assert!(seen.starts_with("POST /a?b HTTP/1.1\r\n"), "{seen}");
    assert!(seen.contains("x-team: blue\r\n") && !seen.contains("connection"), "{seen}");
    assert!(seen.contains("content-length: 5\r\n"), "{seen}");
    // The host is the mirror's own, as in ingress-nginx, unless another is wanted.
    assert!(seen.contains(&format!("host: {address}\r\n")), "{seen}");
    for (host, wanted) in [("shadow.org:81", "shadow.org:81"), ("$host", "shop.org")] {
        let (seen, _) = copied(&request(), &Policy::default(), Some(host)).await;
        assert!(seen.contains(&format!("host: {wanted}\r\n")), "{seen}");
    }
}

#[tokio::test]
async fn who_the_client_is_a_mirror_hears_from_us_and_not_from_the_client() {
    let mut head = request();
    head.client.address = [192, 0, 2, 7].into();
    head.client.peer = ([192, 0, 2, 7], 9).into();
    for name in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "X-Scheme"] {
        assert!(head.headers.push(name, "evil"));
    }
    assert!(head.headers.push("X-Forwarded-Prefix", "/evil"));
    let policy = Policy { forwarded_prefix: Some("/app".into()), ..Policy::default() };
    let (seen, _) = copied(&head, &policy, None).await;
    assert!(!seen.contains("evil"), "{seen}");
    for own in ["x-forwarded-for: 192.0.2.7", "x-real-ip: 192.0.2.7", "x-forwarded-prefix: /app"] {
        assert!(seen.contains(&format!("{own}\r\n")), "{own}: {seen}");
    }
    assert!(seen.contains("x-forwarded-host: shop.org\r\n") && seen.contains("for=192.0.2.7"));
    // A trusted proxy's word goes on, with ours behind it.
    head.client.trusted = true;
    let (seen, _) = copied(&head, &policy, None).await;
    assert!(seen.contains("x-forwarded-for: evil, 192.0.2.7\r\n"), "{seen}");
}

#[tokio::test]
async fn what_is_too_much_is_not_mirrored_and_counted() {
    let mirrors = mirrors();
    let mut long = begin(&filter("http://127.0.0.1:1"), &mirrors);
    long.push(&vec![0; BODY_BYTES_MAX]);
    long.push(&[0]);
    assert!(long.body.is_empty());
    long.send(&mirrors);
    assert_eq!(mirrors.dropped(), 1);
    let _all = mirrors.places.clone().acquire_many_owned(UNDER_WAY_MAX as u32).await.unwrap();
    begin(&filter("http://127.0.0.1:1"), &mirrors).send(&mirrors);
    assert_eq!(mirrors.dropped(), 2);
}

#[tokio::test]
async fn bodies_are_bounded_together_too() {
    let mirrors = mirrors();
    let body = vec![0; BODY_BYTES_MAX];
    let mut copies = Vec::new();
    for _ in 0..BODIES_BYTES_MAX / BODY_BYTES_MAX {
        let mut copy = begin(&filter("http://127.0.0.1:1"), &mirrors);
        copy.push(&body);
        assert!(!copy.too_long);
        copies.push(copy);
    }
    let mut last = begin(&filter("http://127.0.0.1:1"), &mirrors);
    last.push(&body);
    assert!(last.too_long && last.body.is_empty());
    // What is over makes room.
    copies.pop();
    let mut next = begin(&filter("http://127.0.0.1:1"), &mirrors);
    next.push(&body);
    assert!(!next.too_long);
    drop((copies, last, next));
    assert_eq!(mirrors.held.load(Ordering::Relaxed), 0);
}
