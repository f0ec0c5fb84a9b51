//! What policies cost: loading a large cluster, and one pod's change in it, with the real kernel in a namespace of its own.
//!
//! `cargo run --release -p telaio-pod-network --example policies`

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use telaio_model::{
    IpFamily, LabelSelector, Labels, Meta, NetworkPolicy, ObjectKey, Pod, PodPhase, PolicyPeer,
    PolicyPort, PolicyPortMatch, PolicyRule, Protocol,
};
use telaio_netlink::netns::Netns;
use telaio_pod_network::policy::Keeper;
use telaio_reconcile::SyncKind;

const NODE: &str = "here";
/// Pods of the cluster, one in a hundred of them on this node; policies, all about pods of this node.
const SIZES: [(u32, u32); 3] = [(100, 10), (1_000, 100), (10_000, 1_000)];
/// How many changes are timed.
const CHANGES: u32 = 200;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn labels(pairs: &[(&str, String)]) -> Labels {
    pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(value.as_str()))).collect()
}

fn pod(number: u32, turn: u32) -> Arc<Pod> {
    let is_here = number.is_multiple_of(100);
    let address = 0x0a00_0000 + number + turn * 0x10_0000;
    let app = ("app", (number % 50).to_string());
    Arc::new(Pod {
        meta: Meta {
            labels: labels(&[app, ("tier", (number % 7).to_string())]),
            ..Meta::named(ObjectKey::new("shop", format!("pod-{number}")))
        },
        node: Some(if is_here { NODE } else { "there" }.into()),
        host_network: false,
        hostname: None,
        ports: vec![],
        ips: vec![std::net::Ipv4Addr::from(address).into()],
        phase: PodPhase::Running,
        ready: true,
        terminating: false,
    })
}

fn policy(number: u32) -> Arc<NetworkPolicy> {
    let select = |label, value: u32| LabelSelector {
        match_labels: labels(&[(label, value.to_string())]),
        ..LabelSelector::default()
    };
    let peer = PolicyPeer::Pods { namespaces: None, pods: Some(select("app", number % 50)) };
    let port = 1000 + (number % 500) as u16;
    let port = PolicyPort { protocol: Protocol::Tcp, port: PolicyPortMatch::Range(port, port) };
    Arc::new(NetworkPolicy {
        meta: Meta::named(ObjectKey::new("shop", format!("policy-{number}"))),
        pods: select("tier", number % 7),
        ingress: Some(vec![PolicyRule { peers: vec![peer], ports: vec![port] }]),
        egress: None,
    })
}

fn measure(pods: u32, policies: u32) -> Outcome<()> {
    let mut keeper = Keeper::open(NODE, &IpFamily::ALL)?;
    for number in 0..policies {
        let policy = policy(number);
        keeper.world_mut().set_policy(&policy.meta.key.clone(), Some(policy));
    }
    for number in 0..pods {
        let pod = pod(number, 0);
        keeper.world_mut().set_pod(&pod.meta.key.clone(), Some(pod));
    }
    let begin = Instant::now();
    let loaded = keeper.sync(SyncKind::Changes)?;
    let load = begin.elapsed();
    let mut change = Duration::ZERO;
    for turn in 1..=CHANGES {
        let pod = pod(turn % pods, turn);
        let begin = Instant::now();
        keeper.world_mut().set_pod(&pod.meta.key.clone(), Some(pod));
        keeper.sync(SyncKind::Changes)?;
        change += begin.elapsed();
    }
    println!(
        "{pods:>6} pods, {policies:>5} policies: {:>6} objects in {load:>10.1?}; a pod's new address {:>8.1?}",
        loaded.created,
        change / CHANGES
    );
    telaio_pod_network::policy::cleanup()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let name = format!("telaio-policies-{}", std::process::id());
    let netns = Netns::create(&name)?;
    let outcome =
        netns.run(|| SIZES.into_iter().try_for_each(|(pods, policies)| measure(pods, policies)));
    Netns::remove(&name)?;
    outcome?
}
