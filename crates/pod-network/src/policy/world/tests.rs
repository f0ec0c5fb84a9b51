//! What follows from a few objects, and how much a change of one of them changes.

use std::net::Ipv4Addr;

use telaio_model::{
    LabelSelector, Meta, PolicyPeer, PolicyPort, PolicyPortMatch, PolicyRule, Protocol,
};

use super::*;
use crate::policy::compile::compile;

const NODE: &str = "here";

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect()
}

fn selector(pairs: &[(&str, &str)]) -> LabelSelector {
    LabelSelector { match_labels: labels(pairs), ..LabelSelector::default() }
}

fn pod(name: &str, node: &str, pairs: &[(&str, &str)], ip: [u8; 4]) -> Arc<Pod> {
    Arc::new(Pod {
        meta: Meta { labels: labels(pairs), ..Meta::named(ObjectKey::new("shop", name)) },
        node: Some(node.into()),
        host_network: false,
        hostname: None,
        ports: vec![],
        ips: vec![Ipv4Addr::from(ip).into()],
        phase: PodPhase::Running,
        ready: true,
        terminating: false,
    })
}

/// A policy for everybody: from `app: web`, TCP 80.
fn from_web(name: &str) -> Arc<NetworkPolicy> {
    let web = PolicyPeer::Pods { namespaces: None, pods: Some(selector(&[("app", "web")])) };
    let port = PolicyPort { protocol: Protocol::Tcp, port: PolicyPortMatch::Range(80, 80) };
    Arc::new(NetworkPolicy {
        meta: Meta::named(ObjectKey::new("shop", name)),
        pods: LabelSelector::default(),
        ingress: Some(vec![PolicyRule { peers: vec![web], ports: vec![port] }]),
        egress: None,
    })
}

fn tell_pod(world: &mut World, pod: &Arc<Pod>) {
    world.set_pod(&pod.meta.key.clone(), Some(Arc::clone(pod)));
}

fn tell_policy(world: &mut World, policy: &Arc<NetworkPolicy>) {
    world.set_policy(&policy.meta.key.clone(), Some(Arc::clone(policy)));
}

/// A node with ten pods, in a cluster with 1,000 more of which half are `app: web`.
fn crowd() -> World {
    let mut world = World::new(NODE);
    tell_policy(&mut world, &from_web("one"));
    for i in 0..10 {
        tell_pod(&mut world, &pod(&format!("here-{i}"), NODE, &[("app", "db")], [10, 0, 0, i]));
    }
    for i in 0..1000_u16 {
        let app = if i % 2 == 0 { "web" } else { "db" };
        let [high, low] = i.to_be_bytes();
        tell_pod(
            &mut world,
            &pod(&format!("there-{i}"), "there", &[("app", app)], [10, 1, high, low]),
        );
    }
    world.settle();
    world
}

#[test]
fn pods_that_are_alike_share_everything() {
    let world = crowd();
    assert_eq!(world.profiles.iter().count(), 1);
    assert_eq!(world.classes.iter().count(), 1);
    assert_eq!(world.groups.iter().count(), 1);
    assert_eq!(world.grants.len(), 1);
    assert!(world.open.is_empty(), "nobody in particular may do nothing");
    // Ten instances, and the 500 peers that a rule asks for.
    assert_eq!(world.addresses.len(), 510);
}

#[test]
fn one_pod_of_a_kind_that_is_known_changes_one_address() {
    let mut world = crowd();
    tell_pod(&mut world, &pod("new", "there", &[("app", "web")], [10, 9, 9, 9]));
    let ip = IpAddr::from([10, 9, 9, 9]);
    assert_eq!(world.settle(), BTreeSet::from([Part::Address(ip)]));
    world.set_pod(&ObjectKey::new("shop", "new"), None);
    assert_eq!(world.settle(), BTreeSet::from([Part::Address(ip)]));
    assert_eq!(world.settle(), BTreeSet::new());
}

#[test]
fn pods_that_no_rule_asks_for_and_that_run_elsewhere_change_nothing() {
    let mut world = crowd();
    tell_pod(&mut world, &pod("new", "there", &[("app", "cache")], [10, 9, 9, 9]));
    assert_eq!(world.settle(), BTreeSet::new());
}

#[test]
fn a_policy_that_says_the_same_as_another_changes_nothing() {
    let mut world = crowd();
    tell_policy(&mut world, &from_web("two"));
    assert_eq!(world.settle(), BTreeSet::new());
    world.set_policy(&ObjectKey::new("shop", "one"), None);
    assert_eq!(world.settle(), BTreeSet::new());
}

#[test]
fn the_last_policy_leaves_nothing_behind() {
    let mut world = crowd();
    let policy = from_web("one");
    world.set_policy(&policy.meta.key, None);
    world.settle();
    let empty = {
        let mut world = World::new(NODE);
        world.settle();
        world
    };
    assert_eq!(compile(&world, &IpFamily::ALL), compile(&empty, &IpFamily::ALL));
    assert_eq!(world.parts(), [Part::Base]);
}

#[test]
fn a_pods_policies_are_there_with_the_address_that_it_was_given() {
    let mut world = World::new(NODE);
    tell_policy(&mut world, &from_web("one"));
    let mut pending = (*pod("p", NODE, &[], [10, 0, 0, 1])).clone();
    pending.ips.clear();
    tell_pod(&mut world, &Arc::new(pending.clone()));
    world.settle();
    assert!(world.profiles_of(&pending.meta.key).ingress.is_some());
    assert!(world.addresses.is_empty());
    let ip = IpAddr::from([10, 0, 0, 1]);
    world.set_attached(&pending.meta.key, &[ip]);
    assert_eq!(world.settle(), BTreeSet::from([Part::Address(ip)]));
    assert!(world.addresses[&ip].profiles.ingress.is_some());
    // The cluster says the same a moment later.
    tell_pod(&mut world, &pod("p", NODE, &[], [10, 0, 0, 1]));
    assert_eq!(world.settle(), BTreeSet::new());
    world.set_attached(&pending.meta.key, &[]);
    assert_eq!(world.settle(), BTreeSet::new());
}

#[test]
fn an_address_that_goes_over_to_another_pod_is_the_new_ones() {
    let mut world = World::new(NODE);
    tell_policy(&mut world, &from_web("one"));
    tell_pod(&mut world, &pod("server", NODE, &[("app", "db")], [10, 0, 0, 1]));
    let ended = Pod {
        terminating: true,
        ..(*pod("old", "there", &[("app", "web")], [10, 0, 0, 2])).clone()
    };
    tell_pod(&mut world, &Arc::new(ended.clone()));
    world.settle();
    let ip = IpAddr::from([10, 0, 0, 2]);
    assert!(world.addresses[&ip].class.is_some());
    // Whoever has it now is not one of those that the rule asks for.
    tell_pod(&mut world, &pod("new", "there", &[("app", "cache")], [10, 0, 0, 2]));
    assert!(world.settle().contains(&Part::Address(ip)));
    assert_eq!(world.addresses.get(&ip), None);
    let over = Pod { phase: PodPhase::Succeeded, ..ended };
    tell_pod(&mut world, &Arc::new(over));
    assert_eq!(world.settle(), BTreeSet::new());
}

#[test]
fn networks_are_told_apart_by_their_longest_prefix() {
    let mut world = World::new(NODE);
    let block = PolicyPeer::Block {
        cidr: "10.0.0.0/8".parse().unwrap(),
        except: vec!["10.1.0.0/16".parse().unwrap()],
    };
    let mut policy = (*from_web("one")).clone();
    policy.ingress = Some(vec![PolicyRule { peers: vec![block], ports: vec![] }]);
    tell_policy(&mut world, &Arc::new(policy));
    tell_pod(&mut world, &pod("server", NODE, &[], [10, 0, 0, 1]));
    world.settle();
    let lengths: Vec<u8> = world.block_lengths(IpFamily::V4).into_iter().collect();
    assert_eq!(lengths, [8, 16]);
    let class = |net: &str| world.classes.get(world.blocks[&net.parse().unwrap()]).unwrap();
    assert_eq!(class("10.0.0.0/8").facts.len(), 1);
    assert_eq!(class("10.1.0.0/16").facts.len(), 0);
}
