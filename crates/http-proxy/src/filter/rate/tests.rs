use std::net::Ipv4Addr;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_even_flow_passes_and_a_burst_is_bounded() {
    let rates = Rates::default();
    let pace = Pace::new(10, Duration::from_secs(1), 5).unwrap();
    let start = 100 * SECOND;
    let passed = (0..20).filter(|_| rates.take(1, pace, ip("10.0.0.1"), start).is_ok()).count();
    assert_eq!(passed, 6, "one that is due and five at once beyond");
    let wait = rates.take(1, pace, ip("10.0.0.1"), start).unwrap_err();
    assert_eq!(wait, Duration::from_millis(100));
    for tenth in 1..50 {
        assert!(rates.take(1, pace, ip("10.0.0.1"), start + tenth * SECOND / 10).is_ok());
    }
}

#[test]
fn clients_and_limits_do_not_count_for_each_other() {
    let rates = Rates::default();
    let pace = Pace::new(1, Duration::from_mins(1), 0).unwrap();
    assert!(rates.take(1, pace, ip("10.0.0.1"), SECOND).is_ok());
    assert!(rates.take(1, pace, ip("10.0.0.1"), SECOND).is_err());
    assert!(rates.take(1, pace, ip("10.0.0.2"), SECOND).is_ok());
    assert!(rates.take(2, pace, ip("10.0.0.1"), SECOND).is_ok());
    assert!(rates.take(1, pace, ip("::ffff:10.0.0.1"), SECOND).is_err(), "the same client");
}

#[test]
fn a_network_of_ipv6_is_one_client() {
    let rates = Rates::default();
    let pace = Pace::new(1, Duration::from_mins(1), 0).unwrap();
    assert!(rates.take(1, pace, ip("2001:db8::1"), SECOND).is_ok());
    assert!(rates.take(1, pace, ip("2001:db8::ffff"), SECOND).is_err());
    assert!(rates.take(1, pace, ip("2001:db8:0:1::1"), SECOND).is_ok());
}

#[test]
fn memory_is_bounded_and_what_is_over_is_forgotten() {
    let rates = Rates::default();
    let pace = Pace::new(1, Duration::from_mins(1), 0).unwrap();
    let most = (SHARDS * FLOWS_PER_SHARD_MAX) as u32;
    for client in 0..most + most / 4 {
        let _ = rates.take(1, pace, Ipv4Addr::from(client).into(), SECOND);
    }
    assert!(rates.len() <= most as usize);
    // An hour later a few newcomers clear each shard that they meet.
    for client in 0..2000 {
        let client = Ipv4Addr::from(u32::MAX - client);
        assert!(rates.take(1, pace, client.into(), 3600 * SECOND).is_ok());
    }
    assert!(rates.len() < 4000, "{}", rates.len());
}

#[test]
fn a_rate_of_nothing_is_none() {
    assert_eq!(Pace::new(0, Duration::from_secs(1), 0), None);
    assert_eq!(Pace::new(1, Duration::ZERO, 0), None);
}

#[test]
fn requests_under_way_are_counted_down_when_they_end() {
    let all = Arc::new(UnderWay::default());
    let first = all.enter(1, ip("10.0.0.1"), 2).unwrap();
    let _second = all.enter(1, ip("10.0.0.1"), 2).unwrap();
    assert!(all.enter(1, ip("10.0.0.1"), 2).is_none());
    assert!(all.enter(1, ip("10.0.0.2"), 2).is_some());
    drop(first);
    assert!(all.enter(1, ip("10.0.0.1"), 2).is_some());
    assert!(all.enter(1, ip("10.0.0.3"), 0).is_none());
    let kept: usize = all.shards.iter().map(|shard| shard.lock().len()).sum();
    assert_eq!(kept, 1);
}
