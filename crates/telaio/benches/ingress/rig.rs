//! Processes and files of a run, gone afterwards.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::peers::{Kind, nginx_conf};
use crate::{ours, usage};

/// The proxy's core, and that of load and backend.
pub(crate) const PROXY_CORE: &str = "0";
pub(crate) const LOAD_CORE: &str = "1";
/// Above whatever else the machine does. Without the right to it things run as they are.
const PRIORITY: &str = "-15";
/// How long anything may take to start, ten thousand Ingresses among them.
const START_TIME: Duration = Duration::from_mins(1);

/// A command on a core, before others.
pub(crate) fn pinned(core: &str, program: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", PRIORITY, "taskset", "-c", core]).arg(program);
    command.env("GOMAXPROCS", "1").stdin(Stdio::null());
    command
}

/// A process that ends with us.
pub(crate) struct Running {
    child: Child,
    pub(crate) http: u16,
    pub(crate) https: u16,
}

impl Running {
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        usage::cpu_ns(self.child.id())
    }

    /// Before everything else that the machine does, or as before. Only for a load that leaves room:
    /// whoever runs so is never interrupted.
    pub(crate) fn set_first(&self, first: bool) -> Result<()> {
        let how = if first { ["-f", "1"] } else { ["-o", "0"] };
        for pid in usage::family(self.child.id())? {
            let mut command = Command::new("chrt");
            command.args(["-a", how[0], "-p", how[1], &pid.to_string()]);
            // Without the right to it things run as they are.
            let _ = command.stderr(Stdio::null()).status().context("chrt is missing")?;
        }
        Ok(())
    }

    /// Of the process and of those that it started, each by itself.
    pub(crate) fn resident_mib(&self) -> Result<Vec<f64>> {
        usage::resident_mib(self.child.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Asked first: who has started others ends them.
        let asked =
            rustix::process::Pid::from_raw(self.child.id().cast_signed()).is_some_and(|pid| {
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).is_ok()
            });
        let end = Instant::now() + Duration::from_secs(5);
        while asked && Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all proxies of a run have in common.
pub(crate) struct Rig {
    directory: tempfile::TempDir,
    pub(crate) backend_port: u16,
}

/// A port that nobody has, for one who is started soon.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Rig {
    pub(crate) fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let at = directory.path();
        // Whoever gives up its rights must still find its files.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(at, open)?;
        fs::create_dir_all(at.join("www"))?;
        let body: Vec<u8> = (0..65_536_u32).map(|number| (number % 251) as u8).collect();
        fs::write(at.join("www/64k"), body)?;
        fs::write(at.join("www/cached"), vec![b'c'; 1024])?;
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::write(at.join("cert.pem"), &certificate)?;
        fs::write(at.join("key.pem"), &key)?;
        fs::write(at.join("both.pem"), format!("{certificate}{key}"))?;
        Ok(Self { directory, backend_port: free_port()? })
    }

    /// A file or directory of the run.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file; `DIR` in its text is the run's directory.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<String> {
        let text = text.replace("DIR", &self.directory.path().display().to_string());
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// The backend, on the load's core.
    pub(crate) fn backend(&self) -> Result<Running> {
        let port = self.backend_port;
        let text = nginx_conf(
            "backend",
            &format!(
                "server {{ listen 127.0.0.1:{port} backlog=4096; location = /small {{ return 200 'hello, this is a small answer\\n'; }}
                 location = /cached {{ root DIR/www; add_header Cache-Control 'max-age=3600'; }} location / {{ root DIR/www; }} }}"
            ),
        );
        let file = self.write("backend.conf", &text)?;
        let mut command = pinned(LOAD_CORE, Path::new("nginx"));
        command.args(["-c", &file]);
        self.start(command, "backend", (port, 0))
    }

    /// A proxy on its core; `None` if it is not installed.
    pub(crate) fn proxy(&self, kind: Kind, routes: usize, cache: bool) -> Result<Option<Running>> {
        let ports = (free_port()?, free_port()?);
        if kind == Kind::Ours {
            let manifests = ours::write_manifests(self, routes, cache)?;
            let source = format!("dir:{}", manifests.display());
            return self.ours(&source, ports).map(Some);
        }
        let Some(program) = kind.program() else { return Ok(None) };
        let mut command = pinned(PROXY_CORE, &program);
        command.args(kind.args(self, ports, cache)?);
        self.start(command, kind.name(), ports).map(Some)
    }

    /// Ours, with a source.
    pub(crate) fn ours(&self, source: &str, ports: (u16, u16)) -> Result<Running> {
        let mut command = pinned(PROXY_CORE, Path::new(ours::PROGRAM));
        command.args(ours::args(source, &self.path(&format!("state-{}", ports.0)), ports));
        self.start(command, "telaio", ports)
    }

    fn start(
        &self,
        mut command: Command,
        name: &str,
        (http, https): (u16, u16),
    ) -> Result<Running> {
        let log = self.path(&format!("{name}-{http}.log"));
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let child = command.spawn().context("nice and taskset are needed")?;
        let mut running = Running { child, http, https };
        let end = Instant::now() + START_TIME;
        while !matches!(get(http, "host-0.example.com", "/small"), Ok(200)) {
            let said = || fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = running.child.try_wait()? {
                bail!("{name} ended with {status}: {}", said());
            }
            if Instant::now() > end {
                bail!("{name} does not serve on {http}: {}", said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }
}

/// One request on a connection of its own; the status.
pub(crate) fn get(port: u16, host: &str, path: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    ask(&mut stream, host, path)
}

/// One request on a connection that stays; the status. Answers must fit into one read.
pub(crate) fn ask(stream: &mut TcpStream, host: &str, path: &str) -> Result<u16> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let mut answer = [0; 16 << 10];
    let count = stream.read(&mut answer)?;
    let text = String::from_utf8_lossy(&answer[..count]);
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no answer")
}

/// Takes the load's core, a priority above others and room for many connections for ourselves.
pub(crate) fn prefer_us() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
    use rustix::thread::{CpuSet, sched_setaffinity};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let _ = setpriority_process(None, -15);
    let mut core = CpuSet::new();
    core.set(LOAD_CORE.parse()?);
    sched_setaffinity(None, &core).context("two cores are needed")
}
