//! Any object, its name, and a change to it: what a source sends to the brain.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::meta::ObjectKey;
use crate::{
    AuthSecret, ConfigMap, EndpointSlice, Ingress, IngressClass, Namespace, NetworkPolicy, Node,
    Override, Pod, Service, ServiceCidr, TlsSecret,
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($value:ty), $key:expr, $resource:literal;)*) => {
        /// The kinds of objects that Telaio knows. Gateway API kinds will join them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The name as a person writes it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => stringify!($kind),)* }
            }

            /// The plural in the Kubernetes API.
            pub fn resource(self) -> &'static str {
                match self { $(Self::$kind => $resource,)* }
            }
        }

        /// An object of any kind; cheap to clone.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Object { $($(#[$doc])* $kind(Arc<$value>),)* }

        impl Object {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind,)* }
            }

            /// Its namespace and name.
            pub fn key(&self) -> &ObjectKey {
                match self { $(Self::$kind(value) => { let key: fn(&$value) -> &ObjectKey = $key; key(value) })* }
            }
        }

        $(impl From<$value> for Object {
            fn from(value: $value) -> Self { Self::$kind(Arc::new(value)) }
        })*
    };
}

kinds! {
    /// A service.
    Service(Service), |v| &v.meta.key, "services";
    /// A slice of a service's endpoints.
    EndpointSlice(EndpointSlice), |v| &v.key, "endpointslices";
    /// A node.
    Node(Node), |v| &v.meta.key, "nodes";
    /// An Ingress.
    Ingress(Ingress), |v| &v.meta.key, "ingresses";
    /// An Ingress class.
    IngressClass(IngressClass), |v| &v.meta.key, "ingressclasses";
    /// A certificate with its key.
    TlsSecret(TlsSecret), |v| &v.meta.key, "secrets";
    /// A ConfigMap.
    ConfigMap(ConfigMap), |v| &v.meta.key, "configmaps";
    /// A namespace.
    Namespace(Namespace), |v| &v.meta.key, "namespaces";
    /// A pod.
    Pod(Pod), |v| &v.meta.key, "pods";
    /// A network policy.
    NetworkPolicy(NetworkPolicy), |v| &v.meta.key, "networkpolicies";
    /// A network from which cluster addresses are given out.
    ServiceCidr(ServiceCidr), |v| &v.meta.key, "servicecidrs";
    /// What a person has decided against what the cluster says.
    Override(Override), |v| &v.meta.key, "overrides";
    /// Who may come in, by password or certificate.
    AuthSecret(AuthSecret), |v| &v.meta.key, "secrets";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Object {
    /// Its name across kinds.
    pub fn object_ref(&self) -> ObjectRef {
        ObjectRef { kind: self.kind(), key: self.key().clone() }
    }
}

/// The name of an object across kinds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace and name.
    pub key: ObjectKey,
}

impl ObjectRef {
    /// A reference from its parts.
    pub fn new(kind: Kind, key: ObjectKey) -> Self {
        Self { kind, key }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.key)
    }
}

/// A change to one object. Setting an object to what it already is changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectChange {
    /// The object is now this.
    Set(Object),
    /// The object is no more.
    Delete(ObjectRef),
}

impl ObjectChange {
    /// The object it is about.
    pub fn object_ref(&self) -> ObjectRef {
        match self {
            Self::Set(object) => object.object_ref(),
            Self::Delete(object_ref) => object_ref.clone(),
        }
    }
}

/// Changes that belong together, in the order in which they apply: what a source sends to the brain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The changes.
    pub changes: Vec<ObjectChange>,
    /// The state with these changes is complete. Until the first such batch nobody may act on it.
    pub synced: bool,
}
