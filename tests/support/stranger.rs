//! A server that lets no client in, or that is none of Redis.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

/// When it says its words, after which it hangs up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// As soon as a client has connected.
    AtOnce,
    /// In place of the reply to what the client has sent first.
    First,
}

pub(crate) struct Stranger {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Stranger {
    /// Starts one that says these words to each client.
    pub(crate) fn start(says: Says, words: &'static [u8]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, ended) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&ended);
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                thread::spawn(move || {
                    if says == Says::First {
                        let _ = client.read(&mut [0; 1024]);
                    }
                    let _ = client.write_all(words);
                });
            }
        });
        Ok(Self { address, ended })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}
