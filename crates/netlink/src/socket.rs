//! A netlink socket.
//!
//! Blocking, with a time limit on every wait. Requests are numbered; answers to older requests are
//! passed over.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::NetlinkError;
use crate::wire::{Attributes, HEADER_LEN, Message, Messages, ne32};

/// How large a send buffer we ask for where one message is a whole transaction.
const SEND_BUFFER_BYTES: i32 = 1 << 30;
/// Room for one datagram; the kernel fills at most 32 KiB or what the largest read so far had.
const RECEIVE_BYTES: usize = 64 << 10;
/// How long the kernel may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A request: what the kernel should do.
pub const NLM_F_REQUEST: u16 = 1;
/// Answer also when it succeeded.
pub const NLM_F_ACK: u16 = 4;
/// Make it if it is not there.
pub const NLM_F_CREATE: u16 = 0x400;
/// Fail if it is there.
pub const NLM_F_EXCL: u16 = 0x200;
/// Put it at the end.
pub const NLM_F_APPEND: u16 = 0x800;
/// List everything.
pub const NLM_F_DUMP: u16 = 0x300;

/// How often this process has sent something by netlink.
static SENT: AtomicU64 = AtomicU64::new(0);

/// How often this process has sent something by netlink, of whatever family, also to read: for who claims
/// that something costs no call.
pub fn calls() -> u64 {
    SENT.load(Ordering::Relaxed)
}

/// The families of netlink that we speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nftables, conntrack, ipset.
    Netfilter,
    /// Families that are found by name.
    Generic,
}

/// A socket to the kernel of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens one.
    pub fn open(protocol: Protocol) -> Result<Self, NetlinkError> {
        let number = match protocol {
            Protocol::Route => libc::NETLINK_ROUTE,
            Protocol::Netfilter => libc::NETLINK_NETFILTER,
            Protocol::Generic => libc::NETLINK_GENERIC,
        };
        let doing = "opening a netlink socket";
        // SAFETY: no pointers; the result is checked.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let fd =
            unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, number) };
        if fd < 0 {
            return Err(NetlinkError::last_os(doing));
        }
        // SAFETY: the descriptor is open and nobody else's.
        #[allow(unsafe_code, reason = "takes ownership of a new descriptor")]
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut socket = Self { fd, port: 0, sequence: 1, buffer: vec![0; RECEIVE_BYTES] };
        socket.bind()?;
        // Without these, errors repeat the whole request and say no words.
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        Ok(socket)
    }

    fn bind(&mut self) -> Result<(), NetlinkError> {
        let doing = "binding a netlink socket";
        // SAFETY: an all-zero sockaddr_nl is a valid one.
        #[allow(unsafe_code, reason = "a plain C struct")]
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let mut length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: `address` lives through both calls and `length` is its size.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let done = unsafe {
            let at = (&raw mut address).cast::<libc::sockaddr>();
            libc::bind(self.fd.as_raw_fd(), at, length) == 0
                && libc::getsockname(self.fd.as_raw_fd(), at, &raw mut length) == 0
        };
        if !done {
            return Err(NetlinkError::last_os(doing));
        }
        self.port = address.nl_pid;
        Ok(())
    }

    fn set_option(&self, level: i32, option: i32, value: i32) -> Result<(), NetlinkError> {
        // SAFETY: the value lives through the call and its size is given.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(NetlinkError::last_os("setting a socket option")) }
    }

    /// Lets one message be as large as a whole transaction; tells how large that is. Without the
    /// privileges of the machine's owner, as in a container of its own users, that is not much.
    pub fn allow_large_messages(&self) -> Result<usize, NetlinkError> {
        let forced = self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES);
        match forced {
            Ok(()) => {}
            Err(error) if error.is_permission() => {
                self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
            }
            Err(error) => return Err(error),
        }
        let size = self.option(libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        // Half of it is the kernel's own book-keeping.
        Ok(usize::try_from(size).unwrap_or(0) / 2)
    }

    /// How much the kernel may hold for us until we read it, or as much as it grants.
    pub fn set_receive_buffer(&self, bytes: i32) -> Result<(), NetlinkError> {
        match self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes) {
            Err(error) if error.is_permission() => {
                self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
            }
            outcome => outcome,
        }
    }

    /// How much the kernel holds for us until we read it, its own book-keeping included.
    pub(crate) fn receive_buffer(&self) -> Result<usize, NetlinkError> {
        let size = self.option(libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        Ok(usize::try_from(size).unwrap_or(0))
    }

    fn option(&self, level: i32, option: i32) -> Result<i32, NetlinkError> {
        let mut value = 0_i32;
        let mut length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the value and its length live through the call.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        if result == 0 { Ok(value) } else { Err(NetlinkError::last_os("reading a socket option")) }
    }

    /// Also receives what is told to a multicast group.
    pub fn join(&self, group: u32) -> Result<(), NetlinkError> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group.cast_signed())
    }

    /// Lets the kernel throw away what another socket's requests cause, before it reaches us.
    pub fn ignore_messages_of(&self, port: u32) -> Result<(), NetlinkError> {
        const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        /// Where a message's header has the port of who caused it.
        const PORT_OFFSET: u32 = 12;
        let step = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
        // The filter loads words as big-endian, the header is in the machine's order.
        let mut program = [
            step(LOAD_WORD, 0, 0, PORT_OFFSET),
            step(JUMP_IF_EQUAL, 0, 1, u32::from_be_bytes(port.to_ne_bytes())),
            step(RETURN, 0, 0, 0),
            step(RETURN, 0, 0, u32::MAX),
        ];
        let filter =
            libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
        // SAFETY: the filter and its program live through the call, and their sizes are given.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(NetlinkError::last_os("filtering a netlink socket")) }
    }

    /// Our address among all netlink sockets of the namespace.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// The number for a next request.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    #[cfg(test)]
    pub(crate) fn start_sequence_at(&mut self, sequence: u32) {
        self.sequence = sequence;
    }

    /// Sends messages, all in one datagram.
    pub fn send(&self, bytes: &[u8], doing: &'static str) -> Result<(), NetlinkError> {
        SENT.fetch_add(1, Ordering::Relaxed);
        loop {
            // SAFETY: the bytes live through the call and their length is given.
            #[allow(unsafe_code, reason = "no safe wrapper at hand")]
            let sent =
                unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
            if usize::try_from(sent) == Ok(bytes.len()) {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(NetlinkError::Socket { doing, error });
            }
        }
    }

    /// Waits until there is something to read; `false` if that takes too long, or a signal came.
    pub fn wait(&self, time_max: Duration) -> Result<bool, NetlinkError> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = i32::try_from(time_max.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, and it lives through the call.
        #[allow(unsafe_code, reason = "no safe wrapper at hand")]
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout) };
        if ready >= 0 {
            return Ok(ready > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted {
            return Ok(false);
        }
        Err(NetlinkError::Socket { doing: "waiting for the kernel", error })
    }

    /// Waits for an answer that has to come. A signal ends a wait early, but not this one.
    fn wait_for_answer(&self, doing: &'static str) -> Result<(), NetlinkError> {
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.wait(left)? {
                return Ok(());
            }
            if left.is_zero() {
                return Err(NetlinkError::TimedOut { doing });
            }
        }
    }

    /// Reads one datagram. `None` if there is none.
    pub fn receive(&mut self) -> Result<Option<&[u8]>, NetlinkError> {
        let doing = "reading from the kernel";
        loop {
            // SAFETY: the buffer lives through the call and its length is given. With MSG_TRUNC the
            // result may be larger than the buffer; that is checked.
            #[allow(unsafe_code, reason = "no safe wrapper at hand")]
            let got = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    self.buffer.as_mut_ptr().cast(),
                    self.buffer.len(),
                    libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                )
            };
            if let Ok(got) = usize::try_from(got) {
                if got > self.buffer.len() {
                    return Err(NetlinkError::Malformed { doing, what: "it is cut off" });
                }
                return Ok(Some(&self.buffer[..got]));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Ok(None),
                Some(libc::ENOBUFS) => return Err(NetlinkError::Overrun),
                _ => return Err(NetlinkError::Socket { doing, error }),
            }
        }
    }

    /// Reads the answers to requests `first..=last` until the last is acknowledged, or one is refused.
    pub fn acknowledge(
        &mut self,
        first: u32,
        last: u32,
        doing: &'static str,
    ) -> Result<(), NetlinkError> {
        let is_ours = |sequence: u32| sequence.wrapping_sub(first) <= last.wrapping_sub(first);
        loop {
            self.wait_for_answer(doing)?;
            let Some(bytes) = self.receive()? else { continue };
            for message in Messages(bytes) {
                if !is_ours(message.sequence) || message.message_type != NLMSG_ERROR {
                    continue;
                }
                answer(&message, doing)?;
                if message.sequence == last {
                    return Ok(());
                }
            }
        }
    }

    /// Reads the answers to requests `first..=last` until the last is answered, whatever the answer is; gives
    /// each refusal with its sequence number to `each`.
    pub(crate) fn refusals(
        &mut self,
        first: u32,
        last: u32,
        doing: &'static str,
        mut each: impl FnMut(u32, NetlinkError),
    ) -> Result<(), NetlinkError> {
        let is_ours = |sequence: u32| sequence.wrapping_sub(first) <= last.wrapping_sub(first);
        loop {
            // Most answers are there before anybody could wait for them.
            let Some(bytes) = self.receive()? else {
                self.wait_for_answer(doing)?;
                continue;
            };
            for message in Messages(bytes) {
                if !is_ours(message.sequence) || message.message_type != NLMSG_ERROR {
                    continue;
                }
                if let Err(error) = answer(&message, doing) {
                    each(message.sequence, error);
                }
                if message.sequence == last {
                    return Ok(());
                }
            }
        }
    }

    /// Reads the answers to requests `first..=last`, each of which asks for one object, and gives them
    /// to `each` with their sequence number; `None` where there is no such object.
    pub(crate) fn answers(
        &mut self,
        first: u32,
        last: u32,
        doing: &'static str,
        mut each: impl FnMut(u32, Option<&Message<'_>>),
    ) -> Result<(), NetlinkError> {
        let is_ours = |sequence: u32| sequence.wrapping_sub(first) <= last.wrapping_sub(first);
        loop {
            // Most answers are there before anybody could wait for them.
            let Some(bytes) = self.receive()? else {
                self.wait_for_answer(doing)?;
                continue;
            };
            for message in Messages(bytes) {
                if !is_ours(message.sequence) {
                    continue;
                }
                if message.message_type == NLMSG_ERROR {
                    match answer(&message, doing) {
                        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                            return Err(error);
                        }
                        _ => each(message.sequence, None),
                    }
                } else {
                    each(message.sequence, Some(&message));
                }
                // They come in order.
                if message.sequence == last {
                    return Ok(());
                }
            }
        }
    }

    /// Reads the answer to one request; of a refusal also the request as it came back with it, in which some
    /// families say where it went wrong.
    pub(crate) fn acknowledge_with<T>(
        &mut self,
        sequence: u32,
        doing: &'static str,
        read: impl Fn(&Message<'_>) -> T,
    ) -> Result<Result<(), (NetlinkError, Option<T>)>, NetlinkError> {
        loop {
            self.wait_for_answer(doing)?;
            let Some(bytes) = self.receive()? else { continue };
            for message in Messages(bytes) {
                if message.sequence != sequence || message.message_type != NLMSG_ERROR {
                    continue;
                }
                return Ok(answer(&message, doing).map_err(|error| {
                    let request = message.body.get(4..).unwrap_or_default();
                    (error, Messages(request).next().as_ref().map(read))
                }));
            }
        }
    }

    /// Reads what the kernel lists as the answer to a request, message by message.
    pub fn list(
        &mut self,
        sequence: u32,
        doing: &'static str,
        mut each: impl FnMut(&Message<'_>) -> Result<(), NetlinkError>,
    ) -> Result<(), NetlinkError> {
        let mut interrupted = false;
        loop {
            self.wait_for_answer(doing)?;
            let Some(bytes) = self.receive()? else { continue };
            for message in Messages(bytes) {
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.message_type {
                    NLMSG_DONE => {
                        // The number of an error that ended the list early.
                        let error = ne32(message.body).map_or(0, u32::cast_signed);
                        if error < 0 {
                            return Err(refused(-error, &message, String::new(), doing));
                        }
                        return if interrupted { Err(NetlinkError::Interrupted) } else { Ok(()) };
                    }
                    NLMSG_ERROR => {
                        answer(&message, doing)?;
                        return Ok(());
                    }
                    _ => each(&message)?,
                }
            }
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// What an error message says: zero is success.
fn answer(message: &Message<'_>, doing: &'static str) -> Result<(), NetlinkError> {
    let number = ne32(message.body)
        .ok_or(NetlinkError::Malformed { doing, what: "an error without a number" })?
        .cast_signed();
    if number == 0 {
        return Ok(());
    }
    // The request's header follows, and its rest unless it is capped, then attributes.
    let request = message.body.get(4..).unwrap_or_default();
    let request_len = if message.flags & NLM_F_CAPPED != 0 {
        HEADER_LEN
    } else {
        ne32(request).map_or(HEADER_LEN, |length| length as usize)
    };
    let attributes = Attributes(request.get(request_len..).unwrap_or_default());
    let text = attributes.str(NLMSGERR_ATTR_MSG).unwrap_or_default().to_owned();
    Err(refused(-number, message, text, doing))
}

fn refused(number: i32, message: &Message<'_>, text: String, doing: &'static str) -> NetlinkError {
    NetlinkError::Refused {
        doing,
        error: io::Error::from_raw_os_error(number),
        message: text,
        sequence: message.sequence,
    }
}
