//! What keeps the agent from running: one message that says what to do, and exit code 1.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use telaio_testkit::netns::{Cluster, Host, Place, Transport};

use crate::manifest::{SERVICE_PORT, Service};
use crate::node::{Backend, Node};
use crate::support::Ended;

on_every_backend!(without_privileges_it_says_what_it_needs);

/// The user and group that have no rights at all.
const NOBODY: u32 = 65_534;

/// One message: what follows the log, if there is any, is a single line.
fn message(ended: &Ended) -> &str {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let lines: Vec<_> = ended.stderr.lines().filter(|line| !line.starts_with('{')).collect();
    assert_eq!(lines.len(), 1, "{ended:?}");
    lines[0]
}

fn without_privileges_it_says_what_it_needs(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let node = Node::new(&cluster, backend, &[Service::new("plain", 1).endpoints("a1")]);
    // A binary, manifests and a state directory that anybody may use: only the privilege is missing.
    let open = tempfile::tempdir().unwrap();
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(open.path(), everybody.clone()).unwrap();
    let binary = open.path().join("telaio");
    std::fs::copy(env!("CARGO_BIN_EXE_telaio"), &binary).unwrap();
    std::fs::set_permissions(&binary, everybody.clone()).unwrap();
    for flag in [node.source(), node.state_dir()] {
        let (_, path) = flag.split_once('/').unwrap();
        std::fs::set_permissions(format!("/{path}"), everybody.clone()).unwrap();
    }
    let given = node.run_command();
    let mut command = Command::new(&binary);
    command.args(given.get_args()).uid(NOBODY).gid(NOBODY);
    let ended = node.run_to_end(&mut command);
    let message = message(&ended);
    assert!(message.contains("root") || message.contains("CAP_NET_ADMIN"), "{message}");
}

#[test]
fn without_the_iptables_program_it_says_what_to_install() {
    let cluster = Cluster::start().unwrap();
    for backend in [Backend::IptablesNft, Backend::IptablesLegacy] {
        let node = Node::new(&cluster, backend, &[Service::new("plain", 1).endpoints("a1")]);
        let given = node.run_command();
        let mut command = without_programs(given.get_program());
        let ended = node.run_to_end(command.args(given.get_args()));
        let message = message(&ended);
        assert!(message.contains("iptables") && message.contains("install"), "{message}");
    }
}

/// A command in whose eyes the directories of system programs are empty.
fn without_programs(program: &OsStr) -> Command {
    let mut command = Command::new("unshare");
    let hide = "for d in /usr/sbin /usr/local/sbin; do mount -t tmpfs none $d; done; exec \"$@\"";
    command.args(["--mount", "sh", "-ec", hide, "sh"]).arg(program);
    command
}

#[test]
fn nftables_needs_no_program_at_all() {
    let cluster = Cluster::start().unwrap();
    let service = Service::new("plain", 1).endpoints("a1");
    let to = (service.cluster_ip(telaio_testkit::netns::Family::V4), SERVICE_PORT).into();
    let node = Node::new(&cluster, Backend::Nftables, &[service]);
    let given = node.run_command();
    let mut command = without_programs(given.get_program());
    let ended = node.run_to_end(command.args(given.get_args()).arg("--once"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(node.ask(Place::of(Host::A2), to, Transport::Tcp).by(), Some("a1"));
}
