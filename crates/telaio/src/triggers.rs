//! When the changes happened that have not been programmed yet, for the time that programming takes.
//!
//! Controllers write into an EndpointSlice when the change that it shows happened. What was noted when
//! the slice came is answered by the next sync that succeeds.

use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use telaio_model::{AddressType, Batch, IpFamily, Object, ObjectChange};

/// How many changes are remembered; further ones are not measured.
const TRIGGERS_MAX: usize = 10_000;

/// The changes that wait.
#[derive(Debug)]
pub(crate) struct Triggers {
    waiting: Mutex<Vec<(IpFamily, i64)>>,
    /// What happened before we came was not for us to program.
    since_ms: i64,
}

impl Default for Triggers {
    fn default() -> Self {
        Self { waiting: Mutex::default(), since_ms: now_ms() }
    }
}

impl Triggers {
    /// Notes the changes of a batch.
    pub(crate) fn note(&self, batch: &Batch) {
        let slices = batch.changes.iter().filter_map(|change| match change {
            ObjectChange::Set(Object::EndpointSlice(slice)) => Some(slice),
            _ => None,
        });
        for slice in slices {
            let family = match slice.address_type {
                AddressType::IPv4 => IpFamily::V4,
                AddressType::IPv6 => IpFamily::V6,
                AddressType::Fqdn => continue,
            };
            let Some(trigger_ms) = slice.triggered.0.filter(|at| *at >= self.since_ms) else {
                continue;
            };
            let mut waiting = self.waiting.lock();
            if waiting.len() < TRIGGERS_MAX {
                waiting.push((family, trigger_ms));
            }
        }
    }

    /// A sync succeeded: how long each change took.
    pub(crate) fn programmed(&self) -> Vec<(IpFamily, Duration)> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let now = now_ms();
        let latency = |at: i64| Duration::from_millis(u64::try_from(now - at).unwrap_or(0));
        waiting.into_iter().map(|(family, at)| (family, latency(at))).collect()
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use telaio_model::endpoints::TriggerTime;
    use telaio_model::{EndpointSlice, ObjectKey};

    use super::*;

    fn batch(triggered_ms: Option<i64>) -> Batch {
        let slice = EndpointSlice {
            key: ObjectKey::new("default", "web-1"),
            service: Some("web".into()),
            address_type: AddressType::IPv6,
            endpoints: Vec::new(),
            ports: Vec::new(),
            triggered: TriggerTime(triggered_ms),
        };
        Batch { changes: vec![ObjectChange::Set(Object::from(slice))], ..Batch::default() }
    }

    #[test]
    fn what_happened_since_the_start_is_measured_once() {
        let triggers = Triggers::default();
        triggers.note(&batch(Some(triggers.since_ms)));
        triggers.note(&batch(Some(triggers.since_ms - 1)));
        triggers.note(&batch(None));
        let measured = triggers.programmed();
        assert_eq!(measured.iter().map(|(family, _)| *family).collect::<Vec<_>>(), [IpFamily::V6]);
        assert_eq!(triggers.programmed(), []);
    }
}
