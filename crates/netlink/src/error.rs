//! What can go wrong between us and the kernel.

use std::io;

/// Why a request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket itself.
    #[error("{doing}: {error}")]
    Socket {
        /// What we were doing.
        doing: &'static str,
        /// The system's answer.
        error: io::Error,
    },
    /// The kernel refused a message.
    #[error("{doing}: the kernel refused it: {error}{}", detail(.message))]
    Refused {
        /// What we were doing.
        doing: &'static str,
        /// The system's answer.
        error: io::Error,
        /// What the kernel says about it, if it says something.
        message: String,
        /// The sequence number of the message.
        sequence: u32,
    },
    /// The kernel dropped messages for us because we read too slowly.
    #[error("messages from the kernel were lost")]
    Overrun,
    /// What was listed changed meanwhile: list again.
    #[error("what was listed changed meanwhile")]
    Interrupted,
    /// No answer.
    #[error("{doing}: the kernel did not answer in time")]
    TimedOut {
        /// What we were doing.
        doing: &'static str,
    },
    /// The answer is not of the form that we know.
    #[error("{doing}: the kernel's answer makes no sense to us: {what}")]
    Malformed {
        /// What we were doing.
        doing: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A value does not fit into a message.
    #[error("too long for a message: {what}")]
    TooLong {
        /// Which value.
        what: &'static str,
    },
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

impl NetlinkError {
    /// What the last system call said.
    pub(crate) fn last_os(doing: &'static str) -> Self {
        Self::Socket { doing, error: io::Error::last_os_error() }
    }

    /// The error number behind it, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Socket { error, .. } | Self::Refused { error, .. } => error.raw_os_error(),
            _ => None,
        }
    }

    /// The kernel was built without what was asked for.
    pub fn is_unsupported(&self) -> bool {
        use libc::{EAFNOSUPPORT, EINVAL, ENOENT, EOPNOTSUPP, EPROTONOSUPPORT};
        match self {
            Self::Socket { error, .. } => {
                matches!(error.raw_os_error(), Some(EAFNOSUPPORT | EPROTONOSUPPORT))
            }
            // How a subsystem that is not there answers depends on the kernel's age.
            Self::Refused { error, .. } => {
                matches!(error.raw_os_error(), Some(EINVAL | ENOENT | EOPNOTSUPP | EPROTONOSUPPORT))
            }
            _ => false,
        }
    }

    /// Something still needs what was to be removed.
    pub fn is_busy(&self) -> bool {
        self.raw_os_error() == Some(libc::EBUSY)
    }

    /// The kernel wants privileges that we do not have.
    pub fn is_permission(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::EPERM | libc::EACCES))
    }
}
