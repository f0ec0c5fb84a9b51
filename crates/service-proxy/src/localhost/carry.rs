//! Copying between two connections.

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

/// How much is copied at a time, in each direction.
const BUFFER_BYTES: usize = 16 << 10;

/// When something was last carried.
#[derive(Debug)]
pub(super) struct Activity {
    last_ms: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self { last_ms: AtomicU64::new(now_ms()) }
    }
}

/// Milliseconds since the first call.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Activity {
    fn touch(&self) {
        self.last_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// For how long nothing was carried.
    pub(super) fn idle(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.last_ms.load(Ordering::Relaxed)))
    }

    /// Returns when nothing was carried for `time_max`.
    async fn idle_for(&self, time_max: Duration) {
        while let Some(rest) = time_max.checked_sub(self.idle()).filter(|rest| !rest.is_zero()) {
            tokio::time::sleep(rest).await;
        }
    }
}

/// Copies both ways until both ends have said all, one breaks off, or nothing happens for too long.
pub(super) async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    activity: &Activity,
    idle_time_max: Duration,
) {
    // What comes in pieces goes on in pieces; where this fails it is only slower.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let is_broken = {
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        let both = async {
            tokio::try_join!(
                copy(client_reads, server_writes, activity),
                copy(server_reads, client_writes, activity)
            )
        };
        tokio::select! {
            outcome = both => outcome.is_err(),
            () = activity.idle_for(idle_time_max) => true,
        }
    };
    if is_broken {
        // An end that broke off is told to the other as what it is, not as a proper end.
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

/// Copies one way, up to and with the end of what is said there.
async fn copy(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    activity: &Activity,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        activity.touch();
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..length).unwrap_or_default()).await?;
        activity.touch();
    }
}
