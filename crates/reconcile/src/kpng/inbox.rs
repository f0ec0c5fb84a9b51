//! From a full-state callback to a sync loop: what changed waits here until a sync takes it.
//!
//! The sink's thread leaves the newest of each object, the sync loop's thread takes all of it at once.
//! Nobody waits for the other, and what changes ten times between two syncs is synced once. Bounded
//! by the number of objects.
//!
//! ```
//! use telaio_reconcile::kpng::{FullState, Inbox};
//!
//! let inbox = Inbox::default();
//! let sink = FullState::new("node-a", inbox.callback(|| println!("wake up")));
//! // …and on the sync loop's thread:
//! let news = inbox.take();
//! assert!(news.services.is_empty());
//! # drop(sink);
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use telaio_model::{Object, ObjectKey, ObjectRef, ServiceEndpoints};

use crate::kpng::full_state::{Changed, FullStateCallback, State};

/// What changed: the newest of each, `None` for what is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// Services with their endpoints.
    pub services: BTreeMap<ObjectKey, Option<ServiceEndpoints>>,
    /// Objects of other planes.
    pub objects: BTreeMap<ObjectRef, Option<Object>>,
}

/// Where news wait. Clones are the same inbox.
#[derive(Debug, Clone, Default)]
pub struct Inbox(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    news: Mutex<News>,
    has_state: AtomicBool,
}

impl Inbox {
    /// Everything that came since the last time; `None` before the first whole state. Whoever took that
    /// for a cluster without services would remove what an earlier run serves.
    pub fn take_known(&self) -> Option<News> {
        self.0.has_state.load(Ordering::Acquire).then(|| self.take())
    }

    /// Everything that came since the last time.
    pub fn take(&self) -> News {
        std::mem::take(&mut *self.0.news.lock())
    }

    /// The callback that fills it and then calls `notify`.
    pub fn callback(&self, notify: impl Fn() + Send + 'static) -> impl FullStateCallback + 'static {
        let inbox = self.clone();
        move |state: &State, changed: &Changed| {
            let services = state.get_all(&changed.services);
            let services = services.map(|(key, entry)| (key.clone(), entry.cloned()));
            let objects = changed.objects.iter().map(|at| (at.clone(), state.object(at).cloned()));
            {
                let mut news = inbox.0.news.lock();
                if news.services.is_empty() {
                    // In order already, so the map is built in one go.
                    news.services = services.collect();
                } else {
                    news.services.extend(services);
                }
                news.objects.extend(objects);
            }
            inbox.0.has_state.store(true, Ordering::Release);
            notify();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_state_nothing_is_known_and_an_empty_one_is_a_state() {
        let inbox = Inbox::default();
        assert_eq!(inbox.take_known(), None);
        let mut callback = inbox.callback(|| {});
        callback.callback(&State::default(), &Changed::default()).unwrap();
        assert_eq!(inbox.take_known(), Some(News::default()));
    }
}
