//! What can go wrong.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use cidr::IpCidr;
use telaio_netlink::NetlinkError;
use telaio_netlink::netns::NetnsError;

/// What operations give.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Nothing is left half done by an operation that gives one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the caller's cannot be.
    #[error("{field}: {why}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// What was asked for is beyond this kernel.
    #[error("{field}: {why}")]
    Unsupported {
        /// What asks for it.
        field: &'static str,
        /// What is missing, and what to do.
        why: String,
    },
    /// An address is outside the networks that it should be of.
    #[error("address {address} is not within {subnets}")]
    OutsideRange {
        /// The address.
        address: IpAddr,
        /// Where it should be.
        subnets: String,
    },
    /// Two networks overlap.
    #[error("{wanted} overlaps {existing} of {owner}; choose another")]
    Overlap {
        /// The new one.
        wanted: IpCidr,
        /// The one that is there.
        existing: IpCidr,
        /// Whose that is.
        owner: String,
    },
    /// Somebody has the address.
    #[error("address {address} of network {network} is held by {owner}")]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Its network.
        network: String,
        /// Who has it.
        owner: String,
    },
    /// No address is left.
    #[error("network {network}: all {total} addresses of {ranges} are taken: {holders}")]
    Exhausted {
        /// The network.
        network: String,
        /// The ranges that were searched.
        ranges: String,
        /// How many addresses they have.
        total: u128,
        /// Who holds them: the first few, and how many more.
        holders: String,
    },
    /// Somebody has the port.
    #[error("port {port} is taken by {owner}")]
    PortTaken {
        /// The port, with protocol and address.
        port: String,
        /// Who has it: an instance, or a process that listens.
        owner: String,
    },
    /// The instance has such an interface already.
    #[error("interface {interface} exists in {netns}")]
    InterfaceExists {
        /// Its name.
        interface: String,
        /// The namespace.
        netns: String,
    },
    /// Another call is at work on the same.
    #[error("another call is at work on {what}; try again when it has ended")]
    Busy {
        /// On what.
        what: String,
    },
    /// There is no such thing on record.
    #[error("there is no {kind} {name}; {hint}")]
    Unknown {
        /// What kind of thing.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What to do.
        hint: &'static str,
    },
    /// A link of this name is somebody else's.
    #[error("link {name} exists and is {what}, not ours; choose another name or remove it")]
    ForeignLink {
        /// Its name.
        name: String,
        /// What it is.
        what: String,
    },
    /// The machine has no default route to learn an address from.
    #[error("this machine has no default route to learn its {family} address from; name one")]
    NoUplink {
        /// Of which family.
        family: &'static str,
    },
    /// The kernel refused.
    #[error("{what}: {source}")]
    Kernel {
        /// What was tried, with names.
        what: String,
        /// Its answer.
        source: NetlinkError,
    },
    /// A namespace could not be made, opened or entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A record or a setting could not be read or written.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A record makes no sense.
    #[error("{}: {why}; remove it if nothing of it is in use", path.display())]
    Record {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The node keeps network policies, and nobody has judged the instance.
    #[error(
        "pod {pod} is refused: its namespace has network policies, and no agent has judged address {address} within {seconds} s; \
         see that `telaio run --planes pods` runs here and knows the pod, or end its policies with `telaio cleanup`"
    )]
    Unjudged {
        /// The pod.
        pod: String,
        /// Its address.
        address: IpAddr,
        /// How long it was waited.
        seconds: u64,
    },
    /// A program that was needed failed.
    #[error("{program} failed: {why}")]
    Program {
        /// Which.
        program: String,
        /// What it says.
        why: String,
    },
    /// The kernel has no nftables for IP, and there is no other way.
    #[error(
        "this kernel has no nftables for IP (CONFIG_NF_TABLES_IPV4, CONFIG_NF_TABLES_IPV6): {what}"
    )]
    NeedsNftables {
        /// What cannot be done, or what would do instead.
        what: String,
    },
    /// Several things failed; the rest was done.
    #[error("{}", list(.0))]
    Several(Vec<Error>),
}

fn list(errors: &[Error]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl Error {
    /// For `map_err`: the kernel refused `what`.
    pub(crate) fn kernel(what: impl Into<String>) -> impl FnOnce(NetlinkError) -> Self {
        let what = what.into();
        move |source| Self::Kernel { what, source }
    }

    /// For `map_err`: `what` failed with a file.
    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// All of them as one, or nothing.
    pub(crate) fn all(mut errors: Vec<Self>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// The system's number behind it, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Kernel { source, .. } => source.raw_os_error(),
            Self::Io { source, .. } | Self::Netns(NetnsError::System { source, .. }) => {
                source.raw_os_error()
            }
            _ => None,
        }
    }
}
