//! The gateway: Ingress objects become the table that the HTTP proxy serves.
//!
//! ```text
//!  node's view ─► EventListener ─► IngressEvent ─► IngressProcessor ─► TableChange ─► proxy
//!                 (what changed)                   (what it means)  └► warnings, status
//! ```
//!
//! Read it in this order:
//! - [`listener`] follows a node's view and says what of it is news for the ingress;
//! - [`class`] decides which Ingresses are ours, [`annotations`] what they ask for beyond their rules;
//! - [`compile`] makes of one Ingress what it wants in the table, [`claims`] decides who gets a host
//!   and path that several want, [`host_tls`] who has a host's TLS, [`backends`] makes services' ports into backends;
//! - [`gateway`] keeps all of it and works out, per change, what of the table changes;
//! - [`processor`] runs it; [`status`] tells the cluster; [`migrate`] tells a person beforehand.
//!
//! What always holds:
//! - a change costs what depends on it: an endpoint touches its service's backends, an Ingress its
//!   own routes and those that contest them;
//! - the table depends only on the objects, never on the order in which they came;
//! - what is wrong with one Ingress is a warning on it and never keeps another from working;
//! - what was meant to keep somebody out and cannot be used keeps everybody out.

pub mod annotations;
pub mod backends;
pub mod certificates;
pub mod claims;
pub mod class;
pub mod compile;
pub mod gateway;
pub mod host_tls;
pub mod listener;
mod maintenance;
pub mod migrate;
mod paths;
mod policy;
pub mod processor;
pub mod small_set;
pub mod status;
pub mod warning;

pub use gateway::{Commit, Gateway, GatewaySettings};
pub use listener::{EventListener, IngressEvent, ServiceNews, View};
pub use processor::{IngressProcessor, TableSink};
pub use warning::{Reason, Warning};

/// The name of the controller in an IngressClass that makes its Ingresses ours.
pub const CONTROLLER: &str = "telaio.dev/ingress";
