//! Traffic control: how fast a link sends, and what becomes of what comes in by it.
//!
//! Only what limits need: token buckets, and redirecting all that comes in by one link to another.
//!
//! ```no_run
//! use telaio_netlink::links::Links;
//! use telaio_netlink::tc::{TokenBucket, TrafficControl};
//!
//! # fn main() -> Result<(), telaio_netlink::NetlinkError> {
//! if let Some(link) = Links::open()?.find("veth7")? {
//!     let bucket = TokenBucket { rate: 125_000, burst: 16_000, queue: 20_000 };
//!     TrafficControl::open()?.limit(link, &bucket)?;
//! }
//! # Ok(())
//! # }
//! ```

use crate::error::NetlinkError;
use crate::links::LinkIndex;
use crate::socket::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket,
};
use crate::wire::{Message, Writer, ne32};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REPLACE: u16 = 0x100;
/// `struct tcmsg`: family, the link's number, handle, parent, info.
const HEADER_LEN: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
/// Where a link's own queue stands.
const PARENT_ROOT: u32 = 0xffff_ffff;
/// Where what comes in by a link is looked at.
const PARENT_INGRESS: u32 = 0xffff_fff1;
const HANDLE_ROOT: u32 = 0x0001_0000;
const HANDLE_INGRESS: u32 = 0xffff_0000;

const KIND_TOKEN_BUCKET: &str = "tbf";
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
/// `struct tc_tbf_qopt`: two rates of 12 bytes, then limit, buffer and mtu.
const TBF_PARAMETERS_LEN: usize = 36;
/// Where in a rate its speed stands.
const RATE_AT: usize = 8;
const LIMIT_AT: usize = 24;
const BUFFER_AT: usize = 28;
/// Frames are Ethernet's.
const LINK_LAYER_ETHERNET: u8 = 1;
/// The kernel's time for buffers: so many nanoseconds are one tick.
const NANOSECONDS_PER_TICK: u64 = 64;

const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const U32_TERMINAL: u8 = 1;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
const ACTION_STOLEN: u32 = 4;
const MIRRED_EGRESS_REDIRECT: u32 = 1;
const PROTOCOL_ALL: u16 = 3;
const PRIORITY: u32 = 1;

/// How fast a link may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// In bytes per second; not 0.
    pub rate: u64,
    /// How many bytes at once after a pause; not 0.
    pub burst: u32,
    /// How many bytes may wait.
    pub queue: u32,
}

/// A connection to the traffic control of the network namespace in which it was opened.
#[derive(Debug)]
pub struct TrafficControl {
    socket: Socket,
}

impl TrafficControl {
    /// Opens one.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// Limits how fast a link sends, instead of any other limit.
    pub fn limit(&mut self, link: LinkIndex, bucket: &TokenBucket) -> Result<(), NetlinkError> {
        self.command("limiting a link", |sequence| limit_request(link, bucket, sequence))
    }

    /// Takes the limit away; `false` if there was none.
    pub fn unlimit(&mut self, link: LinkIndex) -> Result<bool, NetlinkError> {
        self.delete("taking a link's limit away", link, HANDLE_ROOT, PARENT_ROOT)
    }

    /// Has all that comes in by one link sent out by another, from which it goes on as if it had come in by the first: for
    /// `ifb` links. Takes the place of what was there.
    pub fn redirect(&mut self, from: LinkIndex, to: LinkIndex) -> Result<(), NetlinkError> {
        self.stop_redirecting(from)?;
        let doing = "redirecting what comes in by a link";
        self.command(doing, |sequence| ingress_request(from, sequence))?;
        self.command(doing, |sequence| redirect_request(from, to, sequence))
    }

    /// Nothing is redirected any more; `false` if nothing was.
    pub fn stop_redirecting(&mut self, from: LinkIndex) -> Result<bool, NetlinkError> {
        let doing = "ending to redirect what comes in by a link";
        self.delete(doing, from, HANDLE_INGRESS, PARENT_INGRESS)
    }

    /// All links that have a limit, with their limits.
    pub fn limits(&mut self) -> Result<Vec<(LinkIndex, TokenBucket)>, NetlinkError> {
        let doing = "listing limits";
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        let header = header(LinkIndex(0), 0, 0, 0);
        request.begin(RTM_GETQDISC, NLM_F_REQUEST | NLM_F_DUMP, sequence, &header);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let mut found = Vec::new();
        self.socket.list(sequence, doing, |message| {
            found.extend(limit(message));
            Ok(())
        })?;
        Ok(found)
    }

    /// The link to which all is redirected that comes in by this one, if it is.
    pub fn redirected_to(&mut self, from: LinkIndex) -> Result<Option<LinkIndex>, NetlinkError> {
        let doing = "listing what is redirected";
        let sequence = self.socket.next_sequence();
        let mut request = Writer::new();
        let header = header(from, 0, HANDLE_INGRESS, 0);
        request.begin(RTM_GETTFILTER, NLM_F_REQUEST | NLM_F_DUMP, sequence, &header);
        request.end();
        self.socket.send(request.finish()?, doing)?;
        let mut found = None;
        let listed = self.socket.list(sequence, doing, |message| {
            found = found.or_else(|| redirection(message));
            Ok(())
        });
        match listed {
            Ok(()) => Ok(found),
            // There is no such place, or no such link.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn delete(
        &mut self,
        doing: &'static str,
        link: LinkIndex,
        handle: u32,
        parent: u32,
    ) -> Result<bool, NetlinkError> {
        let outcome = self.command(doing, |sequence| {
            let mut request = Writer::new();
            let header = header(link, handle, parent, 0);
            request.begin(RTM_DELQDISC, NLM_F_REQUEST | NLM_F_ACK, sequence, &header);
            request.end();
            request
        });
        match outcome {
            Ok(()) => Ok(true),
            // How the kernel says that there is none depends on what is there instead.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn command(
        &mut self,
        doing: &'static str,
        request: impl FnOnce(u32) -> Writer,
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.next_sequence();
        self.socket.send(request(sequence).finish()?, doing)?;
        self.socket.acknowledge(sequence, sequence, doing)
    }
}

fn header(link: LinkIndex, handle: u32, parent: u32, info: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    for (at, value) in [(4, link.0), (8, handle), (12, parent), (16, info)] {
        header[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    header
}

fn limit_request(link: LinkIndex, bucket: &TokenBucket, sequence: u32) -> Writer {
    let mut request = Writer::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let header = header(link, HANDLE_ROOT, PARENT_ROOT, 0);
    request.begin(RTM_NEWQDISC, flags, sequence, &header);
    request.put_str(TCA_KIND, KIND_TOKEN_BUCKET);
    let options = request.begin_nest(TCA_OPTIONS);
    let mut parameters = [0; TBF_PARAMETERS_LEN];
    parameters[1] = LINK_LAYER_ETHERNET;
    let rate = u32::try_from(bucket.rate).unwrap_or(u32::MAX);
    for (at, value) in [(RATE_AT, rate), (LIMIT_AT, bucket.queue)] {
        parameters[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    request.put(TBF_PARAMETERS, &parameters);
    request.put_ne32(TBF_BURST, bucket.burst);
    if rate == u32::MAX {
        request.put(TBF_RATE64, &bucket.rate.to_ne_bytes());
    }
    request.end_nest(options);
    request.end();
    request
}

fn ingress_request(link: LinkIndex, sequence: u32) -> Writer {
    let mut request = Writer::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let header = header(link, HANDLE_INGRESS, PARENT_INGRESS, 0);
    request.begin(RTM_NEWQDISC, flags, sequence, &header);
    request.put_str(TCA_KIND, "ingress");
    request.end();
    request
}

fn redirect_request(from: LinkIndex, to: LinkIndex, sequence: u32) -> Writer {
    let mut request = Writer::new();
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let info = PRIORITY << 16 | u32::from(PROTOCOL_ALL.to_be());
    request.begin(RTM_NEWTFILTER, flags, sequence, &header(from, 0, HANDLE_INGRESS, info));
    request.put_str(TCA_KIND, "u32");
    let options = request.begin_nest(TCA_OPTIONS);
    // A selector of 16 bytes and one key of 16, whose mask is zero: everything matches.
    let mut selector = [0; 32];
    selector[0] = U32_TERMINAL;
    selector[2] = 1;
    request.put(U32_SELECTOR, &selector);
    let actions = request.begin_nest(U32_ACTIONS);
    let action = request.begin_nest(1);
    request.put_str(ACTION_KIND, "mirred");
    let action_options = request.begin_nest(ACTION_OPTIONS);
    // Index, capabilities, what becomes of the packet, two counters, what to do, the link.
    let mut parameters = [0; 28];
    for (at, value) in [(8, ACTION_STOLEN), (20, MIRRED_EGRESS_REDIRECT), (24, to.0)] {
        parameters[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    request.put(MIRRED_PARAMETERS, &parameters);
    request.end_nest(action_options);
    request.end_nest(action);
    request.end_nest(actions);
    request.end_nest(options);
    request.end();
    request
}

/// The link to which a filter redirects.
fn redirection(message: &Message<'_>) -> Option<LinkIndex> {
    if message.message_type != RTM_NEWTFILTER {
        return None;
    }
    let options = message.attributes(HEADER_LEN).nested(TCA_OPTIONS)?;
    let action = options.nested(U32_ACTIONS)?.nested(1)?;
    if action.str(ACTION_KIND) != Some("mirred") {
        return None;
    }
    let parameters = action.nested(ACTION_OPTIONS)?.get(MIRRED_PARAMETERS)?;
    let at = |place: usize| parameters.get(place..).and_then(ne32);
    (at(20)? == MIRRED_EGRESS_REDIRECT).then_some(LinkIndex(at(24)?))
}

/// The limit that a message tells of.
fn limit(message: &Message<'_>) -> Option<(LinkIndex, TokenBucket)> {
    if message.message_type != RTM_NEWQDISC {
        return None;
    }
    let link = LinkIndex(message.body.get(4..).and_then(ne32)?);
    let parent = message.body.get(12..).and_then(ne32)?;
    let attributes = message.attributes(HEADER_LEN);
    if parent != PARENT_ROOT || attributes.str(TCA_KIND) != Some(KIND_TOKEN_BUCKET) {
        return None;
    }
    let options = attributes.nested(TCA_OPTIONS)?;
    let parameters = options.get(TBF_PARAMETERS)?;
    let at = |place: usize| parameters.get(place..).and_then(ne32);
    let rate64 = options.get(TBF_RATE64).and_then(|bytes| bytes.try_into().ok());
    let rate = match rate64.map(u64::from_ne_bytes) {
        Some(rate) => rate,
        None => at(RATE_AT)?.into(),
    };
    // The kernel tells the burst as the time that it takes.
    let nanoseconds = u128::from(u64::from(at(BUFFER_AT)?) * NANOSECONDS_PER_TICK);
    let burst = nanoseconds * u128::from(rate) / 1_000_000_000;
    let burst = u32::try_from(burst).unwrap_or(u32::MAX);
    Some((link, TokenBucket { rate, burst, queue: at(LIMIT_AT)? }))
}

#[cfg(test)]
mod tests;
