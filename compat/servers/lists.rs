//! Lists that clients block on, as versions before 2.6 had them.
//!
//! Which client blocks, and which is served first, is the real server's work. This file emulates the rest: a list with a time to live was
//! deleted by blocking on it, and an item that went to a blocked client never was in the list.

use std::io;

use super::resp::{self, Request, text};

/// Deletes the lists that have a time to live, up to the first that the command will find.
const DELETE_UP_TO_FIRST: &str = "
    for _, key in ipairs(KEYS) do
        if redis.call('PTTL', key) >= 0 then redis.call('DEL', key) end
        if redis.call('EXISTS', key) == 1 then return 1 end
    end
    return 0";

pub(super) fn is_blocking(name: &str) -> bool {
    ["BLPOP", "BRPOP"].contains(&name)
}

/// Whether the command may wait outside of a transaction.
pub(super) fn may_wait(name: &str) -> bool {
    is_blocking(name) || name == "BRPOPLPUSH"
}

/// The script that runs before a blocking command of versions before 2.2: they looked up each list as one to be written.
pub(super) fn deleting_before(request: &Request) -> Request {
    let [_, keys @ .., _timeout] = request.words.as_slice() else { unreachable!("it takes two arguments") };
    let count = keys.len().to_string();
    let mut words: Vec<&[u8]> = vec![b"EVAL", DELETE_UP_TO_FIRST.as_bytes(), count.as_bytes()];
    words.extend(keys.iter().map(Vec::as_slice));
    Request::of(&words)
}

/// The commands that wait for EXEC.
#[derive(Debug, Default)]
pub(super) struct Queued(Vec<Request>);

impl Queued {
    pub(super) fn add(&mut self, request: &Request) {
        self.0.push(request.copy());
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns each EXPIRE that follows a push to the same list, with its place; none where another command may have removed the
    /// list.
    pub(super) fn expiring_after_a_push(&self) -> Vec<(usize, &[u8])> {
        let mut pushed: Vec<&[u8]> = Vec::new();
        let mut expiring: Vec<(usize, &[u8])> = Vec::new();
        for (place, request) in self.0.iter().enumerate() {
            match (request.name().as_str(), &request.words[1..]) {
                ("LPUSH" | "RPUSH", [list, ..]) => pushed.push(list),
                ("LTRIM", [_, start, stop]) if keeps_the_first(start, stop) => {}
                ("EXPIRE", [list, seconds])
                    if text(seconds).parse().is_ok_and(|seconds: i64| seconds > 0) =>
                {
                    if pushed.contains(&list.as_slice()) {
                        expiring.push((place, list));
                    }
                }
                (_, touched) => {
                    let untouched = |list: &[u8]| touched.iter().all(|word| word != list);
                    pushed.retain(|list| untouched(list));
                    expiring.retain(|(_, list)| untouched(list));
                }
            }
        }
        expiring
    }
}

/// Whether LTRIM leaves the first item, and so the list.
fn keeps_the_first(start: &[u8], stop: &[u8]) -> bool {
    start == b"0" && (stop == b"-1" || text(stop).parse::<u64>().is_ok())
}

/// The reply to EXEC with 0 for each of these EXPIREs whose list is missing, as its item went to a blocked client.
///
/// `exist` has the replies to EXISTS right after the transaction.
pub(super) fn without_a_list(
    done: Vec<u8>,
    expiring: &[(usize, &[u8])],
    exist: &[Vec<u8>],
) -> io::Result<Vec<u8>> {
    let mut replies = resp::elements(&done)?;
    if replies.is_empty() {
        // It was not executed.
        return Ok(done);
    }
    for ((place, _), exists) in expiring.iter().zip(exist) {
        match replies.get_mut(*place) {
            Some(reply) if reply == b":1\r\n" && exists == b":0\r\n" => *reply = b":0\r\n".to_vec(),
            _ => {}
        }
    }
    Ok([format!("*{}\r\n", replies.len()).into_bytes(), replies.concat()].concat())
}
