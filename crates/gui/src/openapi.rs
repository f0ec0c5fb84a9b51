//! The OpenAPI document of `/api/v1`, made from [`values`](crate::values) and kept in the repository,
//! so that whoever builds against the API reads it there.

/// The document: what `GET /api/v1/openapi.json` answers.
pub const DOCUMENT: &str = include_str!("../openapi.json");

#[cfg(test)]
mod tests;
