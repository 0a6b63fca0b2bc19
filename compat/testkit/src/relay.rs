//! A relay to a server, which delays each way as a network does: for servers that seem to be on another machine.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::Failure;

#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Relay {
    /// Starts a relay to the server at `target`, which passes bytes on `delay` after they have come. Clients wait for
    /// each reply, or for all replies to what they sent at once, so no bytes come in between.
    pub fn start(target: SocketAddr, delay: Duration) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if flag.load(Ordering::Relaxed) {
                    break;
                }
                // A client whose connection fails sees it closed.
                let _ = serve(client, target, delay);
            }
        });
        Ok(Self { address, ended })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(client: TcpStream, target: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        to.set_nodelay(true)?;
        thread::spawn(move || {
            let _ = pass(&from, &to, delay);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, delay: Duration) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        thread::sleep(delay);
        to.write_all(&buffer[..count])?;
    }
}
