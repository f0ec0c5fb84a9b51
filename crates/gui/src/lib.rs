//! The admin API and the page: see a node's network, and manage it.
//!
//! ```text
//!  page, telaio, scripts ─► guard (Host, Origin, token, limits) ─► gui_server ─► hub ─► Agent
//!                                                              └─► page          │
//!                              one tick for all: history, events, stream ◄───────┘
//! ```
//!
//! The crate knows the agent only by the trait [`Agent`], so it is tested without one. [`values`] is
//! what the API says, [`openapi`] describes it, [`gui_server`] answers, [`manage`] does what people
//! ask for and [`audit`] remembers it.
//!
//! What always holds:
//! - However many pages are open, the agent is asked for figures once a tick, and for lists at most
//!   once a tick. A message of the stream is written once and shared.
//! - Nothing is answered to a Host or an Origin that is not ours, and nothing but the page and the
//!   document without a token. A token is never in a URL, a cookie or a log.
//! - Streams, history, events, the audit log and bodies are bounded.

pub mod agent;
mod attention;
pub mod audit;
mod entry_id;
pub mod events;
pub mod guard;
pub mod gui_server;
mod history;
mod hub;
mod lists;
pub mod manage;
mod map;
pub mod openapi;
mod page;
pub mod token;
pub mod values;

pub use agent::{Agent, Figures, HttpFigures, Network, Refusal};
pub use audit::{AuditLog, Step};
pub use entry_id::AgentName;
pub use events::{EventLog, NewEvent};
pub use guard::GuardSettings;
pub use gui_server::{GuiServer, GuiSettings};
pub use token::Tokens;
