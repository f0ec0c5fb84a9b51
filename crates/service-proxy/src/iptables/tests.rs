//! The whole way from services to rules, on a kernel that is only played.

pub(crate) mod fake;
mod incremental;
mod paths;
mod text;
