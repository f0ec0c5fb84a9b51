//! `telaio cleanup`: no trace of ours is left, and everything of others.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use telaio_testkit::guest;
use telaio_testkit::netns::{Cluster, Host};

use crate::fixtures;
use crate::node::{Backend, Node};
use crate::support::{run, telaio};
use crate::switch::traces;

on_every_backend!(cleanup_leaves_no_trace_of_ours_and_all_that_is_others);

/// Rules that belong to somebody else, on a kernel that has all kinds of them.
const OTHERS: &str = "
nft add table inet theirs
nft 'add chain inet theirs input { type filter hook input priority 0; }'
nft add rule inet theirs input tcp dport 4711 accept
for f in nft legacy; do
  for p in iptables-$f ip6tables-$f; do
    $p -t nat -N THEIRS
    $p -t nat -A THEIRS -p tcp --dport 4711 -j RETURN
    $p -t nat -A PREROUTING -j THEIRS
    $p -A INPUT -p tcp --dport 4711 -j ACCEPT
  done
done
";

/// What belongs to somebody else on the guest kernel.
const OTHERS_OF_GUEST: &str = "
for p in iptables-legacy ip6tables-legacy; do
  $p -t nat -N THEIRS
  $p -t nat -A THEIRS -p tcp --dport 4711 -j RETURN
  $p -t nat -A PREROUTING -j THEIRS
  $p -A INPUT -p tcp --dport 4711 -j ACCEPT
done
ipvsadm -A -t 198.51.100.77:4711 -s wrr -p 60
ipvsadm -a -t 198.51.100.77:4711 -r 10.244.1.11:8080 -m -w 7
ipvsadm -A -u 198.51.100.77:4711 -s sh
ipvsadm -A -f 4711 -s rr
ipset create THEIRS hash:ip,port
ipset add THEIRS 198.51.100.77,tcp:4711
ip link add theirs0 type dummy
ip address add 198.51.100.77/32 dev theirs0
";

/// Kernel settings below `/proc/sys/net` that do not change by themselves.
fn sysctls(cluster: &Cluster) -> BTreeMap<String, String> {
    fn walk(dir: &Path, found: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                found.insert(path.display().to_string(), text);
            }
        }
    }
    cluster.on(Host::NodeA, || {
        let mut found = BTreeMap::new();
        for part in ["ipv4", "ipv6", "netfilter", "core"] {
            walk(&Path::new("/proc/sys/net").join(part), &mut found);
        }
        found.retain(|name, _| {
            !name.ends_with("_count") && !name.contains("random") && !name.contains("dst_entries")
        });
        found
    })
}

/// What others have, line by line.
fn others(node: &Node<'_>) -> Vec<String> {
    let mut rules = node.rules();
    if node.backend == Backend::Ipvs {
        rules += &node.output("ipvsadm", &["-S", "-n"]);
        rules += &node.output("ipset", &["-o", "save", "list", "THEIRS"]);
        rules += &node.output("ip", &["-o", "address", "show", "dev", "theirs0"]);
    }
    let theirs = ["theirs", "THEIRS", "4711"];
    rules
        .lines()
        .filter(|line| theirs.iter().any(|it| line.contains(it)))
        // Without the counters.
        .map(|line| line.trim_start_matches(|char| "[]:0123456789 ".contains(char)).to_owned())
        .collect()
}

fn cleanup_leaves_no_trace_of_ours_and_all_that_is_others(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let mut node = Node::new(&cluster, backend, &fixtures::all());
    let script = if guest::is_inside() { OTHERS_OF_GUEST } else { OTHERS };
    let ended = cluster.on(Host::NodeA, || run(Command::new("sh").args(["-ec", script])));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let sysctls_before = sysctls(&cluster);
    let others_before = others(&node);
    assert!(others_before.len() > 8, "{others_before:?}");
    node.start();
    node.settle();
    assert!(!traces(&node, backend).is_empty());
    assert_eq!(others(&node), others_before);
    node.end();
    // Twice: the second time there is nothing, which is as good.
    for _ in 0..2 {
        let mut command = telaio();
        command.args(["cleanup", &node.state_dir()]);
        let ended = node.run_to_end(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for backend in Backend::here() {
            assert_eq!(traces(&node, *backend), Vec::<String>::new());
        }
        assert_eq!(others(&node), others_before);
        let sysctls_after = sysctls(&cluster);
        for (name, before) in &sysctls_before {
            assert_eq!(sysctls_after.get(name), Some(before), "{name}");
        }
    }
}
