//! What `--ipvs-…` does to the machine, and that `cleanup` puts it back.

use telaio_testkit::netns::Cluster;

use super::servers;
use crate::manifest::Service;
use crate::node::{Backend, Node};
use crate::support::telaio;

in_guest!(flags_and_kernel_settings_take_effect_and_cleanup_puts_them_back);

/// Settings that the backend makes, with what they are to be.
const SETTINGS: [(&str, &str); 7] = [
    ("net/ipv4/vs/conntrack", "1"),
    ("net/ipv4/vs/conn_reuse_mode", "1"),
    ("net/ipv4/vs/expire_nodest_conn", "1"),
    ("net/ipv4/vs/expire_quiescent_template", "1"),
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv4/conf/all/arp_ignore", "1"),
    ("net/ipv4/conf/all/arp_announce", "2"),
];

fn settings(node: &Node<'_>) -> Vec<String> {
    let path = |name: &str| format!("/proc/sys/{name}");
    SETTINGS.map(|(name, _)| node.output("cat", &[&path(name)]).trim().to_owned()).to_vec()
}

fn flags_and_kernel_settings_take_effect_and_cleanup_puts_them_back() {
    let cluster = Cluster::start().unwrap();
    let service = Service::new("plain", 1).endpoints("a1 b1");
    let mut node = Node::new(&cluster, Backend::Ipvs, &[service]);
    let others = "modprobe ip_vs\necho 0 >/proc/sys/net/ipv4/vs/conn_reuse_mode\n\
                  echo 0 >/proc/sys/net/ipv4/ip_forward\n\
                  ipvsadm -A -t 10.96.0.7:80 -s wlc\n";
    node.output("sh", &["-ec", others]);
    let timeouts = |node: &Node<'_>| node.output("ipvsadm", &["-l", "--timeout"]);
    let before = (settings(&node), timeouts(&node));
    node.flags = [
        "--ipvs-scheduler=sed",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=10m",
        "--ipvs-tcpfin-timeout=30s",
        "--ipvs-udp-timeout=1m",
    ]
    .map(str::to_owned)
    .to_vec();
    node.start();
    node.settle();
    assert_eq!(settings(&node), SETTINGS.map(|(_, value)| value));
    assert!(servers(&node).contains("-A -t 10.96.0.1:80 -s sed"), "{}", servers(&node));
    assert!(timeouts(&node).contains("600 30 60"), "{}", timeouts(&node));
    // Strict ARP is the operator's to take back; the rest is needed.
    node.end();
    let ended = node.run_to_end(telaio().args(["cleanup", &node.state_dir()]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!((settings(&node), timeouts(&node)), before);

    // Virtual servers in excluded networks are others', whatever else is asked for.
    node.flags = vec!["--takeover".to_owned(), "--ipvs-exclude-cidrs=10.96.0.7/32".to_owned()];
    node.apply(&Service::new("contested", 7).endpoints("a1"));
    node.start();
    node.settle();
    let all = servers(&node);
    let contested: Vec<_> = all.lines().filter(|line| line.contains(" -t 10.96.0.7:80 ")).collect();
    assert_eq!(contested, ["-A -t 10.96.0.7:80 -s wlc"], "{all}");
    node.end();
    // Without that, --takeover makes it ours.
    node.flags = vec!["--takeover".to_owned()];
    node.start();
    node.settle();
    let all = servers(&node);
    assert!(all.contains("-A -t 10.96.0.7:80 -s rr"), "{all}");
    assert!(all.contains("-a -t 10.96.0.7:80 -r 10.244.1.11:8080 -m -w 1"), "{all}");
}
