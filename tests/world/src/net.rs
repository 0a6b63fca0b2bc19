//! Sockets of a run, by the names of [`std::net`].

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::network::{self, Connection};
use crate::scheduler::scheduler;
use crate::thread;

/// A connection to a server.
#[derive(Debug)]
pub struct TcpStream {
    connection: Arc<Connection>,
    settings: Mutex<SocketSettings>,
}

/// Sockets of files are in no simulation.
pub type UnixStream = TcpStream;

#[derive(Clone, Copy, Debug, Default)]
struct SocketSettings {
    nonblocking: bool,
    timeout: Option<Duration>,
}

impl TcpStream {
    /// Connects within this time.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn connect_timeout(address: &SocketAddr, time: Duration) -> io::Result<Self> {
        let connection = network::connect(*address, thread::after(time))?;
        Ok(Self { connection, settings: Mutex::default() })
    }

    fn settings(&self) -> std::sync::MutexGuard<'_, SocketSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has reads fail instead of waiting.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.settings().nonblocking = nonblocking;
        Ok(())
    }

    /// Sets how long a read waits.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        self.settings().timeout = time;
        Ok(())
    }

    /// Does nothing: no write waits here.
    ///
    /// # Errors
    ///
    /// None.
    pub fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let SocketSettings { nonblocking, timeout } = *self.settings();
        if nonblocking {
            scheduler().step();
            return self.connection.received(buffer).unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()));
        }
        let until = timeout.map(thread::after);
        loop {
            if let Some(received) = self.connection.received(buffer) {
                return received;
            }
            if until.is_some_and(|until| scheduler().now() >= until) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.connection.wait(until);
        }
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        scheduler().step();
        self.connection.send(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.connection.close();
    }
}

/// Finds the addresses of a name.
pub trait ToSocketAddrs {
    /// Returns them.
    ///
    /// # Errors
    ///
    /// If there is no such name.
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>>;
}

impl ToSocketAddrs for (&str, u16) {
    fn to_socket_addrs(&self) -> io::Result<std::vec::IntoIter<SocketAddr>> {
        network::addresses(self.0, self.1).map(IntoIterator::into_iter)
    }
}
