//! Calling plugins, and what that costs.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Wall and CPU time from a moment on.
pub(crate) struct Meter {
    start: Instant,
    cpu: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), cpu: children_cpu() }
    }

    pub(crate) fn wall(&self) -> Duration {
        self.start.elapsed()
    }

    /// Of children that have ended since.
    pub(crate) fn cpu(&self) -> Duration {
        children_cpu().saturating_sub(self.cpu)
    }
}

/// The time of all children that have ended, in hundredths of a second: divide it over many.
fn children_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[13].parse::<u64>().unwrap() + fields[14].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

pub(crate) fn config() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "bench",
        "bridge": "cni0",
        "isGateway": true,
        "ipMasq": true,
        "ipam": {"type": "host-local", "subnet": "10.88.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
    })
}

/// Ours.
pub(crate) struct Plugin {
    pub(crate) program: PathBuf,
    pub(crate) config: Value,
}

/// What a call cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

impl Plugin {
    pub(crate) fn call(&self, command: &str, number: usize, port: u16) -> Cost {
        let mut config = self.config.clone();
        config["type"] = "telaio-cni".into();
        config["runtimeConfig"] =
            json!({"portMappings": [{"hostPort": port, "containerPort": 80}]});
        run_measured(&mut plugin(self.program.to_str().unwrap(), command, number), &config)
    }

    pub(crate) fn collect(&self, valid: Value) -> Cost {
        let mut config = self.config.clone();
        config["cniVersion"] = "1.1.0".into();
        config["cni.dev/valid-attachments"] = valid;
        run_measured(&mut plugin(self.program.to_str().unwrap(), "GC", 0), &config)
    }
}

/// Runs a program of one thread. Its CPU time is read when it has ended and nobody has asked for its end yet: then the kernel
/// still tells it, to the nanosecond.
pub(crate) fn run_measured(command: &mut Command, input: &Value) -> Cost {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that reads nothing may have ended already.
    let _ = stdin.write_all(input.to_string().as_bytes());
    drop(stdin);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let at = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", child.id())).unwrap();
    while !at("stat").rsplit(')').next().unwrap().trim_start().starts_with('Z') {
        std::thread::yield_now();
    }
    let wall = start.elapsed();
    let cpu = at("schedstat").split_whitespace().next().unwrap().parse().unwrap();
    assert!(child.wait().unwrap().success(), "{command:?}: {text}");
    Cost { wall, cpu: Duration::from_nanos(cpu) }
}

/// The reference chain: interface first, then ports; backwards on DEL.
pub(crate) fn reference(command: &str, number: usize, port: u16) {
    let mut bridge = config();
    bridge["type"] = "bridge".into();
    bridge["ipam"]["dataDir"] = "/run/host-local".into();
    let mut portmap = json!({
        "cniVersion": "1.0.0",
        "name": "bench",
        "type": "portmap",
        "snat": true,
        "runtimeConfig": {"portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]},
    });
    let kept = format!("/run/result-{number}");
    if command == "ADD" {
        let result = run("/usr/lib/cni/bridge", command, number, &bridge);
        std::fs::write(&kept, &result).unwrap();
        portmap["prevResult"] = serde_json::from_str(&result).unwrap();
        run("/usr/lib/cni/portmap", command, number, &portmap);
    } else {
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&kept).unwrap()).unwrap();
        portmap["prevResult"] = result.clone();
        run("/usr/lib/cni/portmap", command, number, &portmap);
        bridge["prevResult"] = result;
        run("/usr/lib/cni/bridge", command, number, &bridge);
    }
}

fn plugin(program: &str, command: &str, number: usize) -> Command {
    let mut call = Command::new(program);
    call.env_clear()
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", format!("m{number}"))
        .env("CNI_NETNS", format!("/run/netns/m{number}"))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/usr/lib/cni")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    call
}

fn run(program: &str, command: &str, number: usize, config: &Value) -> String {
    let mut call = plugin(program, command, number);
    let mut child = call.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{program} {command} {number}: {text}");
    text
}
