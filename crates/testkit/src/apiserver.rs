//! A Kubernetes API server for tests: real HTTP on loopback, no etcd, and faults on demand.
//!
//! It speaks what Telaio uses of the API: get, list with selectors and pages, watch with bookmarks
//! and streaming lists, create with defaults, update with conflicts, merge patches, the status
//! subresource, deletes, reviews of tokens and of access ([`ApiServer::account`]), and a little
//! discovery. Tests write objects straight into it with
//! [`ApiServer::apply`] and make it misbehave: see [`ApiServer::cut_watches`],
//! [`ApiServer::compact`], [`ApiServer::refuse`], [`ApiServer::pause`], [`ApiServer::stop`].
//!
//! What always holds:
//! - one version counter for everything; a write that changes nothing makes no version and no event;
//! - objects survive [`ApiServer::stop`] and [`ApiServer::restart`], which keeps the address;
//! - everything it started ends when it is dropped.
//!
//! What it does not do: finalizers, strategic merge by list keys, field ownership, old versions.
//!
//! ```
//! # async fn example() -> std::io::Result<()> {
//! use serde_json::json;
//! use telaio_testkit::apiserver::ApiServer;
//!
//! let server = ApiServer::start().await?;
//! server
//!     .apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}))
//!     .map_err(std::io::Error::other)?;
//! assert_eq!(server.count("nodes"), 1);
//! println!("{}", server.kubeconfig());
//! # Ok(()) }
//! ```

mod answer;
mod defaults;
mod discovery;
mod faults;
mod identity;
mod refusal;
mod resource;
mod reviews;
mod route;
mod selector;
mod store;
mod watching;
mod write;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use faults::Faults;
use identity::Identity;
use store::{Key, Store};

pub use faults::{GoneForm, SeenRequest, StreamingLists};
pub use refusal::Refusal;
pub use resource::Resource;

/// What all connections share.
struct Inner {
    store: Mutex<Store>,
    /// The store's version after the last change.
    changed: watch::Sender<u64>,
    bookmark_asked: watch::Sender<u64>,
    end_asked: watch::Sender<u64>,
    watches: watch::Sender<usize>,
    faults: Faults,
    accounts: Mutex<reviews::Accounts>,
    token: Option<String>,
    bookmark_period: Duration,
}

impl Inner {
    /// Wakes the watches. Called with the store still locked, so that versions are told in order.
    fn announce(&self, store: &Store) {
        self.changed.send_replace(store.version());
    }
}

/// How a server is to be.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    tls: bool,
    client_certificate: bool,
    token: Option<String>,
    bookmark_period: Duration,
    event_log_max: usize,
    streaming_lists: StreamingLists,
    resources: Vec<Resource>,
}

impl Builder {
    /// Serves HTTPS with a fresh authority, which the kubeconfig holds.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Serves HTTPS and takes only clients with the certificate that the kubeconfig holds.
    pub fn client_certificate(mut self) -> Self {
        self.tls = true;
        self.client_certificate = true;
        self
    }

    /// Takes only requests with this bearer token, which the kubeconfig holds.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// How often a watch gets a bookmark. A minute, as of a real server, unless set.
    pub fn bookmark_period(mut self, period: Duration) -> Self {
        self.bookmark_period = period;
        self
    }

    /// How many changes of each resource can be watched from. Unless set, 100,000.
    pub fn event_log_max(mut self, count: usize) -> Self {
        self.event_log_max = count;
        self
    }

    /// Refuses streaming lists, as an old server.
    pub fn without_streaming_lists(mut self) -> Self {
        self.streaming_lists = StreamingLists::Refused;
        self
    }

    /// Serves a further resource.
    pub fn register(mut self, resource: Resource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Starts the server on a free port of loopback.
    pub async fn start(self) -> io::Result<ApiServer> {
        let identity = self.tls.then(|| Identity::generate(self.client_certificate)).transpose()?;
        let inner = Arc::new(Inner {
            store: Mutex::new(Store::new(self.resources, self.event_log_max)),
            changed: watch::Sender::new(0),
            bookmark_asked: watch::Sender::new(0),
            end_asked: watch::Sender::new(0),
            watches: watch::Sender::new(0),
            faults: Faults::new(),
            accounts: Mutex::default(),
            token: self.token,
            bookmark_period: self.bookmark_period,
        });
        inner.faults.set_streaming_lists(self.streaming_lists);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let server = ApiServer {
            address: listener.local_addr()?,
            inner,
            identity,
            accepting: Mutex::new(None),
            cuts: watch::Sender::new(0),
        };
        for name in ["default", "kube-system"] {
            let namespace =
                json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
            server.apply(namespace).map_err(io::Error::other)?;
        }
        server.accept(listener);
        Ok(server)
    }
}

/// A running test API server.
pub struct ApiServer {
    address: SocketAddr,
    inner: Arc<Inner>,
    identity: Option<Identity>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    /// Grows when every open connection is to be dropped.
    cuts: watch::Sender<u64>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starting, stopping and reaching it.
impl ApiServer {
    /// A plain HTTP server with every feature.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// A server to be adjusted before it starts.
    pub fn builder() -> Builder {
        Builder {
            tls: false,
            client_certificate: false,
            token: None,
            bookmark_period: Duration::from_mins(1),
            event_log_max: 100_000,
            streaming_lists: StreamingLists::Served,
            resources: resource::built_in(),
        }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        let scheme = if self.identity.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// A kubeconfig that reaches it.
    pub fn kubeconfig(&self) -> String {
        let token = self.inner.token.as_deref();
        let config = identity::kubeconfig(&self.url(), self.identity.as_ref(), token);
        format!("{config:#}\n")
    }

    /// Writes the kubeconfig into a directory.
    pub fn kubeconfig_file(&self, directory: &Path) -> io::Result<PathBuf> {
        let path = directory.join("kubeconfig");
        std::fs::write(&path, self.kubeconfig())?;
        Ok(path)
    }

    /// Stops listening and drops every connection. The objects stay.
    pub fn stop(&self) {
        if let Some(accepting) = &*self.accepting.lock() {
            accepting.abort();
        }
        self.cut_watches();
    }

    /// Listens again, at the same address as before.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop();
        let accepting = self.accepting.lock().take();
        if let Some(accepting) = accepting {
            // The old listener is closed when its task has ended, and not before.
            let _ = accepting.await;
        }
        self.accept(TcpListener::bind(self.address).await?);
        Ok(())
    }

    fn accept(&self, listener: TcpListener) {
        let inner = self.inner.clone();
        let cuts = self.cuts.clone();
        let tls = self.identity.as_ref().map(|i| TlsAcceptor::from(i.server.clone()));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let cut = cuts.subscribe();
                tokio::spawn(connection(inner.clone(), stream, tls.clone(), cut));
            }
        });
        *self.accepting.lock() = Some(task);
    }
}

/// Serves one connection until it ends or is cut.
async fn connection(
    inner: Arc<Inner>,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    mut cut: watch::Receiver<u64>,
) {
    // Small events must not wait for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let served = async move {
        match tls {
            Some(tls) => {
                if let Ok(stream) = tls.accept(stream).await {
                    serve(inner, stream).await;
                }
            }
            None => serve(inner, stream).await,
        }
    };
    tokio::select! {
        () = served => {}
        _ = cut.changed() => {}
    }
}

async fn serve(inner: Arc<Inner>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = service_fn(move |request| {
        let inner = inner.clone();
        async move { Ok::<_, Infallible>(answer::answer(inner, request).await) }
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    // A client that goes away is no error of a test server.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// The objects, straight from the test.
impl ApiServer {
    /// Writes an object as it is: no defaults, no checks but of its kind and name. Gives back what
    /// is stored.
    pub fn apply(&self, object: Value) -> Result<Value, Refusal> {
        let mut store = self.inner.store.lock();
        let stored = put(&mut store, object)?;
        self.inner.announce(&store);
        Ok(stored.value())
    }

    /// Writes many objects at once; watches wake when all are there.
    pub fn apply_many(&self, objects: impl IntoIterator<Item = Value>) -> Result<usize, Refusal> {
        let mut store = self.inner.store.lock();
        let mut count = 0;
        for object in objects {
            put(&mut store, object)?;
            count += 1;
        }
        self.inner.announce(&store);
        Ok(count)
    }

    /// Deletes an object (its namespace is empty if it has none). Says whether it was there.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) -> bool {
        let mut store = self.inner.store.lock();
        let Some(index) = store.find(|resource| resource.plural == plural) else { return false };
        let deleted = write::delete(&mut store, index, &Key::new(namespace, name));
        self.inner.announce(&store);
        deleted
    }

    /// An object as it is stored, without `kind` and `apiVersion`.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let store = self.inner.store.lock();
        let index = store.find(|resource| resource.plural == plural)?;
        store.get(index, &Key::new(namespace, name)).map(|stored| stored.value())
    }

    /// How many objects of a resource there are.
    pub fn count(&self, plural: &str) -> usize {
        let store = self.inner.store.lock();
        store.find(|resource| resource.plural == plural).map_or(0, |index| store.len(index))
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.inner.store.lock().version()
    }

    /// Adds an account: whose this token is, and what they may do with a resource (`plural.group`).
    pub fn account(&self, token: &str, name: &str, verbs: &[&str], resource: &str) {
        self.inner.accounts.lock().add(token, name, verbs, resource);
    }

    /// Serves a further resource from now on.
    pub fn register(&self, resource: Resource) {
        self.inner.store.lock().register(resource);
    }
}

fn put(store: &mut Store, object: Value) -> Result<Arc<store::Stored>, Refusal> {
    let Value::Object(mut object) = object else {
        return Err(Refusal::new(400, "an object must be a JSON object"));
    };
    let text = |map: &Map<String, Value>, field: &str| {
        map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (api_version, kind) = (text(&object, "apiVersion"), text(&object, "kind"));
    let index = store
        .find(|resource| resource.kind == kind && resource.api_version() == api_version)
        .ok_or_else(|| Refusal::new(404, format_args!("no resource {api_version} {kind}")))?;
    let named = object.get("metadata").and_then(Value::as_object);
    if named.is_none_or(|metadata| text(metadata, "name").is_empty()) {
        return Err(Refusal::new(422, format_args!("{kind}: metadata.name: Required value")));
    }
    if store.resource(index).namespaced {
        let metadata = store::metadata_mut(&mut object);
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
    Ok(store.put(index, object))
}

/// Faults.
impl ApiServer {
    /// Forgets every change so far: watches that begin at an older version learn that it is gone,
    /// and so do lists that are not finished.
    pub fn compact(&self) {
        self.inner.store.lock().compact();
    }

    /// How a watch learns that its version is gone.
    pub fn set_gone_form(&self, form: GoneForm) {
        self.inner.faults.set_gone_form(form);
    }

    /// Drops every open connection, in the middle of whatever it carries.
    pub fn cut_watches(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Ends every open watch in good order, as a server does when its time is over. What was to be
    /// sent before is sent.
    pub fn end_watches(&self) {
        self.inner.end_asked.send_modify(|count| *count += 1);
    }

    /// Answers requests of this verb for this resource with a status, such as 403.
    pub fn refuse(&self, verb: &str, plural: &str, status: u16) {
        self.inner.faults.refuse(verb, plural, status);
    }

    /// Takes [`ApiServer::refuse`] back.
    pub fn allow(&self, verb: &str, plural: &str) {
        self.inner.faults.allow(verb, plural);
    }

    /// Fails the next requests for resources, whatever they are.
    pub fn fail_next(&self, count: usize, status: u16) {
        self.fail_after(0, count, status);
    }

    /// Lets `skip` requests for resources pass and fails the `count` that follow.
    pub fn fail_after(&self, skip: usize, count: usize, status: u16) {
        self.inner.faults.fail_after(skip, count, status);
    }

    /// How streaming lists are taken from now on.
    pub fn set_streaming_lists(&self, how: StreamingLists) {
        self.inner.faults.set_streaming_lists(how);
    }

    /// Takes connections and requests but sends nothing more, not even to open watches: what a
    /// client sees of a half-open connection.
    pub fn pause(&self) {
        self.inner.faults.paused.send_replace(true);
    }

    /// Ends [`ApiServer::pause`]; what was asked meanwhile is answered.
    pub fn resume(&self) {
        self.inner.faults.paused.send_replace(false);
    }

    /// Sends a bookmark to every watch that takes them, now.
    pub fn send_bookmarks(&self) {
        self.inner.bookmark_asked.send_modify(|count| *count += 1);
    }
}

/// What the test can see.
impl ApiServer {
    /// How many watches are open.
    pub fn watch_count(&self) -> usize {
        *self.inner.watches.borrow()
    }

    /// Waits until exactly so many watches are open.
    pub async fn wait_for_watches(&self, count: usize) {
        let mut watches = self.inner.watches.subscribe();
        // The sender lives as long as `self`.
        let _ = watches.wait_for(|open| *open == count).await;
    }

    /// How many requests of this verb came for this resource; `services/status` for a subresource.
    pub fn request_count(&self, verb: &str, resource: &str) -> u64 {
        self.inner.faults.count(verb, resource)
    }

    /// Waits until at least so many requests of this verb came for this resource.
    pub async fn wait_for_requests(&self, verb: &str, resource: &str, count: u64) {
        let mut requests = self.inner.faults.requests.subscribe();
        let _ = requests.wait_for(|_| self.request_count(verb, resource) >= count).await;
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.inner.faults.seen()
    }
}
