//! The options of the pods plane.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;

use super::values::{address, cidr};

/// How packets get to the instances of other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PodBackend {
    /// Within UDP: nodes may be anywhere.
    Vxlan,
    /// By routes: nodes must be on one link.
    HostGw,
}

/// Where the CNI plugin goes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Pods")]
pub(crate) struct CniArgs {
    /// Directory of CNI plugins, where ours is installed; empty installs none
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,

    /// Directory of CNI configurations, where ours is installed; empty installs none
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,
}

/// What decides this node's instance network.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Pods")]
pub(crate) struct PodsArgs {
    /// How packets get to the instances of other nodes
    #[arg(long, value_name = "BACKEND", value_enum, default_value_t = PodBackend::Vxlan)]
    pub(crate) pod_backend: PodBackend,

    /// Networks of this node's instances, where its Node object names no podCIDRs
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub(crate) pod_cidr: Vec<IpNet>,

    /// The address that other nodes know this one by [default: the default route's]
    #[arg(long, value_name = "IP", value_parser = address)]
    pub(crate) tunnel_address: Option<IpAddr>,

    /// Destinations beside the cluster's that see instances' own addresses
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub(crate) masquerade_except: Vec<IpNet>,

    #[command(flatten)]
    pub(crate) cni: CniArgs,

    /// The plugin to install [default: telaio-cni beside this binary]
    #[arg(long, value_name = "FILE")]
    pub(crate) cni_plugin: Option<PathBuf>,

    /// Move other plugins' CNI configurations aside; cleanup moves them back
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value = "false", default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, value_parser = BoolishValueParser::new())]
    pub(crate) take_over_cni: bool,
}
