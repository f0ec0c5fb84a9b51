//! The kernel's settings that services need, set and put back.
//!
//! [`SysctlConfig`] has kube-proxy's knobs and defaults; [`SysctlConfig::settings`] says what they
//! mean. [`Sysctls::apply`] sets what differs and [`Sysctls::restore`] puts back what was there.
//!
//! What always holds:
//! - What a setting was before us is on disk before we change it, so that a crash at any moment loses
//!   nothing. A record from before the machine's last start counts for nothing.
//! - Only what still has our value is put back: whoever changed it since meant it.
//! - The sizes of the conntrack table are never made smaller. Kube-proxy does the same: a machine's
//!   owner who made it larger had a reason.
//! - Nothing here ends the agent. What cannot be set is a [`SysctlProblem`] to show: in a container
//!   or namespace some settings are read-only, and services work without.
//!
//! ```no_run
//! use telaio_service_proxy::sysctls::{SysctlConfig, Sysctls};
//!
//! let sysctls = Sysctls::new("/", "/var/lib/telaio/sysctls.json");
//! let wanted = SysctlConfig::default().settings(sysctls.cores());
//! for problem in sysctls.apply(&wanted).problems {
//!     eprintln!("{problem}");
//! }
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::conntrack::{Conntrack, Family, Selection};

mod ipvs_timeout;
mod record;
#[cfg(test)]
mod tests;

use ipvs_timeout::IpvsTimeout;
use record::{Kept, Record};

const CONNTRACK_MAX: &str = "proc/sys/net/netfilter/nf_conntrack_max";
const CONNTRACK_BUCKETS: &str = "sys/module/nf_conntrack/parameters/hashsize";
const TCP_ESTABLISHED: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
const TCP_CLOSE_WAIT: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
const TCP_BE_LIBERAL: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
const UDP_TIMEOUT: &str = "proc/sys/net/netfilter/nf_conntrack_udp_timeout";
const UDP_STREAM_TIMEOUT: &str = "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream";
const ROUTE_LOCALNET: &str = "proc/sys/net/ipv4/conf/all/route_localnet";
pub(crate) const IP_FORWARD: &str = "proc/sys/net/ipv4/ip_forward";
const IP6_FORWARDING: &str = "proc/sys/net/ipv6/conf/all/forwarding";
// What the backend `ipvs` sets besides.
pub(crate) const VS_CONNTRACK: &str = "proc/sys/net/ipv4/vs/conntrack";
pub(crate) const VS_CONN_REUSE_MODE: &str = "proc/sys/net/ipv4/vs/conn_reuse_mode";
pub(crate) const VS_EXPIRE_NODEST_CONN: &str = "proc/sys/net/ipv4/vs/expire_nodest_conn";
pub(crate) const VS_EXPIRE_QUIESCENT_TEMPLATE: &str =
    "proc/sys/net/ipv4/vs/expire_quiescent_template";
// Not files: IPVS has its time-outs by netlink only. The names are ours.
pub(crate) const VS_TIMEOUT_TCP: &str = "netlink/ipvs/timeout_tcp";
pub(crate) const VS_TIMEOUT_TCP_FIN: &str = "netlink/ipvs/timeout_tcp_fin";
pub(crate) const VS_TIMEOUT_UDP: &str = "netlink/ipvs/timeout_udp";
pub(crate) const ARP_IGNORE: &str = "proc/sys/net/ipv4/conf/all/arp_ignore";
pub(crate) const ARP_ANNOUNCE: &str = "proc/sys/net/ipv4/conf/all/arp_announce";
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
const CORES_ONLINE: &str = "sys/devices/system/cpu/online";
/// All that we ever change.
const KNOWN: [&str; 18] = [
    CONNTRACK_MAX,
    CONNTRACK_BUCKETS,
    TCP_ESTABLISHED,
    TCP_CLOSE_WAIT,
    TCP_BE_LIBERAL,
    UDP_TIMEOUT,
    UDP_STREAM_TIMEOUT,
    ROUTE_LOCALNET,
    VS_CONNTRACK,
    VS_CONN_REUSE_MODE,
    VS_EXPIRE_NODEST_CONN,
    VS_EXPIRE_QUIESCENT_TEMPLATE,
    VS_TIMEOUT_TCP,
    VS_TIMEOUT_TCP_FIN,
    VS_TIMEOUT_UDP,
    IP_FORWARD,
    ARP_IGNORE,
    ARP_ANNOUNCE,
];
/// How many flows share a bucket of the conntrack table, as kube-proxy reckons.
const FLOWS_PER_BUCKET: u64 = 4;
/// The kernel makes whole pages of buckets, of 8 bytes each, out of what it is told. A multiple of what
/// the largest pages hold stays as it is, so that we know our own value again.
const BUCKETS_PER_PAGE: u64 = (64 << 10) / 8;

/// What an operator decides, in kube-proxy's terms. Zero always means: leave it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlConfig {
    /// `--conntrack-max-per-core`: how many flows the table holds for each core.
    pub conntrack_max_per_core: u32,
    /// `--conntrack-min`: how many it holds at least, unless the above is zero.
    pub conntrack_min: u32,
    /// `--conntrack-tcp-timeout-established`: how long an idle connection is kept.
    pub conntrack_tcp_timeout_established_s: u32,
    /// `--conntrack-tcp-timeout-close-wait`: how long a half-closed one is.
    pub conntrack_tcp_timeout_close_wait_s: u32,
    /// `--conntrack-tcp-be-liberal`: packets outside a connection's window are not taken for invalid.
    pub conntrack_tcp_be_liberal: bool,
    /// `--conntrack-udp-timeout`: how long a UDP flow without answer is kept.
    pub conntrack_udp_timeout_s: u32,
    /// `--conntrack-udp-timeout-stream`: how long one with answers is.
    pub conntrack_udp_timeout_stream_s: u32,
    /// Packets with loopback addresses may leave the machine, which node ports on loopback need
    /// where rules serve them.
    pub route_localnet: bool,
}

impl Default for SysctlConfig {
    fn default() -> Self {
        Self {
            conntrack_max_per_core: 32 << 10,
            conntrack_min: 128 << 10,
            conntrack_tcp_timeout_established_s: 24 * 3600,
            conntrack_tcp_timeout_close_wait_s: 3600,
            conntrack_tcp_be_liberal: false,
            conntrack_udp_timeout_s: 0,
            conntrack_udp_timeout_stream_s: 0,
            route_localnet: false,
        }
    }
}

/// How a value is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// Just this.
    Exactly(u64),
    /// This, unless it is larger already.
    AtLeast(u64),
}

/// A setting of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Its file, from the root of the file system.
    pub path: &'static str,
    /// What it should be.
    pub aim: Aim,
    /// Another setting that must be in place for this one to make sense.
    pub needs: Option<&'static str>,
}

impl SysctlConfig {
    /// How many flows the table should hold on a machine with so many cores.
    pub fn conntrack_max(&self, cores: u32) -> Option<u64> {
        if self.conntrack_max_per_core == 0 {
            return None;
        }
        let scaled = u64::from(self.conntrack_max_per_core) * u64::from(cores);
        Some(scaled.max(u64::from(self.conntrack_min)))
    }

    /// What to set on a machine with so many cores.
    pub fn settings(&self, cores: u32) -> Vec<Setting> {
        let mut all = Vec::new();
        if let Some(max) = self.conntrack_max(cores) {
            let buckets = (max / FLOWS_PER_BUCKET).next_multiple_of(BUCKETS_PER_PAGE);
            let buckets = Aim::AtLeast(buckets);
            all.push(Setting { path: CONNTRACK_MAX, aim: Aim::AtLeast(max), needs: None });
            let needs = Some(CONNTRACK_MAX);
            all.push(Setting { path: CONNTRACK_BUCKETS, aim: buckets, needs });
        }
        for (path, value) in [
            (TCP_ESTABLISHED, self.conntrack_tcp_timeout_established_s),
            (TCP_CLOSE_WAIT, self.conntrack_tcp_timeout_close_wait_s),
            (TCP_BE_LIBERAL, u32::from(self.conntrack_tcp_be_liberal)),
            (UDP_TIMEOUT, self.conntrack_udp_timeout_s),
            (UDP_STREAM_TIMEOUT, self.conntrack_udp_timeout_stream_s),
            (ROUTE_LOCALNET, u32::from(self.route_localnet)),
        ] {
            if value > 0 {
                all.push(Setting { path, aim: Aim::Exactly(value.into()), needs: None });
            }
        }
        all
    }
}

/// What an operator should know, as a text with a hint. Nothing of it is fatal.
#[derive(Debug, thiserror::Error)]
pub enum SysctlProblem {
    /// A setting could not be read or written.
    #[error("cannot {doing} /{path}: {source}{}", hint(.source, .path))]
    Setting {
        /// What was tried.
        doing: String,
        /// Which setting.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A setting's value is not a number.
    #[error("/{path} has a value that is not a number, {value:?}; it is left alone")]
    NotANumber {
        /// Which setting.
        path: String,
        /// What it says.
        value: String,
    },
    /// Without a record nothing is changed, because it could not be put back.
    #[error("the kernel's settings are left alone: cannot write {path}: {source}", path = path.display())]
    CannotRemember {
        /// The record's file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The record makes no sense; what it named stays as it is.
    #[error("{path} is no record of ours and is passed over: {why}", path = path.display())]
    BadRecord {
        /// The record's file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Packets are not forwarded, so endpoints on other machines, and pods, are not reached.
    #[error(
        "{family} packets are not forwarded on this machine (/{path} is 0): services reach only endpoints on the node itself; set it to 1"
    )]
    NotForwarding {
        /// Which packets.
        family: IpFamily,
        /// The setting.
        path: &'static str,
    },
}

fn hint(error: &io::Error, path: &str) -> &'static str {
    let is_ipvs = path.contains("/vs/") || IpvsTimeout::of(path).is_some();
    let is_conntrack = path.contains("conntrack") && !is_ipvs;
    match error.kind() {
        io::ErrorKind::NotFound if is_ipvs => "; load the kernel module ip_vs",
        io::ErrorKind::NotFound if is_conntrack => "; load the kernel module nf_conntrack",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if is_conntrack => {
            "; in a container or network namespace it is set on the machine itself, or not at all \
             with the --conntrack flag set to 0"
        }
        _ => "",
    }
}

/// What [`Sysctls`] did.
#[derive(Debug, Default)]
pub struct SysctlReport {
    /// The settings that were changed, with their values before and after.
    pub changed: Vec<SysctlChange>,
    /// What did not work.
    pub problems: Vec<SysctlProblem>,
}

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysctlChange {
    /// Its file, from the root of the file system.
    pub path: String,
    /// Its value before.
    pub from: String,
    /// Its value now.
    pub to: String,
}

/// The settings of a machine. See the [module](self).
#[derive(Debug)]
pub struct Sysctls {
    root: PathBuf,
    record: PathBuf,
}

/// A value that is to be written.
struct Step {
    path: String,
    from: String,
    to: String,
    /// What to remember if it works.
    kept: Option<Kept>,
}

impl Sysctls {
    /// `root` is `/`, or a stand-in for tests; `record` is a file in the agent's state directory.
    pub fn new(root: impl Into<PathBuf>, record: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), record: record.into() }
    }

    /// How many cores the machine has. Not how many we may use: the table is everybody's.
    pub fn cores(&self) -> u32 {
        let online = self.read(CORES_ONLINE).ok().and_then(|ranges| count_cores(&ranges));
        online.unwrap_or_else(|| {
            let ours = std::thread::available_parallelism().map_or(1, usize::from);
            u32::try_from(ours).unwrap_or(u32::MAX)
        })
    }

    /// Has the kernel load its connection tracking, if it has not yet: after a machine's start no rule
    /// has asked for it, and its settings come with it. Only for the machine that we are on.
    pub fn load_conntrack(&self) -> Result<(), NetlinkError> {
        if self.file(CONNTRACK_MAX).exists() {
            return Ok(());
        }
        // The kernel loads what a request is for.
        Conntrack::open()?.each(Selection::family(Family::V4), |_| Ok(()))
    }

    /// Warnings where the machine does not forward packets. Setting that is its owner's decision.
    pub fn forwarding_problems(&self, families: &[IpFamily]) -> Vec<SysctlProblem> {
        let path = |family: &IpFamily| match family {
            IpFamily::V4 => IP_FORWARD,
            IpFamily::V6 => IP6_FORWARDING,
        };
        let is_off = |path| self.read(path).is_ok_and(|value| value == "0");
        let off = families.iter().map(|family| (*family, path(family)));
        off.filter(|(_, path)| is_off(path))
            .map(|(family, path)| SysctlProblem::NotForwarding { family, path })
            .collect()
    }

    /// Sets what differs. Settings that an earlier call set and this one does not name are put back.
    pub fn apply(&self, wanted: &[Setting]) -> SysctlReport {
        self.change(wanted, true)
    }

    /// The same, but what was set before and is not wanted any more stays, until
    /// [`restore`](Self::restore).
    pub fn add(&self, wanted: &[Setting]) -> SysctlReport {
        self.change(wanted, false)
    }

    fn change(&self, wanted: &[Setting], put_back: bool) -> SysctlReport {
        let mut report = SysctlReport::default();
        let mut record = self.load(&mut report);
        let mut steps =
            if put_back { self.steps_back(&record, wanted, &mut report) } else { Vec::new() };
        for setting in wanted {
            match self.step_to(setting, record.settings.get(setting.path)) {
                Ok(step) => steps.extend(step.map(|step| (step, setting.needs))),
                Err(problem) => report.problems.push(problem),
            }
        }
        if !steps.is_empty() {
            self.run(steps, &mut record, &mut report);
        }
        report
    }

    /// Puts back everything that [`apply`](Self::apply) changed and nobody else has since.
    pub fn restore(&self) -> SysctlReport {
        self.apply(&[])
    }

    /// What is not wanted any more and still has our value goes back. What has another value is
    /// somebody else's now, and is forgotten by [`run`](Self::run).
    fn steps_back(
        &self,
        record: &Record,
        wanted: &[Setting],
        report: &mut SysctlReport,
    ) -> Vec<(Step, Option<&'static str>)> {
        let is_wanted = |path: &str| wanted.iter().any(|setting| setting.path == path);
        let mut steps = Vec::new();
        // A record that names anything else is not ours.
        let is_known = |path: &str| KNOWN.contains(&path);
        let unwanted =
            record.settings.iter().filter(|(path, _)| is_known(path) && !is_wanted(path));
        for (path, kept) in unwanted {
            match self.read(path) {
                Ok(from) => {
                    let to =
                        if kept.ours.contains(&from) { kept.before.clone() } else { from.clone() };
                    steps.push((Step { path: path.clone(), from, to, kept: None }, None));
                }
                Err(source) => report.problems.push(setting_problem("read", path, source)),
            }
        }
        steps
    }

    /// How to get to what a setting should be; `None` if it is there.
    fn step_to(
        &self,
        setting: &Setting,
        kept: Option<&Kept>,
    ) -> Result<Option<Step>, SysctlProblem> {
        let path = setting.path;
        let from = self.read(path).map_err(|source| setting_problem("read", path, source))?;
        // Without us it would be this.
        let is_ours = kept.is_some_and(|kept| kept.ours.contains(&from));
        let before = kept.filter(|_| is_ours).map_or(&from, |kept| &kept.before);
        let number = |value: &str| {
            value.parse::<u64>().map_err(|_| SysctlProblem::NotANumber {
                path: path.to_owned(),
                value: value.to_owned(),
            })
        };
        let to = match setting.aim {
            Aim::Exactly(value) => value,
            Aim::AtLeast(value) => value.max(number(before)?),
        };
        if number(&from)? == to {
            return Ok(None);
        }
        let to = to.to_string();
        let mut kept = Kept { before: before.clone(), ours: vec![to.clone()] };
        if is_ours {
            // A crash may leave either of the two.
            kept.ours.push(from.clone());
        }
        let kept = (kept.before != to).then_some(kept);
        Ok(Some(Step { path: path.to_owned(), from, to, kept }))
    }

    /// Remembers, writes, and forgets what need not be remembered any more.
    fn run(
        &self,
        steps: Vec<(Step, Option<&'static str>)>,
        record: &mut Record,
        report: &mut SysctlReport,
    ) {
        let before = record.clone();
        for (step, _) in &steps {
            // What is being put back stays in the record until it is.
            if let Some(kept) = &step.kept {
                record.settings.insert(step.path.clone(), kept.clone());
            }
        }
        if let Err(source) = record.save(&self.record) {
            let path = self.record.clone();
            report.problems.push(SysctlProblem::CannotRemember { path, source });
            return;
        }
        let mut failed: Vec<String> = Vec::new();
        for (step, needs) in steps {
            let Step { path, from, to, kept } = step;
            let outcome = if needs.is_some_and(|needs| failed.iter().any(|path| path == needs)) {
                Err(None)
            } else if from == to {
                Ok(())
            } else {
                self.write(&path, &to).map_err(Some)
            };
            if let Err(source) = outcome {
                // As it was before: in the record, too.
                match before.settings.get(&path) {
                    Some(kept) => record.settings.insert(path.clone(), kept.clone()),
                    None => record.settings.remove(&path),
                };
                let doing = format!("set {to} in");
                report.problems.extend(source.map(|source| setting_problem(&doing, &path, source)));
                failed.push(path);
                continue;
            }
            match kept {
                Some(kept) => {
                    let kept = Kept { ours: vec![to.clone()], ..kept };
                    record.settings.insert(path.clone(), kept);
                }
                None => drop(record.settings.remove(&path)),
            }
            if from != to {
                report.changed.push(SysctlChange { path, from, to });
            }
        }
        if let Err(source) = record.save(&self.record) {
            // The record on disk says more than it need, which restoring copes with.
            tracing::debug!(%source, "cannot tidy the record of kernel settings");
        }
    }

    fn load(&self, report: &mut SysctlReport) -> Record {
        let boot = self.read(BOOT_ID).unwrap_or_default();
        match Record::load(&self.record) {
            Ok(record) if record.boot == boot => record,
            Ok(_) => Record { boot, settings: BTreeMap::new() },
            Err(why) => {
                let path = self.record.clone();
                report.problems.push(SysctlProblem::BadRecord { path, why });
                Record { boot, settings: BTreeMap::new() }
            }
        }
    }

    fn file(&self, path: &str) -> PathBuf {
        self.root.join(Path::new(path))
    }

    /// A setting that is no file, on the machine that we are on.
    fn timeout(&self, path: &str) -> Option<IpvsTimeout> {
        IpvsTimeout::of(path).filter(|_| self.root == Path::new("/"))
    }

    fn read(&self, path: &str) -> io::Result<String> {
        if let Some(timeout) = self.timeout(path) {
            return timeout.read().map(|seconds| seconds.to_string());
        }
        std::fs::read_to_string(self.file(path)).map(|value| value.trim().to_owned())
    }

    /// Settings are files that exist; none is ever made.
    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        if let Some(timeout) = self.timeout(path) {
            return timeout.write(value.parse().map_err(io::Error::other)?);
        }
        let mut file =
            std::fs::OpenOptions::new().write(true).truncate(true).open(self.file(path))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }
}

fn setting_problem(doing: &str, path: &str, source: io::Error) -> SysctlProblem {
    SysctlProblem::Setting { doing: doing.to_owned(), path: path.to_owned(), source }
}

/// How many numbers are in a list such as `0-3,8,10-11`.
fn count_cores(ranges: &str) -> Option<u32> {
    let mut count = 0_u32;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}
