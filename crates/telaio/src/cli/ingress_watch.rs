//! The flags of the ingress plane about who asks, and about what is told of requests.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::values::cidr;

/// Where the access log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AccessLogTo {
    /// Nowhere.
    Off,
    /// To standard output.
    Stdout,
    /// To the end of a file.
    File(PathBuf),
}

/// How a line of it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccessLogFormat {
    /// An object with named members.
    Json,
    /// As Apache and nginx write it.
    Combined,
}

/// Whether connections begin with a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProxyProtocol {
    /// They do not.
    Off,
    /// They do.
    On,
}

/// Who asks, and what is told of requests.
#[derive(Debug, Clone, Args)]
pub(crate) struct IngressWatchArgs {
    /// Whether connections, on both ports, begin with a PROXY header (version 1 or 2) that says who the
    /// client is
    #[arg(long, value_name = "BOOL", value_enum, default_value_t = ProxyProtocol::Off)]
    pub(crate) proxy_protocol: ProxyProtocol,

    /// Networks whose connections do so; those of others are clients' own [default: all]
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr)]
    pub(crate) proxy_protocol_from: Vec<IpNet>,

    /// Where a line per request is written: FILE, stdout or off. SIGHUP opens the file anew
    #[arg(long, value_name = "FILE", value_parser = access_log_to, default_value = "off")]
    pub(crate) access_log: AccessLogTo,

    /// How a line looks
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = AccessLogFormat::Json)]
    pub(crate) access_log_format: AccessLogFormat,

    /// One request in so many is written down, and each that failed (5xx)
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) access_log_sample: u64,

    /// Collector of OpenTelemetry (OTLP over HTTP) that spans are sent to, such as
    /// http://collector:4318 [default: none]
    #[arg(long, value_name = "URL", value_parser = otlp_url)]
    pub(crate) otlp_endpoint: Option<String>,

    /// One request in so many that belongs to no trace begins one
    #[arg(long, value_name = "NUMBER", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) otlp_sample: u64,

    /// Name of the service that spans are said to come from
    #[arg(long, value_name = "NAME", default_value = "telaio")]
    pub(crate) otlp_service_name: String,
}

#[cfg(unix)]
impl IngressWatchArgs {
    /// The networks whose connections begin with a PROXY header.
    pub(crate) fn proxy_protocol_ranges(&self) -> Vec<IpNet> {
        match self.proxy_protocol {
            ProxyProtocol::Off => Vec::new(),
            ProxyProtocol::On if self.proxy_protocol_from.is_empty() => {
                vec![IpNet::V4(ipnet::Ipv4Net::default()), IpNet::V6(ipnet::Ipv6Net::default())]
            }
            ProxyProtocol::On => self.proxy_protocol_from.clone(),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "clap asks for it")]
fn access_log_to(text: &str) -> Result<AccessLogTo, String> {
    Ok(match text {
        "off" => AccessLogTo::Off,
        "stdout" | "-" => AccessLogTo::Stdout,
        path => AccessLogTo::File(path.into()),
    })
}

/// A URL; without a path of its own, that of traces is meant.
fn otlp_url(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not a URL such as http://collector:4318");
    let url: http::Uri = text.parse().map_err(|_| wrong())?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    let plain = text.trim_end_matches('/');
    Ok(if url.path() == "/" { format!("{plain}/v1/traces") } else { text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_without_a_path_gets_that_of_traces() {
        let ok = |text: &str, wanted: &str| assert_eq!(otlp_url(text), Ok(wanted.to_owned()));
        ok("http://collector:4318", "http://collector:4318/v1/traces");
        ok("http://collector:4318/", "http://collector:4318/v1/traces");
        ok("https://c.example.com/otlp/v1/traces", "https://c.example.com/otlp/v1/traces");
        for bad in ["collector:4318", "grpc://collector", "http://", ""] {
            assert!(otlp_url(bad).is_err(), "{bad}");
        }
    }
}
