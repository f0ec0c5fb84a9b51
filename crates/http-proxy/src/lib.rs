//! The HTTP data plane: what a client sends is matched against a table of routes, balanced over a
//! service's endpoints, and answered.
//!
//! ```text
//!  listener ─► wire (h1, h2) ─► RequestHead ─► RouteTable ─► filters ─► cache ─► LoadBalancer ─► pool ─► endpoint
//!              tls, proxy protocol   head        table         filter     cache     balance      upstream
//! ```
//!
//! Read it in this order:
//! - [`head`]: a request's and a response's head as every part sees them, whatever wire they came by;
//! - [`table`]: routes, backends and policies as plain values, and the immutable [`RouteTable`] that
//!   requests are matched against;
//! - [`error`]: what can go wrong, whose fault it is and whether to try again;
//! - [`reply`]: answers that we give ourselves, among them the error pages.
//!
//! What always holds:
//! - A table is never changed, only replaced ([`arc_swap`]); a request keeps the one that it began
//!   with. State that outlives a table (connections, load, health) is kept by the backend's identity.
//! - What happens to a request is decided by code that sees a [`RequestHead`] and not the wire.
//! - A request whose framing can be read in two ways is refused and its connection closed.
//! - Every buffer, queue, list and wait has a bound.
//!
//! [`RouteTable`]: table::RouteTable
//! [`RequestHead`]: head::RequestHead

pub mod cache;
pub mod error;
pub mod head;
pub mod reply;
pub mod table;

pub use error::{ErrorKind, ProxyError, Side};
pub use head::{ClientInfo, Headers, Known, RequestHead, ResponseHead, Scheme};
pub use reply::Reply;
