//! A watch: the initial state if it was asked for, then every change, as lines of JSON.
//!
//! A watch keeps no queue. It holds the version that it has reached and reads on from the store's
//! log, so a slow client costs nothing but the risk of finding its version gone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream};
use hyper::body::{Bytes, Frame};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Inner;
use super::refusal::Refusal;
use super::resource::Resource;
use super::store::{Event, Query, Stored};

/// Lines are gathered into pieces of about this size.
const FRAME_BYTES: usize = 256 * 1024;
const EVENTS_PER_READ: usize = 1_024;
/// A watch that names no time-out still ends some day.
const FOREVER: Duration = Duration::from_hours(24);

/// What a watch request asked for.
#[derive(Debug)]
pub(super) struct WatchOptions {
    pub(super) index: usize,
    pub(super) query: Query,
    pub(super) from: WatchStart,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<Duration>,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchStart {
    /// With the changes after a version.
    After(u64),
    /// With the state as it is, and then the changes.
    State {
        /// Whether a bookmark says that the state is complete.
        end_marked: bool,
    },
}

/// Counts a watch as open while it lives.
struct OpenWatch(Arc<Inner>);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.watches.send_modify(|count| *count -= 1);
    }
}

struct Watch {
    inner: Arc<Inner>,
    resource: Arc<Resource>,
    options: WatchOptions,
    version: u64,
    state: std::vec::IntoIter<Arc<Stored>>,
    end_mark_due: bool,
    bookmark_due: bool,
    next_bookmark: Instant,
    deadline: Instant,
    changed: watch::Receiver<u64>,
    bookmark_asked: watch::Receiver<u64>,
    end_asked: watch::Receiver<u64>,
    ended: bool,
    _open: OpenWatch,
}

/// Starts a watch. A version that is gone is refused here only if the server is set to do so.
pub(super) fn open(
    inner: &Arc<Inner>,
    options: WatchOptions,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + use<> {
    let (version, state) = {
        let store = inner.store.lock();
        match options.from {
            WatchStart::After(version) => (version, Vec::new()),
            WatchStart::State { .. } => {
                (store.version(), store.select(options.index, &options.query))
            }
        }
    };
    let now = Instant::now();
    inner.watches.send_modify(|count| *count += 1);
    let watch = Watch {
        resource: inner.store.lock().resource(options.index),
        version,
        state: state.into_iter(),
        end_mark_due: options.from == WatchStart::State { end_marked: true },
        bookmark_due: false,
        next_bookmark: now + inner.bookmark_period,
        deadline: now + options.timeout.unwrap_or(FOREVER),
        changed: inner.changed.subscribe(),
        bookmark_asked: inner.bookmark_asked.subscribe(),
        end_asked: inner.end_asked.subscribe(),
        ended: false,
        options,
        _open: OpenWatch(inner.clone()),
        inner: inner.clone(),
    };
    stream::unfold(watch, |mut watch| async move {
        let lines = watch.next_lines().await?;
        Some((Ok(Frame::data(Bytes::from(lines))), watch))
    })
}

impl Watch {
    /// The next lines to send; `None` at the end of the watch.
    async fn next_lines(&mut self) -> Option<Vec<u8>> {
        while !self.ended {
            self.inner.faults.pass().await;
            self.changed.borrow_and_update();
            let lines = self.ready_lines();
            if !lines.is_empty() {
                return Some(lines);
            }
            tokio::select! {
                // In this order, so that what was asked for before the end comes before it.
                biased;
                changed = self.changed.changed() => changed.ok()?,
                asked = self.bookmark_asked.changed() => {
                    asked.ok()?;
                    self.bookmark_due = self.options.bookmarks;
                }
                () = sleep_until(self.next_bookmark) => {
                    self.next_bookmark = Instant::now() + self.inner.bookmark_period;
                    self.bookmark_due = self.options.bookmarks;
                }
                _ = self.end_asked.changed() => return None,
                () = sleep_until(self.deadline) => return None,
            }
        }
        None
    }

    fn ready_lines(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        while lines.len() < FRAME_BYTES
            && let Some(object) = self.state.next()
        {
            write_line(&mut lines, "ADDED", &self.resource, &object);
        }
        if self.state.len() > 0 {
            return lines;
        }
        if std::mem::take(&mut self.end_mark_due) {
            self.write_bookmark(
                &mut lines,
                r#","annotations":{"k8s.io/initial-events-end":"true"}"#,
            );
        }
        if let Err(refusal) = self.read_log(&mut lines) {
            self.ended = true;
            lines.extend_from_slice(br#"{"type":"ERROR","object":"#);
            lines.extend_from_slice(refusal.to_status().to_string().as_bytes());
            lines.extend_from_slice(b"}\n");
        } else if std::mem::take(&mut self.bookmark_due) {
            self.write_bookmark(&mut lines, "");
        }
        lines
    }

    /// Reads on in the log until it ends or enough is gathered.
    fn read_log(&mut self, lines: &mut Vec<u8>) -> Result<(), Refusal> {
        loop {
            let (events, version) = {
                let store = self.inner.store.lock();
                let index = self.options.index;
                (store.events_after(index, self.version, EVENTS_PER_READ)?, store.version())
            };
            let more = events.len() == EVENTS_PER_READ;
            for event in &events {
                self.write_event(lines, event);
            }
            // At the log's end the watch has also seen every change to other resources: none of
            // those concerns it, and its version must not age with them.
            self.version = match events.last() {
                Some(last) if more => last.version,
                _ => version,
            };
            if !more || lines.len() >= FRAME_BYTES {
                return Ok(());
            }
        }
    }

    /// An object that begins to match the selectors is added, one that no longer does is deleted.
    fn write_event(&self, lines: &mut Vec<u8>, event: &Event) {
        let matched = event.before.as_ref().is_some_and(|o| self.options.query.matches(o));
        let matches = !event.deleted && self.options.query.matches(&event.object);
        let event_type = match (matched, matches) {
            (false, false) => return,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        write_line(lines, event_type, &self.resource, &event.object);
    }

    fn write_bookmark(&self, lines: &mut Vec<u8>, more_metadata: &str) {
        let line = format!(
            "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\
             \"metadata\":{{\"resourceVersion\":\"{}\"{more_metadata}}}}}}}\n",
            self.resource.kind,
            self.resource.api_version(),
            self.version,
        );
        lines.extend_from_slice(line.as_bytes());
    }
}

fn write_line(lines: &mut Vec<u8>, event_type: &str, resource: &Resource, object: &Stored) {
    lines.extend_from_slice(b"{\"type\":\"");
    lines.extend_from_slice(event_type.as_bytes());
    lines.extend_from_slice(b"\",\"object\":");
    object.write_typed(resource, lines);
    lines.extend_from_slice(b"}\n");
}
