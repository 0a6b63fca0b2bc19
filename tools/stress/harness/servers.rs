//! The servers of a quorum: three without persistence, two of which
//! are killed now and then, and start again without their locks.

use std::io;
use std::time::{Duration, Instant};

use testkit::RedisServer;

use super::random::Random;

/// Three servers, of which at most one is gone.
#[derive(Debug)]
pub(crate) struct Servers {
    running: Vec<RedisServer>,
    random: Random,
    kill_every: Duration,
    next_kill: Instant,
    pub(crate) kills: usize,
}

impl Servers {
    pub(crate) fn start(kill_every: Duration) -> io::Result<Self> {
        let running = (0..3).map(|_| RedisServer::start()).collect::<io::Result<_>>()?;
        let next_kill = Instant::now() + kill_every;
        Ok(Self { running, random: Random::new(), kill_every, next_kill, kills: 0 })
    }

    /// Returns their URLs, as the contender takes them.
    pub(crate) fn urls(&self) -> String {
        self.running.iter().map(RedisServer::url).collect::<Vec<_>>().join(super::contender::BETWEEN_URLS)
    }

    /// Kills two servers if that is due, each of which starts again at
    /// once: a majority has lost its locks then, and leases still last.
    pub(crate) fn disturb(&mut self) -> io::Result<()> {
        if Instant::now() >= self.next_kill {
            let spared = usize::try_from(self.random.below(3)).unwrap_or(0);
            for (_, server) in self.running.iter_mut().enumerate().filter(|(index, _)| *index != spared) {
                server.restart()?;
                self.kills += 1;
            }
            self.next_kill = Instant::now() + self.random.about(self.kill_every);
        }
        Ok(())
    }
}
