//! Values of options that are more than a text: how each is written, and what is said of a wrong one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use telaio_model::ip;

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// Reads a network.
pub(super) fn cidr(text: &str) -> Result<IpNet, String> {
    text.parse().map_err(|_| format!("{text:?} is not a CIDR such as 10.96.0.0/16"))
}

/// Reads an address.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    ip::parse_ip(text).map_err(|error| error.to_string())
}

/// Reads a range of ports.
pub(super) fn port_range(text: &str) -> Result<PortRange, String> {
    let wrong = || format!("{text:?} is not a range of ports such as 30000-32767");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = (port(first).ok_or_else(wrong)?, port(last).ok_or_else(wrong)?);
    if first > last {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok(PortRange { first, last })
}

/// Reads an address to listen on. As with kube-proxy an address alone has the usual port; a port
/// alone (`:10249`) has all addresses.
pub(super) fn listen_address(text: &str, usual_port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(SocketAddr::new(ip, usual_port));
    }
    let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
    port.map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).ok_or_else(|| {
        format!(
            "invalid socket address {text:?}: write 127.0.0.1:{usual_port} or [::1]:{usual_port}"
        )
    })
}

/// Reads the name of a backend. kube-proxy's mode `kernelspace` is our `hcn`.
pub(super) fn backend(text: &str) -> Result<String, String> {
    crate::backend::parse(if text == "kernelspace" { "hcn" } else { text })
}

/// Reads the name of a network interface, or the beginning of one.
pub(super) fn interface(text: &str) -> Result<String, String> {
    /// The kernel's, without the zero at its end.
    const NAME_BYTES_MAX: usize = 15;
    // A plus at the end is a wildcard to iptables.
    let is_usable = |byte: u8| byte.is_ascii_graphic() && !b"/:+*".contains(&byte);
    let is_plain = text.bytes().all(is_usable) && text != "." && text != "..";
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !is_plain {
        return Err(format!(
            "{text:?} is not the name of an interface: 1 to {NAME_BYTES_MAX} letters, such as cni0"
        ));
    }
    Ok(text.to_owned())
}

/// Reads a number of bytes as nginx writes them (`8m`), or Kubernetes (`8Mi`).
#[cfg(unix)]
pub(super) fn size(text: &str, bounds: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size such as 512k, 8m or 1g");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (amount, unit) = text.split_at(digits);
    let amount: u64 = amount.parse().map_err(|_| wrong())?;
    let shift = match unit {
        "" => 0,
        "k" | "K" | "Ki" => 10,
        "m" | "M" | "Mi" => 20,
        "g" | "G" | "Gi" => 30,
        _ => return Err(wrong()),
    };
    let bytes = amount.checked_mul(1 << shift).ok_or_else(wrong)?;
    if bounds.contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("{text:?} is not between {} and {} bytes", bounds.start(), bounds.end()))
}

/// The longest time a setting may be: far beyond any use, far below any overflow.
const DURATION_MAX: Duration = Duration::from_hours(7 * 24);

/// Reads a time as Go writes it (`24h0m0s`, `1.5h`, `0`), or as people do (`1 min`).
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 10ms, 1s or 1m30s");
    let people_s = || text.parse::<jiff::SignedDuration>().ok()?.try_into().ok();
    let time: Duration = go_duration(text).or_else(people_s).ok_or_else(wrong)?;
    if time > DURATION_MAX {
        return Err(format!("{text:?} is longer than a week"));
    }
    Ok(time)
}

/// Go's form of a time that is not negative: numbers, each with its unit, or a zero.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit_s = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            // Two characters look like this one.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(number * unit_s).ok()?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_size_has_a_unit_or_is_in_bytes_and_within_its_bounds() {
        for (text, bytes) in
            [("8m", 8 << 20), ("8Mi", 8 << 20), ("512k", 512 << 10), ("4096", 4096)]
        {
            assert_eq!(size(text, 4096..=1 << 30), Ok(bytes), "{text}");
        }
        for bad in ["", "m", "8 m", "-1", "8t", "1.5g", "99999999999g", "1k", "2g"] {
            assert!(size(bad, 4096..=1 << 30).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_needs_a_unit_and_ends_within_a_week() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for bad in ["10", "", "-1s", "8d", "1h fast", "1.2.3s", "s", "."] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_may_be_written_as_go_writes_it() {
        for (text, time) in [
            ("24h0m0s", Duration::from_hours(24)),
            ("2h22m", Duration::from_mins(142)),
            ("1.5h", Duration::from_mins(90)),
            ("1m0.5s", Duration::from_millis(60_500)),
            ("30m1h", Duration::from_mins(90)),
            ("100us", Duration::from_micros(100)),
            ("100µs", Duration::from_micros(100)),
            ("0", Duration::ZERO),
        ] {
            assert_eq!(duration(text), Ok(time), "{text}");
        }
    }

    #[test]
    fn a_port_range_has_two_ends_in_order() {
        assert_eq!(port_range("30000-32767"), Ok(PortRange { first: 30000, last: 32767 }));
        for bad in ["30000", "0-10", "10-9", "1-65536", "a-b"] {
            assert!(port_range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_to_listen_on_may_leave_the_port_or_the_address_out() {
        for (text, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0", "0.0.0.0:10249"),
            ("::", "[::]:10249"),
            ("[::1]", "[::1]:10249"),
            (":4711", "0.0.0.0:4711"),
        ] {
            assert_eq!(listen_address(text, 10249).unwrap().to_string(), expected);
        }
        for bad in ["", ":", "host:1", "10249", "1.2.3.4:99999"] {
            assert!(listen_address(bad, 10249).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interface_has_a_name_that_the_kernel_could_have_given() {
        for good in ["cni0", "veth", "eth0.100"] {
            assert_eq!(interface(good).as_deref(), Ok(good));
        }
        for bad in ["", "a/b", "with space", "sixteen-letters-", "..", "a:1"] {
            assert!(interface(bad).is_err(), "{bad}");
        }
    }
}
