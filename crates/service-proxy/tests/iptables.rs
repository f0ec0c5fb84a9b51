//! The iptables backend on the real kernel: both flavours, both families, in namespaces that each test
//! makes for itself.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use telaio_model::{IpFamily, Op, ServiceEndpoints};
use telaio_netlink::netns::Netns;
use telaio_reconcile::kpng::{Backend, Sink};
use telaio_reconcile::{PacerConfig, SyncHandle, SyncKind, SyncStats};
use telaio_service_proxy::config::{DetectLocal, NodeFacts, ProxyConfig};
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::iptables::{
    self, Flavor, IptablesBackend, Ruleset, Services, cleanup, cleanup_kube_proxy,
    kube_proxy_present,
};
use telaio_service_proxy::options::{Follower, LocalhostPorts, Programmed, ProxyOptions};

const FLAVORS: [Flavor; 2] = [Flavor::Nft, Flavor::Legacy];
/// Far longer than anything takes; only a fault waits this long.
const PATIENCE: Duration = Duration::from_mins(1);

/// A namespace that is gone when the test ends.
struct Namespace(Netns);

impl Namespace {
    fn new(name: &str, flavor: Flavor) -> Self {
        let name = format!("tl-ipt-{name}-{flavor:?}-{}", std::process::id());
        Self(Netns::create(&name).expect("these tests need root"))
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Netns::remove(self.0.name()).unwrap();
    }
}

fn word(flavor: Flavor) -> &'static str {
    match flavor {
        Flavor::Auto => "",
        Flavor::Nft => "-nft",
        Flavor::Legacy => "-legacy",
    }
}

fn base(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}

/// What a program prints; it must succeed.
fn output(command: &str) -> String {
    let output = Command::new("/bin/sh").args(["-c", command]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rules of a family, without comments and counters.
fn saved(flavor: Flavor, family: IpFamily) -> String {
    output(&format!("{}{}-save", base(family), word(flavor)))
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| match line.strip_prefix(':') {
            Some(chain) => format!(":{}\n", chain.split(" [").next().unwrap()),
            None => format!("{line}\n"),
        })
        .collect()
}

fn config() -> ProxyConfig {
    let nets = ["10.244.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
    ProxyConfig { detect_local: DetectLocal::ClusterCidr(nets.to_vec()), ..ProxyConfig::default() }
}

/// Tells the test of every sync.
struct Listener {
    handle: OnceLock<SyncHandle>,
    synced: Mutex<Sender<SyncKind>>,
}

impl Follower for Listener {
    fn started(&self, handle: &SyncHandle) {
        self.handle.set(handle.clone()).expect("started once");
    }

    fn programmed(&self, what: &Programmed<'_>) {
        // A test that has ended does not listen any more.
        let _ = self.synced.lock().send(what.kind);
    }
}

/// A backend that runs.
struct Agent {
    sink: Box<dyn Sink>,
    listener: Arc<Listener>,
    synced: Receiver<SyncKind>,
}

impl Agent {
    fn start(flavor: Flavor) -> Self {
        let (sender, synced) = mpsc::channel();
        let listener = Arc::new(Listener { handle: OnceLock::new(), synced: Mutex::new(sender) });
        let options = ProxyOptions {
            node: "node-1".into(),
            node_addresses: Vec::new(),
            config: Arc::new(config()),
            localhost: LocalhostPorts::default(),
            // Only what a test asks for is synced.
            pacing: PacerConfig { sync_period: Duration::from_hours(1), ..PacerConfig::default() },
            follower: listener.clone(),
        };
        let mut backend = Box::new(IptablesBackend::new(options, flavor));
        backend.setup().unwrap();
        let mut sink = backend.sink();
        sink.setup().unwrap();
        Self { sink, listener, synced }
    }

    fn handle(&self) -> &SyncHandle {
        self.listener.handle.get().unwrap()
    }

    fn send(&mut self, ops: impl IntoIterator<Item = Op>) {
        for op in ops.into_iter().chain([Op::Sync]) {
            self.sink.send(op).unwrap();
        }
        assert!(self.handle().wait_synced(PATIENCE), "{:?}", self.stats().last_error);
    }

    fn set(&mut self, entries: &[ServiceEndpoints]) {
        let ops = entries.iter().flat_map(|entry| {
            let endpoints = entry.endpoints.iter().cloned().map(Op::SetEndpoint);
            [Op::SetService(entry.service.clone())].into_iter().chain(endpoints)
        });
        self.send(ops.collect::<Vec<_>>());
    }

    fn stats(&self) -> SyncStats {
        self.handle().stats()
    }

    /// Compares everything; says how much had to be mended.
    fn compare(&self) -> usize {
        self.handle().resync();
        assert!(self.handle().wait_synced(PATIENCE), "{:?}", self.stats().last_error);
        self.stats().last_report.changes()
    }

    /// Waits until the watcher has noticed something and a sync has looked at it.
    fn wait_for_drift(&self, what: &str) {
        while self.synced.recv_timeout(PATIENCE).expect(what) != SyncKind::Drift {}
        assert!(self.handle().wait_synced(PATIENCE));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.handle().stop();
    }
}

/// A bit of everything, in both families.
fn services() -> Vec<ServiceEndpoints> {
    let v4 = |last: u8| std::net::IpAddr::from([10, 244, 2, last]);
    let v6 = |last: u16| std::net::IpAddr::from([0xfd00, 0x244, 0, 0, 0, 0, 0, last]);
    let c4 = |last: u8| std::net::IpAddr::from([10, 96, 0, last]);
    let c6 = |last: u16| std::net::IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, last]);
    let both = |fixture: Fixture, n: u8| fixture.cluster_ip(c4(n)).cluster_ip(c6(n.into()));
    vec![
        both(Fixture::new("web"), 1)
            .node_port(30080)
            .load_balancer_ip([192, 0, 2, 7])
            .with(|it| it.source_ranges = vec!["203.0.113.0/24".parse().unwrap()])
            .local(v4(1))
            .remote(v4(2))
            .weight(3)
            .remote(v6(1))
            .build(),
        both(Fixture::new("sticky"), 2)
            .sticky(600)
            .remote(v4(3))
            .remote(v4(4))
            .remote(v6(2))
            .build(),
        both(Fixture::new("turns"), 3)
            .balance("round-robin")
            .protocol(telaio_model::Protocol::Udp)
            .remote(v4(5))
            .remote(v4(6))
            .remote(v4(7))
            .remote(v6(3))
            .build(),
        both(Fixture::new("nobody"), 4).node_port(30081).build(),
        both(Fixture::new("local"), 5)
            .protocol(telaio_model::Protocol::Sctp)
            .node_port(30082)
            .with(|it| {
                it.external_traffic_to_local = true;
                it.internal_traffic_to_local = true;
                it.health_check_node_port = Some(32000);
            })
            .remote(v4(8))
            .local(v6(4))
            .build(),
    ]
}

fn for_each_flavor(name: &str, test: impl Fn(Flavor) + Sync) {
    for flavor in FLAVORS {
        Namespace::new(name, flavor).run(|| test(flavor));
    }
}

#[test]
fn what_is_programmed_is_what_is_rendered_and_is_found_right() {
    for_each_flavor("apply", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        let all: Services = services().into_iter().map(|it| (it.service.key.clone(), it)).collect();
        for family in IpFamily::ALL {
            let rendered = iptables::render(&all, &NodeFacts::default(), &config(), family);
            let wanted: Vec<_> = sorted(&Ruleset::parse(&rendered));
            assert_eq!(sorted(&Ruleset::parse(&saved(flavor, family))), wanted);
        }
        assert_eq!(agent.compare(), 0);
        assert_eq!(agent.stats().failures_total, 0);
    });
}

/// Chains with their rules; the order of rules counts only within a service's own chains.
fn sorted(rules: &Ruleset) -> Vec<String> {
    let mut chains: Vec<String> = rules
        .chains()
        .map(|(table, name, rules)| {
            let mut rules: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
            let own = ["SVC-", "SVL-", "EXT-", "SEP-", "FW-"].map(|it| format!("TELAIO-{it}"));
            let is_shared = !own.iter().any(|it| name.as_str().starts_with(it));
            if is_shared {
                rules.sort();
            }
            format!("{table:?} {name}: {rules:#?}")
        })
        .collect();
    chains.sort();
    chains
}

#[test]
fn the_kernel_shows_our_rules_exactly_as_we_write_them() {
    for_each_flavor("print", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        for family in IpFamily::ALL {
            for line in saved(flavor, family).lines().filter(|line| line.contains("TELAIO-")) {
                let Some((_, rule)) = line.strip_prefix("-A ").and_then(|it| it.split_once(' '))
                else {
                    continue;
                };
                let read: iptables::rule::Rule = rule.parse().unwrap();
                assert_eq!(read.to_string(), rule);
            }
        }
    });
}

#[test]
fn changes_one_by_one_come_to_what_is_found_right() {
    for_each_flavor("change", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&[]);
        let empty = IpFamily::ALL.map(|family| saved(flavor, family));
        for entry in services() {
            agent.set(std::slice::from_ref(&entry));
        }
        let web = &services()[0];
        agent.send([Op::DeleteEndpoint(web.endpoints[0].key.clone())]);
        agent.send([Op::SetEndpoint(web.endpoints[0].clone())]);
        agent.send([Op::DeleteEndpoint(web.endpoints[1].key.clone())]);
        assert_eq!(agent.compare(), 0);
        for entry in services() {
            agent.send([Op::DeleteService(entry.service.key.clone())]);
        }
        assert_eq!(IpFamily::ALL.map(|family| saved(flavor, family)), empty);
        assert_eq!(agent.stats().failures_total, 0);
    });
}

#[test]
fn many_services_at_once_are_split_and_come_to_the_same() {
    for_each_flavor("many", |flavor| {
        let service = |n: u16| {
            let [high, low] = n.to_be_bytes();
            Fixture::new(&format!("s{n}"))
                .cluster_ip([10, 97, high, low])
                .remote([10, 244, high, low])
                .remote([10, 244, 128 + high, low])
                .build()
        };
        let mut agent = Agent::start(flavor);
        let all: Vec<_> = (0..400).map(service).collect();
        agent.set(&all);
        assert_eq!(agent.compare(), 0);
        let gone = all[..300].iter().map(|entry| Op::DeleteService(entry.service.key.clone()));
        agent.send(gone.collect::<Vec<_>>());
        let text = saved(flavor, IpFamily::V4);
        assert_eq!(text.matches("cluster IP").count(), 100);
        assert_eq!(text.lines().filter(|line| line.starts_with(":TELAIO-S")).count(), 100 * 3 + 2);
        assert_eq!(agent.compare(), 0);
        assert_eq!(agent.stats().failures_total, 0);
    });
}

#[test]
fn a_restart_keeps_the_rules_as_they_are() {
    for_each_flavor("restart", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        drop(agent);
        let before = IpFamily::ALL.map(|family| saved(flavor, family));
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        let stats = agent.stats();
        assert_eq!((stats.changes_total, stats.drift_repairs_total), (0, 0));
        assert_eq!(IpFamily::ALL.map(|family| saved(flavor, family)), before);
    });
}

#[test]
fn a_restart_removes_what_is_not_wanted_any_more() {
    for_each_flavor("stale", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        drop(agent);
        let mut agent = Agent::start(flavor);
        agent.set(&services()[1..]);
        for family in IpFamily::ALL {
            assert!(!saved(flavor, family).contains("test/web"));
        }
        assert_eq!(agent.compare(), 0);
        // Nobody else has done anything.
        assert_eq!(agent.stats().drift_repairs_total, 0);
    });
}

#[test]
fn what_somebody_breaks_is_noticed_and_mended_and_others_rules_stay() {
    let breaks: [fn(&str) -> String; 6] = [
        |it| {
            format!(
                "{it} -t nat -D PREROUTING -m comment --comment 'telaio service portals' -j TELAIO-SERVICES"
            )
        },
        |it| format!("{it} -t nat -F"),
        |it| format!("{it} -t nat -F && {it} -t nat -X && {it} -F && {it} -X && {it} -t mangle -X"),
        |it| format!("{it} -t nat -F TELAIO-MARK-MASQ"),
        |it| format!("{it} -t nat -R TELAIO-MARK-MASQ 1 -j MARK --or-mark 0x8000"),
        |it| format!("{it} -A TELAIO-FORWARD -j DROP"),
    ];
    for_each_flavor("drift", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        for family in IpFamily::ALL {
            let program = format!("{}{}", base(family), word(flavor));
            for break_it in breaks {
                // Whatever was noticed before is not news.
                while agent.synced.try_recv().is_ok() {}
                let before = agent.stats().drift_repairs_total;
                let right = Ruleset::parse(&saved(flavor, family));
                let broken = break_it(&program);
                // A rule of somebody else's comes too: it is no drift, and stays.
                output(&format!("{broken} && {program} -A OUTPUT -p tcp --dport 7 -j ACCEPT"));
                // It may be noticed before all of it is done, and then again.
                let mended = || sorted(&Ruleset::parse(&saved(flavor, family))) == sorted(&right);
                while agent.stats().drift_repairs_total == before || !mended() {
                    agent.wait_for_drift(&broken);
                }
            }
            assert!(saved(flavor, family).contains("--dport 7 -j ACCEPT"));
        }
        assert_eq!(agent.compare(), 0);
    });
}

#[test]
fn a_change_on_broken_rules_mends_them() {
    for_each_flavor("broken", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        let program = format!("iptables{}", word(flavor));
        output(&format!("{program} -t nat -F && {program} -t nat -X"));
        agent
            .set(&[Fixture::new("new").cluster_ip([10, 96, 9, 9]).remote([10, 244, 9, 9]).build()]);
        assert_eq!(agent.compare(), 0);
        assert!(agent.stats().drift_repairs_total > 0);
        assert!(saved(flavor, IpFamily::V4).contains("test/new cluster IP"));
    });
}

#[test]
fn cleanup_leaves_nothing_of_ours_and_all_of_others() {
    for_each_flavor("cleanup", |flavor| {
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        drop(agent);
        let program = format!("iptables{}", word(flavor));
        output(&format!("{program} -t nat -N DOCKER && {program} -t nat -A PREROUTING -j DOCKER"));
        let removed = cleanup(&[Flavor::Auto]).unwrap();
        assert_eq!(removed.len(), 6, "{removed:?}");
        let text = saved(flavor, IpFamily::V4);
        let rules: Vec<_> = text.lines().filter(|line| line.starts_with('-')).collect();
        assert_eq!(rules, ["-A PREROUTING -j DOCKER"]);
        assert!(!saved(flavor, IpFamily::V6).contains("TELAIO"));
        assert_eq!(cleanup(&[Flavor::Auto]).unwrap(), Vec::<String>::new());
        // What was not there was not made.
        if flavor == Flavor::Nft {
            assert_eq!(output("cat /proc/thread-self/net/ip_tables_names"), "");
        }
    });
}

#[test]
fn kube_proxys_rules_are_seen_and_removed_and_kubelets_stay() {
    const KUBE: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]
:KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
-A KUBE-SVC-XPGD46QRK7WJZT7O -j KUBE-SEP-SXIVWICOYRO3J4NJ
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -j KUBE-FORWARD
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
";
    for_each_flavor("kube", |flavor| {
        assert_eq!(kube_proxy_present(), None);
        let restore = format!("iptables{}-restore --noflush", word(flavor));
        output(&format!("{restore} <<'END'\n{KUBE}END"));
        let mut agent = Agent::start(flavor);
        agent.set(&services());
        assert!(kube_proxy_present().unwrap().contains("KUBE-"));
        let ours = sorted(&Ruleset::parse(&saved(flavor, IpFamily::V4)));
        cleanup_kube_proxy().unwrap();
        assert_eq!(kube_proxy_present(), None);
        let text = saved(flavor, IpFamily::V4);
        let left: Vec<_> = text.lines().filter(|line| line.contains("KUBE-")).collect();
        assert_eq!(
            left,
            [":KUBE-FIREWALL -", "-A INPUT -j KUBE-FIREWALL", ":KUBE-KUBELET-CANARY -"]
        );
        assert_eq!(sorted(&Ruleset::parse(&text)), ours);
    });
}

#[test]
fn a_changed_rule_shows_in_the_fingerprint_of_its_chain_and_a_packet_does_not() {
    use telaio_netlink::xtables::{Family, chain_fingerprints, table_info};
    Namespace::new("fingerprint", Flavor::Legacy).run(|| {
        for (program, family) in [("iptables", Family::V4), ("ip6tables", Family::V6)] {
            let run = |arguments: &str| output(&format!("{program}-legacy {arguments}"));
            run("-A OUTPUT -p udp --dport 7 -j ACCEPT");
            for chain in ["ONE", "TWO"] {
                run(&format!("-N {chain}"));
                run(&format!("-A {chain} -p udp --dport 7 -j ACCEPT"));
            }
            let look = || {
                let mut chains = Vec::new();
                chain_fingerprints(family, "filter", |chain, number| {
                    chains.push((chain.to_owned(), number));
                })
                .unwrap();
                (table_info(family, "filter"), chains)
            };
            let before = look();
            assert!(before.0.is_some());
            let names: Vec<&str> = before.1.iter().map(|(chain, _)| chain.as_str()).collect();
            assert_eq!(names, ["", "ONE", "TWO", "ERROR"]);
            output("ip link set lo up");
            let loopback: std::net::IpAddr = if family == Family::V4 {
                [127, 0, 0, 1].into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            };
            let socket = std::net::UdpSocket::bind((loopback, 0)).unwrap();
            socket.send_to(b"x", (loopback, 7)).unwrap();
            assert!(
                run("-vnxL OUTPUT").lines().any(|line| line.split_whitespace().next() == Some("1"))
            );
            assert_eq!(look(), before);
            for (chain, changed) in [("OUTPUT", 0), ("ONE", 1), ("TWO", 2)] {
                let before = look();
                run(&format!("-R {chain} 1 -p udp --dport 8 -j ACCEPT"));
                let after = look();
                assert_eq!(after.0, before.0);
                let differ = |at: &usize| after.1[*at] != before.1[*at];
                assert_eq!((0..4).filter(differ).collect::<Vec<_>>(), [changed], "{chain}");
            }
        }
    });
}
