//! Connections of clients that are kept alive and idle, so that the longest idle can give way.
//!
//! Each has a seat from the first time on that it is idle. To be idle or busy is one number in it, so that
//! requests pay nothing for it; only whoever needs room looks at all of them, and then for several at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Instant;

use futures::task::AtomicWaker;
use parking_lot::Mutex;

use crate::clock;

/// Of so many idle connections one gives way at a time; there is one look at them all for these.
const ONE_IN: usize = 64;
/// How many give way at once at most.
const AT_ONCE_MAX: usize = 1_024;

/// All seats.
#[derive(Debug, Default)]
pub(crate) struct IdleConnections {
    seats: Mutex<Vec<Arc<Seat>>>,
    /// How many were asked to give way and have not done so.
    leaving: AtomicUsize,
}

#[derive(Debug, Default)]
struct Seat {
    /// What it is idle since, as a number that grows; 0 while it is busy.
    since: AtomicU64,
    /// It is to give way.
    leaves: AtomicBool,
    waker: AtomicWaker,
    /// Where it is in the list; changes under its lock.
    at: AtomicUsize,
}

impl IdleConnections {
    /// A seat for a connection.
    pub(crate) fn enter(self: &Arc<Self>) -> Idle {
        let seat = Arc::new(Seat::default());
        let mut seats = self.seats.lock();
        seat.at.store(seats.len(), Ordering::Relaxed);
        seats.push(Arc::clone(&seat));
        Idle { all: Arc::clone(self), seat }
    }

    /// Asks those to give way that are idle for longest; false if nobody can.
    pub(crate) fn make_room(&self) -> bool {
        if self.leaving.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let seats = self.seats.lock();
        let mut since: Vec<u64> = seats.iter().filter_map(|seat| seat.idle_since()).collect();
        if since.is_empty() {
            return false;
        }
        let mut wanted = (since.len() / ONE_IN).clamp(1, AT_ONCE_MAX);
        let (_, last, _) = since.select_nth_unstable(wanted - 1);
        for seat in seats.iter() {
            if wanted > 0 && seat.idle_since().is_some_and(|since| since <= *last) {
                wanted -= 1;
                self.leaving.fetch_add(1, Ordering::Relaxed);
                seat.leaves.store(true, Ordering::SeqCst);
                if seat.since.load(Ordering::SeqCst) == 0 {
                    // It was asked something just now; of the two of us one sees it.
                    self.stays(seat);
                } else {
                    seat.waker.wake();
                }
            }
        }
        true
    }

    fn stays(&self, seat: &Seat) {
        if seat.leaves.swap(false, Ordering::Relaxed) {
            self.leaving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Seat {
    fn idle_since(&self) -> Option<u64> {
        Some(self.since.load(Ordering::Relaxed)).filter(|since| *since > 0)
    }
}

/// A connection's seat.
#[derive(Debug)]
pub(crate) struct Idle {
    all: Arc<IdleConnections>,
    seat: Arc<Seat>,
}

impl Idle {
    /// The connection is idle, and stays so until `until` at most; whether it is to give way. Its task is
    /// woken when it is.
    pub(crate) fn is_to_leave(&self, until: Instant, cx: &Context<'_>) -> bool {
        // All may stay for equally long, so this says who came first.
        self.seat.since.store(clock::nanos(until).max(1), Ordering::Relaxed);
        self.seat.waker.register(cx.waker());
        self.seat.leaves.load(Ordering::SeqCst)
    }

    /// It is idle no more. Whoever was to give way and was asked something serves it.
    pub(crate) fn is_busy(&self) {
        self.seat.since.store(0, Ordering::SeqCst);
        if self.seat.leaves.load(Ordering::SeqCst) {
            self.all.stays(&self.seat);
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let mut seats = self.all.seats.lock();
        let at = self.seat.at.load(Ordering::Relaxed);
        if at < seats.len() {
            seats.swap_remove(at);
            if let Some(moved) = seats.get(at) {
                moved.at.store(at, Ordering::Relaxed);
            }
        }
        // Nobody else can ask it to give way any more.
        self.all.stays(&self.seat);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn context() -> Context<'static> {
        Context::from_waker(std::task::Waker::noop())
    }

    #[test]
    fn the_longest_idle_gives_way_and_nobody_who_is_busy() {
        let all = Arc::new(IdleConnections::default());
        assert!(!all.make_room(), "nobody is there");
        let now = Instant::now();
        let seats: Vec<_> = (0..4).map(|_| all.enter()).collect();
        assert!(!all.make_room(), "nobody was idle yet");
        let until = |number: u64| now + Duration::from_secs(100 - number);
        for (number, seat) in (0..).zip(&seats) {
            assert!(!seat.is_to_leave(until(number), &context()));
        }
        seats[3].is_busy();
        assert!(all.make_room() && all.make_room(), "while one leaves nobody else is asked");
        let leaves = |seat: &Idle, number| seat.is_to_leave(until(number), &context());
        assert!(leaves(&seats[2], 2) && !leaves(&seats[0], 0) && !leaves(&seats[1], 1));
        // A request came just then.
        seats[2].is_busy();
        assert!(!leaves(&seats[2], 0));
        assert!(all.make_room() && leaves(&seats[1], 1));
        let mut seats = seats;
        drop(seats.remove(1));
        assert_eq!(all.seats.lock().len(), 3);
        assert!(all.make_room());
        assert_eq!(seats.iter().filter(|seat| leaves(seat, 0)).count(), 1);
        drop(seats);
        assert!(!all.make_room() && all.seats.lock().is_empty());
    }

    #[test]
    fn of_many_several_give_way_at_once() {
        let all = Arc::new(IdleConnections::default());
        let until = Instant::now() + Duration::from_secs(75);
        let seats: Vec<_> = (0..640).map(|_| all.enter()).collect();
        for seat in &seats {
            seat.is_to_leave(until, &context());
        }
        assert!(all.make_room());
        let leaving = seats.iter().filter(|seat| seat.is_to_leave(until, &context())).count();
        assert_eq!(leaving, 10);
    }
}
