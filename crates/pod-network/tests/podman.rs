//! Podman, of Debian, with containers on networks of our plugin.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use support::cni::{PLUGIN, REFERENCE_DIR};
use support::{Wire, ask_at, serve_at};
use telaio_testkit::machine::Machine;

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
cat > /run/p/conf/net.conflist <<END
{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"telaio-cni","bridge":"cni-pod0","isGateway":true,"ipMasq":true,
"hairpinMode":true,"capabilities":{"portMappings":true,"ips":true,"mac":true},
"ipam":{"type":"host-local","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.90.0.0/24","gateway":"10.90.0.1"}]]}},
{"type":"tuning"}]}
END
"#;

fn podman(machine: &Machine, line: &str) -> String {
    machine.sh(&format!(
        "CONTAINERS_CONF=/run/p/containers.conf timeout 120 podman --root /run/p/root --runroot /run/p/runroot \
         --storage-driver vfs --cgroup-manager cgroupfs --runtime runc {line}"
    ))
}

#[test]
fn podman_runs_containers_on_networks_of_the_plugin() {
    let machine = Machine::start("podman");
    let version = machine.sh("podman --version");
    assert!(version.starts_with("podman version 4.3."), "what is promised is Debian's: {version}");
    machine.sh(PREPARE);
    machine.sh(&format!("cp {REFERENCE_DIR}/tuning {REFERENCE_DIR}/loopback {PLUGIN} /run/p/bin/"));
    let run = |name: &str, more: &str| {
        podman(
            &machine,
            &format!(
                "run -d --name {name} --network net {more} --privileged --ulimit nofile=1024:1024 \
                 --ulimit nproc=1024:1024 -v /usr:/usr:ro --rootfs /run/p/rootfs sleep 600"
            ),
        );
        let key = podman(
            &machine,
            &format!("inspect {name} --format '{{{{.NetworkSettings.SandboxKey}}}}'"),
        );
        key.trim().rsplit('/').next().unwrap().to_owned()
    };
    let one = run("one", "-p 8088:80 --ip 10.90.0.7");
    let two = run("two", "");
    let _server = serve_at(&machine, Some(&one), "10.90.0.7", 80, Wire::Tcp);
    assert!(
        ask_at(&machine, Some(&two), "10.90.0.7", 80, Wire::Tcp).is_ok(),
        "container to container"
    );
    assert!(
        ask_at(&machine, Some(&two), "10.90.0.1", 8088, Wire::Tcp).is_ok(),
        "by the published port"
    );
    assert!(ask_at(&machine, None, "127.0.0.1", 8088, Wire::Tcp).is_ok(), "by localhost");
    podman(&machine, "rm -f -t 0 one two");
    assert_eq!(machine.sh("ip -o link | grep -c tlv || true").trim(), "0");
    let rules = machine.sh("nft list map ip telaio-pods any-ports");
    assert!(!rules.contains("8088"), "{rules}");
}
