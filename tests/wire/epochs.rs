//! The epoch that a Sentinel tells of a master, while its configuration
//! changes: it counts only with the address of the same configuration.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use setnx_lock::redis::{InfoDict, cmd};
use setnx_lock::{Error, Lock, LockGuard, Locker, MultiLock, Protocol};
use setnx_lock_proto::values::SideKey;
use testkit::failover::{MASTER, ask};

use crate::support::notified::until;
use crate::support::{LONG, Outcome, RedisServer, chain, expiring, millis, trials_of};

trials_of! {
    "epochs";
    a_sentinel_that_never_agrees_with_itself_is_passed_over,
    a_counter_is_raised_once_and_never_set,
    a_user_without_transactions_gets_no_number_that_was_not_raised,
    epochs_and_counts_that_are_used_up_say_what_to_do,
    the_counters_of_many_keys_are_raised_together,
    a_node_of_a_cluster_tells_its_epoch_also_without_info,
}

/// A configuration, as a Sentinel shows it: the epoch in its reply to MASTER, and the port in that to
/// GET-MASTER-ADDR-BY-NAME.
#[derive(Clone, Copy, Debug)]
struct Shown {
    epoch: u64,
    port: u16,
}

/// A Sentinel whose configuration changes from one answer to the next. The last stays.
struct ChangingSentinel {
    address: SocketAddr,
    /// Ahead, in the reverse order.
    shown: Arc<Mutex<Vec<Shown>>>,
}

impl ChangingSentinel {
    fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shown = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&shown);
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = Arc::clone(&own);
                thread::spawn(move || serve(&stream, &own));
            }
        });
        Ok(Self { address, shown })
    }

    fn shows(&self, mut shown: Vec<Shown>) {
        shown.reverse();
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    fn locker(&self) -> Result<Locker, Error> {
        Locker::sentinel_builder([self.address.to_string()], MASTER)?.retry_for(millis(300)).build()
    }
}

fn serve(stream: &TcpStream, shown: &Mutex<Vec<Shown>>) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next() {
        // The words of a command are every second line behind its length.
        let count: usize = line?.trim_start_matches('*').parse().map_err(io::Error::other)?;
        let words = lines.by_ref().take(2 * count).collect::<io::Result<Vec<_>>>()?;
        let is_address = words.get(3).is_some_and(|word| word.starts_with("GET-MASTER-ADDR"));
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Shown { epoch, port } = if shown.len() > 1 { shown.pop() } else { shown.last().copied() }
            .ok_or(io::ErrorKind::NotFound)?;
        drop(shown);
        let (epoch, port) = (epoch.to_string(), port.to_string());
        let reply = if is_address {
            vec!["127.0.0.1", &port]
        } else {
            vec!["ip", "127.0.0.1", "port", "1", "config-epoch", &epoch, "role-reported-time", "9000"]
        };
        let words = reply.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let text = format!("*{}\r\n{}", reply.len(), words.collect::<String>());
        (&*stream).write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Takes a token of this key on the server that the Sentinel leads to. Returns its epoch and its count.
fn token(locker: &Locker, key: &str) -> Result<(u64, u64), Error> {
    let token = Lock::new(locker, key, expiring())?.with_result(LockGuard::fencing_token)?;
    Ok((token >> 32, token & 0xffff_ffff))
}

fn a_sentinel_that_never_agrees_with_itself_is_passed_over() -> Outcome {
    let server = RedisServer::start()?;
    let sentinel = ChangingSentinel::start()?;
    sentinel.shows((0..1000).map(|epoch| Shown { epoch, port: server.port() }).collect());
    let error = token(&sentinel.locker()?, "k").expect_err("the epoch is never the same");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(
        chain(&error).contains("changes the epoch of its configuration again and again"),
        "{}",
        chain(&error)
    );
    Ok(())
}

fn a_counter_is_raised_once_and_never_set() -> Outcome {
    let server = RedisServer::start()?;
    let sentinel = ChangingSentinel::start()?;
    let counter = String::from_utf8(SideKey::Fence.of(b"k"))?;
    let say = |words: &[&str]| server.say(words);
    for (epoch, tokens) in [(0, [1, 2]), (3, [1, 2]), (3, [3, 4])] {
        sentinel.shows(vec![Shown { epoch, port: server.port() }]);
        let locker = sentinel.locker()?;
        say(&["CONFIG", "RESETSTAT"])?;
        assert_eq!([token(&locker, "k")?, token(&locker, "k")?], tokens.map(|count| (epoch, count)));
        let sent: InfoDict = ask(&server, cmd("INFO").arg("commandstats"))?;
        let calls = |name: &str| sent.get::<String>(&format!("cmdstat_{name}")).is_some();
        assert_eq!(calls("incrby"), epoch == 3 && tokens == [1, 2], "it is raised once");
        assert!(!calls("set"));
    }
    // Epochs that have begun anew: the numbers go on.
    sentinel.shows(vec![Shown { epoch: 0, port: server.port() }]);
    assert_eq!(token(&sentinel.locker()?, "k")?, (3, 5));
    // A counter that is forgotten is raised like one that begins, and keeps its time to live.
    sentinel.shows(vec![Shown { epoch: 4, port: server.port() }]);
    let options = expiring().forget_tokens_after(10 * LONG).protocol(Protocol::Auto);
    let lock = Lock::new(&sentinel.locker()?, "k", options)?;
    assert_eq!(lock.with_result(LockGuard::fencing_token)?, (4 << 32) + 1);
    assert_ne!(say(&["TTL", &counter])?, ":-1");
    Ok(())
}

fn a_user_without_transactions_gets_no_number_that_was_not_raised() -> Outcome {
    for command in ["watch", "multi", "incrby"] {
        let server = RedisServer::start_with(&format!("user default on nopass ~* &* +@all -{command}"))?;
        let sentinel = ChangingSentinel::start()?;
        sentinel.shows(vec![Shown { epoch: 3, port: server.port() }]);
        let error = token(&sentinel.locker()?, "k").expect_err("the counter is below its epoch");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(chain(&error).contains("NOPERM"), "{}", chain(&error));
    }
    Ok(())
}

fn epochs_and_counts_that_are_used_up_say_what_to_do() -> Outcome {
    let server = RedisServer::start()?;
    let sentinel = ChangingSentinel::start()?;
    let counter = String::from_utf8(SideKey::Fence.of(b"k"))?;
    let fails = |words: &[&str]| -> Outcome {
        let error = token(&sentinel.locker()?, "k").expect_err("there is none");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(words.iter().all(|words| error.to_string().contains(words)), "{error}");
        Ok(())
    };
    for epoch in [1 << 21, u64::from(u32::MAX), u64::MAX >> 1] {
        sentinel.shows(vec![Shown { epoch, port: server.port() }]);
        fails(&["the epoch of the server's configuration is", "a fencing token has room for 2097151"])?;
    }
    // The last epoch has room.
    sentinel.shows(vec![Shown { epoch: (1 << 21) - 1, port: server.port() }]);
    assert_eq!(token(&sentinel.locker()?, "last")?, ((1 << 21) - 1, 1));
    sentinel.shows(vec![Shown { epoch: 2, port: server.port() }]);
    let last = (2_u64 << 32) + (u64::from(u32::MAX) - (1 << 28));
    server.say(&["SET", &counter, &(last - 1).to_string()])?;
    assert_eq!(token(&sentinel.locker()?, "k")?, (2, last & 0xffff_ffff));
    fails(&["were taken in epoch 2 of the server's configuration", "SENTINEL FAILOVER"])?;
    // It begins the next epoch.
    sentinel.shows(vec![Shown { epoch: 3, port: server.port() }]);
    assert_eq!(token(&sentinel.locker()?, "k")?, (3, 1));
    Ok(())
}

fn a_node_of_a_cluster_tells_its_epoch_also_without_info() -> Outcome {
    let users = "user some on >pw ~* &* +@all -info\nuser few on >pw ~* &* +@all -info -cluster|info";
    let node = RedisServer::start_with(&format!("cluster-enabled yes\n{users}"))?;
    node.say(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
    node.say(&["CLUSTER", "SET-CONFIG-EPOCH", "6"])?;
    until("it is up", || node.say(&["SETNX", "other", "1"]).is_ok_and(|reply| reply.starts_with(':')));
    let locker = |user: &str, checks: bool| {
        let builder = Locker::cluster_builder([format!("redis://{user}:pw@{}", node.address())])?;
        if checks { builder.build() } else { builder.skip_server_check().build() }
    };
    for (key, locker) in
        [("a", locker("some", true)?), ("b", locker("some", false)?), ("c", locker("default", false)?)]
    {
        assert_eq!(token(&locker, key)?, (6, 1), "{key}");
    }
    // Without the right there is no epoch.
    assert_eq!(token(&locker("few", true)?, "d")?, (0, 1));
    Ok(())
}

fn the_counters_of_many_keys_are_raised_together() -> Outcome {
    const KEYS: usize = 100;
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Auto] {
        let server = RedisServer::start()?;
        let sentinel = ChangingSentinel::start()?;
        sentinel.shows(vec![Shown { epoch: 3, port: server.port() }]);
        let keys: Vec<String> = (0..KEYS).map(|n| format!("k{n}")).collect();
        let several = MultiLock::new(&sentinel.locker()?, &keys, expiring().protocol(protocol))?;
        let held = several.lock()?;
        server.say(&["CONFIG", "RESETSTAT"])?;
        let tokens = held.fencing_tokens()?;
        assert!(tokens.iter().all(|(_, token)| *token == (3 << 32) + 1), "{protocol:?}: {tokens:?}");
        let sent: InfoDict = ask(&server, cmd("INFO").arg("commandstats"))?;
        let execs: String = sent.get("cmdstat_exec").unwrap_or_default();
        let count = execs.split([',', '=']).nth(1).and_then(|count| count.parse::<usize>().ok());
        assert!(count.is_some_and(|count| count < KEYS / 4), "{protocol:?}: {execs}");
        held.release()?;
    }
    Ok(())
}
