//! What can go wrong with a request, sorted by what is to be done about it.

use std::error::Error;
use std::fmt::Write as _;

/// Why a list or watch ended before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The version that the watch was to go on from is gone: list again.
    #[error("the API server no longer has the version we watched from")]
    Gone,
    /// The server does not stream lists: list by pages.
    #[error("the API server does not stream lists")]
    NoStreamingLists,
    /// The server answers, but not to us: tell a person, try again later.
    #[error("cannot {verb}: {code} {message}")]
    Refused {
        /// 401, 403 or 404.
        code: u16,
        /// What was asked for.
        verb: &'static str,
        /// What the server says.
        message: String,
    },
    /// The server answers something that helps nobody: try again, and list if that does not help.
    #[error("the API server answers {}{message}", .code.map(|c| format!("{c}: ")).unwrap_or_default())]
    BadAnswer {
        /// The HTTP status, where that is the answer.
        code: Option<u16>,
        /// What it says, or what is wrong with it.
        message: String,
    },
    /// The server cannot be reached, or is too busy: try again.
    #[error("{0}")]
    Unavailable(String),
}

impl Trouble {
    /// Sorts the error of a request.
    pub(super) fn of_request(verb: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(verb, status.code, &status.message),
            other => Self::Unavailable(with_causes(&other)),
        }
    }

    /// Sorts the status of an answer.
    pub(super) fn of_status(verb: &'static str, code: u16, message: &str) -> Self {
        match code {
            410 => Self::Gone,
            401 | 403 | 404 => Self::Refused { code, verb, message: message.to_owned() },
            429 | 502 | 503 => {
                Self::Unavailable(format!("the API server answers {code}: {message}"))
            }
            _ => Self::BadAnswer { code: Some(code), message: message.to_owned() },
        }
    }

    /// An answer that makes no sense.
    pub(super) fn nonsense(message: impl Into<String>) -> Self {
        Self::BadAnswer { code: None, message: message.into() }
    }

    /// A request that got no answer in time.
    pub(super) fn timeout(verb: &'static str) -> Self {
        Self::Unavailable(format!("no answer to {verb} in time"))
    }

    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}

/// An error with what caused it: alone it often says only "client error".
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {message}");
        }
        cause = error.source();
    }
    text
}
