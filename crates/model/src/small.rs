//! Kinds of few fields: namespaces, configuration, certificates, the service network.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::meta::Meta;

/// A namespace, for selectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Name, labels, annotations.
    pub meta: Meta,
}

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigMap {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// Its text entries.
    #[serde(default)]
    pub data: BTreeMap<Arc<str>, Arc<str>>,
}

/// A secret of type `kubernetes.io/tls`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsSecret {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// `tls.crt`, a PEM chain.
    pub certificate: Arc<[u8]>,
    /// `tls.key`, a PEM key.
    pub private_key: Arc<[u8]>,
    /// `ca.crt`, the PEM certificates that clients' must come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<Arc<[u8]>>,
}

/// The key must not reach a log.
impl fmt::Debug for TlsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSecret")
            .field("key", &self.meta.key)
            .field("certificate_bytes", &self.certificate.len())
            .field("private_key", &"(hidden)")
            .finish_non_exhaustive()
    }
}

/// What says who may come in, of a secret of type `Opaque`: its entries `auth` and `ca.crt`. None of
/// its other entries is ever kept, nor any secret that has neither, nor one of another type.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthSecret {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// `auth`, users with hashed passwords as htpasswd writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Arc<[u8]>>,
    /// `ca.crt`, the PEM certificates that clients' must come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<Arc<[u8]>>,
}

/// Not even hashes of passwords belong into a log.
impl fmt::Debug for AuthSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthSecret")
            .field("key", &self.meta.key)
            .field("users", &self.users.is_some())
            .field("authority", &self.authority.is_some())
            .finish_non_exhaustive()
    }
}

/// A network from which cluster addresses are given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCidr {
    /// Name, labels, annotations.
    pub meta: Meta,
    /// The networks, at most one per family.
    pub cidrs: Vec<IpNet>,
}
