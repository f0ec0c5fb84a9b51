//! One kind's list and watch, for as long as the source lives.
//!
//! The watcher holds a version: without one it lists, with one it watches on from there. Every
//! event and bookmark moves the version on, so a connection that is cut costs nothing but the time
//! to open another. Only when the server has forgotten the version is there a new list, and of that
//! only the differences are sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::io::AsyncBufRead;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use telaio_model::{Kind, ObjectChange, ObjectKey};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::debug;

use super::health::{self, Health};
use super::kinds::{DecodedValue, Named, WatchedKind};
use super::known::{Known, Vanished};
use super::lines::Lines;
use super::options::KubeOptions;
use super::trouble::{Trouble, with_causes};
use crate::Problem;
use crate::backoff::{Backoff, shortened};
use crate::manifest::Context;

/// Changes are sent on in pieces of at most this many.
const CHANGES_MAX: usize = 512;
/// No list has more pages; a server that sends more goes round in circles.
const PAGES_MAX: usize = 100_000;
/// A server that ends watches faster than this is not well.
const WATCH_LASTS_MIN: Duration = Duration::from_secs(1);
/// So many bad answers in a row, and the version is suspected.
const BAD_ANSWERS_MAX: u32 = 3;
/// The longest watch that is asked for. It must stay below what `kube` allows, 295 s.
const WATCH_TIMEOUT_MAX: Duration = Duration::from_secs(290);

/// What a watcher tells the source.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) kind: Kind,
    pub(super) changes: Vec<ObjectChange>,
    /// The first list is complete with these changes, or is not to be waited for.
    pub(super) settled: bool,
}

/// The source is no more, and so is the watcher.
struct Closed;

/// Why a list or watch stopped.
enum Stop {
    Trouble(Trouble),
    Closed,
}

/// What comes after a list or watch that ended well.
#[derive(PartialEq, Eq)]
enum Next {
    AtOnce,
    /// It ended well, but strangely soon.
    Suspect,
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<Closed> for Stop {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

/// The watcher of one kind.
pub(super) struct Watcher {
    client: kube::Client,
    watched: WatchedKind,
    ctx: Context,
    options: KubeOptions,
    health: Arc<Health>,
    out: mpsc::Sender<Update>,
    known: Known,
    /// Where to watch on from; `None` when a list is due.
    version: Option<String>,
    changes: Vec<ObjectChange>,
    settled: bool,
    backoff: Backoff,
    bad_answers: u32,
}

impl Watcher {
    pub(super) fn new(
        client: kube::Client,
        watched: WatchedKind,
        ctx: Context,
        options: KubeOptions,
        health: Arc<Health>,
        out: mpsc::Sender<Update>,
    ) -> Self {
        Self {
            known: Known::new(watched.kind),
            backoff: Backoff::new(options.backoff_min, options.backoff_max),
            client,
            watched,
            ctx,
            options,
            health,
            out,
            version: None,
            changes: Vec::new(),
            settled: false,
            bad_answers: 0,
        }
    }

    /// Lists and watches until nobody listens any more.
    pub(super) async fn run(mut self) {
        loop {
            let result = match self.version.clone() {
                None if self.health.streams_lists() => self.watch(None).await,
                None => self.list().await,
                Some(version) => self.watch(Some(version)).await,
            };
            let wait = match result {
                Ok(Next::AtOnce) => None,
                Ok(Next::Suspect) => Some(self.suspect_version()),
                Err(Stop::Closed) => return,
                Err(Stop::Trouble(trouble)) => match self.after(trouble).await {
                    Ok(wait) => wait,
                    Err(Closed) => return,
                },
            };
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
            }
        }
    }

    /// What to do about a trouble, and how long to wait before the next try.
    async fn after(&mut self, trouble: Trouble) -> Result<Option<Duration>, Closed> {
        let kind = self.watched.kind;
        debug!(%kind, "{trouble}");
        // What was read before the trouble counts.
        self.flush().await?;
        match &trouble {
            Trouble::Gone => {
                self.version = None;
                // Once is normal; a server that forgets every version is given time.
                let again = self.backoff.failures() > 0;
                let wait = self.backoff.next_wait();
                return Ok(again.then_some(wait));
            }
            Trouble::NoStreamingLists => {
                self.health.cannot_stream_lists();
                return Ok(None);
            }
            Trouble::Refused { .. } => {
                self.health.refused(&self.watched, &trouble);
                if !self.watched.essential {
                    self.settle().await?;
                }
            }
            Trouble::BadAnswer { .. } => {
                self.health.lost(kind, &trouble);
                return Ok(Some(self.suspect_version()));
            }
            Trouble::Unavailable(_) => self.health.lost(kind, &trouble),
        }
        Ok(Some(self.backoff.next_wait()))
    }

    /// After some bad answers in a row another way is tried: a new list mends whatever is wrong with
    /// the version, and pages whatever is wrong with streaming.
    fn suspect_version(&mut self) -> Duration {
        self.bad_answers += 1;
        if self.bad_answers >= BAD_ANSWERS_MAX {
            self.bad_answers = 0;
            if self.version.take().is_none() {
                self.health.cannot_stream_lists();
            }
        }
        self.backoff.next_wait()
    }

    /// Something good came.
    fn progress(&mut self) {
        self.backoff.reset();
        self.bad_answers = 0;
    }

    /// Lists by pages.
    async fn list(&mut self) -> Result<Next, Stop> {
        self.known.begin_list();
        let mut params = ListParams {
            label_selector: self.watched.labels.clone(),
            field_selector: self.watched.fields.map(str::to_owned),
            limit: Some(self.options.page_size),
            ..ListParams::default()
        };
        for _ in 0..PAGES_MAX {
            let request = Request::new(self.watched.path.as_str())
                .list(&params)
                .map_err(|error| Trouble::nonsense(error.to_string()))?;
            let text = timeout(self.options.request_timeout, self.client.request_text(request))
                .await
                .map_err(|_| Trouble::timeout("list"))?
                .map_err(|error| Trouble::of_request("list", error))?;
            let page: Page<'_> = serde_json::from_str(&text)
                .map_err(|error| Trouble::nonsense(format!("a list that is none: {error}")))?;
            self.health.in_touch(self.watched.kind);
            for item in page.items.unwrap_or_default() {
                self.take_object(item.get());
                if self.changes.len() >= CHANGES_MAX {
                    self.flush().await?;
                }
            }
            self.flush().await?;
            params.continue_token = page.metadata.continue_token.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                self.listed(page.metadata.resource_version).await?;
                return Ok(Next::AtOnce);
            }
        }
        Err(Trouble::nonsense("a list without end").into())
    }

    /// The list is complete: what it did not have is gone.
    async fn listed(&mut self, version: Option<String>) -> Result<(), Stop> {
        let Some(version) = version.filter(|version| !version.is_empty()) else {
            return Err(Trouble::nonsense("a list without a version").into());
        };
        self.version = Some(version);
        let Vanished { changes, bad } = self.known.end_list();
        for key in &bad {
            self.set_problems(key, Vec::new());
        }
        for change in changes {
            self.changes.push(change);
            if self.changes.len() >= CHANGES_MAX {
                self.flush().await?;
            }
        }
        self.progress();
        Ok(self.settle().await?)
    }

    /// Watches on from a version, or streams the list first if there is none.
    async fn watch(&mut self, from: Option<String>) -> Result<Next, Stop> {
        let started = Instant::now();
        let mut listing = from.is_none();
        let lines = self.open_watch(from.as_deref()).await?;
        let mut lines = Lines::new(Box::pin(lines));
        loop {
            match timeout(self.options.silence_max, lines.fill()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) if listing => {
                    return Err(Trouble::nonsense("a list that breaks off").into());
                }
                Ok(Ok(false)) => {
                    let soon = started.elapsed() < WATCH_LASTS_MIN && self.version == from;
                    return Ok(if soon { Next::Suspect } else { Next::AtOnce });
                }
                Ok(Err(error)) => return Err(Trouble::Unavailable(with_causes(&error)).into()),
                // A server that does not know streamed lists never completes one.
                Err(_) if listing => return Err(Trouble::NoStreamingLists.into()),
                // The connection is dead, or the server sends no bookmarks. Another one tells.
                Err(_) => return Ok(Next::AtOnce),
            }
            self.health.in_touch(self.watched.kind);
            while let Some(line) = lines.next() {
                listing = self.take_event(line, listing).await?;
                if self.changes.len() >= CHANGES_MAX {
                    self.flush().await?;
                }
            }
            self.flush().await?;
        }
    }

    /// Sends the request of a watch. Without a version it asks for the list too.
    async fn open_watch(
        &mut self,
        from: Option<&str>,
    ) -> Result<impl AsyncBufRead + use<>, Trouble> {
        let listing = from.is_none();
        let params = WatchParams {
            label_selector: self.watched.labels.clone(),
            field_selector: self.watched.fields.map(str::to_owned),
            timeout: Some(shortened(WATCH_TIMEOUT_MAX).as_secs() as u32),
            bookmarks: true,
            send_initial_events: listing,
        };
        let request = Request::new(self.watched.path.as_str())
            .watch(&params, from.unwrap_or_default())
            .map_err(|error| Trouble::nonsense(error.to_string()))?;
        if listing {
            self.known.begin_list();
        }
        let stream = timeout(self.options.request_timeout, self.client.request_stream(request))
            .await
            .map_err(|_| Trouble::timeout("watch"))?
            .map_err(|error| match Trouble::of_request("watch", error) {
                // 422 by servers without the feature; some say 400.
                Trouble::BadAnswer { code: Some(400 | 422), .. } if listing => {
                    Trouble::NoStreamingLists
                }
                other => other,
            })?;
        self.health.in_touch(self.watched.kind);
        Ok(stream)
    }

    /// Takes one line of a watch. Gives back whether the list is still incomplete.
    async fn take_event(&mut self, line: &[u8], listing: bool) -> Result<bool, Stop> {
        let event: Event<'_> = serde_json::from_slice(line)
            .map_err(|error| Trouble::nonsense(format!("a watch event that is none: {error}")))?;
        let json = event.object.get();
        let version = match event.event_type {
            "ADDED" | "MODIFIED" => self.take_object(json),
            "DELETED" => self.take_deletion(json),
            "BOOKMARK" => {
                let Bookmark { metadata } = serde_json::from_str(json)
                    .map_err(|error| Trouble::nonsense(format!("a bad bookmark: {error}")))?;
                let complete =
                    metadata.annotations.unwrap_or_default().initial_events_end.is_some();
                if listing && !complete {
                    return Err(Trouble::NoStreamingLists.into());
                }
                if listing {
                    self.listed(metadata.resource_version).await?;
                    return Ok(false);
                }
                metadata.resource_version
            }
            "ERROR" => return Err(read_error(json).into()),
            _ => None,
        };
        if !listing && version.is_some() {
            self.version = version;
            self.progress();
        }
        Ok(listing)
    }

    /// Takes an object that is there; gives its version.
    fn take_object(&mut self, json: &str) -> Option<String> {
        let Some(decoded) = (self.watched.decode)(json, &self.ctx) else {
            debug!(kind = %self.watched.kind, "an object without a name was skipped");
            return None;
        };
        let key = &decoded.key;
        match decoded.value {
            DecodedValue::Object(object) => {
                self.changes.extend(self.known.set(object));
                self.forget_problems(key);
            }
            DecodedValue::NotOurs => {
                self.changes.extend(self.known.delete(key));
                self.forget_problems(key);
            }
            DecodedValue::Bad(errors) => {
                self.known.set_bad(key);
                let problem = |error: telaio_model::FieldError| Problem {
                    origin: self.health.server().to_owned(),
                    object: Some(format!("{} {key}", self.watched.kind)),
                    field: Some(error.path).filter(|path| !path.is_empty()),
                    message: error.message,
                };
                let problems = errors.into_iter().map(problem).collect();
                self.set_problems(key, problems);
            }
        }
        decoded.version
    }

    /// Takes an object that is gone; gives the version of its deletion.
    fn take_deletion(&mut self, json: &str) -> Option<String> {
        let named = Named::read(json)?;
        let key = named.key(&self.ctx);
        self.changes.extend(self.known.delete(&key));
        self.forget_problems(&key);
        named.resource_version
    }

    fn forget_problems(&mut self, key: &ObjectKey) {
        if self.known.clear_bad(key) {
            self.set_problems(key, Vec::new());
        }
    }

    fn set_problems(&self, key: &ObjectKey, problems: Vec<Problem>) {
        let place = format!("{}/{key}", health::place(self.watched.kind));
        self.health.status().set_problems(&place, problems);
    }

    /// Sends on what was gathered.
    async fn flush(&mut self) -> Result<(), Closed> {
        if self.changes.is_empty() {
            return Ok(());
        }
        self.send(false).await
    }

    /// Sends on what was gathered, and that this kind need not be waited for.
    async fn settle(&mut self) -> Result<(), Closed> {
        if self.settled {
            return self.flush().await;
        }
        self.settled = true;
        self.health.settled(self.watched.kind);
        self.send(true).await
    }

    async fn send(&mut self, settled: bool) -> Result<(), Closed> {
        let changes = std::mem::take(&mut self.changes);
        let update = Update { kind: self.watched.kind, changes, settled };
        self.out.send(update).await.map_err(|_| Closed)
    }
}

fn read_error(json: &str) -> Trouble {
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct Status {
        code: u16,
        message: String,
    }
    let Status { code, message } = serde_json::from_str(json).unwrap_or_default();
    Trouble::of_status("watch", code, &message)
}

/// A page of a list. The items stay text until each is read.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: Option<String>,
    annotations: Option<BookmarkAnnotations>,
}

#[derive(Default, Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}
