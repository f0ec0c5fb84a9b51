//! The real kernel, in a namespace of its own.

use std::process::Command;

use super::*;
use crate::links::{Links, NewLink};
use crate::netns::Netns;

fn within(name: &str, work: impl FnOnce() + Send) {
    let name = format!("telaio-tc-{name}-{}", std::process::id());
    let netns = Netns::create(&name).unwrap();
    let outcome = netns.run(work);
    Netns::remove(&name).unwrap();
    outcome.unwrap();
}

fn tc(command: &str) -> String {
    let done = Command::new("tc").args(command.split(' ')).output().unwrap();
    assert!(done.status.success(), "tc {command}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn a_limit_is_there_can_be_read_and_goes() {
    within("limit", || {
        let mut links = Links::open().unwrap();
        let link = links.create("d0", &NewLink::Ifb).unwrap();
        let mut control = TrafficControl::open().unwrap();
        let slow = TokenBucket { rate: 125_000, burst: 20_000, queue: 30_000 };
        let fast = TokenBucket { rate: 5_000_000_000, burst: 1_000_000, queue: 2_000_000 };
        for bucket in [slow, fast, slow] {
            control.limit(link, &bucket).unwrap();
            let limits = control.limits().unwrap();
            let [(at, found)] = limits.as_slice() else { panic!("{limits:?}") };
            assert_eq!((*at, found.rate, found.queue), (link, bucket.rate, bucket.queue));
            let difference = found.burst.abs_diff(bucket.burst);
            assert!(difference <= bucket.burst / 50, "{found:?}");
        }
        let listed = tc("qdisc show dev d0");
        assert!(listed.contains("tbf") && listed.contains("rate 1Mbit"), "{listed}");
        assert!(control.unlimit(link).unwrap());
        assert!(!control.unlimit(link).unwrap());
        assert!(!tc("qdisc show dev d0").contains("tbf"));
        assert_eq!(control.limits().unwrap(), []);
    });
}

#[test]
fn what_comes_in_is_redirected_and_no_more() {
    within("redirect", || {
        let mut links = Links::open().unwrap();
        let from = links.create("d0", &NewLink::Ifb).unwrap();
        let to = links.create("i0", &NewLink::Ifb).unwrap();
        let mut control = TrafficControl::open().unwrap();
        // The second time it takes the place of the first.
        for _ in 0..2 {
            control.redirect(from, to).unwrap();
        }
        let listed = tc("filter show dev d0 ingress");
        assert_eq!(listed.matches("Egress Redirect to device i0").count(), 1, "{listed}");
        assert_eq!(control.redirected_to(from).unwrap(), Some(to));
        assert_eq!(control.redirected_to(to).unwrap(), None);
        assert!(control.stop_redirecting(from).unwrap());
        assert!(!control.stop_redirecting(from).unwrap());
        assert_eq!(tc("filter show dev d0 ingress"), "");
    });
}

#[test]
fn a_link_that_is_gone_is_an_error_for_a_limit_and_none_for_its_end() {
    within("gone", || {
        let mut control = TrafficControl::open().unwrap();
        let bucket = TokenBucket { rate: 1, burst: 1, queue: 1 };
        let error = control.limit(LinkIndex(77), &bucket).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert!(!control.unlimit(LinkIndex(77)).unwrap());
    });
}
