//! What changed in the store, told one by one, and when it was in the kernel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use telaio_brain::store::{Commit, ObjectDelta};
use telaio_brain::{CommitWatch, History, ServiceState, Store};
use telaio_gui::values::Key;
use telaio_gui::{EventLog, NewEvent};
use telaio_model::ObjectKey;

use crate::monitor::Monitor;

/// How often it is looked whether changes have reached the kernel, while some have not.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// A change that no sync was asked for within this time does not concern this node.
const CONCERN_TIME: Duration = Duration::from_secs(2);
/// How many changes wait to be seen in the kernel; those beyond are not followed.
const WAITING_MAX: usize = 1000;

/// Changes that wait to be in the kernel.
struct Waiting {
    ids: Vec<u64>,
    since: SystemTime,
}

/// Follows the store for as long as it is polled.
pub(super) async fn follow(
    store: Arc<Store>,
    monitor: Arc<Monitor>,
    events: Arc<EventLog>,
    programs: bool,
) {
    let mut watch = CommitWatch::new(&store);
    drop(store);
    let mut waiting: Vec<Waiting> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            Ok(watch.next().await)
        } else {
            tokio::time::timeout(LOOK_PERIOD, watch.next()).await
        };
        match next {
            Ok(Err(_)) => return,
            Ok(Ok(History::From(snapshot))) => {
                events.push(NewEvent {
                    at_ms: None,
                    revision: snapshot.revision,
                    kind: "source".to_owned(),
                    object: Key::new("", "state"),
                    change: "changed".to_owned(),
                    summary: format!(
                        "the whole state was read: {} services, {} other objects",
                        snapshot.services.len(),
                        snapshot.objects.len()
                    ),
                    programs: false,
                });
            }
            Ok(Ok(History::Commits(commits))) => {
                let mut known: usize = waiting.iter().map(|it| it.ids.len()).sum();
                for commit in &commits {
                    let mut ids = Vec::new();
                    tell(commit, &events, programs, &mut ids);
                    if !ids.is_empty() && known < WAITING_MAX {
                        known += ids.len();
                        // A sync may have been asked for before we come to look.
                        waiting.push(Waiting { ids, since: commit.at });
                    }
                }
            }
            Err(_) => {}
        }
        waiting.retain(|it| !is_over(it, &monitor, &events));
    }
}

/// Whether a change is in the kernel, or never will be.
fn is_over(waiting: &Waiting, monitor: &Monitor, events: &EventLog) -> bool {
    let Some(handle) = monitor.services_loop() else { return true };
    let stats = handle.stats();
    let asked = stats.last_queued.filter(|at| *at >= waiting.since);
    let done = stats.last_success.filter(|_| !stats.pending());
    match (asked, done) {
        (Some(asked), Some(done)) if done >= asked => {
            let took = done.duration_since(waiting.since).unwrap_or_default();
            let ms = took.as_secs_f64() * 1000.0;
            let all: Vec<(u64, f64)> = waiting.ids.iter().map(|id| (*id, ms)).collect();
            events.programmed(&all);
            true
        }
        (None, _) => waiting.since.elapsed().is_ok_and(|age| age > CONCERN_TIME),
        _ => false,
    }
}

fn key(key: &ObjectKey) -> Key {
    Key::new(&*key.namespace, &*key.name)
}

fn tell(commit: &Commit, events: &EventLog, programs: bool, ids: &mut Vec<u64>) {
    for delta in &commit.services {
        let (before, after) = (delta.before.as_deref(), delta.after.as_deref());
        let (kind, change, summary) = service_change(before, after);
        let id = events.push(NewEvent {
            at_ms: None,
            revision: commit.revision,
            kind: kind.to_owned(),
            object: key(&delta.key),
            change: change.to_owned(),
            summary,
            programs,
        });
        if programs {
            ids.push(id);
        }
    }
    for delta in &commit.objects {
        let (change, summary) = object_change(delta);
        events.push(NewEvent {
            at_ms: None,
            revision: commit.revision,
            kind: delta.object_ref.kind.to_string(),
            object: key(&delta.object_ref.key),
            change: change.to_owned(),
            summary,
            programs: false,
        });
    }
}

fn object_change(delta: &ObjectDelta) -> (&'static str, String) {
    let kind = delta.object_ref.kind;
    match (&delta.before, &delta.after) {
        (None, _) => ("added", format!("{kind} is new")),
        (_, None) => ("removed", format!("{kind} is gone")),
        _ => ("changed", format!("{kind} is another")),
    }
}

fn service_change(
    before: Option<&ServiceState>,
    after: Option<&ServiceState>,
) -> (&'static str, &'static str, String) {
    let service = |it: Option<&ServiceState>| it.and_then(|it| it.service.clone());
    let (old, new) = (service(before), service(after));
    let count = |it: Option<&ServiceState>| {
        it.map_or(0, |it| it.slices.iter().map(|slice| slice.endpoints.len()).sum::<usize>())
    };
    match (&old, &new) {
        (None, Some(_)) => {
            ("Service", "added", format!("a service with {} endpoints", count(after)))
        }
        (Some(_), None) => ("Service", "removed", "the service is gone".to_owned()),
        (Some(old), Some(new)) if old != new => {
            let mut what = Vec::new();
            for (name, differs) in [
                ("ports", old.ports != new.ports),
                ("cluster addresses", old.cluster_ips != new.cluster_ips),
                ("external addresses", old.external_ips != new.external_ips),
                ("load balancer", old.load_balancer != new.load_balancer),
                ("type", old.service_type != new.service_type),
                ("session affinity", old.session_affinity != new.session_affinity),
                ("external policy", old.external_traffic_policy != new.external_traffic_policy),
                ("internal policy", old.internal_traffic_policy != new.internal_traffic_policy),
                ("source ranges", old.source_ranges != new.source_ranges),
                ("labels or annotations", old.meta != new.meta),
            ] {
                if differs {
                    what.push(name);
                }
            }
            let what = if what.is_empty() { "something".to_owned() } else { what.join(", ") };
            ("Service", "changed", format!("changed: {what}"))
        }
        _ => endpoints_change(before, after),
    }
}

fn endpoints_change(
    before: Option<&ServiceState>,
    after: Option<&ServiceState>,
) -> (&'static str, &'static str, String) {
    let overrides =
        |it: Option<&ServiceState>| it.map(|it| it.overrides.clone()).unwrap_or_default();
    if overrides(before) != overrides(after) {
        let (was, is) = (overrides(before).len(), overrides(after).len());
        return ("Endpoints", "changed", format!("overrides of its endpoints: {was} → {is}"));
    }
    let all = |it: Option<&ServiceState>, ready: bool| -> BTreeSet<String> {
        let all = it.into_iter().flat_map(|it| &it.slices).flat_map(|slice| &slice.endpoints);
        let wanted = all.filter(|it| !ready || it.conditions.ready);
        wanted
            .map(|it| it.pod.as_deref().map_or_else(|| it.address.to_string(), str::to_owned))
            .collect()
    };
    let (was, is) = (all(before, false), all(after, false));
    let (ready_was, ready_is) = (all(before, true), all(after, true));
    let names = |sign: &str, all: Vec<&String>| -> String {
        let some: Vec<&str> = all.iter().take(3).map(|it| it.as_str()).collect();
        let more = if all.len() > 3 { ", …" } else { "" };
        if all.is_empty() { String::new() } else { format!("{sign} {}{more}; ", some.join(", ")) }
    };
    let text = names("came", is.difference(&was).collect())
        + &names("went", was.difference(&is).collect())
        + &names("ready", ready_is.difference(&ready_was).filter(|it| was.contains(*it)).collect())
        + &names(
            "not ready",
            ready_was.difference(&ready_is).filter(|it| is.contains(*it)).collect(),
        );
    let text = format!("{text}{} of {} ready", ready_is.len(), is.len());
    let change = match (was.is_empty(), is.is_empty()) {
        (true, false) => "added",
        (false, true) => "removed",
        _ => "changed",
    };
    ("Endpoints", change, text)
}
