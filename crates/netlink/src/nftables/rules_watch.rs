//! Noticing in which chains others change rules, of tables that somebody else's program keeps.
//!
//! The `iptables` programs on nf_tables change rules through sockets of their own, so what is ours cannot
//! be told by the socket, as a [`Watcher`](super::Watcher) does. Instead transactions are counted: whoever
//! knows how many there have been knows whether all of them were told of here.

use std::collections::BTreeSet;

use super::numbers::{self, Family, GROUP_NFTABLES, HEADER_LEN, SUBSYSTEM, chain, rule};
use crate::error::NetlinkError;
use crate::socket::{Protocol, Socket};
use crate::wire::{Message, Messages};

/// What the kernel may hold for us until we read it.
const RECEIVE_BUFFER_BYTES: i32 = 1 << 20;

/// A chain of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainOfTable {
    /// The table's family.
    pub family: Family,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleNotices {
    /// By how many transactions.
    pub transactions: u32,
    /// Chains of which rules came or went.
    pub rules: BTreeSet<ChainOfTable>,
    /// Chains that themselves came, went or changed. Of a chain that got another name only the new one
    /// is told.
    pub chains: BTreeSet<ChainOfTable>,
    /// Tables that themselves came, went or changed.
    pub tables: BTreeSet<(Family, String)>,
    /// There was more than could be kept, or notices were lost.
    pub is_partial: bool,
}

impl RuleNotices {
    /// How many chains are kept apart.
    pub const CHAINS_MAX: usize = 1 << 12;

    fn note(&mut self, message: &Message<'_>) {
        let attributes = message.attributes(HEADER_LEN);
        if message.message_type == numbers::NEW_GENERATION {
            self.transactions += 1;
            return;
        }
        let family = message.body.first().copied().and_then(Family::from_number);
        // A table's name is the first attribute of every kind of object.
        let (Some(family), Some(table)) = (family, attributes.str(1)) else { return };
        let named = |name: Option<&str>| {
            let chain = name.unwrap_or_default().to_owned();
            ChainOfTable { family, table: table.to_owned(), chain }
        };
        match message.message_type {
            numbers::NEW_RULE | numbers::DELETE_RULE => {
                self.rules.insert(named(attributes.str(rule::CHAIN)));
            }
            numbers::NEW_CHAIN | numbers::DELETE_CHAIN => {
                self.chains.insert(named(attributes.str(chain::NAME)));
            }
            numbers::NEW_TABLE | numbers::DELETE_TABLE => {
                self.tables.insert((family, table.to_owned()));
            }
            _ => {}
        }
        self.is_partial |= self.rules.len() + self.chains.len() > Self::CHAINS_MAX;
    }
}

/// Collects what is changed from when it is opened.
#[derive(Debug)]
pub struct RulesWatcher {
    socket: Socket,
}

impl RulesWatcher {
    /// Begins to collect, of all tables and whoever changes them.
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.set_receive_buffer(RECEIVE_BUFFER_BYTES)?;
        socket.join(GROUP_NFTABLES)?;
        Ok(Self { socket })
    }

    /// What has been changed since this was asked before. It does not wait.
    pub fn take(&mut self) -> Result<RuleNotices, NetlinkError> {
        let mut notices = RuleNotices::default();
        while !notices.is_partial {
            let bytes = match self.socket.receive() {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(NetlinkError::Overrun) => {
                    notices.is_partial = true;
                    break;
                }
                Err(error) => return Err(error),
            };
            for message in Messages(bytes).filter(|it| it.message_type >> 8 == SUBSYSTEM) {
                notices.note(&message);
            }
        }
        Ok(notices)
    }
}
