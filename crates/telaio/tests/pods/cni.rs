//! The plugin as the agent installs it: what a runtime attaches is on the node's network, and its policies hold at once.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::net::{SILENCE, Wire, ask_from, serve_at};
use crate::stage::{Agent, Stage, eventually};

/// A call of the installed plugin, as a runtime makes it.
#[derive(Clone)]
pub(crate) struct PluginCall {
    plugin: PathBuf,
    config: Value,
    command: &'static str,
    id: String,
    namespace: &'static str,
}

impl PluginCall {
    pub(crate) fn new(agent: &Agent, command: &'static str, id: &str) -> Self {
        let path = agent.path("cni-conf/05-telaio.conflist");
        // It is put there last.
        eventually("the configuration", || path.exists(), || agent.status().to_string());
        let list: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let mut config = list["plugins"][0].clone();
        config["cniVersion"] = list["cniVersion"].clone();
        config["name"] = list["name"].clone();
        let plugin = agent.path("cni-bin/telaio-cni");
        Self { plugin, config, command, id: id.to_owned(), namespace: "default" }
    }

    /// Of a pod of another namespace.
    pub(crate) fn of(self, namespace: &'static str) -> Self {
        Self { namespace, ..self }
    }

    /// With what capabilities bring.
    pub(crate) fn with(mut self, runtime: Value) -> Self {
        self.config["runtimeConfig"] = runtime;
        self
    }

    fn command(&self) -> Command {
        let Self { plugin, command, id, namespace, .. } = self;
        let mut process = Command::new(plugin);
        process
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", id)
            .env("CNI_NETNS", format!("/run/netns/{id}"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={id}"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        process
    }

    /// Starts it on the machine of the calling thread and kills it after this time; whether it was still at work then.
    pub(crate) fn kill(&self, after: Duration) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let mut child = self.command().spawn().unwrap();
        // Killed already, it reads nothing.
        let _ = child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes());
        std::thread::sleep(after);
        let _ = child.kill();
        child.wait().unwrap().signal().is_some()
    }

    /// Makes it on the machine of the calling thread: the result, or the error as it was printed.
    pub(crate) fn make(&self) -> Result<Value, Value> {
        let mut child = self.command().spawn().unwrap();
        child.stdin.take().unwrap().write_all(self.config.to_string().as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        if done.status.success() { Ok(value) } else { Err(value) }
    }

    /// The same on a node.
    pub(crate) fn make_on(&self, agent: &Agent) -> Result<Value, Value> {
        let call = self.clone();
        agent.node.machine.run(move || call.make())
    }
}

fn call(agent: &Agent, command: &'static str, id: &str) -> Value {
    PluginCall::new(agent, command, id).make_on(agent).unwrap()
}

/// A Pod that has no address yet.
pub(crate) fn pending(name: &str, app: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, labels: {{app: {app}}}}}\n\
         spec:\n  nodeName: node-a\n  containers: [{{name: c}}]\n"
    )
}

#[test]
fn what_a_runtime_attaches_has_its_policies_before_the_cluster_knows_its_address() {
    let mut stage = Stage::new();
    stage.write("web", &pending("web", "web"));
    stage.write("db", &pending("db", "db"));
    stage.write(
        "policy",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: default}\n\
         spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}\n",
    );
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &[]);
    let machine = &stage.a.node.machine;
    let mut ips = Vec::new();
    for id in ["web", "db"] {
        machine.sh(&format!("ip netns add {id}"));
        let result = call(&stage.a, "ADD", id);
        let ip =
            result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
        assert!(ip.starts_with("10.77.1."), "{result}");
        ips.push(ip);
    }
    assert_eq!(machine.sh("ip -o link | grep -c ': tlb'").trim(), "1", "it is the node's network");
    let _servers: Vec<_> = [("web", &ips[0]), ("db", &ips[1])]
        .map(|(id, ip)| serve_at(machine, Some(id), ip, 8080, Wire::Tcp))
        .into();
    let reaches = |from: &str, ip: &str| {
        ask_from(machine, Some(from), ip, 8080, Wire::Tcp, SILENCE * 2).is_ok()
    };
    let rules = || machine.sh("nft list ruleset");
    eventually("the policy", || !reaches("web", &ips[1]), rules);
    eventually("what no policy limits", || reaches("db", &ips[0]), rules);
    for id in ["web", "db"] {
        call(&stage.a, "DEL", id);
    }
    stage.a.wait("no instances", |status| status["pods"]["instance_count"] == 0);
}

#[test]
fn another_plugins_configuration_is_told_of_and_everything_else_goes_on() {
    let mut stage = Stage::new();
    fs::create_dir(stage.a.path("cni-conf")).unwrap();
    fs::write(stage.a.path("cni-conf/10-other.conflist"), "{}").unwrap();
    let manifests = stage.manifests();
    // It waits until the agent is healthy.
    stage.a.start(&manifests, "pods", &[]);
    stage.a.wait("a word about it", |status| {
        let state = status["pods"]["cni"].as_str().unwrap_or_default();
        state.contains("10-other.conflist") && state.contains("--take-over-cni")
    });
    stage.a.wait("its health", |status| status["healthy"] == true);
    assert!(!stage.a.path("cni-conf/05-telaio.conflist").exists());
    let log = fs::read_to_string(stage.a.path("log")).unwrap();
    assert_eq!(log.matches("is another plugin's").count(), 1, "once is enough: {log}");
    assert!(stage.a.node.machine.try_sh("ip link show tlb-node-a"), "the node's network is there");
}

#[test]
fn a_plugin_and_a_configuration_that_somebody_removes_or_alters_come_back() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut stage = Stage::new();
    let manifests = stage.manifests();
    let plugin = stage.a.path("the-plugin");
    fs::write(&plugin, "#!/bin/sh\n").unwrap();
    let named = format!("--cni-plugin={}", plugin.display());
    stage.a.start(&manifests, "pods", &["--sync-period=1s", &named]);
    let agent = &stage.a;
    let state = || agent.status().to_string();
    let [plugin, configuration] =
        ["cni-bin/telaio-cni", "cni-conf/05-telaio.conflist"].map(|name| agent.path(name));
    eventually("the configuration", || plugin.exists() && configuration.exists(), state);
    let look = |path: &PathBuf| {
        let mode = fs::metadata(path).map(|it| it.permissions().mode() & 0o777).ok();
        (fs::read_to_string(path).ok(), mode)
    };
    for path in [&plugin, &configuration] {
        let before = look(path);
        assert!(before.0.is_some());
        let written = |text: &str| fs::write(path, text).unwrap();
        let (nothing, other) = (|| written(""), || written("{\"name\": \"another\"}"));
        let gone = || fs::remove_file(path).unwrap();
        let all_gone = || fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let forbidden = || fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let damages: [(&str, &dyn Fn()); 5] = [
            ("for nobody to run", &forbidden),
            ("emptied", &nothing),
            ("another's", &other),
            ("removed", &gone),
            ("its directory removed", &all_gone),
        ];
        // A configuration may be kept from others' eyes.
        let is_run = path == &plugin;
        for (what, damage) in damages.into_iter().skip(usize::from(!is_run)) {
            damage();
            assert_ne!(look(path), before, "{what}");
            eventually(&format!("{} {what}", path.display()), || look(path) == before, state);
        }
    }
    let left = fs::read_dir(configuration.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "nothing else is left there");
}

#[test]
fn destinations_that_are_excepted_see_instances_own_addresses() {
    let mut stage = Stage::new();
    let manifests = stage.manifests();
    stage
        .switch
        .sh("ip address add 192.168.6.1/24 dev sw0 && ip route add 10.77.1.0/24 via 192.168.5.1");
    stage.a.start(&manifests, "pods", &["--masquerade-except=192.168.6.0/24,fd06::/64"]);
    let machine = &stage.a.node.machine;
    machine.sh("ip netns add web");
    let result = call(&stage.a, "ADD", "web");
    let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
    let _server = serve_at(&stage.switch, None, "0.0.0.0", 8080, Wire::Tcp);
    for (to, seen) in [("192.168.5.99", "192.168.5.1"), ("192.168.6.1", ip)] {
        let patience = SILENCE * 20;
        let answer = ask_from(machine, Some("web"), to, 8080, Wire::Tcp, patience);
        assert_eq!(answer.as_deref(), Ok(seen), "{to}");
    }
    let path = stage.a.path("cni-conf/05-telaio.conflist");
    let list: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let except = serde_json::json!(["192.168.6.0/24", "fd06::/64"]);
    assert_eq!(list["plugins"][0]["masqExcept"], except);
}

#[test]
fn an_instance_whose_link_somebody_removes_is_told_by_name() {
    let mut stage = Stage::new();
    let manifests = stage.manifests();
    stage.a.start(&manifests, "pods", &["--sync-period=5s"]);
    stage.a.node.machine.sh("ip netns add web");
    let result = call(&stage.a, "ADD", "web");
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    stage.a.wait("the instance", |status| status["pods"]["instance_count"] == 1);
    stage.a.node.machine.sh(&format!("ip link delete {link}"));
    stage.a.wait("a word about it", |status| {
        let problems = status["pods"]["problems"].to_string();
        problems.contains("instance web") && problems.contains(link)
    });
    call(&stage.a, "DEL", "web");
    stage.a.wait("no problems", |status| status["pods"]["problems"].is_null());
}
