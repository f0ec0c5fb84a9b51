//! What the writer of an Ingress should know.

use std::fmt;
use std::sync::Arc;

use telaio_model::ObjectKey;

/// What kind of warning it is: the `reason` of an Event, in Kubernetes' spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// An annotation cannot be read.
    BadAnnotation,
    /// An annotation is not taken.
    RefusedAnnotation,
    /// Nobody knows an annotation.
    UnknownAnnotation,
    /// Another Ingress has the host and path.
    Conflict,
    /// A service or its port is not there.
    BackendMissing,
    /// A secret is not there, or cannot be used.
    BadSecret,
    /// A ConfigMap is not there, or cannot be used.
    BadConfigMap,
    /// A path cannot be matched.
    BadPath,
    /// A canary of nothing.
    CanaryAlone,
}

impl Reason {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadAnnotation => "BadAnnotation",
            Self::RefusedAnnotation => "RefusedAnnotation",
            Self::UnknownAnnotation => "UnknownAnnotation",
            Self::Conflict => "Conflict",
            Self::BackendMissing => "BackendMissing",
            Self::BadSecret => "BadSecret",
            Self::BadConfigMap => "BadConfigMap",
            Self::BadPath => "BadPath",
            Self::CanaryAlone => "CanaryAlone",
        }
    }
}

/// Something about one Ingress that its writer should know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The Ingress.
    pub ingress: ObjectKey,
    /// What kind.
    pub reason: Reason,
    /// What is wrong and what to do.
    pub message: Arc<str>,
}

impl Warning {
    /// A warning.
    pub fn new(ingress: &ObjectKey, reason: Reason, message: impl fmt::Display) -> Self {
        Self { ingress: ingress.clone(), reason, message: message.to_string().into() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ingress {}: {}: {}", self.ingress, self.reason.as_str(), self.message)
    }
}
