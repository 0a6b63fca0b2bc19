//! A worker's log: one line for each event, in the file as soon as it is written, so that a kill loses nothing. The
//! worker writes it while the main process reads it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use super::Failure;
use super::hold::Outcome;
use super::moment::Moment;

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A hold has begun. Written before anything is done under the lock.
    Enter { number: u64, key: u64, at: Moment, valid_until: Moment, taken_over: bool },
    /// A hold is about to be released. Written before the release.
    Leave { number: u64, at: Moment },
    /// The outcome of the release.
    End { number: u64, outcome: Outcome },
    /// A remark that explains the rest.
    Note { at: Moment, words: String },
}

const OUTCOMES: [(Outcome, &str); 5] = [
    (Outcome::Released, "released"),
    (Outcome::Expired, "expired"),
    (Outcome::Lost, "lost"),
    (Outcome::Silent, "silent"),
    (Outcome::Failed, "failed"),
];

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enter { number, key, at, valid_until, taken_over } => {
                write!(f, "enter {number} {key} {at} {valid_until} {taken_over}")
            }
            Self::Leave { number, at } => write!(f, "leave {number} {at}"),
            Self::End { number, outcome } => {
                let name = OUTCOMES.iter().find(|(named, _)| named == outcome).map_or("", |(_, name)| name);
                write!(f, "end {number} {name}")
            }
            Self::Note { at, words } => write!(f, "note {at} {}", words.replace('\n', " ")),
        }
    }
}

impl FromStr for Line {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let words: Vec<&str> = text.splitn(6, ' ').collect();
        Ok(match words.as_slice() {
            ["enter", number, key, at, valid_until, taken_over] => Self::Enter {
                number: number.parse()?,
                key: key.parse()?,
                at: at.parse()?,
                valid_until: valid_until.parse()?,
                taken_over: taken_over.parse()?,
            },
            ["leave", number, at] => Self::Leave { number: number.parse()?, at: at.parse()? },
            ["end", number, name] => {
                let outcome = OUTCOMES.iter().find(|(_, known)| known == name).ok_or("no such outcome")?.0;
                Self::End { number: number.parse()?, outcome }
            }
            ["note", at, words @ ..] => Self::Note { at: at.parse()?, words: words.join(" ") },
            _ => return Err(format!("a worker's log has an unknown line: {text}").into()),
        })
    }
}

/// The writing end, shared by the threads of a worker.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        File::options().append(true).open(path).map(Self)
    }

    pub(crate) fn write(&self, line: &Line) -> io::Result<()> {
        // One write for the whole line: appended lines of two threads do not mix.
        (&self.0).write_all(format!("{line}\n").as_bytes())
    }

    /// Writes a remark. A failure to write shows at the next hold.
    pub(crate) fn note(&self, words: String) {
        let _ = self.write(&Line::Note { at: Moment::now(), words });
    }
}
