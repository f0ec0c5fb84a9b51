//! Errors of ours as gRPC clients understand them: status 200, and what went wrong in `grpc-status`.

use std::fmt::Write as _;

use http::StatusCode;

use crate::head::{Known, RequestHead, ResponseHead};

/// Whether a request is a gRPC call.
pub fn is_grpc(head: &RequestHead) -> bool {
    let kind = head.headers.get_known(Known::ContentType).unwrap_or_default();
    kind.strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The number for a status of ours.
pub fn status_of(status: StatusCode) -> u8 {
    match status.as_u16() {
        400 | 431 => 13, // INTERNAL
        401 => 16,       // UNAUTHENTICATED
        403 => 7,        // PERMISSION_DENIED
        404 => 12,       // UNIMPLEMENTED
        408 | 504 => 4,  // DEADLINE_EXCEEDED
        413 | 429 => 8,  // RESOURCE_EXHAUSTED
        502 | 503 => 14, // UNAVAILABLE
        _ => 2,          // UNKNOWN
    }
}

/// The head that is the whole answer.
pub fn error_head(status: StatusCode, message: &str) -> ResponseHead {
    let mut head = ResponseHead::new(StatusCode::OK);
    head.headers.push_known(Known::ContentType, "application/grpc");
    head.headers.push_known(Known::GrpcStatus, status_of(status).to_string());
    head.headers.push("grpc-message", escape(message));
    head
}

/// Trailers for a response that breaks off.
pub fn error_trailers(status: StatusCode, message: &str) -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", u16::from(status_of(status)).into());
    if let Ok(message) = escape(message).parse() {
        trailers.insert("grpc-message", message);
    }
    trailers
}

/// Per cent signs for what a message may not have.
fn escape(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
