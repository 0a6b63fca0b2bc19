//! Requests and replies on the wire.

use std::io::{self, BufRead, BufReader, Read};

/// The most bytes of a word, as Redis has it by default.
const LONGEST_WORD: usize = 512 << 20;
/// The most words of a command that is read.
const MOST_WORDS: usize = 1 << 20;

/// A command, and its bytes as they came.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) raw: Vec<u8>,
    pub(super) words: Vec<Vec<u8>>,
}

impl Request {
    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.words[0]).to_uppercase()
    }
}

/// Reads a request: an array of bulk strings, or a line as people type
/// it. `None` at the end of the stream, and after what is no request.
fn read_request(stream: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut raw = Vec::new();
    loop {
        raw.clear();
        let first = read_line(stream, &mut raw)?;
        if raw.is_empty() {
            return Ok(None);
        }
        if raw[0] != b'*' {
            let words: Vec<Vec<u8>> = first.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
            if words.is_empty() {
                continue;
            }
            return Ok(Some(Request { raw, words }));
        }
        let count = first[1..].parse::<usize>().unwrap_or(0);
        let mut words = Vec::new();
        for _ in 0..count.min(MOST_WORDS) {
            let line = read_line(stream, &mut raw)?;
            let length = line.strip_prefix('$').and_then(|length| length.parse().ok());
            let Some(length) = length.filter(|length| *length <= LONGEST_WORD) else { return Ok(None) };
            words.push(read_bulk(stream, length, &mut raw)?);
        }
        if !words.is_empty() {
            return Ok(Some(Request { raw, words }));
        }
    }
}

/// Reads a batch: a request, and those that arrived in one piece with it; empty at the end of the stream.
pub(super) fn read_batch(stream: &mut BufReader<impl Read>) -> Vec<Request> {
    let mut batch = Vec::new();
    while batch.is_empty() || !stream.buffer().is_empty() {
        let Ok(Some(request)) = read_request(stream) else { break };
        batch.push(request);
    }
    batch
}

/// Reads a reply of any kind, with what was pushed before it.
pub(super) fn read_reply(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    let line = read_line(stream, &mut raw)?;
    if !raw.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match (raw[0], line.get(1..).unwrap_or_default().parse::<usize>().ok()) {
        (b'$' | b'=' | b'!', Some(length)) => {
            read_bulk(stream, length, &mut raw)?;
        }
        (kind @ (b'*' | b'~' | b'>' | b'%' | b'|'), Some(count)) => {
            let in_pairs = matches!(kind, b'%' | b'|');
            // A push and an attribute come before the reply proper.
            let before = matches!(kind, b'>' | b'|');
            for _ in 0..count * (1 + usize::from(in_pairs)) + usize::from(before) {
                raw.extend(read_reply(stream)?);
            }
        }
        _ => {}
    }
    Ok(raw)
}

/// Appends a line to what was read, and returns it without its end.
fn read_line(stream: &mut impl BufRead, raw: &mut Vec<u8>) -> io::Result<String> {
    let start = raw.len();
    stream.take(1 << 16).read_until(b'\n', raw)?;
    Ok(String::from_utf8_lossy(&raw[start..]).trim_end().to_owned())
}

fn read_bulk(stream: &mut impl BufRead, length: usize, raw: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut bulk = vec![0; length + 2];
    stream.read_exact(&mut bulk)?;
    raw.extend_from_slice(&bulk);
    bulk.truncate(length);
    Ok(bulk)
}
