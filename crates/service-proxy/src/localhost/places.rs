//! Who is connected, and who gives way when there is no more room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::carry::Activity;

/// How often those who have a place are looked at while somebody waits for one.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The number of a connection.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct Guest {
    activity: Arc<Activity>,
    /// `None` for a moment, until its task runs.
    task: Option<AbortHandle>,
}

#[derive(Debug, Default)]
struct Guests {
    guests: BTreeMap<Ticket, Guest>,
    next: Ticket,
}

impl Guests {
    /// Ends the connection that has been idle for longest, if it has been for `idle_min`.
    fn end_idlest(&mut self, idle_min: Duration) -> bool {
        let idlest = self.guests.iter().max_by_key(|(_, guest)| guest.activity.idle());
        let Some((ticket, guest)) = idlest else { return false };
        if guest.activity.idle() < idle_min {
            return false;
        }
        let ticket = *ticket;
        if let Some(Guest { task: Some(task), .. }) = self.guests.remove(&ticket) {
            task.abort();
        }
        true
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Places {
    guests_max: usize,
    idle_to_give_way: Duration,
    guests: Mutex<Guests>,
    left: Notify,
}

impl Places {
    /// So many, all free.
    pub(super) fn new(guests_max: usize, idle_to_give_way: Duration) -> Self {
        Self { guests_max, idle_to_give_way, guests: Mutex::default(), left: Notify::new() }
    }

    /// A place for a connection that is about to begin; waits until there is one.
    pub(super) async fn reserve(&self, activity: &Arc<Activity>) -> Ticket {
        let mut has_warned = false;
        loop {
            if let Some(ticket) = self.try_reserve(activity) {
                return ticket;
            }
            if !has_warned {
                has_warned = true;
                tracing::warn!(
                    connections_max = self.guests_max,
                    "too many connections to node ports on loopback; further ones wait"
                );
            }
            // A place that was left between the look and the wait is remembered by the notifier.
            let _ = tokio::time::timeout(LOOK_PERIOD, self.left.notified()).await;
        }
    }

    fn try_reserve(&self, activity: &Arc<Activity>) -> Option<Ticket> {
        let mut guests = self.guests.lock();
        if guests.guests.len() >= self.guests_max && !guests.end_idlest(self.idle_to_give_way) {
            return None;
        }
        let ticket = guests.next;
        guests.next += 1;
        guests.guests.insert(ticket, Guest { activity: Arc::clone(activity), task: None });
        Some(ticket)
    }

    /// Its task runs.
    pub(super) fn take(&self, ticket: Ticket, task: AbortHandle) {
        if let Some(guest) = self.guests.lock().guests.get_mut(&ticket) {
            guest.task = Some(task);
        }
    }

    /// It has ended.
    pub(super) fn leave(&self, ticket: Ticket) {
        self.guests.lock().guests.remove(&ticket);
        self.left.notify_one();
    }
}
