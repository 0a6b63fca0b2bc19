//! Who takes whose lock: every kind of lock, of the gem and of ours, against every other that holds the key and is alive. The
//! gem's stealing is asserted as what it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use libtest_mimic::Trial;
use setnx_lock::{LockGuard, LockOptions, Protocol};

use crate::support::ruby::{CLASSIC, Gem, PLAIN, RubyPeer, TIME_TO_LIVE, TIME_TO_LIVE_AT_FIRST, Taken};
use crate::support::{Outcome, RedisServer, Target, TestKey};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("matrix", crate::support::tests![every_holder_against_every_contender])
}

const EXPIRATION: Duration = Duration::from_secs(15);

/// A little less than the gem's time to live where no expiration is given; a cell that took as long is tried again.
const SHORTEST_HOLD: Duration = Duration::from_millis(900);

#[derive(Clone, Copy, Debug)]
enum Locker {
    Gem(Gem, Option<Duration>),
    Ours(Protocol, Option<Duration>),
    Stealing,
}

/// The rows and columns, with the names that they have in the table.
const LOCKERS: [(&str, Locker); 12] = [
    ("≤ 0.2.2", Locker::Gem(PLAIN, Some(EXPIRATION))),
    ("1.4.1", Locker::Gem(CLASSIC, None)),
    ("1.4.1 exp.", Locker::Gem(CLASSIC, Some(EXPIRATION))),
    ("1.4.2", Locker::Gem(TIME_TO_LIVE_AT_FIRST, None)),
    ("1.4.2 exp.", Locker::Gem(TIME_TO_LIVE_AT_FIRST, Some(EXPIRATION))),
    ("1.4.3", Locker::Gem(TIME_TO_LIVE, None)),
    ("1.4.3 exp.", Locker::Gem(TIME_TO_LIVE, Some(EXPIRATION))),
    ("Classic", Locker::Ours(Protocol::Classic, None)),
    ("Classic exp.", Locker::Ours(Protocol::Classic, Some(EXPIRATION))),
    ("Watched exp.", Locker::Ours(Protocol::Watched, Some(EXPIRATION))),
    ("Ttl exp.", Locker::Ours(Protocol::Ttl, Some(EXPIRATION))),
    ("stealing", Locker::Stealing),
];

/// What the key of a holder shows to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    One,
    Empty,
    Time,
}

impl Locker {
    fn shows(self) -> Shown {
        match self {
            Locker::Gem(PLAIN, _) | Locker::Gem(CLASSIC, None) | Locker::Ours(_, None) => Shown::One,
            Locker::Gem(TIME_TO_LIVE_AT_FIRST | TIME_TO_LIVE, _) => Shown::Empty,
            Locker::Gem(..) | Locker::Ours(..) | Locker::Stealing => Shown::Time,
        }
    }

    /// Whether it takes a lock that shows this from a holder who is alive: the measured behaviour of the gem.
    fn steals(self, shown: Shown) -> bool {
        match (self, shown) {
            (_, Shown::Time) => false,
            (Locker::Gem(CLASSIC, Some(_)) | Locker::Stealing, _) => true,
            (Locker::Gem(TIME_TO_LIVE_AT_FIRST | TIME_TO_LIVE, Some(_)), shown) => shown == Shown::One,
            _ => false,
        }
    }

    fn options(self) -> LockOptions {
        match self {
            Locker::Ours(protocol, Some(expiration)) => {
                LockOptions::expiring_after(expiration).protocol(protocol)
            }
            Locker::Ours(protocol, None) => LockOptions::held_until_released().protocol(protocol),
            _ => LockOptions::expiring_after(EXPIRATION).stealing_as_the_gem_does(),
        }
    }
}

/// Both sides of one cell: our own locks, and a Ruby process for each version of the gem.
struct Arena {
    target: Target,
    rubies: BTreeMap<&'static str, RubyPeer>,
}

enum Hold {
    Ruby { gem: &'static str, name: &'static str },
    Ours(Box<LockGuard>),
}

impl Arena {
    fn open() -> Result<Self, Box<dyn std::error::Error>> {
        let target = Target::of(&Arc::new(RedisServer::start()?));
        let gems = [PLAIN, CLASSIC, TIME_TO_LIVE_AT_FIRST, TIME_TO_LIVE].into_iter();
        let rubies = gems
            .filter(|gem| gem.is_there())
            .map(|gem| Ok((gem.0, RubyPeer::start(gem, &target.url)?)))
            .collect::<io::Result<_>>()?;
        Ok(Self { target, rubies })
    }

    fn has(&self, locker: Locker) -> bool {
        !matches!(locker, Locker::Gem(gem, _) if !self.rubies.contains_key(gem.0))
    }

    /// One try, as a contender or to be the holder. `name` tells the two of one Ruby process apart.
    fn take(
        &mut self,
        name: &'static str,
        locker: Locker,
        key: &TestKey,
    ) -> Result<Option<Hold>, Box<dyn std::error::Error>> {
        match locker {
            Locker::Gem(gem, expiration) => {
                let ruby = self.rubies.get_mut(gem.0).ok_or("no such gem")?;
                let taken = ruby.try_as(name, &key.key.to_string(), expiration)?;
                Ok((taken == Taken::Held).then_some(Hold::Ruby { gem: gem.0, name }))
            }
            _ => {
                let lock = setnx_lock::Lock::new(&self.target.locker(), &key.key, locker.options())?;
                Ok(lock.try_lock()?.map(|held| Hold::Ours(Box::new(held))))
            }
        }
    }

    fn give(&mut self, hold: Hold) -> io::Result<()> {
        match hold {
            Hold::Ruby { gem, name } => self.rubies.get_mut(gem).map_or(Ok(()), |ruby| ruby.give(name)),
            Hold::Ours(guard) => guard.release().map(|_| ()).map_err(io::Error::other),
        }
    }

    /// Returns whether the contender took the lock, and asserts what that means for both.
    fn cell(
        &mut self,
        holder: Locker,
        contender: Locker,
        key: &TestKey,
    ) -> Result<bool, Box<dyn std::error::Error>> {
        loop {
            key.delete();
            let began = Instant::now();
            let hold = self.take("holder", holder, key)?.ok_or("a free lock was not granted")?;
            let value = key.value();
            let thief = self.take("contender", contender, key)?;
            if began.elapsed() >= SHORTEST_HOLD {
                // The machine was busy, and the holder's time to live may have passed.
                for hold in thief.into_iter().chain([hold]) {
                    self.give(hold)?;
                }
                continue;
            }
            let Some(thief) = thief else {
                assert_eq!(key.value(), value, "whoever waits leaves the value alone");
                self.give(hold)?;
                assert_eq!(key.value(), None);
                return Ok(false);
            };
            let classic = matches!(contender, Locker::Gem(CLASSIC, _) | Locker::Stealing);
            let left = key.time_to_live();
            assert!(if classic { left == -1 } else { left > 0 }, "GETSET clears a time to live: {left}");
            // The trap: whoever was robbed does not know it, and deletes the thief's key.
            self.give(hold)?;
            assert_eq!(key.value(), None, "the thief's key is gone");
            self.give(thief)?;
            return Ok(true);
        }
    }
}

fn every_holder_against_every_contender() -> Outcome {
    let mut arena = Arena::open()?;
    let key = arena.target.key("matrix");
    let mut table = String::from("| holder ↓ contender → |");
    for (name, _) in LOCKERS {
        write!(table, " {name} |")?;
    }
    table += "\n|---|";
    table += &"---|".repeat(LOCKERS.len());
    for (holder_name, holder) in LOCKERS.into_iter().filter(|(_, locker)| !matches!(locker, Locker::Stealing))
    {
        write!(table, "\n| {holder_name} |")?;
        for (contender_name, contender) in LOCKERS {
            if !arena.has(holder) || !arena.has(contender) {
                table += " ? |";
                continue;
            }
            let stolen = arena.cell(holder, contender, &key)?;
            let expected = contender.steals(holder.shows());
            assert_eq!(stolen, expected, "{holder_name} holds, {contender_name} contends");
            table += if stolen { " **steals** |" } else { " waits |" };
        }
    }
    println!("{table}");
    if !table.contains('?') {
        let readme = fs::read_to_string(crate::support::ruby::folder().join("../README.md"))?;
        assert!(readme.contains(&table), "compat/README.md shows another matrix than this:\n{table}");
    }
    Ok(())
}
