//! From any state to any state: changes one by one, with mishaps in between, come to the same as everything
//! at once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use telaio_hcn::{FakeHcn, Hcn as _, NetworkType, Query, Reason};
use telaio_model::{Object, ObjectRef};
use telaio_reconcile::SyncKind;
use telaio_reconcile::kpng::{Changed, State};

use crate::generate;
use crate::rig::{NEW, OLD, Picture, Rig, add_network, add_pod, hns};
use crate::shaky::Shaky;
use crate::story::{Follower, Step, steps};
use crate::world::{NODE, World};

/// What happens during a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mishap {
    Nothing,
    /// Every so-manieth write fails.
    Fails(u64),
    /// HNS does not answer after so many calls, and we start anew.
    Killed(u64),
    /// HNS restarts, and everything is gone.
    Restarted,
    /// Somebody removes something of ours.
    TakenAway,
}

fn mishaps() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        4 => Just(Mishap::Nothing),
        2 => (1_u64..5).prop_map(Mishap::Fails),
        2 => (0_u64..40).prop_map(Mishap::Killed),
        1 => Just(Mishap::Restarted),
        1 => Just(Mishap::TakenAway),
    ]
}

/// The addresses of this node's pods.
fn pods(world: &World) -> BTreeSet<IpAddr> {
    let all = world.slices.iter().flat_map(|slice| &slice.endpoints);
    all.filter(|it| it.node.as_deref() == Some(NODE)).map(|it| it.address).collect()
}

/// The CNI plugin does its work. Whether there was any.
fn settle_pods(fake: &FakeHcn, world: &World) -> bool {
    let before = fake.endpoint_ids(&Query::All).unwrap();
    let wanted = pods(world);
    let mut there = BTreeSet::new();
    for endpoint in fake.endpoints(&Query::All).unwrap().objects {
        if !endpoint.name.starts_with("pod ") {
            continue;
        }
        let address = endpoint.ip_configurations[0].ip_address;
        if wanted.contains(&address) {
            there.insert(address);
        } else {
            fake.end_pod(endpoint.id.unwrap());
        }
    }
    for address in wanted.difference(&there) {
        // An address that has moved here may still be ours for a moment: the plugin insists.
        let all = fake.endpoints(&Query::All).unwrap().objects;
        if let Some(old) = all.iter().find(|it| it.addresses().any(|ip| ip == *address)) {
            fake.end_pod(old.id.unwrap());
        }
        add_pod(fake, *address);
    }
    fake.endpoint_ids(&Query::All).unwrap() != before
}

fn everything(state: &State, before: &State) -> Changed {
    let objects: BTreeSet<ObjectRef> =
        state.objects().chain(before.objects()).map(Object::object_ref).collect();
    let services = state.services().chain(before.services());
    Changed { services: services.map(|it| it.service.key.clone()).collect(), objects, all: false }
}

struct Node {
    fake: FakeHcn,
    kind: NetworkType,
    world: World,
    rig: Rig,
    writes: Arc<AtomicU64>,
    fails_every: Arc<AtomicU64>,
    told: State,
}

impl Node {
    fn new(world: &World, kind: NetworkType, is_new: bool) -> Self {
        let fake = hns(if is_new { NEW } else { OLD }, kind.clone());
        let (writes, fails_every) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, every) = (Arc::clone(&writes), Arc::clone(&fails_every));
        let shaky = Shaky::new(&fake, move |call, _| {
            let every = every.load(Ordering::SeqCst);
            let is_it = call.operation.is_write()
                && every > 0
                && count.fetch_add(1, Ordering::SeqCst) % every == 0;
            is_it.then_some(Reason::Other)
        });
        let rig = Rig::of_view(shaky, world.config.clone());
        let world = world.clone();
        Self { fake, kind, world, rig, writes, fails_every, told: State::default() }
    }

    fn start_anew(&mut self, state: &State) {
        self.rig = Rig::of_view(self.fake.clone(), self.world.config.clone());
        self.rig.tell(state, &everything(state, &State::default()));
    }

    /// The view is now this, and this happens. Whether all went well.
    fn step(&mut self, world: &World, state: &State, mishap: Mishap) -> bool {
        // Which pods come and go is told by nobody but HNS, unless it concerns a service that changed.
        let pods_changed = settle_pods(&self.fake, world);
        let kind = if pods_changed { SyncKind::Drift } else { SyncKind::Changes };
        self.rig.tell(state, &everything(state, &self.told));
        self.told = state.clone();
        match mishap {
            Mishap::Nothing => self.rig.sync(kind).is_ok(),
            Mishap::Fails(every) => {
                self.writes.store(0, Ordering::SeqCst);
                self.fails_every.store(every, Ordering::SeqCst);
                let all_went_well = self.rig.sync(kind).is_ok();
                self.fails_every.store(0, Ordering::SeqCst);
                all_went_well
            }
            Mishap::Killed(calls) => {
                let dead = Shaky::dead_after(&self.fake, calls);
                let config = self.world.config.clone();
                let mut rig = Rig::of_view(dead, config);
                rig.tell(state, &everything(state, &State::default()));
                _ = rig.sync(SyncKind::Changes);
                self.start_anew(state);
                self.rig.sync(SyncKind::Changes).is_ok()
            }
            Mishap::Restarted => {
                self.fake.restart();
                add_network(&self.fake, self.kind.clone());
                settle_pods(&self.fake, world);
                self.rig.syncer.note(telaio_hcn::Event::Disconnected);
                self.rig.sync(SyncKind::Drift).is_ok()
            }
            Mishap::TakenAway => {
                for id in self.fake.load_balancer_ids(&Query::All).unwrap().into_iter().step_by(2) {
                    self.fake.delete_load_balancer(id).unwrap();
                }
                self.rig.sync(SyncKind::Drift).is_ok()
            }
        }
    }
}

/// What would stand there, had this been the first that anybody heard of the cluster.
fn at_once(node: &Node, world: &World, state: &State) -> Picture {
    let is_new = node.fake.version().unwrap() == NEW;
    let mut fresh = Node::new(&node.world, node.kind.clone(), is_new);
    assert!(fresh.step(world, state, Mishap::Nothing));
    Picture::of(&fresh.fake)
}

fn without_pods(picture: Picture) -> Picture {
    // Which identities pods have depends on what was before.
    Picture { foreign: (Vec::new(), Vec::new()), ..picture }
}

fn follow(
    (world, kind, is_new): (&World, NetworkType, bool),
    steps: &[Step],
    mishaps: &[Mishap],
) -> Result<(), TestCaseError> {
    let mut node = Node::new(world, kind, is_new);
    let mut follower = Follower::new();
    let mut world = world.clone();
    for (i, step) in steps.iter().enumerate() {
        world = step.take(&world);
        follower.tell(&world);
        let mishap = mishaps.get(i).copied().unwrap_or(Mishap::Nothing);
        if node.step(&world, &follower.state, mishap) {
            let wanted = without_pods(at_once(&node, &world, &follower.state));
            prop_assert_eq!(without_pods(Picture::of(&node.fake)), wanted, "after step {}", i);
        }
    }
    for _ in 0..3 {
        _ = node.rig.sync(SyncKind::Drift);
    }
    prop_assert!(node.rig.sync(SyncKind::Full).is_ok());
    let wanted = without_pods(at_once(&node, &world, &follower.state));
    prop_assert_eq!(without_pods(Picture::of(&node.fake)), wanted, "at the end");
    node.fake.reset_counts();
    prop_assert!(node.rig.sync(SyncKind::Full).is_ok());
    prop_assert_eq!(node.fake.writes(), 0, "nothing changed");
    Ok(())
}

fn network_types() -> impl Strategy<Value = NetworkType> {
    prop_oneof![Just(NetworkType::L2Bridge), Just(NetworkType::Overlay)]
}

/// So many cases, the same every time. Where `PROPTEST_CASES` asks for a number, new ones.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    let base = ProptestConfig {
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Default::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return base;
    }
    ProptestConfig { cases: count, rng_seed: RngSeed::Fixed(3), ..base }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn changes_one_by_one_come_to_the_same_as_all_at_once(
        world in generate::worlds(),
        kind in network_types(),
        is_new in any::<bool>(),
        steps in steps(6),
    ) {
        follow((&world, kind, is_new), &steps, &[])?;
    }

    #[test]
    fn mishaps_in_between_leave_no_trace(
        world in generate::worlds(),
        kind in network_types(),
        is_new in any::<bool>(),
        steps in steps(6),
        mishaps in vec(mishaps(), 6),
    ) {
        follow((&world, kind, is_new), &steps, &mishaps)?;
    }
}
