//! The admin API and the page: see a node's network, and manage it.
//!
//! ```text
//!  page, telaio status, scripts ─► guard (Host, Origin, token, limits) ─► /api/v1 ─► Agent
//!                                                                     └─► the embedded page
//! ```
//!
//! [`values`] is what the API says; [`openapi`] describes it.

pub mod openapi;
pub mod values;
