//! How a command ends: 0 done, 1 failed, 2 bad usage or bad input.

use std::process::ExitCode;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// What we were given is wrong: exit code 2.
    BadInput(anyhow::Error),
    /// The input is fine, the doing failed: exit code 1.
    Failed(anyhow::Error),
}

impl CommandError {
    /// Bad input, said in one line.
    pub(crate) fn bad_input(message: impl std::fmt::Display) -> Self {
        Self::BadInput(anyhow::anyhow!("{message}"))
    }

    /// Failed, said in one line.
    pub(crate) fn failed(message: impl std::fmt::Display) -> Self {
        Self::Failed(anyhow::anyhow!("{message}"))
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::BadInput(_) => 2,
            Self::Failed(_) => 1,
        }
    }

    /// Says why on standard error.
    pub(crate) fn report(&self) -> ExitCode {
        let (Self::BadInput(error) | Self::Failed(error)) = self;
        // Whoever read our output has enough of it, as `telaio render | head` does.
        let is_closed_pipe = |cause: &(dyn std::error::Error + 'static)| {
            let io = cause.downcast_ref::<std::io::Error>();
            io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
        };
        if error.chain().any(is_closed_pipe) {
            return ExitCode::SUCCESS;
        }
        eprintln!("telaio: {}", crate::plain::lines(&format!("{error:#}")));
        ExitCode::from(self.code())
    }
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::BadInput(error) | Self::Failed(error)) = self;
        write!(f, "{error:#}")
    }
}

/// A failure unless said otherwise.
impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}
