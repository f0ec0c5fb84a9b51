//! Source ranges: which client addresses are let in.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::table::SourceRanges;

impl SourceRanges {
    /// Whether a client is let in. What is denied is denied, also within what is allowed.
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let within = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&client));
        !within(&self.deny) && (self.allow.is_empty() || within(&self.allow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(allow: &[&str], deny: &[&str]) -> SourceRanges {
        let read = |list: &[&str]| list.iter().map(|range| range.parse().unwrap()).collect();
        SourceRanges { allow: read(allow), deny: read(deny) }
    }

    fn admits(ranges: &SourceRanges, client: &str) -> bool {
        ranges.admits(client.parse().unwrap())
    }

    #[test]
    fn without_ranges_all_are_let_in() {
        assert!(admits(&ranges(&[], &[]), "192.0.2.1"));
    }

    #[test]
    fn only_what_is_allowed_and_not_denied_is_let_in() {
        let ranges = ranges(&["10.0.0.0/8", "2001:db8::/32"], &["10.1.0.0/16"]);
        assert!(admits(&ranges, "10.2.0.1") && admits(&ranges, "2001:db8::1"));
        assert!(admits(&ranges, "::ffff:10.2.0.1"));
        assert!(!admits(&ranges, "10.1.0.1") && !admits(&ranges, "192.0.2.1"));
        assert!(!admits(&ranges, "::ffff:10.1.0.1"));
    }

    #[test]
    fn denying_alone_lets_all_others_in() {
        let ranges = ranges(&[], &["192.0.2.0/24"]);
        assert!(!admits(&ranges, "192.0.2.9") && admits(&ranges, "198.51.100.1"));
    }
}
