//! Calling CNI plugins on a machine, as a runtime does.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use telaio_testkit::machine::Machine;

/// Ours; `telaio` is the same where this is used from its tests.
pub const PLUGIN: &str = match option_env!("CARGO_BIN_EXE_telaio-cni") {
    Some(plugin) => plugin,
    None => "telaio",
};
/// Where Debian has the reference plugins.
pub const REFERENCE_DIR: &str = "/usr/lib/cni";

/// A call.
#[derive(Debug, Clone)]
pub struct Call {
    pub plugin: String,
    pub command: &'static str,
    pub container: String,
    pub netns: Option<String>,
    pub interface: String,
    pub config: Value,
    pub args: String,
}

impl Call {
    pub fn new(command: &'static str, container: &str, config: &Value) -> Self {
        Self {
            plugin: PLUGIN.to_owned(),
            command,
            container: container.to_owned(),
            netns: Some(format!("/run/netns/{container}")),
            interface: "eth0".to_owned(),
            config: config.clone(),
            args: String::new(),
        }
    }

    /// The command, ready to start.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.plugin);
        command
            .env_clear()
            .env("CNI_COMMAND", self.command)
            .env("CNI_CONTAINERID", &self.container)
            .env("CNI_IFNAME", &self.interface)
            .env("CNI_ARGS", &self.args)
            .env("CNI_PATH", REFERENCE_DIR)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(netns) = &self.netns {
            command.env("CNI_NETNS", netns);
        }
        command
    }

    /// Starts it and kills it after this time; whether it was still at work then.
    pub fn kill(&self, after: Duration) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let mut child = self.command().spawn().unwrap();
        // Killed already, it reads nothing.
        let _ = child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes());
        std::thread::sleep(after);
        let _ = child.kill();
        child.wait().unwrap().signal().is_some()
    }

    /// Makes it on a machine: the result, or the error as it was printed.
    pub fn make(&self, machine: &Machine) -> Result<Value, Value> {
        let call = self.clone();
        machine.run(move || call.make_here())
    }

    /// Makes it on the machine of the calling thread.
    pub fn make_here(&self) -> Result<Value, Value> {
        let mut child = self.command().spawn().unwrap();
        let text = self.config.to_string();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        let value = if out.trim().is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
        };
        if done.status.success() {
            Ok(value)
        } else {
            assert!(value["code"].is_u64(), "{out} {}", String::from_utf8_lossy(&done.stderr));
            Err(value)
        }
    }
}

/// A network of both families.
pub fn config() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "telaio-cni",
        "bridge": "cni0",
        "isGateway": true,
        "ipMasq": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    })
}

/// The same with something changed.
pub fn config_with(changes: Value) -> Value {
    let mut config = config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// A machine with these containers' namespaces.
pub fn machine(containers: &[&str]) -> Machine {
    let machine = Machine::start("cni");
    for container in containers {
        machine.sh(&format!("ip netns add {container}"));
    }
    machine
}

/// Everything that there is of ours, to compare.
pub fn inventory(machine: &Machine) -> String {
    machine.sh(
        "ip -o link | sed 's/^[0-9]*: //; s/@.*//; s/:.*//' | sort; ip route | sed 's/ linkdown//; s/ *$//'; ip -6 route | grep -v fe80 | sed 's/ linkdown//'; \
         nft list ruleset | sed 's/counter packets [0-9]* bytes [0-9]*//'; find /var/lib/telaio -type f 2>/dev/null | grep -v 'lock$\\|/last-' | sort; true",
    )
}

/// The same with all else that may be left: neighbours, forwarding entries, namespaces, limits.
pub fn whole_inventory(machine: &Machine) -> String {
    let more = machine.sh(
        "ip neigh show nud permanent | sort; bridge fdb show | grep -v '33:33:\\|01:00:5e:' | sort; ls /run/netns; tc qdisc show | grep 'tbf\\|ingress'; true",
    );
    inventory(machine) + &more
}
