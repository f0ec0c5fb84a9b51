//! Virtual servers of others are never touched, not even where a service of ours should be.

use telaio_testkit::netns::{Cluster, Family, Host, Place};

use super::{ask, at, servers};
use crate::manifest::Service;
use crate::node::{Backend, Node, comes_true};
use crate::support::telaio;

in_guest!(
    a_virtual_server_of_another_is_left_alone_and_told,
    a_virtual_server_that_another_makes_just_before_us_is_left_alone,
);

/// Somebody else's: where our first service should be, and with a mark.
const THEIRS: &str = "
modprobe ip_vs
ipvsadm -A -t 10.96.0.1:80 -s wlc
ipvsadm -a -t 10.96.0.1:80 -r 10.244.2.12:8080 -m -w 5
ipvsadm -A -f 65536 -s wlc
ipvsadm -a -f 65536 -r 10.244.2.12:8080 -m -w 5
";

fn a_virtual_server_of_another_is_left_alone_and_told() {
    let services = [
        Service::new("contested", 1).endpoints("a1"),
        Service::new("local", 2).load_balancer().external_local().endpoints("a1"),
    ];
    let cluster = Cluster::start().unwrap();
    let mut node = Node::new(&cluster, Backend::Ipvs, &services);
    node.output("sh", &["-ec", THEIRS]);
    let before = servers(&node);
    let is_theirs = |line: &&str| before.lines().any(|theirs| theirs == *line);
    let theirs = |node: &Node<'_>| -> Vec<String> {
        servers(node).lines().filter(is_theirs).map(str::to_owned).collect()
    };
    let count = before.lines().count();
    assert_eq!(count, 4, "{before}");
    node.start();
    node.settle();
    assert_eq!(theirs(&node).len(), count, "{}", servers(&node));
    let at_it = |node: &Node<'_>| {
        let all = servers(node);
        all.lines().filter(|line| line.contains(" -t 10.96.0.1:80 ")).count()
    };
    assert_eq!(at_it(&node), 2, "{}", servers(&node));
    let is_told = |line: &str| line.contains("WARN") && line.contains("10.96.0.1:80");
    assert!(comes_true(|| node.log().lines().any(is_told)), "{}", node.log());
    // In the other family, and by UDP, it is ours.
    assert_eq!(ask(&node, Place::of(Host::A2), at(Family::V6, 1)), "a1");
    let balancer = (crate::manifest::load_balancer_ip(Family::V4, 2), 80).into();
    assert_eq!(ask(&node, Place::of(Host::Outside), balancer), "a1");
    // A restart knows no better.
    node.kill();
    node.start();
    node.settle();
    assert_eq!(theirs(&node).len(), count, "{}", servers(&node));
    node.remove("contested");
    node.settle();
    assert_eq!(theirs(&node).len(), count, "{}", servers(&node));
    node.end();
    let ended = node.run_to_end(telaio().args(["cleanup", &node.state_dir()]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(servers(&node), before);
}

/// What somebody makes where a service of ours will be, and with a mark that would be the next. We look
/// only once in a while, and so learn of it when the kernel refuses ours.
fn a_virtual_server_that_another_makes_just_before_us_is_left_alone() {
    let local = |number: u8| {
        let service = Service::new(format!("local-{number}"), number).load_balancer();
        service.external_local().endpoints("a1")
    };
    let cluster = Cluster::start().unwrap();
    let mut node = Node::started(&cluster, Backend::Ipvs, &[local(1)]);
    let mut before = String::new();
    for number in 2..7_u8 {
        // Marks are given in turn.
        let all = servers(&node);
        let marks = all.lines().filter_map(|line| line.strip_prefix("-A -f ")?.split(' ').next());
        let last: u32 = marks.map(|mark| mark.parse().unwrap()).max().unwrap();
        let mark = last + (1 << 16);
        let theirs = format!(
            "ipvsadm -A -t 10.96.0.{number}:80 -s wlc\n\
             ipvsadm -a -t 10.96.0.{number}:80 -r 10.244.2.12:8080 -m -w 5\n\
             ipvsadm -A -f {mark} -s wlc\nipvsadm -a -f {mark} -r 10.244.2.12:8080 -m -w 5\n"
        );
        node.output("sh", &["-ec", &theirs]);
        node.apply(&local(number));
        node.settle();
        before += &theirs.replace("ipvsadm ", "");
        let all = servers(&node);
        for line in before.lines() {
            assert!(all.lines().any(|it| it == line), "{number}: no {line:?} in\n{all}");
        }
        let more = |start: &str| all.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(more(&format!("-a -t 10.96.0.{number}:80 ")), 1, "{all}");
        // Those of IPv6 have numbers of their own.
        assert_eq!(more(&format!("-a -f {mark} -r 10.")), 1, "{all}");
        // What is led by a mark has found another.
        let balancer = (crate::manifest::load_balancer_ip(Family::V4, number), 80).into();
        assert_eq!(ask(&node, Place::of(Host::Outside), balancer), "a1");
    }
    node.end();
    let ended = node.run_to_end(telaio().args(["cleanup", &node.state_dir()]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut left: Vec<String> = servers(&node).lines().map(str::to_owned).collect();
    let mut theirs: Vec<String> = before.lines().map(str::to_owned).collect();
    left.sort();
    theirs.sort();
    assert_eq!(left, theirs);
}
