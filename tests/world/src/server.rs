//! A server of a run: commands out of bytes, and the words of both for the trace.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use setnx_lock_testing::{ClientId, Output, Server};

use crate::scheduler::Nanos;

/// A server, and what arrived at it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) core: Server,
    pub(crate) is_up: bool,
    /// It refuses what would add data.
    pub(crate) is_full: bool,
    /// How far its clock is ahead, in microseconds.
    pub(crate) ahead: i64,
    /// It executes nothing before.
    pub(crate) stalled_until: Nanos,
    /// What has arrived of each client and is not executed yet.
    pub(crate) arrived: BTreeMap<ClientId, Vec<u8>>,
    /// What has arrived while it stood still, in this order, and whether the connection is closed then.
    pub(crate) held_up: VecDeque<(ClientId, Vec<u8>, bool)>,
    /// When it is to look next which clients have waited for an element for long enough.
    pub(crate) wakes_at: Option<Duration>,
    /// How long it needs for a command, and until when it is busy with those that it has.
    pub(crate) per_command: Nanos,
    pub(crate) busy_until: Nanos,
    pub(crate) is_in_cluster: bool,
    /// What clients have published, for the other nodes of the cluster.
    pub(crate) published: Vec<Vec<Vec<u8>>>,
}

impl Node {
    /// Executes what has arrived of a client. `note` is told each command with its reply.
    pub(crate) fn execute(
        &mut self,
        client: ClientId,
        now: Duration,
        mut note: impl FnMut(String),
    ) -> Vec<Output> {
        let mut output = Vec::new();
        while !self.core.is_waiting(client) {
            let Some(arrived) = self.arrived.get_mut(&client) else { break };
            let Some(command) = take_command(arrived) else { break };
            let outputs = self.core.handle(client, &command, now);
            if self.is_in_cluster && command[0] == b"PUBLISH" {
                self.published.push(command.clone());
            }
            note(words(&command, client, &outputs));
            output.extend(outputs);
        }
        output
    }

    /// Ends waits whose time is over, and goes on with the commands behind them.
    pub(crate) fn pass(&mut self, now: Duration, mut note: impl FnMut(String)) -> Vec<Output> {
        let mut output = self.core.pass(now);
        let clients: VecDeque<ClientId> = self.arrived.keys().copied().collect();
        for client in clients {
            output.extend(self.execute(client, now, &mut note));
        }
        output
    }
}

/// Takes the first command, if all of it is there.
fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = number(bytes, &mut at, b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(bytes, &mut at, b'$')?;
        words.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    if at > bytes.len() {
        return None;
    }
    bytes.drain(..at);
    Some(words)
}

fn number(bytes: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let line = bytes.get(*at..)?;
    let end = line.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(line[0], kind, "clients send arrays of texts");
    *at += end + 2;
    std::str::from_utf8(&line[1..end]).ok()?.parse().ok()
}

/// Returns the command and its reply as people read them.
fn words(command: &[Vec<u8>], client: ClientId, outputs: &[Output]) -> String {
    let mut text = String::new();
    for word in command {
        text.push_str(&String::from_utf8_lossy(&word[..word.len().min(64)]));
        text.push(' ');
    }
    text.push_str("=> ");
    let mut is_answered = false;
    for output in outputs {
        match output {
            Output::Send(to, bytes) if *to == client => {
                is_answered = true;
                text.push_str(
                    String::from_utf8_lossy(&bytes[..bytes.len().min(96)]).replace("\r\n", " ").trim_end(),
                );
            }
            Output::Close(to) if *to == client => text.push_str(" closed"),
            _ => {}
        }
    }
    if !is_answered {
        text.push_str("waits");
    }
    text
}
