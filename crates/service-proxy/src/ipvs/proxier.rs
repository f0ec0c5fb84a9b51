//! How it is done: the adapter to IPVS, ipset and our device. It decides nothing about services.
//!
//! It takes [`Step`]s, and [`Proxier::flush`] carries out what they come to, many at a time and in an order
//! in which nothing is served half: first the members of sets, then servers with their endpoints, then members
//! that lead to them by a mark, then addresses; and what goes, the other way round. What is so already costs no call.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::addresses::Addresses;
use telaio_netlink::batch::Failure;
use telaio_netlink::ipset::{self, Ipset, Mark};
use telaio_netlink::ipvs::{Command, Ipvs, connections};
use telaio_netlink::links::{LinkIndex, Links, NewLink};
use telaio_reconcile::target::DriftReport;
use telaio_reconcile::{ApplyError, SyncReport};

use super::mirror::{Found, Mirror, ServerName, Thing, record};
use super::network::{Membership, Step};
use super::sets::{MemberKind, SetKind, SetName};
use super::types::{ServerKey, family_of};

/// The device that has the services' addresses.
pub const DEVICE: &str = "telaio-ipvs0";
/// How many members a set can have: more than any node has services or endpoints.
const SET_MEMBERS_MAX: u32 = 1 << 20;
/// From so many leaving servers on they are read all at once instead of one by one.
const READ_ONE_BY_ONE_MAX: usize = 64;
/// How many refusals are told in one message.
const TOLD_MAX: usize = 3;

/// What decides what is done with what others made, and with what leaves.
#[derive(Debug, Clone)]
pub struct ProxierOptions {
    /// The families that are served.
    pub families: Vec<IpFamily>,
    /// Virtual servers in these networks are others', whatever else is so.
    pub exclude: Vec<IpNet>,
    /// Virtual servers at our services' addresses are taken over, whoever made them.
    pub takeover: bool,
    /// An endpoint that leaves is removed after this time, if it still has connections.
    pub drain_time_max: Duration,
}

impl ProxierOptions {
    /// A virtual server that somebody else has made may become ours.
    fn may_adopt(&self, key: &ServerKey) -> bool {
        let is_excluded = match key {
            ServerKey::Address { at, .. } => self.exclude.iter().any(|net| net.contains(&at.ip())),
            ServerKey::Mark { .. } => false,
        };
        self.takeover && !is_excluded
    }
}

/// The kernel's IPVS, sets and device.
#[derive(Debug)]
pub struct Proxier {
    ipvs: Ipvs,
    sets: Ipset,
    addresses: Addresses,
    links: Links,
    device: LinkIndex,
    options: ProxierOptions,
    mirror: Mirror,
    /// The kernel has to be looked at before more is done.
    is_stale: bool,
}

impl Proxier {
    /// Opens the kernel of this network namespace; makes the device and the sets where they are not there.
    pub fn open(options: ProxierOptions) -> Result<Self, ApplyError> {
        let ipvs = Ipvs::open().map_err(apply_error)?.ok_or_else(|| {
            ApplyError::Unsupported("this kernel has no IPVS: load the module ip_vs".to_owned())
        })?;
        let mut sets = Ipset::open().map_err(apply_error)?;
        make_sets(&mut sets, &options.families)?;
        let addresses = Addresses::open().map_err(apply_error)?;
        let mut links = Links::open().map_err(apply_error)?;
        let device = make_device(&mut links)?;
        Ok(Self {
            ipvs,
            sets,
            addresses,
            links,
            device,
            options,
            mirror: Mirror::default(),
            is_stale: true,
        })
    }

    /// How many commands were sent to the kernel, reading not counted.
    pub fn commands(&self) -> u64 {
        self.ipvs.commands() + self.sets.commands() + self.addresses.commands()
    }

    /// The number of the socket by which addresses are changed, and the device that they are on.
    pub fn port_and_device(&self) -> (u32, LinkIndex) {
        (self.addresses.port(), self.device)
    }

    /// See [`Mirror::be_patient`].
    pub fn be_patient(&mut self) {
        self.mirror.be_patient();
    }

    /// Something is wanted now, or no more; nothing happens until [`Proxier::flush`].
    pub fn take(&mut self, steps: &[Step]) {
        for step in steps {
            self.mirror.take(step);
        }
    }

    /// The kernel has to be looked at before more is done.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Something waits for connections to end.
    pub fn is_draining(&self) -> bool {
        !self.mirror.leaving().is_empty()
    }

    /// A connection of what leaves may still carry data. Where that is not so, all that is waited for are
    /// entries of connections that have ended.
    pub fn has_live_connections(&self) -> Result<bool, ApplyError> {
        let servers = self.mirror.leaving_endpoints();
        Ok(!servers.is_empty() && connections::any_lives(&servers).map_err(apply_error)?)
    }

    /// Marks of ours that somebody else has taken: until others take their place, nothing more is done.
    pub fn lost_marks(&self) -> Vec<(IpFamily, u32)> {
        self.mirror.lost_marks()
    }

    /// Virtual servers and endpoints in the kernel.
    pub fn counts(&self) -> (usize, usize) {
        self.mirror.counts()
    }

    /// The marks that an earlier run gave to addresses.
    pub fn marks(&mut self) -> Result<Vec<(ServerKey, u32)>, ApplyError> {
        let mut marks = Vec::new();
        for family in self.options.families.clone() {
            let set = SetName { kind: SetKind::Local, family };
            for (member, mark) in self.members_of(set)? {
                if let (ipset::Key::IpPort { ip, protocol, port }, Some(mark)) =
                    (member.entry, mark)
                {
                    let server = ServerKey::Address { protocol, at: (ip, port).into() };
                    marks.push((server, mark));
                }
            }
        }
        Ok(marks)
    }

    /// The marks of virtual servers that are not on record: others'.
    pub fn marks_of_others(&mut self) -> Result<Vec<(IpFamily, u32)>, ApplyError> {
        let mut ours = BTreeSet::new();
        for family in self.options.families.clone() {
            let set = SetName { kind: SetKind::Marks, family };
            ours.extend(self.members_of(set)?.into_iter().map(|(member, _)| member));
        }
        let all = self.ipvs.frontends().map_err(apply_error)?;
        let others = all.into_iter().filter(|key| !ours.contains(&record(key)));
        let marks = others.filter_map(|key| match key {
            ServerKey::Mark { mark, .. } => Some((family_of(&key), mark)),
            ServerKey::Address { .. } => None,
        });
        Ok(marks.collect())
    }

    /// Looks at the kernel. What differs from what we put there; the next flush mends it.
    pub fn observe(&mut self, now: Instant) -> Result<DriftReport<Thing>, ApplyError> {
        make_sets(&mut self.sets, &self.options.families)?;
        self.device = make_device(&mut self.links)?;
        let servers = self.ipvs.snapshot().map_err(apply_error)?;
        let families = &self.options.families;
        let is_served = |is_v6| families.contains(&if is_v6 { IpFamily::V6 } else { IpFamily::V4 });
        let servers =
            servers.into_iter().filter(|it| is_served(it.server.frontend.is_v6())).collect();
        let mut members = BTreeMap::new();
        for set in families.clone().into_iter().flat_map(SetName::all) {
            members.extend(self.members_of(set)?);
        }
        let addresses = self.addresses.list().map_err(apply_error)?;
        let of_families = |ip: &IpAddr| self.options.families.contains(&IpFamily::of(*ip));
        let ours = addresses.into_iter().filter(|it| it.link == self.device).map(|it| it.ip);
        let addresses = ours.filter(|ip| of_families(ip) && !is_link_local(*ip)).collect();
        let adopt = |key: &ServerKey| self.options.may_adopt(key);
        let drift = self.mirror.observe(Found { servers, members, addresses }, now, adopt);
        self.is_stale = false;
        Ok(drift)
    }

    fn members_of(&mut self, set: SetName) -> Result<Vec<(Membership, Option<u32>)>, ApplyError> {
        let kind = spec(set).kind;
        let entries = self.sets.entries(set.as_str(), kind).map_err(apply_error)?;
        let with_mark = set.kind.members() == MemberKind::IpPortMark;
        let mark = |entry: &ipset::Entry| match entry.mark {
            Some(mark) if with_mark => Some(mark.value),
            None if with_mark => Some(0),
            _ => None,
        };
        let member = |entry: ipset::Entry| (Membership { set, entry: entry.key }, mark(&entry));
        Ok(entries.into_iter().map(member).collect())
    }

    /// Carries out what is wanted and not there yet, and lets go what has drained.
    pub fn flush(&mut self, now: Instant) -> Result<SyncReport, ApplyError> {
        let mut work = Work::default();
        let outcome = self.flush_phases(now, &mut work);
        self.mirror.settle();
        if let Err(error) = outcome {
            self.is_stale = true;
            return Err(error);
        }
        if work.refused.is_empty() {
            return Ok(work.report);
        }
        self.is_stale = true;
        Err(work.error())
    }

    fn flush_phases(&mut self, now: Instant, work: &mut Work) -> Result<(), ApplyError> {
        // Who is led to a server by a mark has to find it with its endpoints; and what an address does not
        // serve is refused only when all that it serves is known.
        let late = [SetKind::Local, SetKind::Addresses];
        self.join(|set| !late.contains(&set.kind), work)?;
        self.serve(now, work)?;
        for kind in late {
            self.join(|set| set.kind == kind, work)?;
        }
        self.bind(true, work)?;
        self.leave(|_| true, work)?;
        self.drain(now, work)?;
        self.bind(false, work)?;
        // The records of what is gone now.
        self.leave(|_| true, work)
    }

    fn join(&mut self, which: impl Fn(SetName) -> bool, work: &mut Work) -> Result<(), ApplyError> {
        let mut by_set: BTreeMap<SetName, Vec<(Membership, Option<u32>)>> = BTreeMap::new();
        for (member, mark) in self.mirror.joins().into_iter().filter(|(it, _)| which(it.set)) {
            by_set.entry(member.set).or_default().push((member, mark));
        }
        for (set, members) in by_set {
            let entries: Vec<ipset::Entry> = members.iter().map(entry).collect();
            let failures = self.sets.add(set.as_str(), &entries).map_err(apply_error)?;
            work.report.created += members.len() - failures.len();
            let done =
                work.sort_out(&members, failures, |(member, _)| Thing::Member(*member).to_string());
            self.mirror.joined(done);
        }
        Ok(())
    }

    fn leave(
        &mut self,
        which: impl Fn(SetName) -> bool,
        work: &mut Work,
    ) -> Result<(), ApplyError> {
        let mut by_set: BTreeMap<SetName, Vec<Membership>> = BTreeMap::new();
        for member in self.mirror.leaves().into_iter().filter(|it| which(it.set)) {
            by_set.entry(member.set).or_default().push(member);
        }
        for (set, members) in by_set {
            let entries: Vec<ipset::Entry> =
                members.iter().map(|member| ipset::Entry::new(member.entry)).collect();
            let failures = self.sets.delete(set.as_str(), &entries).map_err(apply_error)?;
            work.report.deleted += members.len() - failures.len();
            let done =
                work.sort_out(&members, failures, |member| Thing::Member(*member).to_string());
            self.mirror.left(done);
        }
        Ok(())
    }

    fn bind(&mut self, present: bool, work: &mut Work) -> Result<(), ApplyError> {
        let ips = if present { self.mirror.binds() } else { self.mirror.unbinds() };
        if ips.is_empty() {
            return Ok(());
        }
        let failures = if present {
            self.addresses.add(self.device, &ips)
        } else {
            self.addresses.delete(self.device, &ips)
        };
        let failures = failures.map_err(apply_error)?;
        let count = ips.len() - failures.len();
        if present {
            work.report.created += count;
        } else {
            work.report.deleted += count;
        }
        let done = work.sort_out(&ips, failures, |ip| Thing::Address(*ip).to_string());
        self.mirror.bound(done, present);
        Ok(())
    }

    /// Servers and endpoints that come or change, and those that get no more connections.
    fn serve(&mut self, now: Instant, work: &mut Work) -> Result<(), ApplyError> {
        self.carry_out(Mirror::new_servers, now, work)?;
        if work.met_others {
            // At once: whatever comes between, theirs must not be taken for ours the next time.
            let is_record = |set: SetName| matches!(set.kind, SetKind::Servers | SetKind::Marks);
            self.leave(is_record, work)?;
        }
        self.carry_out(Mirror::changes, now, work)?;
        match self.mirror.lost_marks()[..] {
            [] => Ok(()),
            // Nothing may be led there.
            [(_, mark), ..] => Err(ApplyError::Conflict(format!(
                "virtual server FWM {mark} is somebody else's; taking another mark"
            ))),
        }
    }

    fn carry_out(
        &mut self,
        which: impl Fn(&Mirror) -> Vec<Command>,
        now: Instant,
        work: &mut Work,
    ) -> Result<(), ApplyError> {
        let commands = which(&self.mirror);
        if commands.is_empty() {
            return Ok(());
        }
        let failures = self.ipvs.apply(&commands).map_err(apply_error)?;
        let missing: BTreeSet<&String> =
            failures.iter().filter_map(|failure| lacks_scheduler(&commands, failure)).collect();
        if missing.is_empty() {
            self.took(&commands, failures, now, work);
            return Ok(());
        }
        for scheduler in missing {
            tracing::warn!(
                "this kernel does not have the IPVS scheduler {scheduler} (module \
                 ip_vs_{scheduler}); round robin takes its place"
            );
            self.mirror.lack_scheduler(scheduler);
        }
        // What was refused comes once more.
        let mut first = Work::default();
        self.took(&commands, failures, now, &mut first);
        work.met_others |= first.met_others;
        let commands = which(&self.mirror);
        self.run(&commands, now, work)
    }

    fn run(
        &mut self,
        commands: &[Command],
        now: Instant,
        work: &mut Work,
    ) -> Result<(), ApplyError> {
        if commands.is_empty() {
            return Ok(());
        }
        let failures = self.ipvs.apply(commands).map_err(apply_error)?;
        self.took(commands, failures, now, work);
        Ok(())
    }

    fn took(
        &mut self,
        commands: &[Command],
        failures: Vec<Failure>,
        now: Instant,
        work: &mut Work,
    ) {
        let mut met = BTreeSet::new();
        let failures = failures.into_iter().filter(|failure| {
            let anothers = self.met_anothers(commands, failure);
            met.extend(anothers);
            anothers.is_none()
        });
        let failures = failures.collect();
        let mut done = work.sort_out(commands, failures, describe);
        done.retain(|it| !matches!(it, Command::Add(server) if met.contains(&server.frontend)));
        work.met_others |= !met.is_empty();
        for key in met {
            self.mirror.met_anothers(key);
        }
        for command in &done {
            match command {
                Command::Add(_) | Command::AddServer(..) => work.report.created += 1,
                Command::Edit(_) | Command::EditServer(..) => work.report.updated += 1,
                Command::Delete(_) | Command::DeleteServer(..) => work.report.deleted += 1,
            }
        }
        self.mirror.applied(done, now);
    }

    /// The virtual server that somebody else has made since we looked, and that we may not take over. One
    /// that we may is on record by now, and so is found to be ours when we look again.
    fn met_anothers(&self, commands: &[Command], failure: &Failure) -> Option<ServerKey> {
        let Some(Command::Add(server)) = commands.get(failure.index) else { return None };
        let is_there = error_kind(failure) == Some(std::io::ErrorKind::AlreadyExists);
        (is_there && !self.options.may_adopt(&server.frontend)).then_some(server.frontend)
    }

    /// Lets go what has no connections any more.
    fn drain(&mut self, now: Instant, work: &mut Work) -> Result<(), ApplyError> {
        let leaving: Vec<ServerKey> = self.mirror.leaving().iter().copied().collect();
        if leaving.is_empty() {
            return Ok(());
        }
        let time_max = self.options.drain_time_max;
        let mut commands = Vec::new();
        if leaving.len() <= READ_ONE_BY_ONE_MAX {
            for key in &leaving {
                let servers = self.ipvs.servers(key).map_err(apply_error)?;
                let loads: Vec<_> = servers.iter().map(|it| it.load).collect();
                commands.extend(self.mirror.drained(key, &loads, now, time_max));
            }
        } else {
            let all = self.ipvs.snapshot().map_err(apply_error)?;
            let loads: BTreeMap<ServerKey, _> =
                all.into_iter().map(|it| (it.server.frontend, it.servers)).collect();
            for key in &leaving {
                let loads = loads.get(key).map_or(&[][..], Vec::as_slice);
                commands.extend(self.mirror.drained(key, loads, now, time_max));
            }
        }
        self.run(&commands, now, work)
    }
}

/// What a flush did, and what was refused.
#[derive(Default)]
struct Work {
    report: SyncReport,
    refused: Vec<String>,
    refused_count: usize,
    /// Virtual servers were not made because others have made them.
    met_others: bool,
}

impl Work {
    /// The items that were not refused.
    fn sort_out<'a, T>(
        &mut self,
        items: &'a [T],
        failures: Vec<Failure>,
        name: impl Fn(&T) -> String,
    ) -> Vec<&'a T> {
        let refused: BTreeSet<usize> = failures.iter().map(|failure| failure.index).collect();
        self.refused_count += failures.len();
        for failure in failures {
            if self.refused.len() < TOLD_MAX
                && let Some(item) = items.get(failure.index)
            {
                self.refused.push(format!("{}: {}", name(item), failure.error));
            }
        }
        let all = items.iter().enumerate();
        all.filter(|(index, _)| !refused.contains(index)).map(|(_, item)| item).collect()
    }

    fn error(self) -> ApplyError {
        let more = self.refused_count.saturating_sub(self.refused.len());
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        ApplyError::Conflict(format!("{}{more}", self.refused.join("; ")))
    }
}

fn describe(command: &Command) -> String {
    let (what, key) = match command {
        Command::Add(server) => ("adding", server.frontend),
        Command::Edit(server) => ("changing", server.frontend),
        Command::Delete(key) => ("removing", *key),
        Command::AddServer(key, server) => {
            return format!("adding {} to virtual server {}", server.address, ServerName(key));
        }
        Command::EditServer(key, server) => {
            return format!("changing {} of virtual server {}", server.address, ServerName(key));
        }
        Command::DeleteServer(key, at) => {
            return format!("removing {at} from virtual server {}", ServerName(key));
        }
    };
    format!("{what} virtual server {}", ServerName(&key))
}

/// The kernel's word for why a command was refused.
fn error_kind(failure: &Failure) -> Option<std::io::ErrorKind> {
    let number = failure.error.raw_os_error()?;
    Some(std::io::Error::from_raw_os_error(number).kind())
}

/// The scheduler for want of which a command was refused.
fn lacks_scheduler<'a>(commands: &'a [Command], failure: &Failure) -> Option<&'a String> {
    // The kernel's word for a scheduler that it cannot load.
    if error_kind(failure) != Some(std::io::ErrorKind::NotFound) {
        return None;
    }
    match commands.get(failure.index) {
        Some(Command::Add(server) | Command::Edit(server)) => Some(&server.scheduler),
        _ => None,
    }
}

fn entry((member, mark): &(Membership, Option<u32>)) -> ipset::Entry {
    let mark = mark.map(|value| Mark { value, mask: u32::MAX });
    ipset::Entry { mark, ..ipset::Entry::new(member.entry) }
}

/// A set of ours in the kernel's terms.
pub fn spec(set: SetName) -> ipset::SetSpec {
    let kind = match set.kind.members() {
        MemberKind::Ip => ipset::SetKind::Ip,
        MemberKind::IpPort | MemberKind::IpPortMark => ipset::SetKind::IpPort,
        MemberKind::IpPortIp => ipset::SetKind::IpPortIp,
        MemberKind::IpPortNet => ipset::SetKind::IpPortNet,
    };
    ipset::SetSpec {
        has_marks: set.kind.members() == MemberKind::IpPortMark,
        members_max: SET_MEMBERS_MAX,
        ..ipset::SetSpec::new(kind, set.family == IpFamily::V6)
    }
}

fn make_sets(sets: &mut Ipset, families: &[IpFamily]) -> Result<(), ApplyError> {
    let headers = sets.headers().map_err(apply_error)?;
    for set in families.iter().copied().flat_map(SetName::all) {
        let spec = spec(set);
        match headers.iter().find(|header| header.name == set.as_str()) {
            Some(header) if header.is_of(&spec) => {}
            Some(_) => {
                return Err(ApplyError::Refused(format!(
                    "the ipset {set} is there and is of another kind; run `telaio cleanup` and start \
                     again"
                )));
            }
            None => drop(sets.create(set.as_str(), &spec).map_err(apply_error)?),
        }
    }
    Ok(())
}

fn make_device(links: &mut Links) -> Result<LinkIndex, ApplyError> {
    let found = links.get(DEVICE).map_err(apply_error)?;
    let device = match found {
        Some(link) if link.is_up() => return Ok(link.index),
        Some(link) => link.index,
        None => links.create(DEVICE, &NewLink::Dummy).map_err(apply_error)?,
    };
    links.set_up(device, true).map_err(apply_error)?;
    Ok(device)
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// What went wrong, for the sync loop.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn apply_error(error: NetlinkError) -> ApplyError {
    if error.is_permission() {
        return ApplyError::Permission(error.to_string());
    }
    if error.is_unsupported() {
        return ApplyError::Unsupported(error.to_string());
    }
    ApplyError::Transient(error.to_string())
}
