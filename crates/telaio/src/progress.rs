//! Shows on a terminal that something takes its time. In a pipe nothing is shown.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// What takes less is not worth a word.
const QUIET: Duration = Duration::from_millis(500);

/// Waits for `work`; says on a terminal what is waited for, and since when.
pub(crate) async fn shown<T>(what: &str, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let started = Instant::now();
    let mut work = std::pin::pin!(work);
    let mut is_shown = false;
    loop {
        if let Ok(done) = tokio::time::timeout(QUIET, &mut work).await {
            if is_shown {
                show("\r\u{1b}[K");
            }
            return done;
        }
        is_shown = true;
        show(&format!("\r\u{1b}[K{what}: {} s", started.elapsed().as_secs()));
    }
}

fn show(text: &str) {
    // A terminal that is gone is no reason to stop working.
    let _ = std::io::stderr().write_all(text.as_bytes());
    let _ = std::io::stderr().flush();
}
