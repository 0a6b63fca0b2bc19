//! The Ruby side, a process of its own: `compat/ruby/team.rb`.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use crate::Failure;
use crate::turn::{Language, Trade, Turn};

/// A Ruby process that is ready to trade. Killed if it still runs when this is dropped.
pub(crate) struct Ruby {
    process: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

/// Returns the gem that Ruby locks with, and the keys of the class's three locks, as Ruby prints them.
pub(crate) fn gem_and_keys(url: &str, id: u32) -> Result<(String, Vec<String>), Failure> {
    let output = command(url).args(["keys", &id.to_string()]).output().map_err(explained)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    let mut lines =
        String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
    Ok((lines.next().ok_or("Ruby printed nothing")?, lines.collect()))
}

impl Ruby {
    pub(crate) fn ready(url: &str, id: u32, file: &Path) -> Result<Self, Failure> {
        let mut command = command(url);
        command.arg("trade").arg(id.to_string()).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(explained)?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().ok_or("Ruby has no output")?).lines();
        let mut ruby = Self { process, input, output };
        match ruby.output.next() {
            Some(Ok(line)) if line == "ready" => Ok(ruby),
            other => Err(format!("Ruby did not start: {other:?}").into()),
        }
    }

    /// Lets it trade until `over`, and reports each turn.
    pub(crate) fn trade_until(mut self, over: &AtomicBool, turns: &Sender<Turn>) -> Result<(), Failure> {
        writeln!(self.input.as_ref().ok_or("Ruby has no input")?, "go")?;
        while let Some(line) = self.output.next().transpose()? {
            let times = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
            let (asked, trade) = match times[..] {
                [asked] => (asked, None),
                [asked, acquired, released] => (asked, Some(Trade { acquired, released })),
                _ => return Err(format!("Ruby printed: {line}").into()),
            };
            turns.send(Turn { language: Language::Ruby, asked, trade })?;
            if over.load(Ordering::Relaxed) {
                // It ends with its input.
                self.input = None;
            }
        }
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("Ruby ended with {status}").into()) }
    }
}

impl Drop for Ruby {
    fn drop(&mut self) {
        // It has ended already unless something failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(url: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compat/ruby/team.rb");
    let mut ruby = Command::new("ruby");
    ruby.arg(script).env("REDIS_URL", url);
    ruby
}

fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            io::Error::new(io::ErrorKind::NotFound, "ruby is not installed; `make setup` installs it")
        }
        _ => error,
    }
}
