//! Somebody else changes or removes our rules: it is noticed, repaired, counted and told.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use telaio_testkit::netns::{Cluster, Family, Host, Place, Transport};

use crate::manifest::{SERVICE_PORT, Service, cluster_ip};
use crate::node::{Backend, Node, comes_true, difference};
use crate::support::run;

/// Promised is one second; this is with room for a busy machine.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(3);
/// IPVS and its sets tell nothing, and are read as often as that is cheap; on the guest kernel it is not.
const REPAIR_TIME_IN_GUEST_MAX: Duration = Duration::from_secs(45);

on_every_backend!(what_others_break_is_repaired_counted_and_told);

/// What is done to what the backend `ipvs` has, beside its rules.
const DAMAGES_TO_IPVS: [(&str, &str); 11] = [
    ("all virtual servers deleted", "ipvsadm -C"),
    ("a virtual server deleted", "ipvsadm -D -t 10.96.0.1:80"),
    ("a virtual server changed", "ipvsadm -E -t 10.96.0.1:80 -s wlc -p 77"),
    ("an endpoint deleted", "ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.11:8080"),
    ("an endpoint's weight changed", "ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.11:8080 -m -w 0"),
    ("an endpoint added", "ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.99:8080 -m -w 9"),
    ("a member of a set deleted", "ipset del TELAIO-CLUSTER-IP 10.96.0.1,tcp:80"),
    ("a set flushed", "ipset flush TELAIO-6-ALLOWED"),
    ("a member of a set added", "ipset add TELAIO-DROP 10.96.0.1,tcp:80"),
    ("an address deleted", "ip address del 10.96.0.1/32 dev telaio-ipvs0"),
    ("the device deleted", "ip link del telaio-ipvs0"),
];

/// What is done to the rules, as a script of a shell on node-a.
fn damages(backend: Backend) -> Vec<(&'static str, String)> {
    if backend == Backend::Ipvs {
        return damages_to_ipvs();
    }
    if backend == Backend::Nftables {
        // The tables of ours, whatever their families.
        let each = |command: &str| {
            format!(
                "nft list tables | grep -w telaio | while read -r _ t; do nft {command} $t; done"
            )
        };
        // Those that the kernel begins with: they have a policy.
        let each_base_chain = |command: &str| {
            format!(
                "nft list chains | awk '$1 == \"table\" {{t = $2 \" \" $3}} $1 == \"chain\" {{c = $2}} \
                 $1 == \"type\" && t ~ / telaio$/ {{print \"chain \" t \" \" c \" {{ {command} }}\"}}' \
                 | nft -f -"
            )
        };
        let in_services = |command: &str, value: &str| {
            let ip = cluster_ip(Family::V4, 1);
            format!("{command} ip telaio services {{ {ip} . tcp . {SERVICE_PORT}{value} }}")
        };
        return vec![
            ("the whole ruleset flushed", "nft flush ruleset".to_owned()),
            ("our tables deleted", each("delete table")),
            ("our tables' rules flushed", each("flush table")),
            (
                "one rule deleted",
                "nft -a list ruleset | awk '$1 == \"table\" {t = $2 \" \" $3} $1 == \"chain\" {c = $2} \
                 /dnat|jump|goto|vmap/ && / # handle [0-9]+$/ && !/^\\t(chain|map|set)/ \
                 {print \"delete rule \" t \" \" c \" handle \" $NF; exit}' | nft -f -"
                    .to_owned(),
            ),
            ("one element deleted", format!("nft '{}'", in_services("delete element", ""))),
            (
                "one element altered",
                // At once, or the repair comes between.
                format!(
                    "nft '{}; {}'",
                    in_services("delete element", ""),
                    in_services("add element", " : 0x1")
                ),
            ),
            (
                "elements added that are not ours",
                "nft add element ip telaio cluster-ips '{ 203.0.113.1 }'; \
                 nft add element ip telaio services '{ 203.0.113.1 . tcp . 80 : 0x1 }'"
                    .to_owned(),
            ),
            ("our chains' policy set to drop", each_base_chain("policy drop;")),
            (
                "our tables put to sleep",
                "nft list tables | grep -w telaio | while read -r _ t; do \
                 nft add table $t '{ flags dormant; }'; done"
                    .to_owned(),
            ),
        ];
    }
    let flavor = if backend == Backend::IptablesNft { "nft" } else { "legacy" };
    let both = |command: &str| {
        format!(
            "for p in iptables-{flavor} ip6tables-{flavor}; do {}; done",
            command.replace("IPT", "$p")
        )
    };
    vec![
        ("all rules flushed", both("IPT -F; IPT -t nat -F")),
        // At once: between two programs the repair would come.
        (
            "all chains deleted",
            both("printf '*filter\\nCOMMIT\\n*nat\\nCOMMIT\\n' | IPT-restore -w 10"),
        ),
        ("one jump deleted", both("IPT -t nat -D OUTPUT 1")),
        (
            "one rule replaced by another of the same size",
            both(
                "IPT -t nat -S | awk '$1 == \"-A\" {n[$2]++} /--to-destination/ && !done \
                 {sub(/:[0-9]+$/, \":9\"); $1 = \"-R\"; $2 = $2 \" \" n[$2]; print; done = 1}' \
                 | xargs IPT -w 10 -t nat",
            ),
        ),
        (
            "our nat chains flushed",
            both(
                "IPT-save -t nat | sed -n 's/^:\\(TELAIO-SERVICES\\) .*/\\1/p' | \
                  while read -r c; do IPT -t nat -F $c; done",
            ),
        ),
    ]
}

fn damages_to_ipvs() -> Vec<(&'static str, String)> {
    let both = |command: &str| {
        format!(
            "for p in iptables-legacy ip6tables-legacy; do {}; done",
            command.replace("IPT", "$p")
        )
    };
    let mut damages: Vec<_> =
        DAMAGES_TO_IPVS.iter().map(|(what, script)| (*what, (*script).to_owned())).collect();
    damages.extend([
        ("all rules flushed", both("for t in nat filter mangle; do IPT -t $t -F; done")),
        ("one jump deleted", both("IPT -t mangle -D INPUT 1")),
        ("one rule deleted", both("IPT -t mangle -D TELAIO-IPVS-INPUT 1")),
    ]);
    damages
}

fn what_others_break_is_repaired_counted_and_told(backend: Backend) {
    let services = [
        Service::new("plain", 1).node_port().endpoints("a1 b1"),
        Service::new("ranges", 2)
            .load_balancer()
            .source_ranges(crate::fixtures::RANGES)
            .endpoints("a1"),
        Service::new("none", 3).node_port(),
    ];
    let cluster = Cluster::start().unwrap();
    let node = Node::started(&cluster, backend, &services);
    let intact = node.snapshot();
    let time_max =
        if backend == Backend::Ipvs { REPAIR_TIME_IN_GUEST_MAX } else { REPAIR_TIME_MAX };
    for (what, script) in damages(backend) {
        let repairs = node.metric("telaio_sync_drift_repairs_total");
        let (warnings, shown) = (warnings(&node), shown_repairs(&node));
        let damaged = Instant::now();
        let ended =
            cluster.on(Host::NodeA, || run(std::process::Command::new("sh").args(["-c", &script])));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{what}: {ended:?}");
        let mut now = node.snapshot();
        while now != intact && damaged.elapsed() < time_max {
            std::thread::sleep(Duration::from_millis(20));
            now = node.snapshot();
        }
        println!("{}: {what}: repaired after {:?}", backend.name(), damaged.elapsed());
        let left = difference(&intact, &now);
        assert!(left.is_empty(), "{what}: not repaired in {time_max:?}\n{left}");
        node.wait_until("repair counted", || {
            node.metric("telaio_sync_drift_repairs_total") > repairs
        });
        let counted = comes_true(|| shown_repairs(&node) > shown);
        assert!(counted, "{what}: the overview counts no repair");
        let told = comes_true(|| self::warnings(&node) > warnings);
        assert!(told, "{what}: nothing in the log\n{}", node.log());
        for family in Family::ALL {
            let to = SocketAddr::new(cluster_ip(family, 1), SERVICE_PORT);
            for from in [Host::A2, Host::NodeA, Host::Outside] {
                let outcome = node.ask(Place::of(from), to, Transport::Tcp);
                assert!(outcome.by().is_some(), "{what}: {from:?}: {outcome}");
            }
        }
    }
}

/// How many repairs the admin API's overview counts for services.
fn shown_repairs(node: &Node<'_>) -> u64 {
    let overview = node.admin("/api/v1/overview");
    let syncs = overview["syncs"].as_array().unwrap();
    let services = syncs.iter().find(|it| it["plane"] == "services");
    services.and_then(|it| it["drift_repairs"].as_u64()).unwrap_or_else(|| panic!("{overview}"))
}

/// How many warnings the log has.
fn warnings(node: &Node<'_>) -> usize {
    node.log().lines().filter(|line| line.contains("\"level\":\"WARN\"")).count()
}
