//! One agent for the services of a machine.
//!
//! Two would undo each other's work for ever, whatever their state directories. So there is one file for all of
//! them, in the directory that state is kept in unless said otherwise, and its lock goes with the process.

use std::time::{Duration, Instant};

use crate::exit::CommandError;
use crate::state_dir::{self, Part, StateDir, Taken};

/// How long the last agent may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to look.
const PAUSE: Duration = Duration::from_millis(100);

/// Held for as long as this process is the one.
#[derive(Debug)]
pub(crate) struct Sole(#[expect(dead_code, reason = "held, not read")] StateDir);

impl Sole {
    /// Becomes the one, waiting a moment for another that is ending.
    pub(crate) fn take() -> Result<Self, CommandError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match StateDir::take(&state_dir::default_path(), Part::Machine)? {
                Taken::Ours(lock) => return Ok(Self(lock)),
                Taken::By(owner) if Instant::now() >= deadline => {
                    return Err(CommandError::failed(format!(
                        "another agent programs the services of this machine ({owner}); stop it first"
                    )));
                }
                Taken::By(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}
