//! One process of a fleet: a locker, and threads that use its locks
//! until the run's end. Only by what the library has made public.

mod kept;
mod quorum;
mod several;
mod single;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use setnx_lock::{Credentials, Error, Event, LockOptions, Locker, Observer};
use world::run::{self, chance, random};
use world::thread;

use crate::calls::{Limits, one_of, timed, up_to};
use crate::laws;
use crate::plan::Plan;
use crate::secret;
use crate::servers::{Servers, Topology};

/// What a process of the fleet runs.
pub(crate) fn run(plan: &Plan, servers: &Servers, number: u64) {
    if plan.topology == Topology::Quorum {
        return quorum::run(plan, servers);
    }
    let locker = match locker(plan, servers, number) {
        Ok(locker) => locker,
        Err(error) => laws::broken(&format!("no locker: {}", error.chain())),
    };
    let is_shut_down = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..plan.threads)
        .map(|thread| {
            let (plan, locker, is_shut_down) = (plan.clone(), locker.clone(), Arc::clone(&is_shut_down));
            let client = Client { limits: Limits::of(&plan), plan, locker, is_shut_down };
            let thread = thread::Builder::new().name(format!("client {thread}"));
            thread.spawn(move || client.run()).expect("a thread")
        })
        .collect();
    if chance(5) && plan.has("drain") {
        thread::sleep(up_to(plan.length.saturating_sub(run::now())));
        drain(&locker, plan);
        is_shut_down.store(true, Ordering::Relaxed);
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    if chance(2) {
        drain(&locker, plan);
    }
}

fn drain(locker: &Locker, plan: &Plan) {
    let time = up_to(Duration::from_secs(2));
    let drained = timed("drain", time + plan.command_timeout, || locker.drain(time));
    run::note(&format!("{drained:?}"));
}

fn locker(plan: &Plan, servers: &Servers, number: u64) -> Result<Locker, Error> {
    let mut builder = servers
        .builder()?
        .pool_size(plan.pool_size)
        .command_timeout(plan.command_timeout)
        .connect_timeout(plan.connect_timeout)
        .retry_for(plan.retry_for)
        .key_prefix(plan.prefix)
        .observer(Notes { is_slow: chance(10) });
    if plan.has_names() && chance(4) && plan.has("names") {
        builder = builder.holder_name(format!("process:{number}"));
    }
    if chance(4) {
        builder = builder.idle_timeout(Duration::from_secs(random(1..20)));
    }
    if chance(4) {
        builder = builder.max_connection_age(Duration::from_secs(random(1..20)));
    }
    if plan.settles {
        builder = builder.settle_after_failover(plan.longest_lease());
    }
    if plan.rotates {
        builder = builder.credentials(|| Credentials::password(secret::current()));
    }
    builder.build()
}

/// Has what the library reports in the trace.
#[derive(Debug)]
struct Notes {
    is_slow: bool,
}

impl Observer for Notes {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::AcquireFinished { .. } | Event::Released { .. } | Event::Extended { .. } => {}
            other => run::note(&format!("event: {other:?}")),
        }
        if self.is_slow && chance(20) {
            thread::sleep(up_to(Duration::from_millis(5)));
        }
    }
}

/// A thread that uses locks.
struct Client {
    plan: Plan,
    locker: Locker,
    limits: Limits,
    /// The program ends.
    is_shut_down: Arc<AtomicBool>,
}

impl Client {
    fn run(&self) {
        // Some threads loop, others come now and then.
        let pause = Duration::from_millis(one_of(&[0, 5, 100, 1500]));
        let keeps = chance(8);
        while run::now() < self.plan.length && !self.is_shut_down.load(Ordering::Relaxed) {
            thread::sleep(up_to(pause));
            let has = |part| self.plan.has(part);
            match random(0..24) {
                12 if has("lead") => self.lead(),
                13 if has("forever") => self.wait_for_ever(),
                14 if has("look") => self.look_at(),
                0 if has("several") => self.use_several(),
                1 if has("permits") => self.use_a_permit(),
                2 if has("readers") => self.read_or_write(),
                // A token names its protocol, which an older server may lack.
                3 if !self.plan.changes_version && has("tokens") => self.hand_over(),
                4 | 5 if keeps && has("kept") => self.keep_many(),
                4 | 5 if has("tokens") => self.resume(),
                6..=9 if has("with") => self.use_with(),
                _ => self.use_a_lock(),
            }
        }
    }

    /// Returns options for a lock with this expiration, and whether it is extended while it is held.
    fn options(&self, expiration: Duration) -> (LockOptions, bool) {
        let mut options = LockOptions::expiring_after(expiration)
            .protocol(self.plan.protocol)
            .timeout(Duration::from_millis(one_of(&[0, 50, 1000, 8000])))
            .poll_interval(self.plan.poll_interval);
        let has = |part| self.plan.has(part);
        let is_kept = chance(4) && has("extend");
        if is_kept {
            options = options.auto_extend(expiration * 4);
        }
        if chance(10) && has("attempts") {
            options = options.max_attempts(u32::try_from(random(1..4)).unwrap_or(1));
        }
        if chance(8) && has("least") {
            options = options.hold_at_least(up_to(expiration / 4));
        }
        if chance(8) && has("later") {
            options = options.release_later_on_drop();
        }
        (options, is_kept)
    }

    /// Chooses a time to work, mostly well within the lease.
    fn work_time(&self, expiration: Duration, is_kept: bool) -> Duration {
        up_to(match random(0..10) {
            0 if is_kept => 3 * expiration,
            0 if !self.plan.has_no_faults() => expiration + expiration / 2,
            1 => expiration / 2,
            _ => Duration::from_millis(30).min(expiration / 2),
        })
    }
}
