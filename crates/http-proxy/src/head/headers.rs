//! An ordered list of fields over one run of bytes.
//!
//! A head has a dozen fields or so: a walk over a list is faster than a hash map, and two growing
//! vectors that are used again cost no allocation per request. Names keep the case they came with.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::known::Known;

#[derive(Debug, Clone, Copy)]
struct Entry {
    known: Known,
    name_length: u16,
    name_start: u32,
    value_start: u32,
    value_length: u32,
}

/// The fields of a head or the trailers of a body.
///
/// ```
/// use telaio_http_proxy::{Headers, Known};
///
/// let mut headers = Headers::new();
/// assert!(headers.push("Accept", "text/html"));
/// assert_eq!(headers.get("accept"), Some(&b"text/html"[..]));
/// assert_eq!(headers.get_known(Known::Accept), Some(&b"text/html"[..]));
/// assert!(!headers.push("x", "a\r\nsmuggled: b"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Headers {
    text: Vec<u8>,
    entries: Vec<Entry>,
}

/// One field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its number.
    pub known: Known,
    /// Its name, in the case it came with.
    pub name: &'a str,
    /// Its value, without space around it.
    pub value: &'a [u8],
}

impl Headers {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// No fields, and room for those of a usual head.
    pub fn with_room() -> Self {
        Self { text: Vec::with_capacity(512), entries: Vec::with_capacity(16) }
    }

    /// Forgets all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many bytes of memory the fields take, about.
    pub fn byte_count(&self) -> usize {
        self.text.len()
    }

    /// Adds a field at the end. False, and nothing is added, if the name is not a token or the value
    /// holds what no field may: so that nothing that is put into a value can become a field of its own.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> bool {
        let (name, value) = (name.as_ref(), value.as_ref());
        if !is_token(name) || !is_value(value) {
            return false;
        }
        self.push_checked(Known::of(name), name, value);
        true
    }

    /// Adds a well-known field at the end; as [`push`](Self::push).
    pub fn push_known(&mut self, known: Known, value: impl AsRef<[u8]>) -> bool {
        let value = value.as_ref();
        if known == Known::Other || !is_value(value) {
            return false;
        }
        self.push_checked(known, known.as_str().as_bytes(), value);
        true
    }

    /// Adds a field that a parser has checked.
    pub(crate) fn push_checked(&mut self, known: Known, name: &[u8], value: &[u8]) {
        let name_start = self.text.len() as u32;
        self.text.extend_from_slice(name);
        let value_start = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.entries.push(Entry {
            known,
            name_length: name.len() as u16,
            name_start,
            value_start,
            value_length: value.len() as u32,
        });
    }

    /// Sets a field: the first of that name gets the value, further ones are removed.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> bool {
        if !is_token(name.as_bytes()) || !is_value(value.as_ref()) {
            return false;
        }
        self.remove(name);
        self.push(name, value)
    }

    fn field(&self, entry: &Entry) -> Field<'_> {
        let name = self.name_bytes(entry);
        let from = entry.value_start as usize;
        let value = &self.text[from..from + entry.value_length as usize];
        // A token is ASCII; what is not was refused.
        Field { known: entry.known, name: std::str::from_utf8(name).unwrap_or_default(), value }
    }

    fn name_bytes(&self, entry: &Entry) -> &[u8] {
        let from = entry.name_start as usize;
        &self.text[from..from + usize::from(entry.name_length)]
    }

    /// The fields in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Field<'_>> + ExactSizeIterator {
        self.entries.iter().map(|entry| self.field(entry))
    }

    /// The value of the first field of that name, whatever the case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.entries.iter();
        let entry =
            entries.find(|own| self.name_bytes(own).eq_ignore_ascii_case(name.as_bytes()))?;
        Some(self.field(entry).value)
    }

    /// As [`get`](Self::get), if it is text.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// The values of all fields of that name.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.entries
            .iter()
            .filter(move |entry| self.name_bytes(entry).eq_ignore_ascii_case(name.as_bytes()))
            .map(|entry| self.field(entry).value)
    }

    /// The value of the first field with that number.
    pub fn get_known(&self, known: Known) -> Option<&[u8]> {
        self.get_all_known(known).next()
    }

    /// As [`get_known`](Self::get_known), if it is text.
    pub fn get_known_str(&self, known: Known) -> Option<&str> {
        std::str::from_utf8(self.get_known(known)?).ok()
    }

    /// The values of all fields with that number.
    pub fn get_all_known(&self, known: Known) -> impl Iterator<Item = &[u8]> {
        let entries = self.entries.iter().filter(move |entry| entry.known == known);
        entries.map(|entry| self.field(entry).value)
    }

    /// Whether there is such a field.
    pub fn contains(&self, known: Known) -> bool {
        self.entries.iter().any(|entry| entry.known == known)
    }

    /// Removes all fields of that name, whatever the case.
    pub fn remove(&mut self, name: &str) {
        let known = Known::of(name.as_bytes());
        if known != Known::Other {
            return self.remove_known(known);
        }
        let Self { text, entries } = self;
        entries.retain(|entry| {
            let from = entry.name_start as usize;
            let own = &text[from..from + usize::from(entry.name_length)];
            !own.eq_ignore_ascii_case(name.as_bytes())
        });
    }

    /// Removes all fields with that number.
    pub fn remove_known(&mut self, known: Known) {
        self.entries.retain(|entry| entry.known != known);
    }

    /// Keeps the fields for which the function says so.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| keep(self.field(entry)));
        self.entries = entries;
    }

    /// As the map of the `http` crate, for h2 and the cache.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.len());
        for field in self.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
                map.append(name, value);
            }
        }
        map
    }

    /// Adds all fields of a map of the `http` crate.
    pub fn extend_from_map(&mut self, map: &HeaderMap) {
        for (name, value) in map {
            self.push(name.as_str(), value.as_bytes());
        }
    }
}

impl From<&HeaderMap> for Headers {
    fn from(map: &HeaderMap) -> Self {
        let mut headers = Self::new();
        headers.extend_from_map(map);
        headers
    }
}

/// Whether a name is one that a field may have.
pub fn is_token(name: &[u8]) -> bool {
    let is_tchar = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
    };
    !name.is_empty() && u16::try_from(name.len()).is_ok() && name.iter().all(is_tchar)
}

/// Whether a field may have that value.
pub fn is_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}
