use super::*;

fn now() -> Moment {
    Moment::at_unix_s(1000)
}

fn is_leader(role: &Role) -> bool {
    matches!(role, Role::Lead(_))
}

#[tokio::test]
async fn others_wait_until_the_leader_is_done() {
    let flights = Arc::new(Flights::new());
    let leader = flights.join(1, now());
    assert!(is_leader(&leader));
    let Role::Wait(wait) = flights.join(1, now()) else { panic!("the second has to wait") };
    assert!(is_leader(&flights.join(2, now())), "another digest is another fetch");
    let waiting = tokio::spawn(wait.until_done(Duration::from_mins(1)));
    drop(leader);
    assert!(waiting.await.unwrap(), "nobody knows what it would have come to");
    assert!(is_leader(&flights.join(1, now())));
}

#[tokio::test]
async fn a_fetch_that_came_to_something_is_not_broken_off() {
    let flights = Arc::new(Flights::new());
    for barren in [false, true] {
        let digest = u64::from(barren);
        let Role::Lead(leader) = flights.join(digest, now()) else { panic!("the first leads") };
        let Role::Wait(wait) = flights.join(digest, now()) else { panic!("the second waits") };
        leader.ends();
        if barren {
            leader.found_barren(now());
        } else {
            drop(leader);
        }
        assert!(!wait.until_done(Duration::from_mins(1)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_bound() {
    let flights = Arc::new(Flights::new());
    let _leader = flights.join(1, now());
    let Role::Wait(wait) = flights.join(1, now()) else { panic!("the second has to wait") };
    assert!(!wait.until_done(Duration::from_secs(5)).await);
}

#[test]
fn nobody_waits_for_what_is_barren() {
    let flights = Arc::new(Flights::new());
    let digest = 0x1234_5678_9abc_def0;
    let Role::Lead(leader) = flights.join(digest, now()) else { panic!("the first leads") };
    leader.found_barren(now());
    assert!(matches!(flights.join(digest, now()), Role::Alone));
    assert!(is_leader(&flights.join(digest ^ (1 << 40), now())));
    assert!(is_leader(&flights.join(digest, now().after(BARREN))));
}

#[test]
fn those_beyond_the_bound_fetch_themselves() {
    let flights = Arc::new(Flights::new());
    let _leader = flights.join(1, now());
    let waiting: Vec<Role> = (0..WAITERS_MAX).map(|_| flights.join(1, now())).collect();
    assert!(waiting.iter().all(|role| matches!(role, Role::Wait(_))));
    assert!(matches!(flights.join(1, now()), Role::Alone));
}
