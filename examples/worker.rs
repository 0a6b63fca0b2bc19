//! A worker that ends well: threads take jobs, each locks a record, and SIGTERM drains the locker. Its metrics are printed at the end.
//! `cargo run --example worker -- redis://127.0.0.1/ 4`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{env, thread};

use metrics_exporter_prometheus::PrometheusBuilder;
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Less than the time between SIGTERM and SIGKILL, 30 s in Kubernetes.
const GRACE: Duration = Duration::from_secs(25);

const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(10))
    .protocol(Protocol::Auto)
    .auto_extend(Duration::from_secs(600));

/// Does one job under the lock of its record. Each step is safe to be the last.
fn job(locker: &Locker, record: u64) -> Result<(), Error> {
    let lock = Lock::new(locker, format!("record:{record}"), OPTIONS)?;
    let waiting = metrics::gauge!("setnx_lock_waiting");
    waiting.increment(1);
    let acquired = lock.lock();
    waiting.decrement(1);
    let held = acquired?;
    let lost = held.loss_signal();
    for _step in 0..5 {
        if lost.is_lost() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    // A loss is an error here: check what the job has done.
    held.release()
}

/// Takes jobs until it is told to stop. A real queue would give a job that is not done to another worker.
fn work(locker: &Locker, jobs: &AtomicU64, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let record = jobs.fetch_add(1, Ordering::Relaxed) % 50;
        let outcome = match job(locker, record) {
            Ok(()) => "done",
            Err(Error::ShutDown { .. }) => "given back",
            Err(error) => {
                eprintln!("record {record}: {}", error.chain());
                thread::sleep(Duration::from_millis(100));
                "failed"
            }
        };
        metrics::counter!("jobs_total", "outcome" => outcome).increment(1);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let threads: usize = env::args().nth(2).map_or(Ok(4), |threads| threads.parse())?;
    let recorder = PrometheusBuilder::new().build_recorder();
    let rendered = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
    // Before the threads begin, so that none of them gets the signal.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let locker = Locker::builder(&url)?.holder_name(format!("worker:{}", std::process::id())).build()?;
    let (jobs, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&locker, &jobs, &is_over));
        }
        println!("working");
        signals.forever().next();
        is_over.store(true, Ordering::Relaxed);
        metrics::gauge!("setnx_lock_held").set(u32::try_from(locker.held().len()).unwrap_or(u32::MAX));
        // A second signal ends the program at once.
        thread::spawn(move || {
            signals.forever().next();
            std::process::exit(1);
        });
        let drained = locker.drain(GRACE);
        println!("drained in {:?}", drained.waited);
        for left in &drained.unsettled {
            eprintln!("not released: {}, for {:?} more", left.key, left.remaining);
        }
        if !drained.still_held.is_empty() {
            for still in &drained.still_held {
                eprintln!("still held: {}, for {:?} more", still.key, still.remaining);
            }
            // The end of the scope would wait for these threads. Their locks free themselves after their leases.
            std::process::exit(1);
        }
    });
    println!("{}", rendered.render());
    Ok(())
}
