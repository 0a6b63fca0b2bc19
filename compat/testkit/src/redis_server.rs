//! A private `redis-server` with its process, folder and port, killed
//! when its owner drops it. Used by the tests, the benches and the tools.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use setnx_lock_testing::free_port;

/// How long a server may take to reply to its first PING on a machine under load.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running server. Killed, with its folder removed, when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    folder: tempfile::TempDir,
    port: u16,
    config: String,
    is_sentinel: bool,
}

impl RedisServer {
    /// Starts a server with the default configuration but for persistence, which is off.
    pub fn start() -> io::Result<Self> {
        Self::start_with("")
    }

    /// Starts a server with more lines of configuration.
    ///
    /// All options go through a configuration file, which needs 2.6:
    /// up to 2.4 a server refuses `save ""`, up to 2.0 `unixsocket`.
    pub fn start_with(config: &str) -> io::Result<Self> {
        Self::launched(config, false)
    }

    /// Starts a Sentinel with these lines of configuration.
    pub fn start_sentinel(config: &str) -> io::Result<Self> {
        Self::launched(config, true)
    }

    fn launched(config: &str, is_sentinel: bool) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("setnx-lock-redis-").tempdir()?;
        // Another process can take a free port before the server does, so this tries several.
        let mut last = io::Error::other("no port was tried");
        for _ in 0..5 {
            let port = free_port()?;
            match launch(folder.path(), port, config, is_sentinel) {
                Ok(process) => {
                    return Ok(Self { process, folder, port, config: config.to_owned(), is_sentinel });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the server: clients see their connections closed.
    pub fn stop(&mut self) {
        // The server may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on the same port, in the same folder.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        self.process = launch(self.folder.path(), self.port, &self.config, self.is_sentinel)?;
        Ok(())
    }

    /// The same with other lines of configuration.
    pub fn restart_with(&mut self, config: &str) -> io::Result<()> {
        config.clone_into(&mut self.config);
        self.restart()
    }

    /// Suspends the process, as a machine that hangs: connections stay open, and no command is answered.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Resumes the process.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Resumes the process, or starts it again if it was killed.
    pub fn thaw_or_restart(&mut self) -> io::Result<()> {
        if self.process.try_wait()?.is_some() {
            return self.restart();
        }
        self.thaw();
        Ok(())
    }

    fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Sends one command on a connection of its own and returns the first line of the reply.
    pub fn say(&self, words: &[&str]) -> io::Result<String> {
        let stream = TcpStream::connect_timeout(&self.address(), Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        say(stream, words)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn launch(folder: &Path, port: u16, config: &str, is_sentinel: bool) -> io::Result<Child> {
    let dir = folder.display();
    let file = folder.join("redis.conf");
    fs::write(
        &file,
        format!(
            "bind 127.0.0.1\nport {port}\ndir {dir}\nunixsocket {dir}/redis.sock\nsave \"\"\nappendonly no\n{config}\n"
        ),
    )?;
    let log = fs::File::create(folder.join("redis.log"))?;
    let mut process = Command::new("redis-server")
        .arg(&file)
        .args(is_sentinel.then_some("--sentinel"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                io::ErrorKind::NotFound,
                "redis-server is not installed; `make setup` installs it, or use your package manager",
            ),
            _ => error,
        })?;
    let end = Instant::now() + START_LIMIT;
    loop {
        // Through the socket in its own folder: another process may have taken the port. Any reply will do: a server
        // that asks for a password, or is loading, has started as well.
        let has_started = UnixStream::connect(folder.join("redis.sock"))
            .and_then(|stream| say(stream, &["PING"]))
            .is_ok_and(|line| line.starts_with(['+', '-']));
        if has_started && process.try_wait()?.is_none() {
            return Ok(process);
        }
        let ended = process.try_wait()?.is_some();
        if ended || Instant::now() > end {
            let _ = process.kill();
            let _ = process.wait();
            let log = fs::read_to_string(folder.join("redis.log")).unwrap_or_default();
            return Err(io::Error::other(format!("redis-server did not start:\n{log}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one command and returns the first line of the reply.
pub fn say(mut stream: impl Read + Write, words: &[&str]) -> io::Result<String> {
    let mut request = Vec::new();
    write!(request, "*{}\r\n", words.len())?;
    for word in words {
        write!(request, "${}\r\n{word}\r\n", word.len())?;
    }
    stream.write_all(&request)?;
    let mut line = String::new();
    BufReader::new(stream.take(1 << 16)).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
