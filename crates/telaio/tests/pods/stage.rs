//! Two nodes on one cable, each with an agent, and the manifests that both read.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::net::{Node, lan};

const TELAIO: &str = env!("CARGO_BIN_EXE_telaio");
/// How long anything may take before a test calls it missing. Long, for machines under load.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often it is looked.
const PAUSE: Duration = Duration::from_millis(100);

/// A node with its agent.
pub(crate) struct Agent {
    pub(crate) node: Node,
    child: Option<Child>,
    brain: Option<Child>,
    dir: TempDir,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
        if let Some(mut brain) = self.brain.take() {
            let _ = brain.kill();
            let _ = brain.wait();
        }
    }
}

impl Agent {
    fn new(node: Node) -> Self {
        Self { node, child: None, brain: None, dir: tempfile::tempdir().unwrap() }
    }

    /// A file or directory of this node's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the agent, with further arguments.
    pub(crate) fn start(&mut self, manifests: &str, planes: &str, more: &[&str]) {
        self.start_from(&format!("dir:{manifests}"), planes, more);
    }

    /// The same from any source.
    pub(crate) fn start_from(&mut self, source: &str, planes: &str, more: &[&str]) {
        let (bin, conf) = (self.path("cni-bin"), self.path("cni-conf"));
        let log = fs::File::create(self.path("log")).unwrap();
        let mut command = command();
        command
            .args(["run", "--node", &self.node.name, "--planes", planes, "--backend", "nftables"])
            .arg(format!("--source={source}"))
            .arg(format!("--cni-bin-dir={}", bin.display()))
            .arg(format!("--cni-conf-dir={}", conf.display()))
            .args(more)
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(self.node.machine.run(move || command.spawn().unwrap()));
        self.wait("the first sync", |status| status["healthy"] == true);
    }

    /// Ends it as an operator would, also where a test that failed has left it stopped.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let id = child.id().to_string();
            for signal in ["TERM", "CONT"] {
                let _ = Command::new("kill").args(["-s", signal, &id]).status();
            }
            let _ = child.wait();
        }
    }

    /// Ends it at once, whatever it is doing.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts the agent without waiting for it.
    pub(crate) fn launch(&mut self, manifests: &str) {
        let mut command = command();
        let (bin, conf) = (self.path("cni-bin"), self.path("cni-conf"));
        command
            .args(["run", "--node", &self.node.name, "--planes=pods", "--take-over-cni"])
            .arg(format!("--source=dir:{manifests}"))
            .arg(format!("--cni-bin-dir={}", bin.display()))
            .arg(format!("--cni-conf-dir={}", conf.display()))
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.path("log")).unwrap());
        self.child = Some(self.node.machine.run(move || command.spawn().unwrap()));
    }

    /// Starts `telaio cleanup` and kills it after this time, unless it has ended.
    pub(crate) fn kill_cleanup(&self, after: Duration) {
        let (bin, conf) = (self.path("cni-bin"), self.path("cni-conf"));
        self.node.machine.run(move || {
            let mut command = command();
            command.arg("cleanup").arg(format!("--cni-bin-dir={}", bin.display()));
            command.arg(format!("--cni-conf-dir={}", conf.display()));
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(after);
            let _ = child.kill();
            child.wait().unwrap();
        });
    }

    /// Starts a brain on this machine, for agents to follow.
    pub(crate) fn start_brain(&mut self, manifests: &str) {
        let mut command = command();
        let log = fs::File::create(self.path("log")).unwrap();
        command
            .args(["brain", "--api-listen=127.0.0.1:12090", "--admin-listen=127.0.0.1:9901"])
            .args(["--metrics-bind-address=127.0.0.1:0", "--healthz-bind-address=127.0.0.1:0"])
            .arg(format!("--source=dir:{manifests}"))
            .stdout(Stdio::null())
            .stderr(log);
        self.brain = Some(self.node.machine.run(move || command.spawn().unwrap()));
    }

    /// Sends it a signal, as to stop it in its tracks.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    }

    /// What `telaio status` says; nothing while nobody answers.
    pub(crate) fn status(&self) -> Value {
        let done = self.node.machine.run(|| command().args(["status", "--output=json"]).output());
        serde_json::from_slice(&done.unwrap().stdout).unwrap_or_default()
    }

    /// What its admin API says there, with its own token.
    pub(crate) fn admin(&self, path: &str) -> Value {
        let url = format!("http://127.0.0.1:9900{path}");
        let done = self.node.machine.run(move || {
            let token = fs::read_to_string("/var/lib/telaio/admin.token").unwrap_or_default();
            let header = format!("Authorization: Bearer {}", token.trim());
            Command::new("curl").args(["-s", "--max-time", "20", "-H", &header, &url]).output()
        });
        serde_json::from_slice(&done.unwrap().stdout).unwrap_or_default()
    }

    /// Waits until the status is as it should be.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
        eventually(what, || is_so(&self.status()), || format!("{}\n{}", self.status(), log()));
    }

    /// What `telaio cleanup` prints.
    pub(crate) fn cleanup(&self) -> String {
        let (bin, conf) = (self.path("cni-bin"), self.path("cni-conf"));
        let done = self.node.machine.run(move || {
            let mut command = command();
            command.arg("cleanup").arg(format!("--cni-bin-dir={}", bin.display()));
            command.arg(format!("--cni-conf-dir={}", conf.display())).output().unwrap()
        });
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
        text
    }
}

/// The binary, free of what the caller's environment says to it.
fn command() -> Command {
    let mut command = Command::new(TELAIO);
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("TELAIO_") {
            command.env_remove(key);
        }
    }
    command.env_remove("KUBERNETES_SERVICE_HOST").stdin(Stdio::null());
    command
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool, state: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not come to be:\n{}", state());
        std::thread::sleep(PAUSE);
    }
}

/// The nodes `node-a` and `node-b`, and the manifests of their cluster.
pub(crate) struct Stage {
    pub(crate) a: Agent,
    pub(crate) b: Agent,
    manifests: TempDir,
    /// What both hang on; it has addresses, too, and so is somebody outside.
    pub(crate) switch: telaio_testkit::machine::Machine,
}

impl Stage {
    /// Both nodes, without agents yet.
    pub(crate) fn new() -> Self {
        let (a, b) = (Node::bare("node-a", 1), Node::bare("node-b", 2));
        let switch = lan(&[&a, &b]);
        let stage = Self {
            a: Agent::new(a),
            b: Agent::new(b),
            manifests: tempfile::tempdir().unwrap(),
            switch,
        };
        stage.write("node-a", &node("node-a", 1));
        stage.write("node-b", &node("node-b", 2));
        stage
    }

    /// Both nodes with agents that manage these planes.
    pub(crate) fn start(planes: &str, more: &[&str]) -> Self {
        let mut stage = Self::new();
        let manifests = stage.manifests();
        stage.a.start(&manifests, planes, more);
        stage.b.start(&manifests, planes, more);
        stage
    }

    /// The directory of the manifests.
    pub(crate) fn manifests(&self) -> String {
        self.manifests.path().display().to_string()
    }

    /// Writes a manifest; `settle` tells when it has been read.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.manifests.path().join(format!("{name}.yaml"));
        let new = self.manifests.path().join(format!(".{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// Removes a manifest.
    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.manifests.path().join(format!("{name}.yaml"))).unwrap();
    }
}

/// A Node with the networks 10.77.N.0/24 and fd77:N::/64.
pub(crate) fn node(name: &str, number: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
         spec: {{podCIDRs: ['10.77.{number}.0/24', 'fd77:{number}::/64']}}\n\
         status: {{addresses: [{{type: InternalIP, address: 192.168.5.{number}}}, \
         {{type: InternalIP, address: 'fd05::{number}'}}]}}\n"
    )
}

/// A Pod on a node, with the addresses that the instance of this number has.
pub(crate) fn pod(name: &str, node: u8, host: u8, app: &str) -> String {
    let node_name = if node == 1 { "node-a" } else { "node-b" };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: default\n  \
         labels: {{app: {app}}}\n  annotations: {{telaio.dev/ip: '10.77.{node}.{host},fd77:{node}::{host}'}}\n\
         spec:\n  nodeName: {node_name}\n  containers: [{{name: c, ports: [{{containerPort: 8080}}]}}]\n"
    )
}
