//! A connection to the real server.

use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use super::resp::{Request, read_reply};

#[derive(Debug)]
pub(super) struct Real(BufReader<TcpStream>);

impl Real {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        // Without it, small requests and replies wait for each other.
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(super) fn send(&mut self, request: &Request) -> io::Result<()> {
        self.0.get_mut().write_all(&request.raw)
    }

    /// Executes a request, and returns the reply as it came.
    pub(super) fn ask(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        self.ask_reworded(request, &|_| None)
    }

    /// The same, with errors reworded.
    pub(super) fn ask_reworded(
        &mut self,
        request: &Request,
        reworded: &dyn Fn(&str) -> Option<String>,
    ) -> io::Result<Vec<u8>> {
        self.send(request)?;
        read_reply(&mut self.0, reworded)
    }

    pub(super) fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    pub(super) fn reader(&mut self) -> &mut BufReader<TcpStream> {
        &mut self.0
    }
}
