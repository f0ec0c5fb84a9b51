//! Frames made by hand, and who sees them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use telaio_netlink::packets;
use telaio_netlink::rtnl::{Mac, Rtnetlink};
use telaio_testkit::machine::Machine;

use super::enter;

pub const BROADCAST: Mac = Mac([0xff; 6]);
/// All machines of a link.
pub const EVERYBODY: &str = "ff02::1";
const LONG: Duration = Duration::from_secs(30);

/// A socket for the frames of a link, of a container of a machine or of the machine itself.
pub struct Tap {
    socket: UdpSocket,
}

impl Tap {
    pub fn open(machine: &Machine, instance: Option<&str>, link: &str) -> Self {
        let (instance, link) = (instance.map(str::to_owned), link.to_owned());
        let opened = machine.spawn(move || {
            enter(instance.as_deref());
            let index = Rtnetlink::open().unwrap().link(&link).unwrap().unwrap().index;
            // It is no UDP, but to send and receive is all that is done with it.
            UdpSocket::from(packets::open(index).unwrap())
        });
        Self { socket: opened.join().unwrap() }
    }

    pub fn send(&self, frame: &[u8]) {
        self.socket.send(frame).unwrap();
    }

    pub fn send_all(&self, frames: &[(&str, Vec<u8>)]) {
        for (_, frame) in frames {
            self.send(frame);
        }
    }

    /// What is found in the first frame in which it is.
    pub fn find<T>(&self, look: impl Fn(&[u8]) -> Option<T>) -> T {
        self.socket.set_read_timeout(Some(LONG)).unwrap();
        let mut buffer = [0; 4096];
        loop {
            let count = self.socket.recv(&mut buffer).expect("no such frame comes");
            if let Some(found) = look(&buffer[..count]) {
                return found;
            }
        }
    }

    /// Which of these come, until the last one does.
    pub fn until_last<'a>(&self, frames: &'a [(&'a str, Vec<u8>)]) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let last = frames.last().unwrap().0;
        self.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let deadline = Instant::now() + LONG;
        let mut buffer = [0; 4096];
        while !seen.contains(last) {
            assert!(Instant::now() < deadline, "{last} does not come; {seen:?} did");
            let Ok(count) = self.socket.recv(&mut buffer) else { continue };
            let is_it = |frame: &[u8]| *untagged(frame) == buffer[12..count];
            let found = frames.iter().filter(|(_, frame)| is_it(frame));
            seen.extend(found.map(|(name, _)| *name));
        }
        seen
    }

    /// Which of these have come until somebody else's bytes do.
    pub fn until<'a>(&self, frames: &'a [(&'a str, Vec<u8>)], end: &[u8]) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        self.socket.set_read_timeout(Some(LONG)).unwrap();
        let mut buffer = [0; 4096];
        loop {
            let count = self.socket.recv(&mut buffer).expect("the end does not come");
            if buffer[..count].windows(end.len()).any(|bytes| bytes == end) {
                return seen;
            }
            let is_it = |frame: &[u8]| *untagged(frame) == buffer[12..count];
            let found = frames.iter().filter(|(_, frame)| is_it(frame));
            seen.extend(found.map(|(name, _)| *name));
        }
    }
}

/// A frame from its type on, without the tag that the kernel takes off.
fn untagged(frame: &[u8]) -> &[u8] {
    if frame[12..14] == [0x81, 0] { &frame[16..] } else { &frame[12..] }
}

pub fn ether(to: Mac, from: Mac, kind: u16, body: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &kind.to_be_bytes(), body].concat()
}

/// The same with a tag of no virtual network, only a priority.
pub fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0x20, 0], &frame[12..]].concat()
}

/// ARP: 1 asks, 2 answers.
pub fn arp(operation: u16, sender: (Mac, &str), target: (Mac, &str)) -> Vec<u8> {
    let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
    let head = [0, 1, 8, 0, 6, 4];
    let operation = operation.to_be_bytes();
    let (sender_ip, target_ip) = (ip(sender.1), ip(target.1));
    [&head[..], &operation, &sender.0.0, &sender_ip, &target.0.0, &target_ip].concat()
}

/// A packet of ICMPv6 as neighbours send it to each other; `hop` puts a header of options before it.
pub fn icmp6(from: &str, to: &str, message: &[u8], hop: bool) -> Vec<u8> {
    let [from, to] = [from, to].map(|text| text.parse::<Ipv6Addr>().unwrap().octets());
    let mut message = message.to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let pseudo = [&from[..], &to, &length, &[0, 0, 0, 58]].concat();
    let sum = checksum(&[pseudo, message.clone()].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let options: &[u8] = if hop { &[58, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
    let length = u16::try_from(options.len() + message.len()).unwrap().to_be_bytes();
    let next = if hop { 0 } else { 58 };
    let head = [0x60, 0, 0, 0, length[0], length[1], next, 255];
    [&head[..], &from, &to, options, &message].concat()
}

/// Says or asks who has an address: 136 says, 135 asks; with the hardware address that is to be believed.
pub fn neighbour(kind: u8, about: &str, mac: Option<Mac>) -> Vec<u8> {
    let says = kind == 136;
    // Solicited or not, it is to replace what was known.
    let flags = if says { 0x20 } else { 0 };
    let about = about.parse::<Ipv6Addr>().unwrap().octets();
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0], &about[..]].concat();
    if let Some(mac) = mac {
        message.extend([if says { 2 } else { 1 }, 1]);
        message.extend(mac.0);
    }
    message
}

/// The Internet's sum of a message whose own field for it is zero.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
