//! What a packet will meet: the questions and answers of the tracer.
//!
//! Each backend answers by running the packet through its own compiled rules, not through the model,
//! so that a fault in the rules shows.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};
use telaio_model::Protocol;

/// The first packet of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Where it comes from.
    pub from: IpAddr,
    /// Where it wants to go.
    pub to: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// The interface that it comes in by. None where nobody said: a packet from one of the node's
    /// own addresses starts on the node, any other comes in by an interface without a name.
    pub interface: Option<String>,
}

/// The machine on which it is met, as far as rules ask about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The node's own addresses; loopback is always among them.
    pub addresses: BTreeSet<IpAddr>,
}

impl Surroundings {
    /// Whether an address is the node's own.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.addresses.contains(&ip)
    }

    /// Whether the packet starts on the node itself: then it takes the output hooks.
    pub fn starts_here(&self, packet: &Packet) -> bool {
        packet.interface.is_none() && self.is_local(packet.from)
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It goes to one of the endpoints.
    Dnat,
    /// It is refused.
    Reject,
    /// It is dropped.
    Drop,
    /// The rules leave it alone.
    None,
}

fn as_sorted_texts<S: Serializer>(
    endpoints: &BTreeSet<SocketAddr>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let texts: BTreeSet<String> = endpoints.iter().map(ToString::to_string).collect();
    serializer.collect_seq(texts)
}

/// The tracer's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// What becomes of it.
    pub verdict: Verdict,
    /// Where it can land; for programs, in the order of the texts.
    #[serde(serialize_with = "as_sorted_texts")]
    pub endpoints: BTreeSet<SocketAddr>,
    /// It gets the node's address as its source. With several endpoints: towards at least one.
    pub masquerade: bool,
    /// The chains, maps and rules that decided, in order.
    pub via: Vec<String>,
}
