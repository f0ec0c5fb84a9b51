//! Who is connected to a server, and who goes when there is no more room.
//!
//! What always holds: a newcomer gets a place. Whoever opens connections and says nothing can
//! therefore not keep a probe out: the one that has been silent for longest goes first. Only when
//! everybody has asked goes the oldest, whose answer should long have been taken.

use std::collections::BTreeMap;

use tokio::task::AbortHandle;

/// Who has a place, in the order of coming.
pub(super) type Ticket = u64;

#[derive(Debug)]
struct Guest {
    task: AbortHandle,
    has_asked: bool,
}

/// The places of one server.
#[derive(Debug)]
pub(super) struct Places {
    guests_max: usize,
    guests: BTreeMap<Ticket, Guest>,
    next: Ticket,
}

impl Places {
    /// So many places, all free.
    pub(super) fn new(guests_max: usize) -> Self {
        Self { guests_max, guests: BTreeMap::new(), next: 0 }
    }

    /// Gives a place to the connection whose task `begin` starts with its ticket, after it has ended
    /// another's if it must; says whether it did.
    pub(super) fn give(&mut self, begin: impl FnOnce(Ticket) -> AbortHandle) -> bool {
        let is_full = self.guests.len() >= self.guests_max;
        if is_full {
            self.end_one();
        }
        let ticket = self.next;
        self.next += 1;
        self.guests.insert(ticket, Guest { task: begin(ticket), has_asked: false });
        is_full
    }

    /// A whole request has come.
    pub(super) fn has_asked(&mut self, ticket: Ticket) {
        if let Some(guest) = self.guests.get_mut(&ticket) {
            guest.has_asked = true;
        }
    }

    /// The connection has ended.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        self.guests.remove(&ticket);
    }

    fn end_one(&mut self) {
        let silent = self.guests.iter().find(|(_, guest)| !guest.has_asked);
        let oldest = silent.or_else(|| self.guests.first_key_value()).map(|(ticket, _)| *ticket);
        if let Some(guest) = oldest.and_then(|ticket| self.guests.remove(&ticket)) {
            guest.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comes and stays; gives the ticket and the task, which only an abort ends.
    fn come(places: &mut Places) -> (Ticket, tokio::task::JoinHandle<()>) {
        let (mut ours, mut task) = (None, None);
        places.give(|ticket| {
            let stays = tokio::spawn(std::future::pending());
            let handle = stays.abort_handle();
            (ours, task) = (Some(ticket), Some(stays));
            handle
        });
        (ours.unwrap(), task.unwrap())
    }

    #[tokio::test]
    async fn the_longest_silent_goes_first_and_who_has_asked_last() {
        let mut places = Places::new(3);
        let (first, first_task) = come(&mut places);
        let (_, second_task) = come(&mut places);
        let (third, third_task) = come(&mut places);
        places.has_asked(first);

        let (fourth, _fourth_task) = come(&mut places);
        assert!(second_task.await.unwrap_err().is_cancelled());
        assert!(!first_task.is_finished() && !third_task.is_finished());

        places.has_asked(third);
        places.has_asked(fourth);
        come(&mut places);
        assert!(first_task.await.unwrap_err().is_cancelled());
        assert_eq!(places.guests.len(), 3);
    }

    #[tokio::test]
    async fn a_place_that_was_left_is_free() {
        let mut places = Places::new(1);
        let (first, first_task) = come(&mut places);
        places.leave(first);
        come(&mut places);
        assert!(!first_task.is_finished());
        assert_eq!(places.guests.len(), 1);
    }
}
