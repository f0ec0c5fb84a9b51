//! The name that a client asks for, read from the front of its connection without answering.
//!
//! A host that is passed through keeps its TLS to itself: its name in the ClientHello is all that we
//! see. Reading it is pure and bounded; rustls reads the same bytes again for hosts that
//! are ours.

/// The most that a ClientHello may take, with its record headers.
pub const HELLO_BYTES_MAX: usize = 16 * 1024 + 5 * 64;
/// The longest name there can be.
const NAME_BYTES_MAX: usize = 253;

/// What the front of a connection is.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    /// A whole ClientHello, and the name in it, in lower case.
    Whole(Option<String>),
    /// The beginning of one.
    Incomplete,
    /// Something else, or a broken one: rustls will say what is wrong with it.
    Other,
}

/// Reads the server name from the bytes that a connection began with.
pub fn read_server_name(bytes: &[u8]) -> Hello {
    HelloReader::default().read(bytes)
}

/// Reads the beginning of a connection as it grows. Each record is taken once, when all of it is
/// there: a client that sends byte by byte costs no more than another.
#[derive(Debug, Default)]
pub struct HelloReader {
    /// How many bytes were taken.
    taken: usize,
    /// What they had of the message.
    message: Vec<u8>,
}

impl HelloReader {
    /// Looks at all bytes that there are by now: those of the last time and more.
    pub fn read(&mut self, bytes: &[u8]) -> Hello {
        // Each turn takes at least a record header; the input is bounded by whoever collects it.
        loop {
            match bytes.get(self.taken..).unwrap_or_default() {
                // A handshake record of any minor version.
                &[22, 3, _, high, low, ref more @ ..] => {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    if length == 0 {
                        return Hello::Other;
                    }
                    let Some(part) = more.get(..length) else { return incomplete(bytes) };
                    self.message.extend_from_slice(part);
                    self.taken += 5 + length;
                    match whole_message(&self.message) {
                        Whole::Yes(body) => return server_name(body).unwrap_or(Hello::Other),
                        Whole::No => return Hello::Other,
                        Whole::NotYet => {}
                    }
                }
                short => {
                    let begins = [22, 3].iter().zip(short).all(|(wanted, is)| wanted == is);
                    let may_go_on = begins && short.len() < 5;
                    return if may_go_on { incomplete(bytes) } else { Hello::Other };
                }
            }
        }
    }
}

fn incomplete(bytes: &[u8]) -> Hello {
    if bytes.len() < HELLO_BYTES_MAX { Hello::Incomplete } else { Hello::Other }
}

enum Whole<'a> {
    Yes(&'a [u8]),
    NotYet,
    No,
}

/// The body of a ClientHello, once all of it is there.
fn whole_message(message: &[u8]) -> Whole<'_> {
    match message {
        &[1, a, b, c, ref body @ ..] => {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if length > HELLO_BYTES_MAX {
                return Whole::No;
            }
            body.get(..length).map_or(Whole::NotYet, Whole::Yes)
        }
        [first, ..] if *first != 1 => Whole::No,
        _ => Whole::NotYet,
    }
}

fn server_name(body: &[u8]) -> Option<Hello> {
    // Version and random, then session, suites and compression, each with its length.
    let rest = body.get(34..)?;
    let (_, rest) = take_u8(rest)?;
    let (_, rest) = take_u16(rest)?;
    let (_, rest) = take_u8(rest)?;
    if rest.is_empty() {
        return Some(Hello::Whole(None));
    }
    let (mut extensions, _) = take_u16(rest)?;
    while let &[high, low, ref more @ ..] = extensions {
        let (value, others) = take_u16(more)?;
        if [high, low] == [0, 0] {
            return Some(Hello::Whole(Some(host_name(value)?)));
        }
        extensions = others;
    }
    Some(Hello::Whole(None))
}

fn host_name(extension: &[u8]) -> Option<String> {
    let (list, _) = take_u16(extension)?;
    let &[0, ref name @ ..] = list else { return None };
    let (name, _) = take_u16(name)?;
    let name = std::str::from_utf8(name).ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    (fits && name.bytes().all(plain)).then(|| name.to_ascii_lowercase())
}

fn take_u8(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length))
}

fn take_u16(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests;
