//! How fast an instance may be.
//!
//! What goes into an instance is limited where the node sends it: a token bucket on the node's end of the instance's
//! interface. What comes out of it is redirected, at the same place, to a link of the kind `ifb` that is only there to send it
//! on no faster than it may. Both are the node's: an instance that may change its own network cannot change its limits.
//!
//! What always holds: that link is named after the node's end and goes with [`clear`]; one whose node's end is gone is
//! [stale](is_stale) and can be removed by anybody.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use telaio_model::Labels;
use telaio_netlink::links::{LinkIndex, Links, NewLink};
use telaio_netlink::tc::{TokenBucket, TrafficControl};

use crate::error::{Error, Result};
use crate::names::{self, HOST_LINK_PREFIX};

/// What the names of the links begin with that limit what instances send.
pub const LIMIT_LINK_PREFIX: &str = "tli";
/// How fast, in bits per second, a pod may be into itself.
pub const ANNOTATION_INGRESS: &str = "kubernetes.io/ingress-bandwidth";
/// And out of itself.
pub const ANNOTATION_EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// The longest name of a link.
const LINK_NAME_LEN_MAX: usize = 15;
/// For how long packets wait at most, if the limit is kept: the reference plugin's value.
const QUEUE_MS: u64 = 25;
/// Without a burst: what goes through in this time, and at least this many bytes.
const BURST_MS: u64 = 100;
const BURST_BYTES_MIN: u64 = 64 << 10;
/// Kubernetes' bounds for annotations, in bits per second.
const ANNOTATED_MIN: u64 = 1_000;
const ANNOTATED_MAX: u64 = 1_000_000_000_000_000;

/// Limits of one interface, in bits per second and bits, as CNI's capability `bandwidth` has them. Zero: no
/// limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// Into the instance, in bits per second.
    pub ingress_rate: u64,
    /// How much at once, in bits; zero lets us choose.
    pub ingress_burst: u64,
    /// Out of the instance, in bits per second.
    pub egress_rate: u64,
    /// How much at once, in bits; zero lets us choose.
    pub egress_burst: u64,
}

impl Bandwidth {
    /// Nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.ingress_rate == 0 && self.egress_rate == 0
    }

    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<()> {
        for (field, rate, burst) in [
            ("bandwidth.ingressBurst", self.ingress_rate, self.ingress_burst),
            ("bandwidth.egressBurst", self.egress_rate, self.egress_burst),
        ] {
            if rate == 0 && burst > 0 {
                let why =
                    "a burst needs a rate; set the rate too, or leave the burst out".to_owned();
                return Err(Error::Invalid { field, why });
            }
            if burst / 8 > u64::from(u32::MAX) {
                let why = format!("{burst} bits are more than the kernel's 4 GiB; choose less");
                return Err(Error::Invalid { field, why });
            }
        }
        Ok(())
    }

    /// The limits that a pod's annotations ask for, if they do.
    ///
    /// ```
    /// use telaio_model::Labels;
    /// use telaio_pod_network::Bandwidth;
    ///
    /// let annotations = Labels::from([("kubernetes.io/ingress-bandwidth".into(), "10M".into())]);
    /// let limits = Bandwidth::from_annotations(&annotations)?.unwrap();
    /// assert_eq!((limits.ingress_rate, limits.egress_rate), (10_000_000, 0));
    /// assert_eq!(Bandwidth::from_annotations(&Labels::new())?, None);
    /// # Ok::<(), telaio_pod_network::Error>(())
    /// ```
    pub fn from_annotations(annotations: &Labels) -> Result<Option<Self>> {
        let rate = |field: &'static str| {
            let text = annotations.get(field);
            text.map_or(Ok(0), |text| annotated_rate(field, text))
        };
        let limits = Self {
            ingress_rate: rate(ANNOTATION_INGRESS)?,
            egress_rate: rate(ANNOTATION_EGRESS)?,
            ..Self::default()
        };
        Ok((!limits.is_unlimited()).then_some(limits))
    }
}

fn annotated_rate(field: &'static str, text: &str) -> Result<u64> {
    let refused = |why: String| Error::Invalid { field, why };
    let rate = quantity(text).ok_or_else(|| {
        refused(format!("{text:?} is not a quantity of bits per second such as 10M or 1Gi"))
    })?;
    if !(ANNOTATED_MIN..=ANNOTATED_MAX).contains(&rate) {
        return Err(refused(format!("{text} is not between 1k and 1P bits per second")));
    }
    Ok(rate)
}

/// A quantity as Kubernetes writes it, rounded up to a whole number; `None` if it is none, or too large.
fn quantity(text: &str) -> Option<u64> {
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 30 {
        return None;
    }
    let (factor, divisor): (u128, u128) = match suffix {
        "" => (1, 1),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1000_u128.pow(2), 1),
        "G" => (1000_u128.pow(3), 1),
        "T" => (1000_u128.pow(4), 1),
        "P" => (1000_u128.pow(5), 1),
        "E" => (1000_u128.pow(6), 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: u32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            (10_u128.checked_pow(power)?, 1)
        }
    };
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let divisor = divisor * 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    u64::try_from(digits.checked_mul(factor)?.div_ceil(divisor)).ok()
}

/// The name of the link that limits what the instance behind a node's end sends.
pub fn limit_link(host_link: &str) -> String {
    let own = host_link.strip_prefix(HOST_LINK_PREFIX).unwrap_or(host_link);
    if LIMIT_LINK_PREFIX.len() + own.len() <= LINK_NAME_LEN_MAX {
        return format!("{LIMIT_LINK_PREFIX}{own}");
    }
    format!("{LIMIT_LINK_PREFIX}{}", names::short(host_link))
}

/// Whether a link limits none of these.
pub fn is_stale<'a>(link: &str, mut host_links: impl Iterator<Item = &'a str>) -> bool {
    link.starts_with(LIMIT_LINK_PREFIX) && !host_links.any(|host| limit_link(host) == link)
}

/// Limits what goes through the node's end of an instance's interface to what it may; limits from before end. To be called in
/// the node's network namespace.
pub fn set(host_link: &str, limits: &Bandwidth) -> Result<()> {
    limits.check()?;
    let failed = |what: &str| Error::kernel(format!("{what} of {host_link}"));
    let mut links = Links::open().map_err(failed("limiting the speed"))?;
    let found = links.find(host_link).map_err(failed("limiting the speed"))?;
    let Some(link) = found else {
        let hint = "attach the instance first";
        return Err(Error::Unknown { kind: "link", name: host_link.to_owned(), hint });
    };
    let mut control = TrafficControl::open().map_err(failed("limiting the speed"))?;
    match bucket(limits.ingress_rate, limits.ingress_burst) {
        Some(bucket) => control.limit(link, &bucket),
        None => control.unlimit(link).map(drop),
    }
    .map_err(failed("limiting what goes into the instance"))?;
    let outcome = match bucket(limits.egress_rate, limits.egress_burst) {
        Some(bucket) => limit_sending(&mut links, &mut control, link, host_link, &bucket),
        None => control.stop_redirecting(link).map(drop),
    };
    outcome.map_err(failed("limiting what comes out of the instance"))?;
    if limits.egress_rate == 0 {
        remove_limit_link(&mut links, host_link)?;
    }
    Ok(())
}

/// The limits that are there: listed once, however many instances are looked at.
#[derive(Debug)]
pub(crate) struct Limited {
    links: Links,
    control: TrafficControl,
    there: HashMap<LinkIndex, TokenBucket>,
}

impl Limited {
    pub(crate) fn read() -> Result<Self> {
        let failed = || Error::kernel("listing limits");
        let links = Links::open().map_err(failed())?;
        let mut control = TrafficControl::open().map_err(failed())?;
        let there = control.limits().map_err(failed())?.into_iter().collect();
        Ok(Self { links, control, there })
    }

    /// Whether what goes through the node's end of an instance's interface is limited to what it may.
    pub(crate) fn has(&mut self, host_link: &str, limits: &Bandwidth) -> Result<bool> {
        let failed = || Error::kernel(format!("looking at the limits of {host_link}"));
        let Some(link) = self.links.find(host_link).map_err(failed())? else { return Ok(false) };
        if !self.is_limited(link, bucket(limits.ingress_rate, limits.ingress_burst)) {
            return Ok(false);
        }
        let through = self.control.redirected_to(link).map_err(failed())?;
        match (bucket(limits.egress_rate, limits.egress_burst), through) {
            (None, None) => Ok(true),
            (Some(bucket), Some(through)) => {
                let named = self.links.get(&limit_link(host_link)).map_err(failed())?;
                let is_it = named.is_some_and(|named| named.index == through && named.is_up());
                Ok(is_it && self.is_limited(through, Some(bucket)))
            }
            _ => Ok(false),
        }
    }

    /// The kernel keeps a burst as a time, and rounds it.
    fn is_limited(&self, at: LinkIndex, wanted: Option<TokenBucket>) -> bool {
        let found = self.there.get(&at).map(|it| (it.rate, it.queue));
        found == wanted.map(|it| (it.rate, it.queue))
    }
}

fn limit_sending(
    links: &mut Links,
    control: &mut TrafficControl,
    link: LinkIndex,
    host_link: &str,
    bucket: &TokenBucket,
) -> std::result::Result<(), telaio_netlink::NetlinkError> {
    let name = limit_link(host_link);
    let through = match links.find(&name)? {
        Some(through) => through,
        None => links.create(&name, &NewLink::Ifb)?,
    };
    let done = control
        .limit(through, bucket)
        .and_then(|()| links.set_up(through, true))
        .and_then(|()| control.redirect(link, through));
    if done.is_err() {
        // It would limit nothing; why there is no limit is worth more than whether it went.
        let _ = links.delete(through);
    }
    done
}

/// Ends the limits of an instance whose interface's node's end is, or was, of this name. To be called in the node's network
/// namespace.
pub fn clear(host_link: &str) -> Result<()> {
    let failed = || Error::kernel(format!("ending the limits of {host_link}"));
    let mut links = Links::open().map_err(failed())?;
    if let Some(link) = links.find(host_link).map_err(failed())? {
        let mut control = TrafficControl::open().map_err(failed())?;
        control.unlimit(link).map_err(failed())?;
        // Before the link goes to which it is redirected, or nothing would come out any more.
        control.stop_redirecting(link).map_err(failed())?;
    }
    remove_limit_link(&mut links, host_link)
}

fn remove_limit_link(links: &mut Links, host_link: &str) -> Result<()> {
    let name = limit_link(host_link);
    let removed = match links.find(&name) {
        Ok(Some(link)) => links.delete(link).map(drop),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(Error::kernel(format!("removing link {name}")))
}

/// The bucket of a rate in bits per second; none for no limit.
fn bucket(rate: u64, burst: u64) -> Option<TokenBucket> {
    if rate == 0 {
        return None;
    }
    let rate = (rate / 8).max(1);
    let in_time = |milliseconds: u64| rate.saturating_mul(milliseconds) / 1000;
    let burst =
        if burst == 0 { in_time(BURST_MS).max(BURST_BYTES_MIN) } else { (burst / 8).max(1) };
    let queue = in_time(QUEUE_MS).saturating_add(burst);
    let bytes = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Some(TokenBucket { rate, burst: bytes(burst), queue: bytes(queue) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, value) in [
            ("1000", 1000),
            ("10M", 10_000_000),
            ("1.5G", 1_500_000_000),
            ("1Ki", 1024),
            ("2e3", 2000),
            ("1500m", 2),
            (".5k", 500),
        ] {
            assert_eq!(quantity(text), Some(value), "{text}");
        }
        for text in ["", "M", "-1", "1.2.3", "10Mbit", "1e", "99999999999999999999E", "e5", " 1"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }

    #[test]
    fn annotations_out_of_bounds_are_refused_by_name() {
        for text in ["999", "2P", "fast"] {
            let annotations = Labels::from([(ANNOTATION_EGRESS.into(), text.into())]);
            let error = Bandwidth::from_annotations(&annotations).unwrap_err().to_string();
            assert!(error.starts_with(ANNOTATION_EGRESS) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_burst_without_a_rate_and_one_too_large_are_refused() {
        let lone = Bandwidth { egress_burst: 1, ..Bandwidth::default() };
        assert!(lone.check().unwrap_err().to_string().contains("egressBurst"));
        let large = Bandwidth { ingress_rate: 1, ingress_burst: u64::MAX, ..Bandwidth::default() };
        assert!(large.check().unwrap_err().to_string().contains("ingressBurst"));
        assert!(Bandwidth { ingress_rate: 1, ..Bandwidth::default() }.check().is_ok());
    }

    #[test]
    fn a_limit_link_without_its_instance_is_stale() {
        let all = || ["tlvabc", "veth-of-another"].into_iter();
        assert_eq!(limit_link("tlvabc"), "tliabc");
        assert!(is_stale("tlixyz", all()));
        assert!(
            !is_stale("tliabc", all()) && !is_stale("tlvabc", all()) && !is_stale("eth0", all())
        );
        let long = limit_link("veth-of-another");
        assert!(long.len() <= 15 && !is_stale(&long, all()), "{long}");
    }
}
