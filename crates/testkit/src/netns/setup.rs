//! Lays a cluster's links, addresses and routes, by `ip`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use telaio_netlink::netns::Netns;

use super::{ClusterError, Host};

/// Settings of every namespace. Two deserve a reason: the kernel limits how many "unreachable" it
/// sends per second, and a test that is refused often must hear it each time; and nothing may wait
/// for duplicate address detection.
const SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv4/icmp_msgs_per_sec", "1000000"),
    ("ipv4/icmp_msgs_burst", "1000000"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv6/conf/default/forwarding", "1"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// Outside, a client may be anybody of its network.
const OUTSIDE_SYSCTLS: &[(&str, &str)] = &[("ipv6/ip_nonlocal_bind", "1")];

/// The links between namespaces: interface here, host, interface there, host.
const LINKS: &[(&str, Host, &str, Host)] = &[
    ("lan0", Host::NodeA, "lan0", Host::NodeB),
    ("wan0", Host::NodeA, "eth0", Host::Outside),
    ("net0", Host::NodeA, "eth0", Host::Internet),
    ("pod-a1", Host::NodeA, "eth0", Host::A1),
    ("pod-a2", Host::NodeA, "eth0", Host::A2),
    ("pod-b1", Host::NodeB, "eth0", Host::B1),
    ("pod-b2", Host::NodeB, "eth0", Host::B2),
];

const NODE_A: &str = "
addr add 192.168.50.11/24 dev lan0
addr add fd00:50::11/64 dev lan0 nodad
addr add 192.168.60.1/24 dev wan0
addr add fd00:60::1/64 dev wan0 nodad
addr add 192.168.70.1/24 dev net0
addr add fd00:70::1/64 dev net0 nodad
addr add 10.244.1.1/32 dev pod-a1
addr add fd00:10:244:1::1/128 dev pod-a1 nodad
addr add 10.244.1.1/32 dev pod-a2
addr add fd00:10:244:1::1/128 dev pod-a2 nodad
route add 10.244.1.11 dev pod-a1
route add fd00:10:244:1::11 dev pod-a1
route add 10.244.1.12 dev pod-a2
route add fd00:10:244:1::12 dev pod-a2
route add 10.244.2.0/24 via 192.168.50.12
route add fd00:10:244:2::/64 via fd00:50::12
route add 203.0.113.0/24 via 192.168.60.2
route add 2001:db8:113::/64 via fd00:60::2
route add default via 192.168.70.2
route add default via fd00:70::2
";

const NODE_B: &str = "
addr add 192.168.50.12/24 dev lan0
addr add fd00:50::12/64 dev lan0 nodad
addr add 10.244.2.1/32 dev pod-b1
addr add fd00:10:244:2::1/128 dev pod-b1 nodad
addr add 10.244.2.1/32 dev pod-b2
addr add fd00:10:244:2::1/128 dev pod-b2 nodad
route add 10.244.2.11 dev pod-b1
route add fd00:10:244:2::11 dev pod-b1
route add 10.244.2.12 dev pod-b2
route add fd00:10:244:2::12 dev pod-b2
route add default via 192.168.50.11
route add default via fd00:50::11
";

/// All of the clients' networks are local here, so that a client can be any of them.
const OUTSIDE: &str = "
addr add 192.168.60.2/24 dev eth0
addr add fd00:60::2/64 dev eth0 nodad
addr add 203.0.113.10/32 dev lo
addr add 2001:db8:113::a/128 dev lo nodad
route add local 203.0.113.0/24 dev lo
route add local 2001:db8:113::/64 dev lo
route add default via 192.168.60.1 src 203.0.113.10
route add default via fd00:60::1 src 2001:db8:113::a
";

/// Knows the way back, and has nowhere to go on to: whatever arrives is told so.
const INTERNET: &str = "
addr add 192.168.70.2/24 dev eth0
addr add fd00:70::2/64 dev eth0 nodad
route add 192.168.0.0/16 via 192.168.70.1
route add 10.244.0.0/16 via 192.168.70.1
route add 203.0.113.0/24 via 192.168.70.1
route add fd00:50::/64 via fd00:70::1
route add fd00:60::/64 via fd00:70::1
route add fd00:10:244::/48 via fd00:70::1
route add 2001:db8:113::/64 via fd00:70::1
route add unreachable 0.0.0.0/0
route add unreachable ::/0
";

/// Sets what the kernel does in a namespace, before it has any link.
pub(super) fn sysctls(host: Host, netns: &Netns) -> Result<(), ClusterError> {
    let more = if host == Host::Outside { OUTSIDE_SYSCTLS } else { &[] };
    netns.run(|| {
        for (name, value) in SYSCTLS.iter().chain(more) {
            let path = format!("/proc/sys/net/{name}");
            std::fs::write(&path, value).map_err(|source| ClusterError::Sysctl { name, source })?;
        }
        Ok(())
    })?
}

/// Lays every link, then gives each host its addresses and routes. `name_of` names namespaces.
pub(super) fn links(name_of: impl Fn(Host) -> String) -> Result<(), ClusterError> {
    let mut script = String::new();
    for (here, host, there, peer) in LINKS {
        let (from, to) = (name_of(*host), name_of(*peer));
        let _ =
            writeln!(script, "link add {here} netns {from} type veth peer name {there} netns {to}");
    }
    ip(&["-batch", "-"], &script)?;
    for host in Host::ALL {
        let mut script = "link set lo up\n".to_owned();
        for (here, first, there, second) in LINKS {
            for (link, end) in [(here, first), (there, second)] {
                if *end == host {
                    let _ = writeln!(script, "link set {link} up");
                }
            }
        }
        script += &addresses(host);
        ip(&["-n", &name_of(host), "-batch", "-"], script.trim_start())?;
    }
    Ok(())
}

fn addresses(host: Host) -> String {
    match host {
        Host::NodeA => NODE_A.to_owned(),
        Host::NodeB => NODE_B.to_owned(),
        Host::Outside => OUTSIDE.to_owned(),
        Host::Internet => INTERNET.to_owned(),
        Host::A1 => pod(1, 11),
        Host::A2 => pod(1, 12),
        Host::B1 => pod(2, 11),
        Host::B2 => pod(2, 12),
    }
}

/// A pod that reaches everything, its neighbours too, by its node.
fn pod(node: u8, number: u8) -> String {
    format!(
        "addr add 10.244.{node}.{number}/32 dev eth0\n\
         addr add fd00:10:244:{node}::{number}/128 dev eth0 nodad\n\
         route add 10.244.{node}.1 dev eth0\n\
         route add fd00:10:244:{node}::1 dev eth0\n\
         route add default via 10.244.{node}.1\n\
         route add default via fd00:10:244:{node}::1\n"
    )
}

pub(super) fn ip(args: &[&str], script: &str) -> Result<(), ClusterError> {
    let failed = |why: String| ClusterError::Ip { args: args.join(" "), why };
    let mut child = Command::new("ip")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).map_err(|error| failed(error.to_string()))?;
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}\nof\n{script}", String::from_utf8_lossy(&output.stderr))))
}
