//! What can be wrong with what a peer sent.

use telaio_model::ip::IpError;

/// Why an operation from a peer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A part that must be there is not.
    #[error("the peer sent an operation without {0}")]
    Missing(&'static str),
    /// The path does not name what the set holds.
    #[error("the peer sent a bad path {path:?}: {form} is expected")]
    Path {
        /// What came.
        path: String,
        /// What should have come.
        form: &'static str,
    },
    /// The bytes are not the message that the set holds.
    #[error("the peer sent bytes for {path:?} that are not valid: {source}")]
    Bytes {
        /// Which item.
        path: String,
        /// What the decoder says.
        source: prost::DecodeError,
    },
    /// The JSON of an object of an extension set does not hold.
    #[error("the peer sent an object {path:?} that is not valid: {source}")]
    Json {
        /// Which item.
        path: String,
        /// What the decoder says.
        source: serde_json::Error,
    },
    /// The object is of another kind or name than its path says.
    #[error("the peer sent an object under {path:?} that is another: {object}")]
    WrongObject {
        /// Which item.
        path: String,
        /// What it says it is.
        object: String,
    },
    /// A field has a value that cannot be.
    #[error("the peer sent {path:?} with a bad {field}: {message}")]
    Field {
        /// Which item.
        path: String,
        /// Which field.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
}

impl DecodeError {
    /// The item that it is about, if it is about one: the others can still be used.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Missing(_) => None,
            Self::Path { path, .. }
            | Self::Bytes { path, .. }
            | Self::Json { path, .. }
            | Self::WrongObject { path, .. }
            | Self::Field { path, .. } => Some(path),
        }
    }
}

/// Why an operation cannot be put on the wire.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The object cannot be written as JSON.
    #[error("cannot write {object} as JSON: {source}")]
    Json {
        /// Which object.
        object: String,
        /// What the encoder says.
        source: serde_json::Error,
    },
    /// Objects of this kind have no set on this API.
    #[error("{0} has no set on this API")]
    NoSet(String),
}

/// A [`DecodeError`] before it is known which item it is about.
#[derive(Debug)]
pub(crate) struct BadField {
    pub(crate) field: &'static str,
    pub(crate) message: String,
}

impl BadField {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }

    pub(crate) fn at(self, path: &str) -> DecodeError {
        DecodeError::Field { path: path.to_owned(), field: self.field, message: self.message }
    }
}

pub(crate) fn bad_ip(field: &'static str) -> impl Fn(IpError) -> BadField {
    move |error| BadField::new(field, error.to_string())
}
