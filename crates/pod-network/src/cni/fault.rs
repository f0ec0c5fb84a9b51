//! Errors in CNI's form.

use std::io;

use serde_json::{Value, json};
use telaio_netlink::netns::NetnsError;

use crate::error::Error;

/// The version is one that we do not speak.
pub(super) const INCOMPATIBLE_VERSION: u32 = 1;
/// A key of the configuration has a value that we do not support.
pub(super) const UNSUPPORTED_FIELD: u32 = 2;
/// The container is not there.
pub(super) const UNKNOWN_CONTAINER: u32 = 3;
/// A variable of the environment is missing or makes no sense.
pub(super) const INVALID_ENVIRONMENT: u32 = 4;
/// Reading or writing failed.
pub(super) const IO_FAILURE: u32 = 5;
/// The configuration is no JSON.
pub(super) const DECODING_FAILURE: u32 = 6;
/// The configuration makes no sense.
pub(super) const INVALID_CONFIGURATION: u32 = 7;
/// It may succeed later.
pub(super) const TRY_AGAIN_LATER: u32 = 11;
/// An ADD could not succeed.
pub(super) const UNAVAILABLE: u32 = 50;
/// An address is somebody else's.
pub(super) const ADDRESS_TAKEN: u32 = 101;
/// No address is left.
pub(super) const EXHAUSTED: u32 = 102;
/// A port of the node is somebody else's.
pub(super) const PORT_TAKEN: u32 = 103;
/// The container has such an interface.
pub(super) const INTERFACE_EXISTS: u32 = 104;
/// What is there is not what CHECK expects.
pub(super) const CHECK_FAILED: u32 = 105;
/// Anything else.
pub(super) const OTHER: u32 = 100;

/// An error as a runtime gets it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct Fault {
    /// CNI's number, or one of ours from 100 on.
    pub code: u32,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Fault {
    pub(super) fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn environment(message: impl Into<String>) -> Self {
        Self::new(INVALID_ENVIRONMENT, message)
    }

    pub(super) fn configuration(message: impl Into<String>) -> Self {
        Self::new(INVALID_CONFIGURATION, message)
    }

    pub(super) fn io(message: impl Into<String>) -> Self {
        Self::new(IO_FAILURE, message)
    }

    pub(super) fn decode(error: &serde_json::Error) -> Self {
        use serde_json::error::Category;
        let message = format!("the configuration on standard input: {error}");
        match error.classify() {
            // It is JSON, but not what is expected.
            Category::Data => Self::configuration(message),
            _ => Self::new(DECODING_FAILURE, message),
        }
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(UNAVAILABLE, message)
    }

    /// As it is printed.
    pub fn to_json(&self, version: &str) -> Value {
        json!({ "cniVersion": version, "code": self.code, "msg": self.message, "details": "" })
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid { .. }
            | Error::OutsideRange { .. }
            | Error::Overlap { .. }
            | Error::ForeignLink { .. } => INVALID_CONFIGURATION,
            Error::Unsupported { .. } => UNSUPPORTED_FIELD,
            Error::AddressTaken { .. } => ADDRESS_TAKEN,
            Error::Exhausted { .. } => EXHAUSTED,
            Error::PortTaken { .. } => PORT_TAKEN,
            Error::InterfaceExists { .. } => INTERFACE_EXISTS,
            // Somebody has just removed it.
            Error::Busy { .. } | Error::Unjudged { .. } | Error::Unknown { .. } => TRY_AGAIN_LATER,
            Error::Netns(NetnsError::System { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                UNKNOWN_CONTAINER
            }
            Error::Kernel { .. } | Error::Io { .. } | Error::Netns(_) | Error::Record { .. } => {
                IO_FAILURE
            }
            _ => OTHER,
        };
        Self::new(code, error.to_string())
    }
}
