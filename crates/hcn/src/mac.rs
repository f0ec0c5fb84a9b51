//! Ethernet addresses, in HCN's spelling.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An Ethernet address. Written with hyphens, as HCN does; read with hyphens or colons.
///
/// ```
/// # use telaio_hcn::MacAddress;
/// let mac: MacAddress = "00:15:5d:01:02:ff".parse()?;
/// assert_eq!(mac.to_string(), "00-15-5D-01-02-FF");
/// # Ok::<(), telaio_hcn::InvalidMac>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

/// A text that is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an Ethernet address such as 00-15-5D-01-02-FF")]
pub struct InvalidMac(String);

impl FromStr for MacAddress {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidMac(text.chars().take(64).collect());
        let separator = if text.contains(':') { ':' } else { '-' };
        let mut bytes = [0; 6];
        let mut parts = text.split(separator);
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(invalid)?;
            // `from_str_radix` would take a sign.
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(invalid());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() { Err(invalid()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "-" };
            write!(f, "{separator}{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_address_is_refused() {
        for text in
            ["", "00-15-5D-01-02", "00-15-5D-01-02-FF-00", "00-15-5D-01-02-+F", "00155D0102FF"]
        {
            assert!(text.parse::<MacAddress>().is_err(), "{text:?}");
        }
    }
}
