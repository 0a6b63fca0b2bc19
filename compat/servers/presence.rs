//! Whether a client is still connected while a blocking command runs for it.
//!
//! A server with a client blocked in BLPOP notices at once when the client closes its connection, and forgets it. Behind a proxy it
//! sees the proxy's connection only. So the proxy closes that one then; else the next item of the list would be lost.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;

/// The commands that may block before they are answered; old versions have the first three.
const BLOCKING: &[&str] = &[
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

/// One client's connection to the server.
#[derive(Debug)]
pub(super) struct Presence {
    real: TcpStream,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    client_left: bool,
    /// A command that may block is being executed.
    may_block: bool,
}

impl Presence {
    pub(super) fn new(real: &TcpStream) -> io::Result<Self> {
        Ok(Self { real: real.try_clone()?, state: Mutex::default() })
    }

    /// Executes a command. If it may block, and the client leaves meanwhile or has left, it fails.
    pub(super) fn during<T>(&self, name: &str, execute: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !BLOCKING.contains(&name) {
            // What a client has sent is executed, also if it does not wait for the reply.
            return execute();
        }
        self.change(|state| state.may_block = true);
        let done = execute();
        self.change(|state| state.may_block = false);
        done
    }

    /// Notes that the client has closed its connection.
    pub(super) fn client_left(&self) {
        self.change(|state| state.client_left = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        if state.client_left && state.may_block {
            let _may_be_closed = self.real.shutdown(Shutdown::Both);
        }
    }
}
