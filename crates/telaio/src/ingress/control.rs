//! Questions to the worker and its answers, over the link.
//!
//! ```text
//!  IngressControl ─ Ask{id} ─► link ─► Desk ─► Inspector
//!        ▲                               │
//!        └──── Page{id} … Page{id, last} ┘
//! ```
//!
//! What always holds:
//! - Questions under way, their time, and the pages of an answer have bounds. Long answers come in
//!   pages, each far smaller than a frame may be, so nothing else on the link waits for long.
//! - A question whose worker ends gets an error at once; the next goes to the next worker.
//! - The worker makes answers beside its serving threads and reads only what they count anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telaio_http_proxy::watch::inspect::Inspector;
use telaio_http_proxy::watch::snapshot::{
    BackendFigures, CertificateInfo, PurgeWhat, RouteFigures, RouteInfo, RouteTable, Stats, Totals,
    WarningInfo,
};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::link::{Frame, Kind};

/// How many questions may be under way.
const ASKS_MAX: usize = 8;
/// How long an answer may take, all of it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// How many items go on one page: some hundred bytes each.
const PAGE_ITEMS: usize = 500;
/// How many pages an answer may have.
const PAGES_MAX: usize = 4096;

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    /// Figures of the whole.
    Totals,
    /// All figures.
    Stats,
    /// The table in force.
    Routes,
    /// The certificates that are served.
    Certificates,
    /// Take things out of the cache.
    Purge(PurgeWhat),
    /// How much that would take.
    Count(PurgeWhat),
}

/// A question with its number.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) id: u64,
    pub(crate) what: What,
}

/// A part of an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    Totals(Box<Totals>),
    RouteFigures(Vec<RouteFigures>),
    Backends(Vec<BackendFigures>),
    Routes(Vec<RouteInfo>),
    Warnings(Vec<WarningInfo>),
    Certificates(Vec<CertificateInfo>),
    Purged(u64),
    /// It cannot be answered, and why.
    Refused(String),
    /// There is no more.
    End,
}

/// A part with the number of its question.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Page {
    pub(crate) id: u64,
    pub(crate) part: Part,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ControlError {
    /// Nobody serves.
    #[error("the ingress worker does not run; it is started again by itself, so ask again soon")]
    NoWorker,
    /// Nobody answered.
    #[error("the ingress worker did not answer within {0:?}; it may be overloaded, so ask again")]
    TimedOut(Duration),
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// Asks whoever is the worker now. Clones ask the same.
#[derive(Debug, Clone)]
pub(crate) struct IngressControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// How long an answer may take.
    time_max: Duration,
    places: Semaphore,
    next_id: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// To the worker that runs.
    worker: Option<mpsc::Sender<Ask>>,
    waiting: HashMap<u64, Waiting>,
}

/// Somebody who waits for an answer, and what is there of it.
#[derive(Debug)]
struct Waiting {
    parts: Vec<Part>,
    done: oneshot::Sender<Result<Vec<Part>, ControlError>>,
}

impl Default for IngressControl {
    fn default() -> Self {
        Self::with_time(ANSWER_TIME_MAX)
    }
}

impl IngressControl {
    /// One that waits for so long at most.
    fn with_time(time_max: Duration) -> Self {
        let shared = Shared {
            time_max,
            places: Semaphore::new(ASKS_MAX),
            next_id: AtomicU64::new(1),
            state: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Figures of the whole: small, and cheap to ask for.
    pub(crate) async fn totals(&self) -> Result<Totals, ControlError> {
        Ok(self.stats_of(What::Totals).await?.totals)
    }

    /// All figures: of the whole, of each route that was asked for at least once, of each backend.
    pub(crate) async fn stats(&self) -> Result<Stats, ControlError> {
        self.stats_of(What::Stats).await
    }

    async fn stats_of(&self, what: What) -> Result<Stats, ControlError> {
        let mut stats = Stats::default();
        for part in self.ask(what).await? {
            match part {
                Part::Totals(totals) => stats.totals = *totals,
                Part::RouteFigures(mut page) => stats.routes.append(&mut page),
                Part::Backends(mut page) => stats.backends.append(&mut page),
                _ => {}
            }
        }
        stats.routes.sort_by(|one, other| one.route.cmp(&other.route));
        stats.backends.sort_by(|one, other| one.backend.cmp(&other.backend));
        Ok(stats)
    }

    /// The table in force.
    pub(crate) async fn routes(&self) -> Result<RouteTable, ControlError> {
        let mut table = RouteTable::default();
        for part in self.ask(What::Routes).await? {
            match part {
                Part::Routes(mut page) => table.routes.append(&mut page),
                Part::Warnings(mut page) => table.warnings.append(&mut page),
                _ => {}
            }
        }
        Ok(table)
    }

    /// The certificates that are served.
    pub(crate) async fn certificates(&self) -> Result<Vec<CertificateInfo>, ControlError> {
        let mut all = Vec::new();
        for part in self.ask(What::Certificates).await? {
            if let Part::Certificates(mut page) = part {
                all.append(&mut page);
            }
        }
        Ok(all)
    }

    /// Takes things out of the cache; how many URLs.
    pub(crate) async fn purge(&self, what: PurgeWhat) -> Result<u64, ControlError> {
        self.purged(What::Purge(what)).await
    }

    /// How many URLs a purge would take out of the cache now.
    pub(crate) async fn count(&self, what: PurgeWhat) -> Result<u64, ControlError> {
        self.purged(What::Count(what)).await
    }

    async fn purged(&self, what: What) -> Result<u64, ControlError> {
        let parts = self.ask(what).await?;
        let purged = parts.iter().find_map(|part| match part {
            Part::Purged(count) => Some(*count),
            _ => None,
        });
        purged.ok_or(ControlError::NoWorker)
    }

    /// Asks, and gives all parts of the answer.
    async fn ask(&self, what: What) -> Result<Vec<Part>, ControlError> {
        let time_max = self.shared.time_max;
        let late = |_| ControlError::TimedOut(time_max);
        let asking = async {
            // Never closed.
            let _place = self.shared.places.acquire().await.map_err(|_| ControlError::NoWorker)?;
            let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
            let (done, answer) = oneshot::channel();
            let worker = {
                let mut state = self.shared.state.lock();
                let worker = state.worker.clone().ok_or(ControlError::NoWorker)?;
                state.waiting.insert(id, Waiting { parts: Vec::new(), done });
                worker
            };
            let _forget = Forget { shared: &self.shared, id };
            worker.send(Ask { id, what }).await.map_err(|_| ControlError::NoWorker)?;
            answer.await.unwrap_or(Err(ControlError::NoWorker))
        };
        tokio::time::timeout(time_max, asking).await.map_err(late)?
    }

    /// A worker runs; what it is asked comes by this.
    pub(super) fn attach(&self) -> mpsc::Receiver<Ask> {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let mut state = self.shared.state.lock();
        state.waiting.clear();
        state.worker = Some(asks);
        asked
    }

    /// The worker is gone: who waits is told.
    pub(super) fn detach(&self) {
        let mut state = self.shared.state.lock();
        state.worker = None;
        state.waiting.clear();
    }

    /// A part of an answer is here. Parts that nobody waits for any more are dropped.
    pub(super) fn take(&self, page: Page) {
        let mut state = self.shared.state.lock();
        let Some(waiting) = state.waiting.get_mut(&page.id) else { return };
        let outcome = match page.part {
            Part::End => Ok(std::mem::take(&mut waiting.parts)),
            Part::Refused(why) => Err(ControlError::Refused(why)),
            _ if waiting.parts.len() >= PAGES_MAX => {
                Err(ControlError::Refused("the answer is too long".to_owned()))
            }
            part => return waiting.parts.push(part),
        };
        if let Some(waiting) = state.waiting.remove(&page.id) {
            // They may have given up just now.
            let _ = waiting.done.send(outcome);
        }
    }
}

/// Nobody waits any more.
struct Forget<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().waiting.remove(&self.id);
    }
}

/// The worker's side: takes questions and answers one after the other.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    asks: mpsc::Sender<Ask>,
}

impl Desk {
    /// A desk whose answers go out as frames. Must be called within the runtime.
    pub(super) fn open(inspector: Arc<Inspector>, out: mpsc::Sender<Frame>) -> Self {
        let (asks, mut asked) = mpsc::channel::<Ask>(ASKS_MAX);
        tokio::spawn(async move {
            while let Some(ask) = asked.recv().await {
                let (inspector, out) = (Arc::clone(&inspector), out.clone());
                // Ten thousand routes take a while to write down: not where the link is read.
                let answering =
                    tokio::task::spawn_blocking(move || answer(&inspector, ask, &out)).await;
                match answering {
                    Ok(Some(())) => {}
                    // Nobody reads any more.
                    Ok(None) => return,
                    Err(error) => tracing::error!(%error, "a question could not be answered"),
                }
            }
        });
        Self { asks }
    }

    /// Takes a question. One too many is left: whoever asked waits for a time only.
    pub(super) fn ask(&self, ask: Ask) {
        if self.asks.try_send(ask).is_err() {
            tracing::debug!("a question was left out");
        }
    }
}

/// Writes an answer down, page by page; `None` when nobody reads any more.
fn answer(inspector: &Inspector, ask: Ask, out: &mpsc::Sender<Frame>) -> Option<()> {
    let id = ask.id;
    let send = |part: Part| {
        let frame = Frame::json(Kind::Answer, &Page { id, part }).ok()?;
        out.blocking_send(frame).ok()
    };
    match ask.what {
        What::Totals => send(Part::Totals(Box::new(inspector.totals())))?,
        What::Stats => {
            send(Part::Totals(Box::new(inspector.totals())))?;
            pages(inspector.routes_figures(), |page| send(Part::RouteFigures(page)))?;
            pages(inspector.backends(), |page| send(Part::Backends(page)))?;
        }
        What::Routes => {
            pages(inspector.routes(), |page| send(Part::Routes(page)))?;
            pages(inspector.warnings().into_iter(), |page| send(Part::Warnings(page)))?;
        }
        What::Certificates => {
            pages(inspector.certificates().into_iter(), |page| send(Part::Certificates(page)))?;
        }
        What::Purge(what) => match inspector.purge(&what) {
            Ok(count) => send(Part::Purged(count))?,
            Err(error) => return send(Part::Refused(error.to_string())),
        },
        What::Count(what) => match inspector.count(&what) {
            Ok(count) => send(Part::Purged(count))?,
            Err(error) => return send(Part::Refused(error.to_string())),
        },
    }
    send(Part::End)
}

/// Hands items over page by page.
fn pages<T>(
    mut items: impl Iterator<Item = T>,
    mut send: impl FnMut(Vec<T>) -> Option<()>,
) -> Option<()> {
    loop {
        let page: Vec<T> = items.by_ref().take(PAGE_ITEMS).collect();
        if page.is_empty() {
            return Some(());
        }
        send(page)?;
    }
}

#[cfg(test)]
mod tests;
