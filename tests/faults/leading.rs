//! Five processes of which one leads: they are killed, stopped, and told to end, and their server fails over.

use std::io::{BufRead as _, BufReader};
use std::mem;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use setnx_lock::redis::cmd;
use setnx_lock::{CancelToken, Error, Event, Lock, LockOptions, Locker};
use setnx_lock_testing::TestServer;
use testkit::failover::{Failover, ask};

use crate::support::notified::until;
use crate::support::scenario::{opened, patient};
use crate::support::tool::{example, tool};
use crate::support::{LONG, Outcome, expiring, millis, tests, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let here = crate::support::trials(
        "leading",
        tests![
            one_of_five_leads_while_leaders_are_killed_stopped_and_told_to_end,
            whatever_fails_is_tried_again,
            what_can_never_lead_is_refused,
            leading_ends_with_the_locker,
            a_panic_ends_the_term_and_the_call,
        ],
    );
    let others = [
        trial("failover::one_of_five_leads_with_replicas_that_go_away", || {
            over_sentinels(&EXAMPLE, Duration::from_secs(7))
        }),
        trial("failover::one_of_three_tools_leads_with_replicas_that_go_away", || {
            over_sentinels(&Program { lease: Duration::from_secs(4), ..TOOL }, Duration::from_secs(9))
        }),
        trial("failovers::one_of_three_tools_leads_as_in_the_recipe", || {
            over_sentinels(&TOOL, Duration::from_secs(25))
        }),
        trial("leading::one_of_three_tools_leads_while_leaders_are_killed_and_told_to_end", tools),
    ];
    here.into_iter().chain(others).collect()
}

const LEASE: Duration = Duration::from_secs(2);

/// What the processes run.
struct Program {
    processes: usize,
    lease: Duration,
    command: fn(&str, Duration) -> Command,
    /// After SIGTERM.
    exit_code: i32,
}

const EXAMPLE: Program = Program {
    processes: 5,
    lease: LEASE,
    command: |url, lease| {
        let mut command = Command::new(example("leader"));
        command.args([url, &lease.as_millis().to_string()]);
        command
    },
    exit_code: 0,
};

/// The expiration of the recipes.
const TOOL: Program = Program {
    processes: 3,
    lease: Duration::from_secs(15),
    command: |url, lease| {
        let worker = "echo leads $(date +%s%6N); while :; do echo step $(date +%s%6N); sleep 0.03; done";
        let lease = format!("{}ms", lease.as_millis());
        let mut command = tool(url);
        command.args(["run", "--lead", "--name=", "-e", &lease, KEY, "--", "sh", "-c", worker]);
        command
    },
    exit_code: 143,
};

/// The key of the example, and of the tools.
const KEY: &str = "setnx-lock:leader-example";

/// What a process has printed: when it led, by steps in each of which it relied on the lock.
#[derive(Clone, Debug)]
struct Term {
    process: u32,
    first: Duration,
    last: Duration,
    is_over: bool,
}

struct Leaders<'a> {
    program: &'a Program,
    url: String,
    processes: Vec<Child>,
    terms: Arc<Mutex<Vec<Term>>>,
    /// What reads the output of processes.
    readers: Vec<JoinHandle<()>>,
}

impl<'a> Leaders<'a> {
    fn start(program: &'a Program, url: &str) -> Result<Self, std::io::Error> {
        let (url, terms) = (url.to_owned(), Arc::default());
        let mut leaders = Self { program, url, processes: Vec::new(), terms, readers: Vec::new() };
        for _ in 0..program.processes {
            leaders.add()?;
        }
        Ok(leaders)
    }

    fn add(&mut self) -> Result<(), std::io::Error> {
        let mut command = (self.program.command)(&self.url, self.program.lease);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let (id, terms) = (process.id(), Arc::clone(&self.terms));
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((what, micros)) = line.rsplit_once(' ') else { continue };
                if what == "ready" {
                    continue;
                }
                let at = Duration::from_micros(micros.parse().expect("a time"));
                let mut terms = terms.lock().unwrap_or_else(PoisonError::into_inner);
                let own = terms.iter_mut().rev().find(|term| term.process == id && !term.is_over);
                match (what, own) {
                    ("leads", _) => terms.push(Term { process: id, first: at, last: at, is_over: false }),
                    ("step", Some(term)) => term.last = at,
                    (_, Some(term)) => term.is_over = true,
                    other => panic!("{other:?}"),
                }
            }
        });
        self.readers.push(reader);
        self.processes.push(process);
        Ok(())
    }

    fn terms(&self) -> Vec<Term> {
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner).clone();
        terms.sort_by_key(|term| term.first);
        terms
    }

    /// Waits until a term has begun since then. Returns it.
    fn next(&self, since: Duration) -> Term {
        let next = || self.terms().into_iter().find(|term| term.first > since && term.last > term.first);
        until("one leads", || next().is_some());
        next().expect("one leads")
    }

    /// Waits until one leads then, whenever it began.
    fn leads_after(&self, since: Duration) {
        until("one leads", || self.terms().iter().any(|term| term.last > since));
    }

    fn signal(&mut self, id: u32, signal: Signal) -> Result<Duration, std::io::Error> {
        let process = self.processes.iter().find(|process| process.id() == id).expect("it runs");
        let at = now();
        kill_process(Pid::from_child(process), signal)?;
        Ok(at)
    }

    /// One that has ended is replaced.
    fn replace(&mut self, id: u32) -> Outcome {
        let position = self.processes.iter().position(|process| process.id() == id).expect("it ran");
        self.processes.swap_remove(position).wait()?;
        Ok(self.add()?)
    }

    /// Ends all. No two have led at the same time within their leases.
    fn end(mut self) -> Result<Vec<Term>, Box<dyn std::error::Error>> {
        for process in &self.processes {
            kill_process(Pid::from_child(process), Signal::TERM)?;
        }
        for process in &mut self.processes {
            assert_eq!(process.wait()?.code(), Some(self.program.exit_code), "none has given up");
        }
        for reader in mem::take(&mut self.readers) {
            reader.join().unwrap();
        }
        let terms = self.terms();
        for pair in terms.windows(2) {
            assert!(pair[0].last < pair[1].first, "two have led: {pair:?}");
        }
        Ok(terms)
    }
}

impl Drop for Leaders<'_> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn one_of_five_leads_while_leaders_are_killed_stopped_and_told_to_end() -> Outcome {
    let server = TestServer::start();
    let mut leaders = Leaders::start(&EXAMPLE, &server.url())?;
    let lock = Lock::new(&opened(&server.url())?, KEY, expiring())?;
    let (mut after_kill, mut after_end) = (Vec::new(), Vec::new());
    let mut leader = leaders.next(Duration::ZERO);
    for _ in 0..2 {
        let name = lock.holder()?.expect("it has a name").name().to_owned();
        assert_eq!(name, format!("leader:{}", leader.process));
        let killed = leaders.signal(leader.process, Signal::KILL)?;
        let next = leaders.next(killed);
        after_kill.push(next.first.saturating_sub(killed));
        leaders.replace(leader.process)?;
        let told = leaders.signal(next.process, Signal::TERM)?;
        leader = leaders.next(told);
        after_end.push(leader.first.saturating_sub(told));
        leaders.replace(next.process)?;
        // It is stopped until another leads, and goes on.
        let stopped = leaders.signal(leader.process, Signal::STOP)?;
        let next = leaders.next(stopped);
        leaders.signal(leader.process, Signal::CONT)?;
        leader = next;
        thread::sleep(LEASE / 2);
    }
    let terms = leaders.end()?;
    println!("after a kill {after_kill:?}, after an end {after_end:?}, {} terms", terms.len());
    // By the machine's clock; a stall of it may come on top.
    assert!(after_kill.iter().min() < Some(&(LEASE + millis(1100))), "{after_kill:?}");
    assert!(after_end.iter().min() < Some(&millis(300)), "{after_end:?}");
    Ok(())
}

/// A tool that is killed has its command ended by its guardian. Two of them that are told to end at once exit alike, with a command or without.
fn tools() -> Outcome {
    let server = TestServer::start();
    let program = Program { lease: Duration::from_secs(3), ..TOOL };
    let mut leaders = Leaders::start(&program, &server.url())?;
    let mut leader = leaders.next(Duration::ZERO);
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL, Signal::TERM] {
        let at = leaders.signal(leader.process, signal)?;
        let next = leaders.next(at);
        println!("{:?} after {signal:?}", next.first.saturating_sub(at));
        leaders.replace(leader.process)?;
        leader = next;
    }
    // A command that ends runs again.
    server.delete(KEY);
    leaders.next(now());
    leaders.end()?;
    Ok(())
}

/// With `min-replicas-to-write 1`: a planned failover, replicas that are away for a while, and a master that is killed.
fn over_sentinels(program: &Program, away_for: Duration) -> Outcome {
    let config = "min-replicas-to-write 1\nmin-replicas-max-lag 2\nrepl-ping-replica-period 1";
    let mut failover = Failover::start_with(Duration::from_secs(1), config, "")?;
    let mut leaders = Leaders::start(program, &failover.url())?;
    leaders.next(Duration::ZERO);
    // Planned. A leader may go on, if it takes less than the lease.
    let first = failover.master();
    let () = ask(&failover.sentinels[0], cmd("SENTINEL").arg("FAILOVER").arg(testkit::failover::MASTER))?;
    let second = failover.until_other_than(first);
    leaders.leads_after(now());
    failover.rejoin(first, second)?;
    // The replicas are away, so that the lease ends: none leads until they are back.
    let away: Vec<usize> = (0..failover.servers.len()).filter(|index| *index != second).collect();
    for index in &away {
        failover.servers[*index].freeze();
    }
    thread::sleep(away_for);
    let back = now();
    for index in &away {
        failover.servers[*index].thaw();
    }
    leaders.next(back);
    // The leader and the master are killed.
    let leader = leaders.terms().pop().expect("one leads").process;
    leaders.signal(leader, Signal::KILL)?;
    let master = failover.master();
    failover.servers[master].stop();
    let killed = now();
    failover.until_other_than(master);
    let next = leaders.next(killed);
    leaders.replace(leader)?;
    thread::sleep(program.lease);
    let terms = leaders.end()?;
    println!("{} terms, the next {:?} after the kill", terms.len(), next.first.saturating_sub(killed));
    Ok(())
}

/// What the observer of a locker was told about leading.
fn observed(url: &str) -> Result<(Locker, mpsc::Receiver<String>), Error> {
    let (sender, events) = mpsc::channel();
    let told = move |event: &Event<'_>| {
        let told = match event {
            Event::LeadershipBegan { key, .. } => format!("{key} began"),
            Event::LeadershipEnded { key, .. } => format!("{key} ended"),
            Event::LeadershipFailed { key, error, .. } => format!("{key} failed: {error}"),
            Event::Lost { key, .. } => format!("{key} lost"),
            _ => return,
        };
        let _ = sender.send(told);
    };
    Ok((patient(url)?.retry_for(Duration::ZERO).observer(told).build()?, events))
}

fn whatever_fails_is_tried_again() -> Outcome {
    let server = TestServer::start();
    let (locker, events) = observed(&server.url())?;
    let lock = Lock::new(&locker, "k", LockOptions::expiring_after(LEASE))?;
    let stop = CancelToken::new();
    let (led, leads) = mpsc::channel();
    let leading = thread::spawn({
        let (lock, stop) = (lock.clone(), stop.clone());
        move || {
            lock.lead(&stop, |held| {
                let signal = held.loss_signal();
                let _ = led.send(held.key().to_string());
                while !signal.is_lost() && !stop.is_cancelled() {
                    thread::sleep(millis(5));
                    let _ = held.verify();
                }
            })
        }
    });
    assert_eq!(leads.recv_timeout(LONG)?, "k");
    // It is cleared: it is lost, and led again.
    server.delete("k");
    let next = || events.recv_timeout(LONG);
    assert_eq!([next()?, next()?, next()?], ["k began", "k lost", "k ended"]);
    leads.recv_timeout(LONG)?;
    assert_eq!(next()?, "k began");
    // The server is away, and comes back empty.
    server.stop();
    until("it has failed", || events.try_iter().any(|event| event.starts_with("k failed: ")));
    server.start_again();
    leads.recv_timeout(LONG)?;
    let began = Instant::now();
    stop.cancel();
    leading.join().unwrap()?;
    assert!(began.elapsed() < LONG);
    assert_eq!(events.try_iter().last().as_deref(), Some("k ended"));
    assert_eq!(server.get("k"), None);
    lock.lead(&stop, |_| panic!("it is cancelled"))?;
    Ok(())
}

fn what_can_never_lead_is_refused() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let stop = CancelToken::new();
    let endless = Lock::new(&locker, "k", LockOptions::without_expiration())?;
    let error = endless.lead(&stop, |_| panic!("it cannot lead")).expect_err("no expiration");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("no expiration"), "{error}");
    let lock = Lock::new(&locker, "k", expiring())?;
    let nested = lock.with(|_| lock.lead(&stop, |_| panic!("it waits for itself")))?;
    assert!(matches!(nested, Err(Error::Nested { .. })), "{nested:?}");
    Ok(())
}

fn leading_ends_with_the_locker() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    server.hold("k", LONG);
    let lock = Lock::new(&locker, "k", expiring().timeout(Duration::ZERO))?;
    let leading = thread::spawn(move || lock.lead(&CancelToken::new(), |_| panic!("another leads")));
    until("it waits", || server.names().iter().any(|name| name == "GET"));
    let _ = locker.drain(LONG);
    leading.join().unwrap()?;
    // One that leads is told to stop first.
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "led", expiring().max_attempts(1))?;
    let stop = CancelToken::new();
    let leading = thread::spawn({
        let stop = stop.clone();
        move || {
            lock.lead(&stop, |_| {
                while !stop.is_cancelled() {
                    thread::sleep(millis(5));
                }
            })
        }
    });
    until("it leads", || !locker.held().is_empty());
    assert_eq!(locker.drain(millis(30)).still_held.len(), 1, "its work does not see the drain");
    stop.cancel();
    assert!(locker.drain(LONG).still_held.is_empty());
    leading.join().unwrap()?;
    assert_eq!(server.get("led"), None);
    Ok(())
}

fn a_panic_ends_the_term_and_the_call() -> Outcome {
    let server = TestServer::start();
    let (locker, events) = observed(&server.url())?;
    let lock = Lock::new(&locker, "k", expiring())?;
    let leading = thread::spawn(move || {
        lock.lead(&CancelToken::new(), |_| std::panic::resume_unwind(Box::new("on purpose")))
    });
    assert!(leading.join().is_err());
    assert_eq!(events.try_iter().collect::<Vec<_>>(), ["k began", "k ended"]);
    assert_eq!(server.get("k"), None);
    Ok(())
}
