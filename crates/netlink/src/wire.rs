//! Netlink messages and attributes: writing and reading them.
//!
//! Everything is padded to four bytes. Headers are in the machine's byte order; netfilter's attribute
//! values are big-endian, other families' are not, so writers and readers say which.

use crate::error::NetlinkError;

/// Length of a message's header.
pub const HEADER_LEN: usize = 16;
/// Length of an attribute's header.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// The bits of an attribute's type that are its number.
const TYPE_MASK: u16 = 0x3fff;
/// Says that an attribute's value is attributes.
const NESTED: u16 = 0x8000;

/// Messages that are being written, one after the other.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    bytes: Vec<u8>,
    message: usize,
    /// A value did not fit; told when the messages are taken.
    too_long: Option<&'static str>,
}

/// An attribute that is being filled with others.
#[must_use]
#[derive(Debug)]
pub struct Nest(usize);

impl Writer {
    /// Without any message yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes there are so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The finished messages.
    pub fn finish(&self) -> Result<&[u8], NetlinkError> {
        match self.too_long {
            Some(what) => Err(NetlinkError::TooLong { what }),
            None => Ok(&self.bytes),
        }
    }

    /// Begins a message; `body` is the header of its family.
    pub fn begin(&mut self, message_type: u16, flags: u16, sequence: u32, body: &[u8]) {
        self.message = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&message_type.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(body);
        self.pad();
    }

    /// Ends the message begun last.
    pub fn end(&mut self) {
        let length = u32::try_from(self.bytes.len() - self.message).unwrap_or(u32::MAX);
        if length == u32::MAX {
            self.too_long = Some("message");
        }
        self.bytes[self.message..self.message + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// The length of the message that is being written.
    pub fn message_len(&self) -> usize {
        self.bytes.len() - self.message
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }

    fn attribute_header(&mut self, attribute: u16, length: usize) {
        let length = u16::try_from(length + ATTRIBUTE_HEADER_LEN).unwrap_or_else(|_| {
            self.too_long = Some("attribute");
            0
        });
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&attribute.to_ne_bytes());
    }

    /// An attribute of bytes.
    pub fn put(&mut self, attribute: u16, value: &[u8]) {
        self.attribute_header(attribute, value.len());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// Bytes without a header of their own: a family's header within an attribute.
    pub fn put_raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// A text, ended by a zero.
    pub fn put_str(&mut self, attribute: u16, value: &str) {
        self.attribute_header(attribute, value.len() + 1);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// One byte.
    pub fn put_u8(&mut self, attribute: u16, value: u8) {
        self.put(attribute, &[value]);
    }

    /// A big-endian number.
    pub fn put_be16(&mut self, attribute: u16, value: u16) {
        self.put(attribute, &value.to_be_bytes());
    }

    /// A big-endian number.
    pub fn put_be32(&mut self, attribute: u16, value: u32) {
        self.put(attribute, &value.to_be_bytes());
    }

    /// A big-endian number.
    pub fn put_be64(&mut self, attribute: u16, value: u64) {
        self.put(attribute, &value.to_be_bytes());
    }

    /// A number in the machine's order.
    pub fn put_ne16(&mut self, attribute: u16, value: u16) {
        self.put(attribute, &value.to_ne_bytes());
    }

    /// A number in the machine's order.
    pub fn put_ne32(&mut self, attribute: u16, value: u32) {
        self.put(attribute, &value.to_ne_bytes());
    }

    /// Begins an attribute of attributes; end it with [`end_nest`](Self::end_nest).
    pub fn begin_nest(&mut self, attribute: u16) -> Nest {
        let at = self.bytes.len();
        self.attribute_header(attribute | NESTED, 0);
        Nest(at)
    }

    /// Ends it.
    #[expect(clippy::needless_pass_by_value, reason = "a nest ends once")]
    pub fn end_nest(&mut self, nest: Nest) {
        let Nest(at) = nest;
        let length = u16::try_from(self.bytes.len() - at).unwrap_or_else(|_| {
            self.too_long = Some("nested attribute");
            0
        });
        self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

/// A message as it was received.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Its type.
    pub message_type: u16,
    /// Its flags.
    pub flags: u16,
    /// The sequence number of the request that it answers.
    pub sequence: u32,
    /// The port of the socket that it is for, or 0.
    pub port: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes after a family header of this length.
    pub fn attributes(&self, family_header_len: usize) -> Attributes<'a> {
        Attributes(self.body.get(family_header_len.next_multiple_of(4)..).unwrap_or_default())
    }
}

/// The messages of a datagram. Ends at the first that is cut off.
#[derive(Debug, Clone)]
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.0.get(..HEADER_LEN)?;
        let length = ne32(&header[0..4])? as usize;
        let message = self.0.get(..length.max(HEADER_LEN))?;
        self.0 = self.0.get(length.max(HEADER_LEN).next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            message_type: ne16(&header[4..6])?,
            flags: ne16(&header[6..8])?,
            sequence: ne32(&header[8..12])?,
            port: ne32(&header[12..16])?,
            body: &message[HEADER_LEN..],
        })
    }
}

/// Attributes, each as its number and value. Ends at the first that is cut off.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    /// The value of the first attribute of this number.
    pub fn get(self, attribute: u16) -> Option<&'a [u8]> {
        self.into_iter().find(|(number, _)| *number == attribute).map(|(_, value)| value)
    }

    /// Its attributes.
    pub fn nested(self, attribute: u16) -> Option<Attributes<'a>> {
        self.get(attribute).map(Attributes)
    }

    /// A text without its final zero.
    pub fn str(self, attribute: u16) -> Option<&'a str> {
        let bytes = self.get(attribute)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    }

    /// One byte.
    pub fn u8(self, attribute: u16) -> Option<u8> {
        self.get(attribute)?.first().copied()
    }

    /// A big-endian number.
    pub fn be16(self, attribute: u16) -> Option<u16> {
        Some(u16::from_be_bytes(self.get(attribute)?.get(..2)?.try_into().ok()?))
    }

    /// A big-endian number.
    pub fn be32(self, attribute: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(attribute)?.get(..4)?.try_into().ok()?))
    }

    /// A big-endian number.
    pub fn be64(self, attribute: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.get(attribute)?.get(..8)?.try_into().ok()?))
    }

    /// A number in the machine's order.
    pub fn ne16(self, attribute: u16) -> Option<u16> {
        ne16(self.get(attribute)?)
    }

    /// A number in the machine's order.
    pub fn ne32(self, attribute: u16) -> Option<u32> {
        ne32(self.get(attribute)?)
    }
}

impl<'a> IntoIterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);
    type IntoIter = AttributeIter<'a>;

    fn into_iter(self) -> AttributeIter<'a> {
        AttributeIter(self.0)
    }
}

/// See [`Attributes`].
#[derive(Debug, Clone)]
pub struct AttributeIter<'a>(&'a [u8]);

impl<'a> Iterator for AttributeIter<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(ne16(self.0)?);
        let number = ne16(self.0.get(2..)?)? & TYPE_MASK;
        let value = self.0.get(ATTRIBUTE_HEADER_LEN..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((number, value))
    }
}

pub(crate) fn ne16(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?))
}

pub(crate) fn ne32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = Writer::new();
        writer.begin(7, 1, 42, &[2, 0, 0, 0]);
        writer.put_str(1, "telaio");
        let nest = writer.begin_nest(2);
        writer.put_be32(1, 99);
        writer.put_u8(2, 5);
        writer.end_nest(nest);
        writer.end();
        let bytes = writer.finish().unwrap();
        let message = Messages(bytes).next().unwrap();
        assert_eq!((message.message_type, message.flags, message.sequence), (7, 1, 42));
        let attributes = message.attributes(4);
        assert_eq!(attributes.str(1), Some("telaio"));
        let nested = attributes.nested(2).unwrap();
        assert_eq!((nested.be32(1), nested.u8(2)), (Some(99), Some(5)));
    }

    #[test]
    fn an_attribute_that_does_not_fit_is_an_error_and_never_wraps() {
        let mut writer = Writer::new();
        writer.begin(7, 0, 1, &[]);
        writer.put(1, &vec![0; 70_000]);
        writer.end();
        assert!(matches!(writer.finish(), Err(NetlinkError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_always_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in Messages(&bytes) {
                for (_, value) in message.attributes(4) {
                    prop_assert!(Attributes(value).into_iter().count() <= value.len());
                }
            }
        }
    }
}
