//! Memory stays within its bounds, whatever clients and origins do.

use super::*;
use crate::cache::index::VARIANTS_MAX;

const BYTES_MAX: u64 = 4 << 20;

fn small() -> Bench {
    Bench::with_limits(CacheLimits {
        bytes_max: BYTES_MAX,
        entry_bytes_max: 64 << 10,
        ..CacheLimits::default()
    })
}

#[test]
fn a_flood_of_uris_stays_within_the_bytes() {
    let bench = small();
    let body = "x".repeat(10_000);
    for n in 0..2000 {
        bench.ask(&get(&format!("/{n}")), Some(&origin("max-age=60", &body)));
        assert!(bench.cache.stats().bytes <= BYTES_MAX);
    }
    assert!(bench.cache.stats().uris > 50, "and is not empty");
}

#[test]
fn a_flood_of_variants_costs_only_its_own_uri() {
    let bench = small();
    bench.ask(&get("/other"), Some(&origin("max-age=60", "other")));
    for n in 0..5000 {
        let request = get("/a").with("accept-language", &format!("x{n}"));
        let stored = origin("max-age=60", &"x".repeat(1000)).with("vary", "accept-language");
        bench.ask(&request, Some(&stored));
        assert!(bench.cache.stats().bytes <= BYTES_MAX);
    }
    let key = get("/a").keyed().key;
    let kept = bench.cache.shared.index.resource(key.uri()).unwrap().entries().len();
    assert!(kept <= VARIANTS_MAX, "{kept}");
    assert_eq!(bench.ask(&get("/other"), None).text(), "other");
}

#[test]
fn of_too_many_variants_those_stay_that_are_used() {
    let mut bench = small();
    let variant = |n: usize| get("/a").with("x-v", &n.to_string());
    let stored = |n: usize| origin("max-age=6000", &n.to_string()).with("vary", "x-v");
    for n in 0..VARIANTS_MAX + 10 {
        bench.wait(1);
        bench.ask(&variant(n), Some(&stored(n)));
        assert_eq!(bench.ask(&variant(0), None).text(), "0");
    }
    assert!(!bench.ask(&variant(1), Some(&origin("no-store", ""))).was_cached());
}

#[test]
fn what_is_asked_for_again_outlives_what_is_asked_for_once() {
    let bench = small();
    let body = "x".repeat(10_000);
    let often: Vec<Request> = (0..20).map(|n| get(&format!("/often/{n}"))).collect();
    for _ in 0..3 {
        for request in &often {
            bench.ask(request, Some(&origin("max-age=60", &body)));
        }
    }
    for n in 0..2000 {
        bench.ask(&get(&format!("/once/{n}")), Some(&origin("max-age=60", &body)));
        bench.ask(&often[n % often.len()], Some(&origin("max-age=60", &body)));
    }
    let again = Some(origin("no-store", ""));
    let kept =
        often.iter().filter(|request| bench.ask(request, again.as_ref()).was_cached()).count();
    assert!(kept >= 15, "{kept} of 20");
}

#[test]
fn what_is_too_large_is_not_kept_and_takes_no_memory() {
    let bench = small();
    for declared in [true, false] {
        let mut large = origin("max-age=60", &"x".repeat(100 << 10));
        if declared {
            large = large.with("content-length", &(100 << 10).to_string());
        }
        assert!(!bench.keeps(&get("/large"), &large, &get("/large")));
    }
    assert_eq!(bench.cache.shared.writing_bytes.load(Ordering::Relaxed), 0);
    let mut bench = small();
    bench.policy.object_bytes_max = 10;
    assert!(!bench.keeps(&get("/a"), &origin("max-age=60", "eleven byte"), &get("/a")));
}

#[test]
fn what_is_being_written_is_bounded_too() {
    let bench = small();
    let mut writers = Vec::new();
    for n in 0..200 {
        let Lookup::Fetch(fetch) = bench.lookup(&get(&format!("/{n}"))) else {
            panic!("nothing is stored")
        };
        let mut head = origin("max-age=60", "").head();
        let Answer::Forward(Some(mut writer)) = fetch.response(&mut head, bench.now) else {
            panic!("it is kept")
        };
        writer.push(&vec![0; 20_000]);
        writers.push(writer);
        assert!(bench.cache.shared.writing_bytes.load(Ordering::Relaxed) <= BYTES_MAX / 4);
    }
    let kept =
        writers.into_iter().map(|writer| writer.finish(bench.now)).filter(|kept| *kept).count();
    assert!(kept > 0 && kept < 200, "{kept}");
    assert_eq!(bench.cache.shared.writing_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_cache_of_hardly_any_bytes_works_too() {
    let bench = Bench::with_limits(CacheLimits {
        bytes_max: 0,
        entry_bytes_max: 0,
        ..CacheLimits::default()
    });
    bench.ask(&get("/a"), Some(&origin("max-age=60", "x")));
    bench.ask(&get("/a"), Some(&origin("max-age=60", "x")));
}
