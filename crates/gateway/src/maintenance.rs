//! What stands where people have paused a route.

use std::time::{Duration, UNIX_EPOCH};

use telaio_http_proxy::table::{Action, Fixed};
use telaio_model::{Override, OverrideAction};

/// What clients get of a paused route, in place of what the Ingress says. It says nothing of who decided,
/// or why: they are strangers.
pub(crate) fn maintenance(pause: &Override, action: Action) -> Action {
    let seconds = match pause.action {
        OverrideAction::Pause { retry_after_s } => retry_after_s,
        _ => 0,
    };
    // A pause that ends says when: the table has no clock.
    let end = pause.until_s.and_then(|until| u64::try_from(until).ok());
    let retry_after = match end {
        Some(end) => httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(end)),
        None => seconds.to_string(),
    };
    Action::Respond(Fixed {
        status: 503,
        content_type: "text/html; charset=utf-8".into(),
        body: MAINTENANCE.into(),
        retry_after: Some(retry_after.into()),
        instead_of: match action {
            Action::Forward(backends) => backends,
            Action::Redirect(_) | Action::Respond(_) => Vec::new(),
        },
    })
}

/// The page of a paused route.
const MAINTENANCE: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width\"><title>Paused for maintenance</title></head>\n\
    <body><h1>Paused for maintenance</h1>\n\
    <p>The people who run this site have paused it. Nothing is wrong with your request; \
    please try again later.</p></body></html>\n";
