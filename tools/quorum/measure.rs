//! How long an acquisition takes on 1, 3 and 5 servers: all well, one hanging, one dead.
//! It is compared with the slowest server of the fastest majority in the same acquisition,
//! as that server's locker reports it, and with a lock on one server in turn.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use setnx_lock::{Event, Lock, LockOptions, Locker, Protocol, Quorum};
use setnx_lock_testing::Proxy;
use testkit::RedisServer;

const ROUNDS: usize = 400;
const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(60)).protocol(Protocol::Auto);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Hangs,
    Dead,
}

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("medians of {ROUNDS} acquisitions; `majority`: the slowest server of the fastest majority");
    println!(
        "{:>8} {:>8} {:>6} {:>12} {:>12} {:>12} {:>8}",
        "replies", "servers", "one", "quorum", "majority", "one lock", "ratio"
    );
    for delay in [Duration::ZERO, Duration::from_micros(500), Duration::from_millis(2)] {
        for count in [1, 3, 5] {
            for fault in [Fault::None, Fault::Hangs, Fault::Dead] {
                if count > 1 || fault == Fault::None {
                    measure(count, fault, delay)?;
                }
            }
        }
    }
    Ok(())
}

/// The times that the servers took for the acquisition that is measured.
type Times = Arc<Mutex<Vec<Duration>>>;

fn measure(count: usize, fault: Fault, delay: Duration) -> Result<(), Box<dyn Error>> {
    let mut servers = (0..count).map(|_| RedisServer::start()).collect::<Result<Vec<_>, _>>()?;
    let proxies =
        servers.iter().map(|server| Proxy::before(server.address())).collect::<Result<Vec<_>, _>>()?;
    let url = |index: usize| if delay.is_zero() { servers[index].url() } else { proxies[index].url() };
    for proxy in &proxies {
        proxy.delay_by(move |_| delay);
    }
    let times = Times::default();
    let open = |index| {
        let times = Arc::clone(&times);
        let observer = move |event: &Event<'_>| {
            if let Event::AcquireFinished { waited, outcome: Ok(()), .. } = event {
                times.lock().unwrap().push(*waited);
            }
        };
        Locker::builder(&url(index))?.command_timeout(Duration::from_secs(1)).observer(observer).build()
    };
    let lockers = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
    let quorum = Quorum::new(&lockers, "measured", OPTIONS)?;
    let single = Lock::new(&Locker::open(&url(count - 1))?, "single", OPTIONS)?;
    for _ in 0..50 {
        quorum.with(|_| ())?;
        single.with(|_| ())?;
    }
    match fault {
        Fault::None => {}
        Fault::Hangs => servers[0].freeze(),
        Fault::Dead => servers[0].stop(),
    }
    let (mut whole, mut majority, mut one, mut ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        times.lock().unwrap().clear();
        let began = Instant::now();
        let held = quorum.lock()?;
        let took = began.elapsed();
        let mut servers = times.lock().unwrap().clone();
        servers.sort_unstable();
        let slowest = servers[count / 2];
        held.release()?;
        whole.push(took);
        majority.push(slowest);
        ratios.push(took.as_secs_f64() / slowest.as_secs_f64());
        let began = Instant::now();
        let held = single.lock()?;
        one.push(began.elapsed());
        held.release()?;
    }
    ratios.sort_unstable_by(f64::total_cmp);
    if fault == Fault::Hangs {
        servers[0].thaw();
    }
    let [whole, majority, one] = [whole, majority, one].map(median);
    println!(
        "{delay:>8?} {count:>8} {:>6} {whole:>12.1?} {majority:>12.1?} {one:>12.1?} {:>8.2}",
        format!("{fault:?}"),
        ratios[ROUNDS / 2]
    );
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
