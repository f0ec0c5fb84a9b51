//! What happens to the agent itself, told as events: the source, syncs, the ingress, instances.
//!
//! Each is looked at once a tick, and compared with how it was: figures that are kept anyway, so that nobody has to be told
//! on the way to the kernel.

use std::collections::BTreeMap;
#[cfg(target_os = "linux")]
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use telaio_gui::NewEvent;
use telaio_gui::values::Key;
use telaio_reconcile::SyncStats;

use super::AdminAgent;
use super::changes::Told;

/// So many instances that came or went are told one by one; of more only the number is.
#[cfg(target_os = "linux")]
const INSTANCES_TOLD_MAX: usize = 50;

/// How things were at the last look.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Whether the source was in touch; none before it ever was.
    connected: Option<bool>,
    loops: BTreeMap<&'static str, LoopSeen>,
    /// Workers of the ingress that ended.
    restarts: Option<u64>,
    #[cfg(target_os = "linux")]
    instances: Option<InstancesSeen>,
}

#[derive(Debug, Clone, Copy)]
struct LoopSeen {
    failures: u64,
    repairs: u64,
    is_failing: bool,
}

/// Instances by their identity, with what people know them by.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
struct InstancesSeen {
    changed: Option<SystemTime>,
    all: BTreeMap<String, String>,
}

/// How old a change is after which no other can bear the same time: file systems count by ticks.
#[cfg(target_os = "linux")]
const SETTLED: Duration = Duration::from_millis(200);

/// An event about ourselves.
pub(super) struct Notice {
    object: Key,
    told: Told,
}

impl Notice {
    fn new(kind: &str, object: &str, change: &'static str, summary: impl Into<String>) -> Self {
        Self { object: Key::new("", object), told: Told::new(kind, change, summary) }
    }
}

impl Seen {
    fn source(&mut self, connected: bool, error: Option<String>) -> Option<Notice> {
        let before = self.connected.replace(connected);
        match (before, connected) {
            (Some(true), false) => {
                let why = error.map(|error| format!(": {error}")).unwrap_or_default();
                let text = format!("out of touch{why}; the last state stands");
                Some(Notice::new("source", "state", "failed", text))
            }
            (Some(false), true) => {
                Some(Notice::new("source", "state", "recovered", "in touch again"))
            }
            (None, false) => {
                // It never was in touch: that is a start, not a loss.
                self.connected = None;
                None
            }
            _ => None,
        }
    }

    fn sync(&mut self, plane: &'static str, by: &str, stats: &SyncStats) -> Vec<Notice> {
        let now = LoopSeen {
            failures: stats.failures_total,
            repairs: stats.drift_repairs_total,
            is_failing: stats.last_error.is_some(),
        };
        let before = self.loops.insert(plane, now);
        let was_failing = before.is_some_and(|it| it.is_failing);
        let failed = now.failures.saturating_sub(before.map_or(0, |it| it.failures));
        let repairs = now.repairs.saturating_sub(before.map_or(0, |it| it.repairs));
        let mut told = Vec::new();
        match (&stats.last_error, was_failing) {
            (Some(error), false) => {
                let text = format!("a sync of {plane}{by} failed, and is tried again: {error}");
                told.push(Notice::new("sync", plane, "failed", text));
            }
            (None, false) if failed > 0 => {
                let text = format!("{failed} syncs of {plane}{by} failed, and then it worked");
                told.push(Notice::new("sync", plane, "recovered", text));
            }
            (None, true) => {
                let text = format!("syncs of {plane}{by} work again");
                told.push(Notice::new("sync", plane, "recovered", text));
            }
            _ => {}
        }
        if repairs > 0 {
            let what = repaired(plane, by, repairs, stats);
            told.push(Notice::new("sync", plane, "repaired", what));
        }
        told
    }

    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no ingress plane"))]
    fn ingress(&mut self, restarts: u64) -> Option<Notice> {
        let before = self.restarts.replace(restarts)?;
        let more = restarts.saturating_sub(before);
        (more > 0).then(|| {
            let text = format!("its worker ended and another took over ({restarts} so far)");
            Notice::new("ingress", "worker", "recovered", text)
        })
    }
}

/// What of the kernel was put right.
fn repaired(plane: &str, by: &str, repairs: u64, stats: &SyncStats) -> String {
    let report = &stats.last_report;
    let items = if repairs == 1 { "thing" } else { "things" };
    let mut text = format!(
        "{repairs} {items} of {plane}{by} in the kernel were not as they should be, and were put right"
    );
    if u64::try_from(report.drift_repairs) == Ok(repairs) {
        let parts = [
            (report.created, "made again"),
            (report.updated, "set again"),
            (report.deleted, "removed"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if !parts.is_empty() {
            text = format!("{text}: {}", parts.join(", "));
        }
    }
    text
}

impl AdminAgent {
    /// Looks at everything, and tells what is another.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(clippy::unused_async, reason = "there are no instances")
    )]
    pub(super) async fn notice(&self) {
        let source = self.monitor.source();
        let mut told = Vec::new();
        {
            let mut seen = self.notices.0.lock();
            let problem = source.problems().first().map(ToString::to_string);
            told.extend(seen.source(source.is_connected(), problem));
            let backend = self.monitor.facts().backend.as_ref();
            if let Some(handle) = self.monitor.services_loop() {
                let by = backend.map(|name| format!(" by {name}")).unwrap_or_default();
                told.extend(seen.sync("services", &by, &handle.stats()));
            }
            if let Some(stats) = self.monitor.pods_stats() {
                told.extend(seen.sync("pods", "", &stats));
            }
            #[cfg(unix)]
            if let Some(ingress) = self.monitor.ingress() {
                told.extend(seen.ingress(ingress.restarts()));
            }
        }
        #[cfg(target_os = "linux")]
        told.extend(self.notice_instances().await);
        for notice in told {
            self.tell(notice.object, notice.told);
        }
    }

    /// Something happened here.
    pub(super) fn tell(&self, object: Key, told: Told) {
        let Told { kind, change, summary } = told;
        self.events.push(NewEvent {
            at_ms: None,
            revision: 0,
            kind,
            object,
            change: change.to_owned(),
            summary,
            programs: false,
        });
    }

    /// Instances that came and went. Their records are read only where one did.
    #[cfg(target_os = "linux")]
    async fn notice_instances(&self) -> Vec<Notice> {
        let Some(changed) = self.monitor.pods_changed() else { return Vec::new() };
        let first = {
            let seen = self.notices.0.lock();
            if seen.instances.as_ref().is_some_and(|it| it.changed == Some(changed)) {
                return Vec::new();
            }
            seen.instances.is_none()
        };
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        let settled = age > SETTLED;
        let Some(report) = self.pods_now().await else { return Vec::new() };
        // One that is still being made has no address yet.
        let whole = report.instances.iter().filter(|it| settled || !it.addresses.is_empty());
        let all = whole.map(|it| {
            let name = it.pod.clone().unwrap_or_else(|| it.id.clone());
            (format!("{}/{}", it.id, it.interface), format!("{name}\n{}", it.addresses.join(", ")))
        });
        let now = InstancesSeen { changed: settled.then_some(changed), all: all.collect() };
        let before = self.notices.0.lock().instances.replace(now);
        let Some(before) = before.filter(|_| !first) else { return Vec::new() };
        let seen = self.notices.0.lock();
        let Some(now) = &seen.instances else { return Vec::new() };
        instances_change(&before.all, &now.all)
    }
}

#[cfg(target_os = "linux")]
fn instances_change(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> Vec<Notice> {
    let of = |what: &str, change: &'static str, text: &str| {
        let (name, addresses) = text.split_once('\n').unwrap_or((text, ""));
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        let told = Told::new("instance", change, format!("{what} with {addresses}"));
        Notice { object: Key::new(namespace, name), told }
    };
    let came = is.iter().filter(|(id, _)| !was.contains_key(*id));
    let went = was.iter().filter(|(id, _)| !is.contains_key(*id));
    let mut told: Vec<Notice> = came
        .map(|(_, text)| of("an instance came", "added", text))
        .chain(went.map(|(_, text)| of("an instance went", "removed", text)))
        .collect();
    if told.len() > INSTANCES_TOLD_MAX {
        let more = told.split_off(INSTANCES_TOLD_MAX).len();
        let text = format!("{more} more instances came or went");
        told.push(Notice::new("instance", "instances", "changed", text));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(told: impl IntoIterator<Item = Notice>) -> Vec<String> {
        let text = |it: Notice| format!("{} {}: {}", it.told.kind, it.told.change, it.told.summary);
        told.into_iter().map(text).collect()
    }

    #[test]
    fn a_source_is_lost_and_comes_back_and_a_start_is_no_loss() {
        let mut seen = Seen::default();
        let mut look = |connected| texts(seen.source(connected, Some("refused".to_owned())));
        assert!(look(false).is_empty() && look(false).is_empty() && look(true).is_empty());
        assert_eq!(look(false), ["source failed: out of touch: refused; the last state stands"]);
        assert!(look(false).is_empty(), "it is told once");
        assert_eq!(look(true), ["source recovered: in touch again"]);
    }

    #[test]
    fn syncs_that_fail_and_work_again_and_what_they_repair_is_told() {
        let mut seen = Seen::default();
        let mut look = |failures_total, error: Option<&str>, drift_repairs_total| {
            let last_error = error.map(Into::into);
            let stats =
                SyncStats { failures_total, last_error, drift_repairs_total, ..Default::default() };
            texts(seen.sync("services", " by nftables", &stats))
        };
        assert!(look(0, None, 0).is_empty());
        let failed = "sync failed: a sync of services by nftables failed, and is tried again: busy";
        assert_eq!(look(1, Some("busy"), 0), [failed]);
        assert!(look(2, Some("busy"), 0).is_empty());
        assert_eq!(look(2, None, 0), ["sync recovered: syncs of services by nftables work again"]);
        let short = look(4, None, 0);
        assert!(short[0].starts_with("sync recovered: 2 syncs"), "between two looks: {short:?}");
        let repaired = look(4, None, 3);
        assert!(repaired[0].starts_with("sync repaired: 3 things of services"), "{repaired:?}");
        assert!(look(4, None, 3).is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn instances_are_told_by_the_pod_that_they_are() {
        let of = |all: &[(&str, &str)]| {
            all.iter().map(|(id, text)| ((*id).to_owned(), (*text).to_owned())).collect()
        };
        let was = of(&[("1/eth0", "shop/web-1\n10.0.0.2")]);
        let is = of(&[("2/eth0", "two\n10.0.0.3")]);
        let told = instances_change(&was, &is);
        let objects: Vec<String> = told.iter().map(|it| it.object.to_string()).collect();
        assert_eq!(objects, ["two", "shop/web-1"]);
        let wanted = [
            "instance added: an instance came with 10.0.0.3",
            "instance removed: an instance went with 10.0.0.2",
        ];
        assert_eq!(texts(told), wanted);
    }
}
