#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use telaio_http_proxy::table::{BackendId, HostMatch, PathMatch, Route, TableChange};
use telaio_http_proxy::{HttpProxy, ProxySettings};

use super::*;

/// A worker's desk behind a control, without a link between them.
fn desk(proxy: &Arc<HttpProxy>) -> IngressControl {
    let control = IngressControl::default();
    let (out, mut frames) = mpsc::channel(4);
    let desk = Desk::open(Arc::new(Inspector::new(Arc::clone(proxy))), out);
    let mut asked = control.attach();
    tokio::spawn(async move {
        while let Some(ask) = asked.recv().await {
            desk.ask(ask);
        }
    });
    let taking = control.clone();
    tokio::spawn(async move {
        while let Some(frame) = frames.recv().await {
            assert!(frame.bytes.len() < 1 << 20, "a page of {} bytes", frame.bytes.len());
            taking.take(frame.read_json().unwrap());
        }
    });
    control
}

fn table(routes: usize) -> TableChange {
    let mut change = TableChange::default();
    for number in 0..routes {
        let id = format!("shop/web-{number}/0/0");
        let host = HostMatch::Exact(format!("h{number}.example.com").into());
        let backend = BackendId::new(&format!("shop/web-{number}:80"));
        let path = PathMatch::Prefix("/".into());
        let route = Route::forward(&id, host, path, backend);
        change.routes.insert(id.as_str().into(), Some(route.into()));
    }
    change
}

#[tokio::test]
async fn ten_thousand_routes_come_in_pages_and_all_of_them() {
    let proxy = Arc::new(HttpProxy::new(ProxySettings::default()));
    assert!(proxy.apply(&table(10_000)).is_empty());
    let control = desk(&proxy);
    let table = control.routes().await.unwrap();
    assert_eq!(table.routes.len(), 10_000);
    let one = table.routes.iter().find(|route| route.host == "h77.example.com").unwrap();
    assert_eq!((one.path.as_str(), one.targets[0].service.as_str()), ("/", "web-77"));
    assert_eq!((one.targets[0].namespace.as_str(), one.targets[0].port.as_str()), ("shop", "80"));
    let stats = control.stats().await.unwrap();
    assert_eq!((stats.totals.routes, stats.backends.len()), (10_000, 10_000));
    assert!(stats.routes.is_empty(), "nobody has asked yet");
}

#[tokio::test]
async fn what_cannot_be_done_is_told_and_a_purge_of_nothing_is_none() {
    let control = desk(&Arc::new(HttpProxy::new(ProxySettings::default())));
    assert_eq!(control.purge(PurgeWhat::All).await, Ok(0));
    let refused = control.purge(PurgeWhat::Host("a/b".into())).await.unwrap_err();
    assert!(refused.to_string().contains("is not a host"), "{refused}");
}

#[tokio::test]
async fn without_a_worker_there_is_an_error_and_with_the_next_an_answer() {
    let control = IngressControl::default();
    assert_eq!(control.totals().await, Err(ControlError::NoWorker));
    // A worker that takes the question and ends.
    let mut asked = control.attach();
    let asking = tokio::spawn({
        let control = control.clone();
        async move { control.totals().await }
    });
    let ask = asked.recv().await.unwrap();
    control.detach();
    assert_eq!(asking.await.unwrap(), Err(ControlError::NoWorker));
    // What comes too late is for nobody.
    control.take(Page { id: ask.id, part: Part::End });
    let mut asked = control.attach();
    let asking = tokio::spawn({
        let control = control.clone();
        async move { control.totals().await }
    });
    let ask = asked.recv().await.unwrap();
    control.take(Page { id: ask.id, part: Part::Totals(Box::default()) });
    control.take(Page { id: ask.id, part: Part::End });
    assert_eq!(asking.await.unwrap(), Ok(Totals::default()));
}

#[tokio::test]
async fn who_gets_no_answer_is_told_after_a_while_and_leaves_nothing_behind() {
    let time_max = Duration::from_millis(50);
    let control = IngressControl::with_time(time_max);
    let _asked = control.attach();
    let many = (0..ASKS_MAX * 2).map(|_| {
        let control = control.clone();
        tokio::spawn(async move { control.totals().await })
    });
    let many: Vec<_> = many.collect();
    for asking in many {
        assert_eq!(asking.await.unwrap(), Err(ControlError::TimedOut(time_max)));
    }
    assert!(control.shared.state.lock().waiting.is_empty());
    assert_eq!(control.shared.places.available_permits(), ASKS_MAX);
}
