//! The kernel was looked at: what differs from what we thought, and whose it is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use telaio_netlink::ipvs::Snapshot;
use telaio_reconcile::target::DriftReport;

use super::server::ServerState;
use super::{Mirror, Thing, UDP, record, tell_of_anothers};
use crate::ipvs::network::Membership;
use crate::ipvs::types::{EndpointKey, ServerKey};

/// What was found in the kernel.
#[derive(Debug, Default)]
pub struct Found {
    /// Every virtual server, also others'.
    pub servers: Vec<Snapshot>,
    /// The members of our sets, with their marks.
    pub members: BTreeMap<Membership, Option<u32>>,
    /// The addresses on our device.
    pub addresses: BTreeSet<IpAddr>,
}

impl Mirror {
    /// The kernel was looked at. What differs from what we thought; it is mended by the next commands.
    ///
    /// A virtual server that is wanted and not on record is taken over if `adopt` says so; else it is
    /// another's, and ours cannot be.
    pub fn observe(
        &mut self,
        found: Found,
        now: Instant,
        adopt: impl Fn(&ServerKey) -> bool,
    ) -> DriftReport<Thing> {
        let mut drift = DriftReport::default();
        self.observe_servers(found.servers, &found.members, now, adopt, &mut drift);
        self.observe_members(&found.members, &mut drift);
        self.observe_addresses(&found.addresses, &mut drift);
        drift
    }

    fn observe_servers(
        &mut self,
        found: Vec<Snapshot>,
        on_record: &BTreeMap<Membership, Option<u32>>,
        now: Instant,
        adopt: impl Fn(&ServerKey) -> bool,
        drift: &mut DriftReport<Thing>,
    ) {
        let (mut seen, mut anothers) = (BTreeSet::new(), BTreeSet::new());
        let mut others = BTreeSet::new();
        for snapshot in found {
            let key = snapshot.server.frontend;
            // One that we have made ourselves is ours, even if its record is gone.
            let is_made = self.servers.get(&key).is_some_and(|state| state.present.is_some());
            if !is_made && !on_record.contains_key(&record(&key)) {
                let is_wanted = self.servers.get(&key).is_some_and(|state| state.wanted.is_some());
                let may_adopt = adopt(&key);
                if !may_adopt {
                    others.insert(key);
                }
                if !is_wanted || !may_adopt {
                    anothers.insert(key);
                    continue;
                }
            }
            seen.insert(key);
            let state = self.servers.entry(key).or_default();
            if state.wanted.is_none() && state.present.is_none() {
                let is_udp = matches!(key, ServerKey::Address { protocol: UDP, .. });
                state.is_udp = is_udp && !self.is_patient;
            }
            state.observe(key, snapshot, now, drift);
            if !state.is_settled() {
                self.touch_server(key);
            }
            self.note_leaving(&key);
        }
        self.others = others;
        let gone: Vec<ServerKey> =
            self.servers.keys().filter(|it| !seen.contains(it)).copied().collect();
        for key in gone {
            let Some(state) = self.servers.get_mut(&key) else { continue };
            let is_anothers = anothers.contains(&key);
            if is_anothers && !state.is_anothers && state.wanted.is_some() {
                tell_of_anothers(&key);
            }
            // Where another's is gone, ours can be.
            state.is_anothers = is_anothers;
            if state.present.take().is_some() {
                drift.missing.push(Thing::Server(key));
                for endpoint in state.endpoints.values_mut() {
                    endpoint.present = None;
                }
            }
            if state.wanted.is_none() || !state.is_settled() {
                self.touch_server(key);
                self.touch_places(&key);
            }
            self.note_leaving(&key);
        }
    }

    fn observe_members(
        &mut self,
        found: &BTreeMap<Membership, Option<u32>>,
        drift: &mut DriftReport<Thing>,
    ) {
        for (member, mark) in found {
            let state = self.members.entry(*member).or_default();
            match state.present {
                Some(before) if before == *mark => continue,
                Some(_) => drift.altered.push(Thing::Member(*member)),
                None => drift.unexpected.push(Thing::Member(*member)),
            }
            state.present = Some(*mark);
            self.dirty_members.insert(*member);
        }
        for (member, state) in &mut self.members {
            if state.present.is_some() && !found.contains_key(member) {
                state.present = None;
                drift.missing.push(Thing::Member(*member));
                self.dirty_members.insert(*member);
            }
        }
    }

    fn observe_addresses(&mut self, found: &BTreeSet<IpAddr>, drift: &mut DriftReport<Thing>) {
        let known: Vec<IpAddr> = self.addresses.keys().chain(found).copied().collect();
        for ip in known {
            let state = self.addresses.entry(ip).or_default();
            let present = found.contains(&ip);
            if state.present == present {
                continue;
            }
            if present {
                drift.unexpected.push(Thing::Address(ip));
            } else {
                drift.missing.push(Thing::Address(ip));
            }
            state.present = present;
            self.touch_address(ip);
        }
    }
}

impl ServerState {
    fn observe(
        &mut self,
        key: ServerKey,
        snapshot: Snapshot,
        now: Instant,
        drift: &mut DriftReport<Thing>,
    ) {
        match &self.present {
            Some(before) if *before == snapshot.server => {}
            Some(_) => drift.altered.push(Thing::Server(key)),
            None => drift.unexpected.push(Thing::Server(key)),
        }
        self.present = Some(snapshot.server);
        self.is_anothers = false;
        let thing = |address| Thing::Endpoint(EndpointKey { server: key, address });
        let mut seen = BTreeSet::new();
        for load in snapshot.servers {
            let address = load.server.address;
            seen.insert(address);
            let endpoint = self.endpoints.entry(address).or_default();
            match endpoint.present {
                Some(before) if before == load.server => {}
                Some(_) => drift.altered.push(thing(address)),
                None => drift.unexpected.push(thing(address)),
            }
            endpoint.present = Some(load.server);
            if endpoint.wanted.is_none() && load.server.weight == 0 {
                endpoint.leaving_since.get_or_insert(now);
            }
        }
        for (address, endpoint) in &mut self.endpoints {
            if !seen.contains(address) && endpoint.present.take().is_some() {
                drift.missing.push(thing(*address));
            }
        }
    }
}
