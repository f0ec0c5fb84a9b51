//! Many requests over one socket, each with its own fate.
//!
//! A system call for each of ten thousand requests would be most of their cost. Here many messages go to
//! the kernel in one piece, and only the last of a piece is acknowledged: that one is carried out last, and
//! whatever is refused before it is answered anyhow, with the number of its message.
//!
//! What always holds:
//! - A request that is refused stops no other; it is reported by its place among all of them.
//! - A piece is bounded, in bytes and so that all answers to it have room in the socket's buffer, even if
//!   every single request is refused.
//! - If the socket itself fails there is no telling how far the requests came: the caller reads back.

use crate::error::NetlinkError;
use crate::socket::{NLM_F_ACK, NLM_F_REQUEST, Socket};
use crate::wire::Writer;

/// A piece is sent when it has this many bytes. Well below what any socket may send at once.
const PIECE_BYTES: usize = 64 << 10;
/// What an answer takes of a socket's buffer, with the kernel's book-keeping; more than it ever was.
const ANSWER_BYTES: usize = 2 << 10;
/// The most requests in one piece: beyond, there is nothing to gain.
const PIECE_REQUESTS_MAX: usize = 512;
/// The room for answers that sockets ask for that send many requests.
pub(crate) const RECEIVE_BUFFER_BYTES: i32 = 1 << 20;

/// A request that was refused.
#[derive(Debug, thiserror::Error)]
#[error("request {index}: {error}")]
pub struct Failure {
    /// Its place among the requests, from 0.
    pub index: usize,
    /// Why.
    #[source]
    pub error: NetlinkError,
}

impl Socket {
    /// Has a request carried out for each of `items`; those that were refused, in order.
    ///
    /// `write` writes one message, with the flags and the sequence number that it is given and whatever
    /// other flags it needs.
    pub fn carry_out<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        doing: &'static str,
        mut write: impl FnMut(&mut Writer, u16, u32, T),
    ) -> Result<Vec<Failure>, NetlinkError> {
        let requests_max = self.requests_max()?;
        let mut items = items.into_iter().peekable();
        let mut failures = Vec::new();
        let mut sent = 0;
        while items.peek().is_some() {
            let mut piece = Writer::new();
            let mut count = 0;
            let mut first = 0;
            let mut last = 0;
            while let Some(item) = items.next() {
                count += 1;
                last = self.next_sequence();
                if count == 1 {
                    first = last;
                }
                let is_last =
                    count == requests_max || piece.len() >= PIECE_BYTES || items.peek().is_none();
                let flags = if is_last { NLM_F_REQUEST | NLM_F_ACK } else { NLM_F_REQUEST };
                write(&mut piece, flags, last, item);
                if is_last {
                    break;
                }
            }
            self.send(piece.finish()?, doing)?;
            self.refusals(first, last, doing, |sequence, error| {
                // Numbers begin anew at 1, not at 0.
                let skipped = u32::from(sequence < first);
                let place = sequence.wrapping_sub(first).wrapping_sub(skipped) as usize;
                failures.push(Failure { index: sent + place, error });
            })?;
            sent += count;
        }
        Ok(failures)
    }

    /// How many requests can be under way so that their answers have room.
    fn requests_max(&self) -> Result<usize, NetlinkError> {
        Ok((self.receive_buffer()? / ANSWER_BYTES).clamp(1, PIECE_REQUESTS_MAX))
    }
}

const _: () = assert!(RECEIVE_BUFFER_BYTES as usize >= PIECE_REQUESTS_MAX * ANSWER_BYTES);

#[cfg(test)]
mod tests;
