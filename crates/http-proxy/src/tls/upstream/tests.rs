use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::tls::certificate::tests::pem_for;

/// A server with a certificate for `name` that knows `alpn`; its certificate in PEM.
async fn server(name: &str, alpn: &[&[u8]]) -> (SocketAddr, Arc<[u8]>) {
    let (pem, key) = pem_for(&[name]);
    let certificate = Certificate::from_pem(pem.as_bytes(), key.as_bytes()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(Arc::clone(
            certificate.key(),
        ))));
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(mut stream) = acceptor.accept(io).await {
                    let (mut from, mut to) = tokio::io::split(&mut stream);
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                }
            });
        }
    });
    (address, pem.into_bytes().into())
}

async fn connect(
    verify: Verify,
    offer: Offer,
    address: SocketAddr,
    name: &str,
) -> Result<bool, UpstreamTlsError> {
    let tls = UpstreamTls::new(&verify, offer, None)?;
    let io = TcpStream::connect(address).await?;
    let (_, h2) = tls.connect(io, name, Duration::from_secs(20)).await?;
    Ok(h2)
}

#[tokio::test]
async fn an_upstream_is_verified_only_when_that_is_asked_for() {
    let (address, own) = server("backend.svc", &[ALPN_HTTP1]).await;
    let (_, other) = server("backend.svc", &[]).await;
    let try_with = |verify, name| connect(verify, Offer::Http1, address, name);
    assert!(try_with(Verify::Off, "backend.svc").await.is_ok());
    assert!(try_with(Verify::Off, "127.0.0.1").await.is_ok());
    assert!(try_with(Verify::Authority(Arc::clone(&own)), "backend.svc").await.is_ok());
    assert!(try_with(Verify::Authority(own), "wrong.svc").await.is_err());
    assert!(try_with(Verify::Authority(other), "backend.svc").await.is_err());
    assert!(try_with(Verify::Authority(Arc::from(&b""[..])), "backend.svc").await.is_err());
    // Whether or not this machine trusts anybody, it does not trust this one.
    assert!(try_with(Verify::System, "backend.svc").await.is_err());
}

#[tokio::test]
async fn the_protocol_is_what_the_upstream_chooses() {
    let (both, _) = server("a", &[ALPN_H2, ALPN_HTTP1]).await;
    let (old, _) = server("a", &[ALPN_HTTP1]).await;
    let (silent, _) = server("a", &[]).await;
    let off = Verify::Off;
    assert!(connect(off.clone(), Offer::Both, both, "a").await.unwrap());
    assert!(!connect(off.clone(), Offer::Both, old, "a").await.unwrap());
    assert!(!connect(off.clone(), Offer::Http1, both, "a").await.unwrap());
    assert!(connect(off.clone(), Offer::Http2, both, "a").await.unwrap());
    assert!(
        connect(off.clone(), Offer::Http2, silent, "a").await.unwrap(),
        "a gRPC server without ALPN"
    );
    assert!(connect(off.clone(), Offer::Http2, old, "a").await.is_err());
}

#[tokio::test]
async fn an_upstream_that_says_nothing_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tls = UpstreamTls::new(&Verify::Off, Offer::Http1, None).unwrap();
    let io = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let error = tls.connect(io, "a", Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(error, UpstreamTlsError::TimedOut));
}
