//! Names of servers, which may have several addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::network;
use crate::run::random;

/// Gives these addresses to a name: of a server each, or of none, where attempts to connect hang.
pub fn set_name(name: &str, addresses: &[IpAddr]) {
    network().names.insert(name.to_owned(), addresses.to_vec());
}

/// Returns the addresses of a name, beginning with any.
pub(crate) fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let no_name = || io::Error::new(io::ErrorKind::NotFound, "no server has this name");
    let mut known = network().names.get(host).cloned().ok_or_else(no_name)?;
    let first = usize::try_from(random(0..known.len().max(1) as u64)).unwrap_or_default();
    known.rotate_left(first);
    Ok(known.into_iter().map(|address| SocketAddr::new(address, port)).collect())
}
