//! What is in the kernel, read back: no figure is worth anything if the rules are not there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, bail};
use telaio_netlink::nftables::{Batch, Family, Nftables};

use crate::cluster::Cluster;

/// The name of our table.
const TABLE: &str = telaio_service_proxy::nftables::layout::TABLE;
/// A table that is not ours.
const OTHERS_TABLE: &str = "somebody-elses";

/// The nftables of the calling thread's namespace.
pub(crate) struct KernelView(Nftables);

impl KernelView {
    pub(crate) fn open() -> Result<Self> {
        Ok(Self(Nftables::open()?))
    }

    /// Whether services are there: with the first way come, in the same transaction, all of them.
    pub(crate) fn has_services(&mut self) -> bool {
        // Without a table there is no map to list.
        self.count("ways").is_ok_and(|count| count > 0)
    }

    /// How many elements a map has.
    pub(crate) fn count(&mut self, map: &str) -> Result<usize> {
        let mut count = 0;
        self.0.elements(Family::Ip, TABLE, map, |element| match element {
            None => count = 0,
            Some(_) => count += 1,
        })?;
        Ok(count)
    }

    /// Where each address leads.
    fn endpoints(&mut self) -> Result<BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>>> {
        let first = |bytes: &[u8]| bytes.first_chunk::<4>().map(|it| Ipv4Addr::from(*it));
        let mut found: BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>> = BTreeMap::new();
        self.0.elements(Family::Ip, TABLE, "endpoints", |element| match element {
            None => found.clear(),
            Some(element) => {
                if let (Some(service), Some(endpoint)) =
                    (first(element.key), element.value.and_then(first))
                {
                    found.entry(service).or_default().insert(endpoint);
                }
            }
        })?;
        Ok(found)
    }

    /// Fails unless the kernel has this cluster, whole and nothing else.
    pub(crate) fn check(&mut self, cluster: &Cluster) -> Result<()> {
        let services = self.count("services")?;
        if services != cluster.len() {
            bail!("the kernel has {services} services, not {}", cluster.len());
        }
        let (found, expected) = (self.endpoints()?, cluster.expected());
        if found != expected {
            let wrong = expected.iter().find(|(key, value)| found.get(key) != Some(value));
            bail!("the kernel's endpoints are not the cluster's, for example of {wrong:?}");
        }
        Ok(())
    }

    /// Somebody else changes a table of theirs.
    pub(crate) fn change_others_table(&mut self) -> Result<()> {
        for make in [true, false] {
            let mut batch = Batch::new(Family::Ip, OTHERS_TABLE);
            if make {
                batch.add_table();
            } else {
                batch.delete_table();
            }
            self.0.commit(&mut [&mut batch])?;
        }
        Ok(())
    }

    /// Somebody else removes a way of ours.
    pub(crate) fn remove_a_way(&mut self) -> Result<()> {
        let mut key = None;
        self.0.elements(Family::Ip, TABLE, "ways", |element| {
            key = element.map(|element| element.key.to_vec());
        })?;
        let key = key.context("there is no way")?;
        let mut batch = Batch::new(Family::Ip, TABLE);
        batch.delete_element("ways", &key);
        Ok(self.0.commit(&mut [&mut batch])?)
    }
}
