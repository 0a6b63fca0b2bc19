//! Whether a client is still there while the server waits on its behalf.
//!
//! A server that waits with BLPOP notices at once when its client closes the connection, and forgets it. Behind a gate it sees the
//! gate's connection only, so that one has to be closed then: else the next item of the list would go to nobody.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;

/// What a server may wait with before it answers; old versions have the first three.
const WAITING: &[&str] = &[
    "BLPOP",
    "BRPOP",
    "BRPOPLPUSH",
    "BLMOVE",
    "BLMPOP",
    "BZPOPMIN",
    "BZPOPMAX",
    "BZMPOP",
    "XREAD",
    "XREADGROUP",
    "WAIT",
];

/// One client, and the connection to the server that is its own.
#[derive(Debug)]
pub(super) struct Presence {
    real: TcpStream,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    gone: bool,
    /// A command that may wait is being carried out.
    waits: bool,
}

impl Presence {
    pub(super) fn new(real: &TcpStream) -> io::Result<Self> {
        Ok(Self { real: real.try_clone()?, state: Mutex::default() })
    }

    /// Has a command carried out. If it is one that may wait, and the client leaves meanwhile or has left, it fails.
    pub(super) fn during<T>(&self, name: &str, carry_out: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !WAITING.contains(&name) {
            // What a client has sent is carried out, whether it waits for the answer or not.
            return carry_out();
        }
        self.change(|state| state.waits = true);
        let done = carry_out();
        self.change(|state| state.waits = false);
        done
    }

    /// The client has closed its connection.
    pub(super) fn ends(&self) {
        self.change(|state| state.gone = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        if state.gone && state.waits {
            let _may_be_closed = self.real.shutdown(Shutdown::Both);
        }
    }
}
