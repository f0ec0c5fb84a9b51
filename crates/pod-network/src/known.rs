//! What is on record about nodes, for whoever keeps them up to date.

use crate::error::Result;
use crate::overlay::{LocalNode, NodeRecord, Peer};
use crate::state::Host;

impl Host {
    /// The nodes that this machine is: what [`setup_node`](crate::node::setup_node) was told.
    pub fn local_nodes(&self) -> Result<Vec<LocalNode>> {
        let record: NodeRecord = self.state()?.node_record()?;
        Ok(record.nodes.into_values().collect())
    }

    /// The other nodes that it was told of.
    pub fn other_nodes(&self) -> Result<Vec<Peer>> {
        let record: NodeRecord = self.state()?.node_record()?;
        Ok(record.peers.into_values().collect())
    }
}
