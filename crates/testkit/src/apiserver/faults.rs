//! What a test can have go wrong, and what it can see of the requests that came.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::refusal::Refusal;
use super::resource::Resource;

/// How many requests are remembered one by one; the counters go on.
const REQUESTS_MAX: usize = 10_000;

/// How the server takes a watch that asks for the initial state (`sendInitialEvents`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamingLists {
    /// It streams the state, as servers do since Kubernetes 1.32.
    #[default]
    Served,
    /// It answers 422, as servers do without the feature.
    Refused,
    /// It does not know the parameter: it sends the state but never says that it is complete.
    Ignored,
}

/// How a watch learns that its version is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GoneForm {
    /// By an `ERROR` event in a watch that began well, as the watch cache does.
    #[default]
    Event,
    /// By the HTTP status 410.
    HttpStatus,
}

/// A request that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenRequest {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The plural, with `/status` for that subresource; the path where it is no resource.
    pub resource: String,
    /// Path and query as they came.
    pub uri: String,
}

#[derive(Debug, Default)]
struct State {
    refused: BTreeMap<(String, String), u16>,
    /// Requests to let pass, then requests to fail.
    fail_skip: usize,
    fail_next: usize,
    fail_status: u16,
    streaming_lists: StreamingLists,
    gone_form: GoneForm,
    seen: VecDeque<SeenRequest>,
    counts: BTreeMap<(String, String), u64>,
}

/// The faults that are set, and the requests that were seen.
#[derive(Debug)]
pub(super) struct Faults {
    state: Mutex<State>,
    /// Grows with every request, so that tests can wait for one.
    pub(super) requests: watch::Sender<u64>,
    pub(super) paused: watch::Sender<bool>,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            requests: watch::Sender::new(0),
            paused: watch::Sender::new(false),
        }
    }

    pub(super) fn refuse(&self, verb: &str, resource: &str, status: u16) {
        self.state.lock().refused.insert((verb.to_owned(), resource.to_owned()), status);
    }

    pub(super) fn allow(&self, verb: &str, resource: &str) {
        self.state.lock().refused.remove(&(verb.to_owned(), resource.to_owned()));
    }

    pub(super) fn fail_after(&self, skip: usize, count: usize, status: u16) {
        let mut state = self.state.lock();
        state.fail_skip = skip;
        state.fail_next = count;
        state.fail_status = status;
    }

    pub(super) fn set_streaming_lists(&self, how: StreamingLists) {
        self.state.lock().streaming_lists = how;
    }

    pub(super) fn streaming_lists(&self) -> StreamingLists {
        self.state.lock().streaming_lists
    }

    pub(super) fn set_gone_form(&self, form: GoneForm) {
        self.state.lock().gone_form = form;
    }

    pub(super) fn gone_form(&self) -> GoneForm {
        self.state.lock().gone_form
    }

    /// Remembers a request.
    pub(super) fn record(&self, request: SeenRequest) {
        let mut state = self.state.lock();
        *state.counts.entry((request.verb.clone(), request.resource.clone())).or_default() += 1;
        state.seen.push_back(request);
        if state.seen.len() > REQUESTS_MAX {
            state.seen.pop_front();
        }
        drop(state);
        self.requests.send_modify(|count| *count += 1);
    }

    /// The fault that a request meets, if one is set for it.
    pub(super) fn check(
        &self,
        verb: &str,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.fail_skip > 0 {
            state.fail_skip -= 1;
        } else if state.fail_next > 0 {
            state.fail_next -= 1;
            return Err(Refusal::new(state.fail_status, "the test asked for this request to fail"));
        }
        let Some(code) = state.refused.get(&(verb.to_owned(), resource.plural.clone())) else {
            return Ok(());
        };
        let place = match namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let message = format!(
            "{} is forbidden: User \"system:serviceaccount:default:test\" cannot {verb} resource \
             {:?} in API group {:?} {place}",
            resource.qualified(),
            resource.plural,
            resource.group,
        );
        Err(Refusal::new(*code, message))
    }

    pub(super) fn seen(&self) -> Vec<SeenRequest> {
        self.state.lock().seen.iter().cloned().collect()
    }

    pub(super) fn count(&self, verb: &str, resource: &str) -> u64 {
        let key = (verb.to_owned(), resource.to_owned());
        self.state.lock().counts.get(&key).copied().unwrap_or_default()
    }

    /// Waits while the server is paused.
    pub(super) async fn pass(&self) {
        let mut paused = self.paused.subscribe();
        // An error means that the server is gone, and then nobody waits for an answer.
        let _ = paused.wait_for(|paused| !paused).await;
    }
}
