//! Metrics of locks with the crate `metrics`: a histogram of waits, and counters by outcome, printed as Prometheus reads them.
//! `cargo run --example metrics -- redis://127.0.0.1/`

use std::time::Duration;
use std::{env, thread};

use metrics_exporter_prometheus::PrometheusBuilder;
use setnx_lock::{CancelToken, Error, Event, Lock, LockOptions, Locker};

/// Counts and times what the locks of a locker do.
fn measure(event: &Event<'_>) {
    match event {
        Event::AcquireFinished { waited, outcome, .. } => {
            let outcome = match outcome {
                Ok(()) => "acquired",
                Err(error) if error.is_contention() => "contention",
                // The program has ended the wait itself.
                Err(Error::Cancelled { .. }) => "stopped",
                Err(_) => "error",
            };
            metrics::histogram!("setnx_lock_wait_seconds").record(waited.as_secs_f64());
            metrics::counter!("setnx_lock_acquires_total", "outcome" => outcome).increment(1);
        }
        Event::Lost { .. } => released("lost"),
        Event::Released { outlived_lease: true, .. } => released("outlived_lease"),
        Event::Released { .. } => released("in_time"),
        Event::ReleaseFailed { .. } => released("error"),
        _ => {}
    }
}

fn released(outcome: &'static str) {
    metrics::counter!("setnx_lock_releases_total", "outcome" => outcome).increment(1);
}

fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let recorder = PrometheusBuilder::new().build_recorder();
    let rendered = recorder.handle();
    if metrics::set_global_recorder(recorder).is_err() {
        unreachable!("no other recorder is set");
    }
    let locker = Locker::builder(&url)?.observer(measure).build()?;
    let options = LockOptions::expiring_after(Duration::from_secs(10)).timeout(Duration::from_millis(50));
    let lock = Lock::new(&locker, "setnx-lock:metrics-example", options)?;
    for _ in 0..5 {
        lock.with(|_held| thread::sleep(Duration::from_millis(1)))?;
    }
    let held = lock.lock()?;
    let contended = lock.try_lock()?.is_none();
    held.release()?;
    assert!(contended, "a lock that is held is not acquired");
    let cancel_token = CancelToken::new();
    cancel_token.cancel();
    let stopped = lock.cancelled_by(&cancel_token).lock().is_err();
    assert!(stopped, "a wait that is cancelled does not acquire the lock");
    println!("{}", rendered.render());
    Ok(())
}
