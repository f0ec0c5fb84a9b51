//! The admin API: how it is served, and how it is asked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::values::duration;
use super::{ADMIN_ADDRESS, ConfigArgs, Output};

/// Who may use the admin API.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Admin API")]
#[expect(clippy::struct_field_names, reason = "as the options are called")]
pub(crate) struct AdminArgs {
    /// File with the token that may do everything [default: admin.token in the state directory,
    /// made at the first start]
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// File with a token that may only look
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_read_token_file: Option<PathBuf>,

    /// Also take the cluster's own tokens: who may get overrides.telaio.dev may look, who may update
    /// them may act
    #[arg(long)]
    pub(crate) admin_token_review: bool,

    /// Certificate chain of the admin API (PEM); needed where it does not listen on loopback
    #[arg(long, value_name = "FILE", requires = "admin_tls_key")]
    pub(crate) admin_tls_cert: Option<PathBuf>,

    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "admin_tls_cert")]
    pub(crate) admin_tls_key: Option<PathBuf>,

    /// Names by which the admin API may be asked, beside localhost and addresses
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) admin_host: Vec<String>,

    // Nobody needs another but tests, which would wait.
    /// How long an override that has ended stays written [default: 30s to 60s]
    #[arg(long, hide = true, value_name = "TIME", value_parser = duration)]
    pub(crate) admin_ended_grace: Option<Duration>,
}

/// How a running agent is asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The agent to ask")]
pub(crate) struct AdminClientArgs {
    /// Address of the agent's admin API
    #[arg(long, value_name = "ADDRESS", default_value_t = ADMIN_ADDRESS)]
    pub(crate) admin_listen: SocketAddr,

    /// File with its token [default: admin.token in the state directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// The agent's state directory [default: as for run]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Authority of the admin API's certificate (PEM): ask by TLS
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_tls_ca: Option<PathBuf>,

    /// The name that the certificate is for [default: the address]
    #[arg(long, value_name = "NAME")]
    pub(crate) admin_tls_name: Option<String>,
}

/// Which endpoints of a service: one of the four.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TargetArgs {
    /// The endpoints: an address, the name of a pod, or of a node
    #[arg(value_name = "BACKEND")]
    pub(crate) backend: Option<String>,

    /// The endpoint with this address
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<String>,

    /// The endpoints of this pod
    #[arg(long, value_name = "POD")]
    pub(crate) pod: Option<String>,

    /// The endpoints on this node
    #[arg(long = "on-node", value_name = "NODE")]
    pub(crate) on_node: Option<String>,
}

/// How a decision is made.
#[derive(Debug, Clone, Args)]
pub(crate) struct DecisionArgs {
    /// Only show what it would touch
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not ask; nobody is asked in a pipe or a script either
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,

    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,

    /// It ends by itself after this time, such as 30m or 2h
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) lasts: Option<Duration>,

    /// How to print what was done
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) client: AdminClientArgs,
}

/// `telaio drain` and `telaio undrain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telaio drain shop/web 10.0.0.7 --dry-run
  telaio drain shop/web web-2 --for 30m --reason 'disk is failing'
  telaio drain shop/web --on-node loom-b
  telaio undrain shop/web web-2")]
pub(crate) struct EndpointActionArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// The service: NAMESPACE/NAME, or NAME in the namespace default
    #[arg(value_name = "SERVICE")]
    pub(crate) service: String,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) decision: DecisionArgs,
}

/// `telaio weight`.
#[derive(Debug, Args)]
#[command(
    override_usage = "telaio weight [OPTIONS] SERVICE [BACKEND] WEIGHT",
    after_help = "\
Examples:
  telaio weight shop/web 10.0.0.7 3
  telaio weight shop/web 3 --pod web-2 --for 1h"
)]
pub(crate) struct WeightArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// The service: NAMESPACE/NAME, or NAME in the namespace default
    #[arg(value_name = "SERVICE")]
    pub(crate) service: String,

    /// The endpoints (an address, the name of a pod, or of a node; or one of the options below), and
    /// their share, beside 1 for endpoints that say nothing; 0 drains
    #[arg(value_name = "[BACKEND] WEIGHT", required = true, num_args = 1..=2)]
    pub(crate) words: Vec<String>,

    /// The endpoint with this address
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<String>,

    /// The endpoints of this pod
    #[arg(long, value_name = "POD")]
    pub(crate) pod: Option<String>,

    /// The endpoints on this node
    #[arg(long = "on-node", value_name = "NODE")]
    pub(crate) on_node: Option<String>,

    #[command(flatten)]
    pub(crate) decision: DecisionArgs,
}

/// `telaio purge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telaio purge --url http://shop.example.com/logo.svg
  telaio purge --prefix http://shop.example.com/static/ --dry-run
  telaio purge --host shop.example.com")]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    #[command(flatten)]
    pub(crate) what: PurgeWhatArgs,

    /// Only show what it would touch
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not ask; nobody is asked in a pipe or a script either
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,

    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) reason: String,

    /// How to print what was done
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) client: AdminClientArgs,
}

/// What to forget: one of the three.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PurgeWhatArgs {
    /// What is kept of this URL
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// All whose URL begins so
    #[arg(long, value_name = "URL")]
    pub(crate) prefix: Option<String>,

    /// All of this host
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,
}

/// `telaio overrides`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telaio overrides list
  telaio overrides add shop/web 10.0.0.9 --port 8080 --for 2h
  telaio overrides remove shop/web web-3
  telaio overrides pause shop/web --host shop.example.com --for 15m
  telaio overrides undo kf4m-12")]
pub(crate) struct OverridesArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    #[command(subcommand)]
    pub(crate) command: OverridesCommand,
}

/// What to do with overrides.
#[derive(Debug, Subcommand)]
pub(crate) enum OverridesCommand {
    /// List those in force
    List {
        /// How to print them
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
        output: Output,
        #[command(flatten)]
        client: AdminClientArgs,
    },
    /// List what was done, newest first
    Audit {
        /// How to print it
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
        output: Output,
        #[command(flatten)]
        client: AdminClientArgs,
    },
    /// Add an endpoint to a service by hand
    Add {
        /// The service: NAMESPACE/NAME
        #[arg(value_name = "SERVICE")]
        service: String,
        /// The endpoint's address
        #[arg(value_name = "IP")]
        address: String,
        /// Its port, for every port of the service [default: the service's target ports]
        #[arg(long, value_name = "PORT")]
        port: Option<u16>,
        /// The node that it runs on
        #[arg(long = "on-node", value_name = "NODE")]
        on_node: Option<String>,
        /// Its share of the traffic
        #[arg(long, value_name = "WEIGHT")]
        weight: Option<u16>,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Take an endpoint away, as if the cluster did not name it
    Remove {
        /// The service: NAMESPACE/NAME
        #[arg(value_name = "SERVICE")]
        service: String,
        #[command(flatten)]
        target: TargetArgs,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Answer an Ingress's requests with a maintenance page
    Pause {
        /// The Ingress: NAMESPACE/NAME
        #[arg(value_name = "INGRESS")]
        ingress: String,
        /// Only this host of it
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// Only this path of it
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Take back a pause
    Resume {
        /// The Ingress: NAMESPACE/NAME
        #[arg(value_name = "INGRESS")]
        ingress: String,
        /// Only the pause of this host
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
        /// Only the pause of this path
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Take back an override by its name
    Delete {
        /// NAMESPACE/NAME, as the list has it
        #[arg(value_name = "OVERRIDE")]
        name: String,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Undo an action of the audit log
    Undo {
        /// Its number, as the action and the audit log say it, such as kf4m-12
        #[arg(value_name = "NUMBER", value_parser = entry)]
        id: String,
        #[command(flatten)]
        decision: DecisionArgs,
    },
    /// Compare everything with the kernel and put it right, and give the ingress all its routes again
    Resync {
        #[command(flatten)]
        decision: DecisionArgs,
    },
}

/// The number of an entry of the audit log: it becomes a part of a path.
fn entry(text: &str) -> Result<String, String> {
    let is_one = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !text.is_empty() && text.len() <= 32 && text.bytes().all(is_one) {
        return Ok(text.to_owned());
    }
    Err("is no number of the audit log; they look like kf4m-12".to_owned())
}
