//! Whether this kernel can do what we need, tried out in a table of its own that nobody sees.

use std::io;

use ipnet::IpNet;
use telaio_model::IpFamily;
use telaio_netlink::NetlinkError;
use telaio_netlink::nftables::{Batch, Nftables};

use super::compile;
use super::layout::{Map, nft_family};
use crate::config::{DetectLocal, NodeFacts, ProxyConfig};

/// The name of the table; it is deleted in the transaction that makes it.
const TABLE: &str = "telaio-probe";

/// Why nftables cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// We may not.
    #[error(
        "changing nftables needs root, or CAP_NET_ADMIN in this network namespace; run telaio as \
         root or give it that capability"
    )]
    Permission,
    /// The kernel cannot.
    #[error(
        "this kernel cannot do what the nftables backend needs for {family} ({error}); it takes \
         Linux 5.13 or later with nf_tables, nft_nat, nft_masq, nft_fib, nft_numgen, nft_hash and \
         nft_reject; try --backend iptables"
    )]
    Missing {
        /// For which family.
        family: IpFamily,
        /// What it said.
        error: NetlinkError,
    },
}

/// Whether the nftables backend can run in this network namespace.
pub fn probe(families: &[IpFamily]) -> Result<(), ProbeError> {
    let family = families.first().copied().unwrap_or(IpFamily::V4);
    let mut nft = Nftables::open().map_err(|error| refusal(family, error))?;
    check(&mut nft, families)
}

/// Why this kernel takes no tables of this family at all, whoever makes them; `None` if it does, or if
/// we may not ask. It leaves no trace: not even a transaction is counted.
pub fn tables_refused(family: IpFamily) -> Option<NetlinkError> {
    let mut batch = Batch::new(nft_family(family), TABLE);
    batch.add_table();
    // There is no such set, so the kernel takes the table back before it was there.
    batch.delete_set(TABLE);
    let error = Nftables::open().and_then(|mut nft| nft.commit(&mut [&mut batch])).err()?;
    let number = error.raw_os_error().map(io::Error::from_raw_os_error);
    let is_taken = number.is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
    (!is_taken && !error.is_permission()).then_some(error)
}

fn refusal(family: IpFamily, error: NetlinkError) -> ProbeError {
    if error.is_permission() {
        ProbeError::Permission
    } else {
        ProbeError::Missing { family, error }
    }
}

/// Makes every kind of map, chain and rule, and deletes them in the same transaction.
pub(super) fn check(nft: &mut Nftables, families: &[IpFamily]) -> Result<(), ProbeError> {
    for family in families {
        let mut batch = Batch::new(nft_family(*family), TABLE);
        batch.add_table();
        for map in Map::ALL {
            map.with_spec(*family, map.size_for(1), |spec| batch.add_set(spec));
        }
        let chains = compile::every_kind_of_chain(*family, &config(*family), &NodeFacts::default());
        for chain in &chains {
            batch.add_chain(&chain.chain);
        }
        for chain in &chains {
            for rule in chain.rules.iter().flatten() {
                batch.add_rule(&chain.chain.name, &rule.expressions, None);
            }
        }
        batch.delete_table();
        nft.commit(&mut [&mut batch]).map_err(|error| refusal(*family, error))?;
    }
    Ok(())
}

/// A configuration in which every kind of rule occurs.
fn config(family: IpFamily) -> ProxyConfig {
    let everywhere = match family {
        IpFamily::V4 => [10, 0, 0, 0].into(),
        IpFamily::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, 0].into(),
    };
    let net = IpNet::new_assert(everywhere, 8);
    ProxyConfig {
        detect_local: DetectLocal::ClusterCidr(vec![net]),
        service_cidrs: vec![net],
        families: vec![family],
        ..ProxyConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::companions::place::Place;

    #[test]
    fn asking_whether_tables_are_taken_leaves_no_trace() {
        let place = Place::new("tables-refused");
        place.run(|| {
            let mut nft = Nftables::open().unwrap();
            let before = nft.generation().unwrap();
            for family in IpFamily::ALL {
                assert!(tables_refused(family).is_none());
            }
            assert_eq!(nft.generation().unwrap(), before);
            assert_eq!(nft.tables().unwrap(), []);
        });
    }
}
