//! What a version of HNS can do.
//!
//! HNS says its version; what it means is known from the field. Fixes went into older lines as well, so
//! a feature has ranges of versions: each begins at a version and ends with that major version, except
//! the last, which goes on.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the Host Networking Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HnsVersion {
    /// The line.
    pub major: u32,
    /// The step within the line.
    pub minor: u32,
}

impl HnsVersion {
    /// A version.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for HnsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Something that not every version of HNS can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Rules about who may talk to an endpoint, with lists of addresses and ranges of ports.
    Acl,
    /// Documents of schema version 2: without it nothing here works.
    SchemaV2,
    /// Routes to other nodes' subnets on an overlay.
    RemoteSubnet,
    /// Endpoints reach their own node on an overlay.
    HostRoute,
    /// Direct server return.
    Dsr,
    /// Endpoints with a prefix of 32 bits.
    Slash32EndpointPrefixes,
    /// The port of VXLAN can be chosen.
    VxlanPort,
    /// IPv4 and IPv6 side by side.
    Ipv6DualStack,
    /// Session affinity.
    SessionAffinity,
    /// Sets of addresses on a network, for rules.
    SetPolicy,
    /// Rules in tiers.
    TierAcl,
    /// Rules for a whole network.
    NetworkAcl,
    /// A load balancer is changed in place.
    ModifyLoadBalancer,
}

/// Every feature, with the versions where it begins. Windows Server 2019 is at 9.x, 2025 at 15.x and
/// later.
pub const FEATURES: &[(Feature, &[HnsVersion])] = &[
    (Feature::Acl, &[HnsVersion::new(7, 2)]),
    (Feature::SchemaV2, &[HnsVersion::new(9, 2)]),
    (Feature::RemoteSubnet, &[HnsVersion::new(9, 2)]),
    (Feature::HostRoute, &[HnsVersion::new(9, 2)]),
    (Feature::Dsr, &[HnsVersion::new(9, 3), HnsVersion::new(10, 2)]),
    (Feature::Slash32EndpointPrefixes, &[HnsVersion::new(9, 3), HnsVersion::new(10, 4)]),
    (Feature::VxlanPort, &[HnsVersion::new(10, 3)]),
    (Feature::Ipv6DualStack, &[HnsVersion::new(11, 10)]),
    (Feature::SessionAffinity, &[HnsVersion::new(12, 0)]),
    (Feature::SetPolicy, &[HnsVersion::new(13, 0)]),
    (Feature::TierAcl, &[HnsVersion::new(14, 0)]),
    (Feature::NetworkAcl, &[HnsVersion::new(15, 0)]),
    // 15.4 takes the call and does nothing.
    (Feature::ModifyLoadBalancer, &[HnsVersion::new(15, 5), HnsVersion::new(16, 0)]),
];

/// What this node's HNS can do.
///
/// ```
/// # use telaio_hcn::{Feature, HnsVersion, SupportedFeatures};
/// let features = SupportedFeatures::of(HnsVersion::new(13, 3));
/// assert!(features.has(Feature::SessionAffinity));
/// assert!(!features.has(Feature::ModifyLoadBalancer));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportedFeatures {
    version: HnsVersion,
    features: BTreeSet<Feature>,
}

impl SupportedFeatures {
    /// What this version can do.
    pub fn of(version: HnsVersion) -> Self {
        let features = FEATURES
            .iter()
            .filter(|(_, begins)| is_in_range(version, begins))
            .map(|(feature, _)| *feature)
            .collect();
        Self { version, features }
    }

    /// The version.
    pub fn version(&self) -> HnsVersion {
        self.version
    }

    /// Whether it can do this.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// All that it can do.
    pub fn iter(&self) -> impl Iterator<Item = Feature> {
        self.features.iter().copied()
    }
}

fn is_in_range(version: HnsVersion, begins: &[HnsVersion]) -> bool {
    let last = begins.last().is_some_and(|last| version >= *last);
    last || begins.iter().any(|begin| version.major == begin.major && version >= *begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_went_into_an_older_line_is_not_in_the_lines_between() {
        let has =
            |major, minor| SupportedFeatures::of(HnsVersion::new(major, minor)).has(Feature::Dsr);
        assert!(!has(9, 2));
        assert!(has(9, 3));
        assert!(has(9, 99));
        assert!(!has(10, 0));
        assert!(!has(10, 1));
        assert!(has(10, 2));
        assert!(has(13, 0));
    }

    #[test]
    fn modify_begins_after_the_version_that_only_pretends() {
        let has = |major, minor| {
            SupportedFeatures::of(HnsVersion::new(major, minor)).has(Feature::ModifyLoadBalancer)
        };
        assert!(!has(15, 4));
        assert!(has(15, 5));
        assert!(has(16, 0));
    }

    #[test]
    fn the_table_has_each_feature_once_and_its_versions_in_order() {
        let named: BTreeSet<_> = FEATURES.iter().map(|(feature, _)| *feature).collect();
        assert_eq!(named.len(), FEATURES.len());
        assert!(FEATURES.iter().all(|(_, begins)| !begins.is_empty() && begins.is_sorted()));
        let newest = SupportedFeatures::of(HnsVersion::new(u32::MAX, 0));
        assert_eq!(newest.iter().count(), FEATURES.len());
    }
}
