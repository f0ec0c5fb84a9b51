//! What one sync of the pods plane does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use telaio_model::{Kind, Node, Object, ObjectKey};
use telaio_pod_network::node::SetupNodeRequest;
use telaio_pod_network::policy::{Keeper, Newcomers, Told};
use telaio_pod_network::rules::forward::FIREWALLD;
use telaio_pod_network::{Attachment, Error, Host, overlay};
use telaio_reconcile::kpng::{Inbox, News};
use telaio_reconcile::{ApplyError, SyncHandle, SyncKind, SyncReport, Syncer};

use super::PodsSettings;
use super::announce::Announcer;
use super::cni::Installer;
use super::nodes;
use super::report::Shared;

/// Has a sync done once there is a loop.
#[derive(Debug, Clone, Default)]
pub(super) struct Waker(Arc<Mutex<Option<SyncHandle>>>);

impl Waker {
    /// There is a loop.
    pub(super) fn set(&self, handle: SyncHandle) {
        *self.0.lock() = Some(handle);
    }

    fn wake(&self, told: Told) {
        if let Some(handle) = &*self.0.lock() {
            match told {
                Told::Drift => handle.drift_suspected(),
                Told::Newcomer => handle.notify(),
            }
        }
    }
}

/// Keeps this node's network in line, on the sync loop's thread.
pub(super) struct PodsSyncer {
    settings: PodsSettings,
    inbox: Inbox,
    host: Host,
    /// `None` where the kernel cannot keep policies.
    keeper: Option<Keeper>,
    installer: Installer,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    policies: BTreeSet<ObjectKey>,
    /// Those whose policies are being worked out, by their addresses.
    newcomers: BTreeMap<IpAddr, Option<ObjectKey>>,
    /// Those of them that had to wait the last time.
    waiting: BTreeSet<IpAddr>,
    /// What was set up last; `None` if that may not be so any more.
    done: Option<SetupNodeRequest>,
    problems: Problems,
    status: Arc<Shared>,
    waker: Waker,
    /// `None` where there is no API server to tell.
    announcer: Option<Announcer>,
}

impl PodsSyncer {
    pub(super) fn new(
        settings: PodsSettings,
        inbox: Inbox,
        host: Host,
        mut keeper: Option<Keeper>,
        status: Arc<Shared>,
    ) -> Self {
        let waker = Waker::default();
        let for_keeper = waker.clone();
        if let Some(keeper) = keeper.as_mut().filter(|_| settings.stays) {
            keeper.watch(move |told| for_keeper.wake(told));
        }
        let installer = Installer::new(settings.cni.clone(), &settings.state_dir);
        let (nodes, policies, done) = (BTreeMap::new(), BTreeSet::new(), None);
        let announcer = None;
        let problems = Problems::default();
        Self {
            settings,
            inbox,
            host,
            keeper,
            installer,
            nodes,
            policies,
            newcomers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            done,
            problems,
            status,
            waker,
            announcer,
        }
    }

    /// Telling others of this node.
    pub(super) fn announcing(self, announcer: Option<Announcer>) -> Self {
        Self { announcer, ..self }
    }

    /// Has this node's object say how it is reached.
    fn announce(&self) -> Result<(), Error> {
        let own = self.nodes.get(&self.settings.node);
        let (Some(announcer), Some(wanted), Some(node)) = (&self.announcer, &self.done, own) else {
            return Ok(());
        };
        let tunnel = overlay::uplink(self.settings.nodes.tunnel_address)?.address;
        let says = nodes::announcement(wanted, Some(node), tunnel);
        if !nodes::is_announced(node, &says) {
            announcer.tell(&says);
        }
        Ok(())
    }

    /// What wakes it, to be given its loop.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn take(&mut self, news: News) {
        for (at, object) in news.objects {
            match (at.kind, &object) {
                (Kind::Node, Some(Object::Node(node))) => {
                    _ = self.nodes.insert(Arc::clone(&at.key.name), Arc::clone(node));
                }
                (Kind::Node, _) => _ = self.nodes.remove(&at.key.name),
                (Kind::NetworkPolicy, Some(_)) => _ = self.policies.insert(at.key.clone()),
                (Kind::NetworkPolicy, None) => _ = self.policies.remove(&at.key),
                _ => {}
            }
            if let Some(keeper) = &mut self.keeper {
                keeper.world_mut().set_object(&at, object.as_ref());
            }
        }
        self.status.set_policies(self.policies.len());
    }

    /// Pods that were attached here have their addresses before the cluster knows; those that are being attached, too.
    fn take_attachments(&mut self) -> Result<(), ApplyError> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        // Before the records are read: whoever is told of here has one.
        let newcomers = keeper.newcomers().map_err(transient)?.all();
        let holders = self.host.holders(newcomers.iter().copied()).map_err(transient)?;
        let pod_at = |ip: &IpAddr| holders.get(ip).and_then(|(holder, _)| key_of(holder));
        let newcomers: BTreeMap<IpAddr, Option<ObjectKey>> =
            newcomers.into_iter().map(|ip| (ip, pod_at(&ip))).collect();
        let mut attached: BTreeMap<ObjectKey, BTreeSet<IpAddr>> = BTreeMap::new();
        for attachment in self.host.attachments().map_err(transient)? {
            if let Some(key) = key_of(&attachment) {
                let addresses = attachment.addresses.iter().map(cidr::IpInet::address);
                attached.entry(key).or_default().extend(addresses);
            }
        }
        for (ip, pod) in &newcomers {
            if let Some(key) = pod {
                attached.entry(key.clone()).or_default().insert(*ip);
            }
        }
        self.newcomers = newcomers;
        let world = keeper.world_mut();
        let known: Vec<ObjectKey> = world.attached().cloned().collect();
        for gone in known.iter().filter(|key| !attached.contains_key(*key)) {
            world.set_attached(gone, &[]);
        }
        for (key, addresses) in &attached {
            let addresses: Vec<IpAddr> = addresses.iter().copied().collect();
            world.set_attached(key, &addresses);
        }
        Ok(())
    }

    /// Lets those go whose policies are in the kernel now. A pod that is not known yet waits, if there are policies that may
    /// be about it.
    fn release_newcomers(&mut self) -> Result<(), ApplyError> {
        let newcomers = std::mem::take(&mut self.newcomers);
        let Some(keeper) = self.keeper.as_mut().filter(|_| !newcomers.is_empty()) else {
            return Ok(());
        };
        let holders = self.host.holders(newcomers.keys().copied()).map_err(transient)?;
        let (mut done, mut waiting) = (Newcomers::default(), BTreeSet::new());
        for (ip, pod) in newcomers {
            let holder = holders.get(&ip);
            if holder.and_then(|(holder, _)| key_of(holder)) != pod {
                // It is somebody else's since: the next sync's.
                continue;
            }
            match &pod {
                Some(key) if !keeper.world_mut().can_judge(key, ip) => {
                    if !self.waiting.contains(&ip) {
                        tracing::info!(pod = %key, address = %ip, "an instance waits until its pod is known: its namespace has policies");
                    }
                    waiting.insert(ip);
                }
                _ => _ = done.unjudged.insert(ip),
            }
            // Until its record is whole this is all that tells of it.
            if holder.is_none_or(|(_, is_whole)| *is_whole) {
                done.arrived.insert(ip);
            }
        }
        self.waiting = waiting;
        keeper.release(&done).map_err(transient)
    }

    fn sync_policies(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        match &mut self.keeper {
            Some(keeper) => keeper.sync(kind),
            None if self.policies.is_empty() => Ok(SyncReport::default()),
            // Whoever wrote them relies on them.
            None => {
                let what = format!("{} network policies are not kept", self.policies.len());
                Err(ApplyError::Refused(Error::NeedsNftables { what }.to_string()))
            }
        }
    }

    /// This node's network and the ways to the others. All of it is looked at where something may be wrong. Other nodes that
    /// cannot be reached are told, and keep nobody else from being reached.
    fn sync_nodes(&mut self, kind: SyncKind) -> Result<(), Error> {
        let own = &self.settings.node;
        let is_ipv4 = match self.settings.nodes.tunnel_address {
            Some(address) => address.is_ipv4(),
            None => overlay::uplink(None).is_ok_and(|uplink| uplink.address.is_ipv4()),
        };
        let Some(wanted) = nodes::wanted(own, &self.nodes, &self.settings.nodes, is_ipv4) else {
            // Instances may be here without a node's network of ours.
            return if kind == SyncKind::Changes { Ok(()) } else { self.repair() };
        };
        self.problems.of_objects = wanted.problems;
        let wanted = wanted.request;
        if self.done.as_ref() == Some(&wanted) {
            // Somebody may have broken something.
            return if kind == SyncKind::Changes { Ok(()) } else { self.repair() };
        }
        self.done = None;
        for unreadable in self.host.problems()? {
            tracing::warn!(error = %unreadable, "a record cannot be read");
        }
        let refused = self.host.follow_cluster(wanted.clone())?;
        self.repair()?;
        // Those that a repair tells of may be reached the next time.
        let refused = refused.iter().map(ToString::to_string);
        self.problems.refused =
            refused.filter(|it| !self.problems.unreached.contains(it)).collect();
        self.done = Some(wanted);
        Ok(())
    }

    /// What should be there is, and nothing else of ours.
    fn repair(&mut self) -> Result<(), Error> {
        let mended = self.host.repair()?;
        if !mended.is_nothing() {
            tracing::warn!(
                attachments = mended.attachments.join(", "),
                links = mended.links.join(", "),
                addresses = mended.addresses,
                ways = mended.ways,
                "removed what was left of what is gone"
            );
        }
        self.problems.unreached = mended.unreached;
        self.problems.severed = mended.severed;
        self.problems.unreadable = mended.unreadable;
        let refusing = telaio_pod_network::rules::refusing_chains()?;
        self.problems.of_others = refusing.iter().map(|chain| refusal(chain)).collect();
        Ok(())
    }

    /// The plugin comes last: whoever it attaches finds everything there.
    fn sync_plugin(&mut self) -> Result<(), String> {
        let own = self.done.as_ref().map(|wanted| wanted.node_id.as_str());
        let networks = self.host.networks().map_err(|error| error.to_string())?;
        let Some(network) = networks.iter().find(|network| Some(network.name.as_str()) == own)
        else {
            self.status.set_cni("waits for this node's podCIDRs".to_owned());
            return Ok(());
        };
        let outcome = self.installer.install(network);
        self.status.set_cni(match &outcome {
            Ok(state) => state.clone(),
            Err(problem) => format!("not installed: {problem}"),
        });
        outcome.map(drop)
    }
}

impl Syncer for PodsSyncer {
    fn sync(&mut self, kind: SyncKind) -> Result<SyncReport, ApplyError> {
        let Some(news) = self.inbox.take_known() else { return Ok(SyncReport::too_early()) };
        self.take(news);
        let mut errors = Vec::new();
        self.newcomers.clear();
        errors.extend(self.take_attachments().err());
        let mut report = SyncReport::default();
        match self.sync_policies(kind) {
            Ok(done) => {
                report = done;
                errors.extend(self.release_newcomers().err());
            }
            Err(error) => errors.push(error),
        }
        errors.extend(self.sync_nodes(kind).map_err(|error| apply_error(&error)).err());
        self.status.set_problems(self.problems.tell());
        errors.extend(self.announce().map_err(|error| apply_error(&error)).err());
        errors.extend(self.sync_plugin().map_err(ApplyError::Transient).err());
        match ApplyError::several(errors) {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }
}

/// What is told of a chain of another's that refuses instances' packets.
fn refusal(chain: &str) -> String {
    let firewalld = format!("inet {FIREWALLD} ");
    let remedy = if chain.starts_with(&firewalld) {
        "put their bridge and the link to other nodes into a zone that forwards, as with: firewall-cmd --permanent --zone=trusted \
         --add-interface=tlb-NODE --add-interface=telaio.1, and firewall-cmd --reload"
            .to_owned()
    } else if let Some((program, _)) =
        chain.split_once(' ').filter(|(it, _)| it.ends_with("-legacy"))
    {
        format!(
            "accept there what comes in and goes out by their links, as with: {program} -I FORWARD -i tl+ -j ACCEPT, and the same with -o"
        )
    } else {
        format!(
            "accept there what comes in and goes out by their bridges, as with: nft insert rule {chain} iifname \"tl*\" accept, and \
             the same with oifname"
        )
    };
    format!(
        "the chain {chain} refuses what it does not know, instances' packets among it; {remedy}"
    )
}

/// The pod that an attachment is of, if that is known.
fn key_of(attachment: &Attachment) -> Option<ObjectKey> {
    let pod = attachment.pod.as_ref()?;
    Some(ObjectKey::new(pod.namespace.as_str(), pod.name.as_str()))
}

fn transient(error: impl std::fmt::Display) -> ApplyError {
    ApplyError::Transient(error.to_string())
}

/// What is wrong and keeps nothing else from being right: told in the status, and once in the log.
#[derive(Debug, Default)]
struct Problems {
    /// With Node objects.
    of_objects: Vec<String>,
    /// Nodes that cannot be reached as their objects are.
    refused: Vec<String>,
    /// Nodes that cannot be reached as this machine is.
    unreached: Vec<String>,
    /// Instances whose link is gone.
    severed: Vec<String>,
    /// Records of instances that cannot be read.
    unreadable: Vec<String>,
    /// Others' rules.
    of_others: Vec<String>,
    told: BTreeSet<String>,
}

impl Problems {
    fn tell(&mut self) -> Vec<String> {
        let machine = [&self.unreached, &self.severed, &self.unreadable, &self.of_others];
        let all = [&self.of_objects, &self.refused].into_iter().chain(machine);
        let all: BTreeSet<String> = all.flatten().cloned().collect();
        for problem in all.difference(&self.told) {
            tracing::warn!("{problem}");
        }
        for problem in self.told.difference(&all) {
            tracing::info!("no longer so: {problem}");
        }
        self.told.clone_from(&all);
        all.into_iter().collect()
    }
}

fn apply_error(error: &Error) -> ApplyError {
    match error {
        // Only another input helps.
        Error::Invalid { .. } | Error::Overlap { .. } | Error::OutsideRange { .. } => {
            ApplyError::Refused(error.to_string())
        }
        other => ApplyError::Transient(other.to_string()),
    }
}

/// Removes all networks with their instances; tells what they were, as far as that can be read.
pub(super) fn remove_networks(host: &Host) -> Result<Vec<String>, String> {
    let mut removed = Vec::new();
    for attachment in host.attachments().unwrap_or_default() {
        removed.push(format!("{attachment}"));
    }
    let networks = host.networks().unwrap_or_default();
    let mut names: BTreeSet<String> = networks.into_iter().map(|network| network.name).collect();
    names.extend(host.local_nodes().unwrap_or_default().into_iter().map(|node| node.id));
    removed.extend(names.into_iter().map(|name| format!("network {name}")));
    let unreadable = host.problems().unwrap_or_default();
    removed
        .extend(unreadable.iter().map(|error| format!("a record that could not be read: {error}")));
    host.remove_all().map_err(|error| error.to_string())?;
    Ok(removed)
}
