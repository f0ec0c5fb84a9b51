//! The rules as texts, in a kernel that is only played, and as packets meet them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use telaio_reconcile::SyncKind;

use super::*;
use crate::config::DetectLocal;
use crate::fixture::Fixture;
use crate::iptables::compile::Context;
use crate::iptables::parse::Entry;
use crate::iptables::proxier::{Changes, Iptables, View};
use crate::iptables::restore::Limits;
use crate::iptables::tests::fake::FakeKernel;
use crate::iptables::trace::{Element, End, Sets, Walker, Way};
use crate::iptables::{FixedRules, Ruleset, Services};
use crate::ipvs::sets::SetName;
use crate::trace::{Packet, Surroundings};

const MARK: u32 = 0x4000;
const TWIN: u32 = 0x0101;
const POD: &str = "10.244.1.9";
const OUTSIDE: &str = "203.0.113.5";
const NODE: &str = "198.18.0.1";
const ENDPOINT: &str = "10.244.2.2:8080";

fn nets(all: &[&str]) -> LocalSources {
    LocalSources::Networks(all.iter().map(|net| net.parse().unwrap()).collect())
}

fn context(local: LocalSources) -> RulesContext {
    RulesContext {
        family: IpFamily::V4,
        mark: MARK,
        masquerade_all: false,
        local,
        tcp_be_liberal: false,
    }
}

fn one_net() -> RulesContext {
    context(nets(&["10.244.0.0/16"]))
}

/// The rules of a chain, one in a line.
fn chain(scaffold: &Scaffold, name: ChainName) -> String {
    let (.., rules) = scaffold.chains.iter().find(|(_, chain, _)| *chain == name).unwrap();
    rules.iter().map(|rule| rule.to_string() + "\n").collect()
}

mod texts {
    use super::*;

    #[test]
    fn all_rules_are_rendered_as_reviewed() {
        insta::assert_snapshot!(render(&one_net()));
    }

    #[test]
    fn rules_of_ipv6_name_its_own_sets_and_answers() {
        let context = RulesContext {
            family: IpFamily::V6,
            tcp_be_liberal: true,
            ..context(nets(&["fd00:244::/64"]))
        };
        let text = render(&context);
        for set in SetName::all(IpFamily::V4) {
            assert!(!text.contains(&format!("-set {set} ")), "{set}");
        }
        assert!(text.contains("icmp6-port-unreachable") && !text.contains("INVALID"), "{text}");
    }

    /// What differs with the way in which pods are told from others.
    fn deciding(context: &RulesContext) -> String {
        let scaffold = scaffold(context);
        let parts = [IPVS_INPUT, IPVS_REMOTE, IPVS_OUTPUT]
            .map(|name| format!("{name}\n{}", chain(&scaffold, name)));
        parts.join("\n")
    }

    #[test]
    fn several_pod_networks_are_rendered_as_reviewed() {
        let several = context(nets(&["10.1.0.0/16", "10.2.0.0/16"]));
        insta::assert_snapshot!(deciding(&several));
    }

    #[test]
    fn pods_behind_an_interface_are_rendered_as_reviewed() {
        let interface = context(LocalSources::Interface("cbr0".into()));
        insta::assert_snapshot!(deciding(&interface));
        let prefix = deciding(&context(LocalSources::InterfacePrefix("veth".into())));
        assert_eq!(prefix, deciding(&interface).replace("cbr0", "veth+"));
    }

    #[test]
    fn pods_that_cannot_be_told_are_rendered_as_reviewed() {
        insta::assert_snapshot!(deciding(&context(LocalSources::Nowhere)));
    }

    #[test]
    fn with_masquerade_all_every_cluster_address_is_marked() {
        let all = RulesContext { masquerade_all: true, ..context(LocalSources::Nowhere) };
        let scaffold = scaffold(&all);
        let rule =
            "-m set --match-set TELAIO-CLUSTER-IP dst,dst -j MARK --set-xmark 0x4000/0x4000\n";
        assert!(chain(&scaffold, IPVS_INPUT).contains(rule));
        assert!(chain(&scaffold, IPVS_OUTPUT).contains(rule));
    }

    #[test]
    fn every_rule_is_read_back_as_it_was_written() {
        let kinds = [
            LocalSources::Nowhere,
            nets(&["10.1.0.0/16", "10.2.0.0/16"]),
            LocalSources::InterfacePrefix("veth".into()),
        ];
        for context in kinds.map(context) {
            for wanted in [scaffold(&context), leaving_scaffold(&context)] {
                let text = fixed::render(Owner::Ipvs, &wanted);
                let read = Ruleset::of(Owner::Ipvs, &text);
                for (table, chain, rules) in &wanted.chains {
                    let rules: Vec<Entry> = rules.iter().cloned().map(Entry::Rule).collect();
                    assert_eq!(read.chain(*table, *chain), rules, "{chain}");
                }
                for (table, chain, rule) in &wanted.jumps {
                    let found = read.chain(*table, *chain);
                    assert!(found.contains(&Entry::Rule(rule.clone())), "{rule}");
                }
            }
        }
    }

    #[test]
    fn what_stays_for_old_connections_is_one_rule() {
        assert_eq!(
            fixed::render(Owner::Ipvs, &leaving_scaffold(&one_net())),
            "*nat\n:TELAIO-IPVS-POSTROUTING - [0:0]\n\
             -A TELAIO-IPVS-POSTROUTING ! -o lo \
             -m comment --comment \"telaio connections from service addresses\" \
             -m set --match-set TELAIO-IPVS-IPS src -j MASQUERADE --random-fully\n\
             -I POSTROUTING -m comment --comment \"telaio postrouting rules\" \
             -j TELAIO-IPVS-POSTROUTING\nCOMMIT\n"
        );
    }

    #[test]
    fn what_the_operator_and_the_cluster_say_becomes_a_context() {
        let config = ProxyConfig {
            detect_local: DetectLocal::NodeCidr,
            masquerade_bit: 3,
            masquerade_all: true,
            ..ProxyConfig::default()
        };
        let pod_cidrs = ["10.1.0.0/16", "fd00:1::/64"].map(|net| net.parse().unwrap()).to_vec();
        let node = NodeFacts { pod_cidrs, ..NodeFacts::default() };
        let context = RulesContext::new(&config, &node, IpFamily::V6);
        assert_eq!((context.mark, context.masquerade_all), (8, true));
        assert_eq!(context.local, nets(&["fd00:1::/64"]));
    }
}

mod kernel {
    use super::*;

    /// Rules of both backends in one kernel that is only played.
    struct Bench {
        kernel: FakeKernel,
        fixed: FixedRules,
        iptables: Iptables,
        services: Services,
    }

    impl Bench {
        fn new() -> Self {
            let kernel = FakeKernel::new(Limits::LEGACY);
            let config = ProxyConfig::default();
            let context = Context::new(&config, &NodeFacts::default(), IpFamily::V4);
            let web =
                Fixture::new("web").cluster_ip([10, 96, 0, 1]).remote([10, 244, 2, 1]).build();
            Self {
                fixed: FixedRules::new(
                    Owner::Ipvs,
                    Box::new(kernel.clone()),
                    IpFamily::V4,
                    scaffold(&one_net()),
                ),
                iptables: Iptables::new(Box::new(kernel.clone()), context),
                kernel,
                services: Services::from([(web.service.key.clone(), web)]),
            }
        }

        /// Syncs the other backend; says how much it changed.
        fn sync_iptables(&mut self, kind: SyncKind, changes: &Changes) -> usize {
            let view = View { before: &self.services, changes };
            self.iptables.sync(kind, view).unwrap().changes()
        }

        fn sync(&mut self, kind: SyncKind) -> usize {
            self.fixed.sync(kind).unwrap().changes()
        }

        /// The chains of one backend, and the lines that lead to them.
        fn of(&self, owner: Owner) -> Ruleset {
            Ruleset::of(owner, &self.kernel.text())
        }

        fn restores(&self) -> usize {
            self.kernel.state.lock().texts.len()
        }
    }

    #[test]
    fn rules_that_stand_are_neither_read_nor_written() {
        let mut bench = Bench::new();
        assert!(bench.sync(SyncKind::Changes) > 0);
        let saves = bench.kernel.state.lock().saves;
        assert_eq!(bench.sync(SyncKind::Changes), 0);
        assert_eq!((bench.restores(), bench.kernel.state.lock().saves), (1, saves));
        assert_eq!(bench.sync(SyncKind::Full), 0);
        bench.fixed.set_scaffold(scaffold(&one_net()));
        assert_eq!(bench.sync(SyncKind::Changes), 0);
        assert_eq!((bench.restores(), bench.kernel.state.lock().saves), (1, saves + 1));
        assert_eq!(bench.fixed.counters().commits, 3);
    }

    #[test]
    fn what_somebody_else_breaks_is_mended_at_once_and_counted() {
        let mut bench = Bench::new();
        bench.sync(SyncKind::Full);
        let right = bench.of(Owner::Ipvs);
        {
            let mut state = bench.kernel.state.lock();
            let mangle = state.tables.get_mut(&Table::Mangle).unwrap();
            mangle.get_mut("TELAIO-IPVS-OUTPUT").unwrap().clear();
            mangle.get_mut("INPUT").unwrap().clear();
            mangle.insert("TELAIO-IPVS-ELSE".into(), vec!["-j DROP".into()]);
            let filter = state.tables.get_mut(&Table::Filter).unwrap();
            filter.get_mut("TELAIO-IPVS-FILTER").unwrap().remove(0);
        }
        assert_eq!(bench.sync(SyncKind::Changes), 0, "nobody has looked yet");
        let report = bench.fixed.sync(SyncKind::Drift).unwrap();
        assert_eq!((report.drift_repairs, report.changes()), (4, 4), "{report:?}");
        assert_eq!(bench.of(Owner::Ipvs), right);
        assert_eq!(bench.restores(), 2);
    }

    #[test]
    fn after_an_error_everything_is_read_anew() {
        let mut bench = Bench::new();
        bench.kernel.state.lock().fail_after = Some(1);
        assert!(bench.fixed.sync(SyncKind::Changes).is_err());
        assert!(bench.sync(SyncKind::Changes) > 0);
        assert_eq!(bench.sync(SyncKind::Full), 0);
        assert_eq!(bench.fixed.counters().failures, 1);
    }

    #[test]
    fn another_scaffold_replaces_what_was_there() {
        let mut bench = Bench::new();
        bench.sync(SyncKind::Full);
        bench.fixed.set_scaffold(leaving_scaffold(&one_net()));
        let report = bench.fixed.sync(SyncKind::Changes).unwrap();
        assert_eq!(report.drift_repairs, 0, "it was us");
        let names: Vec<_> = bench.of(Owner::Ipvs).chains().map(|(_, name, _)| name).collect();
        assert_eq!(names, [POSTROUTING, IPVS_POSTROUTING]);
        bench.fixed.set_scaffold(no_scaffold());
        bench.sync(SyncKind::Changes);
        assert_eq!(bench.of(Owner::Ipvs), Ruleset::default());
    }

    #[test]
    fn neither_backend_sees_the_others_chains() {
        for ipvs_first in [true, false] {
            let mut bench = Bench::new();
            let none = Changes::new();
            if ipvs_first {
                bench.sync(SyncKind::Full);
                bench.sync_iptables(SyncKind::Full, &none);
            } else {
                bench.sync_iptables(SyncKind::Full, &none);
                bench.sync(SyncKind::Full);
            }
            let (ipvs, iptables) = (bench.of(Owner::Ipvs), bench.of(Owner::Iptables));
            assert!(ipvs.chains().count() > 5 && iptables.chains().count() > 5);
            for kind in [SyncKind::Changes, SyncKind::Full, SyncKind::Drift] {
                assert_eq!(bench.sync(kind), 0, "{kind:?}");
                assert_eq!(bench.sync_iptables(kind, &none), 0, "{kind:?}");
            }
            // One changes its services, then goes; the other's stay as they are.
            let gone = bench.services.keys().map(|key| (key.clone(), None)).collect();
            assert!(bench.sync_iptables(SyncKind::Changes, &gone) > 0);
            assert_eq!(bench.of(Owner::Ipvs), ipvs);
            let iptables = bench.of(Owner::Iptables);
            bench.fixed.set_scaffold(no_scaffold());
            assert!(bench.sync(SyncKind::Changes) > 0);
            assert_eq!(bench.of(Owner::Iptables), iptables);
            assert_eq!(bench.of(Owner::Ipvs), Ruleset::default());
        }
    }

    #[test]
    fn a_flushed_table_is_mended_by_each_for_itself() {
        let mut bench = Bench::new();
        let none = Changes::new();
        bench.sync(SyncKind::Full);
        bench.sync_iptables(SyncKind::Full, &none);
        let (ipvs, iptables) = (bench.of(Owner::Ipvs), bench.of(Owner::Iptables));
        let chains = |bench: &Bench, table| bench.kernel.state.lock().tables[&table].clone();
        let built_in = |name: &str| Owner::of(name).is_none();
        for table in Table::ALL {
            let kept: BTreeMap<_, _> = chains(&bench, table)
                .into_keys()
                .filter(|name| built_in(name))
                .map(|name| (name, Vec::new()))
                .collect();
            bench.kernel.state.lock().tables.insert(table, kept);
        }
        bench.sync(SyncKind::Drift);
        assert_eq!(bench.of(Owner::Ipvs), ipvs);
        assert_eq!(bench.of(Owner::Iptables), Ruleset::default());
        bench.sync_iptables(SyncKind::Drift, &none);
        assert_eq!(bench.of(Owner::Ipvs), ipvs);
        assert_eq!(bench.of(Owner::Iptables), iptables);
    }
}

mod packets {
    use super::*;

    /// Sets as `ipset save` would print their members, and marks of those that have them.
    #[derive(Default)]
    struct Members(BTreeMap<&'static str, Vec<(Element, u32)>>);

    impl Members {
        fn with(mut self, set: SetKind, element: Element, mark: u32) -> Self {
            self.0.entry(set.name(IpFamily::V4)).or_default().push((element, mark));
            self
        }

        fn ip(self, set: SetKind, ip: &str) -> Self {
            self.with(set, Element::Ip(ip.parse().unwrap()), 0)
        }

        fn port(self, set: SetKind, to: &str) -> Self {
            let mark = if set == SetKind::Local { TWIN } else { 0 };
            self.with(set, Element::IpPort(to.parse().unwrap(), Protocol::Tcp), mark)
        }

        fn port_ip(self, set: SetKind, to: &str, ip: &str) -> Self {
            let element =
                Element::IpPortIp(to.parse().unwrap(), Protocol::Tcp, ip.parse().unwrap());
            self.with(set, element, 0)
        }
    }

    impl Sets for Members {
        fn contains(&self, set: &str, element: &Element) -> bool {
            self.mark(set, element).is_some()
        }

        fn mark(&self, set: &str, element: &Element) -> Option<u32> {
            let members = self.0.get(set)?;
            members.iter().find(|(member, _)| member == element).map(|(_, mark)| *mark)
        }
    }

    const CLUSTER: &str = "10.96.0.1:80";
    const EXTERNAL: &str = "192.0.2.1:80";
    const LOCAL: &str = "192.0.2.2:80";
    const NO_LOCAL: &str = "192.0.2.3:80";
    const REJECTED: &str = "10.96.0.4:80";
    const DROPPED: &str = "192.0.2.5:80";
    const RESTRICTED: &str = "192.0.2.6:80";

    fn members() -> Members {
        let all = [
            (SetKind::ClusterIp, CLUSTER),
            (SetKind::External, EXTERNAL),
            (SetKind::Local, LOCAL),
            (SetKind::NoLocal, NO_LOCAL),
            (SetKind::Reject, REJECTED),
            (SetKind::Drop, DROPPED),
            (SetKind::External, RESTRICTED),
            (SetKind::Restricted, RESTRICTED),
        ];
        let mut members = Members::default()
            .port_ip(SetKind::Allowed, RESTRICTED, OUTSIDE)
            .port_ip(SetKind::LoopBack, ENDPOINT, "10.244.2.2");
        for (set, to) in all {
            let device = to.parse::<SocketAddr>().unwrap().ip().to_string();
            members = members.port(set, to).ip(SetKind::Addresses, &device);
        }
        members
    }

    /// What the rules do with a packet: until a virtual server would take it, and after that.
    #[derive(Debug, PartialEq, Eq)]
    enum Fate {
        Refused(End),
        /// The mark with which a virtual server is looked for, and whether what it sends on is
        /// masqueraded.
        Passes {
            mark: u32,
            masqueraded: bool,
        },
    }

    const PLAIN: Fate = Fate::Passes { mark: 0, masqueraded: false };
    const MASQUERADED: Fate = Fate::Passes { mark: MARK, masqueraded: true };
    const LOCAL_ONLY: Fate = Fate::Passes { mark: TWIN, masqueraded: false };
    const DROP: Fate = Fate::Refused(End::Dropped);
    const REJECT: Fate = Fate::Refused(End::Rejected);

    fn fate(context: &RulesContext, from: &str, by: Option<&str>, to: &str) -> Fate {
        let rules = Ruleset::of(Owner::Ipvs, &render(context));
        let packet = Packet {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            protocol: Protocol::Tcp,
            interface: by.map(str::to_owned),
        };
        let device = members();
        let mut addresses: std::collections::BTreeSet<IpAddr> = [NODE.parse().unwrap()].into();
        addresses.extend(device.0[SetKind::Addresses.name(IpFamily::V4)].iter().map(|(it, _)| {
            let Element::Ip(ip) = it else { panic!("{it:?}") };
            *ip
        }));
        let around = Surroundings { addresses };
        let mut walker = Walker::new(&packet, &around, &rules, &device);
        let hook = if around.starts_here(&packet) { OUTPUT } else { INPUT };
        let mut way = walker.step(Table::Mangle, hook, Way::new(packet.to));
        if hook == INPUT {
            way = walker.step(Table::Filter, hook, way);
        }
        let is_served = [CLUSTER, EXTERNAL, LOCAL, NO_LOCAL, RESTRICTED]
            .iter()
            .any(|it| it.parse() == Ok(way.to));
        if !way.is_refused() && !is_served {
            way = walker.step(Table::Filter, hook, way);
        }
        if let Some(end) = way.end {
            return Fate::Refused(end);
        }
        let mark = way.mark;
        let way = way.sent_to(ENDPOINT.parse().unwrap());
        let way = walker.step(Table::Nat, POSTROUTING, way);
        Fate::Passes { mark, masqueraded: way.is_masqueraded() }
    }

    #[track_caller]
    fn assert_fates(context: &RulesContext, from: &str, by: Option<&str>, fates: &[(&str, Fate)]) {
        for (to, wanted) in fates {
            assert_eq!(fate(context, from, by, to), *wanted, "from {from} to {to}");
        }
    }

    #[test]
    fn a_pod_keeps_its_address_within_the_cluster_and_uses_all_endpoints() {
        assert_fates(
            &one_net(),
            POD,
            Some("veth1"),
            &[
                (CLUSTER, PLAIN),
                (EXTERNAL, MASQUERADED),
                (LOCAL, PLAIN),
                (NO_LOCAL, PLAIN),
                (REJECTED, REJECT),
                (DROPPED, DROP),
                (RESTRICTED, DROP),
            ],
        );
    }

    #[test]
    fn who_comes_from_outside_keeps_its_address_only_towards_local_endpoints() {
        assert_fates(
            &one_net(),
            OUTSIDE,
            Some("eth0"),
            &[
                (CLUSTER, MASQUERADED),
                (EXTERNAL, MASQUERADED),
                (LOCAL, LOCAL_ONLY),
                (NO_LOCAL, DROP),
                (REJECTED, REJECT),
                (DROPPED, DROP),
                (RESTRICTED, MASQUERADED),
            ],
        );
        assert_eq!(fate(&one_net(), "8.8.8.8", Some("eth0"), RESTRICTED), DROP);
    }

    #[test]
    fn who_is_on_the_node_uses_all_endpoints_with_the_nodes_address() {
        assert_fates(
            &one_net(),
            NODE,
            None,
            &[
                (CLUSTER, MASQUERADED),
                (EXTERNAL, MASQUERADED),
                (LOCAL, MASQUERADED),
                (NO_LOCAL, MASQUERADED),
                (REJECTED, REJECT),
                (DROPPED, DROP),
                (RESTRICTED, DROP),
            ],
        );
    }

    #[test]
    fn who_is_on_the_node_and_has_a_service_address_as_its_source_is_masqueraded() {
        let nowhere = context(LocalSources::Nowhere);
        assert_eq!(fate(&nowhere, NODE, None, CLUSTER), PLAIN);
        assert_eq!(fate(&nowhere, "10.96.0.1", None, CLUSTER), MASQUERADED);
    }

    #[test]
    fn where_pods_cannot_be_told_all_come_from_outside_and_keep_their_address() {
        let nowhere = context(LocalSources::Nowhere);
        let fates =
            [(CLUSTER, PLAIN), (EXTERNAL, MASQUERADED), (LOCAL, LOCAL_ONLY), (NO_LOCAL, DROP)];
        assert_fates(&nowhere, POD, Some("veth1"), &fates);
        assert_fates(&nowhere, OUTSIDE, Some("eth0"), &fates);
    }

    #[test]
    fn several_networks_or_an_interface_tell_pods_as_well() {
        let several = context(nets(&["10.1.0.0/16", "10.244.0.0/16"]));
        let interface = context(LocalSources::Interface("cbr0".into()));
        let prefix = context(LocalSources::InterfacePrefix("cb".into()));
        for context in [several, interface, prefix] {
            assert_fates(&context, POD, Some("cbr0"), &[(CLUSTER, PLAIN), (NO_LOCAL, PLAIN)]);
            let outside = [(CLUSTER, MASQUERADED), (NO_LOCAL, DROP), (LOCAL, LOCAL_ONLY)];
            assert_fates(&context, OUTSIDE, Some("eth0"), &outside);
            assert_fates(&context, NODE, None, &[(CLUSTER, MASQUERADED), (LOCAL, MASQUERADED)]);
        }
    }

    #[test]
    fn with_masquerade_all_no_pod_keeps_its_address() {
        for local in [LocalSources::Nowhere, nets(&["10.244.0.0/16"])] {
            let all = RulesContext { masquerade_all: true, ..context(local) };
            assert_eq!(fate(&all, POD, Some("veth1"), CLUSTER), MASQUERADED);
            assert_eq!(fate(&all, NODE, None, CLUSTER), MASQUERADED);
        }
    }

    #[test]
    fn an_endpoint_that_reaches_itself_is_masqueraded() {
        let hairpin = Fate::Passes { mark: 0, masqueraded: true };
        assert_eq!(fate(&one_net(), "10.244.2.2", Some("veth1"), CLUSTER), hairpin);
    }

    #[test]
    fn a_port_that_no_service_has_is_refused_at_our_addresses_only() {
        for from in [(POD, Some("veth1")), (OUTSIDE, Some("eth0")), (NODE, None)] {
            assert_eq!(fate(&one_net(), from.0, from.1, "10.96.0.1:81"), REJECT, "{from:?}");
        }
        assert_eq!(fate(&one_net(), OUTSIDE, Some("eth0"), "198.18.0.1:22"), PLAIN);
    }

    #[test]
    fn a_refused_packet_stays_refused_and_another_bit_of_the_mark_stays() {
        let rules = Ruleset::of(Owner::Ipvs, &render(&one_net()));
        let sets = members();
        let packet = Packet {
            from: OUTSIDE.parse().unwrap(),
            to: NO_LOCAL.parse().unwrap(),
            protocol: Protocol::Tcp,
            interface: Some("eth0".into()),
        };
        let around = Surroundings::default();
        let mut walker = Walker::new(&packet, &around, &rules, &sets);
        let way = walker.step(Table::Mangle, INPUT, Way::new(packet.to));
        assert_eq!(walker.step(Table::Filter, INPUT, way.clone()), way);
        assert_eq!(
            walker.via().last().unwrap(),
            "mangle TELAIO-IPVS-REMOTE: -m set --match-set TELAIO-NO-LOCAL dst,dst -j DROP"
        );
        let marked = Way { mark: 1, ..Way::new(EXTERNAL.parse().unwrap()) };
        let marked = walker.step(Table::Mangle, INPUT, marked);
        assert_eq!(marked.mark, 1 | MARK);
        let marked = walker.step(Table::Nat, POSTROUTING, marked);
        assert_eq!((marked.mark, marked.is_masqueraded()), (1, true));
    }

    #[test]
    fn while_leaving_only_what_leaves_the_node_from_our_addresses_is_masqueraded() {
        let text = fixed::render(Owner::Ipvs, &leaving_scaffold(&one_net()));
        let rules = Ruleset::of(Owner::Ipvs, &text);
        let sets = members();
        let around = Surroundings { addresses: [NODE.parse().unwrap()].into() };
        for (from, to, masqueraded) in [
            ("10.96.0.1", ENDPOINT, true),
            ("10.96.0.1", "198.18.0.1:8080", false),
            (POD, ENDPOINT, false),
        ] {
            let packet = Packet {
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                protocol: Protocol::Tcp,
                interface: None,
            };
            let mut walker = Walker::new(&packet, &around, &rules, &sets);
            let way = walker.step(Table::Nat, POSTROUTING, Way::new(packet.to));
            assert_eq!(way.is_masqueraded(), masqueraded, "from {from} to {to}");
        }
    }
}
