//! Bodies: where they end, and how they are written.

use thiserror::Error;

use super::parse::BodyLength;
use crate::head::headers::{is_token, is_value};
use crate::head::{Headers, Known};

/// How many digits a chunk's size may have, zeros before it too.
const SIZE_DIGITS_MAX: u8 = 16;

/// What extensions of one chunk may hold; nobody uses them, some abuse them.
const EXTENSION_BYTES_MAX: u16 = 256;

/// What all extensions and the trailers of a body may hold.
const TRAILER_BYTES_MAX: usize = 8 << 10;

/// A chunk that cannot be read in one way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("bad chunk: {0}")]
pub struct BadChunk(pub &'static str);

/// Where a decoder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    SizeFirst,
    Size,
    Extension,
    SizeEnd,
    Data,
    DataReturn,
    DataEnd,
    /// Amid the trailers.
    Trailer,
    Done,
}

/// Reads a chunked body piece by piece.
#[derive(Debug, Clone)]
pub struct Chunked {
    state: State,
    left: u64,
    digits: u8,
    extension: u16,
    extensions: usize,
    trailer: Vec<u8>,
}

impl Default for Chunked {
    fn default() -> Self {
        Self {
            state: State::SizeFirst,
            left: 0,
            digits: 0,
            extension: 0,
            extensions: 0,
            trailer: Vec::new(),
        }
    }
}

impl Chunked {
    /// Takes from the input: how much was used, and how much of that, at its end, is data.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, usize), BadChunk> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if self.state == State::Data {
                let data = (input.len() - at).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= data as u64;
                if self.left == 0 {
                    self.state = State::DataReturn;
                }
                return Ok((at + data, data));
            }
            if self.state == State::Trailer {
                at += self.take_trailer(&input[at..])?;
                continue;
            }
            self.take_byte(input[at])?;
            at += 1;
        }
        Ok((at, 0))
    }

    fn take_byte(&mut self, byte: u8) -> Result<(), BadChunk> {
        self.state = match (self.state, byte) {
            (State::SizeFirst | State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = u64::from(char::from(byte).to_digit(16).unwrap_or(0));
                if self.state == State::SizeFirst {
                    self.digits = 0;
                }
                self.digits += 1;
                // The top bits must be free, or the size would wrap around; and zeros before it are not endless.
                if self.left >> 56 != 0 || self.digits > SIZE_DIGITS_MAX {
                    return Err(BadChunk("its size is too large"));
                }
                self.left = self.left << 4 | digit;
                State::Size
            }
            (State::Size | State::Extension, b'\r') => State::SizeEnd,
            (State::Size, b';') => {
                self.extension = 0;
                State::Extension
            }
            (State::Extension, byte) if byte == b'\t' || (byte >= b' ' && byte != 0x7f) => {
                self.extension += 1;
                self.extensions += 1;
                if self.extension > EXTENSION_BYTES_MAX || self.extensions > TRAILER_BYTES_MAX {
                    return Err(BadChunk("its extensions are too long"));
                }
                State::Extension
            }
            (State::SizeEnd, b'\n') if self.left == 0 => State::Trailer,
            (State::SizeEnd, b'\n') => State::Data,
            (State::DataReturn, b'\r') => State::DataEnd,
            (State::DataEnd, b'\n') => State::SizeFirst,
            (State::SizeFirst | State::Size, _) => return Err(BadChunk("its size is no number")),
            (State::Extension, _) => {
                return Err(BadChunk("its extension holds a control character"));
            }
            _ => return Err(BadChunk("it does not end with a line")),
        };
        Ok(())
    }

    /// Takes trailer lines; how much was used.
    fn take_trailer(&mut self, input: &[u8]) -> Result<usize, BadChunk> {
        let Some(step) = memchr::memchr(b'\n', input) else {
            self.keep_trailer(input)?;
            return Ok(input.len());
        };
        self.keep_trailer(&input[..=step])?;
        let ends = self.trailer == b"\r\n" || self.trailer.ends_with(b"\r\n\r\n");
        if !self.trailer.ends_with(b"\r\n") {
            return Err(BadChunk("a trailer ends without a carriage return"));
        }
        if ends {
            self.state = State::Done;
            self.trailers()?;
        }
        Ok(step + 1)
    }

    fn keep_trailer(&mut self, bytes: &[u8]) -> Result<(), BadChunk> {
        if self.trailer.len() + bytes.len() > TRAILER_BYTES_MAX {
            return Err(BadChunk("its trailers are too long"));
        }
        self.trailer.extend_from_slice(bytes);
        Ok(())
    }

    /// The trailers, once all is read. Those that would change how the message is read are left out.
    pub fn trailers(&self) -> Result<Headers, BadChunk> {
        let mut trailers = Headers::new();
        for line in self.trailer.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = memchr::memchr(b':', line).ok_or(BadChunk("a trailer without a colon"))?;
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if !is_token(name) || !is_value(value) {
                return Err(BadChunk("a trailer that is no field"));
            }
            let known = Known::of(name);
            if may_trail(known) {
                trailers.push_checked(known, name, value);
            }
        }
        Ok(trailers)
    }
}

/// Whether a field may come after the body: not if it says how to read, route or authorise it.
pub fn may_trail(known: Known) -> bool {
    !known.is_hop_by_hop()
        && !known.is_forwarding()
        && !known.is_client_certificate()
        && !matches!(
            known,
            Known::Host
                | Known::ContentLength
                | Known::ContentEncoding
                | Known::ContentType
                | Known::ContentRange
                | Known::Authorization
                | Known::Cookie
                | Known::SetCookie
                | Known::CacheControl
                | Known::Expect
                | Known::Proxy
                | Known::Via
                | Known::XRequestId
        )
}

/// Reads a body of any kind.
#[derive(Debug, Clone)]
pub enum Decoder {
    /// So many bytes are left; 0 is the end.
    Fixed(u64),
    /// In chunks.
    Chunked(Box<Chunked>),
    /// Until the connection closes.
    UntilClose,
}

impl Decoder {
    /// For a body of that length.
    pub fn new(length: BodyLength) -> Self {
        match length {
            BodyLength::None => Self::Fixed(0),
            BodyLength::Fixed(length) => Self::Fixed(length),
            BodyLength::Chunked => Self::Chunked(Box::default()),
            BodyLength::UntilClose => Self::UntilClose,
        }
    }

    /// Whether all was read.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Fixed(left) => *left == 0,
            Self::Chunked(chunked) => chunked.state == State::Done,
            Self::UntilClose => false,
        }
    }

    /// Takes from the input: how much was used, and how much of that, at its end, is data.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, usize), BadChunk> {
        match self {
            Self::Fixed(left) => {
                let data = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data as u64;
                Ok((data, data))
            }
            Self::Chunked(chunked) => chunked.take(input),
            Self::UntilClose => Ok((input.len(), input.len())),
        }
    }

    /// The trailers, if there are any.
    pub fn trailers(&self) -> Option<Headers> {
        match self {
            Self::Chunked(chunked) => chunked.trailers().ok().filter(|all| !all.is_empty()),
            _ => None,
        }
    }
}

/// Writes a chunk.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        // An empty chunk would be the end.
        return;
    }
    let mut digits = [0; 16];
    let mut at = digits.len();
    let mut left = data.len();
    while left > 0 {
        at -= 1;
        digits[at] = b"0123456789abcdef"[left & 15];
        left >>= 4;
    }
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Writes the end of a chunked body.
pub fn write_end(out: &mut Vec<u8>, trailers: Option<&Headers>) {
    out.extend_from_slice(b"0\r\n");
    for field in trailers.iter().flat_map(|trailers| trailers.iter()) {
        super::write::field(out, field.name.as_bytes(), field.value);
    }
    out.extend_from_slice(b"\r\n");
}
