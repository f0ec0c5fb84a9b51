//! What is rendered for IPVS is what the real programs print and take.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use telaio_model::{LocalService, Protocol, ServiceEndpoints};
use telaio_netlink::ipset::{Entry, Ipset, Mark};
use telaio_netlink::netns::Netns;
use telaio_service_proxy::config::{DetectLocal, NodeFacts, ProxyConfig};
use telaio_service_proxy::fixture::Fixture;
use telaio_service_proxy::ipvs::compile::{ANNOTATION_FORWARDING, ANNOTATION_SCHEDULER};
use telaio_service_proxy::ipvs::proxier::{DEVICE, spec};
use telaio_service_proxy::ipvs::render::{parts, render};
use telaio_service_proxy::ipvs::state::{Circumstances, State};
use telaio_service_proxy::ipvs::types::Scheduler;
use telaio_testkit::guest::{self, GuestError};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn annotated(name: &'static str, value: &'static str) -> impl FnOnce(&mut LocalService) {
    move |it| _ = it.annotations.insert(name.into(), value.into())
}

/// Something of every kind: places, policies, protocols, both families.
fn services() -> Vec<ServiceEndpoints> {
    let full = Fixture::new("full")
        .cluster_ip([10, 96, 0, 1])
        .cluster_ip(ip("fd00:10:96::1"))
        .load_balancer_ip([192, 0, 2, 1])
        .load_balancer_ip(ip("2001:db8::1"))
        .node_port(30080)
        .sticky(10800)
        .with(|it| {
            it.external_traffic_to_local = true;
            it.source_ranges = ["203.0.113.0/24", "203.0.114.7/32", "2001:db8:7::/48"]
                .map(|net| net.parse().unwrap())
                .to_vec();
        })
        .local([10, 244, 1, 1])
        .local(ip("fd00:10:244:1::1"))
        .remote([10, 244, 2, 1])
        .weight(7)
        .remote(ip("fd00:10:244:2::1"));
    let udp = Fixture::new("udp").cluster_ip([10, 96, 0, 2]).protocol(Protocol::Udp);
    let udp = udp.with(annotated(ANNOTATION_SCHEDULER, "sh")).remote([10, 244, 2, 2]);
    let sctp = Fixture::new("sctp").cluster_ip(ip("fd00:10:96::3")).protocol(Protocol::Sctp);
    let sctp = sctp.remote(ip("fd00:10:244:2::3"));
    let same_port = |name, last| {
        let service = Fixture::new(name).cluster_ip([10, 96, 0, last]).remote([10, 244, 2, last]);
        service.with(|it| it.ports[0].target_port = Some(80))
    };
    let direct = same_port("direct", 4).with(annotated(ANNOTATION_FORWARDING, "direct"));
    let tunnel = same_port("tunnel", 5).with(annotated(ANNOTATION_FORWARDING, "tunnel"));
    let nobody = Fixture::new("nobody").cluster_ip([10, 96, 0, 6]);
    let elsewhere = Fixture::new("elsewhere").cluster_ip([10, 96, 0, 7]).remote([10, 244, 2, 7]);
    let elsewhere = elsewhere.with(|it| it.internal_traffic_to_local = true);
    [full, udp, sctp, direct, tunnel, nobody, elsewhere].map(|it| it.build()).to_vec()
}

fn state() -> State {
    let services = services();
    let services: Vec<&ServiceEndpoints> = services.iter().collect();
    let nets = ["10.244.0.0/16", "fd00:10:244::/48"].map(|net| net.parse().unwrap());
    let detect_local = DetectLocal::ClusterCidr(nets.to_vec());
    let config = ProxyConfig { detect_local, ..ProxyConfig::default() };
    let machine = ["192.168.50.11", "fd00:50::11"].map(ip);
    let node = NodeFacts { addresses: machine.to_vec(), ..NodeFacts::default() };
    let machine = BTreeSet::from(machine);
    let scheduler = Scheduler::default();
    State::compile(
        &services,
        &Circumstances { config: &config, node: &node, scheduler, machine: &machine },
    )
}

/// What a program is given.
fn part(program: &str) -> String {
    let found = parts(&state()).into_iter().find(|part| part.program == program);
    found.unwrap_or_else(|| panic!("nothing for {program}")).text
}

/// Runs a program with a text; what it prints.
fn run(command: &str, text: &str) -> String {
    let mut words = command.split(' ');
    let mut child = Command::new(words.next().unwrap())
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command} is needed: {error}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}\n{text}");
    String::from_utf8(output.stdout).unwrap()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.sort_unstable();
    lines
}

/// A namespace that is gone when the test ends.
struct Namespace(Netns);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("tl-ipvs-{name}-{}", std::process::id());
        Self(Netns::create(&name).expect("these tests need root"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Netns::remove(self.0.name()).unwrap();
    }
}

#[test]
fn ipset_prints_the_same_for_sets_that_we_made() {
    let namespace = Namespace::new("made");
    let state = state();
    let saved = namespace.0.run(|| {
        let mut ipset = Ipset::open().unwrap();
        for set in &state.sets {
            ipset.create(set.as_str(), &spec(*set)).unwrap();
        }
        for (member, mark) in &state.members {
            let mark = mark.map(|value| Mark { value, mask: u32::MAX });
            let entry = Entry { mark, ..Entry::new(member.entry) };
            assert!(ipset.add(member.set.as_str(), &[entry]).unwrap().is_empty());
        }
        run("ipset save", "")
    });
    assert_eq!(sorted(&saved.unwrap()), sorted(&part("ipset restore")));
}

#[test]
fn ipset_takes_what_is_rendered() {
    let namespace = Namespace::new("taken");
    let text = part("ipset restore");
    let saved = namespace.0.run(|| {
        run("ipset restore", &text);
        run("ipset save", "")
    });
    // The program makes sets of its newest kind, which have more to say about themselves.
    let saved = saved.unwrap();
    let known = |line: &str| line.split(" bucketsize").next().unwrap_or_default().to_owned();
    let saved: Vec<String> = saved.lines().map(known).collect();
    assert_eq!(sorted(&saved.join("\n")), sorted(&text));
}

#[test]
fn iptables_takes_the_rules_once_the_sets_are_there() {
    let namespace = Namespace::new("rules");
    namespace
        .0
        .run(|| {
            run("ipset restore", &part("ipset restore"));
            for program in ["iptables", "ip6tables"] {
                for flavor in ["nft", "legacy"] {
                    let text = part(&format!("{program}-restore --noflush"));
                    run(&format!("{program}-{flavor}-restore --noflush"), &text);
                    let saved = run(&format!("{program}-{flavor}-save"), "");
                    for chain in ["TELAIO-IPVS-INPUT", "TELAIO-IPVS-FILTER", "TELAIO-IPVS-IPS"] {
                        assert!(saved.contains(&format!("-A {chain}")), "{program} {flavor}");
                    }
                }
            }
        })
        .unwrap();
}

#[test]
fn ipvsadm_takes_what_is_rendered_and_prints_it() -> Result<(), GuestError> {
    guest::inside("ipvsadm_takes_what_is_rendered_and_prints_it", || {
        let text = part("ipvsadm --restore");
        run("modprobe ip_vs", "");
        run("ipvsadm --restore", &text);
        let saved = run("ipvsadm --save --numeric", "");
        assert_eq!(sorted(&saved), sorted(&text));
    })
}

#[test]
fn ip_takes_the_addresses() -> Result<(), GuestError> {
    guest::inside("ip_takes_the_addresses", || {
        run("modprobe dummy", "");
        run("ip -batch -", &part("ip -batch -"));
        let shown = run(&format!("ip -brief address show dev {DEVICE}"), "");
        let shown: BTreeSet<&str> =
            shown.split_whitespace().filter(|it| it.contains('/')).collect();
        let wanted = state().addresses;
        let single = |ip: &IpAddr| format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
        let missing: Vec<String> =
            wanted.iter().map(single).filter(|it| !shown.contains(it.as_str())).collect();
        assert!(missing.is_empty() && !wanted.is_empty(), "{missing:?}: {shown:?}");
    })
}

#[test]
fn every_part_stands_under_its_program() {
    let text = render(&state());
    let titles: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let expected = [
        "# ipset restore",
        "# ipvsadm --restore",
        "# ip -batch -",
        "# iptables-restore --noflush",
        "# ip6tables-restore --noflush",
    ];
    assert_eq!(titles, expected);
    assert_eq!(render(&state()), text, "the same every time");
}
