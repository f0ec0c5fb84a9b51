//! What the worker has to tell of changes, until the plane takes it.
//!
//! A change only says how an Ingress is now, so a plane that is slow loses nothing: what is told of one
//! Ingress takes the place of what was told before. There is never more here than there are Ingresses.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::worker::Report;

/// Of how many Ingresses one report tells, which bounds its length.
const INGRESSES_MAX: usize = 512;

/// Warnings as reason and text.
type Warnings = Vec<(String, String)>;

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Changes {
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    any: bool,
    routes: usize,
    warnings: BTreeMap<String, Warnings>,
    ours: BTreeMap<String, bool>,
    /// The first change was there: after it everything that holds was told.
    begun: bool,
    loaded: bool,
}

impl Changes {
    /// Adds what changed. Never waits.
    pub(super) fn add(
        &self,
        routes: usize,
        warnings: BTreeMap<String, Warnings>,
        ours: impl IntoIterator<Item = (String, bool)>,
    ) {
        let mut waiting = self.waiting.lock();
        waiting.any = true;
        waiting.begun = true;
        waiting.routes = routes;
        waiting.warnings.extend(warnings);
        waiting.ours.extend(ours);
        drop(waiting);
        self.news.notify_one();
    }

    /// The next report, as soon as there is one. Nothing is lost if this is not waited for to its end.
    pub(super) async fn next(&self) -> Report {
        loop {
            if let Some(report) = self.waiting.lock().take() {
                return report;
            }
            self.news.notified().await;
        }
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Report> {
        if !self.any {
            let loaded = self.begun && !std::mem::replace(&mut self.loaded, self.begun);
            return loaded.then_some(Report::Loaded);
        }
        // An Ingress's warnings go with the word that it is ours: without them it has none.
        let keys: BTreeSet<&String> = self.ours.keys().chain(self.warnings.keys()).collect();
        let end = keys.into_iter().nth(INGRESSES_MAX).cloned();
        let Some(end) = end else {
            self.any = false;
            return Some(Report::Changed {
                routes: self.routes,
                warnings: std::mem::take(&mut self.warnings),
                ours: std::mem::take(&mut self.ours),
            });
        };
        let (warnings, ours) = (self.warnings.split_off(&end), self.ours.split_off(&end));
        Some(Report::Changed {
            routes: self.routes,
            warnings: std::mem::replace(&mut self.warnings, warnings),
            ours: std::mem::replace(&mut self.ours, ours),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "what fails here fails the test")]

    use super::*;

    #[tokio::test]
    async fn a_plane_that_is_slow_hears_how_everything_is_in_the_end() {
        let changes = Changes::default();
        let name = |number: usize| format!("shop/web-{number:04}");
        let warning = |text: &str| vec![("Conflict".to_owned(), text.to_owned())];
        for number in 0..1_500 {
            let warnings = BTreeMap::from([(name(number), warning("before"))]);
            changes.add(number, warnings, [(name(number), true)]);
        }
        let after = BTreeMap::from([(name(700), warning("after")), (name(701), Vec::new())]);
        changes.add(7, after, [(name(3), false)]);
        let (mut all_ours, mut all_warnings) = (BTreeMap::new(), BTreeMap::new());
        let mut reports = 0;
        loop {
            match changes.next().await {
                Report::Changed { routes, warnings, ours } => {
                    assert!(ours.len() <= INGRESSES_MAX && ours.len() >= warnings.len());
                    assert_eq!(routes, 7);
                    all_ours.extend(ours);
                    all_warnings.extend(warnings);
                    reports += 1;
                }
                Report::Loaded => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((reports, all_ours.len(), all_warnings.len()), (3, 1_500, 1_500));
        assert!(!all_ours[&name(3)] && all_ours[&name(4)]);
        assert_eq!(all_warnings[&name(700)], warning("after"));
        assert_eq!(all_warnings[&name(701)], Vec::new());
        // Later changes are told, and no second time that everything was.
        changes.add(8, BTreeMap::new(), []);
        assert!(matches!(changes.next().await, Report::Changed { routes: 8, .. }));
        let more = tokio::time::timeout(std::time::Duration::from_millis(50), changes.next()).await;
        assert!(more.is_err());
    }
}
