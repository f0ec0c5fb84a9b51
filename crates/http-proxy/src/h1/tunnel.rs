//! After an upgrade: bytes both ways, until both sides have closed or nothing came for too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};

use super::buffer::Buffer;
use super::timer::{Timer, after};

/// How much is held for a side that does not read.
const HELD_BYTES: usize = 32 << 10;

/// One direction.
#[derive(Debug, Default)]
struct Way {
    buffer: Buffer,
    ended: bool,
    closed: bool,
    /// Bytes that went this way.
    bytes: u64,
}

impl Way {
    /// Moves bytes; ready when this way has ended. `moved` is set if any were.
    fn poll<A: AsyncRead + Unpin, B: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut A,
        to: &mut B,
        moved: &mut bool,
    ) -> Poll<io::Result<()>> {
        loop {
            while !self.buffer.is_empty() {
                let count = ready!(Pin::new(&mut *to).poll_write(cx, self.buffer.filled()))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.buffer.consume(count);
                self.bytes += count as u64;
                *moved = true;
            }
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.closed = true;
                continue;
            }
            match self.buffer.poll_fill(cx, from, HELD_BYTES) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(_)) => *moved = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    ready!(Pin::new(&mut *to).poll_flush(cx))?;
                    return Poll::Pending;
                }
            }
        }
    }
}

/// Carries bytes between two streams. `first` is what was read from the second before; how many
/// bytes went from the first to the second and back.
pub(crate) async fn run<A, B>(
    a: &mut A,
    b: &mut B,
    first: Buffer,
    idle: Duration,
) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut there = Way::default();
    let mut back = Way { buffer: first, ..Way::default() };
    let mut timer = Timer::new(after(Instant::now(), idle));
    std::future::poll_fn(|cx| {
        let mut moved = false;
        let first = there.poll(cx, a, b, &mut moved);
        let second = back.poll(cx, b, a, &mut moved);
        match (first, second) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => {
                if moved {
                    timer.set(after(Instant::now(), idle));
                }
                if timer.poll_expired(cx) {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending
            }
        }
    })
    .await?;
    Ok((there.bytes, back.bytes))
}
