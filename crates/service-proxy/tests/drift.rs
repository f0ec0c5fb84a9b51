//! Others change what is ours, on the real kernel: it is noticed by what tells of it, and mended without
//! reading everything. In namespaces that each test makes for itself.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use telaio_model::{IpFamily, Op, ServiceEndpoints};
use telaio_netlink::netns::Netns;
use telaio_reconcile::kpng::{Backend, Sink};
use telaio_reconcile::{PacerConfig, SyncHandle};
use telaio_service_proxy::config::{DetectLocal, ProxyConfig};
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::iptables::{Flavor, IptablesBackend};
use telaio_service_proxy::nftables::NftablesBackend;
use telaio_service_proxy::nftables::compile::{Item, Key};
use telaio_service_proxy::nftables::target::{Kernel, Reads};
use telaio_service_proxy::options::{Follower, LocalhostPorts, Programmed, ProxyOptions};

/// Far longer than anything takes; only a fault waits this long.
const PATIENCE: Duration = Duration::from_mins(1);
const SERVICES: u8 = 200;

/// A namespace that is gone when the test ends.
struct Namespace(Netns);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("tl-drift-{name}-{}", std::process::id());
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

/// What a shell prints; it must succeed.
fn shell(script: &str) -> String {
    let output = Command::new("/bin/sh").args(["-ec", script]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Keeps the sync loop's handle.
#[derive(Default)]
struct HandleKeeper(OnceLock<SyncHandle>);

impl Follower for HandleKeeper {
    fn started(&self, handle: &SyncHandle) {
        self.0.set(handle.clone()).expect("started once");
    }

    fn programmed(&self, _: &Programmed<'_>) {}
}

/// A backend that runs and syncs only for a reason.
struct Agent {
    sink: Box<dyn Sink>,
    handle: SyncHandle,
}

impl Agent {
    fn start(make: impl FnOnce(ProxyOptions) -> Box<dyn Backend>) -> Self {
        let keeper = Arc::new(HandleKeeper::default());
        let mut backend = make(ProxyOptions {
            node: "node-1".into(),
            node_addresses: Vec::new(),
            config: Arc::new(ProxyConfig {
                detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]),
                ..ProxyConfig::default()
            }),
            localhost: LocalhostPorts::default(),
            pacing: PacerConfig { sync_period: Duration::from_hours(1), ..PacerConfig::default() },
            follower: keeper.clone(),
        });
        backend.setup().unwrap();
        let handle = keeper.0.get().unwrap().clone();
        Self { sink: backend.sink(), handle }
    }

    fn send(&mut self, ops: impl IntoIterator<Item = Op>) {
        for op in ops.into_iter().chain([Op::Sync]) {
            self.sink.send(op).unwrap();
        }
        assert!(self.handle.wait_synced(PATIENCE), "{:?}", self.handle.stats().last_error);
    }

    fn set(&mut self, entries: &[ServiceEndpoints]) {
        let ops = entries.iter().flat_map(|entry| {
            let endpoints = entry.endpoints.iter().cloned().map(Op::SetEndpoint);
            [Op::SetService(entry.service.clone())].into_iter().chain(endpoints)
        });
        self.send(ops.collect::<Vec<_>>());
    }

    fn repairs(&self) -> u64 {
        self.handle.stats().drift_repairs_total
    }

    /// Waits for something that a sync brings about.
    fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            let error = self.handle.stats().last_error;
            assert!(Instant::now() < deadline, "{what}: not repaired; {error:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(self.handle.wait_synced(PATIENCE));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

fn service(n: u8) -> ServiceEndpoints {
    let v6 = |a: u16, b: u16| [0xfd00, a, 0, 0, 0, 0, b, u16::from(n)];
    let fixture = Fixture::new(&format!("s{n}"))
        .cluster_ip([10, 96, 0, n])
        .cluster_ip(v6(0x96, 0))
        .node_port(30_000 + u16::from(n))
        .local([10, 244, 0, n])
        .remote([10, 244, 1, n])
        .remote(v6(0x244, 1));
    let fixture = if n.is_multiple_of(10) { fixture.sticky(60) } else { fixture };
    match n % 50 {
        7 => fixture.load_balancer_ip([192, 0, 2, n]).with(|service| {
            service.source_ranges = vec!["203.0.113.0/24".parse().unwrap()];
        }),
        _ => fixture,
    }
    .build()
}

/// The nftables backend with many services, and what it has put into the kernel.
struct Nftables {
    agent: Agent,
    reads: Arc<Reads>,
    intact: BTreeMap<Key, Item>,
}

impl Nftables {
    fn start() -> Self {
        let mut reads = None;
        let mut agent = Agent::start(|options| {
            let backend = NftablesBackend::new(options);
            reads = Some(backend.reads());
            Box::new(backend)
        });
        agent.set(&(1..=SERVICES).map(service).collect::<Vec<_>>());
        let this = Self { agent, reads: reads.unwrap(), intact: now() };
        // Whoever watches has begun to when the first repair is made.
        this.breaks("delete element ip telaio cluster-ips { 10.96.0.1 }");
        this
    }

    /// Has `nft` do something wrong and waits until it is mended and counted; tells how many items were
    /// wrong, how often everything was read meanwhile, and how often only what was touched.
    fn breaks(&self, script: &str) -> (u64, u64, u64) {
        let agent = &self.agent;
        let before = (agent.repairs(), self.reads.whole(), self.reads.touched());
        let command = format!("nft -f - <<'END'\n{script}\nEND");
        shell(&command);
        agent.wait_until(script, || agent.repairs() > before.0 && now() == self.intact);
        assert_eq!(agent.handle.stats().failures_total, 0, "{script}");
        (agent.repairs() - before.0, self.reads.whole() - before.1, self.reads.touched() - before.2)
    }
}

/// What is in the kernel now.
fn now() -> BTreeMap<Key, Item> {
    let mut kernel = Kernel::open(&IpFamily::ALL).unwrap();
    kernel.read_what_is_there().unwrap()
}

/// The handle of the first rule of a chain.
fn first_rule(chain: &str) -> String {
    let listed = shell(&format!("nft -a list chain ip telaio {chain}"));
    let mut rules =
        listed.lines().filter(|line| line.starts_with("\t\t") && !line.contains("type "));
    rules.find_map(|line| line.split("# handle ").nth(1)).expect("a rule").to_owned()
}

#[test]
fn a_touched_element_is_mended_without_reading_the_table() {
    Namespace::new("element").run(|| {
        let nftables = Nftables::start();
        for (script, wrong) in [
            ("delete element ip telaio endpoints { 10.96.0.7 . tcp . 80 . 0x1 }", 1),
            ("delete element ip6 telaio endpoints { fd00:96::7 . tcp . 80 . 0x0 }", 1),
            ("delete element ip telaio nodeports { tcp . 30009 }", 1),
            ("delete element ip telaio firewall { 192.0.2.7 . tcp . 80 }", 1),
            // Altered.
            (
                "delete element ip telaio endpoints { 10.96.0.8 . tcp . 80 . 0x0 }\n\
                 add element ip telaio endpoints { 10.96.0.8 . tcp . 80 . 0x0 : 10.9.9.9 . 1 }",
                1,
            ),
            // Of a service of ours, and of none.
            ("add element ip telaio endpoints { 10.96.0.8 . tcp . 80 . 0x7 : 10.9.9.9 . 1 }", 1),
            ("add element ip telaio endpoints { 10.9.0.1 . udp . 53 . 0x0 : 10.9.9.9 . 1 }", 1),
            ("add element ip telaio services { 10.9.0.1 . udp . 53 : 0x1 }", 1),
            ("add element ip telaio cluster-ips { 10.9.0.1 }", 1),
            ("add element ip telaio hairpin { 10.9.0.1 . 10.9.0.1 }", 1),
        ] {
            assert_eq!(nftables.breaks(script), (wrong, 0, 1), "{script}");
        }
    });
}

#[test]
fn many_touched_elements_are_mended_without_reading_the_table() {
    Namespace::new("elements").run(|| {
        let nftables = Nftables::start();
        let services = u64::from(SERVICES);
        // Those of a load balancer's address have one more place.
        let (wrong, whole, touched) = nftables.breaks("flush map ip telaio services");
        assert_eq!((wrong, whole), (services + services / 50, 0));
        assert!(touched > 0);
        // The sticky ones.
        for set in ["set ip telaio live", "map ip telaio nodeport-lasting"] {
            let (wrong, whole, _) = nftables.breaks(&format!("flush {set}"));
            assert_eq!((wrong, whole), (services / 10, 0), "{set}");
        }
        let elements: Vec<String> =
            (1..=SERVICES).map(|n| format!("10.96.0.{n} . tcp . 80 . 0x0")).collect();
        let script = format!("delete element ip telaio endpoints {{ {} }}", elements.join(", "));
        let (wrong, whole, _) = nftables.breaks(&script);
        assert_eq!((wrong, whole), (services, 0));
    });
}

#[test]
fn touched_rules_and_chains_are_mended_without_reading_the_table() {
    Namespace::new("rules").run(|| {
        let nftables = Nftables::start();
        let handle = first_rule("services");
        for (script, wrong) in [
            (format!("delete rule ip telaio services handle {handle}"), 1),
            ("flush chain ip telaio pick-2".to_owned(), 1),
            ("insert rule ip telaio services accept".to_owned(), 1),
            ("add chain ip telaio nat-prerouting { policy drop; }".to_owned(), 1),
            (
                "add chain ip telaio somebodys { type filter hook input priority 0; policy drop; }"
                    .to_owned(),
                1,
            ),
            // The old name is missing, and the new one is not ours.
            ("rename chain ip telaio nat-prerouting somebodys".to_owned(), 2),
        ] {
            let (repairs, whole, touched) = nftables.breaks(&script);
            assert_eq!((repairs, whole), (wrong, 0), "{script}");
            assert!(touched > 0);
        }
        let (wrong, whole, _) = nftables.breaks("flush table ip telaio");
        assert!(wrong > 5 && whole == 0, "{wrong} {whole}");
    });
}

#[test]
fn what_touches_the_table_itself_has_everything_read() {
    Namespace::new("table").run(|| {
        let nftables = Nftables::start();
        for script in [
            "delete table ip telaio",
            "flush ruleset",
            "add table ip telaio { flags dormant; }",
            "add set ip telaio somebodys { type ipv4_addr; }",
            // Elements that we never write, so that we cannot name them.
            "add element ip telaio services { * : 0x1 }",
            "add element ip telaio services { 10.9.0.1 . gre . 80 : 0x1 }",
            "add element ip telaio hairpin { 10.9.0.1 . 10.9.0.2 }",
        ] {
            let (wrong, whole, _) = nftables.breaks(script);
            assert!(wrong > 0 && whole > 0, "{script}: {wrong} {whole}");
        }
    });
}

#[test]
fn whom_affinity_remembers_is_nobodys_drift() {
    Namespace::new("affinity").run(|| {
        let nftables = Nftables::start();
        let client = "10.244.0.9 . 10.96.0.10 . tcp . 80";
        let script = format!(
            "add element ip telaio affinity {{ {client} timeout 60s : 0x80000001 }}\n\
             delete element ip telaio cluster-ips {{ 10.96.0.2 }}"
        );
        assert_eq!(nftables.breaks(&script), (1, 0, 1));
        assert!(shell("nft list map ip telaio affinity").contains(client));
    });
}

#[test]
fn changes_of_ours_and_of_others_at_the_same_time_end_as_they_should() {
    Namespace::new("both").run(|| {
        let mut nftables = Nftables::start();
        let whole = nftables.reads.whole();
        // Somebody breaks other services than those that change, so that nothing is in our way.
        std::thread::scope(|scope| {
            let breaker = scope.spawn(|| {
                for n in 100..150 {
                    shell(&format!(
                        "nft 'delete element ip telaio endpoints {{ 10.96.0.{n} . tcp . 80 . 0x0 }}; \
                         add element ip telaio endpoints {{ 10.96.0.{n} . tcp . 80 . 0x9 : 10.9.9.9 . 1 }}'"
                    ));
                }
            });
            for n in 1..=50 {
                let gone = service(n).endpoints[1].key.clone();
                nftables.agent.send([Op::DeleteEndpoint(gone)]);
                nftables.agent.set(&[service(n)]);
            }
            breaker.join().unwrap();
        });
        let Nftables { agent, intact, reads } = &nftables;
        agent.wait_until("all of it", || now() == *intact);
        assert_eq!(reads.whole(), whole);
        assert_eq!(agent.handle.stats().failures_total, 0);
    });
}

#[test]
fn a_change_of_the_same_size_is_noticed_by_the_lock_of_the_older_iptables() {
    Namespace::new("lock").run(|| {
        let mut agent = Agent::start(|options| {
            let mut backend = IptablesBackend::new(options, Flavor::Legacy);
            // Nothing but the lock can tell in time.
            backend.set_thorough_period_min(Duration::from_hours(1));
            Box::new(backend)
        });
        agent.set(&(1..=20).map(service).collect::<Vec<_>>());
        let saved = || {
            let text = shell("iptables-legacy-save -t nat");
            text.lines()
                .filter(|line| line.starts_with("-A"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let intact = saved();
        // More than once: what is known of the tables is another thing after each repair of ours.
        for _ in 0..3 {
            let rule = intact.iter().find(|line| line.contains("DNAT")).expect("an endpoint");
            let other = rule.replace("10.244.", "10.245.");
            assert_ne!(*rule, other);
            let (chain, spec) = other["-A ".len()..].split_once(' ').unwrap();
            let at = intact.iter().filter(|line| line.starts_with(&format!("-A {chain} ")));
            let number = 1 + at.clone().position(|line| line == rule).unwrap();
            let repairs = agent.repairs();
            shell(&format!("iptables-legacy -w 10 -t nat -R {chain} {number} {spec}"));
            agent.wait_until("the rule", || agent.repairs() > repairs && saved() == intact);
        }
        assert_eq!(agent.handle.stats().failures_total, 0);
    });
}
