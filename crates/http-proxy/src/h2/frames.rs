//! Where in a client's frames we are, and what of them breaks RFC 9113. See [`super::guard`].

use std::collections::VecDeque;

use super::PREFACE;
use super::hpack::{self, Finding, PathFinding};

pub(super) const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
pub(super) const COMPRESSION_ERROR: u32 = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITISED: u8 = 0x20;
const ACK: u8 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// The header of a frame.
pub(super) const HEAD_BYTES: usize = 9;
/// The largest frame that h2 takes; we do not offer to take larger ones.
const FRAME_BYTES_MAX: u32 = 16_384;
/// How many streams without an end are remembered; h2 allows fewer at once.
const OPEN_MAX: usize = 256;
/// How many that were ended are.
const ENDED_MAX: usize = 128;
/// How much of header blocks is kept at most; whoever sends more is sent away by h2 for that.
const BLOCKS_BYTES_MAX: usize = 256 << 10;
/// How much room for them stays when they are read.
const BLOCKS_BYTES_KEPT: usize = 4 << 10;

/// `host` without a value, by its place (38) in the static table: a regular field that is never passed on
/// in trailers. Pseudo-headers may not follow it.
const MARK: u8 = 0xa6;

/// What to do with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// They may all pass.
    Through,
    /// Those before may pass; here begins a frame that cannot be judged yet, or has to be rewritten.
    Hold(usize),
    /// The client broke the rule that has this code.
    Violation(u32),
}

#[derive(Debug, Default)]
pub(super) struct Frames {
    preface_seen: usize,
    payload_left: u32,
    now: Now,
    entry: [u8; 6],
    entry_seen: usize,
    last_stream: u32,
    open: Vec<u32>,
    /// Streams that the client has ended lately.
    ended: VecDeque<u32>,
    /// Between a head's first frame and its last only the next of them may come; h2 sees to that.
    in_head: bool,
    /// Whether the head that is being sent is of trailers that have not been marked yet.
    to_mark: bool,
    /// Whether the client's table has a path with a fragment: what it names by the table may be that.
    remembers_fragment: bool,
    /// Whether the head that is being sent is a request's in several frames, whose path is to be looked at.
    path_to_see: bool,
    /// Whether it has a fragment, which can no longer be told to h2.
    fragment_passed: bool,
    blocks: Blocks,
    leaving: bool,
}

/// The frame whose payload is being read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Now {
    #[default]
    Other,
    Settings,
    /// A part of a header block, with the frame's flags.
    Block(u8),
}

/// Header blocks that h2 may not have read yet.
#[derive(Debug, Default)]
struct Blocks {
    bytes: Vec<u8>,
    /// Where each whole one ends.
    ends: Vec<usize>,
    /// Where the payload of the frame at hand begins.
    frame: usize,
    /// Whether nothing came after the last of them, and it stood where one may stand.
    last_is_in_place: bool,
    overflown: bool,
}

impl Frames {
    pub(super) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Whether the client has said GOAWAY.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Looks at bytes that came.
    pub(super) fn look(&mut self, all: &[u8]) -> Look {
        let preface = all.len().min(PREFACE.len() - self.preface_seen);
        self.preface_seen += preface;
        let mut bytes = &all[preface..];
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let count = bytes.len().min(self.payload_left as usize);
                let (payload, rest) = bytes.split_at(count);
                self.payload_left -= count as u32;
                bytes = rest;
                if self.look_at_payload(payload) {
                    return Look::Violation(FLOW_CONTROL_ERROR);
                }
                if self.fragment_passed {
                    return Look::Violation(PROTOCOL_ERROR);
                }
                continue;
            }
            let at = all.len() - bytes.len();
            let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
                return Look::Hold(at);
            };
            let head = Head::parse(head);
            if head.kind == GOAWAY || self.is_to_mark(&head) || self.is_to_refuse(&head, rest) {
                return Look::Hold(at);
            }
            bytes = rest;
            if let Some(code) = self.look_at_head(&head) {
                return Look::Violation(code);
            }
            if self.fragment_passed {
                return Look::Violation(PROTOCOL_ERROR);
            }
        }
        Look::Through
    }

    /// Whether a frame begins or goes on with the fields of trailers, and they are to be marked in it.
    fn is_to_mark(&self, head: &Head) -> bool {
        let of_trailers = match head.kind {
            HEADERS => !self.in_head && self.open.contains(&head.id),
            CONTINUATION => self.in_head && self.to_mark,
            _ => false,
        };
        // One that is full has no room for a mark; its pseudo-headers are dropped by h2.
        of_trailers && head.length < FRAME_BYTES_MAX
    }

    /// Whether a frame begins a request.
    fn begins_request(&self, head: &Head) -> bool {
        head.kind == HEADERS && !self.in_head && head.id > self.last_stream
    }

    /// Whether a frame begins a request that h2 shall refuse for its path, or may: not all of it is here.
    fn is_to_refuse(&self, head: &Head, payload: &[u8]) -> bool {
        // One that is full has no room for a mark: as those in several frames it is seen when it has passed.
        if !self.begins_request(head) || head.length >= FRAME_BYTES_MAX {
            return false;
        }
        let Some(payload) = payload.get(..head.length as usize) else { return true };
        fragment(payload, head.flags).is_some_and(|range| self.has_fragment(&payload[range]))
    }

    /// Whether a request's path has a fragment, or is named by a table that has one.
    fn has_fragment(&self, block: &[u8]) -> bool {
        match hpack::find_fragment(block) {
            PathFinding::Clean => false,
            PathFinding::Fragment { .. } => true,
            PathFinding::Unknown => self.remembers_fragment,
        }
    }

    /// Rewrites the frame that is held, once it is there; how long it was.
    pub(super) fn rewrite(&mut self, held: &[u8], out: &mut Vec<u8>) -> usize {
        let Some((head, rest)) = held.split_first_chunk::<HEAD_BYTES>() else { return 0 };
        let head = Head::parse(head);
        let is_goaway = head.kind == GOAWAY;
        let sound = (8..=FRAME_BYTES_MAX).contains(&head.length) && head.id == 0 && !self.in_head;
        if is_goaway && !sound {
            // Wrong in itself or where it stands: h2 refuses it.
            out.extend_from_slice(&held[..HEAD_BYTES]);
            self.look_at_head(&head);
            return HEAD_BYTES;
        }
        let whole = HEAD_BYTES + head.length as usize;
        let Some(payload) = rest.get(..head.length as usize) else { return 0 };
        if is_goaway {
            self.leaving = true;
            return whole;
        }
        let start = out.len();
        out.extend_from_slice(&held[..whole]);
        let begins_request = self.begins_request(&head);
        self.look_at_head(&head);
        if begins_request {
            self.path_to_see = false;
        }
        let fragment = fragment(payload, if head.kind == HEADERS { head.flags } else { 0 });
        let updates =
            fragment.clone().and_then(|range| hpack::size_updates_length(&payload[range]));
        self.to_mark = false;
        // Padding that is wrong and a number that is cut are left to h2.
        if let (Some(range), Some(updates)) = (fragment, updates) {
            if begins_request {
                let found = hpack::find_fragment(&payload[range.clone()]);
                self.remembers_fragment |= found == PathFinding::Fragment { remembered: true };
            }
            // Sizes of tables come before all fields, and more of them may come with the next frame.
            let at = range.start + updates;
            if at == range.end && head.flags & END_HEADERS == 0 && !begins_request {
                self.to_mark = true;
            } else {
                out.insert(start + HEAD_BYTES + at, MARK);
                let [_, a, b, c] = (head.length + 1).to_be_bytes();
                out[start..start + 3].copy_from_slice(&[a, b, c]);
            }
        }
        self.payload_left = 0;
        self.look_at_payload(payload);
        whole
    }

    fn look_at_head(&mut self, head: &Head) -> Option<u32> {
        let Head { length, kind, flags, id } = *head;
        self.payload_left = length;
        self.now = match kind {
            SETTINGS => Now::Settings,
            HEADERS => Now::Block(flags),
            CONTINUATION => Now::Block(flags & END_HEADERS),
            _ => Now::Other,
        };
        self.entry_seen = 0;
        self.blocks.last_is_in_place &= self.in_head && kind == CONTINUATION;
        let wrong_size = match kind {
            RST_STREAM | WINDOW_UPDATE => length != 4,
            PRIORITY => length != 5,
            PING => length != 8,
            SETTINGS if flags & ACK != 0 => length != 0,
            SETTINGS => !length.is_multiple_of(6),
            _ => false,
        };
        if wrong_size {
            return Some(FRAME_SIZE_ERROR);
        }
        if kind == PUSH_PROMISE {
            return Some(PROTOCOL_ERROR);
        }
        self.blocks.frame = self.blocks.bytes.len();
        let one_frame = flags & END_HEADERS != 0 && length < FRAME_BYTES_MAX;
        if self.begins_request(head) {
            self.path_to_see = !one_frame;
        } else if !self.in_head {
            self.path_to_see = false;
        }
        let code = self.look_at_order(kind, flags, id);
        if length == 0 {
            self.end_block_frame();
        }
        code
    }

    fn look_at_order(&mut self, kind: u8, flags: u8, id: u32) -> Option<u32> {
        if self.in_head {
            self.in_head = kind != CONTINUATION || flags & END_HEADERS == 0;
            return None;
        }
        match kind {
            HEADERS | DATA => {
                self.in_head = kind == HEADERS && flags & END_HEADERS == 0;
                self.look_at_stream(kind, flags, id)
            }
            RST_STREAM => {
                self.end(id);
                None
            }
            _ => None,
        }
    }

    fn end(&mut self, id: u32) {
        self.open.retain(|open| *open != id);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(id);
    }

    /// A frame on a stream that the client has ended is of no stream.
    fn look_at_stream(&mut self, kind: u8, flags: u8, id: u32) -> Option<u32> {
        if id > self.last_stream && kind == HEADERS {
            self.last_stream = id;
            self.blocks.last_is_in_place = id % 2 == 1;
            if self.open.len() == OPEN_MAX {
                // Ended by us, most likely, a good while ago.
                self.open.remove(0);
            }
            self.open.push(id);
        } else if self.open.contains(&id) {
            self.blocks.last_is_in_place = kind == HEADERS && flags & END_STREAM != 0;
        } else if self.ended.contains(&id) {
            return Some(STREAM_CLOSED);
        }
        if flags & END_STREAM != 0 && self.open.contains(&id) {
            self.end(id);
        }
        // What is of no stream at all is h2's to refuse.
        None
    }

    /// Whether a window is asked for that is larger than there can be.
    fn look_at_payload(&mut self, payload: &[u8]) -> bool {
        match self.now {
            Now::Other => false,
            Now::Settings => self.look_at_settings(payload),
            Now::Block(_) => {
                self.blocks.add(payload);
                if self.payload_left == 0 {
                    self.end_block_frame();
                }
                false
            }
        }
    }

    /// The payload of a frame is whole: if it is of a header block, what is not of the block goes.
    fn end_block_frame(&mut self) {
        let Now::Block(flags) = self.now else { return };
        let blocks = &mut self.blocks;
        if blocks.overflown {
            return;
        }
        match fragment(&blocks.bytes[blocks.frame..], flags) {
            Some(range) => {
                blocks.bytes.truncate(blocks.frame + range.end);
                blocks.bytes.drain(blocks.frame..blocks.frame + range.start);
            }
            // Wrong in another way.
            None => blocks.overflown = true,
        }
        if flags & END_HEADERS == 0 {
            return;
        }
        let start = blocks.ends.last().copied().unwrap_or(0);
        blocks.ends.push(blocks.bytes.len());
        if std::mem::take(&mut self.path_to_see) && !self.blocks.overflown {
            self.fragment_passed = self.has_fragment(&self.blocks.bytes[start..]);
        }
    }

    fn look_at_settings(&mut self, payload: &[u8]) -> bool {
        for byte in payload {
            self.entry[self.entry_seen] = *byte;
            self.entry_seen += 1;
            if self.entry_seen == self.entry.len() {
                self.entry_seen = 0;
                let [a, b, value @ ..] = self.entry;
                let window = u16::from_be_bytes([a, b]) == INITIAL_WINDOW_SIZE;
                if window && u32::from_be_bytes(value) > 0x7fff_ffff {
                    return true;
                }
            }
        }
        false
    }

    /// What came so far was read: whole header blocks are of no interest any more.
    pub(super) fn forget_blocks(&mut self) {
        let in_block = self.in_head || (self.payload_left > 0 && matches!(self.now, Now::Block(_)));
        let blocks = &mut self.blocks;
        if blocks.bytes.is_empty() && blocks.ends.is_empty() && !blocks.overflown {
            return;
        }
        blocks.last_is_in_place &= in_block;
        if in_block && blocks.ends.is_empty() {
            return;
        }
        let read =
            if in_block { blocks.ends.last().copied().unwrap_or(0) } else { blocks.bytes.len() };
        blocks.bytes.drain(..read);
        blocks.bytes.shrink_to(BLOCKS_BYTES_KEPT);
        blocks.frame = blocks.frame.saturating_sub(read);
        blocks.ends.clear();
        blocks.overflown &= in_block;
    }

    /// Whether what h2 has refused just now is a header block that cannot be decoded.
    pub(super) fn blames_coding(&self) -> bool {
        let blocks = &self.blocks;
        if blocks.overflown {
            return false;
        }
        let (mut start, mut names_dynamic) = (0, false);
        for end in &blocks.ends {
            match hpack::examine(&blocks.bytes[start..*end]) {
                Finding::Coding => return true,
                Finding::Field => return false,
                Finding::Sound { dynamic } => names_dynamic = dynamic,
            }
            start = *end;
        }
        // Only the dynamic table can still be to blame, if nothing else can.
        !blocks.ends.is_empty() && names_dynamic && blocks.last_is_in_place && !self.in_head
    }
}

impl Blocks {
    fn add(&mut self, payload: &[u8]) {
        if self.bytes.len() + payload.len() > BLOCKS_BYTES_MAX {
            self.overflown = true;
        }
        if !self.overflown {
            self.bytes.extend_from_slice(payload);
        }
    }
}

/// The header of a frame, read.
#[derive(Debug, Clone, Copy)]
struct Head {
    length: u32,
    kind: u8,
    flags: u8,
    id: u32,
}

impl Head {
    fn parse(bytes: &[u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, id @ ..] = *bytes;
        let length = u32::from_be_bytes([0, a, b, c]);
        Self { length, kind, flags, id: u32::from_be_bytes(id) & 0x7fff_ffff }
    }
}

/// Where in a frame's payload its part of the header block is; `None` if it is not made right.
fn fragment(payload: &[u8], flags: u8) -> Option<std::ops::Range<usize>> {
    let (padding, mut start) = match flags & PADDED {
        0 => (0, 0),
        _ => (usize::from(*payload.first()?), 1),
    };
    if flags & PRIORITISED != 0 {
        start += 5;
    }
    let end = payload.len().checked_sub(padding)?;
    (start <= end).then_some(start..end)
}
