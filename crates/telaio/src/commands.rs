//! The commands that are more than a print.

mod brain;
mod demo;
mod render;
mod run;
mod status;

pub(crate) use brain::brain;
pub(crate) use demo::demo;
pub(crate) use render::render;
pub(crate) use run::run;
pub(crate) use status::status;

use telaio_source::Status;

use crate::cli::Command;
use crate::exit::CommandError;
use crate::logging::Logging;
use crate::monitor::Monitor;
use crate::settings::Settings;

/// The runtime of the commands that need one.
fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| CommandError::failed(format!("cannot start the runtime: {error}")))
}

/// Says on standard error what the source could not read, for commands that run once: bad input, if
/// there is any.
fn report_problems(source: &Status) -> Result<(), CommandError> {
    let problems = source.problems();
    if problems.is_empty() {
        return Ok(());
    }
    for problem in &problems {
        eprintln!("telaio: {problem}");
    }
    let count = problems.len();
    let noun = if count == 1 { "problem" } else { "problems" };
    Err(CommandError::bad_input(format!("{count} {noun} in the input; the rest was used")))
}

/// Reads the settings again. The log level changes at once; `apply` does what else can be done while
/// we run, and `reloadable` names those settings. What is wrong is logged, and the old settings stand.
fn reload(
    settings: &mut Settings,
    logging: &Logging,
    monitor: &Monitor,
    why: &str,
    reloadable: &[&str],
    apply: impl FnOnce(&Command),
) {
    let (cli, changed) = match settings.reload() {
        Ok(reloaded) => reloaded,
        Err(error) => {
            monitor.count_reload(false);
            tracing::error!(why, %error, "the settings are wrong; the old ones stand");
            return;
        }
    };
    if let Some(log) = cli.command.log()
        && let Err(error) = logging.set_filter(&log.log_level)
    {
        tracing::error!(%error, "the log level stays");
    }
    apply(&cli.command);
    let is_live = |name: &&str| *name == "log-level" || reloadable.contains(name);
    let (now, later): (Vec<_>, Vec<_>) = changed.iter().map(String::as_str).partition(is_live);
    tracing::info!(why, changed = now.join(", "), "settings reloaded");
    if !later.is_empty() {
        tracing::warn!(settings = later.join(", "), "these changes need a restart");
    }
    monitor.count_reload(true);
}
