//! The protocol, as far as the proxy has to understand it: where a request or a reply ends, and the words of a request.

use std::io::{self, BufRead, BufReader, Read};

/// A request, as it came and in words.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) raw: Vec<u8>,
    /// At least one.
    pub(super) words: Vec<Vec<u8>>,
}

impl Request {
    pub(super) fn of(words: &[&[u8]]) -> Self {
        let mut raw = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            raw.extend(bulk(word));
        }
        Self { raw, words: words.iter().map(|word| word.to_vec()).collect() }
    }

    /// The command, in upper case.
    pub(super) fn name(&self) -> String {
        text(&self.words[0]).to_uppercase()
    }
}

pub(super) fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

pub(super) fn bulk(word: &[u8]) -> Vec<u8> {
    let length = format!("${}\r\n", word.len()).into_bytes();
    [&length, word, b"\r\n"].concat()
}

/// Returns a bulk as a status line; another reply as it is.
pub(super) fn bulk_as_status(reply: Vec<u8>) -> Vec<u8> {
    match reply.iter().position(|byte| *byte == b'\n') {
        Some(end) if reply.starts_with(b"$") && end + 1 < reply.len() => [b"+", &reply[end + 1..]].concat(),
        _ => reply,
    }
}

/// Reads a request, an array of bulks; `None` at the end of the stream.
fn read_request(stream: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut raw = Vec::new();
    let mut words = Vec::new();
    let count = read_number(stream, &mut raw)?;
    for _ in 0..count.unwrap_or(0) {
        let length = read_number(stream, &mut raw)?.unwrap_or(0);
        words.push(read_bulk(stream, length, &mut raw)?);
    }
    Ok((!words.is_empty()).then_some(Request { raw, words }))
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

/// Reads a reply of any kind, with what was pushed before it. Errors, also within an array, are replaced by what `reworded`
/// returns.
pub(super) fn read_reply(
    stream: &mut impl BufRead,
    reworded: &dyn Fn(&str) -> Option<String>,
) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    let number = read_number(stream, &mut raw)?;
    if !raw.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match (raw[0], number) {
        (b'-', _) => {
            if let Some(words) = reworded(text(&raw[1..]).trim_end()) {
                raw = error(&words);
            }
        }
        (b'$' | b'=' | b'!', Some(length)) => {
            read_bulk(stream, length, &mut raw)?;
        }
        (kind @ (b'*' | b'~' | b'>' | b'%' | b'|'), Some(count)) => {
            let in_pairs = matches!(kind, b'%' | b'|');
            // A push and an attribute come before the reply proper.
            let before = matches!(kind, b'>' | b'|');
            for _ in 0..count * (1 + usize::from(in_pairs)) + usize::from(before) {
                raw.extend(read_reply(stream, reworded)?);
            }
        }
        _ => {}
    }
    Ok(raw)
}

pub(super) fn error(words: &str) -> Vec<u8> {
    format!("-{words}\r\n").into_bytes()
}

/// Reads a line and returns the number that follows its first byte, if there is one that is not negative.
fn read_number(stream: &mut impl BufRead, raw: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let start = raw.len();
    stream.read_until(b'\n', raw)?;
    Ok(str::from_utf8(raw.get(start + 1..).unwrap_or_default())
        .ok()
        .and_then(|text| text.trim_end().parse().ok()))
}

fn read_bulk(stream: &mut impl BufRead, length: usize, raw: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut bulk = vec![0; length + 2];
    stream.read_exact(&mut bulk)?;
    raw.extend_from_slice(&bulk);
    bulk.truncate(length);
    Ok(bulk)
}
