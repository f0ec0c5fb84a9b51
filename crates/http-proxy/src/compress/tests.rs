use std::io::{Read, Write};

use super::*;

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| b"the quick brown fox jumps "[n * n % 26]).collect()
}

fn decode(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let read = match coding {
        Coding::Gzip => flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out),
        Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
        Coding::Zstd => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out),
    };
    read.unwrap();
    out
}

fn policy() -> Compress {
    Compress { enabled: true, ..Compress::default() }
}

fn request(accept: &str) -> RequestHead {
    let mut request = RequestHead::new();
    request.headers.push("accept-encoding", accept);
    request
}

fn response(lines: &[(&str, &str)]) -> ResponseHead {
    let mut response = ResponseHead::new(StatusCode::OK);
    response.headers.push("content-type", "text/html; charset=utf-8");
    for (name, value) in lines {
        response.headers.set(name, value);
    }
    response
}

fn plan(response: &mut ResponseHead, length: Option<u64>) -> Option<Coding> {
    Plan::make(&policy(), &request("gzip"), response, length).map(|plan| plan.coding)
}

#[test]
fn what_goes_in_comes_out_again() {
    let body = text(300_000);
    for coding in Coding::ALL {
        let mut encoder = Encoder::new(coding).unwrap();
        let mut out = Vec::new();
        for piece in body.chunks(7_001) {
            out.extend_from_slice(&encoder.push(piece).unwrap());
        }
        out.extend_from_slice(&encoder.finish().unwrap());
        assert!(out.len() < body.len() / 2, "{coding:?}: {}", out.len());
        assert!(decode(coding, &out) == body, "{coding:?}");
        assert!(decode(coding, &Encoder::whole(coding, &body).unwrap()) == body, "{coding:?}");
        assert!(encoder.push(b"more").is_err());
    }
}

#[test]
fn what_is_flushed_can_be_read_before_the_end() {
    for coding in Coding::ALL {
        let mut encoder = Encoder::new(coding).unwrap();
        let mut out = encoder.push(b"data: one\n\n").unwrap().to_vec();
        assert!(encoder.has_pending());
        out.extend_from_slice(&encoder.flush().unwrap());
        assert!(!encoder.has_pending());
        assert_eq!(&*read_some(coding, &out), b"data: one\n\n", "{coding:?}");
    }
}

/// What can be read of a stream that has not ended.
fn read_some(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut decoder = flate2::write::GzDecoder::new(Vec::new());
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            decoder.get_ref().clone()
        }
        Coding::Brotli => {
            let mut decoder = brotli::DecompressorWriter::new(Vec::new(), 4096);
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            decoder.get_ref().clone()
        }
        Coding::Zstd => {
            let mut decoder = zstd::stream::write::Decoder::new(Vec::new()).unwrap();
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            decoder.get_ref().clone()
        }
    }
}

#[test]
fn the_head_tells_of_the_compressed_form() {
    let mut response =
        response(&[("content-length", "5000"), ("etag", "\"a\""), ("accept-ranges", "bytes")]);
    assert_eq!(plan(&mut response, Some(5000)), Some(Coding::Gzip));
    let headers = &response.headers;
    assert_eq!(headers.get_str("content-encoding"), Some("gzip"));
    assert_eq!(headers.get_str("vary"), Some("Accept-Encoding"));
    assert_eq!(headers.get_str("etag"), Some("W/\"a\""));
    assert_eq!((headers.get("content-length"), headers.get("accept-ranges")), (None, None));
}

#[test]
fn what_is_not_worth_it_or_must_not_be_touched_stays() {
    let stays: [&[(&str, &str)]; 6] = [
        &[("content-encoding", "br")],
        &[("content-type", "image/png")],
        &[("cache-control", "max-age=1, No-Transform")],
        &[("content-range", "bytes 0-1/2")],
        &[("content-type", "text")],
        &[("content-type", "")],
    ];
    for lines in stays {
        let mut response = response(lines);
        assert_eq!(plan(&mut response, Some(5000)), None, "{lines:?}");
        assert_eq!(response.headers.get("vary"), None, "{lines:?}");
    }
    assert_eq!(plan(&mut response(&[]), Some(BYTES_MIN - 1)), None);
    assert_eq!(plan(&mut response(&[]), None), Some(Coding::Gzip));
    for status in [204, 206, 304, 101] {
        let mut partial = response(&[]);
        partial.status = StatusCode::from_u16(status).unwrap();
        assert_eq!(plan(&mut partial, Some(5000)), None, "{status}");
    }
    let off = Plan::make(&Compress::default(), &request("gzip"), &mut response(&[]), Some(5000));
    assert_eq!(off, None);
}

#[test]
fn who_takes_nothing_is_told_that_others_might() {
    let mut plain = response(&[("vary", "origin")]);
    assert_eq!(Plan::make(&policy(), &request("identity"), &mut plain, Some(5000)), None);
    let vary: Vec<_> = plain.headers.get_all("vary").collect();
    assert_eq!(vary, [&b"origin"[..], b"Accept-Encoding"]);
    assert_eq!(plain.headers.get("content-encoding"), None);
    let mut told = response(&[("vary", "Origin, accept-encoding")]);
    assert_eq!(plan(&mut told, Some(5000)), Some(Coding::Gzip));
    assert_eq!(told.headers.get_all("vary").count(), 1);
}

#[test]
fn the_answer_to_a_head_is_not_compressed() {
    let mut head = request("gzip");
    head.method = Method::HEAD;
    let mut answer = response(&[("content-length", "5000")]);
    assert_eq!(Plan::make(&policy(), &head, &mut answer, Some(5000)), None);
    assert_eq!(answer.headers.get_str("content-length"), Some("5000"));
}

#[test]
fn a_route_can_name_types_and_a_least_length() {
    let named = Compress { enabled: true, bytes_min: 10, types: vec!["image/png".into()] };
    let make = |kind: &str, length| {
        Plan::make(&named, &request("br"), &mut response(&[("content-type", kind)]), Some(length))
    };
    assert_eq!(make("image/png", 10).map(|plan| plan.coding), Some(Coding::Brotli));
    assert_eq!(make("image/png", 9), None);
    assert_eq!(make("text/html", 5000), None);
}
