//! The socket that transactions go through.

use super::batch::Batch;
use super::numbers::{self, HEADER_LEN, SUBSYSTEM, generation, header};
use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_REQUEST, Protocol, Socket};
use crate::wire::{HEADER_LEN as MESSAGE_HEADER_LEN, Writer, ne32};

/// A connection to the nftables of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Nftables {
    pub(super) socket: Socket,
    /// How large a transaction can be.
    bytes_max: usize,
    /// The bytes of a transaction, kept for the next one.
    bytes: Vec<u8>,
}

/// The length of the message that begins or ends a transaction.
const FRAME_BYTES: usize = MESSAGE_HEADER_LEN + HEADER_LEN;
/// Above this the buffer is given back after a transaction.
const KEPT_BYTES_MAX: usize = 1 << 20;

impl Nftables {
    /// Opens it. Needs the privilege to administer networks.
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        let bytes_max = socket.allow_large_messages()?;
        // Listing many elements needs room, so that the kernel can hand over large pieces.
        socket.set_receive_buffer(1 << 20)?;
        Ok(Self { socket, bytes_max, bytes: Vec::new() })
    }

    /// How large a transaction can be here.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The address of our socket, by which notices tell who made a change.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Carries out everything in these batches, or nothing.
    pub fn commit(&mut self, batches: &mut [&mut Batch]) -> Result<(), NetlinkError> {
        let first = self.socket.next_sequence();
        let mut sequence = first;
        self.bytes.clear();
        let bytes: usize = batches.iter().map(|batch| batch.len()).sum();
        self.bytes.reserve(bytes + 2 * FRAME_BYTES);
        frame(&mut self.bytes, numbers::BATCH_BEGIN, sequence)?;
        let mut last_message = None;
        for batch in batches.iter_mut() {
            let (writer, _) = batch.messages();
            let start = self.bytes.len();
            self.bytes.extend_from_slice(writer.finish()?);
            last_message = number(&mut self.bytes, start, &mut sequence).or(last_message);
        }
        let Some(last) = last_message else { return Ok(()) };
        let flags = u16::from_ne_bytes([self.bytes[last + 6], self.bytes[last + 7]]) | NLM_F_ACK;
        self.bytes[last + 6..last + 8].copy_from_slice(&flags.to_ne_bytes());
        let acknowledged = sequence;
        sequence = sequence.wrapping_add(1);
        frame(&mut self.bytes, numbers::BATCH_END, sequence)?;
        for _ in 0..sequence.wrapping_sub(first) {
            self.socket.next_sequence();
        }
        let doing = "changing nftables";
        self.socket.send(&self.bytes, doing)?;
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        self.socket.acknowledge(first, acknowledged, doing)
    }

    /// The number of the ruleset's generation; every transaction of anybody makes a new one.
    pub fn generation(&mut self) -> Result<u32, NetlinkError> {
        let doing = "asking for nftables' generation";
        let sequence = self.socket.next_sequence();
        let mut writer = Writer::new();
        writer.begin(numbers::GET_GENERATION, NLM_F_REQUEST | NLM_F_ACK, sequence, &header(0, 0));
        writer.end();
        self.socket.send(writer.finish()?, doing)?;
        let mut found = None;
        self.socket.list(sequence, doing, |message| {
            found = message.attributes(HEADER_LEN).be32(generation::ID).or(found);
            Ok(())
        })?;
        found.ok_or(NetlinkError::Malformed { doing, what: "no number" })
    }
}

/// The message that begins or ends a transaction.
fn frame(bytes: &mut Vec<u8>, message_type: u16, sequence: u32) -> Result<(), NetlinkError> {
    let mut writer = Writer::new();
    writer.begin(message_type, NLM_F_REQUEST, sequence, &header(0, SUBSYSTEM));
    writer.end();
    bytes.extend_from_slice(writer.finish()?);
    Ok(())
}

/// Numbers the messages from `start` on; tells where the last one begins.
fn number(bytes: &mut [u8], start: usize, sequence: &mut u32) -> Option<usize> {
    let mut at = start;
    let mut last = None;
    while let Some(length) = bytes.get(at..).and_then(ne32) {
        *sequence = sequence.wrapping_add(1);
        bytes.get_mut(at + 8..at + 12)?.copy_from_slice(&sequence.to_ne_bytes());
        last = Some(at);
        at += (length as usize).max(MESSAGE_HEADER_LEN);
    }
    last
}
