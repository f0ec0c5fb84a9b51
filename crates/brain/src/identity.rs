//! Who a peer is, by its certificate, and what it may ask for.
//!
//! A node proves its name by the certificate's common name (also in the kubelet's form
//! `system:node:NAME`) or a DNS name in it. Two organisations have a meaning: `telaio:brain` may act
//! for any node and take secrets from the Global API, `telaio:ingress` may take secrets for its node.

use std::collections::BTreeSet;

use tonic::Status;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The organisation of brains.
pub const ORGANISATION_BRAIN: &str = "telaio:brain";
/// The organisation of nodes that terminate TLS for the ingress.
pub const ORGANISATION_INGRESS: &str = "telaio:ingress";
/// What the kubelet puts before a node's name.
const KUBELET_PREFIX: &str = "system:node:";

/// What a verified client certificate says of its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The nodes it may speak for.
    pub names: BTreeSet<String>,
    /// Its organisations.
    pub organisations: BTreeSet<String>,
}

impl Identity {
    /// Reads a certificate that has been verified already.
    pub fn from_certificate(der: &[u8]) -> Result<Self, Status> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|error| {
            Status::unauthenticated(format!("the client certificate cannot be read: {error}"))
        })?;
        let mut identity = Self::default();
        let subject = certificate.subject();
        for name in subject.iter_common_name().filter_map(|it| it.as_str().ok()) {
            let name = name.strip_prefix(KUBELET_PREFIX).unwrap_or(name);
            identity.names.insert(name.to_owned());
        }
        let organisations = subject.iter_organization().filter_map(|it| it.as_str().ok());
        identity.organisations.extend(organisations.map(ToOwned::to_owned));
        if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
            for name in &alternatives.value.general_names {
                if let GeneralName::DNSName(name) = name {
                    identity.names.insert((*name).to_owned());
                }
            }
        }
        Ok(identity)
    }

    fn is_brain(&self) -> bool {
        self.organisations.contains(ORGANISATION_BRAIN)
    }
}

/// Decides what a peer may have.
#[derive(Debug, Clone, Default)]
pub struct Authorizer {
    /// Nodes that may take secrets, besides those whose certificate says so; `*` is every node that
    /// proves its name.
    pub ingress_nodes: BTreeSet<String>,
}

impl Authorizer {
    /// Whether the peer may watch as this node, with or without secrets. Without TLS a peer is
    /// nobody: it may watch, but secrets are never for it.
    pub fn check_local(
        &self,
        peer: Option<&Identity>,
        node: &str,
        secrets: bool,
    ) -> Result<(), Status> {
        if let Some(identity) = peer
            && !identity.is_brain()
            && !identity.names.contains(node)
        {
            return Err(Status::permission_denied(format!(
                "the client certificate is not for node {node:?} but for {:?}; \
                 give the node a certificate with its name",
                identity.names
            )));
        }
        if !secrets {
            return Ok(());
        }
        let Some(identity) = peer else { return Err(secrets_need_tls()) };
        let listed = self.ingress_nodes.contains(node) || self.ingress_nodes.contains("*");
        if listed || identity.organisations.contains(ORGANISATION_INGRESS) || identity.is_brain() {
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "node {node:?} is not authorised for TLS secrets; name it in --ingress-nodes or give \
             its certificate the organisation {ORGANISATION_INGRESS}"
        )))
    }

    /// Whether the peer may watch the raw cluster, with or without secrets.
    pub fn check_global(&self, peer: Option<&Identity>, secrets: bool) -> Result<(), Status> {
        match peer {
            _ if !secrets => Ok(()),
            None => Err(secrets_need_tls()),
            Some(identity) if identity.is_brain() => Ok(()),
            Some(_) => Err(Status::permission_denied(format!(
                "only a certificate of organisation {ORGANISATION_BRAIN} may take TLS secrets \
                 from the Global API"
            ))),
        }
    }
}

fn secrets_need_tls() -> Status {
    Status::permission_denied(
        "TLS secrets go only to a client that proves its name by a certificate; \
         serve and connect with --tls-cert, --tls-key and --tls-ca",
    )
}
