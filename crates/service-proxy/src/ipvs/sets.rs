//! The ipsets that the fixed rules match, and what each means.
//!
//! Rules never name a service: they ask in which sets a packet's destination is. So a service comes and
//! goes by members of sets, and the rules stay as they are.

use std::fmt;

use telaio_model::IpFamily;

/// A set of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// Address and port of every virtual server of ours. No rule matches it: it is how a later run knows
    /// what is ours, also of what is leaving.
    Servers,
    /// The same for servers that are known by a mark: the mark, written as an address.
    Marks,
    /// Addresses on our device. What is not known by another set is refused there.
    Addresses,
    /// Cluster addresses and ports that are served: masqueraded unless it comes from a pod of this node.
    ClusterIp,
    /// External addresses and ports that are served by the whole cluster: always masqueraded.
    External,
    /// Addresses and ports whose endpoints answer the client themselves: never masqueraded.
    Direct,
    /// Those with the policy Local, each with the mark of the virtual server that has only the endpoints
    /// of this node. From outside a packet gets that mark, and keeps its source.
    Local,
    /// Those with the policy Local and no endpoint on this node: dropped, if they come from outside.
    NoLocal,
    /// Addresses and ports that nobody serves anywhere.
    Reject,
    /// Addresses and ports that somebody serves, but not for us.
    Drop,
    /// Addresses and ports that only some sources may use.
    Restricted,
    /// Which: address, port and network of the source.
    Allowed,
    /// Endpoints that reach themselves: address, port and the same address as the source.
    LoopBack,
}

/// What the members of a set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// `hash:ip`
    Ip,
    /// `hash:ip,port`
    IpPort,
    /// `hash:ip,port` with a mark for each member: the extension `skbinfo`.
    IpPortMark,
    /// `hash:ip,port,ip`
    IpPortIp,
    /// `hash:ip,port,net`
    IpPortNet,
}

impl SetKind {
    /// All of them, in the order of their names here.
    pub const ALL: [Self; 13] = [
        Self::Servers,
        Self::Marks,
        Self::Addresses,
        Self::ClusterIp,
        Self::External,
        Self::Direct,
        Self::Local,
        Self::NoLocal,
        Self::Reject,
        Self::Drop,
        Self::Restricted,
        Self::Allowed,
        Self::LoopBack,
    ];

    /// What its members are.
    pub fn members(self) -> MemberKind {
        match self {
            Self::Marks | Self::Addresses => MemberKind::Ip,
            Self::Local => MemberKind::IpPortMark,
            Self::Servers
            | Self::ClusterIp
            | Self::External
            | Self::Direct
            | Self::NoLocal
            | Self::Reject
            | Self::Drop
            | Self::Restricted => MemberKind::IpPort,
            Self::Allowed => MemberKind::IpPortNet,
            Self::LoopBack => MemberKind::IpPortIp,
        }
    }

    /// The set's name in the kernel; close to kube-proxy's where it means the same.
    pub fn name(self, family: IpFamily) -> &'static str {
        let [v4, v6] = match self {
            Self::Servers => ["TELAIO-SERVERS", "TELAIO-6-SERVERS"],
            Self::Marks => ["TELAIO-MARKS", "TELAIO-6-MARKS"],
            Self::Addresses => ["TELAIO-IPVS-IPS", "TELAIO-6-IPVS-IPS"],
            Self::ClusterIp => ["TELAIO-CLUSTER-IP", "TELAIO-6-CLUSTER-IP"],
            Self::External => ["TELAIO-EXTERNAL", "TELAIO-6-EXTERNAL"],
            Self::Direct => ["TELAIO-DIRECT", "TELAIO-6-DIRECT"],
            Self::Local => ["TELAIO-LOCAL", "TELAIO-6-LOCAL"],
            Self::NoLocal => ["TELAIO-NO-LOCAL", "TELAIO-6-NO-LOCAL"],
            Self::Reject => ["TELAIO-REJECT", "TELAIO-6-REJECT"],
            Self::Drop => ["TELAIO-DROP", "TELAIO-6-DROP"],
            Self::Restricted => ["TELAIO-RESTRICTED", "TELAIO-6-RESTRICTED"],
            Self::Allowed => ["TELAIO-ALLOWED", "TELAIO-6-ALLOWED"],
            Self::LoopBack => ["TELAIO-LOOP-BACK", "TELAIO-6-LOOP-BACK"],
        };
        match family {
            IpFamily::V4 => v4,
            IpFamily::V6 => v6,
        }
    }
}

/// A set of ours in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName {
    /// Which.
    pub kind: SetKind,
    /// Of which family.
    pub family: IpFamily,
}

impl SetName {
    /// Every set of a family.
    pub fn all(family: IpFamily) -> impl Iterator<Item = Self> {
        SetKind::ALL.into_iter().map(move |kind| Self { kind, family })
    }

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        self.kind.name(self.family)
    }

    /// Reads a name; `None` if it is none of ours.
    pub fn parse(text: &str) -> Option<Self> {
        IpFamily::ALL.into_iter().flat_map(Self::all).find(|set| set.as_str() == text)
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_a_name_of_its_own_that_the_kernel_takes() {
        let all: Vec<SetName> = IpFamily::ALL.into_iter().flat_map(SetName::all).collect();
        for set in &all {
            assert!(set.as_str().len() < 32, "{set}");
            assert_eq!(SetName::parse(set.as_str()), Some(*set));
        }
        assert_eq!(SetName::parse("KUBE-CLUSTER-IP"), None);
    }
}
