//! The server: REST under `/api/v1`, the stream, the page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension, Path, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::agent::{Agent, Network, Refusal, now_ms};
use crate::audit::AuditLog;
use crate::events::EventLog;
use crate::guard::{self, Caller, Guard, GuardSettings, problem};
use crate::hub::{Frame, Hub};
use crate::lists::{ListQuery, Listed};
use crate::manage::Manager;
use crate::map::{MapQuery, Maps};
use crate::values::action::{ActionRequest, UndoRequest};
use crate::values::stream::{Hello, Lagged};
use crate::values::trace::TraceQuestion;
use crate::values::{Key, Page, Stale, Whoami};
use crate::{openapi, page};

/// How long a request's body may be.
const BODY_BYTES_MAX: usize = 64 << 10;
/// A stream on which nothing happens shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How the server works.
#[derive(Debug)]
pub struct GuiSettings {
    /// Who may ask.
    pub guard: GuardSettings,
    /// How often figures are taken.
    pub tick: Duration,
    /// How many streams may be open.
    pub streams_max: usize,
    /// How long an override that has ended stays written: by then it has ended for agents whose clocks
    /// are behind too.
    pub ended_grace: Duration,
    /// How often a stream's token is looked at again: the cluster may have taken it back.
    pub stream_check: Duration,
}

impl Default for GuiSettings {
    fn default() -> Self {
        Self {
            guard: GuardSettings::default(),
            tick: Duration::from_secs(1),
            streams_max: 256,
            ended_grace: Duration::from_secs(30),
            stream_check: Duration::from_secs(30),
        }
    }
}

/// What handlers need.
struct Shared {
    hub: Arc<Hub>,
    maps: Maps,
    manager: Arc<Manager>,
    guard: Arc<Guard>,
    stream_check: Duration,
}

type App = State<Arc<Shared>>;

/// The server.
pub struct GuiServer {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for GuiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuiServer").finish_non_exhaustive()
    }
}

impl GuiServer {
    /// A server for this agent.
    pub fn new(
        settings: GuiSettings,
        agent: Arc<dyn Agent>,
        events: Arc<EventLog>,
        audit: AuditLog,
    ) -> Self {
        let hub = Hub::new(Arc::clone(&agent), events, settings.tick, settings.streams_max);
        let hub = Arc::new(hub);
        let manager = Arc::new(Manager::new(Arc::clone(&hub), audit, settings.ended_grace));
        let guard = Guard { settings: settings.guard, agent, manager: Arc::clone(&manager) };
        let (guard, stream_check) = (Arc::new(guard), settings.stream_check);
        let maps = Maps::default();
        Self { shared: Arc::new(Shared { hub, maps, manager, guard, stream_check }) }
    }

    /// All routes.
    pub fn router(&self) -> Router {
        let api = Router::new()
            .route("/api/v1/whoami", get(whoami))
            .route("/api/v1/status", get(status))
            .route("/api/v1/overview", get(overview))
            .route("/api/v1/history", get(history))
            .route("/api/v1/services", get(services))
            .route("/api/v1/services/{namespace}/{name}", get(service))
            .route("/api/v1/services/{namespace}/{name}/rules", get(rules))
            .route("/api/v1/nodes", get(nodes))
            .route("/api/v1/routes", get(routes))
            .route("/api/v1/certificates", get(certificates))
            .route("/api/v1/pods", get(pods))
            .route("/api/v1/networks", get(networks))
            .route("/api/v1/instances", get(instances))
            .route("/api/v1/peers", get(peers))
            .route("/api/v1/map", get(traffic_map))
            .route("/api/v1/trace", get(trace))
            .route("/api/v1/events", get(events))
            .route("/api/v1/events/stream", get(stream))
            .route("/api/v1/overrides", get(overrides))
            .route("/api/v1/audit", get(audit))
            .route("/api/v1/actions", post(act))
            .route("/api/v1/actions/{id}/undo", post(undo))
            .with_state(Arc::clone(&self.shared))
            .layer(axum::middleware::from_fn_with_state(
                Arc::clone(&self.shared.guard),
                guard::inner,
            ));
        Router::new()
            .route("/api/v1/openapi.json", get(document))
            .merge(api)
            .route("/api", axum::routing::any(nothing))
            .route("/api/", axum::routing::any(nothing))
            .route("/api/{*rest}", axum::routing::any(nothing))
            .fallback(page::serve)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(axum::middleware::from_fn(in_json))
            .layer(axum::middleware::from_fn_with_state(
                Arc::clone(&self.shared.guard),
                guard::outer,
            ))
    }

    /// Takes figures, tells streams and ends overrides, for as long as it is polled.
    pub async fn run(&self) {
        let every = || {
            let mut ticks = tokio::time::interval(self.shared.hub.tick);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            ticks
        };
        let telling = async {
            let mut ticks = every();
            loop {
                ticks.tick().await;
                self.shared.hub.on_tick().await;
            }
        };
        // Beside it: an API server that does not answer must not have the page stand still.
        let ending = async {
            let mut ticks = every();
            loop {
                ticks.tick().await;
                self.shared.manager.end_what_is_over().await;
            }
        };
        let ((), ()) = tokio::join!(telling, ending);
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code) = match &self {
            Self::Bad(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            Self::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        problem(status, code, self.to_string())
    }
}

/// JSON on lines, for people with `curl`.
fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, "failed", error.to_string()),
    }
}

fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refusal> {
    let read = Query::<T>::try_from_uri(uri);
    read.map(|Query(query)| query).map_err(|error| Refusal::Bad(error.body_text()))
}

fn answer<T: Serialize>(answer: Result<T, Refusal>) -> Response {
    match answer {
        Ok(value) => json(&value),
        Err(refusal) => refusal.into_response(),
    }
}

/// What the framework refuses by itself it says in plain text, or not at all; the API says everything in JSON.
async fn in_json(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_api = path == "/api" || path.starts_with("/api/");
    let response = next.run(request).await;
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !is_api || is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (code, message) = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            ("bad_method", "it cannot be asked for in this way; /api/v1/openapi.json says how")
        }
        StatusCode::PAYLOAD_TOO_LARGE => ("too_large", "the body is too long: 64 KiB are enough"),
        StatusCode::NOT_FOUND => ("not_found", "there is nothing of this name"),
        it if it.is_client_error() => ("bad_request", "the request cannot be read"),
        _ => ("failed", "it could not be answered; the agent's log may say why"),
    };
    let mut said = problem(status, code, message);
    if let Some(allowed) = response.headers().get(header::ALLOW) {
        said.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    said
}

async fn nothing() -> Response {
    let message = "there is nothing of this name; /api/v1/openapi.json says what there is";
    Refusal::NotFound(message.to_owned()).into_response()
}

async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::DOCUMENT).into_response()
}

async fn whoami(State(app): App, Extension(caller): Extension<Caller>) -> Response {
    json(&Whoami {
        role: caller.role,
        name: caller.name,
        read_only_because: app.hub.agent.read_only_because(),
    })
}

async fn status(State(app): App) -> Response {
    let status = app.hub.agent.status();
    ([(header::CONTENT_TYPE, "application/json")], status).into_response()
}

async fn overview(State(app): App) -> Response {
    json(&app.hub.overview().await)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    since_ms: Option<i64>,
}

async fn history(State(app): App, uri: Uri) -> Response {
    let query: Result<HistoryQuery, Refusal> = query(&uri);
    answer(query.map(|query| app.hub.history(query.since_ms)))
}

/// A part of a list.
async fn list<T: Listed + Clone + Serialize>(
    app: &Shared,
    uri: &Uri,
    of: fn(&Network) -> &[T],
) -> Response {
    let query: Result<ListQuery, Refusal> = query(uri);
    let network = app.hub.network().await;
    answer(query.and_then(|query| query.page(of(&network), network.at_ms)))
}

async fn services(State(app): App, uri: Uri) -> Response {
    list(&app, &uri, |it| &it.services).await
}

async fn nodes(State(app): App, uri: Uri) -> Response {
    list(&app, &uri, |it| &it.nodes).await
}

/// A part of a list of what only the ingress' worker knows.
async fn list_of_worker<T: Listed + Clone + Serialize>(
    app: &Shared,
    uri: &Uri,
    of: fn(&Network) -> &[T],
) -> Response {
    let query: Result<ListQuery, Refusal> = query(uri);
    let network = app.hub.network().await;
    let stale = network.routes_stale.clone();
    if let Some(Stale { since_ms: None, reason }) = stale {
        return Refusal::Unavailable(reason).into_response();
    }
    let page = query.and_then(|query| query.page(of(&network), network.at_ms));
    answer(page.map(|page| Page { stale, ..page }))
}

async fn routes(State(app): App, uri: Uri) -> Response {
    list_of_worker(&app, &uri, |it| &it.routes).await
}

async fn certificates(State(app): App, uri: Uri) -> Response {
    list_of_worker(&app, &uri, |it| &it.certificates).await
}

async fn networks(State(app): App, uri: Uri) -> Response {
    list(&app, &uri, |it| &it.networks).await
}

async fn instances(State(app): App, uri: Uri) -> Response {
    list(&app, &uri, |it| &it.instances).await
}

async fn peers(State(app): App, uri: Uri) -> Response {
    list(&app, &uri, |it| &it.peers).await
}

async fn pods(State(app): App) -> Response {
    json(&app.hub.network().await.pods)
}

async fn service(State(app): App, Path((namespace, name)): Path<(String, String)>) -> Response {
    let key = Key::new(namespace, name);
    // First, for the figures of the lists are those of the service.
    let network = app.hub.network().await;
    let Some(mut detail) = app.hub.agent.service(&key) else {
        return Refusal::NotFound(format!("there is no service {key}")).into_response();
    };
    detail.overrides = app.manager.items(|it| it.service().is_some_and(|it| same(it, &key))).await;
    let leads = network.routes.iter().filter(|it| it.backends.iter().any(|it| it.service == key));
    detail.routes = leads.map(|route| route.id.clone()).collect();
    json(&detail)
}

pub(crate) fn same(one: &telaio_model::ObjectKey, other: &Key) -> bool {
    *one.namespace == *other.namespace && *one.name == *other.name
}

async fn rules(State(app): App, Path((namespace, name)): Path<(String, String)>) -> Response {
    answer(app.hub.agent.rules(&Key::new(namespace, name)).await)
}

async fn traffic_map(State(app): App, uri: Uri) -> Response {
    let query: MapQuery = match query(&uri) {
        Ok(query) => query,
        Err(refusal) => return refusal.into_response(),
    };
    let network = app.hub.network().await;
    answer(app.maps.get(&query, &network, &*app.hub.agent).map(|map| (*map).clone()))
}

async fn trace(State(app): App, uri: Uri) -> Response {
    let question: TraceQuestion = match query(&uri) {
        Ok(question) => question,
        Err(refusal) => return refusal.into_response(),
    };
    answer(app.hub.agent.trace(&question).await)
}

async fn events(State(app): App, uri: Uri) -> Response {
    let query: ListQuery = match query(&uri) {
        Ok(query) => query,
        Err(refusal) => return refusal.into_response(),
    };
    let limit = match query.limit() {
        Ok(limit) => limit,
        Err(refusal) => return refusal.into_response(),
    };
    json(&app.hub.events.page(query.before, limit, |event| query.wants_event(event)))
}

async fn overrides(State(app): App, uri: Uri) -> Response {
    let query: Result<ListQuery, Refusal> = query(&uri);
    let items = app.manager.items(|_| true).await;
    answer(query.and_then(|query| query.page(&items, now_ms())))
}

async fn audit(State(app): App, uri: Uri) -> Response {
    let query: Result<ListQuery, Refusal> = query(&uri);
    let entries = app.manager.audit().entries();
    answer(query.and_then(|query| -> Result<Page<_>, Refusal> { query.page(&entries, now_ms()) }))
}

/// The body of a request that does something: JSON, said to be so, which no page of somebody else's
/// can send from a browser without being asked first.
fn body<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, Box<Response>> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("application/json")) {
        let message = "send JSON, with the Content-Type application/json";
        return Err(Box::new(problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_request", message)));
    }
    serde_json::from_slice(body)
        .map_err(|error| Box::new(Refusal::Bad(error.to_string()).into_response()))
}

async fn act(
    State(app): App,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    match body::<ActionRequest>(&headers, &bytes) {
        Ok(request) => answer(app.manager.act(&caller, request).await),
        Err(response) => *response,
    }
}

async fn undo(
    State(app): App,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    match body::<UndoRequest>(&headers, &bytes) {
        Ok(request) => answer(app.manager.undo(&caller, &id, &request).await),
        Err(response) => *response,
    }
}

/// What one stream holds.
struct Stream {
    frames: Receiver<Frame>,
    topics: Option<Vec<String>>,
    first: Vec<Bytes>,
    _place: OwnedSemaphorePermit,
    app: Arc<Shared>,
    token: guard::Shown,
    checked: Instant,
}

impl Stream {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.pop() {
            return Some(first);
        }
        loop {
            let left = self.app.stream_check.saturating_sub(self.checked.elapsed());
            if left.is_zero() {
                if !guard::still_counts(&self.app.guard, &self.token).await {
                    return None;
                }
                self.checked = Instant::now();
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE.min(left), self.frames.recv()).await {
                Err(_) => return Some(Bytes::from_static(b": still here\n\n")),
                Ok(Ok(frame)) => {
                    let is_wanted =
                        |topics: &Vec<String>| topics.iter().any(|it| it == frame.topic);
                    if self.topics.as_ref().is_none_or(is_wanted) {
                        return Some(frame.bytes);
                    }
                }
                Ok(Err(RecvError::Lagged(missed))) => {
                    return Frame::new("lagged", &Lagged { missed }).map(|frame| frame.bytes);
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamQuery {
    topics: Option<String>,
}

async fn stream(
    State(app): App,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let query: StreamQuery = match query(&uri) {
        Ok(query) => query,
        Err(refusal) => return refusal.into_response(),
    };
    let Ok(place) = Arc::clone(&app.hub.streams).try_acquire_owned() else {
        let message = "too many pages are open; close some";
        return problem(StatusCode::SERVICE_UNAVAILABLE, "too_many", message);
    };
    let hello = Hello {
        at_ms: now_ms(),
        role: caller.role,
        tick_s: app.hub.tick.as_secs_f64(),
        newest_id: app.hub.events.newest_id(),
    };
    let sample = app.hub.last_sample().and_then(|sample| Frame::new("sample", &sample));
    // Taken from the end.
    let first = [sample, Frame::new("hello", &hello)].into_iter().flatten();
    let stream = Stream {
        frames: app.hub.subscribe(),
        topics: query.topics.map(|it| it.split(',').map(|it| it.trim().to_owned()).collect()),
        first: first.map(|frame| frame.bytes).collect(),
        _place: place,
        token: guard::Shown::of(&headers, &caller),
        checked: Instant::now(),
        app: Arc::clone(&app),
    };
    let bytes = futures::stream::unfold(stream, |mut stream| async {
        let next = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(next), stream))
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
