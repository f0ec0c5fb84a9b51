//! Beside kube-proxy: refused, unless told to take over; then without a gap.
//!
//! There is no kube-proxy here, only rules as it leaves them, which serve the same services.

use std::net::SocketAddr;
use std::process::Command;

use telaio_testkit::netns::{Cluster, Family, Host, Place, Transport};

use crate::manifest::{SERVICE_PORT, cluster_ip};
use crate::node::{Backend, Node, comes_true};
use crate::restart::{Witnesses, services};
use crate::support::{run, telaio};

on_backends_of_this_kernel!(
    beside_kube_proxy_s_nftables_rules_it_takes_over_without_a_gap,
    beside_kube_proxy_s_iptables_rules_it_takes_over_without_a_gap,
    kube_proxy_s_rules_that_come_back_are_removed_again_with_a_warning,
);

// The guest kernel has no nftables for IP.
on_ipvs!(
    beside_kube_proxy_s_iptables_rules_it_takes_over_without_a_gap,
    beside_kube_proxy_s_ipvs_rules_it_takes_over_without_a_gap,
    kube_proxy_s_rules_that_come_back_are_removed_again_with_a_warning,
);

/// Where a kube-proxy's rules lead, by family.
type Endpoints = [&'static str; 2];

/// A pod that serves.
const A1: Endpoints = ["10.244.1.11:8080", "[fd00:10:244:1::11]:8080"];
/// Nobody.
const NOBODY: Endpoints = ["10.244.1.99:8080", "[fd00:10:244:1::99]:8080"];

/// kube-proxy's tables in nftables mode, serving the services of [`services`] by one endpoint.
fn nftables_rules(endpoints: Endpoints) -> String {
    let mut script = String::new();
    for (family, endpoint) in ["ip", "ip6"].into_iter().zip(endpoints) {
        let addresses = match family {
            "ip" => ["10.96.0.1", "10.96.0.2", "192.0.2.3", "192.0.2.4"],
            _ => ["fd00:10:96::1", "fd00:10:96::2", "2001:db8:2::3", "2001:db8:2::4"],
        };
        let addresses = addresses.join(", ");
        script += &format!(
            "table {family} kube-proxy {{
                chain services {{
                    {family} daddr {{ {addresses} }} tcp dport 80 meta mark set 0x4000 dnat to {endpoint}
                    tcp dport {{ 30001, 30003 }} fib daddr type local meta mark set 0x4000 dnat to {endpoint}
                }}
                chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}
                chain nat-output {{ type nat hook output priority -100; jump services; }}
                chain nat-postrouting {{ type nat hook postrouting priority srcnat;
                    meta mark & 0x4000 != 0 masquerade; }}
            }}\n"
        );
    }
    format!("nft -f - <<'END'\n{script}END\n")
}

/// kube-proxy's chains in iptables mode, likewise; and kubelet's, which are not kube-proxy's.
fn iptables_rules(backend: Backend, endpoints: Endpoints) -> String {
    let is_legacy = matches!(backend, Backend::IptablesLegacy | Backend::Ipvs);
    let flavor = if is_legacy { "legacy" } else { "nft" };
    let mut script = String::new();
    for (program, endpoint, addresses) in [
        ("iptables", endpoints[0], ["10.96.0.1", "10.96.0.2", "192.0.2.3", "192.0.2.4"]),
        (
            "ip6tables",
            endpoints[1],
            ["fd00:10:96::1", "fd00:10:96::2", "2001:db8:2::3", "2001:db8:2::4"],
        ),
    ] {
        let mut rules = String::from(
            "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n*filter\n\
             :KUBE-PROXY-CANARY - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-FORWARD - [0:0]\n\
             :KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A FORWARD -j KUBE-FORWARD\n\
             -A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES\n\
             -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\nCOMMIT\n*nat\n\
             :KUBE-PROXY-CANARY - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n\
             :KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]\n\
             :KUBE-SEP-ABCDEFGHIJKLMNOP - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
             -A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
             -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
             -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
             -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0\n\
             -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
             -A KUBE-SVC-ABCDEFGHIJKLMNOP -j KUBE-MARK-MASQ\n\
             -A KUBE-SVC-ABCDEFGHIJKLMNOP -j KUBE-SEP-ABCDEFGHIJKLMNOP\n",
        );
        rules +=
            &format!("-A KUBE-SEP-ABCDEFGHIJKLMNOP -p tcp -j DNAT --to-destination {endpoint}\n");
        for address in addresses {
            rules += &format!(
                "-A KUBE-SERVICES -d {address} -p tcp --dport 80 -j KUBE-SVC-ABCDEFGHIJKLMNOP\n"
            );
        }
        for port in [30001, 30003] {
            rules +=
                &format!("-A KUBE-NODEPORTS -p tcp --dport {port} -j KUBE-SVC-ABCDEFGHIJKLMNOP\n");
        }
        rules += "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n";
        script += &format!("{program}-{flavor}-restore --noflush <<'END'\n{rules}END\n");
    }
    script
}

fn lay(cluster: &Cluster, script: &str) {
    let ended = cluster.on(Host::NodeA, || run(Command::new("sh").args(["-ec", script])));
    assert_eq!(ended.code, Some(0), "{ended:?}\n{script}");
}

fn beside_kube_proxy_s_nftables_rules_it_takes_over_without_a_gap(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    lay(&cluster, &nftables_rules(A1));
    take_over(&cluster, backend);
}

fn beside_kube_proxy_s_iptables_rules_it_takes_over_without_a_gap(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    lay(&cluster, &iptables_rules(backend, A1));
    take_over(&cluster, backend);
}

/// kube-proxy's mode ipvs: virtual servers, the addresses on its device, a set, the rules that it needs.
fn ipvs_rules(endpoints: Endpoints) -> String {
    let mut script = String::from(
        "modprobe ip_vs\n\
         ip link add kube-ipvs0 type dummy\n\
         ip link set kube-ipvs0 up\n\
         echo 1 >/proc/sys/net/ipv4/vs/conntrack\n\
         ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\n\
         ipset add KUBE-NODE-PORT-TCP 30001\n\
         ipset add KUBE-NODE-PORT-TCP 30003\n",
    );
    for (program, length, addresses, nodes) in [
        ("iptables", 32, ["10.96.0.1", "10.96.0.2", "192.0.2.3", "192.0.2.4"], "192.168.50.11"),
        (
            "ip6tables",
            128,
            ["fd00:10:96::1", "fd00:10:96::2", "2001:db8:2::3", "2001:db8:2::4"],
            "fd00:50::11",
        ),
    ] {
        let endpoint = endpoints[usize::from(length == 128)];
        let at = |address: &str, port: u16| {
            if length == 128 { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
        };
        let mut serve = |at: String| {
            script += &format!("ipvsadm -A -t {at} -s rr\nipvsadm -a -t {at} -r {endpoint} -m\n");
        };
        for address in addresses {
            serve(at(address, 80));
        }
        for port in [30001, 30003] {
            serve(at(nodes, port));
        }
        for address in addresses {
            script += &format!("ip address add {address}/{length} dev kube-ipvs0 nodad\n");
        }
        script += &format!(
            "{program}-legacy-restore --noflush <<'END'\n*nat\n:KUBE-SERVICES - [0:0]\n\
             :KUBE-POSTROUTING - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
             -A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
             -A KUBE-POSTROUTING -m ipvs --ipvs -j MASQUERADE --random-fully\nCOMMIT\nEND\n"
        );
    }
    script
}

fn beside_kube_proxy_s_ipvs_rules_it_takes_over_without_a_gap(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    lay(&cluster, &ipvs_rules(A1));
    take_over(&cluster, backend);
}

fn take_over(cluster: &Cluster, backend: Backend) {
    let mut node = Node::new(cluster, backend, &services());
    let witnesses = Witnesses::of(cluster);
    let before = node.rules();
    let refused = node.run_to_end(&mut node.run_command());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("--takeover"), "{refused:?}");
    assert!(refused.stderr.contains("kube-proxy"), "{refused:?}");
    let unchanged = |rules: &str| {
        rules.lines().filter(|line| line.contains("KUBE") || line.contains("dnat")).count()
    };
    assert_eq!(unchanged(&node.rules()), unchanged(&before), "refused, so nothing was touched");

    node.flags = vec!["--takeover".to_owned()];
    node.start();
    node.settle();
    witnesses.wait();
    node.end();
    witnesses.have_noticed_nothing();

    let mut command = telaio();
    command.args(["cleanup", "--kube-proxy", &node.state_dir()]);
    let ended = node.run_to_end(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let left = lines_with(&node, &["KUBE", "kube-proxy", "TELAIO", "telaio"]);
    let (kubelet, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|line| is_kubelet_s(line));
    assert_eq!(left, Vec::<String>::new());
    if before.contains("KUBE-KUBELET-CANARY") {
        assert!(kubelet.iter().any(|line| line.contains("KUBE-KUBELET-CANARY")), "{kubelet:?}");
        assert!(kubelet.iter().any(|line| line.contains("KUBE-FIREWALL")), "{kubelet:?}");
    }
}

/// The lines of all rules with one of these in them.
fn lines_with(node: &Node<'_>, wanted: &[&str]) -> Vec<String> {
    let is_wanted = |line: &&str| wanted.iter().any(|it| line.contains(it));
    node.rules().lines().filter(is_wanted).map(str::to_owned).collect()
}

fn is_kubelet_s(line: &str) -> bool {
    line.contains("KUBE-KUBELET") || line.contains("KUBE-FIREWALL")
}

fn kube_proxy_s_rules_that_come_back_are_removed_again_with_a_warning(backend: Backend) {
    let cluster = Cluster::start().unwrap();
    let first = if backend == Backend::Ipvs { ipvs_rules(A1) } else { nftables_rules(A1) };
    lay(&cluster, &first);
    let mut node = Node::new(&cluster, backend, &services());
    node.flags = vec!["--takeover".to_owned(), "--sync-period=1s".to_owned()];
    node.start();
    node.settle();
    let told = |what: &str| node.log().lines().filter(|line| line.contains(what)).count();
    let (removed, warned) = ("removed kube-proxy's rules", "kube-proxy put its rules back");
    node.wait_until("takeover", || told(removed) == 1);
    assert_eq!(told(warned), 0, "{}", node.log());
    // Whatever the mode of the kube-proxy that still runs; what it serves last is long gone.
    let again = match backend {
        Backend::Ipvs => vec![iptables_rules(backend, NOBODY)],
        _ => vec![nftables_rules(NOBODY), iptables_rules(backend, NOBODY)],
    };
    for (times, rules) in (1..).zip(again) {
        lay(&cluster, &rules);
        node.wait_until("end of kube-proxy's rules", || told(removed) == 1 + times);
        let left = lines_with(&node, &["KUBE", "kube-proxy"]);
        let left: Vec<_> = left.into_iter().filter(|line| !is_kubelet_s(line)).collect();
        assert_eq!(left, Vec::<String>::new());
        assert!(comes_true(|| told(warned) == times), "{}", node.log());
        for family in Family::ALL {
            let to = SocketAddr::new(cluster_ip(family, 1), SERVICE_PORT);
            for from in [Host::A2, Host::NodeA] {
                let outcome = node.ask(Place::of(from), to, Transport::Tcp);
                assert!(outcome.by().is_some(), "{from:?} to {to}: {outcome}");
            }
        }
    }
    let warning = node.log();
    let warning = warning.lines().find(|line| line.contains(warned)).unwrap();
    assert!(warning.contains("\"level\":\"WARN\""), "{warning}");
}
