//! Sockets, and the addresses of names.

use std::io;
use std::net::SocketAddr;
#[cfg(all(unix, not(simulate)))]
use std::os::fd::OwnedFd;
#[cfg(unix)]
use std::path::Path;

#[cfg(simulate)]
pub(crate) use setnx_lock_world::net::{TcpStream, UnixStream};
#[cfg(not(simulate))]
pub(crate) use std::net::TcpStream;
#[cfg(all(unix, not(simulate)))]
pub(crate) use std::os::unix::net::UnixStream;

use super::source::net::ToSocketAddrs as _;
use redis::io::tcp::TcpSettings;

/// Returns the addresses of a name.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Sets what the user has set.
#[cfg(not(simulate))]
pub(crate) fn set(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    use redis::io::tcp::socket2::SockRef;

    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    // A connection that is closed drops what it has not sent yet: a
    // command that arrives after its caller has given up does harm.
    socket.set_linger(Some(std::time::Duration::ZERO))
}

#[cfg(simulate)]
pub(crate) fn set(_: &TcpStream, _: &TcpSettings) -> io::Result<()> {
    Ok(())
}

/// Connects to a socket of a file. Does not wait for a process that accepts no connection: a blocking call waits for
/// ever, even once another process listens at the path.
#[cfg(all(unix, not(simulate)))]
pub(crate) fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    use redis::io::tcp::socket2::{Domain, SockAddr, Socket, Type};

    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

#[cfg(all(unix, simulate))]
pub(crate) fn connect_unix(_: &Path) -> io::Result<UnixStream> {
    Err(io::ErrorKind::Unsupported.into())
}
