//! Idle connections to one endpoint.
//!
//! Each serving thread has a list of its own that others come to only when theirs is empty; so the
//! lock is nearly always free and a connection stays with the thread whose reactor knows it.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connect::Connection;

/// How many lists there are; threads beyond share.
const LISTS: usize = 8;

/// How long an idle connection is kept. Most servers close after 60 s or more; whoever closes
/// earlier is noticed.
const IDLE_MAX: Duration = Duration::from_secs(50);

/// The idle connections of an endpoint, newest last.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Made with the first connection: most endpoints of a large table are never asked.
    lists: OnceLock<Box<[Mutex<Vec<Connection>>; LISTS]>>,
    count: AtomicU32,
}

/// This thread's list.
fn own_list() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed) % LISTS);
    }
    OWN.with(Cell::get)
}

impl Pool {
    /// How many idle connections there are.
    pub(crate) fn len(&self) -> u32 {
        // Whoever gives a connection back counts first and then looks who waits; who waits does it the
        // other way round.
        self.count.load(SeqCst)
    }

    /// Takes the connection that was used last of those that fit: it is the likeliest to be open still.
    pub(crate) fn take(&self, fits: impl Fn(&Connection) -> bool) -> Option<Connection> {
        if self.len() == 0 {
            return None;
        }
        let lists = self.lists.get()?;
        let own = own_list();
        for step in 0..LISTS {
            let list = &lists[(own + step) % LISTS];
            loop {
                let taken = {
                    let mut list = list.lock();
                    // Usually the last.
                    list.iter().rposition(&fits).map(|place| list.remove(place))
                };
                let Some(mut connection) = taken else { break };
                self.count.fetch_sub(1, Relaxed);
                if !connection.is_open() {
                    continue;
                }
                if step > 0 && !connection.adopt() {
                    continue;
                }
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for later, unless there are `idle_max` already.
    pub(crate) fn put(&self, connection: Connection, idle_max: u32) {
        let one_more = |count: u32| (count < idle_max).then_some(count + 1);
        if self.count.fetch_update(SeqCst, SeqCst, one_more).is_ok() {
            self.lists.get_or_init(Box::default)[own_list()].lock().push(connection);
        }
    }

    /// Closes all.
    pub(crate) fn clear(&self) {
        for list in self.lists.get().into_iter().flat_map(|lists| lists.iter()) {
            let gone = std::mem::take(&mut *list.lock());
            self.count.fetch_sub(gone.len() as u32, Relaxed);
        }
    }

    /// Closes what was idle for too long, or was closed by the other side.
    pub(crate) fn sweep(&self, now: Instant) {
        if self.len() == 0 {
            return;
        }
        for list in self.lists.get().into_iter().flat_map(|lists| lists.iter()) {
            let mut list = list.lock();
            let before = list.len();
            list.retain_mut(|connection| {
                now.saturating_duration_since(connection.idle_since) < IDLE_MAX
                    && connection.is_open()
            });
            self.count.fetch_sub((before - list.len()) as u32, Relaxed);
        }
    }
}
