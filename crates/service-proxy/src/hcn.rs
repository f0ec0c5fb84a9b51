//! The backend `hcn`: services as load balancers of Windows' host compute network.
//!
//! To program Windows, two kinds of objects matter: *endpoints*, the ports of the virtual switch, of which
//! those for pods on other nodes are ours to make; and *load balancers*, which send what comes to an
//! address and port to one of their endpoints.
//!
//! - [`register`]: the backend itself, a full-state sink, and the loop that keeps HNS in line;
//! - [`store`]: what is wanted and what is there, in two diff stores: [`EndpointStore`] for remote
//!   endpoints only, [`LoadBalancerStore`] for all load balancers;
//! - [`core`](mod@core): what the node offers (`pre_run`), what services want (`callback`), and the one place that
//!   writes (`program_host_compute_objects`);
//! - [`compile`]: a service's port in the terms of HCN, pure;
//! - [`identity`]: how ours are told from others';
//! - [`trace`](mod@trace): what a packet will meet;
//! - [`render`](mod@render): the documents that HNS would get.
//!
//! What Windows cannot do, and what happens instead:
//! - nobody serves: there is no load balancer, so traffic is neither rejected nor dropped by us;
//! - with an external policy Local, this node and its pods meet the local endpoints too;
//! - a load balancer has one target port: endpoints that listen elsewhere than most are left out;
//! - weights and turns do not exist; a client stays with its endpoint for as long as HNS likes;
//! - SCTP is not balanced, and source ranges are not enforced: HNS's rules (ACL) act at an endpoint, where
//!   the address that the client used is gone, so they would hit users of the cluster address too. Each is
//!   told once per service.

pub mod compile;
pub mod core;
pub mod identity;
pub mod options;
pub mod register;
pub mod render;
pub mod store;
pub mod trace;

pub use self::core::{Core, Failure, Outcome, PreRunError, assumed, cleanup, cleanup_others};
pub use compile::{
    Claim, Ground, LoadBalancerSpec, Nodes, Overlay, RemoteEndpoint, ServiceObjects,
};
pub use options::HcnOptions;
pub use register::{HcnBackend, HcnSyncer};
pub use render::render;
pub use store::{EndpointStore, FrontendKey, LoadBalancerStore};
pub use trace::{State, trace};
