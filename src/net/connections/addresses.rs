//! The addresses of a name: each gets a share of the time for connecting,
//! and the one that answered last is the first to be tried again.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use proto::values::Uptime;

use crate::system::clock;
use crate::system::net::{self, TcpStream};
use crate::system::sync::{Mutex, PerProcess};

/// The address that answered last, of each name and port with several.
/// Never waited for: a forked child may find it locked for ever.
static ANSWERED: PerProcess<Mutex<BTreeMap<(String, u16), SocketAddr>>> =
    PerProcess::new(Mutex::new(BTreeMap::new()));

/// Connects to one of a name's addresses until `deadline`.
pub(super) fn connect(host: &str, port: u16, deadline: Uptime) -> io::Result<TcpStream> {
    let addresses = net::resolve(host, port)?;
    if let [only] = addresses[..] {
        return connect_to_one_of(&[only], deadline).map(|(stream, _)| stream);
    }
    let name = (host.to_owned(), port);
    let first = ANSWERED.get().try_lock().and_then(|answered| answered.get(&name).copied());
    let (stream, address) = connect_to_one_of(&beginning_with(first, addresses), deadline)?;
    if let Some(mut answered) = ANSWERED.get().try_lock() {
        answered.insert(name, address);
    }
    Ok(stream)
}

/// Returns the addresses with this one first, if it is among them.
fn beginning_with(first: Option<SocketAddr>, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if let Some(at) = addresses.iter().position(|address| Some(*address) == first) {
        addresses[..=at].rotate_right(1);
    }
    addresses
}

/// Connects to the first that answers. Returns which.
fn connect_to_one_of(addresses: &[SocketAddr], deadline: Uptime) -> io::Result<(TcpStream, SocketAddr)> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for (address, remaining) in addresses.iter().zip((1..=addresses.len()).rev()) {
        // One that does not answer leaves time for the others, and for what is sent first.
        let shares = if addresses.len() == 1 { 1 } else { remaining + 1 };
        let limit = deadline.since(clock::uptime()) / u32::try_from(shares).unwrap_or(u32::MAX);
        if limit.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(address, limit) {
            Ok(stream) => return Ok((stream, *address)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    #[test]
    fn the_address_that_answered_is_the_first() {
        let order = |first| beginning_with(first, vec![at(1), at(2), at(3)]);
        assert_eq!(order(Some(at(3))), [at(3), at(1), at(2)]);
        assert_eq!(order(Some(at(1))), [at(1), at(2), at(3)]);
        assert_eq!(order(Some(at(4))), order(None), "the name has moved");
    }

    /// The first takes no connection: the system drops what asks for one, as a firewall does.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        use std::net::TcpListener;
        use std::time::Duration;

        use redis::io::tcp::socket2::{Domain, Socket, Type};

        let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        full.bind(&at(0).into()).unwrap();
        full.listen(0).unwrap();
        let silent = full.local_addr().unwrap().as_socket().unwrap();
        let brief = Duration::from_millis(100);
        let mut taken = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&silent, brief) {
            taken.push(stream);
            assert!(taken.len() < 1000, "it takes any number");
        }
        let next = TcpListener::bind(at(0)).unwrap();
        let addresses = [silent, silent, next.local_addr().unwrap()];
        let (connected, which) =
            connect_to_one_of(&addresses, clock::uptime().after(Duration::from_secs(6))).unwrap();
        assert_eq!((connected.peer_addr().unwrap(), which), (addresses[2], addresses[2]));
        assert!(connect_to_one_of(&addresses[..2], clock::uptime().after(brief)).is_err());
    }
}
