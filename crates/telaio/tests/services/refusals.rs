//! What keeps the agent from running: one message that says what to do, and exit code 1.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use telaio_testkit::guest;
use telaio_testkit::netns::{Cluster, Host, Place, Transport};

use crate::manifest::{SERVICE_PORT, Service};
use crate::node::{Backend, IPVS_DEVICE, Node};
use crate::support::{Ended, run, telaio};

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
    if guest::is_inside() {
        // There is no room for a copy, and nothing that is mounted outlives the guest.
        std::fs::write(&binary, "").unwrap();
        let mut mount = Command::new("mount");
        let ended = run(mount.args(["--bind", env!("CARGO_BIN_EXE_telaio")]).arg(&binary));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    } else {
        std::fs::copy(env!("CARGO_BIN_EXE_telaio"), &binary).unwrap();
        std::fs::set_permissions(&binary, everybody.clone()).unwrap();
    }
    for flag in [node.source(), node.state_dir()] {
        let (_, path) = flag.split_once('/').unwrap();
        std::fs::set_permissions(format!("/{path}"), everybody.clone()).unwrap();
    }
    // What is in it is of the user who runs it; only its owner may read the token.
    for file in std::fs::read_dir(node.state_path()).unwrap() {
        std::os::unix::fs::chown(file.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let given = node.run_command();
    let mut command = Command::new(&binary);
    command.args(given.get_args()).uid(NOBODY).gid(NOBODY);
    let ended = node.run_to_end(&mut command);
    let message = message(&ended);
    assert!(message.contains("root") || message.contains("CAP_NET_ADMIN"), "{message}");
}

#[test]
fn without_ipvs_in_the_kernel_it_says_what_to_load() {
    let cluster = Cluster::start().unwrap();
    let node = Node::new(&cluster, Backend::Ipvs, &[Service::new("plain", 1).endpoints("a1")]);
    let has_ipvs = std::path::Path::new("/proc/net/ip_vs").exists();
    assert!(
        !has_ipvs,
        "a test machine whose own kernel has IPVS cannot show what one without does"
    );
    let ended = node.run_to_end(&mut node.run_command());
    let message = message(&ended);
    assert!(message.contains("the backend ipvs cannot run"), "{message}");
    for wanted in ["no IPVS", "modprobe ip_vs", "--backend nftables"] {
        assert!(message.contains(wanted), "{message}");
    }
    let left = std::fs::read_dir(node.state_path()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name == "sysctls.json"), "nothing was set: {left:?}");
    let links = node.output("ip", &["-o", "link"]);
    assert!(!links.contains(IPVS_DEVICE), "{links}");
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

#[test]
fn beside_a_running_agent_neither_a_second_one_nor_cleanup_runs() {
    let service = Service::new("plain", 1).node_port().endpoints("a1");
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, Backend::Nftables, std::slice::from_ref(&service));
    let before = node.snapshot();
    // Directories of their own, so that they have only the network namespace in common.
    let others = [Backend::Nftables, Backend::IptablesNft, Backend::IptablesLegacy]
        .map(|backend| Node::new(&cluster, backend, std::slice::from_ref(&service)));
    let elsewhere = tempfile::tempdir().unwrap();
    let cleanup = |state_dir: &std::path::Path| {
        let mut command = telaio();
        command.arg("cleanup").arg(format!("--state-dir={}", state_dir.display()));
        command
    };
    let cleanups = [cleanup(elsewhere.path()), cleanup(node.state_path())];
    // One that is let in by mistake must end.
    let once = |node: &Node<'_>| {
        let mut command = node.run_command();
        command.arg("--once");
        command
    };
    // Each has some patience with an agent that is about to end: all at once.
    let (host, pid) = (&cluster, node.pid());
    std::thread::scope(|scope| {
        for mut command in others.iter().map(once).chain(cleanups) {
            scope.spawn(move || {
                let ended = host.on(Host::NodeA, || run(&mut command));
                let message = message(&ended);
                assert!(message.contains(&format!("process {pid}")), "{command:?}: {message}");
            });
        }
    });
    assert_eq!(node.snapshot(), before, "refused, so nothing was touched");
    // It is the agent that is in the way, not something that it leaves.
    drop(node);
    let ended = others[0].run_to_end(&mut once(&others[0]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = others[0].run_to_end(&mut cleanup(elsewhere.path()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// A node whose state directory is not as it should be.
fn with_state_dir(cluster: &Cluster, prepare: impl FnOnce(&std::path::Path)) -> Node<'_> {
    let service = Service::new("plain", 1).endpoints("a1");
    let node = Node::new(cluster, Backend::Nftables, &[service]);
    prepare(node.state_path());
    node
}

#[test]
fn a_state_directory_that_others_may_write_is_closed_and_used() {
    let cluster = Cluster::start().unwrap();
    let node = with_state_dir(&cluster, |path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    });
    let mut command = node.run_command();
    let ended = node.run_to_end(command.arg("--once"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mode = std::fs::metadata(node.state_path()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o755, "{mode:o}");
    assert!(std::fs::read_dir(node.state_path()).unwrap().next().is_some(), "it is used");
}

#[test]
fn a_state_directory_of_another_user_is_refused_with_a_hint() {
    let cluster = Cluster::start().unwrap();
    let node = with_state_dir(&cluster, |path| {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    });
    let mut command = node.run_command();
    let ended = node.run_to_end(command.arg("--once"));
    let message = message(&ended);
    let path = node.state_path().display().to_string();
    assert!(message.contains(&format!("chown root {path}")), "{message}");
    assert!(message.contains("--state-dir"), "{message}");
    let names = std::fs::read_dir(&path).unwrap().flatten().map(|it| it.file_name());
    // The test's own token lies there.
    let written: Vec<_> = names.filter(|name| name != "admin.token").collect();
    assert!(written.is_empty(), "{written:?} is written to it");
}
