//! Why a header block cannot be read (RFC 7541), asked only after h2 has refused one.
//!
//! h2 calls every such block a protocol error. RFC 9113 tells two kinds apart: a block that cannot be
//! decoded is a compression error, a field that may not be is a protocol error. This walks a block
//! in h2's order and says which of them comes first. It keeps no dynamic table: it costs nothing
//! while all is well, and what only the table can tell it leaves to its caller.

use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode};

/// What a walk over a block found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing wrong that can be seen; whether it names entries of the dynamic table, which may be
    /// missing.
    Sound { dynamic: bool },
    /// It cannot be decoded.
    Coding,
    /// It can be decoded, to a field that HTTP does not have.
    Field,
}

/// Entries of the static table.
const STATIC_ENTRIES: usize = 61;
/// So many entries fit into the dynamic table at most: 4,096 bytes, of which each takes 32.
const DYNAMIC_ENTRIES_MAX: usize = 128;
/// The size that the dynamic table may have.
const TABLE_BYTES_MAX: usize = 4096;

/// Looks through a whole block.
pub(super) fn examine(block: &[u8]) -> Finding {
    let mut walk = Walk { rest: block, dynamic: false, fields_begun: false };
    while !walk.rest.is_empty() {
        if let Err(finding) = walk.step() {
            return finding;
        }
    }
    Finding::Sound { dynamic: walk.dynamic }
}

/// How long the size updates at the beginning of a block are; `None` if the last of them is cut.
pub(super) fn size_updates_length(block: &[u8]) -> Option<usize> {
    let mut walk = Walk { rest: block, dynamic: false, fields_begun: false };
    while walk.rest.first().is_some_and(|byte| byte & 0xe0 == 0x20) {
        walk.integer(5).ok()?;
    }
    Some(block.len() - walk.rest.len())
}

/// What a request's block says about its path, as far as it can be seen without the dynamic table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathFinding {
    /// It has no fragment, or h2 refuses the block anyway.
    Clean,
    /// It has one, and whether the client's table remembers it.
    Fragment { remembered: bool },
    /// Only the table knows it.
    Unknown,
}

/// Looks for a fragment in `:path`, which has no place there (RFC 9113, 8.3.1) and which the `http`
/// crate would drop silently.
pub(super) fn find_fragment(block: &[u8]) -> PathFinding {
    let mut walk = Walk { rest: block, dynamic: false, fields_begun: false };
    // What cannot be read is h2's to refuse.
    walk.find_fragment().unwrap_or(PathFinding::Clean)
}

impl<'a> Walk<'a> {
    fn find_fragment(&mut self) -> Result<PathFinding, Finding> {
        let mut unknown = false;
        while let Some(&first) = self.rest.first() {
            if first & 0x80 != 0 {
                match self.integer(7)? {
                    4 | 5 => return Ok(PathFinding::Clean),
                    index => unknown |= index > STATIC_ENTRIES,
                }
                continue;
            }
            if first & 0xe0 == 0x20 {
                self.integer(5)?;
                continue;
            }
            let remembered = first & 0x40 != 0;
            let is_path = match self.integer(if remembered { 6 } else { 4 })? {
                0 => match self.raw_string()? {
                    (b":path", false) | (PATH_PACKED, true) => true,
                    // Pseudo-headers come first, so it is not to come any more.
                    (name, false) if !name.starts_with(b":") => break,
                    _ => false,
                },
                index @ 1..=14 => matches!(index, 4 | 5),
                15..=STATIC_ENTRIES => break,
                _ => {
                    unknown = true;
                    false
                }
            };
            let (value, packed) = self.raw_string()?;
            if is_path {
                let found = if packed { packed_has_hash(value) } else { value.contains(&b'#') };
                let fragment = PathFinding::Fragment { remembered };
                return Ok(if found { fragment } else { PathFinding::Clean });
            }
        }
        Ok(if unknown { PathFinding::Unknown } else { PathFinding::Clean })
    }

    /// A string as it is written, and whether it is packed.
    fn raw_string(&mut self) -> Result<(&'a [u8], bool), Finding> {
        let packed = self.byte(0)? & 0x80 != 0;
        let length = self.integer(7)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Finding::Coding)?;
        self.rest = rest;
        Ok((bytes, packed))
    }
}

/// `:path` by the Huffman code.
const PATH_PACKED: &[u8] = b"\xb9\x58\xd3\x3f";

/// Whether a packed string has a `#`. Its code has nine ones in a row, which few paths have: only those
/// are unpacked.
fn packed_has_hash(packed: &[u8]) -> bool {
    let mut ones = 0;
    let suspect = packed.iter().any(|byte| {
        let from_left = ones + byte.leading_ones();
        ones = if *byte == 0xff { ones + 8 } else { byte.trailing_ones() };
        from_left >= 9
    });
    suspect && unpack(packed).is_some_and(|text| text.contains(&b'#'))
}

struct Walk<'a> {
    rest: &'a [u8],
    dynamic: bool,
    fields_begun: bool,
}

impl Walk<'_> {
    /// One representation.
    fn step(&mut self) -> Result<(), Finding> {
        let first = self.byte(0)?;
        if first & 0x80 != 0 {
            let index = self.integer(7)?;
            return self.check_index(index);
        }
        if first & 0xe0 == 0x20 {
            let size = self.integer(5)?;
            let allowed = !self.fields_begun && size <= TABLE_BYTES_MAX;
            return if allowed { Ok(()) } else { Err(Finding::Coding) };
        }
        let index = self.integer(if first & 0x40 != 0 { 6 } else { 4 })?;
        if index == 0 {
            self.fields_begun = true;
            let (name, value) = (self.string()?, self.string()?);
            return check_field(&name, &value);
        }
        self.check_index(index)?;
        let value = self.string()?;
        let name: &[u8] = match index {
            1 => b":authority",
            2 | 3 => b":method",
            4 | 5 => b":path",
            6 | 7 => b":scheme",
            8..=14 => b":status",
            _ => b"any",
        };
        check_field(name, &value)
    }

    fn check_index(&mut self, index: usize) -> Result<(), Finding> {
        self.fields_begun = true;
        self.dynamic |= index > STATIC_ENTRIES;
        let known = (1..=STATIC_ENTRIES + DYNAMIC_ENTRIES_MAX).contains(&index);
        if known { Ok(()) } else { Err(Finding::Coding) }
    }

    fn byte(&self, at: usize) -> Result<u8, Finding> {
        self.rest.get(at).copied().ok_or(Finding::Coding)
    }

    /// An integer whose first byte has so many bits of it.
    fn integer(&mut self, bits: u32) -> Result<usize, Finding> {
        let mask = (1_usize << bits) - 1;
        let mut value = usize::from(self.byte(0)?) & mask;
        let mut taken = 1;
        if value == mask {
            loop {
                let byte = self.byte(taken)?;
                // h2 reads as many.
                if taken > 4 {
                    return Err(Finding::Coding);
                }
                value += usize::from(byte & 0x7f) << (7 * (taken - 1));
                taken += 1;
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        self.rest = &self.rest[taken..];
        Ok(value)
    }

    fn string(&mut self) -> Result<Vec<u8>, Finding> {
        let (bytes, packed) = self.raw_string()?;
        if packed { unpack(bytes).ok_or(Finding::Coding) } else { Ok(bytes.to_vec()) }
    }
}

/// Whether HTTP has such a field, as h2 sees it.
fn check_field(name: &[u8], value: &[u8]) -> Result<(), Finding> {
    let text = std::str::from_utf8(value).is_ok();
    let fits = match name {
        b":authority" | b":path" | b":scheme" | b":protocol" => text,
        b":method" => Method::from_bytes(value).is_ok(),
        b":status" => StatusCode::from_bytes(value).is_ok(),
        [b':', ..] => false,
        _ => HeaderName::from_lowercase(name).is_ok() && HeaderValue::from_bytes(value).is_ok(),
    };
    if fits { Ok(()) } else { Err(Finding::Field) }
}

/// The longest code of all, and the code that ends a string, which no string may have.
const CODE_BITS_MAX: usize = 30;
const END_OF_STRING: u16 = 256;

/// Undoes the Huffman code of RFC 7541. `None` if it is none.
fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    // The code is canonical: codes of one length follow each other in the order of their symbols, and
    // those of the next length go on from there. So lengths are all that has to be known.
    let mut counts = [0_u32; CODE_BITS_MAX + 1];
    for bits in CODE_BITS {
        counts[usize::from(bits)] += 1;
    }
    let mut out = Vec::with_capacity(packed.len() * 2);
    let (mut code, mut first, mut bits, mut ones) = (0_u32, 0_u32, 0_usize, true);
    for bit in packed.iter().flat_map(|byte| (0..8).rev().map(move |shift| byte >> shift & 1)) {
        code = code << 1 | u32::from(bit);
        first <<= 1;
        bits += 1;
        ones &= bit == 1;
        if bits > CODE_BITS_MAX {
            return None;
        }
        if code - first < counts[bits] {
            let nth = (code - first) as usize;
            let mut of_length = (0_u16..).zip(CODE_BITS).filter(|(_, it)| usize::from(*it) == bits);
            match of_length.nth(nth)?.0 {
                END_OF_STRING => return None,
                symbol => out.push(symbol as u8),
            }
            (code, first, bits, ones) = (0, 0, 0, true);
        } else {
            first += counts[bits];
        }
    }
    // What is left over is filled with ones, and is less than a byte.
    (bits < 8 && ones).then_some(out)
}

/// How many bits the code of each byte has, and of the string's end.
const CODE_BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
        let length = |bytes: &[u8]| vec![bytes.len() as u8];
        [vec![0x40], length(name), name.to_vec(), length(value), value.to_vec()].concat()
    }

    #[test]
    fn the_examples_of_the_standard_are_unpacked() {
        let packed: [(&[u8], &str); 4] = [
            (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", "custom-value"),
            (b"", ""),
        ];
        for (bytes, text) in packed {
            assert_eq!(unpack(bytes).as_deref(), Some(text.as_bytes()));
        }
        // A byte of filling, filling with a zero, and the code that ends strings.
        for bytes in
            [&b"\xa8\xeb\x10\x64\x9c\xbf\xff"[..], b"\xa8\xeb\x10\x64\x9c\xb0", b"\xff\xff\xff\xfc"]
        {
            assert_eq!(unpack(bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn sound_blocks_are_sound() {
        // The standard's request with packed strings (C.4), then one that uses the table.
        let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        assert_eq!(examine(first), Finding::Sound { dynamic: false });
        assert_eq!(examine(b"\x82\x86\x84\xbe"), Finding::Sound { dynamic: true });
        assert_eq!(examine(b"\x20\x3f\xe1\x1f\x82"), Finding::Sound { dynamic: false });
        assert_eq!(examine(&literal(b"a", b"b")), Finding::Sound { dynamic: false });
        assert_eq!(examine(b""), Finding::Sound { dynamic: false });
    }

    #[test]
    fn what_cannot_be_decoded_is_told_from_fields_that_may_not_be() {
        let coding: [&[u8]; 9] = [
            b"\x40",                         // cut after the kind
            b"\x40\x05ab",                   // a string that is cut
            b"\x80",                         // an index of nothing
            b"\xff\xff\xff\xff\xff\xff\x7f", // a number without end
            b"\xff\xff\x01",                 // far behind every table
            b"\x82\x20",                     // a table's size after a field
            b"\x3f\xe1\x7f",                 // a table that is too large
            b"\x40\x81\xff\x00",             // not a Huffman code
            b"\x41\x8c\xf1\xe3",             // a packed string that is cut
        ];
        for block in coding {
            assert_eq!(examine(block), Finding::Coding, "{block:02x?}");
        }
        let fields: [Vec<u8>; 5] = [
            literal(b":test", b"ok"),
            literal(b"Upper", b"x"),
            literal(b"", b"x"),
            literal(b"a", b"\n"),
            [b"\x42".to_vec(), b"\x03A B".to_vec()].concat(),
        ];
        for block in fields {
            assert_eq!(examine(&block), Finding::Field, "{block:02x?}");
        }
        // The first fault counts.
        assert_eq!(examine(&[literal(b":test", b""), vec![0x40]].concat()), Finding::Field);
        assert_eq!(examine(&[vec![0x80], literal(b":test", b"")].concat()), Finding::Coding);
    }

    #[test]
    fn a_fragment_is_found_however_the_path_is_written() {
        let fragment = |remembered| PathFinding::Fragment { remembered };
        // "/a#b" by the Huffman code: 011000 00011 111111111010 100011.
        let packed = b"\x60\x7f\xf5\x1f";
        assert_eq!(unpack(packed).as_deref(), Some(&b"/a#b"[..]));
        assert_eq!(unpack(PATH_PACKED).as_deref(), Some(&b":path"[..]));
        let cases: [(&[u8], PathFinding); 12] = [
            (b"\x82\x86\x04\x04/a#b", fragment(false)),
            (b"\x82\x86\x44\x04/a#b", fragment(true)),
            (b"\x82\x14\x84\x60\x7f\xf5\x1f", fragment(false)),
            (b"\x20\x82\x00\x05:path\x04/a#b", fragment(false)),
            (b"\x82\x40\x84\xb9\x58\xd3\x3f\x84\x60\x7f\xf5\x1f", fragment(true)),
            (b"\x82\xbe\x04\x04/a#b", fragment(false)),
            (b"\x82\x86\x84", PathFinding::Clean),
            (b"\x82\x86\x04\x05/a%23", PathFinding::Clean),
            // Elsewhere it is a letter as any other.
            (b"\x82\x86\x84\x00\x01a\x04/a#b", PathFinding::Clean),
            (b"\x82\x86\xbe", PathFinding::Unknown),
            (b"\x82\x86\x04\x09/a#b", PathFinding::Clean),
            (b"", PathFinding::Clean),
        ];
        for (block, wanted) in cases {
            assert_eq!(find_fragment(block), wanted, "{block:02x?}");
        }
    }

    #[test]
    fn size_updates_are_passed_over() {
        assert_eq!(size_updates_length(b"\x82"), Some(0));
        assert_eq!(size_updates_length(b""), Some(0));
        assert_eq!(size_updates_length(b"\x20\x82"), Some(1));
        assert_eq!(size_updates_length(b"\x3f\xe1\x1f\x20\x40"), Some(4));
        assert_eq!(size_updates_length(b"\x3f\xe1"), None);
    }
}
