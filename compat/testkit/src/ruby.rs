//! A Ruby process that locks as the gem does: `compat/ruby/peer.rb`, which reads commands from its input, one a line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, SystemTime};
use std::{env, fmt, io, iter, thread};

use setnx_lock::Version;

use crate::LONG;

/// The version of the gem that a peer locks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gem(pub &'static str);

/// 0.2.2 and before: no takeover.
pub const NO_TAKEOVER: Gem = Gem("0.2.2");
/// 0.2.3 to 1.4.1: the expiry time is the value.
pub const CLASSIC: Gem = Gem("1.4.1");
/// 1.4.2: as 1.4.3, but its release compares with a wrong time.
pub const TTL_1_4_2: Gem = Gem("1.4.2");
/// From 1.4.3 on: an empty value with a time to live.
pub const TTL: Gem = Gem("1.4.3");

/// Names the folder of a real gem. Without it the port in `compat/ruby/port` emulates every version.
const LIB: &str = "REDIS_OBJECTS_LIB";
/// Names the version of that gem.
const VERSION: &str = "REDIS_OBJECTS_VERSION";

/// A real gem, which `REDIS_OBJECTS_LIB` and `REDIS_OBJECTS_VERSION` name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealGem {
    pub version: String,
    /// The version whose tests it has to pass.
    pub family: Gem,
    /// With a timeout of 0 it tries once; gems before 1.2 do not try at all.
    tries_without_a_timeout: bool,
}

impl RealGem {
    /// Returns the gem of the environment, if that names one. A gem that the tests do not know is an error: with it
    /// they would test nothing.
    pub fn of_the_environment() -> Result<Option<Self>, String> {
        if env::var_os(LIB).is_none() {
            return Ok(None);
        }
        Self::of_version(&env::var(VERSION).unwrap_or_default()).map(Some)
    }

    pub fn of_version(version: &str) -> Result<Self, String> {
        let number = version.parse::<Version>().ok().filter(|number| *number < Version::new(2, 1, 0));
        let number = number.ok_or_else(|| {
            format!(
                "{VERSION} is {version:?}: set it to the version of the gem in {LIB}; the tests know 0.2.2 and older, 0.2.3 to 1.4.1, \
                 1.4.2, and 1.4.3 to 2.0"
            )
        })?;
        let family = match number {
            number if number < Version::new(0, 2, 3) => NO_TAKEOVER,
            number if number < Version::new(1, 4, 2) => CLASSIC,
            number if number < Version::new(1, 4, 3) => TTL_1_4_2,
            _ => TTL,
        };
        let tries_without_a_timeout = number >= Version::new(1, 2, 0);
        Ok(Self { version: version.to_owned(), family, tries_without_a_timeout })
    }
}

impl Gem {
    /// Returns the versions that the tests can run with: the port emulates every version, a real gem only its own.
    pub fn available() -> Result<Vec<Self>, String> {
        Ok(match RealGem::of_the_environment()? {
            Some(real) => vec![real.family],
            None => vec![NO_TAKEOVER, CLASSIC, TTL_1_4_2, TTL],
        })
    }

    /// Returns a command that runs a script of `compat/ruby`. A real gem keeps the version that the environment names.
    pub fn ruby(self, script: &str, url: &str) -> Command {
        if env::var_os(LIB).is_none() {
            let mut ruby = self.port(script);
            ruby.env("REDIS_URL", url);
            return ruby;
        }
        let mut ruby = Command::new("ruby");
        ruby.arg(folder().join(script)).env("REDIS_URL", url);
        ruby
    }

    /// Returns a command that runs a script of `compat/ruby` with
    /// the port, also where the environment names a real gem.
    pub fn port(self, script: &str) -> Command {
        let mut ruby = Command::new("ruby");
        ruby.args(load_path()).arg(folder().join(script)).env(VERSION, self.0).env_remove(LIB);
        ruby
    }
}

/// Returns arguments with which Ruby finds its Redis client without its package manager, whose start takes as long as
/// its own. None where that is not known: then Ruby itself says what is missing.
fn load_path() -> &'static [String] {
    static ARGUMENTS: OnceLock<Vec<String>> = OnceLock::new();
    ARGUMENTS.get_or_init(|| {
        let script = "require 'redis'; puts $LOAD_PATH";
        let output = Command::new("ruby").args(["-e", script]).output().ok();
        let Some(output) = output.filter(|output| output.status.success()) else { return Vec::new() };
        let folders = String::from_utf8_lossy(&output.stdout);
        let folders = folders.lines().map(|folder| format!("-I{folder}"));
        iter::once("--disable=gems".to_owned()).chain(folders).collect()
    })
}

impl fmt::Display for Gem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruby")
}

/// The outcome of an attempt to acquire a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Held,
    Timeout(String),
}

/// A running peer. Killed when dropped.
#[derive(Debug)]
pub struct RubyPeer {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl RubyPeer {
    pub fn start(gem: Gem, url: &str) -> io::Result<Self> {
        let mut ruby = gem.ruby("peer.rb", url);
        ruby.arg("serve");
        Self::begin(ruby)
    }

    fn begin(mut ruby: Command) -> io::Result<Self> {
        let mut process = ruby.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(explained)?;
        let input = process.stdin.take().expect("it is piped");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut peer = Self { process, input, lines };
        assert_eq!(peer.line()?, "ready");
        Ok(peer)
    }

    /// Acquires a lock, or waits for it up to `timeout` as the gem waits.
    pub fn acquire(
        &mut self,
        key: &str,
        expiration: Option<Duration>,
        timeout: Duration,
    ) -> io::Result<Attempt> {
        self.begin_to_acquire(key, expiration, timeout)?;
        self.outcome(key)
    }

    /// Acquires a lock that is free, under a name of its own, so that one process can hold a key and contend for it.
    pub fn acquire_as(&mut self, name: &str, key: &str, expiration: Option<Duration>) -> io::Result<Attempt> {
        self.send_take(name, key, expiration, LONG)?;
        self.outcome(name)
    }

    /// Tries to acquire a lock under a name of its own: once, or with a gem that cannot, a few times.
    pub fn try_as(&mut self, name: &str, key: &str, expiration: Option<Duration>) -> io::Result<Attempt> {
        let real = RealGem::of_the_environment().map_err(io::Error::other)?;
        let once = real.is_none_or(|real| real.tries_without_a_timeout);
        let timeout = if once { Duration::ZERO } else { Duration::from_millis(250) };
        self.send_take(name, key, expiration, timeout)?;
        self.outcome(name)
    }

    /// Makes the peer begin to acquire a lock, and does not wait for the outcome.
    pub fn begin_to_acquire(
        &mut self,
        key: &str,
        expiration: Option<Duration>,
        timeout: Duration,
    ) -> io::Result<()> {
        self.send_take(key, key, expiration, timeout)
    }

    fn send_take(
        &mut self,
        name: &str,
        key: &str,
        expiration: Option<Duration>,
        timeout: Duration,
    ) -> io::Result<()> {
        let expiration = expiration.map_or("-".to_owned(), |expiration| expiration.as_secs_f64().to_string());
        self.send(&format!("take {name} {key} {expiration} {}", timeout.as_secs_f64()))
    }

    /// Waits for the outcome.
    pub fn outcome(&mut self, name: &str) -> io::Result<Attempt> {
        let line = self.line()?;
        match line.split_once(&format!(" {name}")) {
            Some(("held", _)) => Ok(Attempt::Held),
            Some(("timeout", text)) => Ok(Attempt::Timeout(text.trim_start().to_owned())),
            _ => Err(io::Error::other(format!("the peer printed: {line}"))),
        }
    }

    /// Releases a lock as the gem does at the end of a block: by the key, or by the name of [`try_as`](Self::try_as).
    pub fn release(&mut self, name: &str) -> io::Result<()> {
        self.send(&format!("give {name}"))?;
        assert_eq!(self.line()?, format!("given {name}"));
        Ok(())
    }

    /// Kills the process, without a release of its locks.
    pub fn kill(mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")
    }

    fn line(&mut self) -> io::Result<String> {
        self.lines
            .recv_timeout(LONG)
            .map_err(|error| io::Error::other(format!("the peer prints nothing: {error}")))
    }
}

impl Drop for RubyPeer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What came of a crash that several Ruby processes waited for.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// How many held the lock at once, at most.
    pub inside: usize,
    /// How many asked for it within 10 ms of the first that got it, that one included.
    pub contended: usize,
}

/// Ruby processes that wait for one lock all at once, time and again. Killed when dropped.
#[derive(Debug)]
pub struct RubyCrowd(RubyPeer);

impl RubyCrowd {
    /// Their clocks are `ahead`.
    pub fn start(
        gem: Gem,
        url: &str,
        processes: usize,
        key: &str,
        expiration: Duration,
        ahead: Duration,
    ) -> io::Result<Self> {
        let mut ruby = gem.ruby("peer.rb", url);
        ruby.args(["crowd", &processes.to_string(), key]);
        ruby.args([expiration, ahead].map(|time| time.as_secs_f64().to_string()));
        RubyPeer::begin(ruby).map(Self)
    }

    /// Has all of them begin to wait at this time. Returns when each has had the lock.
    pub fn round(&mut self, begin: SystemTime) -> io::Result<Round> {
        let begin = begin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.0.send(&begin.as_secs_f64().to_string())?;
        let line = self.0.line()?;
        let number =
            |text: &str| text.parse().map_err(|_| io::Error::other(format!("the crowd printed: {line}")));
        let (inside, contended) = line.split_once(' ').unwrap_or((&line, ""));
        Ok(Round { inside: number(inside)?, contended: number(contended)? })
    }
}

pub fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::new(io::ErrorKind::NotFound, "ruby is not installed; `make setup` installs it")
        }
        _ => error,
    }
}
