use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::watch::snapshot::{BackendFigures, EndpointFigures, RouteFigures};

fn figures(requests: u64) -> Figures {
    let mut figures = Figures { body_bytes: 10 * requests, in_flight: 1, ..Figures::default() };
    figures.statuses[1] = requests;
    figures.durations[2] = requests;
    figures.duration_us = 2_000 * requests;
    figures
}

/// Figures of a worker that began then.
fn stats(worker: u64, routes: &[(&str, &str, u64)]) -> Stats {
    let route = |(route, ingress, requests): &(&str, &str, u64)| RouteFigures {
        route: (*route).to_owned(),
        ingress: (*ingress).to_owned(),
        figures: figures(*requests),
    };
    let totals = Totals { since_unix_ns: worker, connections_accepted: 7, ..Totals::default() };
    Stats { totals, routes: routes.iter().map(route).collect(), backends: Vec::new() }
}

fn text(metrics: &Arc<HttpMetrics>) -> String {
    let mut registry = Registry::with_prefix("telaio");
    registry.register_collector(Box::new(HttpCollector(Arc::clone(metrics))));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
}

#[test]
fn the_routes_of_an_ingress_share_its_series() {
    let metrics = Arc::new(HttpMetrics::default());
    let mut all = stats(1, &[("shop/a/0/0", "shop/a", 2), ("shop/a/0/1", "shop/a", 3)]);
    all.totals.unrouted = figures(4);
    let endpoint = |ejected| EndpointFigures { ejected, healthy: true, ..Default::default() };
    let endpoints = vec![endpoint(false), endpoint(true)];
    all.backends.push(BackendFigures { endpoints, ..BackendFigures::default() });
    let certificate = CertificateInfo {
        secret: Some("shop/tls".to_owned()),
        not_after_s: 1_900_000_000,
        ..CertificateInfo::default()
    };
    metrics.take(&all, vec![certificate, CertificateInfo::default()]);
    let text = text(&metrics);
    for line in [
        "telaio_http_requests_total{namespace=\"shop\",ingress=\"a\",status=\"2xx\"} 5",
        "telaio_http_requests_total{namespace=\"none\",ingress=\"none\",status=\"2xx\"} 4",
        "telaio_http_response_bytes_total{namespace=\"shop\",ingress=\"a\"} 50",
        "telaio_http_request_duration_seconds_bucket{le=\"0.001\",namespace=\"shop\",ingress=\"a\"} 0",
        "telaio_http_request_duration_seconds_bucket{le=\"0.0025\",namespace=\"shop\",ingress=\"a\"} 5",
        "telaio_http_request_duration_seconds_count{namespace=\"shop\",ingress=\"a\"} 5",
        "telaio_http_requests_in_flight 3",
        "telaio_http_connections_accepted_total 7",
        "telaio_http_endpoints{state=\"ready\"} 1",
        "telaio_http_endpoints{state=\"ejected\"} 1",
        "telaio_http_certificate_expiry_timestamp_seconds{namespace=\"shop\",secret=\"tls\"} 1900000000",
    ] {
        has(&text, line);
    }
}

#[test]
fn counters_go_on_when_a_worker_or_a_route_begins_anew() {
    let metrics = Arc::new(HttpMetrics::default());
    let line = |count: u64| {
        let of = "telaio_http_requests_total{namespace=\"shop\",ingress=\"a\",status=\"2xx\"}";
        has(&text(&metrics), &format!("{of} {count}"));
    };
    let take = |worker, requests| {
        metrics.take(&stats(worker, &[("shop/a/0/0", "shop/a", requests)]), Vec::new());
    };
    take(1, 5);
    take(1, 5);
    line(5);
    take(1, 8);
    line(8);
    // Another worker: it has counted three until now.
    take(2, 3);
    line(11);
    // The route was taken away and made again.
    take(2, 1);
    line(12);
    metrics.take(&stats(2, &[]), Vec::new());
    line(12);
    metrics.take(&stats(2, &[("shop/a/0/0", "shop/a", 2)]), Vec::new());
    line(14);
    has(&text(&metrics), "telaio_http_connections_accepted_total 14");
}

#[test]
fn ingresses_beyond_the_bound_share_their_figures() {
    let metrics = Arc::new(HttpMetrics::default());
    let names: Vec<String> =
        (0..SERIES_MAX + 50).map(|number| format!("shop/i{number:04}")).collect();
    let routes: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str(), 1)).collect();
    metrics.take(&stats(1, &routes), Vec::new());
    metrics.take(&stats(1, &routes), Vec::new());
    let text = text(&metrics);
    let own = text.lines().filter(|line| line.starts_with("telaio_http_requests_total{"));
    assert_eq!(own.count(), SERIES_MAX + 1);
    has(
        &text,
        "telaio_http_requests_total{namespace=\"other\",ingress=\"other\",status=\"2xx\"} 50",
    );
}

#[test]
fn who_has_had_no_route_for_long_leaves_its_place_to_others() {
    let metrics = Arc::new(HttpMetrics::default());
    let names: Vec<String> = (0..SERIES_MAX).map(|number| format!("shop/i{number:04}")).collect();
    let routes: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str(), 1)).collect();
    let begun = Instant::now();
    metrics.take_at(&stats(1, &routes), Vec::new(), begun);
    let line = |name: &str| {
        format!(
            "telaio_http_requests_total{{namespace=\"shop\",ingress=\"{name}\",status=\"2xx\"}} 1"
        )
    };
    let all_but_the_first = || routes[1..].to_vec();
    let soon = begun + SERIES_KEPT / 2;
    metrics.take_at(&stats(1, &all_but_the_first()), Vec::new(), soon);
    has(&text(&metrics), &line("i0000"));
    let mut later = all_but_the_first();
    later.push(("shop/new", "shop/new", 1));
    metrics.take_at(&stats(1, &later), Vec::new(), begun + SERIES_KEPT);
    let text = text(&metrics);
    assert!(!text.contains("i0000"), "{text}");
    has(&text, &line("i0001"));
    has(&text, &line("new"));
    assert!(!text.contains("ingress=\"other\""), "{text}");
}
