//! Runs the real binary, on ports of the system's choice and in directories of its own.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

pub(crate) mod authority;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test calls it missing. Long, for machines under load.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The examples of the repository.
pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap()
}

/// The source argument for a directory.
pub(crate) fn dir_source(path: &Path) -> String {
    format!("--source=dir:{}", path.display())
}

/// The binary, free of what the caller's environment says to it. Unless a test says otherwise it only
/// prints: nothing may touch the machine's own rules.
pub(crate) fn telaio() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telaio"));
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("TELAIO_") {
            command.env_remove(key);
        }
    }
    command.env_remove("KUBERNETES_SERVICE_HOST").stdin(Stdio::null());
    command.env("TELAIO_BACKEND", "view").env("TELAIO_ADMIN_ENDED_GRACE", "1s");
    command
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
    let output = command.output().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the binary with these arguments to its end.
pub(crate) fn run_args<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    run(telaio().args(args))
}

/// A directory of manifests that a test changes.
pub(crate) struct Manifests(pub(crate) TempDir);

impl Manifests {
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn of_examples() -> Self {
        let manifests = Self::empty();
        for entry in std::fs::read_dir(examples()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "yaml") {
                std::fs::copy(&path, manifests.0.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        manifests
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    pub(crate) fn source(&self) -> String {
        dir_source(self.0.path())
    }
}

/// Lines as they come from a running process.
#[derive(Clone, Default)]
struct Lines(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Lines {
    fn follow(reader: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let ours = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                ours.0.0.lock().unwrap().push(line);
                ours.0.1.notify_all();
            }
        });
        lines
    }

    fn all(&self) -> Vec<String> {
        self.0.0.lock().unwrap().clone()
    }

    /// What `wanted` makes of the first line that it takes.
    fn wait<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> T {
        self.wait_all(what, |lines| lines.iter().find_map(|line| wanted(line)))
    }

    /// What `wanted` makes of all lines so far, as soon as it makes something of them.
    fn wait_all<T>(&self, what: &str, wanted: impl Fn(&[String]) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.0.0.lock().unwrap();
        loop {
            if let Some(found) = wanted(&lines) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} in:\n{}", lines.join("\n"));
            lines = self.0.1.wait_timeout(lines, left).unwrap().0;
        }
    }
}

/// The token of the admin API of all agents here.
pub(crate) const TOKEN: &str = "the-token-of-all-agents-in-tests";

/// The number that an action has in the audit log, of what it said as JSON.
pub(crate) fn id_of(done: &Value) -> String {
    done["id"].as_str().unwrap().to_owned()
}

/// Puts it where an agent with this state directory finds it.
pub(crate) fn put_token(state_dir: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(state_dir.join("admin.token")).unwrap();
    file.write_all(TOKEN.as_bytes()).unwrap();
}

/// A running agent or brain. Killed, if it still runs, when the test ends.
pub(crate) struct Agent {
    child: Child,
    out: Lines,
    log: Lines,
    pub(crate) state: TempDir,
    pub(crate) admin: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) healthz: SocketAddr,
}

impl Agent {
    /// Starts `telaio` with these arguments and waits until it listens.
    pub(crate) fn start(args: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        Self::start_with_state(args, state)
    }

    pub(crate) fn start_with_state(args: &[&str], state: TempDir) -> Self {
        put_token(state.path());
        let mut child = telaio()
            .args(args)
            .arg(format!("--state-dir={}", state.path().display()))
            .args(["--log-format=json", "--admin-listen=127.0.0.1:0"])
            .args(["--metrics-bind-address=127.0.0.1:0", "--healthz-bind-address=127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = Lines::follow(child.stdout.take().unwrap());
        let log = Lines::follow(child.stderr.take().unwrap());
        let listening = log.wait("listening", |line| message(line, "listening"));
        let address = |name: &str| listening[name].as_str().unwrap().parse().unwrap();
        let (admin, metrics, healthz) = (address("admin"), address("metrics"), address("healthz"));
        Self { child, out, log, state, admin, metrics, healthz }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a log entry of this message.
    pub(crate) fn wait_log(&self, text: &str) -> Value {
        self.log.wait(text, |line| message(line, text))
    }

    /// The lines of standard output so far.
    pub(crate) fn out_lines(&self) -> Vec<String> {
        self.out.all()
    }

    /// Waits for a line of standard output that contains this.
    pub(crate) fn wait_out(&self, text: &str) {
        self.out.wait(text, |line| line.contains(text).then_some(()));
    }

    /// Waits for the first line of standard output that contains `text` after one that is `start`.
    pub(crate) fn wait_out_after(&self, start: &str, text: &str) -> String {
        self.out.wait_all(text, |lines| {
            let after = lines.iter().skip_while(|line| line.trim() != start);
            after.skip(1).find(|line| line.contains(text)).cloned()
        })
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn end(self) -> (ExitStatus, String) {
        self.signal("TERM");
        self.ended()
    }

    /// Waits for the end, of one that ends by itself.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, self.log.all().join("\n"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The entry, if the log line has this message.
fn message(line: &str, text: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(line).ok()?;
    (value["message"] == text).then_some(value)
}

/// Asks until the answer is as wanted, for what changes a moment after its cause.
pub(crate) fn ask_until(
    address: SocketAddr,
    path: &str,
    wanted: impl Fn(u16, &str) -> bool,
) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, body) = get(address, path);
        if wanted(status, &body) {
            return body;
        }
        assert!(Instant::now() < deadline, "{path} still answers {status}: {body}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Status and body of an HTTP answer.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    send(address, TOKEN, path, None)
}

/// The same with a token of the caller's choice; with a body of JSON it is a POST.
pub(crate) fn send(
    address: SocketAddr,
    token: &str,
    path: &str,
    json: Option<&str>,
) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (method, body) = json.map_or(("GET", ""), |json| ("POST", json));
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
