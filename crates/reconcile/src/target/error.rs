//! Why a target could not be observed or changed, and whether trying again can help.

use std::io;

/// Why a target could not be observed or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The machine is busy or was interrupted; the same call may succeed a moment later.
    #[error("{0}; will be tried again")]
    Transient(String),
    /// Something is not as we thought: an item to create exists, or one to change does not. Somebody
    /// else has been at it. Observing and repairing helps.
    #[error("{0}: what is there is not what we had put there")]
    Conflict(String),
    /// The machine refuses the content. Only other content helps.
    #[error("refused: {0}")]
    Refused(String),
    /// The machine cannot do it at all.
    #[error("not supported on this machine: {0}")]
    Unsupported(String),
    /// We may not do it.
    #[error("no permission: {0} (needs root, or CAP_NET_ADMIN in this network namespace)")]
    Permission(String),
    /// Talking to the machine failed.
    #[error("{action}: {source}")]
    Io {
        /// What we were doing.
        action: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The backend has a fault: it panicked. What it left behind will be observed.
    #[error("internal fault, please report it: {0}")]
    Panicked(String),
    /// Several independent parts failed; the rest was applied.
    #[error("{} parts failed; the first: {}", .0.len(), first(.0))]
    Several(Vec<ApplyError>),
}

fn first(errors: &[ApplyError]) -> String {
    errors.first().map_or_else(|| "none".to_owned(), ToString::to_string)
}

impl ApplyError {
    /// An [`ApplyError::Io`], or the variant that says more where the error's kind tells it.
    pub fn from_io(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission(action),
            io::ErrorKind::Unsupported => Self::Unsupported(action),
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
                Self::Conflict(format!("{action}: {source}"))
            }
            io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::ResourceBusy => Self::Transient(format!("{action}: {source}")),
            _ => Self::Io { action, source },
        }
    }

    /// The error of several parts; `None` if there is none.
    pub fn several(mut errors: Vec<Self>) -> Option<Self> {
        if errors.len() > 1 { Some(Self::Several(errors)) } else { errors.pop() }
    }

    /// Whether trying the same again can help. If not, only another input does, or another machine.
    pub fn can_retry(&self) -> bool {
        match self {
            Self::Transient(_) | Self::Conflict(_) | Self::Io { .. } | Self::Panicked(_) => true,
            Self::Refused(_) | Self::Unsupported(_) | Self::Permission(_) => false,
            Self::Several(errors) => errors.iter().any(Self::can_retry),
        }
    }
}
