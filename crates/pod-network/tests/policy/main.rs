//! Network policies, against an oracle that was written from Kubernetes' own words, and with real packets.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod cases;
mod cost;
mod drift;
mod generate;
mod kernel;
mod oracle;
mod packets;
mod properties;
