//! What only the backend `ipvs` has, with real packets on a guest kernel: the kernel's schedulers,
//! endpoints that drain, packets that are passed on as they are, ports that are used again, SCTP, virtual servers of others, and the way to
//! another backend.

/// Makes of each function one test on a guest kernel.
macro_rules! in_guest {
    ($($name:ident),* $(,)?) => {
        mod in_guest {
            $(#[test] fn $name() -> Result<(), telaio_testkit::guest::GuestError> {
                let path = concat!(module_path!(), "::", stringify!($name));
                // A test's name is without that of the program.
                let (_, name) = path.split_once("::").unwrap_or_default();
                telaio_testkit::guest::inside(name, super::$name)
            })*
        }
    };
}

mod drain;
mod flags;
mod forwarding;
mod leave;
mod nftables;
mod others;
mod reuse;
mod schedulers;
mod sctp;

use std::net::SocketAddr;

use telaio_testkit::netns::{Family, Place, Transport};

use crate::manifest::{SERVICE_PORT, cluster_ip};
use crate::node::Node;

/// The address of a service.
fn at(family: Family, number: u8) -> SocketAddr {
    SocketAddr::new(cluster_ip(family, number), SERVICE_PORT)
}

/// Who answers.
fn ask(node: &Node<'_>, from: Place, to: SocketAddr) -> String {
    let outcome = node.ask(from, to, Transport::Tcp);
    outcome.by().unwrap_or_else(|| panic!("{to}: {outcome}")).to_owned()
}

/// The virtual servers, each with its endpoints, as `ipvsadm` has them.
fn servers(node: &Node<'_>) -> String {
    node.output("ipvsadm", &["-S", "-n"])
}

/// The weight of an endpoint; `None` if it is not there.
fn weight(
    node: &Node<'_>,
    protocol: &str,
    server: SocketAddr,
    endpoint: SocketAddr,
) -> Option<u32> {
    let start = format!("-a -{protocol} {server} -r {endpoint} ");
    let all = servers(node);
    let line = all.lines().find(|line| line.starts_with(&start))?;
    line.rsplit(' ').next()?.parse().ok()
}
