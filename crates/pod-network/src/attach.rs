//! Putting an instance on a network, and taking it off.
//!
//! What is done in which order decides what a kill can leave behind:
//!
//! 1. the record, which says what is about to be;
//! 2. claims of addresses and ports;
//! 3. the pair of links, in one message: the instance's end in its namespace, the node's on the bridge;
//! 4. in the instance: addresses, routes;
//! 5. rules for published ports;
//! 6. the record again, now whole.
//!
//! Detaching goes the other way, and the record says first that the attachment is going: what is left of one whose taking back was cut
//! short may be without its rules, and is of no use to anybody. A record that is not whole is one whose making or taking back was cut
//! short, or goes on: then its file is locked.

mod back;
mod links;

pub(crate) use back::{take_back, take_back_lost};
pub(crate) use links::{
    Routes, announcement, forget_neighbours, port_of, restore_routed, vlan_requests, wanted_routes,
};

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cidr::{IpCidr, IpInet};
use telaio_netlink::netns::{Netns, NetnsError};
use telaio_netlink::rtnl::{Mac, Request, Rtnetlink, SetLink, Which};

use crate::attachment::{Attachment, PodName};
use crate::bandwidth::Bandwidth;
use crate::error::{Error, Result};
use crate::ipam::{self, Range};
use crate::names;
use crate::network::{Mode, Network};
use crate::networks::ENODEV;
use crate::policy::newcomers;
use crate::port::Port;
use crate::ports;
use crate::rules::{Added, Rules};
use crate::state::{self, Lock, State};

const ENOENT: i32 = 2;
const EINVAL: i32 = 22;
/// The group into which links go that are about to be removed at once.
const DOOMED_GROUP: u32 = 0x7e1a_ffff;

/// Where an instance is.
#[derive(Debug, Clone)]
pub(crate) enum Place<'a> {
    /// In a namespace that somebody else made.
    Path(&'a Path),
    /// In a namespace of ours, made if it is not there.
    Named(&'a str),
}

/// Which addresses it gets.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Addresses<'a> {
    /// These.
    Exactly(&'a [IpInet]),
    /// One out of each set of ranges, these where they fit.
    OutOf(&'a [Vec<Range>], &'a [IpAddr]),
}

/// What an attachment should be.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    pub(crate) container: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) place: Place<'a>,
    pub(crate) addresses: Addresses<'a>,
    pub(crate) ports: &'a [Port],
    pub(crate) mac: Option<Mac>,
    pub(crate) bandwidth: Option<Bandwidth>,
    /// The pod that it is, if that is known.
    pub(crate) pod: Option<PodName>,
    /// The network's gateways are where everything else goes.
    pub(crate) is_default: bool,
    /// Further routes, each by a gateway or by the network's own.
    pub(crate) routes: &'a [(IpCidr, Option<IpAddr>)],
}

/// An attachment that was made.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub(crate) record: Attachment,
    /// The gateway of each address.
    pub(crate) gateways: Vec<Option<IpAddr>>,
    pub(crate) bridge_mac: Option<Mac>,
    pub(crate) host_mac: Mac,
    pub(crate) mtu: u32,
    /// Nobody has judged yet what it may do; see [`settle`].
    waits: bool,
}

/// Attaches. `lock` is the shared one, under which the network is as given.
pub(crate) fn attach(
    state: &State,
    lock: Lock,
    network: &Network,
    wanted: &Wanted<'_>,
) -> Result<Attached> {
    ports::check(wanted.ports)?;
    let key = names::attachment_key(&network.name, wanted.container, wanted.interface);
    // One that somebody else makes has to be there; one of ours comes after its record.
    let netns = match wanted.place {
        Place::Path(_) => find_netns(&wanted.place)?,
        Place::Named(_) => None,
    };
    let host_link = names::host_link(&network.name, wanted.container, wanted.interface, 0);
    // Made from an address as a rule; where there is none it has to be on record before it is anywhere.
    let is_plain = matches!(wanted.addresses, Addresses::OutOf([], _));
    let plain_mac = is_plain.then(|| names::mac(&["instance", &host_link]));
    let asked_mac = wanted.mac.or(plain_mac);
    let mut record = Attachment {
        network: network.name.clone(),
        container: wanted.container.to_owned(),
        interface: wanted.interface.to_owned(),
        netns: netns_path(&wanted.place)?.display().to_string(),
        netns_name: match wanted.place {
            Place::Named(name) => Some(name.to_owned()),
            Place::Path(_) => None,
        },
        host_link,
        is_routed: false,
        is_chained: false,
        is_going: false,
        asked_mac: asked_mac.map(|mac| mac.to_string()),
        mac: String::new(),
        addresses: Vec::new(),
        ports: wanted.ports.to_vec(),
        bandwidth: wanted.bandwidth,
        pod: wanted.pod.clone(),
    };
    let (_busy, is_left_over) = begin(state, &key, &record, &wanted.place)?;
    // Held to the end: whoever mends, or removes the network, finds all of it or nothing.
    let mut lock = Some(lock);
    let mut begun = Begun { netns: is_left_over, links: false };
    let made = make(state, &mut lock, network, wanted, (&key, netns), &mut record, &mut begun);
    if made.is_err() {
        // Why it failed is what the caller has to know. What cannot be undone now has its record.
        let _ = undo(state, &key, record, begun);
    }
    made
}

/// How far an attachment's making has come: what of it has to be undone. What was there before is not touched.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// The namespace is of this call's making, or of one before that was cut short.
    netns: bool,
    /// So are the links, or some of them.
    links: bool,
}

fn undo(state: &State, key: &str, mut record: Attachment, begun: Begun) -> Result<()> {
    if !begun.netns {
        record.netns_name = None;
    }
    if begun.links {
        return detach(state, key, Some(record));
    }
    // A living interface whose record was lost may have the very same name.
    let mut errors = Vec::new();
    errors.extend(newcomers::forget(std::slice::from_ref(&record)).err());
    errors.extend(record.netns_name.as_deref().map_or(Ok(()), remove_netns).err());
    if errors.is_empty() {
        return forget(state, key, &record);
    }
    Error::all(errors)
}

/// Waits until what the instance may do is judged, where policies are kept; takes the attachment back if nobody does. To be
/// called without a lock.
pub(crate) fn settle(state: &State, attached: &Attached) -> Result<()> {
    if !attached.waits {
        return Ok(());
    }
    let judged = newcomers::wait(&attached.record);
    if judged.is_err() {
        let record = &attached.record;
        let key = names::attachment_key(&record.network, &record.container, &record.interface);
        let _lock = state.lock_shared()?;
        // Whoever takes it back already, or has made another since, is at work on it.
        if let Some(_busy) = state.lock_attachment(&key)?
            && state.attachment(&key)?.flatten().as_ref() == Some(record)
        {
            let _ = detach(state, &key, Some(record.clone()));
        }
    }
    judged
}

/// Gives an interface of another plugin's making published ports and limits. `lock` is the shared one. The same again
/// replaces what was there.
pub(crate) fn attach_chained(
    state: &State,
    lock: Lock,
    key: &str,
    record: &mut Attachment,
) -> Result<()> {
    ports::check(&record.ports)?;
    let mac = std::mem::take(&mut record.mac);
    let mut busy = state.begin_attachment(key, record)?;
    if busy.is_none() {
        let Some(_before) = state.lock_attachment(key)? else {
            return Err(Error::Busy { what: record.to_string() });
        };
        let before = match state.attachment(key)?.flatten() {
            Some(before) => before,
            None => state.claimed_by(record)?.unwrap_or_else(|| record.clone()),
        };
        detach(state, key, Some(before))?;
        busy = state.begin_attachment(key, record)?;
    }
    let _busy = busy.ok_or_else(|| Error::Busy { what: record.to_string() })?;
    let mut lock = Some(lock);
    let made = make_chained(state, &mut lock, key, mac, record);
    if made.is_err() {
        // Why it failed is what the caller has to know. What cannot be undone now has its record.
        let _ = detach(state, key, Some(record.clone()));
    }
    made
}

fn make_chained(
    state: &State,
    lock: &mut Option<Lock>,
    key: &str,
    mac: String,
    record: &mut Attachment,
) -> Result<()> {
    ports::claim(state, key, record)?;
    if let Some(bandwidth) = &record.bandwidth {
        crate::bandwidth::set(&record.host_link, bandwidth)?;
    }
    publish(state, lock, key, record)?;
    record.mac = mac;
    state.save_attachment(key, record)
}

/// Whether an attachment's links are there.
pub(crate) fn is_live(record: &Attachment) -> Result<bool> {
    let Ok(netns) = Netns::open_path(Path::new(&record.netns)) else { return Ok(false) };
    if !links::exists(&netns, &record.interface).unwrap_or(false) {
        return Ok(false);
    }
    let doing = || Error::kernel(format!("looking for link {}", record.host_link));
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    Ok(kernel.link(&record.host_link).map_err(doing())?.is_some())
}

fn netns_path(place: &Place<'_>) -> Result<PathBuf> {
    Ok(match place {
        Place::Path(path) => path.to_path_buf(),
        Place::Named(name) => Netns::path_of(name)?,
    })
}

/// The namespace, if it is there: one that somebody else makes has to be.
fn find_netns(place: &Place<'_>) -> Result<Option<Netns>> {
    match place {
        Place::Path(path) => {
            let netns = Netns::open_path(path)?;
            if netns.is_same_as(&Netns::current()?)? {
                let why = format!("{} is the node's own namespace", path.display());
                return Err(Error::Invalid { field: "netns", why });
            }
            Ok(Some(netns))
        }
        Place::Named(name) => Ok(Netns::open_live(name)?),
    }
}

/// Begins the record; gives the lock on it. One of an earlier call that was cut short makes way: whether there was one, whose
/// namespace is now ours to remove.
fn begin(state: &State, key: &str, record: &Attachment, place: &Place<'_>) -> Result<(File, bool)> {
    let mut is_left_over = false;
    for _ in 0..3 {
        if let Some(busy) = state.begin_attachment(key, record)? {
            return Ok((busy, is_left_over));
        }
        let Some(busy) = state.lock_attachment(key)? else {
            return Err(Error::Busy { what: record.to_string() });
        };
        let mut old = state.attachment(key)?.flatten();
        let is_whole = match &old {
            Some(old) => old.is_whole(),
            // One that cannot be read was whole once, if something was claimed in its name.
            None => !state.is_cut_short(key)?,
        };
        if old.is_none() {
            old = state.claimed_by(record)?;
        }
        let netns = if is_whole { find_netns(place)? } else { None };
        if let Some(netns) = netns
            && links::exists(&netns, &record.interface)?
        {
            return Err(Error::InterfaceExists {
                interface: record.interface.clone(),
                netns: netns.name().to_owned(),
            });
        }
        is_left_over |= !is_whole;
        // Its namespace is the new one's, if it is ours.
        let old = old.map(|old| Attachment { netns_name: None, ..old });
        detach(state, key, Some(old.unwrap_or_else(|| record.clone())))?;
        drop(busy);
    }
    Err(Error::Busy { what: record.to_string() })
}

fn make(
    state: &State,
    lock: &mut Option<Lock>,
    network: &Network,
    wanted: &Wanted<'_>,
    (key, netns): (&str, Option<Netns>),
    record: &mut Attachment,
    begun: &mut Begun,
) -> Result<Attached> {
    let gateways = claim_addresses(state, network, wanted, key, record)?;
    ports::claim(state, key, record)?;
    // Of plain bridges' frames no policy sees anything.
    let waits = network.mode == Mode::Routed && newcomers::admit(record)?;
    if waits {
        // What was sent to the addresses before waits behind the rules until somebody is there: it goes.
        links::forget_neighbours(state, std::iter::once(&*record))?;
    }
    // Until there is a link in it, nothing else says that somebody needs it.
    let making = record.netns_name.as_ref().map(|_| state::lock_names()).transpose()?;
    let netns = match (netns, &record.netns_name) {
        (Some(netns), _) => netns,
        (None, Some(name)) => {
            if let Some(netns) = Netns::open_live(name)? {
                netns
            } else {
                begun.netns = true;
                Netns::create(name)?
            }
        }
        (None, None) => Netns::open_path(Path::new(&record.netns))?,
    };
    let mac = record.hardware_address();
    let mac = mac.unwrap_or_else(|| names::mac(&["instance", &record.host_link]));
    let routes = links::Routes { is_default: wanted.is_default, more: wanted.routes };
    begun.links = true;
    let was_full = network.mode == Mode::Routed && state.is_full(&network.name);
    record.is_routed = was_full;
    let made = links::make(network, record, &netns, mac, &gateways, &routes);
    if let Err(Error::InterfaceExists { .. }) = &made {
        // The pair is made in one go, or not at all.
        begun.links = false;
    }
    let made = made?;
    if made.is_bridge_full {
        state.set_full(&network.name, true);
    }
    drop(making);
    if let Some(bandwidth) = &record.bandwidth {
        crate::bandwidth::set(&record.host_link, bandwidth)?;
    }
    publish(state, lock, key, record)?;
    record.mac = mac.to_string();
    state.save_attachment(key, record)?;
    Ok(Attached {
        record: record.clone(),
        gateways,
        bridge_mac: made.bridge_mac,
        host_mac: made.host_mac,
        mtu: made.mtu,
        waits,
    })
}

/// Claims the addresses and puts them into the record; the gateway of each.
fn claim_addresses(
    state: &State,
    network: &Network,
    wanted: &Wanted<'_>,
    key: &str,
    record: &mut Attachment,
) -> Result<Vec<Option<IpAddr>>> {
    let mut gateways = Vec::new();
    match wanted.addresses {
        Addresses::Exactly(addresses) => {
            for inet in addresses {
                let ip = inet.address();
                let home = network.subnets.iter().find(|subnet| subnet.cidr.contains(&ip));
                ipam::claim_exactly(state, &network.name, key, ip)?;
                record.addresses.push(*inet);
                gateways.push(home.and_then(|subnet| subnet.gateway));
            }
        }
        Addresses::OutOf(sets, asked) => {
            check_asked(sets, asked)?;
            for set in sets {
                let wanted = asked.iter().copied().find(|ip| fits(set, *ip));
                let (inet, gateway) = ipam::claim(state, &network.name, key, set, wanted)?;
                record.addresses.push(inet);
                gateways.push(Some(gateway));
            }
        }
    }
    Ok(gateways)
}

fn fits(set: &[Range], ip: IpAddr) -> bool {
    set.iter().any(|range| range.contains(ip))
}

/// Whoever asks for an address that is in no range, or for two where there is one, would otherwise get another without a word.
fn check_asked(sets: &[Vec<Range>], asked: &[IpAddr]) -> Result<()> {
    if let Some(ip) = asked.iter().find(|ip| !sets.iter().any(|set| fits(set, **ip))) {
        let subnets = sets.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(Error::OutsideRange { address: *ip, subnets });
    }
    for set in sets {
        let mut own = asked.iter().filter(|ip| fits(set, **ip));
        let Some(first) = own.next() else { continue };
        if let Some(second) = own.find(|ip| *ip != first) {
            let why = format!(
                "{first} and {second} are out of the same set of ranges, and an interface gets one address of each; ask for one of them"
            );
            return Err(Error::Invalid { field: "ips", why });
        }
    }
    Ok(())
}

/// Publishes the addresses and ports. Where somebody has removed our tables, all of them are put back.
fn publish(state: &State, lock: &mut Option<Lock>, key: &str, record: &Attachment) -> Result<()> {
    let mut rules = Rules::open()?;
    if rules.publish(record)? == Added::NoTable {
        // Nobody gets the one while he has the other.
        drop(lock.take());
        *lock = Some(state.lock_exclusive()?);
        if state.attachment(key)?.is_none() {
            return Err(Error::Unknown {
                kind: "network",
                name: record.network.clone(),
                hint: "somebody has just removed it; try again",
            });
        }
        rules.write(state, &state.networks()?)?;
    }
    ports::forget_flows(std::slice::from_ref(record))
}

/// All attachments with what they really have, those that are being made among them.
pub(crate) fn recorded(state: &State) -> Result<Vec<Attachment>> {
    let records = state.attachments()?.into_iter().filter_map(|(_, record)| record);
    records.map(|record| with_claims(state, record)).collect()
}

/// Takes an attachment back, whatever of it there is. Goes on after errors; the record stays until everything
/// is gone. Without a record there is nothing.
pub(crate) fn detach(state: &State, key: &str, record: Option<Attachment>) -> Result<()> {
    let Some(record) = record else { return state.remove_attachment(key) };
    let record = with_claims(state, record)?;
    // Kept to the end. Where it cannot be said, on a disk that is full, it goes all the same.
    let _going = record.is_whole().then(|| state.save_as_going(key, &record).ok());
    let mut errors = Vec::new();
    let unpublished = unpublish(state, std::slice::from_ref(&record));
    errors.extend(links::forget_neighbours(state, std::iter::once(&record)).err());
    if !record.is_chained {
        errors.extend(links::remove(&record.host_link).err());
    }
    if record.bandwidth.is_some() {
        errors.extend(crate::bandwidth::clear(&record.host_link).err());
    }
    if let Some(name) = &record.netns_name {
        errors.extend(remove_netns(name).err());
    }
    errors.extend(unpublished.err());
    // Not before its links are gone.
    errors.extend(newcomers::forget(std::slice::from_ref(&record)).err());
    if !errors.is_empty() {
        return Error::all(errors);
    }
    forget(state, key, &record)
}

/// Takes many attachments back at once: one transaction for their rules, one deletion for their links. Needs the
/// exclusive lock, because links that are about to go share a group.
pub(crate) fn detach_many(state: &State, records: Vec<(String, Option<Attachment>)>) -> Result<()> {
    let mut errors = Vec::new();
    let mut doomed = Vec::new();
    for (key, record) in records {
        match record.map(|record| with_claims(state, record)).transpose() {
            Ok(Some(record)) => doomed.push((key, record)),
            Ok(None) => errors.extend(state.remove_attachment(&key).err()),
            Err(error) => errors.push(error),
        }
    }
    if doomed.is_empty() {
        return Error::all(errors);
    }
    if detach_at_once(state, &doomed).is_err() {
        // One of them is in the way of the others: then each for itself.
        let each = doomed.into_iter().map(|(key, record)| detach(state, &key, Some(record)));
        errors.extend(each.filter_map(Result::err));
    }
    Error::all(errors)
}

fn detach_at_once(state: &State, doomed: &[(String, Attachment)]) -> Result<()> {
    let all: Vec<Attachment> = doomed.iter().map(|(_, it)| it).cloned().collect();
    for (key, record) in doomed.iter().filter(|(_, record)| record.is_whole()) {
        // As above; nobody else is at work on it under the exclusive lock.
        let _ = state.save_as_going(key, record);
    }
    // Until the links are gone; see there.
    let _rules = unpublish(state, &all)?;
    links::forget_neighbours(state, doomed.iter().map(|(_, it)| it))?;
    let limited = || doomed.iter().filter(|(_, record)| record.bandwidth.is_some());
    for (_, record) in limited().filter(|(_, record)| record.is_chained) {
        // The link is another plugin's, and stays.
        crate::bandwidth::clear(&record.host_link)?;
    }
    let limiting = limited();
    let limiting: Vec<String> =
        limiting.map(|(_, record)| crate::bandwidth::limit_link(&record.host_link)).collect();
    let own = doomed.iter().filter(|(_, record)| !record.is_chained);
    let host_links = own.map(|(_, record)| record.host_link.as_str());
    remove_links(host_links.chain(limiting.iter().map(String::as_str)))?;
    newcomers::forget(&all)?;
    for (key, record) in doomed {
        record.netns_name.as_deref().map_or(Ok(()), remove_netns)?;
        forget(state, key, record)?;
    }
    Ok(())
}

/// Removes links by name, all in one deletion.
pub(crate) fn remove_links<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
    let doing = || Error::kernel("removing links");
    let mut kernel = Rtnetlink::open().map_err(doing())?;
    let mark = names.map(|name| {
        let set = SetLink::new(Which::Name(name));
        Request::Set(SetLink { group: Some(DOOMED_GROUP), ..set })
    });
    kernel.all_but(&[ENODEV], mark).map_err(doing())?;
    kernel.all_but(&[ENODEV], [Request::DeleteGroup(DOOMED_GROUP)]).map_err(doing())
}

/// Takes addresses and ports out of the rules. The connection to nftables is for the caller to hold until the links are
/// gone: whoever closes it waits until what was deleted is gone for good, and the links take longer than that.
fn unpublish(state: &State, records: &[Attachment]) -> Result<Rules> {
    let mut rules = Rules::open()?;
    rules.unpublish(state, records)?;
    ports::forget_flows(records)?;
    Ok(rules)
}

/// The same for what nobody has claimed: the ports of a record, and its address too unless that is somebody's.
fn unpublish_unclaimed(record: &Attachment, is_address_claimed: bool) -> Result<()> {
    Rules::open()?.forget(record, !is_address_claimed)?;
    if is_address_claimed {
        return Ok(());
    }
    ports::forget_flows(std::slice::from_ref(record))
}

/// What an attachment really has: a record whose making was cut short does not know its addresses, but their claims know
/// it; and it may name ports that it never got.
fn with_claims(state: &State, mut record: Attachment) -> Result<Attachment> {
    record.ports = ports::claimed(state, &record);
    if record.mac.is_empty() && record.addresses.is_empty() {
        for (ip, holder) in ipam::claims(state, &record.network)? {
            let is_ours = holder.is_some_and(|it| {
                (it.container, it.interface) == (record.container.clone(), record.interface.clone())
            });
            if is_ours {
                record.addresses.push(IpInet::new_host(ip));
            }
        }
    }
    Ok(record)
}

fn forget(state: &State, key: &str, record: &Attachment) -> Result<()> {
    ports::release(state, record)?;
    if record.is_chained {
        return state.remove_attachment(key);
    }
    for inet in &record.addresses {
        ipam::release(state, record, inet.address())?;
    }
    if !record.is_routed {
        state.set_full(&record.network, false);
    }
    state.remove_attachment(key)
}

/// Removes a namespace of ours; that it is gone is no fault.
pub(crate) fn remove_netns(name: &str) -> Result<()> {
    match Netns::remove(name) {
        Err(NetnsError::System { what: "unmount", source, .. })
            if source.raw_os_error() == Some(EINVAL) =>
        {
            // A name that was never given a namespace.
            crate::state::remove_file(&Netns::path_of(name)?)
        }
        Err(NetnsError::System { source, .. }) if source.raw_os_error() == Some(ENOENT) => Ok(()),
        outcome => Ok(outcome?),
    }
}
