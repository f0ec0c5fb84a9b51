//! What can go wrong, and to what it happened.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Guid, schema};

/// A kind of HCN object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ObjectKind {
    /// HNS itself.
    Service,
    /// A network.
    Network,
    /// An endpoint.
    Endpoint,
    /// A load balancer.
    LoadBalancer,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "host networking service",
            Self::Network => "network",
            Self::Endpoint => "endpoint",
            Self::LoadBalancer => "load balancer",
        })
    }
}

/// What was asked of HCN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// Which there are.
    Enumerate,
    /// What one is like. Of the service: its version.
    Query,
    /// Make one.
    Create,
    /// Change one.
    Modify,
    /// Remove one.
    Delete,
    /// Tell of changes.
    Watch,
}

impl Operation {
    /// Whether it changes anything.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Modify | Self::Delete)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enumerate => "enumerate",
            Self::Query => "query",
            Self::Create => "create",
            Self::Modify => "modify",
            Self::Delete => "delete",
            Self::Watch => "watch",
        })
    }
}

/// One call: what, of which kind of object, and of which one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What was asked.
    pub operation: Operation,
    /// The kind of object.
    pub kind: ObjectKind,
    /// The object: its identity, its name, or how people know it.
    pub name: String,
}

impl Call {
    /// A call about an object that has a name or none at all.
    pub fn new(operation: Operation, kind: ObjectKind, name: impl Into<String>) -> Self {
        Self { operation, kind, name: name.into() }
    }

    /// A call about an object that exists.
    pub fn of(operation: Operation, kind: ObjectKind, id: Guid) -> Self {
        Self::new(operation, kind, id.to_string())
    }

    /// The call failed for this reason.
    pub fn failed(self, reason: Reason) -> HcnError {
        HcnError { call: self, reason, hresult: None, record: String::new() }
    }

    /// The call failed with this code and error record.
    pub fn failed_with(self, hresult: Hresult, record: impl Into<String>) -> HcnError {
        let reason = hresult.reason(self.kind);
        HcnError { call: self, reason, hresult: Some(hresult), record: record.into() }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.kind)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " {}", self.name) }
    }
}

/// Windows' code for what went wrong; shown in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hresult(pub u32);

impl fmt::Display for Hresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for Hresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a call failed: what a caller can act upon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// There is no such object.
    #[error("not found")]
    NotFound,
    /// What the object is to refer to does not exist.
    #[error("the {0} that it refers to does not exist")]
    MissingDependency(ObjectKind),
    /// It is there already.
    #[error("exists already")]
    AlreadyExists,
    /// Its address, protocol and port belong to another load balancer, or the port is bound on the node.
    #[error("the address and port are in use already")]
    PortInUse,
    /// Other objects refer to it.
    #[error("other objects refer to it")]
    InUse,
    /// HNS does not accept the document.
    #[error("the host networking service refuses the document")]
    InvalidDocument,
    /// This HNS cannot do it.
    #[error("this version of the host networking service cannot do it")]
    Unsupported,
    /// We may not.
    #[error("access denied: run as LocalSystem or an administrator")]
    AccessDenied,
    /// HNS is not running, or is just restarting: says nothing about the object.
    #[error("the host networking service is not running")]
    Unavailable,
    /// The answer cannot be understood.
    #[error("bad answer: {0}")]
    BadAnswer(String),
    /// Anything else.
    #[error("failed")]
    Other,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HcnError {
    /// The call.
    pub call: Call,
    /// Why, as far as it can be acted upon.
    pub reason: Reason,
    /// Windows' code, where there is one.
    pub hresult: Option<Hresult>,
    /// What HNS itself says, where it says something.
    pub record: String,
}

impl fmt::Display for HcnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.reason)?;
        if let Some(hresult) = self.hresult {
            write!(f, " ({hresult})")?;
        }
        if self.record.is_empty() { Ok(()) } else { write!(f, ": {}", self.record) }
    }
}

impl std::error::Error for HcnError {}

impl HcnError {
    /// Whether the object is certainly not there.
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// Whether the same call may succeed later without anybody changing it.
    pub fn is_transient(&self) -> bool {
        self.reason == Reason::Unavailable
    }
}

/// Codes and what they mean for the object of the call. The first of a reason is the one that the fake
/// gives.
const CODES: &[(Reason, &[u32])] = &[
    // ERROR_NOT_FOUND, ERROR_FILE_NOT_FOUND
    (Reason::NotFound, &[0x8007_0490, 0x8007_0002]),
    // ERROR_ALREADY_EXISTS, HCN_E_NETWORK_ALREADY_EXISTS, HCN_E_POLICY_ALREADY_EXISTS
    (Reason::AlreadyExists, &[0x8007_00B7, 0x803B_0010, 0x803B_0012]),
    // HCN_E_PORT_ALREADY_EXISTS
    (Reason::PortInUse, &[0x803B_0013]),
    // HCN_E_ENTITY_HAS_REFERENCES
    (Reason::InUse, &[0x803B_002C]),
    (
        Reason::InvalidDocument,
        &[
            0x803B_001B, // HCN_E_INVALID_JSON
            0x803B_001C, // HCN_E_INVALID_JSON_REFERENCE
            0x803B_000A, // HCN_E_INVALID_NETWORK
            0x803B_000B, // HCN_E_INVALID_NETWORK_TYPE
            0x803B_000C, // HCN_E_INVALID_ENDPOINT
            0x803B_000D, // HCN_E_INVALID_POLICY
            0x803B_000E, // HCN_E_INVALID_POLICY_TYPE
            0x803B_0019, // HCN_E_GUID_CONVERSION_FAILURE
            0x803B_001E, // HCN_E_INVALID_IP
            0x803B_002D, // HCN_E_INVALID_INTERNAL_PORT
            0x803B_002F, // HCN_E_ADDR_INVALID_OR_RESERVED
            0x803B_0030, // HCN_E_INVALID_PREFIX
            0x803B_0032, // HCN_E_INVALID_SUBNET
            0x803B_0033, // HCN_E_INVALID_IP_SUBNET
            0x8007_0057, // E_INVALIDARG
        ],
    ),
    // HCN_E_REQUEST_UNSUPPORTED, HCN_E_MAPPING_NOT_SUPPORTED, HCN_E_INVALID_REMOTE_ENDPOINT_OPERATION,
    // E_NOTIMPL, ERROR_NOT_SUPPORTED
    (Reason::Unsupported, &[0x803B_0015, 0x803B_0016, 0x803B_000F, 0x8000_4001, 0x8007_0032]),
    // E_ACCESSDENIED
    (Reason::AccessDenied, &[0x8007_0005]),
    (
        Reason::Unavailable,
        &[
            0x8007_06BA, // RPC_S_SERVER_UNAVAILABLE
            0x8007_06BE, // RPC_S_CALL_FAILED
            0x8007_06BF, // RPC_S_CALL_FAILED_DNE
            0x8007_06D9, // EPT_S_NOT_REGISTERED
            0x8007_0426, // ERROR_SERVICE_NOT_ACTIVE
            0x803B_0020, // HCN_E_MANAGER_STOPPED
            0x803B_0031, // HCN_E_OBJECT_USED_AFTER_UNLOAD
        ],
    ),
];
const NETWORK_NOT_FOUND: u32 = 0x803B_0001;
const ENDPOINT_NOT_FOUND: u32 = 0x803B_0002;
/// E_FAIL
const UNSPECIFIED: u32 = 0x8000_4005;

impl Hresult {
    /// What the code means to who called about an object of this kind: a network that is not found is
    /// the object itself when networks were asked about, and a missing reference otherwise.
    pub fn reason(self, kind: ObjectKind) -> Reason {
        let of = match self.0 {
            NETWORK_NOT_FOUND => Some(ObjectKind::Network),
            ENDPOINT_NOT_FOUND => Some(ObjectKind::Endpoint),
            _ => None,
        };
        if let Some(of) = of {
            return if of == kind { Reason::NotFound } else { Reason::MissingDependency(of) };
        }
        let known = CODES.iter().find(|(_, codes)| codes.contains(&self.0));
        known.map_or(Reason::Other, |(reason, _)| reason.clone())
    }

    /// The code that HNS gives for a reason, about an object of this kind.
    pub fn of(reason: &Reason, kind: ObjectKind) -> Self {
        match (reason, kind) {
            (Reason::NotFound | Reason::MissingDependency(_), ObjectKind::Network)
            | (Reason::MissingDependency(ObjectKind::Network), _) => Self(NETWORK_NOT_FOUND),
            (Reason::NotFound, ObjectKind::Endpoint)
            | (Reason::MissingDependency(ObjectKind::Endpoint), _) => Self(ENDPOINT_NOT_FOUND),
            _ => {
                let known = CODES.iter().find(|(known, _)| known == reason);
                Self(known.map_or(UNSPECIFIED, |(_, codes)| codes[0]))
            }
        }
    }
}

/// What an error record says, in one line: HNS's own words if it is the usual document, else the text
/// as it is, cut off where it gets long.
pub fn record_text(record: &str) -> String {
    const RECORD_CHARS_MAX: usize = 1024;
    let said = schema::parse(record).ok().and_then(|document| {
        let members = document.as_object()?;
        let said = members.iter().find(|(name, _)| name.eq_ignore_ascii_case("Error"))?;
        said.1.as_str().map(|said| said.trim().to_owned())
    });
    said.unwrap_or_else(|| record.trim().to_owned()).chars().take(RECORD_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_asked_of_what_and_why_it_failed() {
        let call = Call::of(Operation::Create, ObjectKind::LoadBalancer, Guid::from_bytes([1; 16]));
        let error = call.failed_with(Hresult(0x803B_0013), "The specified port already exists.");
        assert_eq!(
            error.to_string(),
            "create load balancer 01010101-0101-0101-0101-010101010101: the address and port are in \
             use already (0x803b0013): The specified port already exists."
        );
        let call = Call::new(Operation::Enumerate, ObjectKind::Network, "");
        let error = call.failed_with(Hresult(0x8000_FFFF), "");
        assert_eq!(error.to_string(), "enumerate network: failed (0x8000ffff)");
    }

    #[test]
    fn a_missing_network_is_the_object_or_its_reference() {
        let code = Hresult(NETWORK_NOT_FOUND);
        assert_eq!(code.reason(ObjectKind::Network), Reason::NotFound);
        let missing = Reason::MissingDependency(ObjectKind::Network);
        assert_eq!(code.reason(ObjectKind::Endpoint), missing);
    }

    #[test]
    fn a_service_that_is_down_is_not_an_object_that_is_gone() {
        for code in [0x8007_06BA, 0x8007_06D9, 0x803B_0031] {
            let call = Call::of(Operation::Query, ObjectKind::LoadBalancer, Guid::NIL);
            let error = call.failed_with(Hresult(code), "");
            assert!(error.is_transient() && !error.is_not_found(), "{error}");
        }
    }

    #[test]
    fn reasons_and_codes_lead_to_each_other() {
        let kinds = [ObjectKind::Network, ObjectKind::Endpoint, ObjectKind::LoadBalancer];
        for kind in kinds {
            for (reason, codes) in CODES {
                assert_eq!(Hresult::of(reason, kind).reason(kind), *reason);
                for code in *codes {
                    assert_eq!(Hresult(*code).reason(kind), *reason);
                }
            }
        }
        let missing = Reason::MissingDependency(ObjectKind::Endpoint);
        let kind = ObjectKind::LoadBalancer;
        assert_eq!(Hresult::of(&missing, kind).reason(kind), missing);
    }

    #[test]
    fn a_record_is_hns_own_words_or_its_text_cut_off() {
        let record =
            r#"{"Success":false,"Error":"The switch-port was not found. ","ErrorCode":2151350279}"#;
        assert_eq!(record_text(record), "The switch-port was not found.");
        assert_eq!(record_text("{\"Error\""), "{\"Error\"");
        assert_eq!(record_text(&"x".repeat(5000)).len(), 1024);
    }
}
