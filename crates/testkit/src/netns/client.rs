//! Clients: what became of a connection, as the one who tried it sees it.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// How long whoever should be answered waits. Long, for machines under load; who is answered waits
/// no longer than that takes.
pub const PATIENCE: Duration = Duration::from_secs(8);
/// "Operation not permitted".
const EPERM: i32 = 1;
/// The ports of UDP clients: below those that the system gives out.
const UDP_PORTS: std::ops::Range<u32> = 10_000..28_000;

/// The transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// How long whoever should hear nothing listens. With TCP beyond the first repetition, after a
    /// second: "unreachable" is not always taken for an answer to the first packet.
    pub fn silence(self) -> Duration {
        Duration::from_millis(match self {
            Self::Tcp => 1300,
            Self::Udp => 400,
        })
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Answered {
        /// Which.
        by: String,
        /// The client's address as the server saw it.
        seen: SocketAddr,
    },
    /// Somebody said that nobody listens: TCP reset or ICMP port unreachable.
    Refused,
    /// Somebody said that there is no way.
    Unreachable,
    /// Nobody said anything.
    Silence,
    /// A connection came to be and ended without an answer.
    Broken(io::ErrorKind),
}

impl Outcome {
    /// Who answered, if somebody did.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Answered { by, .. } => Some(by),
            _ => None,
        }
    }

    fn of(error: &io::Error) -> Self {
        // What the system says to a sender whose packet a rule has dropped on the same host.
        if error.raw_os_error() == Some(EPERM) {
            return Self::Silence;
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::PermissionDenied => Self::Unreachable,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Silence,
            other => Self::Broken(other),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered { by, seen } => write!(f, "answered by {by}, seen as {seen}"),
            Self::Refused => f.write_str("refused"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Silence => f.write_str("no answer"),
            Self::Broken(kind) => write!(f, "connected, then {kind}"),
        }
    }
}

/// An attempt to be made. It is made in the namespace of the thread that makes it.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// The client's address; none lets the system choose.
    pub from: Option<IpAddr>,
    /// Where to.
    pub to: SocketAddr,
    /// How.
    pub transport: Transport,
    /// How long to wait for an answer.
    pub patience: Duration,
}

impl Attempt {
    /// Makes it.
    pub fn make(&self) -> Outcome {
        let outcome = match self.transport {
            Transport::Tcp => self.connect().and_then(|it| it.greeting()),
            Transport::Udp => self.flow().and_then(|it| it.ask(self.patience)),
        };
        outcome.unwrap_or_else(|error| Outcome::of(&error))
    }

    /// A TCP connection that stays.
    pub fn connect(&self) -> io::Result<Conversation> {
        let socket = Socket::new(Domain::for_address(self.to), Type::STREAM, None)?;
        if let Some(from) = self.from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        // Closed at once and without a trace: thousands of attempts must not use up the ports.
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_nodelay(true)?;
        socket.connect_timeout(&self.to.into(), self.patience)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        Ok(Conversation { stream })
    }

    /// A UDP socket that stays. Its port was not used before: the kernel remembers a flow for half a
    /// minute, and whoever used its ports again would go where the flow went.
    pub fn flow(&self) -> io::Result<Flow> {
        static USED: AtomicU32 = AtomicU32::new(0);
        let socket = Socket::new(Domain::for_address(self.to), Type::DGRAM, None)?;
        let any = if self.to.is_ipv4() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED)
        } else {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        let number = USED.fetch_add(1, Ordering::Relaxed) % UDP_PORTS.len() as u32;
        let port = (UDP_PORTS.start + number) as u16;
        socket.bind(&SocketAddr::new(self.from.unwrap_or(any), port).into())?;
        socket.connect(&self.to.into())?;
        Ok(Flow { socket: socket.into() })
    }
}

/// An established TCP connection to one of the cluster's servers.
#[derive(Debug)]
pub struct Conversation {
    stream: TcpStream,
}

impl Conversation {
    /// What the server said first. To be read once.
    pub fn greeting(&self) -> io::Result<Outcome> {
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(b"\n") {
            if text.len() > 256 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            match (&self.stream).read(&mut byte) {
                Ok(0) => return Ok(Outcome::Broken(io::ErrorKind::UnexpectedEof)),
                Ok(_) => text.push(byte[0]),
                // A read with a time limit is not begun again by the kernel after a signal (a child that ended).
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(after_connect(error)),
            }
        }
        parse(&text)
    }

    /// Says something and waits until it comes back.
    pub fn echo(&self, text: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(text)?;
        let mut back = vec![0; text.len()];
        (&self.stream).read_exact(&mut back)?;
        if back == text { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// The client's own address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }
}

/// A connection was there: silence or a reset now is not the same as before.
fn after_connect(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other("connected, then silence")
        }
        _ => error,
    }
}

/// A UDP socket whose datagrams are one flow.
#[derive(Debug)]
pub struct Flow {
    socket: UdpSocket,
}

impl Flow {
    /// Sends one datagram and waits for its answer.
    pub fn ask(&self, patience: Duration) -> io::Result<Outcome> {
        self.socket.set_read_timeout(Some(patience))?;
        match self.socket.send(b"?") {
            // Dropped here; whether it was refused as well shows when we listen.
            Err(error) if error.raw_os_error() == Some(EPERM) => {}
            sent => _ = sent?,
        }
        let mut buffer = [0; 512];
        let count = loop {
            match self.socket.recv(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => break received?,
            }
        };
        parse(&buffer[..count])
    }

    /// Asks again and again until a server that `wanted` accepts has answered; the last outcome if
    /// none does in time. Late answers of another server count as answers, too.
    pub fn ask_until(&self, patience: Duration, wanted: impl Fn(&Outcome) -> bool) -> Outcome {
        let deadline = Instant::now() + patience;
        loop {
            let outcome =
                self.ask(Duration::from_millis(50)).unwrap_or_else(|error| Outcome::of(&error));
            if wanted(&outcome) || Instant::now() >= deadline {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn parse(line: &[u8]) -> io::Result<Outcome> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let text = std::str::from_utf8(line).map_err(|_| invalid())?;
    let (by, seen) = text.trim_end().split_once(' ').ok_or_else(invalid)?;
    let seen = seen.parse().map_err(|_| invalid())?;
    Ok(Outcome::Answered { by: by.to_owned(), seen })
}
