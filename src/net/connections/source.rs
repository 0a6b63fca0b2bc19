//! Where a backend gets its connections.

use std::fmt;
use std::ops::DerefMut;

use super::lock_connection::LockConnection;
use super::opener::Opener;
use crate::net::errors::Failure;
use crate::net::item::AfterTrip;
use crate::net::limits::Limits;
use crate::net::{Sent, Trip};
use crate::values::clock::Now;

/// Lends connections to one server.
pub(crate) trait Source: Send + Sync + fmt::Debug {
    type Checkout: Checkout;

    /// Returns a connection, and the time when it was there.
    fn checkout(&self, limits: &Limits<'_>) -> Result<(Self::Checkout, Now), Failure>;

    /// Sends a trip together with those of other threads, and returns what came of it. `None`: it is to be sent alone. `slot`: of the key in a
    /// cluster, where a transaction has one.
    fn share(&self, _: &Trip<'_>, _slot: Option<u16>, _: &Limits<'_>) -> Option<Sent> {
        None
    }

    /// Returns true if its connections are used by this library alone, each for the time of a command.
    fn is_own(&self) -> bool;

    /// Returns how many threads may have a connection at the same time, as far as that is known.
    fn most_threads(&self) -> usize {
        1
    }

    /// Returns true if the server has connections of it open.
    fn is_connected(&self) -> bool;

    /// Notes that the server has refused a connection for lack of room after it was opened, so that not all threads open the next at once.
    fn found_no_room(&self);

    /// Wakes the threads that wait for a connection, so that each looks whether its wait has been ended.
    fn wake_waiting(&self);

    /// What opens these connections, if the library does. It knows the server's health, and opens connections that listen.
    fn opener(&self) -> Option<&Opener>;

    /// A master that has become a replica: a new connection finds out where the address leads now.
    fn note_role(&self, left: &AfterTrip) {
        if left.read_only
            && let Some(opener) = self.opener()
        {
            opener.health.found_closed();
        }
    }

    /// Host and port of the server, where they are known.
    fn address(&self) -> String {
        self.opener().map_or_else(|| "the pool's server".into(), Opener::address)
    }
}

/// A connection that is lent. Returns when it is dropped.
pub(crate) trait Checkout: DerefMut<Target: LockConnection + Sized> + Send + 'static {
    /// Takes the connection out of use (I8).
    fn invalidate(self);
}
