//! The bit masks of the schema. Bits that are not named here are kept as they are.

use serde::{Deserialize, Serialize};

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$bit_doc:meta])* $bit:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$bit_doc])* pub const $bit: Self = Self($value);)*

            /// From the number in a document.
            pub const fn from_bits(bits: u32) -> Self {
                Self(bits)
            }

            /// The number for a document.
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Whether no flag is set.
            pub fn is_none(&self) -> bool {
                self.0 == 0
            }

            /// Whether all flags of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These flags, and those of `other` if `on`.
            #[must_use]
            pub const fn with(self, other: Self, on: bool) -> Self {
                if on { Self(self.0 | other.0) } else { self }
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    };
}

flags! {
    /// What is special about a network.
    NetworkFlags {
        /// HNS answers DNS queries on it.
        ENABLE_DNS_PROXY = 1,
        /// HNS gives addresses on it by DHCP.
        ENABLE_DHCP_SERVER = 2,
        /// It is gone after a restart.
        ENABLE_NON_PERSISTENT = 8,
        /// The host gets no virtual port of its own on the switch.
        DISABLE_HOST_PORT = 1024,
    }
}

flags! {
    /// What is special about an endpoint.
    EndpointFlags {
        /// It stands for an address on another node; no port of this node's switch belongs to it.
        REMOTE_ENDPOINT = 1,
        /// It may not talk to other endpoints of this node.
        DISABLE_INTER_COMPUTE_COMMUNICATION = 2,
        /// Traffic is mirrored to it.
        ENABLE_MIRRORING = 4,
        /// Its interface gets a low route metric.
        ENABLE_LOW_INTERFACE_METRIC = 16,
        /// Its DNS servers come first.
        OVERRIDE_DNS_SERVER_ORDER = 32,
        /// It gets addresses by DHCP.
        ENABLE_DHCP = 64,
    }
}

flags! {
    /// What is special about a load balancer.
    LoadBalancerFlags {
        /// Direct server return: answers go straight to the client, not back through the load balancer.
        DSR = 1,
        /// Its addresses are of IPv6.
        IPV6 = 2,
    }
}

flags! {
    /// What is special about one port of a load balancer.
    PortMappingFlags {
        /// Internal: for the endpoints of this node, not for who comes from outside.
        INTERNAL = 1,
        /// The node itself can use the address too.
        LOCAL_ROUTED_VIP = 2,
        /// Direct server return for node ports.
        USE_MUX = 4,
        /// Packets reach the endpoint with the address that the client used as their destination.
        PRESERVE_DESTINATION = 8,
        /// The address is an external one of the service.
        VIP_EXTERNAL_IP = 16,
    }
}

flags! {
    /// What is special about a port mapping on an endpoint.
    NatFlags {
        /// The node itself can use the address too.
        LOCAL_ROUTED_VIP = 1,
        /// Its addresses are of IPv6.
        IPV6 = 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_bits_survive() {
        let flags: EndpointFlags = serde_json::from_str("4097").unwrap();
        assert!(flags.contains(EndpointFlags::REMOTE_ENDPOINT));
        assert!(!flags.contains(EndpointFlags::ENABLE_MIRRORING));
        assert_eq!(serde_json::to_string(&flags).unwrap(), "4097");
    }

    #[test]
    fn flags_add_up() {
        let mut flags = LoadBalancerFlags::NONE.with(LoadBalancerFlags::DSR, true);
        flags |= LoadBalancerFlags::NONE.with(LoadBalancerFlags::IPV6, false);
        assert_eq!(flags, LoadBalancerFlags::DSR);
        assert_eq!((flags | LoadBalancerFlags::IPV6).bits(), 3);
    }
}
