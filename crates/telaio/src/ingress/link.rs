//! The link between the plane and its worker: frames over a Unix socket.
//!
//! A frame is a length, a kind, and as many bytes. The view goes as the Local API's own messages, one
//! operation a frame; everything else is JSON. Listening sockets go as the kernel passes descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use prost::Message as _;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use telaio_api::local;
use telaio_api::proto::localv1::OpItem;
use telaio_model::Op;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest frame: an object with its annotations is far smaller.
const FRAME_BYTES_MAX: u32 = 16 << 20;
/// How many descriptors go at a time; the kernel takes up to 253.
const DESCRIPTORS_MAX: usize = 128;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// How to work: JSON.
    Settings = 1,
    /// An operation of the view: the Local API's.
    Op = 2,
    /// What the worker has to tell: JSON.
    Report = 4,
    /// A question to the worker: JSON.
    Ask = 5,
    /// A part of its answer: JSON.
    Answer = 6,
    /// The worker is to end: JSON, which sockets somebody else goes on with.
    End = 7,
    /// The worker is to accept connections as soon as it has routes: empty.
    Go = 8,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all =
            [Self::Settings, Self::Op, Self::Report, Self::Ask, Self::Answer, Self::End, Self::Go];
        all.into_iter().find(|it| *it as u8 == byte)
    }
}

/// A frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    /// A frame of JSON.
    pub(crate) fn json(kind: Kind, value: &impl Serialize) -> io::Result<Self> {
        Ok(Self { kind, bytes: serde_json::to_vec(value)? })
    }

    /// A frame that says all by its kind.
    pub(crate) fn empty(kind: Kind) -> Self {
        Self { kind, bytes: Vec::new() }
    }

    /// What it holds as JSON.
    pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(&self) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.bytes)?)
    }

    /// An operation; `None` for one that cannot be written, which is left out.
    pub(crate) fn op(op: &Op) -> Option<Self> {
        match local::encode_op(op) {
            Ok(item) => Some(Self { kind: Kind::Op, bytes: item.encode_to_vec() }),
            Err(error) => {
                tracing::warn!(%error, "an object is left out");
                None
            }
        }
    }

    /// The operation that it holds.
    pub(crate) fn read_op(&self) -> io::Result<Option<Op>> {
        let item = OpItem::decode(self.bytes.as_slice()).map_err(invalid)?;
        local::decode_op(item).map_err(invalid)
    }
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Writes a frame.
pub(crate) async fn write(out: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let length = u32::try_from(frame.bytes.len()).map_err(invalid)?;
    let mut head = [0; 5];
    head[..4].copy_from_slice(&length.to_be_bytes());
    head[4] = frame.kind as u8;
    out.write_all(&head).await?;
    out.write_all(&frame.bytes).await
}

/// Reads a frame; `None` when the other end has closed.
pub(crate) async fn read(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut head = [0; 5];
    match input.read_exact(&mut head).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let kind = Kind::of(head[4]).ok_or_else(|| invalid("a frame of an unknown kind"))?;
    if length > FRAME_BYTES_MAX {
        return Err(invalid("a frame that is too long"));
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes).await?;
    Ok(Some(Frame { kind, bytes }))
}

/// Sends one descriptor. The socket must be in blocking mode, or have room.
pub(crate) fn send_descriptor(to: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let all = [descriptor];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(invalid("no room for a descriptor"));
    }
    let sent = sendmsg(to, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == 1 { Ok(()) } else { Err(invalid("a descriptor was not sent")) }
}

/// Receives one descriptor; `None` when the other end has closed. The socket must be in blocking mode.
pub(crate) fn receive_descriptor(from: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0_u8; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    let got = recvmsg(from, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.map(Some).ok_or_else(|| invalid("a descriptor did not come"))
}

/// The sockets of both addresses, one per thread each.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) http: Vec<TcpListener>,
    pub(crate) https: Vec<TcpListener>,
}

impl Sockets {
    /// The port that HTTPS is served on.
    pub(crate) fn https_port(&self) -> Option<u16> {
        self.https.first().and_then(|it| it.local_addr().ok()).map(|address| address.port())
    }

    /// Lets people connect to those to which nobody can yet.
    pub(crate) fn open(&self) -> io::Result<()> {
        [&self.http, &self.https].into_iter().try_for_each(|it| telaio_http_proxy::server::open(it))
    }

    /// Sends them. The socket must be in blocking mode.
    pub(crate) fn send(&self, to: impl AsFd) -> io::Result<()> {
        let all: Vec<BorrowedFd<'_>> =
            self.http.iter().chain(&self.https).map(AsFd::as_fd).collect();
        if all.len() > DESCRIPTORS_MAX {
            return Err(invalid("more sockets than can be passed; use fewer threads"));
        }
        let counts = [self.http.len(), self.https.len()].map(|n| u8::try_from(n).unwrap_or(0));
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&all)) {
            return Err(invalid("no room for the sockets"));
        }
        let sent = sendmsg(to, &[IoSlice::new(&counts)], &mut ancillary, SendFlags::empty())?;
        if sent == counts.len() { Ok(()) } else { Err(invalid("the sockets were not sent")) }
    }

    /// Receives them. The socket must be in blocking mode.
    pub(crate) fn receive(from: impl AsFd) -> io::Result<Self> {
        let mut counts = [0_u8; 2];
        let mut space =
            vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut counts)];
        let got = recvmsg(from, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes != 2 {
            return Err(invalid("the other end has no sockets for us"));
        }
        let mut all: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                all.extend(descriptors);
            }
        }
        let (http, https) = (usize::from(counts[0]), usize::from(counts[1]));
        if all.len() != http + https {
            return Err(invalid("not all sockets came"));
        }
        let https = all.split_off(http);
        let listeners = |all: Vec<OwnedFd>| all.into_iter().map(TcpListener::from).collect();
        Ok(Self { http: listeners(all), https: listeners(https) })
    }
}

/// Which sockets somebody else goes on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) http: bool,
    pub(crate) https: bool,
}

impl Kept {
    pub(crate) const NONE: Self = Self { http: false, https: false };
    pub(crate) const BOTH: Self = Self { http: true, https: true };
}

/// The agent's own copies of the sockets, for its workers and for who takes over, until it ends.
#[derive(Debug)]
pub(crate) struct HeldSockets(Mutex<Holding>);

#[derive(Debug)]
enum Holding {
    /// Ours; so many newcomers have copies and are not ready yet.
    Ours(Arc<Sockets>, usize),
    /// Another agent serves them.
    HandedOver(Arc<Sockets>, Kept),
    LetGo(Kept),
}

impl HeldSockets {
    pub(crate) fn new(sockets: Sockets) -> Self {
        Self(Mutex::new(Holding::Ours(Arc::new(sockets), 0)))
    }

    /// The sockets, for a worker; none once they were let go.
    pub(crate) fn get(&self) -> Option<Arc<Sockets>> {
        match &*self.0.lock() {
            Holding::Ours(sockets, _) | Holding::HandedOver(sockets, _) => {
                Some(Arc::clone(sockets))
            }
            Holding::LetGo(_) => None,
        }
    }

    /// The sockets for a newcomer, if nobody has taken them over: until it [gives them
    /// back](Self::give_back) they are not closed for good, for it may need them at any time.
    pub(crate) fn lend(&self) -> Option<Arc<Sockets>> {
        match &mut *self.0.lock() {
            Holding::Ours(sockets, newcomers) => {
                *newcomers += 1;
                Some(Arc::clone(sockets))
            }
            Holding::HandedOver(..) | Holding::LetGo(_) => None,
        }
    }

    /// A newcomer is gone.
    pub(crate) fn give_back(&self) {
        if let Holding::Ours(_, newcomers) = &mut *self.0.lock() {
            *newcomers = newcomers.saturating_sub(1);
        }
    }

    /// A newcomer serves; false if another was quicker, or we have let go of them already.
    pub(crate) fn hand_over(&self, kept: Kept) -> bool {
        let mut holding = self.0.lock();
        let Holding::Ours(sockets, _) = &*holding else { return false };
        *holding = Holding::HandedOver(Arc::clone(sockets), kept);
        true
    }

    /// Closes our copies; which of them somebody else goes on with.
    pub(crate) fn let_go(&self) -> Kept {
        let mut holding = self.0.lock();
        let kept = match &*holding {
            Holding::Ours(_, 0) => Kept::NONE,
            Holding::Ours(..) => Kept::BOTH,
            Holding::HandedOver(_, kept) | Holding::LetGo(kept) => *kept,
        };
        *holding = Holding::LetGo(kept);
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn sockets_that_were_passed_take_connections() {
        let (one, other) = UnixStream::pair().unwrap();
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = http.local_addr().unwrap();
        let sockets = Sockets { http: vec![http], https: Vec::new() };
        sockets.send(&one).unwrap();
        drop(sockets);
        let received = Sockets::receive(&other).unwrap();
        assert_eq!((received.http.len(), received.https.len()), (1, 0));
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        received.http[0].accept().unwrap().0.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        drop(one);
        assert!(Sockets::receive(&other).is_err());
    }

    #[test]
    fn sockets_that_somebody_has_or_takes_are_not_closed_for_good() {
        let held = || {
            let http = TcpListener::bind("127.0.0.1:0").unwrap();
            HeldSockets::new(Sockets { http: vec![http], https: Vec::new() })
        };
        let ours = held();
        assert_eq!(ours.let_go(), Kept::NONE);
        assert!(ours.get().is_none() && ours.lend().is_none() && !ours.hand_over(Kept::BOTH));
        let lent = held();
        assert!(lent.lend().is_some() && lent.lend().is_some() && lent.get().is_some());
        lent.give_back();
        assert_eq!(lent.let_go(), Kept::BOTH, "one newcomer still has them");
        let taken = held();
        assert!(taken.lend().is_some());
        let kept = Kept { http: true, https: false };
        assert!(taken.hand_over(kept) && !taken.hand_over(Kept::BOTH) && taken.lend().is_none());
        assert_eq!((taken.let_go(), taken.let_go()), (kept, kept));
        let refused = held();
        assert!(refused.lend().is_some());
        refused.give_back();
        assert_eq!(refused.let_go(), Kept::NONE);
    }

    #[tokio::test]
    async fn frames_come_as_they_were_sent_and_long_ones_are_refused() {
        let (mut one, mut other) = tokio::io::duplex(1024);
        write(&mut one, &Frame::op(&Op::Reset).unwrap()).await.unwrap();
        write(&mut one, &Frame::json(Kind::Report, &"x").unwrap()).await.unwrap();
        let op = read(&mut other).await.unwrap().unwrap();
        assert_eq!(op.read_op().unwrap(), Some(Op::Reset));
        let report = read(&mut other).await.unwrap().unwrap();
        assert_eq!(report.read_json::<String>().unwrap(), "x");
        one.write_all(&[0xff, 0xff, 0xff, 0xff, 2]).await.unwrap();
        assert!(read(&mut other).await.is_err());
        drop(one);
        assert!(read(&mut other).await.unwrap().is_none());
    }
}
