//! The flags of the ingress plane about what clients may take, and what is kept for them.

use std::time::Duration;

use clap::Args;

use super::values::{duration, size};

/// The shortest time that clients may be given.
const TIME_MIN: Duration = Duration::from_secs(1);

/// What clients may take, and what is kept for them.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "they are the flags' names")]
pub(crate) struct IngressBoundsArgs {
    /// How many connections of clients there may be; beyond, those that are idle for longest give way
    #[arg(long, value_name = "NUMBER", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ingress_connections_max: u32,

    /// How many bytes per second of a request's body a client must send at least, on average; 0 asks for
    /// nothing
    #[arg(long, value_name = "BYTES", default_value_t = 240)]
    pub(crate) ingress_body_rate_min: u32,

    /// How large a request's head may be (431 beyond), and its target a quarter of it (414 beyond)
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| size(text, 4 << 10..=1 << 20),
          default_value = "32k")]
    pub(crate) ingress_head_size: u64,

    /// How long a client may take to send a head
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "15s")]
    pub(crate) ingress_head_timeout: Duration,

    /// How long a client's connection is kept open between two requests
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "75s")]
    pub(crate) ingress_keep_alive: Duration,

    /// How much the cache keeps in all, where an Ingress asks for it
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| size(text, 1 << 20..=1 << 40),
          default_value = "128m")]
    pub(crate) ingress_cache_size: u64,

    /// The largest response that it keeps
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| size(text, 1 << 10..=1 << 40),
          default_value = "8m")]
    pub(crate) ingress_cache_entry_size: u64,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < TIME_MIN {
        return Err(format!("{text:?} is less than a second"));
    }
    Ok(time)
}
