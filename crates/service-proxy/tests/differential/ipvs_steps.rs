//! IPVS: changes one by one, with errors in between, come to the same as everything at once.
//!
//! The kernel is only played: it does what the real one does with commands, and no connection ever lasts.
//! Which mark a service has depends on what was there before, so marks are numbered anew to compare.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use telaio_model::IpFamily;
use telaio_netlink::ipvs::{Command, RealServer, RealServerLoad, Snapshot, Stats, VirtualServer};
use telaio_service_proxy::config::NodeFacts;
use telaio_service_proxy::ipvs::compile::Context;
use telaio_service_proxy::ipvs::controller::{IpvsController, steps_of};
use telaio_service_proxy::ipvs::mirror::{Found, Mirror, record};
use telaio_service_proxy::ipvs::network::Membership;
use telaio_service_proxy::ipvs::sets::SetKind;
use telaio_service_proxy::ipvs::types::{Scheduler, ServerKey, family_of};

use crate::generate;
use crate::incremental::{Mishap, mishaps};
use crate::packets::cases;
use crate::story::{Follower, Step, steps};
use crate::world::{World, facts};

/// What is in a kernel, but for rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Contents {
    servers: BTreeMap<ServerKey, (VirtualServer, BTreeMap<SocketAddr, RealServer>)>,
    members: BTreeMap<Membership, Option<u32>>,
    addresses: BTreeSet<IpAddr>,
}

impl Contents {
    /// As the real one: what does not fit what is there would be refused, but for removing what is gone.
    fn carry_out(&mut self, command: &Command) {
        match command {
            Command::Add(server) => {
                let before =
                    self.servers.insert(server.frontend, (server.clone(), BTreeMap::new()));
                assert_eq!(before, None, "{command:?}");
            }
            Command::Edit(server) => {
                self.servers.get_mut(&server.frontend).expect("to be there").0 = server.clone();
            }
            Command::Delete(key) => drop(self.servers.remove(key)),
            Command::AddServer(key, server) => {
                let (_, endpoints) = self.servers.get_mut(key).expect("to be there");
                assert_eq!(endpoints.insert(server.address, *server), None, "{command:?}");
            }
            Command::EditServer(key, server) => {
                let (_, endpoints) = self.servers.get_mut(key).expect("to be there");
                assert!(endpoints.insert(server.address, *server).is_some(), "{command:?}");
            }
            Command::DeleteServer(key, address) => {
                if let Some((_, endpoints)) = self.servers.get_mut(key) {
                    endpoints.remove(address);
                }
            }
        }
    }

    fn loads(&self, key: &ServerKey) -> Vec<RealServerLoad> {
        let load = |server: &RealServer| RealServerLoad { server: *server, active: 0, inactive: 0 };
        self.servers.get(key).map(|it| it.1.values().map(load).collect()).unwrap_or_default()
    }

    fn found(&self) -> Found {
        let snapshot = |(key, (server, _)): (&ServerKey, &(VirtualServer, _))| Snapshot {
            server: server.clone(),
            stats: Stats::default(),
            servers: self.loads(key),
        };
        Found {
            servers: self.servers.iter().map(snapshot).collect(),
            members: self.members.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Marks by the order of the first place that has each.
    fn with_marks_anew(&self) -> Self {
        let mut numbers: BTreeMap<(IpFamily, u32), u32> = BTreeMap::new();
        let local = |(member, _): &(&Membership, &Option<u32>)| member.set.kind == SetKind::Local;
        for (member, mark) in self.members.iter().filter(local) {
            let next = u32::try_from(numbers.len()).unwrap() + 1;
            numbers.entry((member.set.family, mark.unwrap())).or_insert(next);
        }
        // A server to which no place leads, because others have them all, is known by its endpoints.
        let mut lost: Vec<_> = self
            .servers
            .iter()
            .filter_map(|(key, (server, endpoints))| {
                let ServerKey::Mark { mark, .. } = *key else { return None };
                let family = family_of(key);
                let is_lost = !numbers.contains_key(&(family, mark));
                is_lost.then_some((family, &server.scheduler, server.timeout_s, endpoints, mark))
            })
            .collect();
        lost.sort_unstable();
        for (family, .., mark) in lost {
            let next = u32::try_from(numbers.len()).unwrap() + 1;
            numbers.insert((family, mark), next);
        }
        let number = |family, mark: u32| numbers.get(&(family, mark)).copied().unwrap_or(mark);
        let mut anew = self.clone();
        for (member, mark) in &mut anew.members {
            *mark = mark.map(|mark| number(member.set.family, mark));
        }
        let marked = self.servers.keys().filter(|key| matches!(key, ServerKey::Mark { .. }));
        let (mut servers, mut records) = (Vec::new(), Vec::new());
        for key in marked {
            let ServerKey::Mark { is_v6, mark } = *key else { continue };
            let renamed = ServerKey::Mark { is_v6, mark: number(family_of(key), mark) };
            let (mut server, endpoints) = anew.servers.remove(key).unwrap();
            server.frontend = renamed;
            servers.push((renamed, (server, endpoints)));
            assert!(anew.members.remove(&record(key)).is_some(), "{key:?} is not on record");
            records.push((record(&renamed), None));
        }
        anew.servers.extend(servers);
        anew.members.extend(records);
        anew
    }
}

/// What the backend does with each view, in short.
struct Syncer {
    world: World,
    controllers: Vec<IpvsController>,
    mirror: Mirror,
    kernel: Contents,
    now: Instant,
    is_stale: bool,
}

impl Syncer {
    fn new(world: &World) -> Self {
        let node = NodeFacts::default();
        let families = world.config.families.iter();
        let controllers = families.map(|family| {
            let context = context(world, &node, *family);
            IpvsController::new(context, world.config.masquerade_mark())
        });
        Self {
            world: world.clone(),
            controllers: controllers.collect(),
            mirror: Mirror::default(),
            kernel: Contents::default(),
            now: Instant::now(),
            is_stale: true,
        }
    }

    fn take(&mut self, follower: &mut Follower, world: &World) {
        let changed = follower.tell(world);
        let node = facts(&follower.state);
        for controller in &mut self.controllers {
            let context = context(&self.world, &node, controller.family());
            if controller.set_context(context) {
                for entry in follower.state.services() {
                    controller.set_service(&entry.service.key, Some(entry));
                }
            }
            for key in &changed {
                controller.set_service(key, follower.state.get(key));
            }
        }
    }

    /// Whether it went well.
    fn sync(&mut self, mishap: Mishap) -> bool {
        self.now += Duration::from_secs(1);
        if std::mem::take(&mut self.is_stale) {
            self.mirror.observe(self.kernel.found(), self.now, |_| false);
        }
        for controller in &mut self.controllers {
            for step in steps_of(&controller.generate_patch_groups(), 1) {
                self.mirror.take(&step);
            }
        }
        if mishap == Mishap::TakenAway {
            self.kernel.servers.pop_first();
            self.kernel.members.pop_last();
            self.kernel.addresses.pop_first();
        } else {
            self.join(mishap);
            self.serve(mishap);
            self.bind(mishap);
            self.leave(mishap);
            self.drain(mishap);
            self.unbind(mishap);
            self.leave(mishap);
        }
        self.mirror.settle();
        self.is_stale = mishap != Mishap::Nothing;
        !self.is_stale
    }

    fn join(&mut self, mishap: Mishap) {
        let joins = self.mirror.joins();
        if mishap != Mishap::Refused {
            self.kernel.members.extend(joins.iter().copied());
        }
        if mishap == Mishap::Nothing {
            self.mirror.joined(&joins);
        }
    }

    fn serve(&mut self, mishap: Mishap) {
        let commands = self.mirror.commands();
        self.carry_out(&commands, mishap);
    }

    /// No virtual server is there without its record, whatever goes wrong.
    fn carry_out(&mut self, commands: &[Command], mishap: Mishap) {
        if mishap != Mishap::Refused {
            for command in commands {
                self.kernel.carry_out(command);
            }
        }
        for key in self.kernel.servers.keys() {
            assert!(self.kernel.members.contains_key(&record(key)), "{key:?} is not on record");
        }
        if mishap == Mishap::Nothing {
            self.mirror.applied(commands, self.now);
        }
    }

    fn bind(&mut self, mishap: Mishap) {
        let binds = self.mirror.binds();
        if mishap != Mishap::Refused {
            self.kernel.addresses.extend(&binds);
        }
        if mishap == Mishap::Nothing {
            self.mirror.bound(&binds, true);
        }
    }

    fn leave(&mut self, mishap: Mishap) {
        let leaves = self.mirror.leaves();
        if mishap != Mishap::Refused {
            self.kernel.members.retain(|member, _| !leaves.contains(member));
        }
        if mishap == Mishap::Nothing {
            self.mirror.left(&leaves);
        }
    }

    fn drain(&mut self, mishap: Mishap) {
        for key in self.mirror.leaving().clone() {
            let loads = self.kernel.loads(&key);
            let commands = self.mirror.drained(&key, &loads, self.now, Duration::from_mins(15));
            self.carry_out(&commands, mishap);
        }
    }

    fn unbind(&mut self, mishap: Mishap) {
        let unbinds = self.mirror.unbinds();
        if mishap != Mishap::Refused {
            self.kernel.addresses.retain(|ip| !unbinds.contains(ip));
        }
        if mishap == Mishap::Nothing {
            self.mirror.bound(&unbinds, false);
        }
    }

    /// What is still to be done or waited for; nothing if all went well.
    fn left_to_do(&self) -> String {
        let mirror = &self.mirror;
        let changes = (mirror.joins(), mirror.commands(), mirror.binds());
        let removals = (mirror.leaves(), mirror.leaving(), mirror.unbinds());
        let is_empty = changes.0.is_empty()
            && changes.1.is_empty()
            && changes.2.is_empty()
            && removals.0.is_empty()
            && removals.1.is_empty()
            && removals.2.is_empty();
        if is_empty { String::new() } else { format!("{changes:?} {removals:?}") }
    }
}

fn context(world: &World, node: &NodeFacts, family: IpFamily) -> Context {
    let machine = node.addresses.iter().copied().collect();
    Context::new(&world.config, node, family, Scheduler::default(), &machine)
}

/// What would stand there, had this been the first that anybody heard of the cluster.
fn at_once(world: &World) -> Contents {
    let state = world.ipvs(&world.view());
    let servers = state.servers.into_iter().map(|(key, it)| (key, (it.server, it.endpoints)));
    let contents =
        Contents { servers: servers.collect(), members: state.members, addresses: state.addresses };
    contents.with_marks_anew()
}

/// What is different, said so that a person sees it.
fn difference(is: &Contents, wanted: &Contents) -> Option<String> {
    fn both<T: PartialEq + std::fmt::Debug>(is: &[T], wanted: &[T]) -> Vec<String> {
        let more = is.iter().filter(|it| !wanted.contains(it)).map(|it| format!("is {it:?}"));
        let less = wanted.iter().filter(|it| !is.contains(it)).map(|it| format!("wanted {it:?}"));
        more.chain(less).collect()
    }
    fn all<T>(items: impl IntoIterator<Item = T>) -> Vec<T> {
        items.into_iter().collect()
    }
    let mut told = both(&all(&is.servers), &all(&wanted.servers));
    told.extend(both(&all(&is.members), &all(&wanted.members)));
    told.extend(both(&all(&is.addresses), &all(&wanted.addresses)));
    (!told.is_empty()).then(|| told.join("\n"))
}

fn follow(world: &World, steps: &[Step], mishaps: &[Mishap]) -> Result<(), TestCaseError> {
    let mut syncer = Syncer::new(world);
    let mut follower = Follower::new();
    let mut world = world.clone();
    for (i, step) in steps.iter().enumerate() {
        world = step.take(&world);
        syncer.take(&mut follower, &world);
        if syncer.sync(mishaps.get(i).copied().unwrap_or(Mishap::Nothing)) {
            let differs = difference(&syncer.kernel.with_marks_anew(), &at_once(&world));
            prop_assert!(differs.is_none(), "after step {i}: {}", differs.unwrap());
            prop_assert_eq!(syncer.left_to_do(), "", "after step {}", i);
        }
    }
    prop_assert!(syncer.sync(Mishap::Nothing));
    let differs = difference(&syncer.kernel.with_marks_anew(), &at_once(&world));
    prop_assert!(differs.is_none(), "at the end: {}", differs.unwrap());
    prop_assert_eq!(syncer.left_to_do(), "");
    Ok(())
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn changes_one_by_one_come_to_the_same_as_all_at_once(
        world in generate::worlds(),
        steps in steps(8),
    ) {
        follow(&world, &steps, &[])?;
    }

    #[test]
    fn errors_in_between_leave_no_trace(
        world in generate::worlds(),
        steps in steps(8),
        mishaps in vec(mishaps(), 8),
    ) {
        follow(&world, &steps, &mishaps)?;
    }
}
