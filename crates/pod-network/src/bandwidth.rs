//! How fast an instance may be.

use serde::{Deserialize, Serialize};

/// Limits of one interface, in bits per second and bits, as CNI's capability `bandwidth` has them. Zero: no
/// limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// Into the instance, in bits per second.
    pub ingress_rate: u64,
    /// How much at once, in bits.
    pub ingress_burst: u64,
    /// Out of the instance, in bits per second.
    pub egress_rate: u64,
    /// How much at once, in bits.
    pub egress_burst: u64,
}

/// Limits an interface by its node's end. Replaced by what the module will do.
pub fn set(_host_link: &str, _limits: &Bandwidth) -> crate::Result<()> {
    Ok(())
}
