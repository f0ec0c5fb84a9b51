//! Faults that were found, and must not come back: calls that meet, records that are lost or spoiled, others' namespaces.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::thread::JoinHandle;

use cidr::{IpInet, Ipv4Inet};
use serde_json::json;
use support::cni::{Call, config_with, machine, whole_inventory};
use support::{Node, Wire, ask, ask_at, lan, serve, serve_at};
use telaio_netlink::netns::Netns;
use telaio_pod_network::instance::{CleanInstanceRequest, SetupInstanceRequest};
use telaio_pod_network::node::{
    CleanNodeRequest, NodeIp, NodeRequest, SetupNodeRequest, clean_node, delete_node_in_cluster,
    new_node_in_cluster, setup_node,
};
use telaio_pod_network::overlay::Backend;
use telaio_pod_network::{Attachment, Bandwidth, Error, Host, Port, rules};
use telaio_testkit::machine::Machine;

const ATTACHMENTS: &str = "/var/lib/telaio/pods/boot-*/attachments";

fn gone(id: &str, host: u8, ports: Vec<Port>) -> CleanInstanceRequest {
    let ip: IpInet = format!("10.77.1.{host}/24").parse().unwrap();
    CleanInstanceRequest::new(id, ports, ip)
}

fn lines(machine: &Machine, line: &str) -> BTreeSet<String> {
    machine.sh(line).lines().map(str::to_owned).collect()
}

/// Records, claims, links and namespaces say the same.
fn assert_consistent(node: &Node, when: &str) {
    let records = node.machine.run(|| Host::default().attachments().unwrap());
    let all = |of: fn(&Attachment) -> Vec<String>| -> BTreeSet<String> {
        records.iter().flat_map(of).collect()
    };
    let base = "cd /var/lib/telaio/pods/boot-*";
    let files = lines(&node.machine, &format!("{base}/attachments && ls"));
    assert_eq!(files.len(), records.len(), "{when}: records {files:?} of {records:?}");
    let claims =
        lines(&node.machine, &format!("{base}/addresses/n-{} && ls | grep -v last", node.name));
    let addresses = all(|it| it.addresses.iter().map(|ip| ip.address().to_string()).collect());
    assert_eq!(claims, addresses, "{when}: claims and addresses");
    let ports = lines(&node.machine, &format!("{base}/ports && find . -type f | cut -d/ -f2"));
    let published = |it: &Attachment| -> Vec<String> {
        it.ports.iter().map(|port| format!("tcp-{}", port.host_port)).collect()
    };
    assert_eq!(ports, all(published), "{when}: ports");
    let links =
        lines(&node.machine, "ip -o link | sed 's/^[0-9]*: //; s/@.*//' | grep ^tlv || true");
    assert_eq!(links, all(|it| vec![it.host_link.clone()]), "{when}: links");
    let names = lines(&node.machine, "ls /run/netns");
    assert_eq!(names, all(|it| it.netns_name.iter().cloned().collect()), "{when}: namespaces");
}

#[test]
fn cleaning_an_instance_while_it_is_set_up_leaves_records_claims_and_links_that_agree() {
    const ROUNDS: usize = 60;
    let node = Node::start("race", 1);
    node.instance("stays", 7, vec![Port::new(7070, 80)]);
    node.machine.sh("ls /run/netns");
    let before = node.inventory();
    for round in 0..ROUNDS {
        let wanted = node.wanted("a", 2, vec![Port::new(8080, 80)]);
        node.machine.run(move || {
            let set_up = |wanted: SetupInstanceRequest| {
                std::thread::spawn(move || match Host::default().setup_instance(&wanted) {
                    Ok(_) | Err(Error::Busy { .. }) => {}
                    Err(error) => panic!("setting up: {error}"),
                })
            };
            let clean = || {
                std::thread::spawn(|| {
                    Host::default().clean_instance(&gone("a", 2, vec![])).unwrap();
                })
            };
            let threads = [set_up(wanted.clone()), clean(), set_up(wanted), clean()];
            threads.into_iter().map(JoinHandle::join).for_each(Result::unwrap);
        });
        assert_consistent(&node, &format!("round {round}"));
    }
    node.clean("a", 2);
    support::assert_same(&node.inventory(), &before, "at last");
    let _server = serve(&node, Some("stays"), "10.77.1.7", 80, Wire::Tcp);
    assert!(ask(&node, None, "10.77.1.7", 80, Wire::Tcp).is_ok());
}

#[test]
fn a_container_that_is_deleted_while_it_is_added_is_there_whole_or_not_at_all() {
    const ROUNDS: usize = 40;
    let machine = machine(&["a", "stays"]);
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]});
    let config = config_with(json!({"runtimeConfig": ports}));
    Call::new("ADD", "stays", &config_with(json!({}))).make(&machine).unwrap();
    for command in ["ADD", "DEL"] {
        Call::new(command, "a", &config).make(&machine).unwrap();
    }
    let before = whole_inventory(&machine);
    for round in 0..ROUNDS {
        let (add, delete) = (Call::new("ADD", "a", &config), Call::new("DEL", "a", &config));
        machine.run(move || {
            let adding = std::thread::spawn(move || add.make_here());
            let first = delete.clone();
            let deleting = std::thread::spawn(move || first.make_here());
            deleting.join().unwrap().unwrap();
            if let Err(error) = adding.join().unwrap() {
                assert_eq!(error["code"], 11, "{error}");
            }
            delete.make_here().unwrap();
        });
        support::assert_same(&whole_inventory(&machine), &before, &format!("round {round}"));
    }
}

#[test]
fn nodes_may_come_and_go_by_many_threads_at_once() {
    const ROUNDS: usize = 8;
    let node = Node::bare("many", 1);
    let _outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("stays", 7, vec![]);
    let other = |number: u8| {
        let ip: Ipv4Inet = format!("10.77.{number}.1/24").parse().unwrap();
        NodeRequest::new(format!("far{number}"), NodeIp::new(ip, [192, 168, 5, number]))
    };
    let second =
        || SetupNodeRequest::new("second", "10.78.0.1/24".parse::<Ipv4Inet>().unwrap(), vec![]);
    // What is made only once is there.
    node.machine.run(move || {
        new_node_in_cluster(other(9)).unwrap();
        delete_node_in_cluster(other(9)).unwrap();
        setup_node(second()).unwrap();
        clean_node(CleanNodeRequest::new("second")).unwrap();
    });
    let before = node.inventory();
    for round in 0..ROUNDS {
        node.machine.run(move || {
            let far = |number| {
                std::thread::spawn(move || {
                    new_node_in_cluster(other(number)).unwrap();
                    delete_node_in_cluster(other(number)).unwrap();
                    new_node_in_cluster(other(number)).unwrap();
                })
            };
            let own = || {
                std::thread::spawn(move || {
                    setup_node(second()).unwrap();
                    clean_node(CleanNodeRequest::new("second")).unwrap();
                    setup_node(second()).unwrap();
                })
            };
            let threads = [far(9), own(), far(10), own(), far(9), far(11)];
            threads.into_iter().map(JoinHandle::join).for_each(Result::unwrap);
        });
        let routes = node.machine.sh("ip route show proto 116 | awk '{print $1}' | sort");
        assert_eq!(routes, "10.77.10.0/24\n10.77.11.0/24\n10.77.9.0/24\n", "round {round}");
        node.machine.run(move || {
            (9..12).for_each(|number| delete_node_in_cluster(other(number)).unwrap());
            clean_node(CleanNodeRequest::new("second")).unwrap();
        });
        support::assert_same(&node.inventory(), &before, &format!("round {round}"));
    }
}

/// The file of an instance's record.
fn record_of(machine: &Machine, id: &str) -> String {
    machine.sh(&format!("grep -l '\"container\":\"{id}\"' {ATTACHMENTS}/*")).trim().to_owned()
}

#[test]
fn a_record_of_an_instance_that_cannot_be_read_is_named_and_the_instance_lives_on() {
    let node = Node::bare("spoilt", 1);
    let _outside = lan(&[&node]);
    node.set_up(Backend::default(), None);
    node.instance("b", 3, vec![]);
    // With all that mending makes.
    node.machine.run(|| Host::default().repair().unwrap());
    let before = node.inventory();
    for spoilt in ["garbage", r#"{"network":"spoilt"}"#, r#"{"network":"#, ""] {
        node.instance("a", 2, vec![Port::new(8080, 80)]);
        let record = record_of(&node.machine, "a");
        node.machine.sh(&format!("printf '%s' '{spoilt}' > {record}"));
        for _ in 0..2 {
            let mended = node.machine.run(|| Host::default().repair().unwrap());
            assert!(mended.is_nothing(), "{spoilt:?}: {mended:?}");
            assert!(mended.unreadable[0].contains("attachments/"), "{spoilt:?}: {mended:?}");
        }
        let told = node.machine.run(|| Host::default().problems().unwrap());
        assert_eq!(told.len(), 1, "{spoilt:?}: {told:?}");
        // Another network's collection, and its removal, leave it alone.
        let other = config_with(json!({"name": "other", "bridge": "br-other"}));
        node.machine.sh("ip netns add c");
        Call::new("ADD", "c", &other).make(&node.machine).unwrap();
        let mut collect = other.clone();
        collect["cni.dev/valid-attachments"] = json!([]);
        Call::new("GC", "", &collect).make(&node.machine).unwrap();
        node.machine.run(|| Host::default().remove_network("other").unwrap());
        node.machine
            .sh("ip netns del c; rmdir /var/lib/telaio/pods/boot-*/addresses/n-other; true");
        {
            let _server = serve(&node, Some("a"), "10.77.1.2", 80, Wire::Tcp);
            let asked = ask(&node, Some("b"), "10.77.1.1", 8080, Wire::Tcp);
            assert!(asked.is_ok(), "{spoilt:?}: {asked:?}");
        }
        let error = node.try_instance("d", 2, vec![]).unwrap_err();
        assert!(error.contains("10.77.1.2"), "{error}");
        let error = node.try_instance("d", 4, vec![Port::new(8080, 80)]).unwrap_err();
        assert!(error.contains("8080/tcp"), "{error}");
        let error = node.try_instance("a", 2, vec![Port::new(8080, 80)]).unwrap_err();
        assert!(error.contains("exists"), "{error}");
        // Whoever says its name can clean it up.
        node.clean("a", 2);
        support::assert_same(&node.inventory(), &before, spoilt);
    }
    // What was cut short before it said anything is not there.
    node.machine.sh(&format!("cd {ATTACHMENTS} && : > aaaaaaaaaaaaaaaaaaaaaaaaaa"));
    assert!(node.machine.run(|| Host::default().problems().unwrap()).is_empty());
    let mended = node.machine.run(|| Host::default().repair().unwrap());
    assert_eq!(mended.attachments.len(), 1, "{mended:?}");
    support::assert_same(&node.inventory(), &before, "cut short");
    // And when everything goes, so does what nobody can read of.
    node.instance("a", 2, vec![]);
    let record = record_of(&node.machine, "a");
    node.machine.sh(&format!("echo garbage > {record}"));
    node.machine.run(|| Host::default().remove_all().unwrap());
    let left = node
        .machine
        .sh("ip -o link | grep -v ' lo:\\| lan0'; nft list ruleset; ls /var/lib/telaio; true");
    assert_eq!(left, "");
}

#[test]
fn an_attachment_that_is_being_made_is_not_told_as_one() {
    let node = Node::start("half", 1);
    node.instance("a", 2, vec![]);
    let record = record_of(&node.machine, "a");
    let count = || node.machine.run(|| Host::default().attachments().unwrap().len());
    assert_eq!(count(), 1);
    node.machine.sh(&format!("sed -i 's/\"mac\":\"[^\"]*\"/\"mac\":\"\"/' {record}"));
    assert_eq!(count(), 0);
}

#[test]
fn an_instance_whose_record_is_lost_can_be_cleaned_and_nothing_of_it_or_less_is_left() {
    let node = Node::start("lost", 1);
    node.instance("b", 3, vec![Port::new(9090, 80)]);
    let before = node.inventory();
    node.instance("a", 2, vec![Port::new(8080, 80)]);
    let record = record_of(&node.machine, "a");
    node.machine.sh(&format!("rm {record}"));
    // Another's port is not given back, whoever says that it was his.
    let claims = vec![Port::new(8080, 80), Port::new(9090, 80)];
    let request = gone("a", 3, claims.clone());
    node.machine.run(move || Host::default().clean_instance(&request).unwrap());
    support::assert_same(&node.inventory(), &before, "by its claims");

    // Its claims are lost, too: what it is said to have had goes.
    let mut wanted = node.wanted("a", 2, vec![Port::new(8080, 80)]);
    wanted.instance_ip_cidrs.truncate(1);
    node.machine.run(move || Host::default().setup_instance(&wanted).unwrap());
    let record = record_of(&node.machine, "a");
    node.machine.sh(&format!(
        "rm {record}; cd /var/lib/telaio/pods/boot-*; rm -r ports/tcp-8080 addresses/*/10.77.1.2"
    ));
    let request = gone("a", 2, claims);
    node.machine.run(move || Host::default().clean_instance(&request).unwrap());
    let rules = |table: &str| node.machine.sh(&format!("nft list table {table} telaio-pods"));
    for family in ["ip", "ip6"] {
        let now = rules(family);
        assert!(!now.contains("tcp . 8080") && now.contains("tcp . 9090"), "{now}");
    }
    assert!(!rules("ip").contains("10.77.1.2 . 10.77.1.2"), "{}", rules("ip"));
    assert!(!rules("bridge").contains("10.77.1.2"), "{}", rules("bridge"));
    node.machine.run(|| Host::default().repair().unwrap());
    support::assert_same(&node.inventory(), &before, "without claims");
    let _server = serve(&node, Some("b"), "10.77.1.3", 80, Wire::Tcp);
    assert!(ask(&node, Some("b"), "10.77.1.1", 9090, Wire::Tcp).is_ok());
}

#[test]
fn a_container_whose_record_is_lost_is_deleted_whole() {
    let machine = machine(&["a", "b"]);
    let with_port = |port: u16| {
        let ports = json!({"portMappings": [{"hostPort": port, "containerPort": 80}]});
        config_with(json!({"runtimeConfig": ports}))
    };
    Call::new("ADD", "b", &with_port(9090)).make(&machine).unwrap();
    Call::new("ADD", "a", &with_port(8080)).make(&machine).unwrap();
    Call::new("DEL", "a", &with_port(8080)).make(&machine).unwrap();
    let before = whole_inventory(&machine);
    Call::new("ADD", "a", &with_port(8080)).make(&machine).unwrap();
    let record = record_of(&machine, "a");
    machine.sh(&format!("rm {record}"));
    Call::new("DEL", "a", &config_with(json!({}))).make(&machine).unwrap();
    support::assert_same(&whole_inventory(&machine), &before, "");
    let _server = serve_at(&machine, Some("b"), "0.0.0.0", 80, Wire::Tcp);
    assert!(ask_at(&machine, None, "10.88.0.1", 9090, Wire::Tcp).is_ok());
}

#[test]
fn an_instance_that_fails_after_its_links_are_made_leaves_nothing() {
    let node = Node::start("late", 1);
    node.instance("a", 2, vec![]);
    // The kernel's set is full, as when a node has all the ports that it has room for.
    node.machine.sh("ports=$(seq -s ', ' -f 'tcp . %.0f : 10.77.1.2 . 80' 1 32768)
         echo \"add element ip telaio-pods any-ports { $ports }\" > /run/full; nft -f /run/full");
    let all_else = || {
        let lines = node.inventory();
        lines.lines().filter(|it| !it.contains("tcp . ")).collect::<Vec<_>>().join("\n")
    };
    let before = all_else();
    let mut wanted = node.wanted("b", 3, vec![Port::new(40_000, 80)]);
    wanted.instance_ip_cidrs.truncate(1);
    let full = wanted.clone();
    let error = node.machine.run(move || Host::default().setup_instance(&full).unwrap_err());
    assert!(error.to_string().contains("one too many"), "{error}");
    support::assert_same(&all_else(), &before, "a full set");
    // A limit that cannot be.
    let limits = Bandwidth { ingress_burst: 8, ..Bandwidth::default() };
    let limited = wanted.with_bandwidth(limits);
    let error = node.machine.run(move || Host::default().setup_instance(&limited).unwrap_err());
    assert!(error.to_string().contains("burst"), "{error}");
    support::assert_same(&all_else(), &before, "a limit");
    assert_consistent(&node, "after both");
}

/// Another agent's thread: with a network of its own, but the same names of namespaces.
fn beside(machine: &Machine, work: impl FnOnce(Host) + Send + 'static) -> JoinHandle<()> {
    machine.sh("mkdir -p /var/lib/beside");
    machine.spawn(|| {
        let own = Netns::create("beside").unwrap();
        own.enter().unwrap();
        work(Host::new("/var/lib/beside"));
    })
}

#[test]
fn who_mends_leaves_the_namespaces_alone_that_others_are_just_making() {
    const ROUNDS: usize = 60;
    let node = Node::start("mends", 1);
    let other = beside(&node.machine, |host| {
        let own: Ipv4Inet = "10.99.0.1/24".parse().unwrap();
        host.setup_node(SetupNodeRequest::new("beside", own, vec![])).unwrap();
        let ip: Ipv4Inet = "10.99.0.2/24".parse().unwrap();
        let wanted = SetupInstanceRequest::new("beside", own.address(), "x", ip, vec![]);
        for round in 0..ROUNDS {
            let made = host.setup_instance(&wanted).unwrap();
            let path = format!("/run/netns/{}", made.namespace_name);
            assert!(std::path::Path::new(&path).exists(), "round {round}: it is gone");
            let ip: IpInet = ip.into();
            host.clean_instance(&CleanInstanceRequest::new("x", vec![], ip)).unwrap();
        }
    });
    while !other.is_finished() {
        node.machine.run(|| Host::default().repair().unwrap());
    }
    other.join().unwrap();
    // One that nobody is making goes.
    node.machine.sh("ip netns add telaio-i-killed");
    node.machine.run(|| Host::default().repair().unwrap());
    assert!(!node.machine.sh("ip netns list").contains("telaio-i-killed"));
}

/// Rules as firewalld has them, `more` among its zones'.
fn firewalld(more: &str) -> String {
    format!(
        "nft -f - <<'END'\n\
         table inet firewalld {{\n \
          chain filter_FWD_trusted {{ accept; }}\n \
          chain filter_FORWARD_ZONES {{ {more}\n reject with icmpx admin-prohibited; }}\n \
          chain filter_FORWARD {{\n  type filter hook forward priority filter + 10; policy accept;\n  \
           ct state {{ established, related }} accept\n  ct status dnat accept\n  iifname \"lo\" accept\n  \
           ip6 daddr {{ ::/96, fe80::/10 }} reject with icmpv6 addr-unreachable\n  \
           jump filter_FORWARD_ZONES\n  reject with icmpx admin-prohibited\n }}\n}}\nEND"
    )
}

#[test]
fn a_chain_that_ends_in_a_rule_that_refuses_is_told_until_it_knows_our_links() {
    let node = Node::start("told", 1);
    let told = || node.machine.run(|| rules::refusing_chains().unwrap());
    node.machine.sh(&firewalld(""));
    assert_eq!(told(), ["inet firewalld filter_FORWARD"]);
    node.machine.sh("nft delete table inet firewalld");
    node.machine.sh(&firewalld("iifname \"tlb-told\" goto filter_FWD_trusted"));
    assert!(told().is_empty(), "{:?}", told());
    node.machine.sh("nft delete table inet firewalld");
    // What refuses only some is no such rule, and neither is a chain that looks at other packets.
    node.machine.sh(
        "nft -f - <<'END'\ntable inet some {\n chain f { type filter hook forward priority 0; tcp dport 25 counter reject; }\n \
         chain i { type filter hook input priority 0; ct state new counter drop; accept; }\n}\nEND",
    );
    assert!(told().is_empty(), "{:?}", told());
    node.machine.sh("nft add rule inet some f counter drop");
    assert_eq!(told(), ["inet some f"]);
    node.machine.sh("nft insert rule inet some f iifname 'tl*' accept; nft insert rule inet some f oifname 'tl*' accept");
    assert!(told().is_empty(), "{:?}", told());
    // As iptables' users end the chain: our own place in it comes too late.
    node.machine.sh("iptables-nft -A FORWARD -j REJECT --reject-with icmp-host-prohibited");
    assert_eq!(told(), ["ip filter FORWARD"]);
}

#[test]
fn a_node_may_have_several_networks_of_one_family() {
    let (a, b) = (Node::bare("a", 1), Node::bare("b", 2));
    let _outside = lan(&[&a, &b]);
    let second: Ipv4Inet = "10.80.1.1/28".parse().unwrap();
    a.machine.run(move || {
        let first: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
        setup_node(SetupNodeRequest::new("a", first, vec![]).with_node_ip(second)).unwrap();
    });
    b.set_up(Backend::default(), None);
    let from_b = b.request(&["192.168.5.2".parse().unwrap(), "fd05::2".parse().unwrap()]);
    a.machine.run(move || new_node_in_cluster(from_b).unwrap());
    b.machine.run(move || {
        let first: Ipv4Inet = "10.77.1.1/24".parse().unwrap();
        let ip = NodeIp::new(first, [192, 168, 5, 1]).with_cluster_ip(second);
        new_node_in_cluster(NodeRequest::new("a", ip)).unwrap();
    });
    a.instance_v4("one", 2);
    a.machine.run(|| {
        let ip: Ipv4Inet = "10.80.1.2/28".parse().unwrap();
        let wanted = SetupInstanceRequest::new("a", [10, 80, 1, 1], "two", ip, vec![]);
        Host::default().setup_instance(&wanted).unwrap();
    });
    b.instance_v4("far", 2);
    let _servers = [
        serve(&a, Some("one"), "10.77.1.2", 80, Wire::Tcp),
        serve(&a, Some("two"), "10.80.1.2", 80, Wire::Tcp),
    ];
    let far = |ip: &str| ask(&b, Some("far"), ip, 80, Wire::Tcp);
    assert_eq!(ask(&a, Some("one"), "10.80.1.2", 80, Wire::Tcp).as_deref(), Ok("10.77.1.2"));
    assert_eq!(ask(&a, Some("two"), "10.77.1.2", 80, Wire::Tcp).as_deref(), Ok("10.80.1.2"));
    assert_eq!(far("10.77.1.2").as_deref(), Ok("10.77.2.2"));
    assert_eq!(far("10.80.1.2").as_deref(), Ok("10.77.2.2"));
    let error = a.machine.run(move || {
        let first: Ipv4Inet = "10.80.0.1/16".parse().unwrap();
        let request = SetupNodeRequest::new("a", first, vec![]).with_node_ip(second);
        setup_node(request).unwrap_err().to_string()
    });
    assert!(error.contains("overlap"), "{error}");
}
