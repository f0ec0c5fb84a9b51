//! A node's services in its kernel.
//!
//! The node view comes in, rules come out: [`plan`](mod@plan) decides what has to happen to traffic for
//! each service, a backend puts it into the kernel's terms, applies the difference and watches over it.

mod background;
pub mod companions;
pub mod config;
#[doc(hidden)]
pub mod fixture;
pub mod hcn;
pub mod health_check;
pub mod iptables;
#[cfg(target_os = "linux")]
pub mod ipvs;
#[cfg(target_os = "linux")]
pub mod kube_ipvs;
#[cfg(target_os = "linux")]
pub mod localhost;
#[cfg(target_os = "linux")]
pub mod nftables;
pub mod options;
pub mod plan;
#[cfg(target_os = "linux")]
pub mod stale_flows;
#[cfg(target_os = "linux")]
pub mod sysctls;
pub mod trace;
