use std::time::{Duration, Instant};

use http::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;

fn outcome(status: u16, duration: Duration) -> Outcome<'static> {
    let status = StatusCode::from_u16(status).unwrap();
    Outcome { status, duration, body_bytes: 10, tries: 2, ..Outcome::new(Instant::now()) }
}

#[test]
fn requests_are_counted_by_kind_and_duration() {
    let metrics = Arc::new(RequestMetrics::default());
    metrics.count(&outcome(200, Duration::from_millis(2)));
    metrics.count(&outcome(204, Duration::from_millis(20)));
    metrics.count(&outcome(503, Duration::from_mins(1)));
    assert_eq!(metrics.totals(), [0, 2, 0, 0, 1]);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(RequestCollector(metrics)));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        "telaio_http_requests_total{route=\"none\",status=\"2xx\"} 2",
        "telaio_http_requests_total{route=\"none\",status=\"5xx\"} 1",
        "telaio_http_response_bytes_total{route=\"none\"} 30",
        "telaio_http_retries_total{route=\"none\"} 3",
        "telaio_http_request_duration_seconds_bucket{le=\"0.0025\",route=\"none\"} 1",
        "telaio_http_request_duration_seconds_bucket{le=\"30.0\",route=\"none\"} 2",
        "telaio_http_request_duration_seconds_bucket{le=\"+Inf\",route=\"none\"} 3",
        "telaio_http_request_duration_seconds_count{route=\"none\"} 3",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn routes_beyond_the_bound_share_their_figures() {
    let metrics = RequestMetrics::default();
    for number in 0..ROUTES_MAX * 2 {
        metrics.series(&format!("route-{number}")).classes[1].fetch_add(1, Relaxed);
    }
    assert!(metrics.routes.read().len() <= ROUTES_MAX + 1);
    assert_eq!(metrics.totals()[1], ROUTES_MAX as u64 * 2);
}
