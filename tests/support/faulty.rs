//! A server that misbehaves as told: speaks the protocol in front of a real one, writes down what it was asked, and for one
//! command does something else than answer it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

/// What becomes of one command.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The connection is reset before the command was carried out.
    LoseRequest,
    /// The command is carried out, and the connection is closed instead of answered.
    LoseAnswer,
    /// The command is carried out, and the answer comes so much later.
    AnswerLate(Duration),
    /// The command is not carried out, and this is said.
    Say(&'static str),
}

/// One command as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Counts the connections.
    pub(crate) connection: usize,
    /// In upper case.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
}

/// The server. Stops listening, and closes what is open, when dropped.
#[derive(Debug)]
pub(crate) struct FaultyServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    real: SocketAddr,
    /// For each the name of the command it waits for; the first of that name gets it.
    faults: Mutex<VecDeque<(&'static str, Fault)>>,
    asked: Mutex<Vec<Asked>>,
    open: Mutex<Vec<TcpStream>>,
    stopped: AtomicBool,
}

impl FaultyServer {
    /// Starts one in front of the real server at `real`.
    pub(crate) fn before(real: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            real,
            faults: Mutex::default(),
            asked: Mutex::default(),
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
                shared.open.lock().unwrap().extend(stream.try_clone());
                // A client that goes away ends its connection, and nothing else.
                thread::spawn(move || shared.serve(connection, &stream));
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Lets the next command of this name come to harm; several wait in a row.
    pub(crate) fn next(&self, command: &'static str, fault: Fault) {
        self.shared.faults.lock().unwrap().push_back((command, fault));
    }

    /// Returns what was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Returns the names of what was asked so far.
    pub(crate) fn names(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.name).collect()
    }
}

impl Drop for FaultyServer {
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
        let mut from_client = BufReader::new(client);
        let mut to_client = client;
        let real = TcpStream::connect(self.real)?;
        let mut from_real = BufReader::new(&real);
        while let Some((request, words)) = read_request(&mut from_client)? {
            let name = words[0].to_uppercase();
            self.asked.lock().unwrap().push(Asked {
                connection,
                name: name.clone(),
                arguments: words[1..].to_vec(),
            });
            let fault = self.fault_for(&name);
            let mut ask_real = || -> io::Result<Vec<u8>> {
                (&real).write_all(&request)?;
                read_reply(&mut from_real)
            };
            match fault {
                None => to_client.write_all(&ask_real()?)?,
                Some(Fault::LoseRequest) => return client.shutdown(Shutdown::Both),
                Some(Fault::LoseAnswer) => {
                    ask_real()?;
                    return client.shutdown(Shutdown::Both);
                }
                Some(Fault::AnswerLate(delay)) => {
                    let reply = ask_real()?;
                    thread::sleep(delay);
                    to_client.write_all(&reply)?;
                }
                Some(Fault::Say(text)) => to_client.write_all(text.as_bytes())?,
            }
        }
        Ok(())
    }

    fn fault_for(&self, name: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let n = faults.iter().position(|(command, _)| *command == name)?;
        faults.remove(n).map(|(_, fault)| fault)
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
