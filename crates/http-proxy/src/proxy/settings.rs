//! What holds for the whole proxy.

use ipnet::IpNet;

use crate::cache::CacheLimits;
use crate::h1::parse::HeadLimits;
use crate::h1::relay::ClientTimeouts;

/// What holds for the whole proxy, whatever the route.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// Bounds of requests' heads.
    pub limits: HeadLimits,
    /// How long clients may take.
    pub timeouts: ClientTimeouts,
    /// How many bytes of a request's body must come per second while nobody but the client is waited for;
    /// 0 asks for nothing.
    pub body_bytes_per_s_min: u32,
    /// Peers whose `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// What sticky cookies are made with: the same on all replicas.
    pub cookie_secret: [u8; 32],
    /// Whether names of endpoints, and servers that are asked about a request or get a copy of it, may be
    /// the node itself, or of its link.
    pub local_targets: bool,
    /// The port of https as clients see it: where redirects lead.
    pub https_port: u16,
    /// Connections of clients. Whoever comes beyond has the place of one that is kept alive and idle for
    /// longest, and waits in the kernel if there is none.
    pub connections_max: usize,
    /// Bounds of the cache, which is there from the first route on that asks for it.
    pub cache: CacheLimits,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            limits: HeadLimits::default(),
            timeouts: ClientTimeouts::default(),
            body_bytes_per_s_min: 240,
            trusted_proxies: Vec::new(),
            cookie_secret: [0; 32],
            local_targets: true,
            https_port: 443,
            connections_max: 65_536,
            cache: CacheLimits::default(),
        }
    }
}
