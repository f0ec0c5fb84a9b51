use proptest::prelude::*;

use super::*;

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn request(parent: Option<&str>) -> RequestHead {
    let mut head = RequestHead::new();
    if let Some(parent) = parent {
        head.headers.push("traceparent", parent);
        head.headers.push("tracestate", "a=b");
    }
    head
}

#[test]
fn a_trace_goes_on_with_our_part_as_the_next_parent() {
    let mut head = request(Some(GIVEN));
    begin(&mut head, 1, 7);
    let trace = head.trace.unwrap();
    assert_eq!(trace.trace_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(trace.parent_id, Some(0x00f0_67aa_0ba9_02b7));
    assert!(trace.sampled);
    let sent = head.headers.get_str("traceparent").unwrap();
    assert_eq!(parse(sent), Some((trace.trace_id, trace.span_id, true)));
    assert_ne!(trace.span_id, 0x00f0_67aa_0ba9_02b7);
    assert_eq!(head.headers.get_str("tracestate"), Some("a=b"));
}

#[test]
fn a_trace_begins_where_there_is_none_that_can_be_read() {
    for parent in [None, Some("nonsense"), Some("00-0-0-0")] {
        let mut head = request(parent);
        begin(&mut head, 1, 7);
        let trace = head.trace.unwrap();
        assert_eq!((trace.parent_id, trace.sampled), (None, true));
        assert_eq!(head.headers.get_all("traceparent").count(), 1);
        assert_eq!(head.headers.get("tracestate"), None);
    }
}

#[test]
fn one_new_trace_in_many_is_recorded() {
    let recorded = (0..10_000)
        .filter(|_| {
            let mut head = request(None);
            begin(&mut head, 10, 7);
            head.trace.unwrap().sampled
        })
        .count();
    assert!((700..1300).contains(&recorded), "{recorded}");
}

#[test]
fn only_well_formed_parents_are_believed() {
    assert!(parse(GIVEN).is_some());
    assert!(parse(&GIVEN.replace("00-4", "01-4")).is_some(), "a later version");
    for bad in [
        "",
        &GIVEN.to_ascii_uppercase(),
        &GIVEN.replace("00-4", "ff-4"),
        &format!("{GIVEN}-more"),
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}

proptest! {
    #[test]
    fn any_text_has_an_answer(text in "[0-9a-f-]{0,60}|.{0,20}") {
        let _ = parse(&text);
    }
}
