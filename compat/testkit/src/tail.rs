//! The reading end of a worker's log.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::str::FromStr;

/// Returns each line once, when it is complete: the worker may be in the middle of it.
#[derive(Debug)]
pub struct Tail {
    file: BufReader<File>,
    begun: String,
}

impl Tail {
    /// Makes an empty log at `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        File::create(path)?;
        Ok(Self { file: BufReader::new(File::open(path)?), begun: String::new() })
    }

    /// Returns the lines that came since the last time.
    pub fn read<L>(&mut self) -> Result<Vec<L>, Box<dyn Error + Send + Sync>>
    where
        L: FromStr<Err: Into<Box<dyn Error + Send + Sync>>>,
    {
        let mut lines = Vec::new();
        while self.file.read_line(&mut self.begun)? > 0 {
            if let Some(line) = self.begun.strip_suffix('\n') {
                lines.push(line.parse().map_err(Into::into)?);
                self.begun.clear();
            }
        }
        Ok(lines)
    }
}
