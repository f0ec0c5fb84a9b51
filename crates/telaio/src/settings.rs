//! Settings from three layers: configuration file < environment < flags.
//!
//! There is one definition of a setting, clap's in [`cli`](crate::cli). The environment variable's
//! name comes from the option's (`--admin-listen`, `TELAIO_ADMIN_LISTEN`), the file's values become
//! the options' defaults, and clap's own order (flag, environment, default) does the rest.
//!
//! What always holds: a key of the file that no command knows is an error with the nearest known name,
//! and a value that its option would refuse is an error that names file and key. A key of another
//! command's is taken and not used, so that `run`, `brain`, `render` and `status` can share a file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches};

use crate::cli::Cli;

mod file;

pub(crate) use file::FileError;

/// The prefix of our environment variables.
const ENV_PREFIX: &str = "TELAIO_";

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    /// The command line or the environment is wrong, or help was asked for.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The configuration file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Where the settings came from, so that they can be read again.
#[derive(Debug)]
pub(crate) struct Settings {
    args: Vec<OsString>,
    file: Option<PathBuf>,
    matches: ArgMatches,
}

impl Settings {
    /// Reads the command line `args` (the program's name first), the environment and the
    /// configuration file that either names; also gives what was asked for.
    pub(crate) fn load(args: Vec<OsString>) -> Result<(Self, Cli), SettingsError> {
        // Once without the file, to learn which file; no option is required, so nothing is missing.
        let matches = command().try_get_matches_from(&args)?;
        let file = named_file(&matches);
        let matches = match &file {
            Some(path) => layered(&matches, path)?.try_get_matches_from(&args)?,
            None => matches,
        };
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((Self { args, file, matches }, cli))
    }

    /// The configuration file in use.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads everything again; gives what is asked for now, and which options changed. On error the
    /// old settings stand.
    pub(crate) fn reload(&mut self) -> Result<(Cli, Vec<String>), SettingsError> {
        let (new, cli) = Self::load(self.args.clone())?;
        let changed = changed_options(&self.matches, &new.matches);
        *self = new;
        Ok((cli, changed))
    }
}

/// The command line with an environment variable for each option that takes a value.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_subcommands(|sub| {
        sub.mut_args(|arg| match option_name(&arg) {
            Some(name) => {
                let variable = format!("{ENV_PREFIX}{}", name.to_uppercase().replace('-', "_"));
                arg.env(variable).hide_env_values(true)
            }
            None => arg,
        })
    })
}

/// The option's name as flag and key, if it takes a value.
fn option_name(arg: &Arg) -> Option<String> {
    arg.get_long().filter(|_| arg.get_action().takes_values()).map(str::to_owned)
}

fn named_file(matches: &ArgMatches) -> Option<PathBuf> {
    let (_, sub) = matches.subcommand()?;
    sub.try_get_one::<PathBuf>("config").ok().flatten().cloned()
}

/// The command line with the file's values as defaults of the chosen command's options.
fn layered(matches: &ArgMatches, path: &Path) -> Result<clap::Command, SettingsError> {
    let mut command = command();
    let chosen = matches.subcommand_name().unwrap_or_default().to_owned();
    for entry in file::read(path)? {
        let options = |sub: &clap::Command| sub.get_arguments().filter_map(option_name).collect();
        let all: Vec<String> = command.get_subcommands().flat_map::<Vec<_>, _>(options).collect();
        if entry.key == "config" || !all.contains(&entry.key) {
            return Err(FileError::unknown_key(path, &entry.key, &all).into());
        }
        let sub = command.find_subcommand(&chosen);
        let mut arguments = sub.into_iter().flat_map(clap::Command::get_arguments);
        let arg = arguments.find(|arg| arg.get_long() == Some(&entry.key)).cloned();
        drop(arguments);
        let Some(arg) = arg else { continue };
        entry.check(path, &arg)?;
        command = command.mut_subcommand(&chosen, |sub| {
            sub.mut_arg(arg.get_id(), |arg| arg.default_values(entry.values))
        });
    }
    Ok(command)
}

/// The options of the chosen command whose values differ, as flags without the dashes.
fn changed_options(old: &ArgMatches, new: &ArgMatches) -> Vec<String> {
    let (Some((name, old)), Some((_, new))) = (old.subcommand(), new.subcommand()) else {
        return Vec::new();
    };
    let raw = |matches: &ArgMatches, arg: &Arg| -> Vec<OsString> {
        let values = matches.get_raw(arg.get_id().as_str());
        values.map(|all| all.map(OsString::from).collect()).unwrap_or_default()
    };
    let command = command();
    let arguments =
        command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    let mut changed: Vec<String> = arguments
        .filter_map(|arg| option_name(arg).filter(|_| raw(old, arg) != raw(new, arg)))
        .collect();
    changed.sort();
    changed
}

#[cfg(test)]
mod tests;
