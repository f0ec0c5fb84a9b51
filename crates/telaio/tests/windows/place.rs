//! A Windows machine for one test: manifests, a state directory, an HNS in a directory, and the agent.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take before a test calls it missing. Long, for machines under load.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(50);
/// Where health checks of a service of ours are answered.
pub(crate) const HEALTH_CHECK_PORT: u16 = 31_777;
const NETWORK: &str = "07070707-0707-0707-0707-070707070707";
/// A service with a policy Local, whose pod is the one that this node has.
const CHECKED: &str = "
apiVersion: v1
kind: Service
metadata: {name: checked, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.66
  externalTrafficPolicy: Local
  healthCheckNodePort: 31777
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30066}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.66}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: checked-1, namespace: shop, labels: {kubernetes.io/service-name: checked}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: loom-a}]
";

/// A load balancer of somebody else.
pub(crate) fn foreign_load_balancer() -> Value {
    json!({
        "ID": "11111111-2222-3333-4444-555555555555",
        "HostComputeEndpoints": ["00000000-0000-0000-0000-00000000000a"],
        "FrontendVIPs": ["10.96.9.9"],
        "PortMappings": [{"Protocol": 17, "InternalPort": 7, "ExternalPort": 7}],
        "SchemaVersion": {"Major": 2, "Minor": 0},
    })
}

/// What a command that ended has said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// One at a time: wine is slow to start programs, and ports of health checks are the machine's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A machine.
pub(crate) struct Place {
    directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    /// With the examples as manifests, and an HNS with a network and a pod.
    pub(crate) fn new() -> Self {
        let place = Self::bare();
        place.put_objects(&Self::ground());
        place.write("checked.yaml", CHECKED);
        place
    }

    /// Without HNS: the stand-in says that it is not running.
    pub(crate) fn without_hns() -> Self {
        let place = Self::bare();
        place.put_objects(&json!({"running": false}));
        place
    }

    fn bare() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Self { directory: tempfile::tempdir().unwrap(), _alone: alone };
        for name in ["manifests", "hns", "state", "data"] {
            std::fs::create_dir(place.directory(name)).unwrap();
        }
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        for entry in std::fs::read_dir(examples).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "yaml") {
                let to = place.directory("manifests").join(path.file_name().unwrap());
                std::fs::copy(&path, to).unwrap();
            }
        }
        place
    }

    /// What an HNS has before we come: the pods' network, and a pod.
    pub(crate) fn ground() -> Value {
        let version = json!({"Major": 2, "Minor": 0});
        json!({
            "version": {"Major": 16, "Minor": 0},
            "networks": [{
                "ID": NETWORK, "Name": "pods", "Type": "L2Bridge", "SchemaVersion": version,
            }],
            "endpoints": [{
                "ID": "00000000-0000-0000-0000-00000000000a", "Name": "pod",
                "HostComputeNetwork": NETWORK, "SchemaVersion": version,
                "IpConfigurations": [{"IpAddress": "10.244.1.10", "PrefixLength": 24}],
            }],
        })
    }

    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn source(&self) -> String {
        format!("--source=dir:{}", self.directory("manifests").display())
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory("manifests").join(name), text).unwrap();
    }

    /// Replaces a text in a manifest that has it.
    pub(crate) fn change(&self, name: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.directory("manifests").join(name)).unwrap();
        assert!(text.contains(from), "{text}");
        self.write(name, &text.replace(from, to));
    }

    /// What environment a program of this machine gets.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("TELAIO_STANDIN", self.directory("hns")), ("ProgramData", self.directory("data"))]
    }

    /// The program.
    pub(crate) fn telaio(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_telaio"));
        command.env_remove("TELAIO_TEST_DIST").envs(self.environment());
        command
    }

    /// `telaio run` by the manifests, on ports of the system's choice.
    pub(crate) fn run_command(&self) -> Command {
        let mut command = self.telaio();
        command.arg("run").args(self.run_options());
        command
    }

    pub(crate) fn run_options(&self) -> Vec<String> {
        let mut options = vec![
            self.source(),
            "--node=loom-a".to_owned(),
            format!("--state-dir={}", self.directory("state").display()),
            "--log-format=json".to_owned(),
        ];
        for flag in ["admin-listen", "metrics-bind-address", "healthz-bind-address"] {
            options.push(format!("--{flag}=127.0.0.1:0"));
        }
        options
    }

    fn objects_file(&self) -> PathBuf {
        self.directory("hns").join("objects.json")
    }

    /// What is in HNS before anything starts.
    pub(crate) fn put_objects(&self, objects: &Value) {
        std::fs::write(self.objects_file(), objects.to_string()).unwrap();
    }

    /// What is in HNS.
    fn objects(&self) -> Value {
        // It may be replaced at this moment.
        eventually("HNS's objects", || {
            serde_json::from_slice(&std::fs::read(self.objects_file()).ok()?).ok()
        })
    }

    /// When HNS was last written.
    pub(crate) fn written(&self) -> SystemTime {
        std::fs::metadata(self.objects_file()).unwrap().modified().unwrap()
    }

    /// Where load balancers answer: address, port and protocol unless that is TCP.
    pub(crate) fn places(&self) -> BTreeSet<String> {
        let objects = self.objects();
        let balancers = objects["load_balancers"].as_array().cloned().unwrap_or_default();
        let of = |document: &Value| {
            let vip = document["FrontendVIPs"][0].as_str().unwrap_or("0.0.0.0").to_owned();
            let port = &document["PortMappings"][0];
            let protocol = match port["Protocol"].as_u64() {
                Some(6) => String::new(),
                other => format!("/{}", other.unwrap()),
            };
            format!("{vip}:{}{protocol}", port["ExternalPort"])
        };
        balancers.iter().map(of).collect()
    }

    /// The addresses of endpoints.
    pub(crate) fn endpoints(&self) -> BTreeSet<String> {
        let objects = self.objects();
        let endpoints = objects["endpoints"].as_array().cloned().unwrap_or_default();
        let of = |it: &Value| it["IpConfigurations"][0]["IpAddress"].as_str().unwrap().to_owned();
        endpoints.iter().map(of).collect()
    }

    /// Gives the stand-in of a running agent a command; its report.
    pub(crate) fn ask(&self, command: &Value) -> Value {
        let answer = self.directory("hns").join("answer.json");
        drop(std::fs::remove_file(&answer));
        self.tell(command);
        eventually("an answer of the stand-in", || {
            serde_json::from_slice(&std::fs::read(&answer).ok()?).ok()
        })
    }

    /// Likewise, without waiting.
    pub(crate) fn tell(&self, command: &Value) {
        let draft = self.directory("hns").join("draft");
        std::fs::write(&draft, command.to_string()).unwrap();
        std::fs::rename(draft, self.directory("hns").join("command.json")).unwrap();
    }
}

/// What `wanted` gives, as soon as it gives something.
pub(crate) fn eventually<T>(what: &str, mut wanted: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = wanted() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what}");
        std::thread::sleep(PAUSE);
    }
}

/// What a server answers; none if it does not.
pub(crate) fn try_get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// What a server answers that has to answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    try_get(address, path).unwrap_or_else(|| panic!("no answer at {address}{path}"))
}

/// A running agent. Killed, if it still runs, when the test ends.
pub(crate) struct Agent<'a> {
    place: &'a Place,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) admin: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) healthz: SocketAddr,
}

impl<'a> Agent<'a> {
    /// Starts it and waits until it listens.
    pub(crate) fn start(place: &'a Place) -> Self {
        Self::start_with(place, &[], None)
    }

    /// With further flags; its log is in this file.
    pub(crate) fn start_with(place: &'a Place, flags: &[String], log_file: Option<&Path>) -> Self {
        let mut command = place.run_command();
        command.args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (ours, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                ours.lock().unwrap().push(line);
            }
        });
        let lines = || match log_file {
            None => log.lock().unwrap().clone(),
            Some(file) => {
                let text = std::fs::read_to_string(file).unwrap_or_default();
                text.lines().map(str::to_owned).collect()
            }
        };
        let listening: Value = eventually("agent that listens", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the agent ended with {status}: {:?}", lines());
            }
            let mut all = lines().into_iter().flat_map(|line| serde_json::from_str(&line));
            all.find(|entry: &Value| entry["message"] == "listening")
        });
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (admin, metrics) = (address("admin"), address("metrics"));
        Self { place, child, log, admin, metrics, healthz: address("healthz") }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for something to become so.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            let log = || self.log.lock().unwrap().join("\n");
            assert!(Instant::now() < deadline, "not {what}; the log:\n{}", log());
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends Ctrl-Break; the exit code.
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        self.place.tell(&json!("Interrupt"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            let log = || self.log.lock().unwrap().join("\n");
            assert!(Instant::now() < deadline, "it does not end; the log:\n{}", log());
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends it without a word to it.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
