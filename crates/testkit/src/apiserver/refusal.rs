//! Answers that say no: Kubernetes' `Status` objects.

use std::fmt;

use serde_json::{Value, json};

use super::resource::Resource;

/// Why a request is refused, as the API says it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct Refusal {
    /// The HTTP status.
    pub code: u16,
    /// The machine-readable reason.
    pub reason: &'static str,
    /// The text for people.
    pub message: String,
}

impl Refusal {
    /// A refusal with the API's usual reason for a status code.
    pub fn new(code: u16, message: impl fmt::Display) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            409 => "Conflict",
            410 => "Expired",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "Unknown",
        };
        Self { code, reason, message: message.to_string() }
    }

    pub(super) fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, format_args!("{} {name:?} not found", resource.qualified()))
    }

    pub(super) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format_args!("{} {name:?} already exists", resource.qualified());
        Self { reason: "AlreadyExists", ..Self::new(409, message) }
    }

    pub(super) fn conflict(resource: &Resource, name: &str) -> Self {
        let message = format_args!(
            "Operation cannot be fulfilled on {} {name:?}: the object has been modified; \
             please apply your changes to the latest version and try again",
            resource.qualified()
        );
        Self::new(409, message)
    }

    pub(super) fn invalid(resource: &Resource, name: &str, why: impl fmt::Display) -> Self {
        Self::new(422, format_args!("{} {name:?} is invalid: {why}", resource.kind))
    }

    pub(super) fn too_old(asked: u64, oldest: u64) -> Self {
        Self::new(410, format_args!("too old resource version: {asked} ({oldest})"))
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        })
    }
}
