//! A hash that is the same on every machine and in every release.
//!
//! Brains are many and stateless, yet must name an endpoint that has no pod alike; `std`'s hasher
//! promises nothing of the kind. FNV-1a is small, fast on short input, and fixed.

/// FNV-1a, 64 bits.
#[derive(Debug, Clone, Copy)]
pub struct StableHash(u64);

impl Default for StableHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl StableHash {
    /// A hash of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    /// Adds a text and its end, so that `ab`,`c` differs from `a`,`bc`.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes()).bytes(&[0xff])
    }

    /// The number.
    pub fn finish(self) -> u64 {
        self.0
    }

    /// The number as 16 hexadecimal digits.
    pub fn hex(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::StableHash;

    #[test]
    fn is_the_published_function() {
        assert_eq!(StableHash::new().bytes(b"a").hex(), "af63dc4c8601ec8c");
        assert_eq!(StableHash::new().bytes(b"foobar").hex(), "85944171f73967e8");
    }
}
