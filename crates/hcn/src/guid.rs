//! The identity of an HCN object.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A globally unique identifier, as HCN names networks, endpoints and load balancers with.
///
/// Its bytes are in the order in which they are written. Text is read in either case, with or without
/// braces, and written in lower case without them.
///
/// ```
/// # use telaio_hcn::Guid;
/// let guid: Guid = "{1F9FAA27-8C8B-41AC-AB95-82A54590767B}".parse()?;
/// assert_eq!(guid.to_string(), "1f9faa27-8c8b-41ac-ab95-82a54590767b");
/// # Ok::<(), telaio_hcn::InvalidGuid>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid([u8; 16]);

/// A text that is not a GUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a GUID such as 1f9faa27-8c8b-41ac-ab95-82a54590767b")]
pub struct InvalidGuid(String);

/// Where the hyphens stand in the text.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const TEXT_CHARS: usize = 36;

impl Guid {
    /// The one with all bits zero: to HCN, "choose one".
    pub const NIL: Self = Self([0; 16]);

    /// From its bytes, in the order in which they are written.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, in the order in which they are written.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether all bits are zero.
    pub fn is_nil(self) -> bool {
        self == Self::NIL
    }
}

impl FromStr for Guid {
    type Err = InvalidGuid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidGuid(text.chars().take(64).collect());
        let inner = match text.strip_prefix('{') {
            Some(rest) => rest.strip_suffix('}').ok_or_else(invalid)?,
            None => text,
        };
        let inner = inner.as_bytes();
        if inner.len() != TEXT_CHARS || HYPHENS.iter().any(|at| inner[*at] != b'-') {
            return Err(invalid());
        }
        let mut bytes = [0; 16];
        let mut digits = 0;
        for (at, c) in inner.iter().enumerate() {
            if HYPHENS.contains(&at) {
                continue;
            }
            let digit = char::from(*c).to_digit(16).ok_or_else(invalid)?;
            bytes[digits / 2] = (bytes[digits / 2] << 4) | digit as u8;
            digits += 1;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_guid_is_refused() {
        for text in [
            "",
            "{}",
            "1f9faa27",
            "1f9faa27-8c8b-41ac-ab95-82a54590767",
            "1f9faa27-8c8b-41ac-ab95-82a54590767bb",
            "1f9faa27x8c8b-41ac-ab95-82a54590767b",
            "{1f9faa27-8c8b-41ac-ab95-82a54590767b",
            "1f9faa27-8c8b-41ac-ab95-82a54590767g",
            "1f9faa27-8c8b-41ac-ab95-82a545907é7",
        ] {
            assert!(text.parse::<Guid>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn bytes_are_in_the_order_of_the_text() {
        let guid: Guid = "00010203-0405-0607-0809-0a0b0c0d0e0f".parse().unwrap();
        assert_eq!(guid.to_bytes(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(Guid::from_bytes(guid.to_bytes()), guid);
    }
}
