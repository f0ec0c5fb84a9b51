//! The agent on node-a of a test cluster.
//!
//! A change of a manifest takes effect a moment later. [`Node::settle`] waits for that moment without
//! knowing anything of the agent: it changes a service of its own, after everything else, and waits
//! until packets to it find their way.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use telaio_testkit::guest;
use telaio_testkit::netns::{
    CLUSTER_CIDRS, Cluster, Family, Host, Outcome, Place, SERVER_PORT, SERVICE_CIDRS, Transport,
};
use tempfile::TempDir;

use crate::manifest::{Service, nodes_yaml};
use crate::support::{Ended, PATIENCE, get, put_token, run, telaio};

/// What programs the rules. Each is a column of the expectations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Nftables,
    IptablesNft,
    IptablesLegacy,
    /// Its tests run on a guest kernel.
    Ipvs,
}

impl Backend {
    /// Those that the kernel has on which we are.
    pub(crate) fn here() -> &'static [Self] {
        if guest::is_inside() {
            return &[Self::IptablesLegacy, Self::Ipvs];
        }
        &[Self::Nftables, Self::IptablesNft, Self::IptablesLegacy]
    }

    /// Its name in the expectations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::IptablesNft => "iptables-nft",
            Self::IptablesLegacy => "iptables-legacy",
            Self::Ipvs => "ipvs",
        }
    }

    pub(crate) fn args(self) -> &'static [&'static str] {
        match self {
            Self::Nftables => &["--backend=nftables"],
            Self::IptablesNft => &["--backend=iptables", "--iptables-flavor=nft"],
            Self::IptablesLegacy => &["--backend=iptables", "--iptables-flavor=legacy"],
            Self::Ipvs => &["--backend=ipvs"],
        }
    }
}

/// The agent's log so far.
#[derive(Clone, Default)]
struct Log(Arc<(Mutex<Lines>, Condvar)>);

#[derive(Default)]
struct Lines {
    all: Vec<String>,
    /// There will be no more.
    ended: bool,
}

impl Log {
    fn follow(reader: impl std::io::Read + Send + 'static) -> Self {
        let log = Self::default();
        let ours = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                ours.0.0.lock().unwrap().all.push(line);
                ours.0.1.notify_all();
            }
            ours.0.0.lock().unwrap().ended = true;
            ours.0.1.notify_all();
        });
        log
    }

    fn all(&self) -> String {
        self.0.0.lock().unwrap().all.join("\n")
    }

    /// The first entry that `wanted` takes; `None` if the log ends without one.
    fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.0.0.lock().unwrap();
        loop {
            let entries = lines.all.iter().filter_map(|line| serde_json::from_str(line).ok());
            if let Some(found) = entries.into_iter().find(|entry| wanted(entry)) {
                return Some(found);
            }
            if lines.ended {
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} in:\n{}", lines.all.join("\n"));
            lines = self.0.1.wait_timeout(lines, left).unwrap().0;
        }
    }
}

/// A running agent.
struct Running {
    child: Child,
    log: Log,
    admin: SocketAddr,
    metrics: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running brain.
pub(crate) struct Brain {
    child: Child,
    _state: TempDir,
}

impl Drop for Brain {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Node-a, with the manifests that its agent reads and the state that it keeps.
pub(crate) struct Node<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) backend: Backend,
    pub(crate) flags: Vec<String>,
    /// A brain that gives it the manifests, in place of the directory.
    pub(crate) brain: Option<SocketAddr>,
    manifests: TempDir,
    state: TempDir,
    running: Option<Running>,
    fences: Cell<u16>,
}

impl<'c> Node<'c> {
    /// A node with these services. Its agent is not started yet.
    pub(crate) fn new(cluster: &'c Cluster, backend: Backend, services: &[Service]) -> Self {
        let node = Self {
            cluster,
            backend,
            flags: Vec::new(),
            brain: None,
            manifests: tempfile::tempdir().unwrap(),
            state: tempfile::tempdir().unwrap(),
            running: None,
            fences: Cell::new(0),
        };
        put_token(node.state.path());
        node.write("nodes", &nodes_yaml());
        for service in services {
            node.apply(service);
        }
        node
    }

    /// A node with these services, programmed.
    pub(crate) fn started(cluster: &'c Cluster, backend: Backend, services: &[Service]) -> Self {
        let mut node = Self::new(cluster, backend, services);
        node.start();
        node.settle();
        node
    }

    /// Writes a manifest, at once: whoever looks in between must not find half of it.
    pub(crate) fn write(&self, name: &str, yaml: &str) {
        let hidden = self.manifests.path().join(format!(".{name}"));
        std::fs::write(&hidden, yaml).unwrap();
        std::fs::rename(&hidden, self.manifest(name)).unwrap();
    }

    pub(crate) fn apply(&self, service: &Service) {
        self.write(&service.name, &service.yaml());
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.manifest(name)).unwrap();
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.manifests.path().join(format!("{name}.yaml"))
    }

    /// `--source` for the manifests.
    pub(crate) fn source(&self) -> String {
        match self.brain {
            Some(address) => format!("--source=brain:http://{address}"),
            None => format!("--source=dir:{}", self.manifests.path().display()),
        }
    }

    /// Starts a brain on this node that gives the manifests to who asks at this address.
    pub(crate) fn start_brain(&self, address: SocketAddr) -> Brain {
        let state = tempfile::tempdir().unwrap();
        let mut command = telaio();
        command
            .args(["brain", "--admin-listen=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"])
            .arg("--healthz-bind-address=127.0.0.1:0")
            .arg(format!("--api-listen={address}"))
            .arg(format!("--source=dir:{}", self.manifests.path().display()))
            .arg(format!("--state-dir={}", state.path().display()))
            .arg(format!("--service-cidr={SERVICE_CIDRS}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = self.cluster.on(Host::NodeA, || command.spawn().unwrap());
        Brain { child, _state: state }
    }

    /// `--state-dir`.
    pub(crate) fn state_dir(&self) -> String {
        format!("--state-dir={}", self.state.path().display())
    }

    /// The state directory.
    pub(crate) fn state_path(&self) -> &Path {
        self.state.path()
    }

    /// `telaio run` on this node, to be started.
    pub(crate) fn run_command(&self) -> Command {
        let mut command = telaio();
        command
            .args(["run", "--node=node-a", "--log-format=json", "--admin-listen=127.0.0.1:0"])
            .args(["--metrics-bind-address=127.0.0.1:0", "--healthz-bind-address=127.0.0.1:0"])
            .args([self.source(), self.state_dir()])
            .args([
                format!("--service-cidr={SERVICE_CIDRS}"),
                format!("--cluster-cidr={CLUSTER_CIDRS}"),
            ])
            .args(self.backend.args())
            .args(&self.flags);
        command
    }

    /// Starts the agent and waits until it listens.
    pub(crate) fn start(&mut self) {
        assert!(self.running.is_none(), "one agent at a time");
        let mut command = self.run_command();
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.cluster.on(Host::NodeA, || command.spawn().unwrap());
        let log = Log::follow(child.stderr.take().unwrap());
        let Some(listening) = log.wait("listening", |entry| entry["message"] == "listening") else {
            let status = child.wait().unwrap();
            panic!("the agent ended with {status}:\n{}", log.all());
        };
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (admin, metrics) = (address("admin"), address("metrics"));
        self.running = Some(Running { child, log, admin, metrics });
    }

    /// Runs the agent with what should keep it from running, to its end.
    pub(crate) fn run_to_end(&self, command: &mut Command) -> Ended {
        self.cluster.on(Host::NodeA, || run(command))
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the agent runs")
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) {
        let mut running = self.running.take().expect("the agent runs");
        running.child.kill().unwrap();
        let status = running.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it ended before:\n{}", running.log.all());
    }

    /// Ends the agent as an operator does.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut running = self.running.take().expect("the agent runs");
        let kill = format!("kill -TERM {}", running.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let status = running.child.wait().unwrap();
        assert!(status.success(), "{status}:\n{}", running.log.all());
        status
    }

    /// The agent's process.
    pub(crate) fn pid(&self) -> u32 {
        self.running().child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.running().log.all()
    }

    /// The agent's metrics.
    pub(crate) fn metrics(&self) -> String {
        let address = self.running().metrics;
        self.cluster.on(Host::NodeA, || get(address, "/metrics")).1
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.metrics();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("no {name} in\n{page}"));
        value.trim().parse().unwrap()
    }

    /// The agent's status.
    pub(crate) fn status(&self) -> Value {
        self.admin("/api/v1/status")
    }

    /// What the agent's admin API says there.
    pub(crate) fn admin(&self, path: &str) -> Value {
        let address = self.running().admin;
        let (_, body) = self.cluster.on(Host::NodeA, || get(address, path));
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Runs a command that asks the agent to do something.
    pub(crate) fn manage(&self, args: &[&str]) -> Ended {
        let address = format!("--admin-listen={}", self.running().admin);
        let (args, state) = (args.to_vec(), self.state_dir());
        self.cluster.on(Host::NodeA, || run(telaio().args(&args).args([&address, &state])))
    }

    /// Waits until everything written so far is in the kernel, for both families.
    pub(crate) fn settle(&self) {
        self.fence();
        if self.backend == Backend::Ipvs {
            // It has no transactions, and the fence may be seen before the rest. One that comes later is
            // seen when all that was before is done.
            self.fence();
        }
    }

    fn fence(&self) {
        let port = self.fences.get() + 1;
        self.fences.set(port);
        self.write("zz-fence", &fence_yaml(port));
        for address in FENCE {
            let to = SocketAddr::new(address, port);
            self.wait_until("the fence", || {
                let outcome = self.cluster.ask_for(
                    Place::of(Host::NodeA),
                    to,
                    Transport::Tcp,
                    Duration::from_millis(40),
                );
                outcome.by().is_some()
            });
        }
    }

    /// Waits for what no event tells, while the agent runs.
    pub(crate) fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE / 3;
        while !holds() {
            if Instant::now() >= deadline {
                let status = self.running.is_some().then(|| self.status());
                panic!("no {what} in time; status: {status:#?}\n{}\n{}", self.rules(), self.log());
            }
            std::thread::sleep(Duration::from_millis(4));
        }
    }

    /// The output of a program on node-a; it must succeed.
    pub(crate) fn output(&self, program: &str, args: &[&str]) -> String {
        let ended = self.cluster.on(Host::NodeA, || run(Command::new(program).args(args)));
        assert_eq!(ended.code, Some(0), "{program} {args:?}: {ended:?}");
        ended.stdout
    }

    /// All rules on node-a, as independent programs print them.
    pub(crate) fn rules(&self) -> String {
        let print = |program: &str, args: &[&str]| {
            let ended = self.cluster.on(Host::NodeA, || run(Command::new(program).args(args)));
            format!("# {program}\n{}{}", ended.stdout, ended.stderr)
        };
        let mut text = print("nft", &["list", "ruleset"]);
        for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
            text += &print(program, &["-c"]);
        }
        if guest::is_inside() {
            text += &print("ipvsadm", &["-ln"]);
            text += &print("ipvsadm", &["-lcn"]);
            text += &print("ipset", &["save"]);
            text += &print("ip", &["-o", "address"]);
        }
        text
    }

    /// The rules of this node's backend, in parts of which each is changed as a whole, and in a form
    /// that is the same whenever the rules are: without counters, ports of the system's choice, the
    /// fence, and order where there is none.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, String> {
        let flavor = match self.backend {
            Backend::Nftables => {
                let text = self.output("nft", &["--stateless", "list", "ruleset"]);
                return BTreeMap::from([("nftables".to_owned(), comparable(&text))]);
            }
            Backend::IptablesNft => "nft",
            Backend::IptablesLegacy | Backend::Ipvs => "legacy",
        };
        let mut parts = BTreeMap::new();
        if self.backend == Backend::Ipvs {
            for (program, args) in IPVS_LISTINGS {
                parts.insert(program.to_owned(), comparable_lines(&self.output(program, args)));
            }
        }
        for program in ["iptables", "ip6tables"] {
            for table in ["nat", "filter", "mangle"] {
                let text = self.output(&format!("{program}-{flavor}-save"), &["-t", table]);
                parts.insert(format!("{program} {table}"), comparable(&text));
            }
        }
        parts
    }

    pub(crate) fn ask(&self, from: Place, to: SocketAddr, transport: Transport) -> Outcome {
        self.cluster.ask(from, to, transport)
    }
}

/// The device of the backend `ipvs`.
pub(crate) const IPVS_DEVICE: &str = "telaio-ipvs0";
/// What shows the state of the backend `ipvs` beside its rules.
const IPVS_LISTINGS: [(&str, &[&str]); 3] = [
    ("ipvsadm", &["-S", "-n"]),
    ("ipset", &["-o", "save", "list"]),
    ("ip", &["-o", "address", "show", "dev", IPVS_DEVICE]),
];

/// What is not the same whenever the rules are.
fn changes_by_itself(part: &str) -> bool {
    part.starts_with('#')
        || part.contains("redirect to")
        || part.contains("zz-fence")
        // Of the kernel's choice when a device is made.
        || part.contains("inet6 fe80:")
        || FENCE.iter().any(|address| part.contains(&address.to_string()))
}

/// A listing whose lines have no order, sorted.
fn comparable_lines(listing: &str) -> String {
    let lines = listing.lines().map(str::trim).filter(|line| !changes_by_itself(line));
    let mut lines: Vec<String> = lines.map(without_growth).collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Without the numbers that say how a set has grown, or which number a device has.
fn without_growth(line: &str) -> String {
    let line = line.split(" hashsize ").next().unwrap_or(line);
    line.split_once(": ").map_or(line, |(_, rest)| rest).to_owned()
}

/// A listing of rules as a sorted list of its smallest parts.
pub(crate) fn comparable(listing: &str) -> String {
    let mut parts: Vec<&str> = listing
        .lines()
        .map(|line| match line.split_once(" [") {
            // A chain's counters; in a rule it is an address.
            Some((chain, _counters)) if line.starts_with(':') => chain,
            _ => line,
        })
        .flat_map(|line| line.split([',', '{', '}']))
        .map(str::trim)
        .filter(|part| !part.is_empty() && !changes_by_itself(part))
        .collect();
    parts.sort_unstable();
    parts.join("\n")
}

/// What two snapshots do not have in common, for messages.
pub(crate) fn difference(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> String {
    let lines = |snapshot: &BTreeMap<String, String>| -> BTreeSet<String> {
        let each = snapshot.iter().map(|(name, text)| (name.clone(), text));
        each.flat_map(|(name, text)| {
            text.lines().map(move |line| format!("{name}: {line}")).collect::<Vec<_>>()
        })
        .collect()
    };
    let (before, after) = (lines(before), lines(after));
    let missing = before.difference(&after).map(|line| format!("- {line}\n"));
    let added = after.difference(&before).map(|line| format!("+ {line}\n"));
    missing.chain(added).collect()
}

/// The fence's addresses.
const FENCE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 96, 255, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0xff01)),
];

fn fence_yaml(port: u16) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: zz-fence, namespace: test}}\nspec:\n  \
         clusterIP: {v4}\n  clusterIPs: [\"{v4}\", \"{v6}\"]\n  ipFamilies: [IPv4, IPv6]\n  \
         ipFamilyPolicy: RequireDualStack\n  ports: [{{port: {port}}}]\n",
        v4 = FENCE[0],
        v6 = FENCE[1],
    );
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        text += &format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: zz-fence-{}\n  \
             namespace: test\n  labels: {{kubernetes.io/service-name: zz-fence}}\naddressType: {name}\n\
             ports: [{{port: {SERVER_PORT}}}]\nendpoints: [{{addresses: [\"{}\"], nodeName: node-a}}]\n",
            name.to_lowercase(),
            Host::A1.address(family),
        );
    }
    text
}

/// Whether something comes true: what an agent writes to its log reaches us a moment later.
pub(crate) fn comes_true(wanted: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !wanted() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}
