//! One connection's way to the server that executes its commands.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;

use super::inside::{Inside, Outlet};
use super::resp::{Request, read_reply};
use super::serving::Arrived;
use crate::server::ClientId;

/// After these a server sends data by itself: the rest of a connection
/// to a real server is forwarded as it is, and not recorded.
const PUSHING: &[&str] = &["SUBSCRIBE", "PSUBSCRIBE", "MONITOR"];

/// Where commands are executed.
#[derive(Clone, Debug)]
pub(super) enum Behind {
    Inside(Arc<Inside>),
    Real(SocketAddr),
}

/// A connection there.
#[derive(Debug)]
pub(super) enum Session {
    Inside { inside: Arc<Inside>, client: ClientId },
    Real { server: BufReader<TcpStream>, client: TcpStream },
}

impl Behind {
    /// Clients are gone, with all that is not executed yet. The server has stopped so many times.
    pub(super) fn stop(&self, stops: u64) {
        if let Self::Inside(inside) = self {
            inside.stop(stops);
        }
    }

    pub(super) fn hang(&self, hangs: bool) {
        if let Self::Inside(inside) = self {
            inside.hang(hangs);
        }
    }

    /// Connects a client that was accepted after so many stops. `looks`: it looks at the server for a test.
    pub(super) fn connect(
        &self,
        client: ClientId,
        stream: &TcpStream,
        stops: u64,
        looks: bool,
    ) -> io::Result<Session> {
        match self {
            Self::Inside(inside) => {
                let address = stream.peer_addr()?.to_string();
                inside.connect(client, Outlet::to(stream.try_clone()?, looks), &address, stops);
                Ok(Session::Inside { inside: Arc::clone(inside), client })
            }
            Self::Real(address) => {
                let server = TcpStream::connect(address)?;
                // Without it, small requests and replies wait for each other.
                server.set_nodelay(true)?;
                Ok(Session::Real { server: BufReader::new(server), client: stream.try_clone()? })
            }
        }
    }

    /// The client reads no replies any more.
    pub(super) fn leaves(&self, client: ClientId) {
        if let Self::Inside(inside) = self {
            inside.leaves(client);
        }
    }

    /// All that the client has sent is executed, and it has left.
    pub(super) fn disconnect(&self, client: ClientId) {
        if let Self::Inside(inside) = self {
            inside.disconnect(client);
        }
    }
}

impl Session {
    /// Executes a command and sends the reply.
    pub(super) fn answer(&mut self, request: &Request) -> io::Result<()> {
        match self {
            Self::Inside { inside, client } => inside.answer(*client, &request.words),
            Self::Real { .. } => {
                let reply = self.answer_aside(request)?;
                self.send(&reply);
            }
        }
        Ok(())
    }

    /// Executes a command and returns the reply. What else goes to the client is sent after [`send`](Self::send).
    pub(super) fn answer_aside(&mut self, request: &Request) -> io::Result<Vec<u8>> {
        match self {
            Self::Inside { inside, client } => Ok(inside.answer_aside(*client, &request.words)),
            Self::Real { server, .. } => {
                server.get_mut().write_all(&request.raw)?;
                read_reply(server)
            }
        }
    }

    /// Sends a reply. The client may have left.
    pub(super) fn send(&self, reply: &[u8]) {
        match self {
            Self::Inside { inside, client } => inside.send(*client, reply),
            Self::Real { client, .. } => drop((&*client).write_all(reply)),
        }
    }

    /// The stream to a real server, to be closed with the client's.
    pub(super) fn stream(&self) -> Option<&TcpStream> {
        match self {
            Self::Inside { .. } => None,
            Self::Real { server, .. } => Some(server.get_ref()),
        }
    }

    /// Returns true if the rest of the connection has to be forwarded as it is.
    pub(super) fn must_forward(&self, request: &Request) -> bool {
        matches!(self, Self::Real { .. }) && PUSHING.contains(&request.name().as_str())
    }

    /// Forwards both ways, beginning with this request, until one side ends.
    pub(super) fn forward(self, first: &Request, requests: Receiver<Arrived>) -> io::Result<()> {
        let Self::Real { mut server, client } = self else { return Ok(()) };
        server.get_mut().write_all(&first.raw)?;
        let to_server = server.get_ref().try_clone()?;
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ended = requests
                    .into_iter()
                    .try_for_each(|Arrived { request, .. }| (&to_server).write_all(&request.raw));
                shut(&to_server);
            });
            let _ended = io::copy(&mut server, &mut &client);
            shut(&client);
        });
        Ok(())
    }
}

pub(super) fn shut(stream: &TcpStream) {
    let _may_be_closed = stream.shutdown(Shutdown::Both);
}
