//! What the ingress worker is asked for, by whoever looks.
//!
//! A worker that hangs must not hang those who look at services, drain or trace: every question is
//! asked beside them, by at most one task at a time, and who asks waits for a moment only. Then they get
//! what the worker said last, for as long as that is fresh enough to be of use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use telaio_gui::HttpFigures;

use super::routes::{Known, StatsKept, http_figures};
use crate::ingress::IngressState;
use crate::monitor::Monitor;

/// How long those who ask wait.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// And where nothing was ever said: nothing at all would be shown.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long the last lists are shown when there are no newer ones, and how long figures: old ones would
/// pass for a standstill.
const LISTS_AGE_MAX: Duration = Duration::from_mins(1);
const FIGURES_AGE_MAX: Duration = Duration::from_secs(3);
/// A worker that owes an answer for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// What was asked for.
#[derive(Default)]
pub(super) struct Asked {
    all: Question<Arc<Known>>,
    figures: Question<HttpFigures>,
}

impl Asked {
    /// All that lists show; none where there is no worker, or it has not answered for long.
    pub(super) async fn all(
        &self,
        monitor: &Monitor,
        stats: &Arc<StatsKept>,
    ) -> Option<Arc<Known>> {
        let state = Arc::clone(monitor.ingress()?);
        let stats = Arc::clone(stats);
        let asking = async move { Known::ask(state.control(), &stats).await.map(Arc::new) };
        self.all.ask(asking, LISTS_AGE_MAX).await
    }

    /// The figures of now.
    pub(super) async fn figures(&self, monitor: &Monitor) -> Option<HttpFigures> {
        let state: Arc<IngressState> = Arc::clone(monitor.ingress()?);
        self.figures.ask(async move { http_figures(&state).await }, FIGURES_AGE_MAX).await
    }

    /// Whether the worker owes an answer for long.
    pub(super) fn hangs(&self) -> bool {
        self.all.is_owed() || self.figures.is_owed()
    }
}

/// One question, and what came of it last.
struct Question<T> {
    said: Arc<Mutex<Option<(Instant, T)>>>,
    /// Held by who asks.
    asking: Arc<tokio::sync::Mutex<()>>,
    /// Since when there has been no answer to what was asked.
    silent: Arc<Mutex<Option<Instant>>>,
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Self { said: Arc::default(), asking: Arc::default(), silent: Arc::default() }
    }
}

impl<T: Clone + Send + 'static> Question<T> {
    /// The answer to `asking` if it comes soon, else the one before if it is not older than this.
    async fn ask(
        &self,
        asking: impl Future<Output = Option<T>> + Send + 'static,
        age_max: Duration,
    ) -> Option<T> {
        let begun = Instant::now();
        if let Ok(turn) = Arc::clone(&self.asking).try_lock_owned() {
            let (said, silent) = (Arc::clone(&self.said), Arc::clone(&self.silent));
            silent.lock().get_or_insert(begun);
            let work = tokio::spawn(async move {
                let answer = asking.await;
                // Who says at once that there is nobody does not hang.
                if answer.is_some() || begun.elapsed() < SILENCE_MAX {
                    *silent.lock() = None;
                }
                if let Some(answer) = answer {
                    *said.lock() = Some((Instant::now(), answer));
                }
                drop(turn);
            });
            // Whoever waits too long goes without; the question stands.
            let is_first = self.said.lock().is_none();
            let wait_max = if is_first { FIRST_WAIT_MAX } else { WAIT_MAX };
            let _ = tokio::time::timeout(wait_max, work).await;
        }
        let said = self.said.lock();
        let (at, answer) = said.as_ref()?;
        (*at >= begun || at.elapsed() <= age_max).then(|| answer.clone())
    }

    fn is_owed(&self) -> bool {
        self.silent.lock().is_some_and(|since| since.elapsed() > SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn who_asks_somebody_that_hangs_gets_the_last_answer_and_does_not_wait_for_long() {
        let question = Question::<u32>::default();
        assert_eq!(question.ask(async { Some(1) }, LONG).await, Some(1));
        assert_eq!(question.ask(std::future::pending(), LONG).await, Some(1));
        // It hangs still: nothing more is asked.
        assert_eq!(question.ask(async { Some(3) }, LONG).await, Some(1));
        assert_eq!(question.ask(async { Some(2) }, Duration::ZERO).await, None, "too old");
    }

    #[tokio::test]
    async fn an_answer_that_came_late_is_the_next_ones() {
        let question = Question::<u32>::default();
        let (tell, told) = tokio::sync::oneshot::channel();
        assert_eq!(question.ask(async { told.await.ok() }, LONG).await, None);
        tell.send(7).unwrap();
        while question.said.lock().is_none() || question.asking.try_lock().is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(question.ask(async { None }, LONG).await, Some(7), "and stays for a while");
    }
}
