//! A worker's log: one line for each thing that happened, written at once, so that a kill loses nothing. The worker
//! writes it while the conductor reads it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use crate::Failure;
use crate::moment::Moment;

/// One line of a log: what a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) thread: u32,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The thread has the lock, which it asked for before. Written before anything is done under the lock.
    Entered { asked: Moment, at: Moment },
    /// The thread keeps the lock until its process is killed; its lease lasts until then.
    Keeps { until: Moment },
    /// The thread is about to release the lock. Written before the release.
    Leaves { at: Moment, counted: bool },
    /// Something that should not have happened, in words.
    Trouble(String),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let thread = self.thread;
        match &self.what {
            What::Entered { asked, at } => write!(f, "entered {thread} {asked} {at}"),
            What::Keeps { until } => write!(f, "keeps {thread} {until}"),
            What::Leaves { at, counted } => write!(f, "leaves {thread} {at} {counted}"),
            What::Trouble(words) => write!(f, "trouble {thread} {words}"),
        }
    }
}

impl FromStr for Line {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let unreadable = || format!("a worker's log has an unknown line: {text}");
        let mut words = text.splitn(3, ' ');
        let (Some(verb), Some(thread), Some(rest)) = (words.next(), words.next(), words.next()) else {
            return Err(unreadable().into());
        };
        let what = match (verb, rest.split_once(' ')) {
            ("entered", Some((asked, at))) => What::Entered { asked: asked.parse()?, at: at.parse()? },
            ("keeps", None) => What::Keeps { until: rest.parse()? },
            ("leaves", Some((at, counted))) => What::Leaves { at: at.parse()?, counted: counted.parse()? },
            ("trouble", _) => What::Trouble(rest.to_owned()),
            _ => return Err(unreadable().into()),
        };
        Ok(Line { thread: thread.parse()?, what })
    }
}

/// The writing end, shared by the threads of a worker.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        File::options().append(true).open(path).map(Self)
    }

    pub(crate) fn write(&self, thread: u32, what: What) -> io::Result<()> {
        // One write for the whole line: appended lines of two threads do not mix.
        (&self.0).write_all(format!("{}\n", Line { thread, what }).as_bytes())
    }
}
