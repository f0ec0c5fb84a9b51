use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::table::{self, ClientTlsMode, PathMatch, Policy, Route};
use crate::tls::Certificate;
use crate::tls::certificate::tests::{certificate_for, pem_for};
use crate::tls::upstream::{Offer, UpstreamTls, Verify};

const LONG: Duration = Duration::from_secs(20);

fn acceptor() -> Arc<TlsAcceptor> {
    let store = Arc::new(CertificateStore::new().unwrap());
    Arc::new(TlsAcceptor::new(store, TlsLimits::default()).unwrap())
}

/// Gives a host a new certificate, which comes back in DER.
fn serve_host(acceptor: &TlsAcceptor, host: &str) -> Vec<u8> {
    let (chain, key) = pem_for(&[host]);
    let der =
        Certificate::from_pem(chain.as_bytes(), key.as_bytes()).unwrap().key().cert[0].to_vec();
    let certificate = table::Certificate {
        hosts: vec![host.into()],
        chain_pem: chain.into_bytes().into(),
        key_pem: key.into_bytes().into(),
    };
    let certificates = [(format!("n/{host}").into(), Some(certificate))].into();
    let problems = acceptor.apply(&TableChange { certificates, ..TableChange::default() });
    assert!(problems.is_empty(), "{problems:?}");
    der
}

/// No host has routes.
fn no_routes(_: &str) -> bool {
    false
}

/// Accepts one connection, and says what came of it.
async fn accept_one(
    acceptor: &Arc<TlsAcceptor>,
) -> (SocketAddr, tokio::task::JoinHandle<Result<Accepted<TcpStream>, AcceptError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = Arc::clone(acceptor);
    let task = tokio::spawn(async move {
        let (io, _) = listener.accept().await.unwrap();
        let mut accepted = acceptor.accept(Bytes::new(), io, no_routes).await?;
        // A byte each way, so that tickets have come and certificates been judged.
        if let Accepted::Tls { stream, .. } = &mut accepted {
            stream.read_u8().await?;
            stream.write_u8(b'!').await?;
            stream.flush().await?;
        }
        Ok(accepted)
    });
    (address, task)
}

type ClientStream = tokio_rustls::client::TlsStream<TcpStream>;

async fn talk(client: &UpstreamTls, address: SocketAddr, name: &str) -> io::Result<ClientStream> {
    let io = TcpStream::connect(address).await?;
    let (mut stream, _) = client.connect(io, name, LONG).await.map_err(io::Error::other)?;
    stream.write_u8(b'?').await?;
    stream.read_u8().await?;
    Ok(stream)
}

async fn info_of(
    acceptor: &Arc<TlsAcceptor>,
    client: &UpstreamTls,
    name: &str,
) -> (Arc<TlsInfo>, bool, ClientStream) {
    let (address, task) = accept_one(acceptor).await;
    let stream = talk(client, address, name).await.unwrap();
    match task.await.unwrap().unwrap() {
        Accepted::Tls { info, h2, .. } => (info, h2, stream),
        Accepted::Passthrough { .. } => panic!("it was passed through"),
    }
}

fn leaf(stream: &ClientStream) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn anybody(offer: Offer) -> UpstreamTls {
    UpstreamTls::new(&Verify::Off, offer, None).unwrap()
}

#[tokio::test]
async fn the_certificate_goes_by_name_and_the_protocol_by_alpn() {
    let acceptor = acceptor();
    let shop = serve_host(&acceptor, "shop.org");
    let (info, h2, stream) = info_of(&acceptor, &anybody(Offer::Both), "Shop.org").await;
    assert!(h2);
    assert_eq!(info.server_name.as_deref(), Some("shop.org"));
    assert_eq!(info.version, "TLSv1.3");
    assert_eq!(leaf(&stream), shop);
    let (_, h2, stream) = info_of(&acceptor, &anybody(Offer::Http1), "other.org").await;
    assert!(!h2);
    assert_ne!(leaf(&stream), shop);
}

#[tokio::test]
async fn a_renewal_serves_new_connections_and_leaves_standing_ones() {
    let acceptor = acceptor();
    serve_host(&acceptor, "shop.org");
    let (address, task) = accept_one(&acceptor).await;
    let mut standing = talk(&anybody(Offer::Both), address, "shop.org").await.unwrap();
    let Accepted::Tls { stream: mut served, .. } = task.await.unwrap().unwrap() else {
        panic!("passed through")
    };
    let new = serve_host(&acceptor, "shop.org");
    let (_, _, stream) = info_of(&acceptor, &anybody(Offer::Both), "shop.org").await;
    assert_eq!(leaf(&stream), new);
    standing.write_u8(b'x').await.unwrap();
    assert_eq!(served.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn a_session_is_resumed() {
    let acceptor = acceptor();
    let client = anybody(Offer::Both);
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let (_, _, stream) = info_of(&acceptor, &client, "shop.org").await;
        kinds.push(stream.get_ref().1.handshake_kind().unwrap());
    }
    assert_eq!(kinds, [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]);
}

/// An authority, and somebody whom it signed.
fn authority_and_member() -> (Arc<[u8]>, Certificate) {
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "authority of the test");
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let member_key = rcgen::KeyPair::generate().unwrap();
    let member = rcgen::CertificateParams::new(vec!["member".to_owned()]).unwrap();
    let member = member.signed_by(&member_key, &issuer).unwrap();
    let pem = member.pem();
    let identity =
        Certificate::from_pem(pem.as_bytes(), member_key.serialize_pem().as_bytes()).unwrap();
    (authority.pem().into_bytes().into(), identity)
}

fn change_asking(host: HostMatch, authority: &[u8]) -> TableChange {
    let client_tls = ClientTls {
        mode: ClientTlsMode::Required,
        authorities_pem: authority.into(),
        verify_depth: 1,
        error_page: None,
        pass_certificate: false,
        subject_pattern: None,
    };
    let policy = Policy { client_tls: Some(client_tls), ..Policy::default() };
    let path = PathMatch::Prefix("/".into());
    let mut route = Route::forward("n/i/0/0", host, path, BackendId::new("n/s:80"));
    route.policy = Arc::new(policy);
    TableChange {
        routes: [(route.id.clone(), Some(route.into()))].into(),
        ..TableChange::default()
    }
}

fn ask(acceptor: &TlsAcceptor, host: HostMatch, authority: &[u8]) {
    let problems = acceptor.apply(&change_asking(host, authority));
    assert!(problems.is_empty(), "{problems:?}");
}

#[tokio::test]
async fn a_client_certificate_is_asked_for_by_host_and_judged() {
    let acceptor = acceptor();
    let (authority, member) = authority_and_member();
    ask(&acceptor, HostMatch::Wildcard(".safe.org".into()), &authority);
    let as_member = UpstreamTls::new(&Verify::Off, Offer::Both, Some(&member)).unwrap();
    let stranger = certificate_for(&["member"]);
    let as_stranger = UpstreamTls::new(&Verify::Off, Offer::Both, Some(&stranger)).unwrap();

    // Twice: a resumed session is judged too.
    for _ in 0..2 {
        let (info, ..) = info_of(&acceptor, &as_member, "a.safe.org").await;
        assert!(info.client_verified && info.client_certificate.is_some());
    }
    let (info, ..) = info_of(&acceptor, &as_stranger, "a.safe.org").await;
    assert!(!info.client_verified && info.client_certificate.is_some());
    assert!(info.client_error.is_some());
    let (info, ..) = info_of(&acceptor, &anybody(Offer::Both), "a.safe.org").await;
    assert!(!info.client_verified && info.client_certificate.is_none());
    // Another host asks nothing.
    let (info, ..) = info_of(&acceptor, &as_member, "open.org").await;
    assert!(info.client_certificate.is_none());
}

#[tokio::test]
async fn a_session_of_another_authority_is_not_believed() {
    let acceptor = acceptor();
    let (authority, member) = authority_and_member();
    let (other, _) = authority_and_member();
    let client = UpstreamTls::new(&Verify::Off, Offer::Both, Some(&member)).unwrap();
    ask(&acceptor, HostMatch::Exact("safe.org".into()), &authority);
    assert!(info_of(&acceptor, &client, "safe.org").await.0.client_verified);
    ask(&acceptor, HostMatch::Exact("safe.org".into()), &other);
    assert!(!info_of(&acceptor, &client, "safe.org").await.0.client_verified);
}

#[tokio::test]
async fn an_unreadable_authority_lets_nobody_in() {
    let acceptor = acceptor();
    let change = change_asking(HostMatch::Exact("safe.org".into()), b"nothing");
    assert_eq!(acceptor.apply(&change).len(), 1);
    let (_, member) = authority_and_member();
    let client = UpstreamTls::new(&Verify::Off, Offer::Both, Some(&member)).unwrap();
    assert!(!info_of(&acceptor, &client, "safe.org").await.0.client_verified);
}

#[tokio::test]
async fn a_host_that_is_passed_through_keeps_its_bytes() {
    let acceptor = acceptor();
    let passthrough = [(Arc::from("raw.org"), Some(BackendId::new("n/raw:443")))].into();
    acceptor.apply(&TableChange { passthrough, ..TableChange::default() });
    // Behind us, a server with a certificate of its own.
    let behind = self::acceptor();
    let own = serve_host(&behind, "raw.org");
    let (behind_address, behind_task) = accept_one(&behind).await;
    let (address, task) = accept_one(&acceptor).await;
    let relay = tokio::spawn(async move {
        let Accepted::Passthrough { server_name, backend, mut io } = task.await.unwrap().unwrap()
        else {
            panic!("it was decrypted")
        };
        assert_eq!((&*server_name, backend.as_str()), ("raw.org", "n/raw:443"));
        let mut upstream = TcpStream::connect(behind_address).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut io, &mut upstream).await;
    });
    let stream = talk(&anybody(Offer::Both), address, "raw.org").await.unwrap();
    assert_eq!(leaf(&stream), own);
    drop(stream);
    behind_task.await.unwrap().unwrap();
    relay.await.unwrap();
    // Others are still decrypted here.
    info_of(&acceptor, &anybody(Offer::Both), "other.org").await;
}

#[test]
fn a_wildcard_does_not_pass_on_what_a_host_has_by_its_own_name() {
    let acceptor = acceptor();
    let (all, one) = (BackendId::new("n/all:443"), BackendId::new("n/one:443"));
    let passthrough = [("*.raw.org", &all), ("one.raw.org", &one)];
    let passthrough = passthrough.map(|(host, to)| (Arc::from(host), Some(to.clone()))).into();
    acceptor.apply(&TableChange { passthrough, ..TableChange::default() });
    serve_host(&acceptor, "shown.raw.org");
    let routed = |host: &str| host == "routed.raw.org" || host == "one.raw.org";
    for (host, to) in [
        ("one.raw.org", Some(&one)),
        ("other.raw.org", Some(&all)),
        ("routed.raw.org", None),
        ("shown.raw.org", None),
        ("a.b.raw.org", None),
        ("raw.org", None),
    ] {
        assert_eq!(acceptor.passes_through(host, routed).as_ref(), to, "{host}");
    }
}

#[tokio::test]
async fn who_speaks_http_is_told_so() {
    let (address, task) = accept_one(&acceptor()).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    // The rest of the request was never read, so the end may be a reset.
    let _ = client.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    let length = answer.split("\r\n\r\n").nth(1).unwrap().len();
    assert!(answer.contains(&format!("content-length: {length}\r\n")), "{answer}");
    assert!(matches!(task.await.unwrap(), Err(AcceptError::PlainHttp)));
}

#[tokio::test]
async fn a_slow_handshake_ends_and_too_many_are_turned_away() {
    let store = Arc::new(CertificateStore::new().unwrap());
    let limits = TlsLimits { handshake: Duration::from_millis(300), handshakes_max: 1 };
    let acceptor = Arc::new(TlsAcceptor::new(store, limits).unwrap());
    let (address, task) = accept_one(&acceptor).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    while acceptor.handshakes.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let (second, _kept) = tokio::io::duplex(64);
    let refused = acceptor.accept(Bytes::new(), second, no_routes).await;
    assert!(matches!(refused, Err(AcceptError::TooMany)));
    assert!(matches!(task.await.unwrap(), Err(AcceptError::TimedOut)));
    assert_eq!(acceptor.handshakes.available_permits(), 1);
}
