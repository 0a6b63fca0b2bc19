//! Asks a server what it is and can do. Sends only commands that its version knows, and takes a refusal for an answer.

use std::collections::BTreeMap;
use std::mem;
use std::process;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use setnx_lock::redis::{Cmd, Value, cmd, from_redis_value};
use setnx_lock::{Refusal, RefusalKind};

use super::clock_difference::ClockDifference;
use super::report::{Answers, ServerReport};
use crate::arguments::Condition;
use crate::failure::Failure;
use crate::raw::Raw;
use crate::server::Target;

/// The parameters of CONFIG GET.
const PARAMETERS: [&str; 9] = [
    "maxmemory",
    "maxmemory-policy",
    "timeout",
    "appendonly",
    "appendfsync",
    "save",
    // Its name before Redis 5, which later ones know too.
    "min-slaves-to-write",
    "repl-diskless-sync",
    "repl-diskless-sync-delay",
];
/// How often TIME is sent: the quickest reply is the most exact.
const READINGS: usize = 5;
/// How long the probe stays if this process crashes before it
/// removes it, unless the clocks are further apart than that.
const PROBE_STAYS: Duration = Duration::from_secs(3600);
/// The last time that every old server can hold, nearly: for a clock that is further ahead of ours.
const LATEST: Duration = Duration::from_secs(2_145_916_800); // 2038-01-01
/// How often a server that reports whole seconds is asked, until one begins.
const LOOK_FOR_A_SECOND: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

/// Inspects the server with the help of a key that nothing else uses, and removes it.
pub(super) fn inspect(target: &Target) -> Result<ServerReport, Failure> {
    let name = format!("setnx-lock:probe:{}:{}", process::id(), since_1970().as_nanos());
    let probe = target.key(&name.into());
    let probe = probe.as_bytes();
    let raw = &mut target.connect()?;
    let by_sentinel = target.is_by_sentinel();
    let mut inspector = Inspector {
        raw,
        probe,
        answers: Answers { ours: since_1970(), ..Answers::default() },
        by_sentinel,
        writes: false,
    };
    let report = inspector.inspect();
    if report.is_err() && inspector.writes {
        // The reply may have been lost after the probe was written.
        let _ = target.connect().and_then(|mut raw| raw.ask::<Value>(cmd("DEL").arg(probe)));
    }
    report
}

struct Inspector<'a> {
    raw: &'a mut Raw,
    probe: &'a [u8],
    answers: Answers,
    /// True if Sentinels have named the server.
    by_sentinel: bool,
    /// True once the probe may have been written: it can be removed.
    writes: bool,
}

impl Inspector<'_> {
    fn inspect(&mut self) -> Result<ServerReport, Failure> {
        let Some(version) = self.raw.reported_version() else {
            return Err(self.without_info());
        };
        if self.raw.is_since(2, 0) {
            for parameter in PARAMETERS {
                match self.one(cmd("CONFIG").arg("GET").arg(parameter))? {
                    Ok(answer) => {
                        let value = value_of(answer).map(|value| (parameter, value));
                        self.answers.config.extend(value);
                    }
                    Err(refusal) => _ = self.answers.refused.entry("CONFIG").or_insert(refusal),
                }
            }
        }
        self.answers.by_sentinel = self.by_sentinel;
        if self.raw.is_in_a_cluster()
            && let Err(refusal) = self.one(cmd("CLUSTER").arg("INFO"))?
        {
            self.answers.refused.insert("CLUSTER INFO", refusal);
        }
        // A replica is only read.
        if !self.raw.is_replica() {
            self.try_commands()?;
        }
        if self.raw.is_since(2, 6) {
            self.read_clock_by_time()?;
        } else if self.writes {
            self.read_clock_by_ttl()?;
        }
        Ok(ServerReport::of(version, self.raw.info(), mem::take(&mut self.answers)))
    }

    /// Why a server reports no version.
    fn without_info(&mut self) -> Failure {
        let text = match self.raw.carry(&cmd("INFO").get_packed_command()) {
            Ok(Value::ServerError(error)) => {
                let refusal = Refusal::from(error);
                format!("the server refused INFO: {}; permit INFO to this user", refusal.text())
            }
            Ok(_) => "the reply to INFO names no version of Redis".into(),
            Err(error) if error.is_connection_dropped() => {
                "connections are closed on INFO, as a proxy does; give the address of the server itself"
                    .into()
            }
            Err(error) => return error.into(),
        };
        Failure::of(Condition::Refused, text)
    }

    /// Tries the commands that locks send, on the probe.
    fn try_commands(&mut self) -> Result<(), Failure> {
        let key = self.probe;
        let del = cmd("DEL").arg(key).clone();
        self.probe("GET", cmd("GET").arg(key))?;
        // A key that cannot be removed is not written.
        if self.probe("DEL", &del)? {
            self.writes = true;
            self.probe("SETNX", cmd("SETNX").arg(key).arg("1"))?;
            self.probe("GETSET", cmd("GETSET").arg(key).arg("1"))?;
            self.probe("SET", cmd("SET").arg(key).arg("1"))?;
            self.one(&del)?.ok();
        }
        if self.raw.is_since(2, 6) {
            self.probe("PTTL", cmd("PTTL").arg(key))?;
        }
        if self.raw.is_since(2, 2) {
            self.probe("WATCH", cmd("WATCH").arg(key))?;
            // There is nothing to discard, unless EXEC was refused.
            for name in ["MULTI", "EXEC", "DISCARD"] {
                self.probe(name, &cmd(name))?;
            }
        }
        Ok(())
    }

    /// Returns true if the command was carried out, and notes it if this user may never run it.
    fn probe(&mut self, name: &'static str, command: &Cmd) -> Result<bool, Failure> {
        let Err(refusal) = self.one(command)? else { return Ok(true) };
        if refuses_the_command(&refusal) {
            self.answers.refused.insert(name, refusal);
        }
        Ok(false)
    }

    fn one(&mut self, command: &Cmd) -> Result<Result<Value, Refusal>, Failure> {
        Ok(match self.raw.carry(&command.get_packed_command())? {
            Value::ServerError(error) => Err(Refusal::from(error)),
            reply => Ok(reply),
        })
    }

    fn read_clock_by_time(&mut self) -> Result<(), Failure> {
        for _ in 0..READINGS {
            let before = since_1970();
            let answer = self.one(&cmd("TIME"))?;
            let after = since_1970();
            match answer.map(|answer| from_redis_value::<(u64, u32)>(answer).ok()) {
                Ok(Some((seconds, micros))) => {
                    let server =
                        Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros.into()));
                    self.note(ClockDifference::of(before, after, server, Duration::from_micros(1)));
                }
                Ok(None) => break,
                Err(refusal) => {
                    self.answers.refused.insert("TIME", refusal);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Before 2.6 the server's clock shows in the time to live of a key with a given expiry time.
    fn read_clock_by_ttl(&mut self) -> Result<(), Failure> {
        for until in [since_1970() + PROBE_STAYS, LATEST] {
            let until = until.as_secs();
            // Anew each time: before 2.2 a time that is set cannot be changed.
            let key = self.probe;
            for (name, command) in [
                ("SET", cmd("SET").arg(key).arg("1").clone()),
                ("EXPIREAT", cmd("EXPIREAT").arg(key).arg(until).clone()),
            ] {
                if let Err(refusal) = self.one(&command)? {
                    self.answers.refused.insert(name, refusal);
                }
            }
            let is_set = !["SET", "EXPIREAT"].iter().any(|name| self.answers.refused.contains_key(name));
            if is_set {
                self.await_next_second(until)?;
            }
            self.one(cmd("DEL").arg(key))?.ok();
            // Without a reading the probe was gone at once: that time has passed by the server's clock.
            if self.answers.clock.is_some() || !is_set {
                break;
            }
        }
        Ok(())
    }

    fn await_next_second(&mut self, until: u64) -> Result<(), Failure> {
        let mut first = None;
        let began = Instant::now();
        loop {
            let before = since_1970();
            let answer = self.one(cmd("TTL").arg(self.probe))?;
            let after = since_1970();
            let left = answer.ok().and_then(|answer| from_redis_value::<i64>(answer).ok());
            let Some(left) = left.and_then(|left| u64::try_from(left).ok()) else { return Ok(()) };
            let server = Duration::from_secs(until.saturating_sub(left));
            self.note(ClockDifference::of(before, after, server, SECOND));
            if *first.get_or_insert(left) != left || began.elapsed() > SECOND * 2 {
                return Ok(());
            }
            thread::sleep(LOOK_FOR_A_SECOND);
        }
    }

    fn note(&mut self, reading: ClockDifference) {
        let earlier = self.answers.clock;
        self.answers.clock = Some(earlier.map_or(reading, |earlier| earlier.and(reading)));
    }
}

/// Returns true if the command itself is refused, and not the key that it was tried with: a user may have been given
/// other keys, and a node of a cluster has others.
fn refuses_the_command(refusal: &Refusal) -> bool {
    match refusal.kind() {
        RefusalKind::NotPermitted => !refusal.text().contains("key"),
        RefusalKind::OtherNode => false,
        _ => !refusal.text().starts_with("ERR DISCARD without MULTI"),
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The value in a reply to CONFIG GET for one parameter; `None` for a parameter that the version does not have.
fn value_of(answer: Value) -> Option<String> {
    from_redis_value::<BTreeMap<String, String>>(answer).ok()?.into_values().next()
}

#[cfg(test)]
mod tests {
    use super::super::tests::refusal;
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
            assert_eq!(refuses_the_command(&refusal(text)), refused, "{text}");
        }
    }
}
