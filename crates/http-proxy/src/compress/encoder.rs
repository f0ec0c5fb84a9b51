//! Compressing piece by piece.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use flate2::write::GzEncoder;

use super::{Coding, ENCODERS};

/// Levels at which the time goes about as far as the network: the next ones cost much and save little.
const GZIP_LEVEL: u32 = 5;
const BROTLI_QUALITY: u32 = 4;
const ZSTD_LEVEL: i32 = 3;
/// How far back repetitions are looked for, as a power of two: what bounds an encoder's memory.
const WINDOW_LOG: u32 = 19;
const BROTLI_BUFFER_BYTES: usize = 4 << 10;

enum Inner {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

/// Compresses one response.
pub struct Encoder {
    inner: Option<Inner>,
    /// Something went in that has not come out.
    pending: bool,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder for a coding.
    pub fn new(coding: Coding) -> io::Result<Self> {
        let inner = match coding {
            Coding::Gzip => {
                Inner::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL)))
            }
            Coding::Brotli => Inner::Brotli(Box::new(brotli::CompressorWriter::new(
                Vec::new(),
                BROTLI_BUFFER_BYTES,
                BROTLI_QUALITY,
                WINDOW_LOG,
            ))),
            Coding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(WINDOW_LOG)?;
                encoder.include_checksum(false)?;
                Inner::Zstd(encoder)
            }
        };
        ENCODERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { inner: Some(inner), pending: false })
    }

    /// The next piece; what came out.
    pub fn push(&mut self, data: &[u8]) -> io::Result<Bytes> {
        match self.inner.as_mut() {
            Some(Inner::Gzip(encoder)) => encoder.write_all(data)?,
            Some(Inner::Brotli(encoder)) => encoder.write_all(data)?,
            Some(Inner::Zstd(encoder)) => encoder.write_all(data)?,
            None => return Err(ended()),
        }
        self.pending |= !data.is_empty();
        Ok(self.take())
    }

    /// Whether there is something to flush.
    pub fn has_pending(&self) -> bool {
        self.pending
    }

    /// What is needed to read everything that went in so far.
    pub fn flush(&mut self) -> io::Result<Bytes> {
        match self.inner.as_mut() {
            Some(Inner::Gzip(encoder)) => encoder.flush()?,
            Some(Inner::Brotli(encoder)) => encoder.flush()?,
            Some(Inner::Zstd(encoder)) => encoder.flush()?,
            None => return Err(ended()),
        }
        self.pending = false;
        Ok(self.take())
    }

    /// The end.
    pub fn finish(&mut self) -> io::Result<Bytes> {
        let rest = match self.inner.take() {
            Some(Inner::Gzip(encoder)) => encoder.finish()?,
            Some(Inner::Brotli(encoder)) => encoder.into_inner(),
            Some(Inner::Zstd(encoder)) => encoder.finish()?,
            None => return Err(ended()),
        };
        ENCODERS.fetch_sub(1, Ordering::Relaxed);
        self.pending = false;
        Ok(rest.into())
    }

    /// All of a body at once.
    pub fn whole(coding: Coding, body: &[u8]) -> io::Result<Bytes> {
        let mut encoder = Self::new(coding)?;
        let first = encoder.push(body)?;
        let rest = encoder.finish()?;
        Ok(if first.is_empty() { rest } else { [first, rest].concat().into() })
    }

    fn take(&mut self) -> Bytes {
        let out = match self.inner.as_mut() {
            Some(Inner::Gzip(encoder)) => std::mem::take(encoder.get_mut()),
            Some(Inner::Brotli(encoder)) => std::mem::take(encoder.get_mut()),
            Some(Inner::Zstd(encoder)) => std::mem::take(encoder.get_mut()),
            None => Vec::new(),
        };
        out.into()
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if self.inner.is_some() {
            ENCODERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the response has ended")
}
