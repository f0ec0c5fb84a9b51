//! The backend `ipvs`: services as virtual servers of the kernel's own load balancer.

mod backend;
mod cleanup;
pub mod compile;
pub mod controller;
pub mod handlers;
pub mod marks;
pub mod mirror;
pub mod network;
pub mod patch;
pub mod proxier;
pub mod render;
pub mod rules;
pub mod sets;
pub mod setup;
pub mod state;
pub mod trace;
pub mod types;
mod watch;

pub use backend::{IpvsBackend, IpvsOptions};
pub(crate) use cleanup::SparedEntries;
pub use cleanup::{Leave, cleanup, present, servers_on_record};
pub use controller::IpvsController;
pub use render::render;
pub use state::State;
pub use trace::trace;
pub use types::{EndpointInfo, ServiceInfo};
