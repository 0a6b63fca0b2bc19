//! Which lock takes over which: every kind of lock, of the gem and of this library, contends with every other that
//! holds the key and is valid. The gem's steals are asserted, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use libtest_mimic::Trial;
use setnx_lock::{LockGuard, LockOptions, Protocol};

use crate::support::ruby::{Attempt, CLASSIC, Gem, NO_TAKEOVER, RubyPeer, TTL, TTL_1_4_2};
use crate::support::{Outcome, RedisServer, Target, TestKey};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("matrix", crate::support::tests![every_holder_against_every_contender])
}

const EXPIRATION: Duration = Duration::from_secs(15);

/// A little less than the gem's time to live without an expiration. A cell that took longer is tried again.
const SHORTEST_HOLD: Duration = Duration::from_millis(900);

const HOLDER: &str = "holder";
const CONTENDER: &str = "contender";

#[derive(Clone, Copy, Debug)]
enum Locker {
    Gem(Gem, Option<Duration>),
    Ours(Protocol, Option<Duration>),
    /// With the holder's name in the value.
    Named,
}

/// The rows and columns, with the names that they have in the table.
const LOCKERS: [(&str, Locker); 12] = [
    ("≤ 0.2.2", Locker::Gem(NO_TAKEOVER, Some(EXPIRATION))),
    ("1.4.1", Locker::Gem(CLASSIC, None)),
    ("1.4.1 exp.", Locker::Gem(CLASSIC, Some(EXPIRATION))),
    ("1.4.2", Locker::Gem(TTL_1_4_2, None)),
    ("1.4.2 exp.", Locker::Gem(TTL_1_4_2, Some(EXPIRATION))),
    ("1.4.3", Locker::Gem(TTL, None)),
    ("1.4.3 exp.", Locker::Gem(TTL, Some(EXPIRATION))),
    ("Classic", Locker::Ours(Protocol::Classic, None)),
    ("Classic exp.", Locker::Ours(Protocol::Classic, Some(EXPIRATION))),
    ("Watched exp.", Locker::Ours(Protocol::Watched, Some(EXPIRATION))),
    ("Ttl exp.", Locker::Ours(Protocol::Ttl, Some(EXPIRATION))),
    ("named exp.", Locker::Named),
];

/// What the key of a holder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    One,
    Empty,
    Time,
}

impl Locker {
    fn shows(self) -> Shown {
        match self {
            Locker::Gem(NO_TAKEOVER, _) | Locker::Gem(CLASSIC, None) | Locker::Ours(_, None) => Shown::One,
            Locker::Gem(TTL_1_4_2 | TTL, _) => Shown::Empty,
            Locker::Gem(..) | Locker::Ours(..) | Locker::Named => Shown::Time,
        }
    }

    /// Whether it takes a key that holds this from a valid holder: for the gem, the measured behaviour.
    fn steals(self, shown: Shown) -> bool {
        match (self, shown) {
            (_, Shown::Time) => false,
            (Locker::Gem(CLASSIC, Some(_)), _) => true,
            (Locker::Gem(TTL_1_4_2 | TTL, Some(_)), shown) => shown == Shown::One,
            _ => false,
        }
    }

    fn options(self) -> LockOptions {
        match self {
            Locker::Ours(protocol, Some(expiration)) => {
                LockOptions::expiring_after(expiration).protocol(protocol)
            }
            Locker::Ours(protocol, None) => LockOptions::without_expiration().protocol(protocol),
            Locker::Named | Locker::Gem(..) => LockOptions::expiring_after(EXPIRATION),
        }
    }
}

/// Both sides of a cell: the locks of this library, and a Ruby process for each version of the gem.
struct Sides {
    target: Target,
    peers: BTreeMap<&'static str, RubyPeer>,
}

enum Hold {
    Ruby { gem: &'static str, name: &'static str },
    Ours(Box<LockGuard>),
}

impl Sides {
    fn open() -> Result<Self, Box<dyn std::error::Error>> {
        let target = Target::of(&Arc::new(RedisServer::start()?));
        let peers = Gem::available()?
            .into_iter()
            .map(|gem| Ok((gem.0, RubyPeer::start(gem, &target.url)?)))
            .collect::<io::Result<_>>()?;
        Ok(Self { target, peers })
    }

    fn have(&self, locker: Locker) -> bool {
        !matches!(locker, Locker::Gem(gem, _) if !self.peers.contains_key(gem.0))
    }

    /// One attempt, of the holder or the contender. The two have different names in one Ruby process.
    fn acquire(
        &mut self,
        name: &'static str,
        locker: Locker,
        key: &TestKey,
    ) -> Result<Option<Hold>, Box<dyn std::error::Error>> {
        match locker {
            Locker::Gem(gem, expiration) => {
                let peer = self.peers.get_mut(gem.0).ok_or("no such gem")?;
                let key = key.key.to_string();
                let attempt = match name {
                    HOLDER => peer.acquire_as(name, &key, expiration)?,
                    _ => peer.try_as(name, &key, expiration)?,
                };
                Ok((attempt == Attempt::Held).then_some(Hold::Ruby { gem: gem.0, name }))
            }
            _ => {
                let through = match locker {
                    Locker::Named => self.target.locker_named("worker:7")?,
                    _ => self.target.locker(),
                };
                let lock = setnx_lock::Lock::new(&through, &key.key, locker.options())?;
                Ok(lock.try_lock()?.map(|held| Hold::Ours(Box::new(held))))
            }
        }
    }

    fn release(&mut self, hold: Hold) -> io::Result<()> {
        match hold {
            Hold::Ruby { gem, name } => self.peers.get_mut(gem).map_or(Ok(()), |peer| peer.release(name)),
            Hold::Ours(guard) => match guard.release() {
                Err(error) if !error.is_lost() => Err(io::Error::other(error)),
                _ => Ok(()),
            },
        }
    }

    /// Returns whether the contender steals the lock, and asserts what follows for both sides.
    fn cell(
        &mut self,
        holder: Locker,
        contender: Locker,
        key: &TestKey,
    ) -> Result<bool, Box<dyn std::error::Error>> {
        loop {
            key.delete();
            let began = Instant::now();
            let hold = self.acquire(HOLDER, holder, key)?.ok_or("a free lock was not granted")?;
            let value = key.value();
            let stolen = self.acquire(CONTENDER, contender, key)?;
            if began.elapsed() >= SHORTEST_HOLD {
                // The machine was busy, and the holder's time to live may have passed.
                for hold in stolen.into_iter().chain([hold]) {
                    self.release(hold)?;
                }
                continue;
            }
            let Some(stolen) = stolen else {
                assert_eq!(key.value(), value, "a contender that waits leaves the value alone");
                self.release(hold)?;
                assert_eq!(key.value(), None);
                return Ok(false);
            };
            let classic = matches!(contender, Locker::Gem(CLASSIC, _));
            let left = key.time_to_live();
            assert!(if classic { left == -1 } else { left > 0 }, "GETSET clears a time to live: {left}");
            // The first holder does not notice, and its release deletes the new holder's key.
            self.release(hold)?;
            assert_eq!(key.value(), None, "the new holder's key is deleted");
            self.release(stolen)?;
            return Ok(true);
        }
    }
}

fn every_holder_against_every_contender() -> Outcome {
    let mut sides = Sides::open()?;
    let key = sides.target.key("matrix");
    let mut table = String::from("| holder ↓ contender → |");
    for (name, _) in LOCKERS {
        write!(table, " {name} |")?;
    }
    table += "\n|---|";
    table += &"---|".repeat(LOCKERS.len());
    for (holder_name, holder) in LOCKERS {
        write!(table, "\n| {holder_name} |")?;
        for (contender_name, contender) in LOCKERS {
            if !sides.have(holder) || !sides.have(contender) {
                table += " ? |";
                continue;
            }
            let stolen = sides.cell(holder, contender, &key)?;
            let expected = contender.steals(holder.shows());
            assert_eq!(stolen, expected, "{holder_name} holds, {contender_name} contends");
            table += if stolen { " **steals** |" } else { " waits |" };
        }
    }
    println!("{table}");
    if !table.contains('?') {
        let readme = fs::read_to_string(crate::support::ruby::folder().join("../README.md"))?;
        assert!(readme.contains(&table), "compat/README.md shows another table than this:\n{table}");
    }
    Ok(())
}
