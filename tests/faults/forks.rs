//! Forked children, also those with their parent's process id: the first
//! of a new pid namespace, and one that got an id which had become free.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::parent_id;
use std::process::{self, Command, Stdio};
use std::{env, fs, thread};

use fork::{Fork, fork, waitpid};
use nix::sched::{CloneFlags, unshare};
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, MultiLock, Quorum};
use setnx_lock_testing::TestServer;

use crate::support::notified::connection;
use crate::support::processes::{TASK, TaskOutcome};
use crate::support::scenario::opened;
use crate::support::{AnyServer, LONG, Outcome, millis, trials_of};

trials_of! {
    "forks";
    a_child_has_none_of_its_parents_locks,
    a_child_in_a_new_pid_namespace_has_none_of_its_parents_locks,
    a_grandchild_with_the_old_id_has_none_of_its_grandparents_locks,
    no_two_children_write_the_same_digits,
}

/// What a child prints that can do nothing with its parent's locks, and uses a locker of its own.
const NONE: [&str; 8] = [
    "try_lock: refused",
    "verify: refused",
    "extend: refused",
    "several: refused",
    "quorum: refused",
    "held: 0",
    "release: refused",
    "its own: acquired",
];

/// What a process leaves to its child.
struct Inherited {
    locker: Locker,
    free: [&'static str; 2],
    guards: [LockGuard; 2],
}

const OPTIONS: LockOptions = LockOptions::expiring_after(LONG).auto_extend(LONG.saturating_mul(2));

impl Inherited {
    fn acquired(url: &str) -> Result<Self, Error> {
        let locker = opened(url)?;
        let acquired = |key| Lock::new(&locker, key, OPTIONS)?.lock();
        Ok(Self { guards: [acquired("a")?, acquired("b")?], free: ["free", "as well"], locker })
    }

    /// Says what a child can do with it, and with a locker of its own.
    fn print(self, url: &str) -> Result<(), Error> {
        let Self { locker, free, guards: [a, b] } = self;
        let say = |what: &str, outcome: Result<(), Error>| match outcome {
            Err(Error::Forked { .. }) => println!("{what}: refused"),
            outcome => println!("{what}: {outcome:?}"),
        };
        say("try_lock", Lock::new(&locker, free[0], OPTIONS)?.try_lock().map(drop));
        say("verify", a.verify());
        say("extend", a.extend());
        say("several", MultiLock::new(&locker, free, OPTIONS)?.try_lock().map(drop));
        say("quorum", Quorum::new([&locker], free[0], OPTIONS)?.try_lock().map(drop));
        println!("held: {}", locker.held().len());
        say("release", a.release());
        drop(b);
        drop(locker);
        let own = Lock::new(&opened(url)?, "own", OPTIONS)?.try_lock()?;
        println!("its own: {}", if own.is_some() { "acquired" } else { "held" });
        Ok(())
    }
}

/// Acquires two locks, and forks a child that says what it can do with them. Then releases them.
pub(crate) fn as_worker(url: &str, how: &str) -> TaskOutcome {
    let inherited = Inherited::acquired(url)?;
    let id = process::id();
    if how == "namespace" {
        unshare(CloneFlags::CLONE_NEWPID)?;
    }
    match fork()? {
        Fork::Parent(child) if how != "old id" => {
            waitpid(child)?;
            for guard in inherited.guards {
                guard.verify()?;
                guard.release()?;
            }
        }
        // Its id becomes free.
        Fork::Parent(_) => process::exit(0),
        Fork::Child if how == "old id" => {
            while parent_id() == id {
                thread::sleep(millis(10));
            }
            while fs::exists(format!("/proc/{id}"))? {
                thread::sleep(millis(10));
            }
            fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string())?;
            match fork()? {
                Fork::Parent(child) => _ = waitpid(child)?,
                Fork::Child => child_of(id, inherited, url, true)?,
            }
        }
        Fork::Child => child_of(id, inherited, url, how == "namespace")?,
    }
    Ok(())
}

fn child_of(parent: u32, inherited: Inherited, url: &str, has_same_id: bool) -> TaskOutcome {
    assert_eq!(process::id() == parent, has_same_id);
    Ok(inherited.print(url)?)
}

/// Starts the worker, in a pid namespace with its own processes only; `None` if this user may not.
fn worker(url: &str, how: &str) -> io::Result<Option<Command>> {
    let this = env::current_exe()?;
    let mut command = match how {
        "plain" => Command::new(this),
        // The worker is process 1, or the child of a process 1 that waits for what has ended.
        "namespace" => within_namespace(&[this.as_os_str()]),
        _ => within_namespace(&["sh".as_ref(), "-c".as_ref(), "\"$0\"; cat".as_ref(), this.as_os_str()]),
    };
    command.env(TASK, format!("forked,{url},{how}"));
    let may = how == "plain" || within_namespace(&["true".as_ref()]).status()?.success();
    Ok(may.then_some(command))
}

fn within_namespace(command: &[&OsStr]) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc"]).args(command);
    unshare
}

fn has_none(how: &str) -> Outcome {
    let server = TestServer::start();
    let Some(mut command) = worker(&server.url(), how)? else { return Ok(()) };
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
    let printed: Vec<String> = lines.take(NONE.len()).collect::<io::Result<_>>()?;
    assert_eq!(printed, NONE);
    let is_left = if how == "old id" { ":1" } else { ":0" };
    drop(process.stdin.take());
    assert!(process.wait()?.success(), "the parent's locks are as they were");
    for key in ["a", "b"] {
        assert_eq!(server.say(&["EXISTS", key])?, is_left);
    }
    Ok(())
}

fn a_child_has_none_of_its_parents_locks() -> Outcome {
    has_none("plain")
}

fn a_child_in_a_new_pid_namespace_has_none_of_its_parents_locks() -> Outcome {
    has_none("namespace")
}

/// The parent has ended, and so no keeper extends its locks: they stay for their lease.
fn a_grandchild_with_the_old_id_has_none_of_its_grandparents_locks() -> Outcome {
    has_none("old id")
}

/// Forks two children with the same id, which inherit the same state of the standard library's random numbers.
pub(crate) fn siblings(url: &str) -> TaskOutcome {
    drop(Lock::new(&opened(url)?, "first", OPTIONS)?.lock()?);
    let mut ids = BTreeSet::<i32>::new();
    for key in ["a", "b"] {
        if let Some(id) = ids.first() {
            fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string())?;
        }
        match fork()? {
            Fork::Parent(child) => {
                waitpid(child)?;
                ids.insert(child);
            }
            Fork::Child => {
                Lock::new(&opened(url)?, key, OPTIONS)?.lock()?.leave_to_expire()?;
                return Ok(());
            }
        }
    }
    assert_eq!(ids.len(), 1);
    Lock::new(&opened(url)?, "c", OPTIONS)?.lock()?.leave_to_expire()?;
    Ok(())
}

fn no_two_children_write_the_same_digits() -> Outcome {
    let server = TestServer::start();
    let Some(mut command) = worker(&server.url(), "namespace")? else { return Ok(()) };
    let ended = command.env(TASK, format!("siblings,{}", server.url())).status()?;
    assert!(ended.success());
    let mut connection = connection(&server);
    let digits = ["a", "b", "c"].map(|key| -> io::Result<String> {
        let value: String = redis::cmd("GET").arg(key).query(&mut connection).map_err(io::Error::other)?;
        let decimals = value.rsplit_once('.').map_or("", |(_, decimals)| decimals);
        Ok(decimals.get(6..16).ok_or(io::ErrorKind::InvalidData)?.to_owned())
    });
    let digits: BTreeSet<String> = digits.into_iter().collect::<io::Result<_>>()?;
    assert_eq!(digits.len(), 3, "{digits:?}");
    Ok(())
}
