//! Logs: structured, to standard error or a file, with a level that can change while we run.
//!
//! Standard output belongs to what a command was asked to print.

mod file;

use std::io::IsTerminal;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::cli::LogArgs;
use file::LogFile;

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged: a level, or a list of `module=level`. Checked when it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFilter(String);

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "{what}; write error, warn, info, debug or trace, or a list such as \
                 info,telaio_source=debug"
            )
        };
        // To the filter, "inof" is a module; to us it is a level with a slip.
        for part in text.split(',').map(str::trim) {
            let level = part.rsplit('=').next().unwrap_or(part);
            if level.is_empty() || level.parse::<LevelFilter>().is_err() {
                return Err(wrong(&format!("{level:?} is not a level")));
            }
        }
        EnvFilter::try_new(text).map_err(|error| wrong(&error.to_string()))?;
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for LogFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl LogFilter {
    fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

/// The running log, for changing its level.
#[derive(Debug, Clone)]
pub(crate) struct Logging {
    handle: reload::Handle<EnvFilter, Registry>,
}

impl Logging {
    /// Starts logging. Once per process.
    pub(crate) fn start(args: &LogArgs) -> Result<Self> {
        let (filter, handle) = reload::Layer::new(args.log_level.filter());
        let is_terminal = args.log_file.is_none() && std::io::stderr().is_terminal();
        let writer = match &args.log_file {
            None => BoxMakeWriter::new(std::io::stderr),
            Some(path) => BoxMakeWriter::new(LogFile::open(path)?),
        };
        let lines = fmt::layer().with_writer(writer);
        let lines = match args.log_format {
            LogFormat::Text => lines.with_ansi(is_terminal).with_target(false).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .try_init()
            .context("cannot start logging")?;
        Ok(Self { handle })
    }

    /// Changes what is logged.
    pub(crate) fn set_filter(&self, filter: &LogFilter) -> Result<()> {
        self.handle.reload(filter.filter()).context("cannot change the log level")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_or_a_list_is_taken_and_a_slip_is_refused() {
        for good in ["info", "warn,telaio_source=debug", "telaio=trace", "off"] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
        for bad in ["inof", "", "telaio=loud", "info,"] {
            assert!(bad.parse::<LogFilter>().is_err(), "{bad}");
        }
    }
}
