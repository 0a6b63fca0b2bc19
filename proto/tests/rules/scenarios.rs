//! Runs the scenarios in `tests/scripts/*.txt` on the pure rules: several clients, one key,
//! one simulated server, every interleaving written out by hand. A scenario states what each
//! client does next, so a change of the rules shows as a changed scenario. `BLESS=1 cargo test
//! scenarios` writes the present outcomes into the files, for a person to read the difference.
//!
//! A line is an event and, after `=>`, its outcome:
//!
//! | event | meaning |
//! |---|---|
//! | `client ann 10s timeout 5s` | declares a client: its expiration (or `unexpiring`), its timeout (or `forever`), `watched`, `ttl`, `auto`, `named web:7`, `every 50ms` |
//! | `key is until -2s` | sets the key: `absent`, `until ±T` from now, `holding TEXT`, or `as before` the last write |
//! | `ann starts`, `ann wakes`, `ann releases` | the client starts, goes on after its sleep, releases the lock |
//! | `bob starts behind ann` | starts with what ann saw last, as if it had looked when ann did |
//! | `ann is notified` | goes on at the hint that the lock was released, before its sleep is over |
//! | `ann hands over to bob` | replaces its value by one of bob, which sleeps; if bob has left by then, ann releases its lease |
//! | `ann extends`, `ann extends for 30s` | replaces its lease by one that begins now, of its own expiration or of the given one |
//! | `ann makes a token`, `bob resumes ann's token` | ends its hold for another process; goes on with it, any number of times |
//! | `ann verifies`, `ann counts` | asks whether it still holds the lock; asks for a fencing token |
//! | `ann is served` | the server carries out its command and the reply arrives |
//! | `ann is executed`, `ann is answered` | the same in two steps |
//! | `ann is refused`, `ann is refused for now` | the server refuses the command to this user; it refuses for another reason |
//! | `ann finds no memory`, `ann finds no lock` | the server refuses, since it is full; since the key holds a list, say |
//! | `ann finds Redis 2.0.4` | nothing was sent, since the server is that version, too old for it |
//! | `ann's request is lost`, `ann's reply is lost` | an I/O error before or after the server carried it out |
//! | `ann has no connection` | nothing was sent |
//! | `ann has a connection too late` | nothing was sent, since the time limit of the command had passed |
//! | `ann's request arrives late` | the first of its lost requests is carried out after all, without a reply |
//! | `server is 2.0.5` | the version that connections report from now on, or `unknown`; 2.4.18 at first |
//! | `time +2s`, `ann's clock +3s` | moves both clocks of all clients; sets one client's wall clock |
//! | `the key` | shows what the key holds |

mod client;
mod holder;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use client::Client;
use setnx_lock_proto::acquire::{Attempt, Params, acquire};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::{Rules, Task};
use setnx_lock_proto::values::{Now, Protocol, State, Uptime, Version, Wall};
use setnx_lock_proto::{Cue, Observation, Reply, Step, WhyRefused};
use setnx_lock_search::simulated::{Leg, Next, Server};
use words::{possessor, relative, shifted, signed, time};

/// When all scenarios begin: 2026-11-18, a round number of seconds.
const BEGINNING: Wall = Wall(1_795_000_000_000_000);

/// How late a command is carried out at most whose caller still waits for it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// The monotonic clock then.
const START: Duration = Duration::from_secs(100);

#[test]
fn every_scenario_has_its_written_outcomes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scripts");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the scenarios are missing from {}", folder.display());
    let mut differences = String::new();
    for file in files {
        let expected = fs::read_to_string(&file).unwrap();
        let actual =
            Interpreter::run(&expected).unwrap_or_else(|problem| panic!("{}: {problem}", file.display()));
        if env::var_os("BLESS").is_some() {
            fs::write(&file, &actual).unwrap();
        } else if expected != actual {
            writeln!(differences, "{}", file.display()).unwrap();
            let lines = expected.lines().zip(actual.lines()).enumerate();
            for (n, (expected, actual)) in lines.filter(|(_, (expected, actual))| expected != actual) {
                writeln!(differences, "  line {}\n    expected: {expected}\n    actual:   {actual}", n + 1)
                    .unwrap();
            }
        }
    }
    assert!(differences.is_empty(), "outcomes differ:\n{differences}");
}

/// The state of a scenario: the server, the clients and the time.
struct Interpreter {
    server: Server,
    version: Option<Version>,
    elapsed: Duration,
    clients: BTreeMap<String, Client>,
    declared: u64,
}

/// More values than one client writes.
const MANY: u64 = 1_000_000;

/// Begins an attempt.
fn stepped(params: Params, cue: Cue, now: Now) -> (Task<Lease>, Step<Lease>) {
    Task::begin(now, async move |io| acquire(io, &mut Attempt::new(params), cue).await)
}

type ScriptResult<T> = Result<T, String>;

impl Interpreter {
    /// Runs a script. Returns it with the outcomes as they are.
    fn run(script: &str) -> ScriptResult<String> {
        let mut interpreter = Interpreter {
            server: Server::default(),
            version: Some(Version::new(2, 4, 18)),
            elapsed: START,
            clients: BTreeMap::new(),
            declared: 0,
        };
        let mut transcript = String::new();
        for (n, line) in script.lines().enumerate() {
            let event = line.split("=>").next().unwrap_or_default().trim();
            if event.is_empty() || event.starts_with('#') {
                writeln!(transcript, "{}", line.trim_end()).unwrap();
                continue;
            }
            let words: Vec<&str> = event.split_whitespace().collect();
            let outcome =
                interpreter.event(&words).map_err(|problem| format!("line {}: {event}: {problem}", n + 1))?;
            match outcome {
                Some(outcome) => writeln!(transcript, "{event:<32} => {outcome}").unwrap(),
                None => writeln!(transcript, "{event}").unwrap(),
            }
        }
        Ok(transcript)
    }

    fn event(&mut self, words: &[&str]) -> ScriptResult<Option<String>> {
        match words {
            ["client", name, words @ ..] => {
                self.declared += 1;
                let client = Client::declared(self.declared, words)?;
                self.clients.insert((*name).to_owned(), client);
                Ok(None)
            }
            ["key", "is", what @ ..] => self.key_is(what),
            ["server", "is", version] => {
                self.version = version.parse().ok();
                Ok(None)
            }
            ["the", "key"] => Ok(Some(self.described())),
            ["time", step] => {
                self.elapsed +=
                    Duration::from_micros(signed(step)?.try_into().map_err(|_| "time only moves forward")?);
                Ok(None)
            }
            [name, "clock", step] => {
                let step = signed(step)?;
                self.client(possessor(name)?)?.skew += step;
                Ok(None)
            }
            [name, "starts"] => self.starts(name, Cue::Ask).map(Some),
            [name, "starts", "behind", other] => {
                let observation = self.client(other)?.observation.clone().ok_or("it has seen nothing")?;
                self.starts(name, Cue::Behind(observation)).map(Some)
            }
            [name, "wakes"] => self.wakes(name, Cue::Look(None)).map(Some),
            [name, "is", "notified"] => self.wakes(name, Cue::Ask).map(Some),
            [name, "hands", "over", "to", other] => self.hands_over(name, other).map(Some),
            [name, "extends"] => {
                let expiration = self.client(name)?.terms.expiration.ok_or("it has no expiration")?;
                self.extends(name, expiration).map(Some)
            }
            [name, "extends", "for", expiration] => self.extends(name, time(expiration)?).map(Some),
            [name, "verifies"] => self.verifies(name).map(Some),
            [name, "counts"] => self.counts(name).map(Some),
            [name, "makes", "a", "token"] => self.makes_a_token(name).map(Some),
            [name, "resumes", giver, "token"] => self.resumes(name, possessor(giver)?).map(Some),
            [name, "tries", "again"] => self.tries_again(name).map(Some),
            [name, "releases"] => self.releases(name).map(Some),
            [name, "is", "served"] => {
                self.execute(name)?;
                self.deliver_reply(name).map(Some)
            }
            [name, "is", "executed"] => self.execute(name).map(|()| None),
            [name, "is", "answered"] => self.deliver_reply(name).map(Some),
            [name, "finds", "no", "lock"] => self.deliver(name, Reply::Refused(WhyRefused::NoLock)).map(Some),
            [name, "finds", "no", "memory"] => {
                self.deliver(name, Reply::Refused(WhyRefused::OverMemory)).map(Some)
            }
            [name, "finds", "Redis", version] => {
                let has = Protocol::Auto.on(Some(version.parse().map_err(|_| "that is no version")?));
                self.deliver(name, Reply::Refused(WhyRefused::TooOld(has))).map(Some)
            }
            [name, "is", "refused", how @ ..] => {
                let why = if how.is_empty() { WhyRefused::Command } else { WhyRefused::ForNow };
                self.deliver(name, Reply::Refused(why)).map(Some)
            }
            [name, "is", "told", "of", "a", "replica"] => {
                self.deliver(name, Reply::Refused(WhyRefused::ReadOnly)).map(Some)
            }
            [name, "has", "a", "connection", "too", "late"] => self.too_late(name).map(Some),
            [name, "has", "no", "connection"] => self.deliver(name, Reply::Unsent).map(Some),
            [name, "request", "is", "lost"] => {
                let client = self.client(possessor(name)?)?;
                client.lost.extend(client.sent.clone());
                self.deliver(possessor(name)?, Reply::Lost).map(Some)
            }
            [name, "request", "arrives", "late"] => {
                let mut leg =
                    self.client(possessor(name)?)?.lost.pop_front().ok_or("it has lost no request")?;
                self.server.carry_out(self.elapsed, &mut leg);
                Ok(None)
            }
            [name, "reply", "is", "lost"] => {
                if self.client(possessor(name)?)?.reply.is_none() {
                    self.execute(possessor(name)?)?;
                }
                self.client(possessor(name)?)?.reply = None;
                self.deliver(possessor(name)?, Reply::Lost).map(Some)
            }
            _ => Err("no such event".into()),
        }
    }

    fn key_is(&mut self, what: &[&str]) -> ScriptResult<Option<String>> {
        match what {
            ["absent"] => self.set_key(None),
            ["as", "before"] => {
                self.server.go_back();
                Ok(None)
            }
            ["touched"] => {
                self.server.touch();
                Ok(None)
            }
            ["until", offset] => {
                let until = shifted(self.wall(0), signed(offset)?);
                self.set_key(Some(format!("{}.{:06}", until.0 / 1_000_000, until.0 % 1_000_000).into_bytes()))
            }
            ["holding", text @ ..] => self.set_key(Some(text.join(" ").trim_matches('"').into())),
            _ => Err("no such event".into()),
        }
    }

    fn set_key(&mut self, value: Option<Vec<u8>>) -> ScriptResult<Option<String>> {
        self.server.set(value);
        Ok(None)
    }

    fn client(&mut self, name: &str) -> ScriptResult<&mut Client> {
        self.clients.get_mut(name).ok_or_else(|| format!("there is no client {name}"))
    }

    fn wall(&self, skew: i64) -> Wall {
        shifted(BEGINNING.after(self.elapsed.saturating_sub(START)), skew)
    }

    fn now(&mut self, name: &str) -> ScriptResult<Now> {
        let skew = self.client(name)?.skew;
        Ok(Now { wall: self.wall(skew), uptime: Uptime::of(self.elapsed) })
    }

    fn starts(&mut self, name: &str, cue: Cue) -> ScriptResult<String> {
        let (now, server) = (self.now(name)?, self.version);
        let client = self.client(name)?;
        let params = Params {
            terms: client.terms,
            protocol: client.protocol_on(server),
            deadline: client.timeout.map(|timeout| now.uptime.after(timeout)),
            retry_for: Duration::from_secs(5),
            tag: client.tag(client.number * MANY),
        };
        let (attempt, step) = stepped(params, cue, now);
        client.attempt = Some(attempt);
        client.asleep = false;
        client.values.clear();
        Ok(client.shown(step))
    }

    fn wakes(&mut self, name: &str, cue: Cue) -> ScriptResult<String> {
        if !std::mem::take(&mut self.client(name)?.asleep) {
            return Err("it is not asleep".into());
        }
        let now = self.now(name)?;
        let client = self.client(name)?;
        let step = client.attempt.as_mut().ok_or("it has no attempt")?.wake(cue, now);
        Ok(client.shown(step))
    }

    fn too_late(&mut self, name: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let before = self.client(name)?.sent.as_ref().and_then(Leg::before);
        if !before.is_some_and(|end| end.has_passed(now)) {
            return Err("it may still be sent".into());
        }
        self.deliver(name, Reply::TooLate)
    }

    fn execute(&mut self, name: &str) -> ScriptResult<()> {
        let mut leg = self.client(name)?.sent.take().ok_or("it has sent nothing")?;
        let reply = self.server.carry_out(self.elapsed, &mut leg);
        let client = self.client(name)?;
        (client.reply, client.sent) = (Some(reply), Some(leg));
        Ok(())
    }

    fn deliver_reply(&mut self, name: &str) -> ScriptResult<String> {
        let reply = self.client(name)?.reply.take().ok_or("there is no reply to it")?;
        self.deliver(name, reply)
    }

    /// Hands a reply to the rules that the client follows, unless the trip has another step.
    fn deliver(&mut self, name: &str, reply: Reply) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        let leg = client.sent.take().ok_or("it has sent nothing")?;
        if matches!(reply, Reply::Executed(None) | Reply::TooLate) {
            // Its value was not written.
            client.values.pop();
        }
        let looked = matches!(reply, Reply::Bulk(_));
        let replies = match leg.answered(reply) {
            Next::Leg(leg) => return Ok(client.takes(leg)),
            Next::End(replies) => replies,
        };
        if let Some(releasing) = &mut client.releasing {
            let step = releasing.resume(replies, now);
            return Ok(client.shown_release(step, now));
        }
        if let Some((task, _)) = &mut client.handing_over {
            let step = task.resume(replies, now);
            return self.shows_hand_over(name, step);
        }
        if let Some(extending) = &mut client.extending {
            let step = extending.resume(replies, now);
            return Ok(client.shown_extension(step, now));
        }
        if let Some(verifying) = &mut client.verifying {
            let step = verifying.resume(replies, now);
            return Ok(client.shown_verification(step, now));
        }
        if let Some(settling) = &mut client.settling {
            let step = settling.resume(replies, now);
            return Ok(client.shown_settled(step, now));
        }
        if let Some(counting) = &mut client.counting {
            let step = counting.resume(replies, now);
            return Ok(client.shown_token(step));
        }
        let attempt = client.attempt.as_mut().ok_or("it has no attempt")?;
        let step = attempt.resume(replies, now);
        if let (Step::Sleep(pause), true) = (&step, looked) {
            client.observation = Some(Observation { seen: pause.seen.clone(), at: now.uptime });
        }
        Ok(client.shown(step))
    }

    /// The key's value, with the name of the client that wrote it.
    fn described(&mut self) -> String {
        let elapsed = self.elapsed;
        let Some(value) = self.server.value(elapsed).map(<[u8]>::to_vec) else { return "absent".into() };
        // The last ten digits are MANY times the client's number, plus one for each value that it has written.
        let digits = |text: &[u8]| str::from_utf8(text.get(17..27)?).ok()?.parse::<u64>().ok();
        let number = digits(&value).map(|digits| digits / MANY);
        let writer = self
            .clients
            .iter()
            .find(|(_, client)| client.terms.expiration.is_some() && Some(client.number) == number);
        let state = match State::of_value(Some(&value)) {
            State::Until { until, holder } => {
                let left = i128::from(until.0) - i128::from(self.wall(0).0);
                let held = holder.map(|holder| format!(", named {}", holder.name));
                format!("until {}{}", relative(left), held.unwrap_or_default())
            }
            state => format!("{state:?}"),
        };
        let ttl =
            self.server.time_to_live(elapsed).map(|ttl| format!(", for {ttl:?} more")).unwrap_or_default();
        writer.map_or(state.clone(), |(name, _)| format!("{name}'s, {state}")) + &ttl
    }
}
