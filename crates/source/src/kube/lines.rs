//! The lines of a response, read as they come and without copying them apart.

use std::io;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The longest line that is taken. An object in etcd has at most about 1.5 MB.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Reads lines from a stream. [`Lines::fill`] waits for bytes, [`Lines::next`] never waits, so the
/// caller knows which lines came together.
pub(super) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Where the first unread line begins.
    start: usize,
    /// Up to where no line ends.
    scanned: usize,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: Vec::new(), start: 0, scanned: 0 }
    }

    /// Waits for more bytes; false at the end of the stream. Losing this future loses nothing.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.buffer.len() > LINE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
        }
        let available = self.reader.fill_buf().await?;
        let count = available.len();
        self.buffer.extend_from_slice(available);
        self.reader.consume_unpin(count);
        Ok(count > 0)
    }

    /// The next line that is complete, without its end.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let Some(length) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n')
        else {
            self.scanned = self.buffer.len();
            return None;
        };
        let (start, end) = (self.start, self.scanned + length);
        self.start = end + 1;
        self.scanned = self.start;
        Some(&self.buffer[start..end])
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn lines_are_found_however_the_bytes_are_cut() {
        let text = "one\n\nthree is longer\nfour\nno end";
        for size in 1..text.len() {
            let pieces: Vec<io::Result<Vec<u8>>> =
                text.as_bytes().chunks(size).map(|piece| Ok(piece.to_vec())).collect();
            let mut lines = Lines::new(stream::iter(pieces).into_async_read());
            let mut found = Vec::new();
            while lines.fill().await.unwrap() {
                while let Some(line) = lines.next() {
                    found.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(found, ["one", "", "three is longer", "four"], "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn a_line_without_end_is_an_error() {
        let piece = || Ok::<_, io::Error>(vec![b'x'; 1024 * 1024]);
        let endless = stream::repeat_with(piece).into_async_read();
        let mut lines = Lines::new(endless);
        let error = loop {
            match lines.fill().await {
                Ok(_) => assert_eq!(lines.next(), None),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
