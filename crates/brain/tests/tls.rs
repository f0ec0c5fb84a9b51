//! Who a peer is by its certificate, and what it may have: mutual TLS over loopback.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::Arc;

use std::collections::BTreeSet;
use support::net::{
    Brain, RawClient, in_process, is_secret, raw_over, replayed, request, secret, small_store, soon,
};
use support::*;
use telaio_api::proto::localv1::Set;
use telaio_brain::{Store, Wants};
use telaio_model::Op;
use telaio_source::Status as SourceStatus;
use telaio_source::brain::LocalClient;
use tonic::Code;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use telaio_brain::Authorizer;
use telaio_source::brain::{BrainOptions, ClientTls};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, ServerTlsConfig};

/// An authority, its certificate, and how it signs.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
struct Credentials {
    certificate: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, common_name: &str, organisation: Option<&str>, names: &[&str]) -> Credentials {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if let Some(organisation) = organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.subject_alt_names.push(SanType::IpAddress(ip("127.0.0.1")));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Credentials { certificate, key: key.serialize_pem() }
    }
}

struct Stage {
    authority: Authority,
    brain: Brain,
    store: Arc<Store>,
}

async fn stage(ingress_nodes: &[&str]) -> Stage {
    let authority = Authority::new("authority");
    let server = authority.sign("brain", None, &[]);
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&server.certificate, &server.key))
        .client_ca_root(Certificate::from_pem(&authority.pem));
    let ingress_nodes: BTreeSet<String> = ingress_nodes.iter().map(ToString::to_string).collect();
    let store = small_store();
    store.apply(set([secret()]));
    let brain = Brain::start_with(&store, None, Authorizer { ingress_nodes }, Some(tls)).await;
    Stage { authority, brain, store }
}

impl Stage {
    fn url(&self) -> String {
        format!("https://{}", self.brain.address)
    }

    async fn channel(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<Channel, tonic::transport::Error> {
        let ca = Certificate::from_pem(&self.authority.pem);
        let mut tls = ClientTlsConfig::new().ca_certificate(ca);
        if let Some(it) = credentials {
            tls = tls.identity(Identity::from_pem(&it.certificate, &it.key));
        }
        let endpoint = Channel::from_shared(self.url()).unwrap();
        endpoint.tls_config(tls).unwrap().connect().await
    }

    /// What becomes of a request as this node.
    async fn watch(
        &self,
        credentials: &Credentials,
        node: &str,
        sets: &[Set],
    ) -> Result<Vec<Op>, tonic::Status> {
        let sets: Vec<i32> = sets.iter().map(|set| i32::from(*set)).collect();
        let channel = self.channel(Some(credentials)).await.unwrap();
        RawClient::over(channel, request(node, &sets)).await?.difference().await
    }

    async fn is_denied(&self, credentials: &Credentials, node: &str, sets: &[Set]) -> bool {
        match self.watch(credentials, node, sets).await {
            Ok(_) => false,
            Err(status) => {
                assert_eq!(status.code(), Code::PermissionDenied, "{status}");
                true
            }
        }
    }
}

#[tokio::test]
async fn a_node_proves_its_name_by_its_certificate() {
    let stage = stage(&[]).await;
    let common = stage.authority.sign("n1", None, &[]);
    let kubelet = stage.authority.sign("system:node:n1", Some("system:nodes"), &[]);
    let alternative = stage.authority.sign("something", None, &["n1"]);
    for credentials in [&common, &kubelet, &alternative] {
        assert!(!stage.is_denied(credentials, "n1", &[]).await);
        assert!(stage.is_denied(credentials, "n2", &[]).await);
        assert!(stage.is_denied(credentials, "system:node:n2", &[]).await);
    }
    stage.brain.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_worth_nothing() {
    let stage = stage(&["*"]).await;
    let stranger = Authority::new("authority").sign("n1", Some("telaio:brain"), &[]);
    for credentials in [Some(&stranger), None] {
        // TLS 1.3 tells the client only when it reads.
        if let Ok(channel) = stage.channel(credentials).await {
            let answer = match RawClient::over(channel, request("n1", &[])).await {
                Ok(mut peer) => peer.difference().await,
                Err(status) => Err(status),
            };
            assert!(answer.is_err());
        }
    }
    stage.brain.stop().await;
}

#[tokio::test]
async fn secrets_go_to_nodes_that_are_authorised_for_ingress() {
    let stage = stage(&["n1"]).await;
    let secrets = [Set::TlsSecrets];
    let listed = stage.authority.sign("n1", None, &[]);
    let ops = stage.watch(&listed, "n1", &secrets).await.unwrap();
    assert_eq!(ops.iter().filter(|op| is_secret(op)).count(), 1);
    let ops = stage.watch(&listed, "n1", &[]).await.unwrap();
    assert!(!ops.iter().any(is_secret), "not asked for");
    let unlisted = stage.authority.sign("n2", None, &[]);
    assert!(stage.is_denied(&unlisted, "n2", &secrets).await);
    assert!(!stage.is_denied(&unlisted, "n2", &[]).await);
    assert!(stage.is_denied(&unlisted, "n1", &secrets).await);
    let by_certificate = stage.authority.sign("n2", Some("telaio:ingress"), &[]);
    let ops = stage.watch(&by_certificate, "n2", &secrets).await.unwrap();
    assert_eq!(ops.iter().filter(|op| is_secret(op)).count(), 1);
    assert!(stage.is_denied(&by_certificate, "n1", &secrets).await);
    stage.brain.stop().await;
}

#[tokio::test]
async fn a_star_authorises_every_node_for_itself() {
    let stage = stage(&["*"]).await;
    let credentials = stage.authority.sign("n7", None, &[]);
    assert!(!stage.is_denied(&credentials, "n7", &[Set::TlsSecrets]).await);
    assert!(stage.is_denied(&credentials, "n8", &[Set::TlsSecrets]).await);
    stage.brain.stop().await;
}

#[tokio::test]
async fn nobody_gets_more_by_asking_later() {
    let stage = stage(&[]).await;
    let credentials = stage.authority.sign("n1", None, &[]);
    for later in [request("n2", &[]), request("n1", &[Set::TlsSecrets.into()])] {
        let channel = stage.channel(Some(&credentials)).await.unwrap();
        let mut peer = RawClient::over(channel, request("n1", &[])).await.unwrap();
        let mut has = replayed(peer.difference().await.unwrap());
        peer.ask(later).await;
        stage.store.apply(set([web_at("10.0.0.2")]));
        if let Ok(ops) = peer.difference().await {
            has.replay(ops);
            assert_eq!(has, in_process(&stage.store, "n1", Wants::default()).await);
        }
        stage.store.apply(set([web_at("10.0.0.1")]));
    }
    stage.brain.stop().await;
}

#[tokio::test]
async fn a_brain_acts_for_any_node_and_takes_secrets_of_the_raw_cluster() {
    let stage = stage(&[]).await;
    let brain = stage.authority.sign("other-brain", Some("telaio:brain"), &[]);
    assert!(!stage.is_denied(&brain, "n5", &[Set::TlsSecrets]).await);
    let secrets = [Set::TlsSecrets.into()];
    let channel = stage.channel(Some(&brain)).await.unwrap();
    let sets = raw_over(channel, &secrets).await.unwrap();
    assert!(sets.contains(&Set::TlsSecrets.into()));
    let node = stage.authority.sign("n1", Some("telaio:ingress"), &[]);
    let channel = stage.channel(Some(&node)).await.unwrap();
    let status = raw_over(channel.clone(), &secrets).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(!raw_over(channel, &[]).await.unwrap().contains(&Set::TlsSecrets.into()));
    stage.brain.stop().await;
}

#[tokio::test]
async fn our_own_client_speaks_it_from_files() {
    let stage = stage(&[]).await;
    let credentials = stage.authority.sign("n1", None, &[]);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let tls = ClientTls {
        ca: file("ca.pem", &stage.authority.pem),
        identity: Some((
            file("client.pem", &credentials.certificate),
            file("client.key", &credentials.key),
        )),
    };
    let options = BrainOptions { tls: Some(tls), ..BrainOptions::new(stage.url()) };
    let status = || Arc::new(SourceStatus::default());
    let mut peer = LocalClient::new(options.clone(), "n1", status());
    let has = replayed(soon("a state comes", peer.try_next()).await.unwrap());
    assert_eq!(has, in_process(&stage.store, "n1", Wants::default()).await);
    let mut other = LocalClient::new(options, "n2", status());
    assert!(soon("a refusal comes", other.try_next()).await.is_err());
    stage.brain.stop().await;
}
