use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;

use super::*;

fn request() -> RequestHead {
    let mut head = RequestHead::new();
    head.set_authority("shop.org");
    head.set_target("/a?b=\"c\\").unwrap();
    head.client.address = "192.0.2.7".parse().unwrap();
    head.headers.push("User-Agent", "curl \"7\"");
    head
}

fn outcome(status: u16) -> Outcome<'static> {
    Outcome {
        status: StatusCode::from_u16(status).unwrap(),
        body_bytes: 5,
        duration: Duration::from_millis(3),
        ..Outcome::new(Instant::now())
    }
}

/// What a log wrote; writing can be held up.
#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn wait_for_lines(out: &Out, count: usize) -> String {
    for _ in 0..2000 {
        let text = String::from_utf8(out.0.lock().clone()).unwrap();
        if text.lines().count() >= count {
            return text;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the lines do not come");
}

#[test]
fn a_line_is_json_whatever_clients_send() {
    let out = Out::default();
    let log = AccessLog::start(Format::Json, 1, out.clone()).unwrap();
    log.write(&request(), &outcome(200));
    let text = wait_for_lines(&out, 1);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["client"], "192.0.2.7");
    assert_eq!(line["path"], request().path_and_query());
    assert_eq!((&line["status"], &line["bytes"]), (&200.into(), &5.into()));
    assert_eq!(line["duration_us"], 3000);
    assert_eq!(line["user_agent"], "curl \"7\"");
}

#[test]
fn the_combined_form_cannot_be_broken_by_quotes() {
    let line = combined(&request(), &outcome(404), 784_111_777);
    assert!(line.starts_with("192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b="), "{line}");
    assert!(line.ends_with("\" 404 5 \"-\" \"curl '7'\"\n"), "{line}");
    assert_eq!(line.matches('"').count(), 6);
}

#[test]
fn one_in_many_is_logged_and_every_failure() {
    let out = Out::default();
    let log = AccessLog::start(Format::Combined, 10, out.clone()).unwrap();
    for _ in 0..100 {
        log.write(&request(), &outcome(200));
    }
    for _ in 0..7 {
        log.write(&request(), &outcome(502));
    }
    let text = wait_for_lines(&out, 17);
    assert_eq!(text.lines().count(), 17);
}

#[test]
fn a_writer_that_is_stuck_costs_lines_and_no_time() {
    let out = Out::default();
    let log = AccessLog::start(Format::Combined, 1, out.clone()).unwrap();
    let held = out.0.lock();
    for _ in 0..LINES_MAX * 2 {
        log.write(&request(), &outcome(200));
    }
    drop(held);
    let dropped = log.dropped() as usize;
    assert!(dropped >= LINES_MAX / 2, "{dropped}");
    wait_for_lines(&out, LINES_MAX * 2 - dropped);
}
