//! The servers of a quorum: three without persistence, one of which is killed now and then, and started again without its locks.

use std::io;
use std::time::{Duration, Instant};

use testkit::RedisServer;

use super::random::Random;

/// How long a server stays away.
const GONE_FOR: Duration = Duration::from_millis(300);

/// Three servers, of which at most one is gone.
#[derive(Debug)]
pub(crate) struct Servers {
    running: Vec<RedisServer>,
    random: Random,
    kill_every: Duration,
    next_kill: Instant,
    /// The server that is gone, and until when.
    gone: Option<(usize, Instant)>,
    pub(crate) kills: usize,
}

impl Servers {
    pub(crate) fn start(kill_every: Duration) -> io::Result<Self> {
        let running = (0..3).map(|_| RedisServer::start()).collect::<io::Result<_>>()?;
        let next_kill = Instant::now() + kill_every;
        Ok(Self { running, random: Random::new(), kill_every, next_kill, gone: None, kills: 0 })
    }

    /// Returns their URLs, as the contender takes them.
    pub(crate) fn urls(&self) -> String {
        self.running.iter().map(RedisServer::url).collect::<Vec<_>>().join(super::contender::BETWEEN_URLS)
    }

    /// Kills or starts a server, if that is due.
    pub(crate) fn disturb(&mut self) -> io::Result<()> {
        let now = Instant::now();
        match self.gone {
            Some((server, until)) if now >= until => {
                self.running[server].restart()?;
                self.gone = None;
                self.next_kill = Instant::now() + self.random.about(self.kill_every);
            }
            None if now >= self.next_kill => {
                let server = usize::try_from(self.random.below(3)).unwrap_or(0);
                self.running[server].stop();
                self.kills += 1;
                self.gone = Some((server, now + GONE_FOR));
            }
            _ => {}
        }
        Ok(())
    }
}
