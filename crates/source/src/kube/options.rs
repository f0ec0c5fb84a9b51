//! What is watched, and how patiently.

use std::collections::BTreeSet;
use std::time::Duration;

use telaio_model::Kind;

/// What a [`KubeSource`](super::KubeSource) watches and how long it waits for what.
///
/// ```
/// use telaio_model::Kind;
/// use telaio_source::kube::KubeOptions;
///
/// let options = KubeOptions { headless: true, ..KubeOptions::default() }.with_kind(Kind::Ingress);
/// assert!(options.kinds.contains(&Kind::Service) && options.kinds.contains(&Kind::Ingress));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeOptions {
    /// The kinds to watch. Services, endpoint slices and nodes, unless set.
    pub kinds: BTreeSet<Kind>,
    /// Whether headless services and their slices are wanted, as the ingress plane does.
    pub headless: bool,
    /// The namespace whose ConfigMaps may hold overrides of everything; others only of themselves.
    pub overrides_namespace: String,
    /// How many objects a list asks for at once where the server cannot stream them.
    pub page_size: u32,
    /// How long a request may go without an answer.
    pub request_timeout: Duration,
    /// How long a watch may be silent before its connection counts as dead. API servers send a
    /// bookmark every minute.
    pub silence_max: Duration,
    /// The first wait after a failure; each further one doubles it.
    pub backoff_min: Duration,
    /// The longest wait between two tries.
    pub backoff_max: Duration,
    /// How long [`load_once`](super::KubeSource::load_once) waits for everything.
    pub load_timeout: Duration,
}

impl Default for KubeOptions {
    fn default() -> Self {
        Self {
            kinds: BTreeSet::from([Kind::Service, Kind::EndpointSlice, Kind::Node]),
            headless: false,
            overrides_namespace: "kube-system".to_owned(),
            page_size: 500,
            request_timeout: Duration::from_secs(30),
            silence_max: Duration::from_secs(90),
            backoff_min: Duration::from_millis(500),
            backoff_max: Duration::from_secs(30),
            load_timeout: Duration::from_secs(30),
        }
    }
}

impl KubeOptions {
    /// The same with one more kind.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kinds.insert(kind);
        self
    }
}
