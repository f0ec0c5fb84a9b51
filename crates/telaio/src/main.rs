//! `telaio`: one binary that weaves a node's whole network.
//!
//! Read it in this order: [`cli`] defines every setting, [`settings`] layers file, environment and
//! flags, [`commands`] does what was asked. The long-running commands put the same parts together: a
//! [`supply`] keeps a store up to date from a source, a [`feeder`] gives one node's view of it to a
//! [`backend`], an [`api_server`] serves it to other nodes. A [`monitor`] knows how all of it is,
//! [`servers`] tell, and [`shutdown`] hears when to end or reload.

mod api_server;
mod backend;
mod cli;
mod commands;
mod exit;
mod feeder;
mod file_limit;
mod gui;
mod http_get;
#[cfg(unix)]
mod ingress;
mod kube_proxy_config;
mod logging;
mod manual;
mod monitor;
mod node_name;
mod node_view;
mod plain;
mod plane;
#[cfg(target_os = "linux")]
mod pods;
mod progress;
mod proxy_settings;
mod servers;
mod settings;
mod shutdown;
mod state_dir;
mod supply;
#[cfg(target_os = "linux")]
mod tee;
mod tls;
mod triggers;
mod version;

use std::io::Write;
use std::process::ExitCode;

use cli::{Cli, Command};
use exit::CommandError;
use settings::{Settings, SettingsError};

fn main() -> ExitCode {
    // A container runtime that has us as its plugin.
    #[cfg(target_os = "linux")]
    if telaio_pod_network::cni::is_called() {
        return telaio_pod_network::cni::main();
    }
    #[cfg(target_os = "linux")]
    telaio_netlink::heap::share_one_arena();
    tls::install_crypto_provider();
    let (settings, cli) = match Settings::load(std::env::args_os().collect()) {
        Ok(loaded) => loaded,
        // Also how clap answers --help, on standard output and with exit code 0.
        Err(SettingsError::CommandLine(error)) => error.exit(),
        Err(error) => return CommandError::BadInput(error.into()).report(),
    };
    match run(&cli, settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn run(cli: &Cli, settings: Settings) -> Result<(), CommandError> {
    // What objects say is shown and never done.
    let mut out = plain::Plain(std::io::stdout().lock());
    match &cli.command {
        Command::Run(args) => {
            // Its backend prints from a thread of its own.
            drop(out);
            commands::run(args, settings)
        }
        Command::Brain(args) => commands::brain(args, settings),
        Command::Render(args) => commands::render(args, &mut out),
        Command::Status(args) => commands::status(args, &mut out),
        Command::Drain(args) => commands::drain(args, &mut out),
        Command::Undrain(args) => commands::undrain(args, &mut out),
        Command::Weight(args) => commands::weight(args, &mut out),
        Command::Purge(args) => commands::purge(args, &mut out),
        Command::Overrides(args) => commands::overrides(args, &mut out),
        Command::Version(args) => version::print(args.output, &mut out).map_err(Into::into),
        Command::Trace(args) => commands::trace(args, &mut out),
        Command::Cleanup(args) => commands::cleanup(args, &mut out),
        #[cfg(windows)]
        Command::Service(args) => {
            drop(out);
            commands::service(args)
        }
        Command::Demo(args) => commands::demo(args, &mut out.0),
        Command::Migrate(args) => commands::migrate(args, &mut out),
        #[cfg(unix)]
        Command::IngressWorker => {
            drop(out);
            ingress::worker()
        }
        Command::Completions { shell } => {
            manual::print_completions(*shell, &mut out.0);
            Ok(())
        }
        Command::Man { command } => manual::print_page(command.as_deref(), &mut out.0),
    }
    .and_then(|()| std::io::stdout().flush().map_err(|error| CommandError::Failed(error.into())))
}
