//! The backend `hcn` on a host compute network in memory: whatever happens, HNS gets what services want, with
//! as few calls as that takes, and nobody else's objects are touched.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod adopt;
mod calls;
mod failures;
mod ground;
mod objects;
mod overlay;
mod rig;
mod shaky;

// Random clusters, and the contract, are those of the other backends' tests.
#[cfg(target_os = "linux")]
mod converge;
#[cfg(target_os = "linux")]
mod packets;

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "shared with the other backends' tests, which need all of it")]
#[path = "../differential/generate.rs"]
mod generate;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "likewise")]
#[path = "../differential/oracle.rs"]
mod oracle;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "likewise")]
#[path = "../differential/story.rs"]
mod story;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "likewise")]
#[path = "../differential/world.rs"]
mod world;
