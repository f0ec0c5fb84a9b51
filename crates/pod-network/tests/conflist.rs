//! Debian's own list of plugins for podman, with one word changed: the bridge plugin's `type`.
//!
//! The list is run as a runtime runs it, plugin after plugin, and by podman itself; ports, firewall and tuning stay the reference
//! plugins'.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::cni::{Call, PLUGIN, REFERENCE_DIR, machine};
use support::{Wire, ask_at, serve_at};
use telaio_testkit::machine::Machine;

/// As the package `podman` installs it.
const DEBIANS: &str = "/etc/cni/net.d/87-podman-bridge.conflist";

/// The list as it is.
fn debians() -> Value {
    let text = std::fs::read_to_string(DEBIANS).expect("the package podman is installed");
    serde_json::from_str(&text).unwrap()
}

/// The list with one word changed.
fn ours() -> Value {
    let mut list = debians();
    let types = |list: &Value| -> Vec<String> {
        let plugins = list["plugins"].as_array().unwrap().iter();
        plugins.map(|it| it["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(types(&list), ["bridge", "portmap", "firewall", "tuning"], "as Debian has it");
    list["plugins"][0]["type"] = "telaio-cni".into();
    list
}

/// What a runtime asks for that publishes a port.
fn publishing() -> Value {
    json!({"portMappings": [{"hostPort": 8088, "containerPort": 80, "protocol": "tcp"}]})
}

/// A list of plugins, called as libcni does: each is given what the one before it answered, and capabilities only if it names them;
/// backwards on DEL.
struct List<'a> {
    machine: &'a Machine,
    written: Value,
    runtime: Value,
}

impl List<'_> {
    fn call(&self, command: &'static str, container: &str, at: usize, previous: &Value) -> Call {
        let mut config = self.written["plugins"][at].clone();
        for key in ["cniVersion", "name"] {
            config[key] = self.written[key].clone();
        }
        if !previous.is_null() {
            config["prevResult"] = previous.clone();
        }
        for (capability, value) in self.runtime.as_object().unwrap() {
            if config["capabilities"][capability] == true {
                config["runtimeConfig"][capability] = value.clone();
            }
        }
        let plugin = config["type"].as_str().unwrap().to_owned();
        let mut call = Call::new(command, container, &config);
        if plugin != "telaio-cni" {
            call.plugin = format!("{REFERENCE_DIR}/{plugin}");
        }
        call
    }

    fn plugins(&self) -> std::ops::Range<usize> {
        0..self.written["plugins"].as_array().unwrap().len()
    }

    fn add(&self, container: &str) -> Value {
        let mut result = Value::Null;
        for at in self.plugins() {
            result = self.call("ADD", container, at, &result).make(self.machine).unwrap();
        }
        result
    }

    /// What each plugin says.
    fn check(&self, container: &str, result: &Value) -> Vec<Result<Value, Value>> {
        let call = |at| self.call("CHECK", container, at, result).make(self.machine);
        self.plugins().map(call).collect()
    }

    fn delete(&self, container: &str, result: &Value) {
        for at in self.plugins().rev() {
            self.call("DEL", container, at, result).make(self.machine).unwrap();
        }
    }
}

/// Everything that plugins leave: ours by files, links, routes and rules, the others by rules and files of their own.
fn everything(machine: &Machine) -> String {
    let links = "ip -o link | sed 's/^[0-9]*: //; s/@.*//; s/:.*//' | sort; ip route | sed 's/ linkdown//; s/ *$//' | sort; ip neigh show nud permanent";
    let rules = "nft list ruleset | sed 's/counter packets [0-9]* bytes [0-9]*//' | sort";
    let files = "find /var/lib /run -type f | grep -v 'lock$\\|/last-\\|/run/p/' | sort";
    machine.sh(&format!("{links}; {rules}; {files}; true"))
}

/// What both say in the same words: names of host ends and hardware addresses are each plugin's own.
fn comparable(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface["mac"] = Value::Null;
        if interface["sandbox"].is_null() && interface["name"] != "cni-podman0" {
            interface["name"] = "host end".into();
        }
    }
    result
}

#[test]
fn debians_list_with_only_the_bridges_type_changed_carries_traffic_and_leaves_nothing() {
    let machine = machine(&["first", "a", "b"]);
    let plain = List { machine: &machine, written: ours(), runtime: json!({}) };
    let publishing = List { machine: &machine, written: ours(), runtime: publishing() };
    // The network itself and the others' chains are made once and stay.
    let first = publishing.add("first");
    publishing.delete("first", &first);
    let before = everything(&machine);

    let (a, b) = (publishing.add("a"), plain.add("b"));
    // Debian's portmap looks for rules of IPv6, which this network has not.
    assert!(publishing.check("a", &a)[0].is_ok());
    assert!(plain.check("b", &b).iter().all(Result::is_ok), "{:?}", plain.check("b", &b));
    let ip = |result: &Value| {
        let address = result["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    };
    let (own, other) = (ip(&a), ip(&b));
    let _server = serve_at(&machine, Some("a"), &own, 80, Wire::Tcp);
    let asked = |from, to: &str, port| ask_at(&machine, from, to, port, Wire::Tcp);
    assert_eq!(asked(Some("b"), &own, 80).as_deref(), Ok(other.as_str()), "container to container");
    assert!(asked(None, &own, 80).is_ok(), "the node to a container");
    assert!(asked(Some("b"), "10.88.0.1", 8088).is_ok(), "a neighbour by the published port");
    assert!(asked(None, "10.88.0.1", 8088).is_ok(), "the node by the published port");
    publishing.delete("a", &a);
    assert!(asked(Some("b"), "10.88.0.1", 8088).is_err(), "no longer published");
    plain.delete("b", &b);
    support::assert_same(&everything(&machine), &before, "after DEL");
    publishing.delete("a", &a);
    support::assert_same(&everything(&machine), &before, "after DEL once more");
}

#[test]
fn debians_list_gives_the_same_results_with_either_type() {
    let results = [debians(), ours()].map(|written| {
        let machine = machine(&["a"]);
        let list = List { machine: &machine, written, runtime: publishing() };
        let result = list.add("a");
        let checked = list.check("a", &result);
        assert!(checked[0].is_ok(), "{checked:?}");
        (comparable(result), checked)
    });
    assert_eq!(results[0], results[1]);
}

/// Everything of podman's in one directory of the machine's own; the container's files are the machine's programs.
const PREPARE: &str = r#"
mkdir -p /run/p/conf /run/p/bin /run/p/rootfs/usr /run/p/rootfs/proc /run/p/rootfs/dev /run/p/rootfs/sys /run/p/rootfs/tmp /run/p/rootfs/etc
for link in bin sbin lib lib64; do ln -s usr/$link /run/p/rootfs/$link; done
cat > /run/p/containers.conf <<END
[network]
network_backend="cni"
cni_plugin_dirs=["/run/p/bin"]
network_config_dir="/run/p/conf"
[engine]
cgroup_manager="cgroupfs"
events_logger="none"
END
"#;

fn podman(machine: &Machine, line: &str) -> String {
    machine.sh(&format!(
        "CONTAINERS_CONF=/run/p/containers.conf timeout 120 podman --root /run/p/root --runroot /run/p/runroot \
         --storage-driver vfs --cgroup-manager cgroupfs --runtime runc {line}"
    ))
}

#[test]
fn podmans_default_network_is_ours_with_one_word_of_debians_file_changed() {
    let machine = Machine::start("podman");
    machine.sh(PREPARE);
    // As an administrator would: the file as it is, and one line of it edited.
    let copied = format!("/run/p/conf/{}", DEBIANS.rsplit('/').next().unwrap());
    machine.sh(&format!(
        "sed 's/\"type\": \"bridge\"/\"type\": \"telaio-cni\"/' {DEBIANS} > {copied}; \
         test $(diff {DEBIANS} {copied} | grep -c '^>') = 1; \
         cd {REFERENCE_DIR} && cp portmap firewall tuning loopback {PLUGIN} /run/p/bin/"
    ));
    let run = |name: &str, more: &str| {
        podman(
            &machine,
            &format!(
                "run -d --name {name} {more} --privileged --ulimit nofile=1024:1024 \
                 --ulimit nproc=1024:1024 -v /usr:/usr:ro --rootfs /run/p/rootfs sleep 600"
            ),
        );
        let says = |what: &str| {
            podman(&machine, &format!("inspect {name} --format '{{{{.NetworkSettings.{what}}}}}'"))
                .trim()
                .to_owned()
        };
        (says("SandboxKey").rsplit('/').next().unwrap().to_owned(), says("IPAddress"))
    };
    // The network itself and the others' chains are made once and stay.
    run("first", "-p 8088:80");
    podman(&machine, "rm -f -t 0 first");
    let before = everything(&machine);
    let (one, ip) = run("one", "-p 8088:80");
    let (two, other) = run("two", "");
    assert!(ip.starts_with("10.88.") && other.starts_with("10.88."), "{ip} {other}");
    let _server = serve_at(&machine, Some(&one), &ip, 80, Wire::Tcp);
    let asked = |from: Option<&str>, to: &str, port| ask_at(&machine, from, to, port, Wire::Tcp);
    assert_eq!(asked(Some(&two), &ip, 80).as_deref(), Ok(other.as_str()), "container to container");
    assert!(asked(Some(&two), "10.88.0.1", 8088).is_ok(), "a neighbour by the published port");
    assert!(asked(None, "127.0.0.1", 8088).is_ok(), "localhost by the published port");
    podman(&machine, "rm -f -t 0 one two");
    support::assert_same(&everything(&machine), &before, "after the containers");
}
