//! Frames as they come, against h2 as it is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends where its means fail")]

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::h2::PREFACE;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITISED: u8 = 0x20;
/// A request's pseudo-headers, by the static table.
const GET: &[u8] = &[0x82, 0x84, 0x86, 0x41, 0x01, b'a'];

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags][..], &id.to_be_bytes(), payload].concat()
}

fn headers(flags: u8, id: u32, block: &[u8]) -> Vec<u8> {
    frame(1, flags, id, block)
}

fn literal(name: &str, value: &str) -> Vec<u8> {
    let piece = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    [vec![0], piece(name), piece(value)].concat()
}

/// A client's beginning and these frames.
fn client(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE.to_vec(), frame(4, 0, 0, &[]), frames.concat()].concat()
}

/// What h2 would read of bytes that come in pieces of a size, and what the client is told.
async fn through(bytes: &[u8], piece: usize, room: usize) -> (Vec<u8>, Vec<u8>) {
    let (client, server) = duplex(piece);
    let mut guard = Guard::new(server, Leaving::default());
    let bytes = bytes.to_vec();
    let (mut from, mut to) = tokio::io::split(client);
    tokio::spawn(async move {
        // Whoever is sent away cannot say all.
        let _ = to.write_all(&bytes).await;
        let _ = to.shutdown().await;
    });
    let hearing = tokio::spawn(async move {
        let mut told = Vec::new();
        let _ = from.read_to_end(&mut told).await;
        told
    });
    let mut all = Vec::new();
    let mut buffer = vec![0; room];
    loop {
        match guard.read(&mut buffer).await.unwrap() {
            0 => break,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
    drop(guard);
    (all, hearing.await.unwrap())
}

#[tokio::test]
async fn what_is_right_passes_as_it_is_however_it_is_cut() {
    let bytes = client(&[
        headers(END_HEADERS | END_STREAM, 1, GET),
        headers(END_HEADERS, 3, GET),
        frame(0, 0, 3, &[7; 300]),
        frame(8, 0, 0, &[0, 0, 0, 9]),
        headers(0, 5, &GET[..3]),
        frame(9, END_HEADERS, 5, &GET[3..]),
        frame(0, END_STREAM, 3, b"end"),
        frame(3, 0, 5, &[0, 0, 0, 8]),
    ]);
    for piece in 1..40 {
        for room in [1, 7, 9, 64, 4096] {
            let (read, told) = through(&bytes, piece, room).await;
            assert_eq!(read, bytes, "pieces of {piece}, room for {room}");
            assert_eq!(told, b"");
        }
    }
}

#[tokio::test]
async fn trailers_are_marked_behind_the_sizes_of_tables_and_before_all_fields() {
    let open = headers(END_HEADERS, 1, GET);
    let end = END_HEADERS | END_STREAM;
    let field = literal("a", "b");
    let marked = |before: &[u8]| [before, &[0xa6], &field].concat();
    let with = |before: &[u8], after: &[u8]| [before, &field, after].concat();
    let cases = [
        ("plain", vec![headers(end, 1, &field)], vec![headers(end, 1, &marked(b""))]),
        (
            "after sizes",
            vec![headers(end, 1, &with(&[0x20, 0x3f, 0xe1, 0x1f], b""))],
            vec![headers(end, 1, &marked(&[0x20, 0x3f, 0xe1, 0x1f]))],
        ),
        (
            "padded, with a priority",
            vec![headers(end | PADDED | PRIORITISED, 1, &with(&[2, 0, 0, 0, 0, 9], &[0, 0]))],
            vec![headers(
                end | PADDED | PRIORITISED,
                1,
                &[&[2, 0, 0, 0, 0, 9, 0xa6], &field[..], &[0, 0]].concat(),
            )],
        ),
        (
            "begun by the second frame",
            vec![headers(END_STREAM, 1, &[0x20]), frame(9, END_HEADERS, 1, &field)],
            vec![headers(END_STREAM, 1, &[0x20]), frame(9, END_HEADERS, 1, &marked(b""))],
        ),
        (
            "in two frames",
            vec![headers(END_STREAM, 1, &field), frame(9, END_HEADERS, 1, &field)],
            vec![headers(END_STREAM, 1, &marked(b"")), frame(9, END_HEADERS, 1, &field)],
        ),
        ("empty", vec![headers(end, 1, b"")], vec![headers(end, 1, &[0xa6])]),
    ];
    for (name, sent, wanted) in cases {
        let after = headers(end, 3, GET);
        let around = |frames: Vec<Vec<u8>>| {
            client(&[vec![open.clone()], frames, vec![after.clone()]].concat())
        };
        let (sent, wanted) = (around(sent), around(wanted));
        for piece in [1, 2, 5, 8, 9, 13, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 4096] {
            let (read, told) = through(&sent, piece, 4096).await;
            assert_eq!(read, wanted, "{name}, pieces of {piece}");
            assert_eq!(told, b"");
        }
    }
}

#[tokio::test]
async fn a_frame_that_is_cut_off_is_h2s_to_judge() {
    let bytes = client(&[headers(END_HEADERS, 1, GET), headers(END_HEADERS | END_STREAM, 1, GET)]);
    for cut in 1..14 {
        let (read, _) = through(&bytes[..bytes.len() - cut], 16, 64).await;
        assert_eq!(read, bytes[..bytes.len() - cut]);
    }
}

#[tokio::test]
async fn violations_have_their_codes() {
    let end = END_HEADERS | END_STREAM;
    let request = headers(end, 1, GET);
    let cases = [
        ("a PING of seven bytes", vec![frame(6, 0, 0, &[0; 7])], 6),
        ("an acknowledgement with a payload", vec![frame(4, 1, 0, &[0; 6])], 6),
        ("half a setting", vec![frame(4, 0, 0, &[0; 3])], 6),
        ("a reset of five bytes", vec![request.clone(), frame(3, 0, 1, &[0; 5])], 6),
        ("a window beyond all", vec![frame(4, 0, 0, &[0, 4, 0x80, 0, 0, 0])], 3),
        ("a promise", vec![frame(5, END_HEADERS, 1, &[0, 0, 0, 2])], 1),
        ("data after the end", vec![request.clone(), frame(0, 0, 1, b"x")], 5),
        ("a head after the end", vec![request.clone(), headers(end, 1, GET)], 5),
        (
            "data after a reset",
            vec![headers(END_HEADERS, 1, GET), frame(3, 0, 1, &[0; 4]), frame(0, 0, 1, b"x")],
            5,
        ),
    ];
    for (name, frames, code) in cases {
        let opened = frames.len() > 1;
        for piece in [3, 4096] {
            let (_, told) = through(&client(&frames), piece, 4096).await;
            assert_eq!(told, goodbye(u32::from(opened), code), "{name}");
        }
    }
}

#[tokio::test]
async fn a_client_that_says_goaway_is_noticed_and_still_answered() {
    let (mut client_side, server_side) = duplex(1 << 16);
    let leaving = Leaving::default();
    let guard = Guard::new(server_side, Arc::clone(&leaving));
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(guard).await.unwrap();
        while let Some(Ok(_)) = connection.accept().await {}
    });
    let goaway = frame(GOAWAY, 0, 0, &goodbye(0, 0xff)[HEAD_BYTES..]);
    for piece in client(&[goaway]).chunks(7) {
        client_side.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    while !leaving.load(Relaxed) {
        tokio::task::yield_now().await;
    }
    client_side.write_all(&frame(6, 0, 0, b"pingpong")).await.unwrap();
    let mut told = Vec::new();
    while !told.ends_with(&frame(6, 1, 0, b"pingpong")) {
        assert!(client_side.read_buf(&mut told).await.unwrap() > 0, "{told:02x?}");
    }
}

#[tokio::test]
async fn a_goaway_that_is_none_is_refused() {
    let (all, told) = through(&client(&[frame(GOAWAY, 0, 0, &[0; 7])]), 64, 64).await;
    assert_eq!((all.len(), &told[..]), (PREFACE.len() + 9 + 16, &b""[..]), "h2 sees it");
    assert_eq!(verdict(&[frame(GOAWAY, 0, 1, &[0; 8])]).await, (GOAWAY, 0, Reason::PROTOCOL_ERROR));
}

/// A server by h2 that answers everything at once, under guard.
async fn serve(io: DuplexStream) {
    let Ok(mut connection) = h2::server::handshake(Guard::new(io, Leaving::default())).await else {
        return;
    };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let mut body = request.into_body();
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
            }
            if let Ok(trailers) = body.trailers().await {
                let mut response = http::Response::new(());
                *response.headers_mut() = trailers.unwrap_or_default();
                if let Ok(mut send) = respond.send_response(response, false) {
                    let _ = send.send_data(Bytes::from_static(b"done"), true);
                }
            }
        });
    }
}

/// What h2 says at last about some frames: kind, stream and code of a RST_STREAM or GOAWAY.
async fn verdict(frames: &[Vec<u8>]) -> (u8, u32, Reason) {
    let (mut client_side, server_side) = duplex(1 << 16);
    tokio::spawn(serve(server_side));
    client_side.write_all(&client(frames)).await.unwrap();
    loop {
        let mut head = [0; 9];
        let read = client_side.read_exact(&mut head);
        tokio::time::timeout(Duration::from_secs(30), read)
            .await
            .unwrap_or_else(|_| panic!("no verdict on {frames:02x?}"))
            .unwrap();
        let [a, b, c, kind, _, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        client_side.read_exact(&mut payload).await.unwrap();
        if let (3 | 7, Some(code)) = (kind, payload.last_chunk::<4>()) {
            return (kind, u32::from_be_bytes(id), u32::from_be_bytes(*code).into());
        }
    }
}

#[tokio::test]
async fn blocks_that_cannot_be_decoded_are_compression_errors() {
    let end = END_HEADERS | END_STREAM;
    let good = headers(end, 1, GET);
    for (name, block) in [
        ("a literal without anything", &b"\x40"[..]),
        ("a string that is cut", b"\x82\x84\x86\x41\x09a"),
        ("an index of nothing", b"\x80"),
        ("an entry that is not in the table", b"\x82\x84\x86\xbf"),
        ("a bad Huffman code", b"\x82\x84\x86\x41\x84\xff\xff\xff\xff"),
        ("a table that is too large", b"\x3f\xe1\x7f\x82"),
    ] {
        let wanted = (GOAWAY, 0, Reason::COMPRESSION_ERROR);
        assert_eq!(verdict(&[headers(end, 1, block)]).await, wanted, "{name}");
        assert_eq!(verdict(&[good.clone(), headers(end, 3, block)]).await, wanted, "{name}");
        // In several frames, and as trailers.
        let (first, rest) = block.split_at(block.len() / 2);
        let cut = [headers(END_STREAM, 1, first), frame(9, END_HEADERS, 1, rest)];
        assert_eq!(verdict(&cut).await, wanted, "{name}, cut");
        if block[0] & 0xe0 != 0x20 {
            let trailers = [headers(END_HEADERS, 1, GET), headers(end, 1, block)];
            assert_eq!(verdict(&trailers).await, wanted, "{name}, as trailers");
        }
    }
}

#[tokio::test]
async fn other_faults_of_heads_keep_their_codes() {
    let end = END_HEADERS | END_STREAM;
    let goaway = (GOAWAY, 0, Reason::PROTOCOL_ERROR);
    let unknown = [GET, &literal(":unknown", "x")].concat();
    assert_eq!(verdict(&[headers(end, 1, &unknown)]).await, goaway);
    let upper = [GET, &literal("Upper", "x")].concat();
    assert_eq!(verdict(&[headers(end, 1, &upper)]).await, goaway);
    assert_eq!(verdict(&[headers(end, 2, GET)]).await, goaway, "an even stream");
    assert_eq!(verdict(&[headers(end, 0, GET)]).await, goaway, "no stream");
    assert_eq!(verdict(&[headers(end | PADDED, 1, &[9, 0x82])]).await, goaway, "only padding");
    let between = [headers(END_STREAM, 1, b"\x40"), frame(6, 0, 0, &[0; 8])];
    assert_eq!(verdict(&between).await, goaway, "another frame within a head");
    let connection = [GET, &literal("connection", "x")].concat();
    let reset = (3, 1, Reason::PROTOCOL_ERROR);
    assert_eq!(verdict(&[headers(end, 1, &connection)]).await, reset);
}

#[tokio::test]
async fn pseudo_headers_in_trailers_are_an_error_of_the_stream() {
    let end = END_HEADERS | END_STREAM;
    for trailers in [
        vec![headers(end, 1, &literal(":path", "/"))],
        vec![headers(end, 1, &[0x82])],
        vec![headers(end, 1, &[&literal("a", "b")[..], &[0x84]].concat())],
        vec![headers(END_STREAM, 1, &[]), frame(9, END_HEADERS, 1, &[0x82])],
    ] {
        let sent = [vec![headers(END_HEADERS, 1, GET), frame(0, 0, 1, b"body")], trailers].concat();
        assert_eq!(verdict(&sent).await, (3, 1, Reason::PROTOCOL_ERROR));
    }
}

#[tokio::test]
async fn a_fragment_in_the_path_is_an_error_of_the_stream() {
    let end = END_HEADERS | END_STREAM;
    let asks = |path: &[u8]| [&[0x82, 0x86, 0x41, 0x01, b'a'], path].concat();
    let reset = (3, 1, Reason::PROTOCOL_ERROR);
    for path in [&b"\x04\x04/a#b"[..], b"\x44\x04/a#b", b"\x04\x84\x60\x7f\xf5\x1f"] {
        assert_eq!(verdict(&[headers(end, 1, &asks(path))]).await, reset, "{path:02x?}");
    }
    // Named by the table, too: the second request is the first's again.
    let again = [headers(end, 1, &asks(b"\x44\x04/a#b")), headers(end, 3, &asks(b"\xbe"))];
    let (mut client_side, server_side) = duplex(1 << 16);
    tokio::spawn(serve(server_side));
    let good = headers(end, 5, GET);
    client_side.write_all(&client(&[again.concat(), good])).await.unwrap();
    let (mut resets, mut answered) = (Vec::new(), false);
    while !(answered && resets.len() == 2) {
        let mut head = [0; 9];
        let read = client_side.read_exact(&mut head);
        tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap();
        let [a, b, c, kind, _, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        client_side.read_exact(&mut payload).await.unwrap();
        let id = u32::from_be_bytes(id);
        assert_ne!(kind, GOAWAY, "the connection goes on");
        match kind {
            3 => resets.push(id),
            1 => {
                assert_eq!(id, 5, "the others have no answer");
                answered = true;
            }
            _ => {}
        }
    }
    assert_eq!(resets, [1, 3]);
    // What passed before it could be seen ends the connection.
    let block = asks(b"\x04\x04/a#b");
    let (first, rest) = block.split_at(8);
    let cut = [headers(END_STREAM, 1, first), frame(9, END_HEADERS, 1, rest)];
    assert_eq!(verdict(&cut).await, (GOAWAY, 0, Reason::PROTOCOL_ERROR));
}
