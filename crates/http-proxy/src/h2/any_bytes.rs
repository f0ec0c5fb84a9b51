//! Any bytes as a client's frames: the body of a fuzz target, and of tests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Method, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::guard::{Guard, Leaving};
use super::{PREFACE, convert, hpack};
use crate::h1::parse::{self, BodyLength, HeadLimits};
use crate::h1::write;
use crate::head::{Known, RequestHead};
use crate::table::Policy;

/// A method's letters, as our HTTP/1.1 code takes them.
const METHOD_BYTES_MAX: usize = 32;

/// A client that says its bytes in pieces, and notes what it is told.
struct Client<'a> {
    says: &'a [u8],
    piece: usize,
    told: Vec<u8>,
}

impl AsyncRead for Client<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.says.len().min(self.piece).min(into.remaining());
        let (now, later) = self.says.split_at(count);
        into.put_slice(now);
        self.says = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.told.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Checks what must hold whatever a client sends behind its preface and empty settings.
///
/// # Panics
/// If something does not hold.
pub(crate) fn check(bytes: &[u8]) {
    hpack::examine(bytes);
    hpack::find_fragment(bytes);
    assert!(hpack::size_updates_length(bytes).is_none_or(|length| length <= bytes.len()));
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    let says = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], bytes].concat();
    runtime.block_on(async {
        let (passed, told) = through_guard(&says, usize::MAX).await;
        // A mark for each frame at most.
        assert!(passed.len() <= says.len() + says.len() / 9, "{} of {}", passed.len(), says.len());
        for piece in [1, 7] {
            let (in_pieces, told_then) = through_guard(&says, piece).await;
            assert_eq!(told_then, told, "it depends on how the bytes are cut");
            if told.is_empty() {
                assert_eq!(in_pieces, passed);
            }
        }
        serve(&says, usize::MAX).await;
        serve(&says, 7).await;
    });
}

/// What h2 would read of the bytes, and what the guard tells the client.
async fn through_guard(says: &[u8], piece: usize) -> (Vec<u8>, Vec<u8>) {
    let mut client = Client { says, piece, told: Vec::new() };
    let mut guard = Guard::new(&mut client, Leaving::default());
    let mut passed = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = guard.read(&mut buffer).await {
        passed.extend_from_slice(&buffer[..count]);
    }
    (passed, client.told)
}

/// Lets h2 serve the bytes. It comes to an end, and every head that we take is one by HTTP/1.1 too.
async fn serve(says: &[u8], piece: usize) {
    let mut client = Client { says, piece, told: Vec::new() };
    let limits = HeadLimits::default();
    let mut builder = h2::server::Builder::new();
    builder.max_header_list_size(limits.head_bytes_max as u32).enable_connect_protocol();
    let guard = Guard::new(&mut client, Leaving::default());
    let Ok(mut connection) = builder.handshake::<_, bytes::Bytes>(guard).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let (parts, _) = request.into_parts();
        let mut head = RequestHead::new();
        if convert::request_head(&parts, &limits, &mut head).is_ok() {
            check_head(&mut head);
        }
        // It may be gone already.
        let _ = respond.send_response(Response::new(()), true);
    }
}

/// A head is read again alike when it has been written as HTTP/1.1.
fn check_head(head: &mut RequestHead) {
    if head.method == Method::CONNECT
        || head.method.as_str().len() > METHOD_BYTES_MAX
        || head.path() == "*"
    {
        return;
    }
    assert!(head.path().starts_with('/'), "{}", head.path());
    head.headers.remove_known(Known::Expect);
    let length = head.headers.get_known_str(Known::ContentLength).map(str::parse);
    assert!(length.as_ref().is_none_or(Result::is_ok), "{length:?}");
    let body = match length {
        Some(Ok(length @ 1..)) => BodyLength::Fixed(length),
        _ => BodyLength::None,
    };
    let mut out = Vec::new();
    write::request(&mut out, head, &Policy::default(), false, body);
    let mut again = RequestHead::new();
    let limits = HeadLimits { head_bytes_max: usize::MAX, target_bytes_max: usize::MAX };
    match parse::request(&out, &limits, &mut again) {
        Ok(read) => {
            let own = (&head.method, head.path(), head.query(), head.authority(), body);
            let other = (&again.method, again.path(), again.query(), again.authority(), read.body);
            assert_eq!(own, other);
        }
        // The fields that we add may be too many.
        Err(kind) => assert_eq!(kind, crate::ErrorKind::HeaderTooLarge),
    }
}
