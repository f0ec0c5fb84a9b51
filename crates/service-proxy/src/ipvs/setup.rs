//! Sanity checks, and what the kernel needs before IPVS can serve.

use telaio_model::IpFamily;
use telaio_netlink::ipset::Ipset;
use telaio_netlink::ipvs::{Ipvs, Timeouts};

use crate::iptables::{Flavor, Programs};
use crate::sysctls::{
    ARP_ANNOUNCE, ARP_IGNORE, Aim, IP_FORWARD, Setting, VS_CONN_REUSE_MODE, VS_CONNTRACK,
    VS_EXPIRE_NODEST_CONN, VS_EXPIRE_QUIESCENT_TEMPLATE, VS_TIMEOUT_TCP, VS_TIMEOUT_TCP_FIN,
    VS_TIMEOUT_UDP,
};

/// From this kernel on a client's port can be used again at once. Before, the first packet of such a
/// connection was dropped, and the client waited a second.
const REUSE_WORKS_SINCE: (u32, u32) = (5, 9);

/// Fails, with what to do about it, if this machine cannot run the backend.
pub fn check(families: &[IpFamily], flavor: Flavor) -> Result<(), String> {
    let told = |error: telaio_netlink::NetlinkError| {
        if error.is_permission() {
            "changing IPVS needs root, or CAP_NET_ADMIN in this network namespace".to_owned()
        } else {
            error.to_string()
        }
    };
    if Ipvs::open().map_err(told)?.is_none() {
        return Err("this kernel has no IPVS: load the module ip_vs (`modprobe ip_vs`), or use \
                    --backend nftables, which needs none"
            .to_owned());
    }
    let sets = Ipset::open().and_then(|mut sets| sets.names());
    if let Err(error) = sets {
        if error.is_unsupported() {
            return Err("this kernel has no ipset, which the backend ipvs needs: load the module \
                        ip_set (`modprobe ip_set`)"
                .to_owned());
        }
        return Err(told(error));
    }
    for family in families {
        let programs = Programs::find(flavor, *family).map_err(|error| error.to_string())?;
        programs.check().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The kernel's settings that IPVS needs to serve as we promise, and what the operator asks for: how long
/// connections without packets are kept, where 0 leaves it as it is.
pub fn settings(strict_arp: bool, timeouts: &Timeouts) -> Vec<Setting> {
    let exactly = |path, value| Setting { path, aim: Aim::Exactly(value), needs: None };
    let reuse = u64::from(kernel_release().is_none_or(|it| it >= REUSE_WORKS_SINCE));
    let mut settings = vec![
        // Masquerading, and the state of connections in rules.
        exactly(VS_CONNTRACK, 1),
        exactly(VS_CONN_REUSE_MODE, reuse),
        // A client does not stay with an endpoint that is gone, or going.
        exactly(VS_EXPIRE_NODEST_CONN, 1),
        exactly(VS_EXPIRE_QUIESCENT_TEMPLATE, 1),
        exactly(IP_FORWARD, 1),
    ];
    if strict_arp {
        // Only the owner answers for an address; others have it on their devices as well.
        settings.push(exactly(ARP_IGNORE, 1));
        settings.push(exactly(ARP_ANNOUNCE, 2));
    }
    for (path, seconds) in [
        (VS_TIMEOUT_TCP, timeouts.tcp_s),
        (VS_TIMEOUT_TCP_FIN, timeouts.tcp_fin_s),
        (VS_TIMEOUT_UDP, timeouts.udp_s),
    ] {
        if seconds > 0 {
            settings.push(exactly(path, seconds.into()));
        }
    }
    settings
}

fn kernel_release() -> Option<(u32, u32)> {
    release(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|char: char| !char.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_a_kernel_is_read() {
        assert_eq!(release("6.1.176"), Some((6, 1)));
        assert_eq!(release("5.10.0-30-cloud-amd64\n"), Some((5, 10)));
        assert_eq!(release("next"), None);
        assert!(release("5.4.0-90-generic") < Some(REUSE_WORKS_SINCE));
    }

    #[test]
    fn strict_arp_is_set_only_if_asked_for() {
        let none = Timeouts { tcp_s: 0, tcp_fin_s: 0, udp_s: 0 };
        let has_arp =
            |strict| settings(strict, &none).iter().any(|it| it.path.ends_with("arp_ignore"));
        assert!(has_arp(true));
        assert!(!has_arp(false));
    }

    #[test]
    fn only_time_outs_that_were_asked_for_are_set() {
        let timeouts = Timeouts { tcp_s: 0, tcp_fin_s: 0, udp_s: 60 };
        let all = settings(false, &timeouts);
        let of_ipvs: Vec<_> = all.iter().filter(|it| it.path.contains("timeout")).collect();
        let udp = Setting { path: VS_TIMEOUT_UDP, aim: Aim::Exactly(60), needs: None };
        assert_eq!(of_ipvs, [&udp]);
    }
}
