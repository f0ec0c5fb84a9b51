//! The policies.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::{Peer, Peers, Pick};
use crate::clock;
use crate::table::Balance;

/// How often a choice by chance is made again because the endpoint cannot take the request.
const TRIES_MAX: usize = 4;

pub(super) fn choose(peers: &Peers, pick: &Pick<'_>) -> Option<Arc<Peer>> {
    let ready = &peers.ready;
    if let Some(cookie) = pick.sticky
        && let Some(peer) = sticky(peers, cookie, pick)
    {
        return Some(peer);
    }
    match ready.len() {
        0 => return None,
        1 => return ready.first().cloned(),
        _ => {}
    }
    let now_ns = clock::nanos(Instant::now());
    let fits = |peer: &Arc<Peer>| {
        peer.is_available(now_ns) && !pick.tried.iter().any(|tried| Arc::ptr_eq(tried, peer))
    };
    let chosen = match &peers.balance {
        Balance::RoundRobin if peers.even => round_robin(peers, now_ns, &fits),
        Balance::RoundRobin => smooth_round_robin(peers, now_ns, &fits),
        Balance::LeastConnections => least_connections(peers, now_ns, &fits),
        Balance::PeakEwma => two_choices(peers, now_ns, &fits),
        Balance::Hash(_) => rendezvous(ready, pick.key, &fits),
    };
    // All are out, or tried: any of them may do now.
    let untried = || {
        let start = clock::chance() as usize % ready.len();
        let turn = (0..ready.len()).map(|step| &ready[(start + step) % ready.len()]);
        let mut turn =
            turn.clone().filter(|peer| !pick.tried.iter().any(|own| Arc::ptr_eq(own, peer)));
        turn.next().or(ready.get(start)).cloned()
    };
    chosen.cloned().or_else(untried)
}

/// The endpoint that a client's cookie names. A draining one finishes what runs there and takes nothing
/// new, not of its own clients either: they get another one, and its cookie. Unless there is no other.
fn sticky(peers: &Peers, cookie: &str, pick: &Pick<'_>) -> Option<Arc<Peer>> {
    let now_ns = clock::nanos(Instant::now());
    let named = named(peers, cookie)?;
    let tried = pick.tried.iter().any(|tried| Arc::ptr_eq(tried, named));
    let takes = named.takes_new() || (peers.ready.is_empty() && named.weight() > 0);
    (takes && named.is_available(now_ns) && !tried).then(|| named.clone())
}

/// The endpoint that a cookie names, whether it can take a request now or not.
pub(super) fn named<'a>(peers: &'a Peers, cookie: &str) -> Option<&'a Arc<Peer>> {
    peers.all.iter().find(|peer| same(peer.cookie().as_bytes(), cookie.as_bytes()))
}

/// Compares in a time that does not depend on where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Whether an endpoint that is still warming up takes this one.
fn warm(peers: &Peers, peer: &Peer, now_ns: u64) -> bool {
    let share = peer.share(peers.slow_start, now_ns);
    share >= 1.0 || f64::from(clock::chance() as u32) < share * f64::from(u32::MAX)
}

fn round_robin<'a>(
    peers: &'a Peers,
    now_ns: u64,
    fits: &dyn Fn(&Arc<Peer>) -> bool,
) -> Option<&'a Arc<Peer>> {
    let mut cold = None;
    for _ in 0..peers.ready.len() {
        let peer = &peers.ready[peers.turn.fetch_add(1, Relaxed) % peers.ready.len()];
        if fits(peer) {
            if warm(peers, peer, now_ns) {
                return Some(peer);
            }
            cold = Some(peer);
        }
    }
    cold
}

/// Each endpoint is paid its weight, the richest is chosen and pays for all: who weighs twice as
/// much comes twice as often, and not twice in a row.
fn smooth_round_robin<'a>(
    peers: &'a Peers,
    now_ns: u64,
    fits: &dyn Fn(&Arc<Peer>) -> bool,
) -> Option<&'a Arc<Peer>> {
    let mut accounts = peers.accounts.lock();
    let mut total = 0;
    let mut richest: Option<usize> = None;
    for (place, peer) in peers.ready.iter().enumerate() {
        if !fits(peer) {
            continue;
        }
        // In thousandths, so that a warming endpoint's share counts.
        let pay = (f64::from(peer.weight()) * 1e3 * peer.share(peers.slow_start, now_ns)) as i64;
        accounts[place] += pay;
        total += pay;
        if richest.is_none_or(|best| accounts[place] > accounts[best]) {
            richest = Some(place);
        }
    }
    let chosen = richest?;
    accounts[chosen] -= total;
    peers.ready.get(chosen)
}

fn least_connections<'a>(
    peers: &'a Peers,
    now_ns: u64,
    fits: &dyn Fn(&Arc<Peer>) -> bool,
) -> Option<&'a Arc<Peer>> {
    // Begins somewhere else each time, so that equals share.
    let start = peers.turn.fetch_add(1, Relaxed);
    let in_turn =
        (0..peers.ready.len()).map(|step| &peers.ready[(start + step) % peers.ready.len()]);
    let load = |peer: &Peer| {
        let share = f64::from(peer.weight().max(1)) * peer.share(peers.slow_start, now_ns);
        f64::from(peer.in_flight() + 1) / share
    };
    in_turn.filter(|peer| fits(peer)).min_by(|a, b| load(a).total_cmp(&load(b)))
}

fn two_choices<'a>(
    peers: &'a Peers,
    now_ns: u64,
    fits: &dyn Fn(&Arc<Peer>) -> bool,
) -> Option<&'a Arc<Peer>> {
    let count = peers.ready.len();
    for _ in 0..TRIES_MAX {
        let chance = clock::chance();
        let first = (chance >> 32) as usize % count;
        // Another than the first.
        let second = (first + 1 + (chance & 0xffff_ffff) as usize % (count - 1)) % count;
        let (first, second) = (&peers.ready[first], &peers.ready[second]);
        match (fits(first), fits(second)) {
            (true, true) => {
                let cost = |peer: &Peer| peer.cost(now_ns) / peer.share(peers.slow_start, now_ns);
                return Some(if cost(second) < cost(first) { second } else { first });
            }
            (true, false) => return Some(first),
            (false, true) => return Some(second),
            (false, false) => {}
        }
    }
    peers.ready.iter().find(|peer| fits(peer))
}

/// The endpoint with the highest score for the key: when one leaves only its keys move, and a
/// newcomer takes its share evenly from all.
fn rendezvous<'a>(
    ready: &'a [Arc<Peer>],
    key: u64,
    fits: &dyn Fn(&Arc<Peer>) -> bool,
) -> Option<&'a Arc<Peer>> {
    #[allow(clippy::cast_precision_loss)]
    let score = |peer: &Peer| {
        let unit = ((clock::mix(key ^ peer.hash()) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -f64::from(peer.weight()) / unit.ln()
    };
    ready.iter().filter(|peer| fits(peer)).max_by(|a, b| score(a).total_cmp(&score(b)))
}
