//! What changed: the last events, in a ring.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::agent::now_ms;
use crate::values::Key;
use crate::values::stream::{Event, EventPage, Programmed};

/// How many are kept.
pub const EVENTS_MAX: usize = 2000;
/// How many wait for the next tick; those beyond are only counted.
const FRESH_MAX: usize = 100;

/// An event that happens.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// When, if not now.
    pub at_ms: Option<i64>,
    /// The store's revision; 0 for none.
    pub revision: u64,
    /// `Service`, …
    pub kind: String,
    /// Which one.
    pub object: Key,
    /// `added`, …
    pub change: String,
    /// One line.
    pub summary: String,
    /// Whether it goes to the kernel.
    pub programs: bool,
}

#[derive(Debug, Default)]
struct Inner {
    events: VecDeque<Event>,
    next_id: u64,
    fresh: Vec<u64>,
    more: usize,
    programmed: Vec<Programmed>,
    revision: u64,
}

/// What happened since the last tick.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fresh {
    pub(crate) events: Vec<Event>,
    pub(crate) more: usize,
    pub(crate) programmed: Vec<Programmed>,
    pub(crate) revision: u64,
}

/// The events. Whoever sees something happen tells it.
#[derive(Debug, Default)]
pub struct EventLog {
    inner: Mutex<Inner>,
}

impl EventLog {
    /// Something happened; its number.
    pub fn push(&self, event: NewEvent) -> u64 {
        let mut inner = self.inner.lock();
        inner.next_id += 1;
        let id = inner.next_id;
        inner.revision = inner.revision.max(event.revision);
        if inner.events.len() >= EVENTS_MAX {
            inner.events.pop_front();
        }
        inner.events.push_back(Event {
            id,
            at_ms: event.at_ms.unwrap_or_else(now_ms),
            revision: event.revision,
            kind: event.kind,
            object: event.object,
            change: event.change,
            summary: event.summary,
            programmed_ms: None,
            programs: event.programs,
        });
        if inner.fresh.len() < FRESH_MAX {
            inner.fresh.push(id);
        } else {
            inner.more += 1;
        }
        id
    }

    /// These events have reached the kernel, each after so many milliseconds.
    pub fn programmed(&self, all: &[(u64, f64)]) {
        let mut inner = self.inner.lock();
        let Some(first) = inner.events.front().map(|event| event.id) else { return };
        for (id, programmed_ms) in all {
            let at = id.checked_sub(first).and_then(|at| usize::try_from(at).ok());
            if let Some(event) = at.and_then(|at| inner.events.get_mut(at)) {
                event.programmed_ms = Some(*programmed_ms);
                if inner.programmed.len() < FRESH_MAX {
                    inner.programmed.push(Programmed { id: *id, programmed_ms: *programmed_ms });
                }
            }
        }
    }

    /// The newest.
    pub(crate) fn newest_id(&self) -> Option<u64> {
        self.inner.lock().events.back().map(|event| event.id)
    }

    pub(crate) fn take_fresh(&self) -> Fresh {
        let mut inner = self.inner.lock();
        let ids = std::mem::take(&mut inner.fresh);
        let more = std::mem::take(&mut inner.more);
        let programmed = std::mem::take(&mut inner.programmed);
        let first = inner.events.front().map_or(0, |event| event.id);
        let of = |id: u64| {
            let at = usize::try_from(id.checked_sub(first)?).ok()?;
            inner.events.get(at).cloned()
        };
        let events: Vec<Event> = ids.into_iter().filter_map(of).collect();
        Fresh { events, more, programmed, revision: inner.revision }
    }

    /// Those before `before` that `wanted` wants, newest first.
    pub(crate) fn page(
        &self,
        before: Option<u64>,
        limit: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> EventPage {
        let inner = self.inner.lock();
        let mut found = inner
            .events
            .iter()
            .rev()
            .filter(|event| before.is_none_or(|before| event.id < before))
            .filter(|event| wanted(event));
        let items: Vec<Event> = found.by_ref().take(limit).cloned().collect();
        let next_before = found.next().and_then(|_| items.last().map(|event| event.id));
        EventPage {
            items,
            next_before,
            oldest_id: inner.events.front().map(|event| event.id),
            newest_id: inner.events.back().map(|event| event.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(i: usize) -> NewEvent {
        NewEvent {
            at_ms: Some(1),
            revision: i as u64,
            kind: "Service".into(),
            object: Key::new("a", format!("s{i}")),
            change: "changed".into(),
            summary: String::new(),
            programs: true,
        }
    }

    #[test]
    fn the_ring_keeps_the_last_and_pages_backwards() {
        let log = EventLog::default();
        let ids: Vec<u64> = (0..EVENTS_MAX + 10).map(|i| log.push(event(i))).collect();
        let page = log.page(None, 3, |_| true);
        assert_eq!(page.items.iter().map(|it| it.id).collect::<Vec<_>>(), [2010, 2009, 2008]);
        assert_eq!((page.next_before, page.oldest_id), (Some(2008), Some(11)));
        let rest = log.page(page.next_before, 1, |it| it.object.name == "s20");
        assert_eq!((rest.items.len(), rest.next_before), (1, None));
        log.programmed(&[(ids[0], 1.0), (2010, 2.5)]);
        assert_eq!(log.page(None, 1, |_| true).items[0].programmed_ms, Some(2.5));
        let fresh = log.take_fresh();
        // The first hundred were told of, and the ring has lost the first ten of them since.
        assert_eq!((fresh.events.len(), fresh.more), (90, EVENTS_MAX + 10 - 100));
        assert_eq!(fresh.programmed.len(), 1);
        assert_eq!(log.take_fresh().events.len(), 0);
    }
}
