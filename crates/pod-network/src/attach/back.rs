//! Taking attachments back whose maker may be at work, and those of which there is no record.

use std::time::{Duration, Instant};

use cidr::IpInet;

use super::{detach, links, unpublish_unclaimed};
use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::names;
use crate::ports;
use crate::state::State;

/// How long a call waits for another that is at work on the same attachment. Runtimes give theirs minutes.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Takes an attachment back when nobody else is at work on it, and lets nobody begin meanwhile. `unknown` is what a record would say
/// that is lost, or cannot be read: what was claimed in its name says the rest. To be called without a lock.
pub(crate) fn take_back(state: &State, unknown: &Attachment) -> Result<()> {
    let key = names::attachment_key(&unknown.network, &unknown.container, &unknown.interface);
    let deadline = Instant::now() + BUSY_WAIT_MAX;
    let mut pause = PAUSE_FIRST;
    loop {
        if try_take_back(state, &key, unknown)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Error::Busy { what: unknown.to_string() });
        }
        // Without a lock: whoever is at work may need all of it.
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn try_take_back(state: &State, key: &str, unknown: &Attachment) -> Result<bool> {
    let _lock = state.lock_shared()?;
    let _busy = match state.lock_attachment(key)? {
        Some(busy) => busy,
        // One that says as much as is known, so that nobody else begins one.
        None => match state.begin_attachment(key, unknown)? {
            Some(busy) => busy,
            None => return Ok(false),
        },
    };
    let record = state.attachment(key)?.flatten().filter(|record| record != unknown);
    let record = match record {
        Some(record) => record,
        None => state.claimed_by(unknown)?.unwrap_or_else(|| unknown.clone()),
    };
    detach(state, key, Some(record))?;
    Ok(true)
}

/// Takes back what there is of an instance without a record: what was claimed in its name, and of the address and the ports that it
/// is said to have had those that nobody has claimed. Needs the exclusive lock. `unknown` has these, one for each network.
pub(crate) fn take_back_lost(state: &State, unknown: &[Attachment], had: IpInet) -> Result<()> {
    let mut errors = Vec::new();
    for it in unknown {
        let key = names::attachment_key(&it.network, &it.container, &it.interface);
        match state.claimed_by(it) {
            Ok(Some(record)) => errors.extend(detach(state, &key, Some(record)).err()),
            Ok(None) => errors.extend(links::remove(&it.host_link).err()),
            Err(error) => errors.push(error),
        }
        errors.extend(forget_unclaimed(state, it, had).err());
    }
    Error::all(errors)
}

/// Rules may be left whose claims are lost. What somebody has claimed is somebody's.
fn forget_unclaimed(state: &State, unknown: &Attachment, had: IpInet) -> Result<()> {
    let network = state.network(&unknown.network)?;
    let is_home = |it: &crate::network::Network| {
        it.subnets.iter().any(|subnet| subnet.cidr.contains(&had.address()))
    };
    if !network.is_some_and(|network| is_home(&network)) {
        return Ok(());
    }
    let is_claimed = state.addresses_dir(&unknown.network).join(had.address().to_string()).exists();
    let ports = ports::unclaimed(state, &unknown.ports)?;
    let record = Attachment { addresses: vec![had], ports, ..unknown.clone() };
    if !is_claimed {
        links::forget_neighbours(state, std::iter::once(&record))?;
    }
    unpublish_unclaimed(&record, is_claimed)
}
