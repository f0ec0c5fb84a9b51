//! The ingress plane: HTTP from outside, to services' endpoints.
//!
//! ```text
//!  node's view ─► plane ══ link ══► worker: listener ─► processor ─► proxy ─► clients
//!                   ▲                  │
//!                   └── routes loaded, warnings, whose Ingresses ──┘
//! ```
//!
//! The [`plane`] holds the listening sockets, follows the node's view and restarts the [`worker`](mod@worker)
//! when it ends; the worker serves. Between them is a [`link`], a Unix socket that carries the view
//! as the Local API's messages, the sockets, what the worker has to tell, and [questions](control) with
//! their answers. As root the worker is
//! a process of its own that gives up every privilege before it reads a byte of anybody's; otherwise
//! it is a thread, over the same link. So a fault in parsing never holds our capabilities, and a crash
//! costs the requests that run and nothing else: connections wait in the sockets meanwhile.

mod access_log;
mod changes;
mod control;
mod handover;
mod link;
mod plane;
mod predecessor;
mod settings;
mod status;
mod view;
mod worker;

pub(crate) use access_log::LogFiles;
pub(crate) use control::{ControlError, IngressControl};
pub(crate) use handover::{Handover, Owned};
pub(crate) use link::Sockets;
pub(crate) use plane::{IngressPlane, IngressState, PlaneOptions, take_address};
pub(crate) use predecessor::Predecessor;
pub(crate) use status::Told;
pub(crate) use view::brain_client;
pub(crate) use worker::worker;
