//! A network with delays in front of a server. Stands in for a gate that can do more, with the same names.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// One command as it came in.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Counts the connections.
    pub(crate) connection: usize,
    /// In upper case.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
}

type Delay = dyn Fn(&Asked) -> Duration + Send + Sync;

/// Stops listening, and closes what is open, when dropped.
#[derive(Debug)]
pub(crate) struct Gate {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    real: SocketAddr,
    delay: OnceLock<Box<Delay>>,
    open: Mutex<Vec<TcpStream>>,
    stopped: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("real", &self.real).finish_non_exhaustive()
    }
}

impl Gate {
    pub(crate) fn before(real: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            real,
            delay: OnceLock::new(),
            open: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { break };
                if accepting.stopped.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.serve(connection, &stream));
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Sleeps that long before each command is carried out.
    pub(crate) fn slow_down(&self, delay: impl Fn(&Asked) -> Duration + Send + Sync + 'static) {
        let _ = self.shared.delay.set(Box::new(delay));
    }

    /// Forgets what was asked so far.
    #[allow(clippy::unused_self, reason = "nothing is remembered here")]
    pub(crate) fn forget(&self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _wakes_the_listener = TcpStream::connect(self.address);
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _may_be_closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn serve(&self, connection: usize, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut from_client = BufReader::new(client);
        let mut to_client = client;
        let real = TcpStream::connect(self.real)?;
        real.set_nodelay(true)?;
        let mut from_real = BufReader::new(&real);
        while let Some((request, words)) = read_request(&mut from_client)? {
            let asked = Asked { connection, name: words[0].to_uppercase(), arguments: words[1..].to_vec() };
            let delay = self.delay.get().map_or(Duration::ZERO, |delay| delay(&asked));
            if !delay.is_zero() {
                thread::sleep(delay);
            }
            (&real).write_all(&request)?;
            // A client that has given up gets no answer, and what it sent is carried out all the same.
            let _ = to_client.write_all(&read_reply(&mut from_real)?);
        }
        Ok(())
    }
}

/// Reads a request, an array of bulks; `None` at the end of the stream. Returns it as it came and as words.
fn read_request(stream: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, Vec<String>)>> {
    let mut raw = Vec::new();
    let mut words = Vec::new();
    let count = read_number(stream, &mut raw)?;
    for _ in 0..count.unwrap_or(0) {
        let length = read_number(stream, &mut raw)?.unwrap_or(0);
        let word = read_bulk(stream, length, &mut raw)?;
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok((!words.is_empty()).then_some((raw, words)))
}

/// Reads a reply: a line, a bulk, an array of replies, or a map of them.
fn read_reply(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    let number = read_number(stream, &mut raw)?;
    match (raw.first(), number) {
        (None, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
        (Some(b'$'), Some(length)) => {
            read_bulk(stream, length, &mut raw)?;
        }
        (Some(kind @ (b'*' | b'%')), Some(count)) => {
            for _ in 0..if *kind == b'%' { 2 * count } else { count } {
                raw.extend(read_reply(stream)?);
            }
        }
        _ => {}
    }
    Ok(raw)
}

/// Reads a line and returns the number that follows its first byte, if there is one that is not negative.
fn read_number(stream: &mut impl BufRead, raw: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let start = raw.len();
    stream.read_until(b'\n', raw)?;
    Ok(str::from_utf8(raw.get(start + 1..).unwrap_or_default())
        .ok()
        .and_then(|text| text.trim_end().parse().ok()))
}

fn read_bulk(stream: &mut impl BufRead, length: usize, raw: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut bulk = vec![0; length + 2];
    stream.read_exact(&mut bulk)?;
    raw.extend_from_slice(&bulk);
    bulk.truncate(length);
    Ok(bulk)
}
