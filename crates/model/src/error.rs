//! What is wrong with a value, said so that the person who wrote it can mend it.

use std::fmt;

/// One field that does not hold: where it is, and what to do about it.
///
/// The path is the one a person sees in the manifest, `spec.ports[0].port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FieldError {
    /// The field, from the root of the object.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl FieldError {
    /// An error at `path`.
    pub fn new(path: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { path: path.into(), message: message.to_string() }
    }

    /// The same error seen from one level further out: `ports[0]` inside `spec` is `spec.ports[0]`.
    #[must_use]
    pub fn within(mut self, parent: impl fmt::Display) -> Self {
        self.path = if self.path.is_empty() {
            parent.to_string()
        } else if self.path.starts_with('[') {
            format!("{parent}{}", self.path)
        } else {
            format!("{parent}.{}", self.path)
        };
        self
    }
}
