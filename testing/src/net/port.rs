//! Ports to listen on.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{io, process, thread};

/// Below those that the system gives out: on one of those a connection
/// may be opened to itself, when it has the port as its own.
const PORTS: Range<u16> = 10_000..32_000;

/// Listens on a port that nothing of this process has listened on for long: a client of a server that has ended
/// connects to the same port again, and must find no other test's server there.
pub(crate) fn listen() -> io::Result<TcpListener> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes with numbers in a row begin far from each other.
    let first = u16::try_from(process::id().wrapping_mul(7919) % u32::from(count)).unwrap_or_default();
    (0..count)
        .map(|_| PORTS.start + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count)
        .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .ok_or_else(|| io::Error::other("all ports are in use"))
}

/// Listens on the port of a server that has stopped. A process that is just being started holds all open sockets until
/// it executes its program, so this tries for some seconds.
pub(crate) fn listen_again(address: SocketAddr) -> io::Result<TcpListener> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

/// Returns a port on which nothing listens: for a server of another kind, or a client that must find none.
///
/// # Errors
///
/// If all ports are in use.
pub fn free_port() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}
