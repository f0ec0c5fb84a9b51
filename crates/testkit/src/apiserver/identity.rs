//! Certificates of the server and its client, made at start, and the kubeconfig that uses them.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};

/// Who the server and its client are.
pub(super) struct Identity {
    pub(super) server: Arc<ServerConfig>,
    ca_pem: String,
    client: Option<Pair>,
}

struct Pair {
    certificate_pem: String,
    key_pem: String,
}

impl Identity {
    /// A fresh authority, a certificate for loopback, and one for the client if it must show it.
    pub(super) fn generate(client_certificate: bool) -> io::Result<Self> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "test API server");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().map_err(io::Error::other)?;
        let ca_certificate = ca.self_signed(&ca_key).map_err(io::Error::other)?;
        let issuer = Issuer::from_params(&ca, &ca_key);

        let mut params =
            CertificateParams::new(vec!["localhost".to_owned()]).map_err(io::Error::other)?;
        params.subject_alt_names.push(rcgen::SanType::IpAddress(IpAddr::from([127, 0, 0, 1])));
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &issuer).map_err(io::Error::other)?;

        let client = client_certificate.then(|| issue_client(&issuer)).transpose()?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = if client_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(ca_certificate.der().clone()).map_err(io::Error::other)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(io::Error::other)?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let server = builder
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(io::Error::other)?;
        Ok(Self { server: Arc::new(server), ca_pem: ca_certificate.pem(), client })
    }
}

fn issue_client(issuer: &Issuer<'_, &KeyPair>) -> io::Result<Pair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "test-client");
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.signed_by(&key, issuer).map_err(io::Error::other)?;
    Ok(Pair { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
}

/// A kubeconfig for the server. JSON, which is YAML too.
pub(super) fn kubeconfig(url: &str, identity: Option<&Identity>, token: Option<&str>) -> Value {
    let mut cluster = json!({"server": url});
    let mut user = json!({});
    if let Some(identity) = identity {
        cluster["certificate-authority-data"] = BASE64.encode(&identity.ca_pem).into();
        if let Some(client) = &identity.client {
            user["client-certificate-data"] = BASE64.encode(&client.certificate_pem).into();
            user["client-key-data"] = BASE64.encode(&client.key_pem).into();
        }
    }
    if let Some(token) = token {
        user["token"] = token.into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    })
}
