//! A Ruby process that locks as the gem does: `compat/ruby/peer.rb`, told what to do line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use std::{env, fmt, io, thread};

use super::LONG;

/// Which gem a peer locks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gem(pub(crate) &'static str);

/// 0.2.2 and before: no takeover.
pub(crate) const PLAIN: Gem = Gem("0.2.2");
/// 0.2.3 to 1.4.1: the expiry time is the value.
pub(crate) const CLASSIC: Gem = Gem("1.4.1");
/// 1.4.2, whose release looks at a wrong time.
pub(crate) const TIME_TO_LIVE_AT_FIRST: Gem = Gem("1.4.2");
/// 1.4.3 on: an empty value with a time to live.
pub(crate) const TIME_TO_LIVE: Gem = Gem("1.4.3");

/// Names the folder of a real gem; the port plays all versions otherwise.
const LIB: &str = "REDIS_OBJECTS_LIB";

impl Gem {
    /// Whether the tests can run with this version: the port plays them all, a real gem is only what it is.
    pub(crate) fn is_there(self) -> bool {
        env::var_os(LIB).is_none() || env::var("REDIS_OBJECTS_VERSION").is_ok_and(|version| version == self.0)
    }

    /// Returns a Ruby command on a script in `compat/ruby`.
    pub(crate) fn ruby(self, script: &str, url: &str) -> Command {
        let mut ruby = Command::new("ruby");
        ruby.arg(folder().join(script)).env("REDIS_OBJECTS_VERSION", self.0).env("REDIS_URL", url);
        ruby
    }
}

impl fmt::Display for Gem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat/ruby")
}

/// What came of trying to take a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Held,
    Timeout(String),
}

/// A running peer. Killed when dropped.
#[derive(Debug)]
pub(crate) struct RubyPeer {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl RubyPeer {
    pub(crate) fn start(gem: Gem, url: &str) -> io::Result<Self> {
        let mut process = gem
            .ruby("peer.rb", url)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(explained)?;
        let input = process.stdin.take().expect("it is piped");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut peer = Self { process, input, lines };
        assert_eq!(peer.line()?, "ready");
        Ok(peer)
    }

    /// Takes a lock; waits up to `timeout`, as the gem waits.
    pub(crate) fn take(
        &mut self,
        key: &str,
        expiration: Option<Duration>,
        timeout: Duration,
    ) -> io::Result<Taken> {
        self.begin_to_take(key, expiration, timeout)?;
        self.taken(key)
    }

    /// Tries once to take a lock, under a name of its own: so one process can be the holder of a key and contend for it.
    pub(crate) fn try_as(
        &mut self,
        name: &str,
        key: &str,
        expiration: Option<Duration>,
    ) -> io::Result<Taken> {
        // The port takes a timeout of zero for one try, and so do gems from 1.0 on; earlier ones for none at all.
        let timeout = if env::var_os(LIB).is_some() { Duration::from_millis(50) } else { Duration::ZERO };
        self.send_take(name, key, expiration, timeout)?;
        self.taken(name)
    }

    /// Lets the peer try, while something else goes on.
    pub(crate) fn begin_to_take(
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
        self.tell(&format!("take {name} {key} {expiration} {}", timeout.as_secs_f64()))
    }

    /// Waits for what came of it.
    pub(crate) fn taken(&mut self, name: &str) -> io::Result<Taken> {
        let line = self.line()?;
        match line.split_once(&format!(" {name}")) {
            Some(("held", _)) => Ok(Taken::Held),
            Some(("timeout", text)) => Ok(Taken::Timeout(text.trim_start().to_owned())),
            _ => Err(io::Error::other(format!("the peer said: {line}"))),
        }
    }

    /// Gives a lock back, as the gem does at the end of a block: by the key, or the name that it was taken under.
    pub(crate) fn give(&mut self, name: &str) -> io::Result<()> {
        self.tell(&format!("give {name}"))?;
        assert_eq!(self.line()?, format!("given {name}"));
        Ok(())
    }

    /// Kills it, with whatever it holds.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")
    }

    fn line(&mut self) -> io::Result<String> {
        self.lines
            .recv_timeout(LONG)
            .map_err(|error| io::Error::other(format!("the peer says nothing: {error}")))
    }
}

impl Drop for RubyPeer {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::new(io::ErrorKind::NotFound, "ruby is not installed; `make setup` installs it")
        }
        _ => error,
    }
}
