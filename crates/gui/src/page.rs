//! The page: files that were built before and are part of the binary.

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{self, HeaderValue};
use http::{Method, StatusCode};
use rust_embed::{EmbeddedFile, RustEmbed};

#[derive(RustEmbed)]
#[folder = "page/dist"]
struct Files;

/// The page's own file: everything else that is not a file is one of its views.
const INDEX: &str = "index.html";

/// Answers with a file of the page.
pub(crate) async fn serve(request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let path = request.uri().path().trim_start_matches('/');
    let name = if path.is_empty() { INDEX } else { path };
    let is_view = !name.rsplit('/').next().unwrap_or_default().contains('.');
    let found = Files::get(name).map(|file| (name, file));
    let found = found.or_else(|| Some((INDEX, Files::get(INDEX).filter(|_| is_view)?)));
    match found {
        Some((name, file)) => answer(name, file, &request),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

fn answer(name: &str, file: EmbeddedFile, request: &Request) -> Response {
    let hash = file.metadata.sha256_hash();
    let tag = format!("\"{}\"", crate::token::hex(&hash[..16]));
    let same = request.headers().get(header::IF_NONE_MATCH).is_some_and(|it| *it == *tag);
    let mut response = if same {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let body = match file.data {
            std::borrow::Cow::Borrowed(bytes) => Body::from(bytes),
            std::borrow::Cow::Owned(bytes) => Body::from(bytes),
        };
        let mut response = Response::new(body);
        let kind = HeaderValue::from_static(content_type(name));
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    };
    let headers = response.headers_mut();
    // A name with a hash in it never means anything else.
    let cache = if has_hash(name) { "public, max-age=31536000, immutable" } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// `name-1a2B3c4D.js`, as Vite names what it builds.
fn has_hash(name: &str) -> bool {
    let stem = name.rsplit('/').next().and_then(|file| file.split('.').next()).unwrap_or_default();
    let hash = stem.rsplit('-').next().filter(|hash| hash.len() + 1 < stem.len());
    hash.is_some_and(|hash| {
        hash.len() == 8
            && hash.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && hash.bytes().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
    })
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "webmanifest" => "application/manifest+json",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_hash_are_kept_for_ever() {
        for (name, expected) in [
            ("assets/index-B1a2C3d4.js", true),
            ("assets/index.js", false),
            ("assets/inter-latin-wght-normal.woff2", false),
            ("index.html", false),
        ] {
            assert_eq!(has_hash(name), expected, "{name}");
        }
    }

    #[test]
    fn the_page_is_part_of_the_binary() {
        assert!(Files::get(INDEX).is_some());
    }
}
