//! A user's own pool, which other code may use as well: it lends its connections, each for one command. Whose turn it
//! is there is left to r2d2.

use std::time::Duration;

use super::transport::Transport;
use crate::system::clock;

/// How long r2d2 is waited for at a time: it opens a connection in place of one that broke only when it is asked.
const TURN: Duration = Duration::from_millis(50);
/// How long it is waited for at a time while it has no connection: it opens one more each time that it is asked.
const OPENING_TURN: Duration = Duration::from_secs(1);

/// Lends the connections of a pool, whatever its manager.
pub(crate) trait Lender: Send + Sync {
    /// Returns a connection that is free.
    fn lend_at_once(&self) -> Option<Transport>;

    /// Waits at most `limit` for a connection, and while there are none at
    /// most `turn` for word of why. Fails in r2d2's words, if it has any.
    fn lend_within(&self, limit: Duration, turn: Duration) -> Result<Transport, Option<String>>;

    /// Returns how many connections it has open.
    fn open(&self) -> u32;

    /// Returns how many it may have.
    fn size(&self) -> u32;

    /// Returns true if it sends a command before it lends one.
    fn tests_on_check_out(&self) -> bool;
}

impl<M: r2d2::ManageConnection<Connection = redis::Connection>> Lender for r2d2::Pool<M> {
    fn lend_at_once(&self) -> Option<Transport> {
        // `try_get` would not call the pool's event handler.
        let is_free = self.state().idle_connections > 0;
        let lent = is_free.then(|| self.get_timeout(Duration::ZERO).ok()).flatten();
        lent.map(|lent| Transport::lent(Box::new(lent)))
    }

    fn lend_within(&self, limit: Duration, turn: Duration) -> Result<Transport, Option<String>> {
        let until = clock::uptime().after(limit);
        loop {
            let turn = if self.open() > 0 { TURN } else { OPENING_TURN.min(turn) };
            match self.get_timeout(until.since(clock::uptime()).min(turn)) {
                Ok(lent) => return Ok(Transport::lent(Box::new(lent))),
                Err(error) => {
                    let words = error.to_string();
                    // It reports a cause once, after its own words and a colon.
                    if words.contains(": ") {
                        return Err(Some(words));
                    }
                    if clock::uptime() >= until {
                        return Err(None);
                    }
                }
            }
        }
    }

    fn open(&self) -> u32 {
        self.state().connections
    }

    fn size(&self) -> u32 {
        self.max_size()
    }

    fn tests_on_check_out(&self) -> bool {
        self.test_on_check_out()
    }
}
