//! UDP flows that no longer reach who they should, found and forgotten.
//!
//! The kernel remembers for each flow where it sends its packets. With UDP nothing ever ends a flow
//! but silence, so a client that keeps sending stays with an endpoint that is gone, or with nobody if
//! it began before there was an endpoint. Kube-proxy's rule, and ours: when a UDP service changes,
//! flows to one of its addresses whose answers would not come from an endpoint that still serves are
//! deleted, and the client's next packet chooses anew. TCP and SCTP notice by themselves.
//!
//! [`Frontends`] knows where UDP services answer and decides, purely. [`StaleFlows`] is a thread of
//! its own that reads the kernel's table, at most once for all changes that came meanwhile.
//!
//! What always holds:
//! - A flow to an endpoint that serves is never touched; so a restart resets nobody.
//! - Nothing is read while no UDP service changes, and a change that can make no flow stale, such as
//!   one more endpoint, counts as none.
//! - Flows to a node port are only those to the machine's own addresses: what a pod sends to the same
//!   port elsewhere is none of our business.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use telaio_model::{IpFamily, ObjectKey, Protocol, ServiceEndpoints};
use telaio_netlink::NetlinkError;
use telaio_netlink::addresses::own_addresses;
use telaio_netlink::conntrack::{Conntrack, Family, Flow, Selection, UDP};

use crate::companions::StaleFlowFigures;

mod frontends;
#[cfg(test)]
mod tests;

pub use frontends::{Frontends, UdpPort, Verdict};

/// How soon a pass that failed is tried again; doubles up to the longest.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_mins(1);

/// What a service has in UDP ports in these families; most have none.
pub fn udp_ports(entry: &ServiceEndpoints, families: &[IpFamily]) -> Vec<UdpPort> {
    if entry.service.ports.iter().all(|port| port.protocol != Protocol::Udp) {
        return Vec::new();
    }
    let plans = families.iter().copied().flat_map(|family| {
        crate::plan::plan(entry, family).into_iter().map(move |plan| (family, plan))
    });
    plans
        .filter(|(_, plan)| plan.name.protocol == Protocol::Udp)
        .map(|(family, plan)| UdpPort { family, frontends: plan.frontends, serving: plan.serving })
        .collect()
}

/// The thread that deletes stale flows; dropping it ends the thread.
#[derive(Debug)]
pub struct StaleFlows {
    families: Vec<IpFamily>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What services are now, of those that changed since the thread last looked. At most one entry
    /// per service.
    changed: BTreeMap<ObjectKey, Vec<UdpPort>>,
    /// Those that have UDP ports.
    known: BTreeSet<ObjectKey>,
    busy: bool,
    stopping: bool,
    figures: StaleFlowFigures,
}

impl StaleFlows {
    /// Starts the thread, in the network namespace of its caller, for flows of these families.
    pub fn start(families: &[IpFamily]) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("telaio-stale-flows".to_owned())
            .spawn(move || run(&for_thread))?;
        Ok(Self { families: families.to_vec(), shared, thread: Some(thread) })
    }

    /// Services are now these; `None` for one that is gone. Costs what changed; the rest happens on
    /// the thread.
    pub fn changed<'a>(
        &self,
        services: impl IntoIterator<Item = (&'a ObjectKey, Option<&'a ServiceEndpoints>)>,
    ) {
        let mut state = self.shared.state.lock();
        for (key, entry) in services {
            let ports = entry.map(|entry| udp_ports(entry, &self.families)).unwrap_or_default();
            let had_some = if ports.is_empty() {
                state.known.remove(key)
            } else {
                !state.known.insert(key.clone())
            };
            if had_some || !ports.is_empty() {
                state.changed.insert(key.clone(), ports);
            }
        }
        let is_work = !state.changed.is_empty();
        drop(state);
        if is_work {
            self.shared.wake.notify_one();
        }
    }

    /// The services that have UDP ports.
    pub fn services(&self) -> BTreeSet<ObjectKey> {
        self.shared.state.lock().known.clone()
    }

    /// Waits until all changes so far are dealt with. `false` if that took longer.
    pub fn wait_idle(&self, time_max: Duration) -> bool {
        let deadline = Instant::now() + time_max;
        let mut state = self.shared.state.lock();
        while state.busy || !state.changed.is_empty() {
            if self.shared.done.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    /// The figures at this moment.
    pub fn figures(&self) -> StaleFlowFigures {
        self.shared.state.lock().figures.clone()
    }
}

impl Drop for StaleFlows {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that deletes stale flows panicked");
        }
    }
}

fn run(shared: &Shared) {
    let mut frontends = Frontends::default();
    let mut retry: Option<Duration> = None;
    while let Some(changed) = next_changes(shared, retry) {
        for (key, ports) in changed {
            frontends.set(key, ports);
        }
        let started = Instant::now();
        let mut deleted = Deleted::new();
        let outcome = frontends.needs_pass().then(|| pass(&frontends, &mut deleted));
        let mut state = shared.state.lock();
        state.busy = false;
        for (family, count) in &deleted {
            *state.figures.deleted_total.entry(*family).or_default() += count;
        }
        match outcome {
            None => {}
            Some(Ok(())) => {
                frontends.passed();
                retry = None;
                state.figures.durations.observe(started.elapsed());
                tracing::debug!(?deleted, "stale UDP flows deleted");
            }
            Some(Err(error)) => {
                let delay = retry.map_or(RETRY_MIN, |delay| (delay * 2).min(RETRY_MAX));
                retry = Some(delay);
                state.busy = true;
                state.figures.failures_total += 1;
                tracing::warn!(
                    %error,
                    retry_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                    "cannot look for stale UDP flows; clients of services that changed may wait \
                     for an endpoint that is gone"
                );
            }
        }
        drop(state);
        shared.done.notify_all();
    }
}

/// Waits for changes, or for the time to try again; `None` when the thread has to end.
fn next_changes(
    shared: &Shared,
    retry: Option<Duration>,
) -> Option<BTreeMap<ObjectKey, Vec<UdpPort>>> {
    let due = retry.map(|delay| Instant::now() + delay);
    let mut state = shared.state.lock();
    loop {
        if state.stopping {
            return None;
        }
        if !state.changed.is_empty() {
            break;
        }
        match due {
            Some(due) if shared.wake.wait_until(&mut state, due).timed_out() => break,
            Some(_) => {}
            None => shared.wake.wait(&mut state),
        }
    }
    state.busy = true;
    Some(std::mem::take(&mut state.changed))
}

/// Flows that one pass deleted.
type Deleted = BTreeMap<IpFamily, u64>;

/// Reads the whole table of UDP flows once and deletes what is stale; counts it also if it fails later.
fn pass(frontends: &Frontends, deleted: &mut Deleted) -> Result<(), NetlinkError> {
    let own = own_addresses()?;
    let is_own = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
    let mut delete = Conntrack::open()?;
    for family in frontends.families() {
        let deleted = deleted.entry(family).or_default();
        let family = match family {
            IpFamily::V4 => Family::V4,
            IpFamily::V6 => Family::V6,
        };
        let selection = Selection { protocol: Some(UDP), ..Selection::family(family) };
        Conntrack::open()?.each(selection, |flow: &Flow| {
            if frontends.judge(flow, is_own) == Verdict::Stale {
                match delete.delete(flow) {
                    Ok(done) => *deleted += u64::from(done),
                    // One that cannot go now must not keep the others.
                    Err(error) => tracing::debug!(%error, ?flow, "a stale flow stays"),
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
