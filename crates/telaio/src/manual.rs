//! Shell completions and manual pages, from the same definition as the command line itself.

use std::io::Write;

use clap_complete::Shell;

use crate::exit::CommandError;
use crate::settings;

/// Prints the completions for a shell.
pub(crate) fn print_completions(shell: Shell, out: &mut impl Write) {
    clap_complete::generate(shell, &mut settings::command(), "telaio", out);
}

/// Prints the manual page of the whole, or of one command.
pub(crate) fn print_page(name: Option<&str>, out: &mut impl Write) -> Result<(), CommandError> {
    let mut command = settings::command();
    command.build();
    let command = match name {
        None => command,
        Some(name) => {
            let sub = command.find_subcommand(name).cloned();
            let sub = sub.ok_or_else(|| {
                let all: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
                CommandError::bad_input(format!(
                    "there is no command {name:?}; there are: {}",
                    all.join(", ")
                ))
            })?;
            // The page's title is a file's name, so that `man telaio-run` finds it.
            sub.name(format!("telaio-{name}"))
        }
    };
    clap_mangen::Man::new(command).render(out).map_err(anyhow::Error::from)?;
    Ok(())
}
