//! The commands that are more than a print.

mod brain;
mod cleanup;
mod demo;
mod manage;
mod migrate;
mod render;
mod rules;
mod run;
#[cfg(windows)]
mod service;
mod status;
mod trace;
#[cfg(target_os = "linux")]
mod trace_url;

pub(crate) use brain::brain;
pub(crate) use cleanup::cleanup;
pub(crate) use demo::demo;
pub(crate) use manage::{drain, overrides, purge, undrain, weight};
pub(crate) use migrate::migrate;
pub(crate) use render::render;
pub(crate) use rules::Rules;
pub(crate) use run::run;
#[cfg(windows)]
pub(crate) use service::service;
pub(crate) use status::status;
pub(crate) use trace::{packet_of, surroundings, trace};
#[cfg(target_os = "linux")]
pub(crate) use trace_url::trace_url_of;

use telaio_source::{Problem, SourceSpec, Status};

use crate::cli::Command;
use crate::exit::CommandError;
use crate::logging::Logging;
use crate::monitor::Monitor;
use crate::settings::Settings;

/// The runtime of the commands that need one.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| CommandError::failed(format!("cannot start the runtime: {error}")))
}

/// Says on standard error what the source could not read, for commands that run once: bad input, if
/// there is any. Trouble with a server that did not keep the state from being complete is no fault of
/// the input.
fn report_problems(spec: &SourceSpec, source: &Status) -> Result<(), CommandError> {
    let problems = source.problems();
    for problem in &problems {
        eprintln!("telaio: {}", crate::plain::lines(&problem.to_string()));
    }
    let of_input = |problem: &&Problem| match spec {
        SourceSpec::Dir(_) => true,
        SourceSpec::Kube(_) | SourceSpec::Brain(_) => problem.object.is_some(),
    };
    match problems.iter().filter(of_input).count() {
        0 => Ok(()),
        1 => Err(CommandError::bad_input("one problem in the input; the rest was used")),
        count => {
            let message = format!("{count} problems in the input; the rest was used");
            Err(CommandError::bad_input(message))
        }
    }
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
