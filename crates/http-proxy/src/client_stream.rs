//! A client's connection as it was accepted.
//!
//! Who connects mostly sends at once, and where many come, the request is there before its task runs. So
//! the kernel is asked first, and the runtime's reactor is told of the connection only when there is
//! something to wait for. A connection that has one request and goes again is never made known to it,
//! which saves a tenth of what it costs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream as StdStream};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A client's connection.
#[derive(Debug)]
pub struct ClientStream(State);

#[derive(Debug)]
enum State {
    /// Not known to the reactor.
    Fresh {
        stream: StdStream,
        /// Something was read. Who sends more has to wait for its turn like everybody.
        heard: bool,
    },
    Known(TcpStream),
    /// Could not be made known.
    Lost,
}

impl ClientStream {
    /// A connection that does not block.
    pub(crate) fn new(stream: StdStream) -> Self {
        Self(State::Fresh { stream, heard: false })
    }

    /// The connection, if nothing has to be waited for yet.
    fn fresh(&mut self) -> Option<&mut StdStream> {
        match &mut self.0 {
            State::Fresh { stream, .. } => Some(stream),
            _ => None,
        }
    }

    /// The connection as the reactor knows it.
    fn known(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if let State::Fresh { .. } = self.0
            && let State::Fresh { stream, .. } = std::mem::replace(&mut self.0, State::Lost)
        {
            self.0 = State::Known(TcpStream::from_std(stream)?);
        }
        match &mut self.0 {
            State::Known(stream) => Ok(Pin::new(stream)),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Does it at once if that can be done without waiting.
    fn try_fresh<T>(
        &mut self,
        mut act: impl FnMut(&mut StdStream) -> io::Result<T>,
    ) -> Option<io::Result<T>> {
        let stream = self.fresh()?;
        loop {
            match act(stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return Some(done),
            }
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if matches!(self.0, State::Fresh { heard: false, .. }) {
            let room = into.initialize_unfilled();
            if let Some(read) = self.try_fresh(|stream| stream.read(room)) {
                let count = read?;
                into.advance(count);
                if let State::Fresh { heard, .. } = &mut self.0 {
                    *heard = true;
                }
                return Poll::Ready(Ok(()));
            }
        }
        self.known()?.poll_read(cx, into)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.try_fresh(|stream| stream.write(bytes)) {
            Some(written) => Poll::Ready(written),
            None => self.known()?.poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.try_fresh(|stream| stream.write_vectored(slices)) {
            Some(written) => Poll::Ready(written),
            None => self.known()?.poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.try_fresh(|stream| stream.shutdown(Shutdown::Write)) {
            Some(done) => Poll::Ready(done),
            None => self.known()?.poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    fn pair() -> (StdStream, ClientStream) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = StdStream::connect(socket.local_addr().unwrap()).unwrap();
        let (stream, _) = socket.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        (client, ClientStream::new(stream))
    }

    fn is_known(stream: &ClientStream) -> bool {
        matches!(stream.0, State::Known(_))
    }

    #[tokio::test]
    async fn one_request_that_is_there_needs_no_reactor() {
        let (mut client, mut stream) = pair();
        client.write_all(b"question").unwrap();
        let mut bytes = [0; 64];
        // The loopback delivers within the call that sends.
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 8);
        stream.write_all(b"answer").await.unwrap();
        stream.shutdown().await.unwrap();
        assert!(!is_known(&stream));
        drop(stream);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[tokio::test]
    async fn who_comes_late_wakes_us_and_so_does_the_end() {
        let (mut client, mut stream) = pair();
        let late = std::thread::spawn(move || {
            for word in ["one", "two"] {
                std::thread::sleep(Duration::from_millis(30));
                client.write_all(word.as_bytes()).unwrap();
            }
        });
        let mut all = String::new();
        let wait = Duration::from_secs(20);
        timeout(wait, stream.read_to_string(&mut all)).await.unwrap().unwrap();
        late.join().unwrap();
        assert_eq!(all, "onetwo");
        assert!(is_known(&stream));
    }

    #[tokio::test]
    async fn what_the_client_does_not_take_is_waited_for() {
        const MUCH: usize = 64 << 20;
        let (mut client, mut stream) = pair();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            all.len()
        });
        stream.write_all(&vec![7; MUCH]).await.unwrap();
        assert!(is_known(&stream), "no kernel takes so much at once");
        drop(stream);
        assert_eq!(reader.join().unwrap(), MUCH);
    }
}
