//! What holds for the whole proxy.

use ipnet::IpNet;

use crate::h1::parse::HeadLimits;
use crate::h1::relay::ClientTimeouts;

/// What holds for the whole proxy, whatever the route.
#[derive(Debug, Clone, Default)]
pub struct ProxySettings {
    /// Bounds of requests' heads.
    pub limits: HeadLimits,
    /// How long clients may take.
    pub timeouts: ClientTimeouts,
    /// Peers whose `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// What sticky cookies are made with: the same on all replicas.
    pub cookie_secret: [u8; 32],
}
