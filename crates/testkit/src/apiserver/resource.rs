//! Which resources the server serves.

/// A resource of the API: what stands in its paths and in its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version, such as `v1`.
    pub version: String,
    /// The plural in paths, such as `services`.
    pub plural: String,
    /// The kind in objects, such as `Service`.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether `status` is written by its own subresource only.
    pub has_status: bool,
}

impl Resource {
    /// A namespaced resource without a status. `api_version` is `v1` or `group/v1`.
    pub fn new(api_version: &str, plural: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            kind: kind.to_owned(),
            namespaced: true,
            has_status: false,
        }
    }

    /// The same with one set of objects for the whole cluster.
    #[must_use]
    pub fn cluster_wide(mut self) -> Self {
        self.namespaced = false;
        self
    }

    /// The same with a `status` subresource.
    #[must_use]
    pub fn with_status(mut self) -> Self {
        self.has_status = true;
        self
    }

    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, as the API's messages name it.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The path of all its objects.
    pub fn path(&self) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        format!("{root}/{}/{}", self.api_version(), self.plural)
    }
}

/// The resources that every server starts with.
pub(super) fn built_in() -> Vec<Resource> {
    vec![
        Resource::new("v1", "namespaces", "Namespace").cluster_wide().with_status(),
        Resource::new("v1", "services", "Service").with_status(),
        Resource::new("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
        Resource::new("v1", "nodes", "Node").cluster_wide().with_status(),
        Resource::new("networking.k8s.io/v1", "ingresses", "Ingress").with_status(),
        Resource::new("networking.k8s.io/v1", "ingressclasses", "IngressClass").cluster_wide(),
        Resource::new("v1", "secrets", "Secret"),
        Resource::new("v1", "configmaps", "ConfigMap"),
        Resource::new("v1", "pods", "Pod").with_status(),
        Resource::new("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
        Resource::new("networking.k8s.io/v1", "servicecidrs", "ServiceCIDR")
            .cluster_wide()
            .with_status(),
        Resource::new("coordination.k8s.io/v1", "leases", "Lease"),
        Resource::new("events.k8s.io/v1", "events", "Event"),
    ]
}
