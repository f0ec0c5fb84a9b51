//! Settings from layers: kube-proxy's configuration < our own file < environment < flags.
//!
//! There is one definition of a setting, clap's in [`cli`](crate::cli). The environment variable's
//! name comes from the option's (`--admin-listen`, `TELAIO_ADMIN_LISTEN`), the file's values become
//! the options' defaults, and clap's own order (flag, environment, default) does the rest. A
//! [KubeProxyConfiguration](crate::kube_proxy_config) becomes defaults first, so that our own file
//! replaces what both say.
//!
//! What always holds: a key of the file that no command knows is an error with the nearest known name,
//! and a value that its option would refuse is an error that names file and key. A key of another
//! command's is taken and not used, so that `run`, `brain`, `render` and `status` can share a file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches};

use crate::cli::Cli;
use crate::kube_proxy_config::KubeProxyConfig;

mod file;

pub(crate) use file::{Entry, FileError, read_text};

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
        // Once without the files, to learn which; no option is required, so nothing is missing.
        let matches = command().try_get_matches_from(&args)?;
        let file = named_file(&matches, "config");
        let mut layers = Layers::new(&matches);
        let ours = file.as_deref().map_or(Ok(Vec::new()), file::read)?;
        let warnings = match layers.kube_proxy_config(&matches, &ours) {
            Some(path) => {
                let theirs = KubeProxyConfig::read(&path)?;
                layers.add(&path, theirs.entries)?;
                theirs.warnings
            }
            None => Vec::new(),
        };
        if let Some(path) = &file {
            layers.add(path, ours)?;
        }
        let matches = layers.command.try_get_matches_from(&args)?;
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let Some(proxy) = cli.command.proxy_mut() {
            proxy.config_warnings = warnings;
        }
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

/// The names under which a file may set an option: its own, and those of other programs.
fn option_names(arg: &Arg) -> Vec<String> {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let names = option_name(arg).into_iter();
    if arg.get_action().takes_values() {
        names.chain(aliases.into_iter().map(str::to_owned)).collect()
    } else {
        names.collect()
    }
}

fn named_file(matches: &ArgMatches, option: &str) -> Option<PathBuf> {
    let (_, sub) = matches.subcommand()?;
    sub.try_get_one::<PathBuf>(option).ok().flatten().cloned()
}

/// The command line with files' values as defaults of the chosen command's options.
struct Layers {
    command: clap::Command,
    /// The name of the chosen command.
    chosen: String,
    /// What every command can be told, as flags without the dashes.
    known: Vec<String>,
    /// Which options a flag or the environment sets in other words.
    replaced: Vec<&'static str>,
}

impl Layers {
    fn new(matches: &ArgMatches) -> Self {
        let command = command();
        let options = |sub: &clap::Command| sub.get_arguments().flat_map(option_names).collect();
        let known = command.get_subcommands().flat_map::<Vec<_>, _>(options).collect();
        let chosen = matches.subcommand_name().unwrap_or_default().to_owned();
        let mut replaced = Vec::new();
        if named_file(matches, "kubeconfig").is_some() {
            replaced.push("source");
        }
        Self { command, chosen, known, replaced }
    }

    /// The option of the chosen command that has this name.
    fn option(&self, name: &str) -> Option<Arg> {
        let sub = self.command.find_subcommand(&self.chosen)?;
        let is_named = |arg: &&Arg| option_names(arg).iter().any(|one| one == name);
        sub.get_arguments().find(is_named).cloned()
    }

    /// The KubeProxyConfiguration that is named on the command line, in the environment, or in our
    /// own file, if the chosen command can use one.
    fn kube_proxy_config(&self, matches: &ArgMatches, ours: &[Entry]) -> Option<PathBuf> {
        const OPTION: &str = "kube-proxy-config";
        self.option(OPTION)?;
        named_file(matches, "kube_proxy_config").or_else(|| {
            let entry = ours.iter().find(|entry| entry.key == OPTION)?;
            entry.values.first().map(PathBuf::from)
        })
    }

    /// Puts a file's values over those of the layers before.
    fn add(&mut self, path: &Path, entries: Vec<Entry>) -> Result<(), SettingsError> {
        for entry in entries {
            if entry.key == "config" || !self.known.contains(&entry.key) {
                return Err(FileError::unknown_key(path, &entry.key, &self.known).into());
            }
            if self.replaced.contains(&entry.key.as_str()) {
                continue;
            }
            let Some(arg) = self.option(&entry.key) else { continue };
            entry.check(path, &arg)?;
            let command = std::mem::take(&mut self.command);
            self.command = command.mut_subcommand(&self.chosen, |sub| {
                sub.mut_arg(arg.get_id(), |arg| arg.default_values(entry.values))
            });
        }
        Ok(())
    }
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
