//! The planes: what of a node's network telaio can manage, and what of the cluster each needs.

use std::collections::BTreeSet;
use std::fmt;

use clap::ValueEnum;
use telaio_model::Kind;

/// A part of a node's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Plane {
    /// Service addresses: ClusterIP to LoadBalancer.
    Services,
    /// Instances and their networks.
    Pods,
    /// HTTP from outside.
    Ingress,
}

impl Plane {
    /// Those that this build can run on a node. A brain serves what all of them need.
    pub(crate) const RUNNABLE: &[Self] = if cfg!(target_os = "linux") {
        &[Self::Services, Self::Pods, Self::Ingress]
    } else if cfg!(unix) {
        &[Self::Services, Self::Ingress]
    } else {
        &[Self::Services]
    };

    /// Its name, as after `--planes`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Pods => "pods",
            Self::Ingress => "ingress",
        }
    }

    /// The kinds of objects that it needs.
    fn kinds(self) -> &'static [Kind] {
        match self {
            // Of ConfigMaps only those with our label: one of them has overrides.
            Self::Services => &[
                Kind::Service,
                Kind::EndpointSlice,
                Kind::Node,
                Kind::ServiceCidr,
                Kind::Override,
                Kind::ConfigMap,
            ],
            Self::Pods => &[Kind::Node, Kind::Pod, Kind::Namespace, Kind::NetworkPolicy],
            Self::Ingress => &[
                Kind::Service,
                Kind::EndpointSlice,
                Kind::Node,
                Kind::Override,
                Kind::Ingress,
                Kind::IngressClass,
                Kind::TlsSecret,
                Kind::AuthSecret,
                Kind::ConfigMap,
            ],
        }
    }
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kinds of objects that these planes need.
pub(crate) fn kinds(planes: &[Plane]) -> BTreeSet<Kind> {
    planes.iter().flat_map(|plane| plane.kinds()).copied().collect()
}

/// Their names, for people.
pub(crate) fn names(planes: &[Plane]) -> Vec<String> {
    planes.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for plane in Plane::value_variants() {
            assert_eq!(plane.to_possible_value().unwrap().get_name(), plane.name());
        }
    }

    #[test]
    fn secrets_are_read_only_for_the_ingress() {
        assert!(!kinds(&[Plane::Services, Plane::Pods]).contains(&Kind::TlsSecret));
        assert!(kinds(&[Plane::Ingress]).contains(&Kind::TlsSecret));
    }
}
