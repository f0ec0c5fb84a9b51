//! The HTTP data plane: what a client sends is matched against a table of routes, balanced over a
//! service's endpoints, and answered.
//!
//! ```text
//!  listener ─► wire (h1, h2) ─► RequestHead ─► Router ─► filters ─► cache ─► LoadBalancer ─► pool ─► endpoint
//!              tls, proxy protocol   head        table         filter     cache     balance      upstream
//! ```
//!
//! Read it in this order:
//! - [`head`]: a request's and a response's head as every part sees them, whatever wire they came by;
//! - [`table`]: routes, backends and policies as plain values, and the immutable [`Router`] that
//!   requests are matched against;
//! - [`error`]: what can go wrong, whose fault it is and whether to try again;
//! - [`reply`]: answers that we give ourselves, among them the error pages;
//! - [`router`]: which route a request takes;
//! - [`balance`], [`upstream`]: which endpoint, by which connection;
//! - [`proxy`]: what happens to a request;
//! - [`h1`]: HTTP/1.1 on both sides;
//! - [`server`]: listeners and threads.
//!
//! What always holds:
//! - A table is never changed, only replaced ([`arc_swap`]); a request keeps the one that it began
//!   with. State that outlives a table (connections, load, health) is kept by the backend's identity.
//! - What happens to a request is decided by code that sees a [`RequestHead`] and not the wire.
//! - A request whose framing can be read in two ways is refused and its connection closed.
//! - Every buffer, queue, list and wait has a bound.
//!
//! [`RequestHead`]: head::RequestHead

mod accept;
pub mod balance;
pub mod body;
pub mod cache;
mod client_stream;
mod clock;
pub mod compress;
pub mod error;
pub mod filter;
pub mod front;
#[doc(hidden)]
pub mod fuzzing;
pub mod h1;
pub mod h2;
pub mod head;
mod idle;
mod pace;
pub mod proxy;
pub mod proxy_protocol;
pub mod reach;
pub mod reply;
pub mod router;
pub mod server;
pub mod table;
pub mod tls;
pub mod upstream;
pub mod watch;

pub use balance::LoadBalancer;
pub use error::{ErrorKind, ProxyError, Side};
pub use head::{ClientInfo, Headers, Known, RequestHead, ResponseHead, Scheme};
pub use proxy::{HttpProxy, ProxySettings};
pub use reply::Reply;
pub use router::Router;
pub use upstream::Upstreams;
