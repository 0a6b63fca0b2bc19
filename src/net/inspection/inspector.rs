//! Asks a server what it is and can do. Sends only commands that its version knows, and takes a refusal for an answer.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::Duration;

use redis::{Cmd, Value, cmd, from_redis_value};

use super::clock_difference::ClockDifference;
use super::report::{ServerAnswers, ServerReport};
use crate::net::connections::{Checkout as _, LockConnection, Role, ServerInfo, Source, ask};
use crate::net::errors::{Failure, Refusal, RefusalKind, TransportError};
use crate::net::limits::{Budget, Limits};
use crate::net::pooled::PooledBackend;
use crate::net::{Backend as _, Trip};
use crate::rules::{Command, Request};
use crate::values::clock::{self, Wall};
use crate::values::key::Key;
use crate::values::version::Version;

/// What inspecting a server needs.
pub(crate) trait Inspect: Send + Sync + fmt::Debug {
    /// Asks the server what it is and can do, with the help of a key that nothing else uses. The inner error is the refusal of INFO.
    fn inspect(&self, probe: &Key, limits: &Limits<'_>) -> Result<Result<ServerReport, Refusal>, Failure>;
}

impl<S: Source> PooledBackend<S> {
    /// Time for one more command, however long the inspection has taken.
    fn cleanup_limits(&self) -> Limits<'static> {
        let (now, command_timeout) = (clock::now(), self.command_timeout);
        let retry_for = command_timeout;
        Limits::within(
            Budget { deadline: Some(now.uptime.after(command_timeout)), retry_for, command_timeout },
            now,
        )
    }
}

impl<S: Source> Inspect for PooledBackend<S> {
    fn inspect(&self, probe: &Key, limits: &Limits<'_>) -> Result<Result<ServerReport, Refusal>, Failure> {
        let mut retried = false;
        loop {
            let (mut connection, _) = self.pool.checkout(limits)?;
            let report =
                Inspector::on(&mut *connection, self.command_timeout, probe).inspect(&self.pool.address());
            // Whatever was refused or lost: its next user must not find a transaction open, or a key watched.
            connection.invalidate();
            match report {
                // A connection that was closed while it was idle. Asking again changes nothing.
                Err(Failure::Lost(error)) if error.is_disconnect() && !retried => retried = true,
                Err(Failure::Lost(error)) => {
                    // The probe may have been left behind. If this fails as well, it expires, or stays.
                    let delete = Request::at_any_time(Command::Del);
                    self.send(&Trip::new(probe, &delete), &self.cleanup_limits());
                    return Err(Failure::Lost(error));
                }
                report => return report,
            }
        }
    }
}

/// What CONFIG is asked for.
const PARAMETERS: [&str; 6] =
    ["maxmemory", "maxmemory-policy", "timeout", "appendonly", "appendfsync", "save"];
/// How often the time is asked for where the server reports microseconds: the quickest answer is the most exact.
const READINGS: usize = 5;
/// How long the probe stays if this process crashes before it removes it, where the clocks are not further apart than that.
const PROBE_STAYS: Duration = Duration::from_secs(3600);
/// The last time that every old server can hold, nearly: for a clock that is further ahead of ours.
const LATEST: Wall = Wall(2_145_916_800_000_000); // 2038-01-01
/// How often a server that reports whole seconds is asked, until one begins.
const LOOK_FOR_A_SECOND: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// An answer, unless it was lost.
type Probed<T> = Result<T, TransportError>;

/// An inspection over one connection.
struct Inspector<'a, C> {
    connection: &'a mut C,
    /// For each reply.
    limit: Duration,
    /// A key that nothing else uses.
    key: &'a Key,
    refused: BTreeMap<&'static str, Refusal>,
}

impl<'a, C: LockConnection> Inspector<'a, C> {
    fn on(connection: &'a mut C, limit: Duration, key: &'a Key) -> Self {
        Self { connection, limit, key, refused: BTreeMap::new() }
    }

    /// Asks everything. The inner error is of a server that does not report its version.
    fn inspect(mut self, address: &str) -> Result<Result<ServerReport, Refusal>, Failure> {
        let info = match self.one(&cmd("INFO"))? {
            Ok(answer) => ServerInfo::parse(answer),
            Err(refusal) if refusal.is_about_the_command() => return Ok(Err(refusal)),
            Err(refusal) => return Err(Failure::Refused(refusal.of_connecting(address))),
        };
        let Some((info, version)) = info.and_then(|info| info.version().map(|version| (info, version)))
        else {
            return Ok(Err(Refusal::new("its answer to INFO names no version")));
        };
        // On a replica nothing is to be written.
        let may_write = !matches!(info.role(), Some(Role::Replica { .. }));
        if let Some(error) = info.answers_nothing_else(address).filter(|_| may_write) {
            return Err(Failure::of_connecting(error, Duration::ZERO));
        }
        let mut config = BTreeMap::new();
        if version >= Version::new(2, 0, 0) {
            for parameter in PARAMETERS {
                match self.one(cmd("CONFIG").arg("GET").arg(parameter))? {
                    Ok(answer) => config.extend(value_of(answer).map(|value| (parameter, value))),
                    Err(refusal) => _ = self.refused.entry("CONFIG").or_insert(refusal),
                }
            }
        }
        if may_write {
            self.try_commands(version)?;
        }
        let clock = if version >= Version::new(2, 6, 0) {
            self.clock_by_time()?
        } else if may_write {
            self.clock_by_ttl()?
        } else {
            None
        };
        Ok(Ok(ServerReport::from_answers(ServerAnswers {
            info,
            version,
            config,
            refused: self.refused,
            clock,
        })))
    }

    /// Tries the commands that locking sends, on a key of its own.
    fn try_commands(&mut self, version: Version) -> Probed<()> {
        let key = self.key.as_bytes();
        let del = cmd("DEL").arg(key).clone();
        self.probe("GET", cmd("GET").arg(key))?;
        // What cannot be removed is not written.
        if self.probe("DEL", &del)? {
            self.probe("SETNX", cmd("SETNX").arg(key).arg("1"))?;
            self.probe("GETSET", cmd("GETSET").arg(key).arg("1"))?;
            self.probe("SET", cmd("SET").arg(key).arg("1"))?;
            self.one(&del)?.ok();
        }
        if version >= Version::new(2, 6, 0) {
            self.probe("PTTL", cmd("PTTL").arg(key))?;
        }
        if version >= Version::new(2, 2, 0) {
            self.probe("WATCH", cmd("WATCH").arg(key))?;
            // There is nothing to discard, unless EXEC was refused.
            for name in ["MULTI", "EXEC", "DISCARD"] {
                self.probe(name, &cmd(name))?;
            }
        }
        Ok(())
    }

    /// Returns whether the command was carried out, and notes it if this user may never run it.
    fn probe(&mut self, name: &'static str, command: &Cmd) -> Probed<bool> {
        let Err(refusal) = self.one(command)? else { return Ok(true) };
        if refuses_the_command(&refusal) {
            self.refused.insert(name, refusal);
        }
        Ok(false)
    }

    fn one(&mut self, command: &Cmd) -> Probed<Result<Value, Refusal>> {
        ask(self.connection, command, self.limit)
    }

    fn clock_by_time(&mut self) -> Probed<Option<ClockDifference>> {
        let mut difference = None;
        for _ in 0..READINGS {
            let before = clock::now().wall;
            let answer = self.one(&cmd("TIME"))?;
            let after = clock::now().wall;
            let time = match answer {
                Ok(answer) => from_redis_value::<(u64, u64)>(answer).ok(),
                Err(refusal) => {
                    self.refused.insert("TIME", refusal);
                    None
                }
            };
            let Some((seconds, micros)) = time else { return Ok(None) };
            let server = Wall(seconds.saturating_mul(1_000_000).saturating_add(micros));
            note(&mut difference, ClockDifference::of(before, after, server, Duration::from_micros(1)));
        }
        Ok(difference)
    }

    /// Before 2.6 the server's clock shows in the time to live of a key with a given expiry time.
    fn clock_by_ttl(&mut self) -> Probed<Option<ClockDifference>> {
        let mut difference = None;
        for until in [clock::now().wall.after(PROBE_STAYS), LATEST] {
            let until = until.0 / 1_000_000;
            // Anew each time: before 2.2 a time that is set cannot be changed.
            let key = self.key.as_bytes();
            for (name, command) in [
                ("SET", cmd("SET").arg(key).arg("1").clone()),
                ("EXPIREAT", cmd("EXPIREAT").arg(key).arg(until).clone()),
            ] {
                if let Err(refusal) = self.one(&command)? {
                    self.refused.insert(name, refusal);
                }
            }
            let reported = !["SET", "EXPIREAT"].iter().any(|name| self.refused.contains_key(name));
            if reported {
                difference = self.await_next_second(until)?;
            }
            let _removed = self.one(cmd("DEL").arg(self.key.as_bytes()))?;
            if difference.is_some() || !reported {
                break;
            }
            // It was gone at once: that time has passed by the server's clock.
        }
        Ok(difference)
    }

    fn await_next_second(&mut self, until: u64) -> Probed<Option<ClockDifference>> {
        let mut difference = None;
        let mut first = None;
        let began = clock::uptime();
        loop {
            let before = clock::now().wall;
            let answer = self.one(cmd("TTL").arg(self.key.as_bytes()))?;
            let after = clock::now().wall;
            let left = answer.ok().and_then(|answer| from_redis_value::<i64>(answer).ok());
            let Some(left) = left.and_then(|left| u64::try_from(left).ok()) else { return Ok(difference) };
            let server = Wall(until.saturating_sub(left).saturating_mul(1_000_000));
            note(&mut difference, ClockDifference::of(before, after, server, SECOND));
            let another = *first.get_or_insert(left) != left;
            if another || clock::uptime().since(began) > SECOND * 2 {
                return Ok(difference);
            }
            thread::sleep(LOOK_FOR_A_SECOND);
        }
    }
}

/// Whether the command itself is refused, and not the key that it was tried with: a user may have been given other keys, and a
/// node of a cluster has others.
fn refuses_the_command(refusal: &Refusal) -> bool {
    let about_this_try = ["MOVED ", "ASK ", "ERR DISCARD without MULTI"];
    match refusal.kind() {
        RefusalKind::NotPermitted => !refusal.text().contains("key"),
        _ => !about_this_try.iter().any(|words| refusal.text().starts_with(words)),
    }
}

fn note(difference: &mut Option<ClockDifference>, reading: ClockDifference) {
    *difference = Some(difference.map_or(reading, |earlier| earlier.and(reading)));
}

/// The value in an answer to CONFIG GET for one parameter; nothing for one that the version does not have.
fn value_of(answer: Value) -> Option<String> {
    from_redis_value::<BTreeMap<String, String>>(answer).ok()?.into_values().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_refused_says_nothing_of_the_command() {
        let table = [
            ("ERR unknown command 'WATCH'", true),
            ("NOPERM this user has no permissions to run the 'watch' command", true),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
            ("NOPERM No permissions to access a key", false),
            ("ERR DISCARD without MULTI", false),
            ("MOVED 3999 127.0.0.1:6381", false),
            ("ERR command not allowed when used memory > 'maxmemory'", true),
            ("CLUSTERDOWN Hash slot not served", true),
        ];
        for (text, refused) in table {
            assert_eq!(refuses_the_command(&Refusal::new(text)), refused, "{text}");
        }
    }
}
