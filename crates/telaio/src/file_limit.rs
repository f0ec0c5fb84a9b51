//! How many files we may have open.
//!
//! Every connection is one, and the usual limit of 1,024 is for programs that wait with `select`,
//! which we never do.

/// Takes as many as the system allows us.
#[cfg(unix)]
pub(crate) fn raise() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// There is no such limit here.
#[cfg(not(unix))]
pub(crate) fn raise() {}
