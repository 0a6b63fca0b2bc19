//! Functions with the attribute `#[locked]`: when the lock is held, by which key, and what they return without it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use redis::Commands as _;
use setnx_lock::{Error, Key, Lock, LockOptions, LockState, Locker, Protocol, locked};
use setnx_lock_testing::TestServer;

use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, expiring, trials_of};

trials_of! {
    "locked";
    the_lock_is_held_during_the_body_and_released_after_it,
    a_function_that_lost_its_lock_does_not_look_like_a_success,
    keys_are_as_they_are_written,
    contention_is_an_error_of_the_function,
    a_nested_call_fails_or_joins,
    options_reach_the_lock,
    the_body_can_use_the_guard,
}

const HOUR: Duration = Duration::from_secs(3600);
const PREFIX: &str = "orders";
const JOB: LockOptions = LockOptions::expiring_after(Duration::from_secs(7200)).hold_at_least(HOUR);
const BASE: LockOptions = LockOptions::expiring_after(HOUR).protocol(Protocol::Watched);

#[derive(Debug)]
enum AppError {
    Busy(Error),
    Lock(Error),
    Own(&'static str),
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// A server of the test's own, a locker, and what a connection beside it sees.
struct Shop {
    server: TestServer,
    locker: Locker,
    name: String,
}

impl Shop {
    fn open() -> Result<Self, Box<dyn std::error::Error>> {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        Ok(Self { server, locker, name: "north".to_owned() })
    }

    /// The keys on the server, in order.
    fn keys(&self) -> Vec<String> {
        let mut connection = redis::Client::open(self.server.url()).unwrap().get_connection().unwrap();
        let mut keys: Vec<String> = connection.keys("*").unwrap();
        keys.sort();
        keys
    }

    /// Acquires a lock that is another holder's for the locker of the shop.
    fn hold_elsewhere(&self, key: &str) -> Result<setnx_lock::LockGuard, Error> {
        Lock::new(&opened(&self.server.url())?, key, expiring())?.lock()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Last,
    Early,
    Error,
    Panic,
}

const ENDS: [End; 4] = [End::Last, End::Early, End::Error, End::Panic];

fn finish(end: End) -> Result<u8, AppError> {
    match end {
        End::Last | End::Early => Ok(1),
        End::Error => Err(AppError::Own("propagated")),
        End::Panic => resume_unwind(Box::new("expected")),
    }
}

/// Looks at the keys when it is dropped.
struct Look<'a>(&'a Shop, &'a mut Vec<String>);

impl Look<'_> {
    fn count(&self) -> usize {
        self.1.len()
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.1.extend(self.0.keys());
    }
}

/// What the last expression borrows is dropped before the lock is released.
#[locked(locker = shop.locker, key = "work", expiration = LONG, timeout = LONG)]
fn work(shop: &Shop, end: End, seen: &mut Vec<String>) -> Result<u8, AppError> {
    *seen = shop.keys();
    if end == End::Early {
        return Ok(2);
    }
    let one = finish(end)?;
    match Look(shop, seen).count() {
        1 => Ok(one),
        _ => Err(AppError::Own("more than one key")),
    }
}

fn the_lock_is_held_during_the_body_and_released_after_it() -> Outcome {
    let shop = Shop::open()?;
    for end in ENDS {
        let mut seen = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&shop, end, &mut seen)));
        assert_eq!(seen, vec!["work"; if end == End::Last { 2 } else { 1 }]);
        assert_eq!(shop.keys(), [""; 0]);
        let as_expected = match end {
            End::Last => matches!(outcome, Ok(Ok(1))),
            End::Early => matches!(outcome, Ok(Ok(2))),
            End::Error => matches!(outcome, Ok(Err(AppError::Own("propagated")))),
            End::Panic => outcome.is_err(),
        };
        assert!(as_expected, "{end:?}");
    }
    Ok(())
}

/// Returns from anywhere, and what it has lost is no success.
#[locked(locker = shop.locker, key = "lost", expiration = LONG, timeout = LONG)]
fn loses(shop: &Shop, beside: &Lock, end: End) -> Result<u8, AppError> {
    beside.clear()?;
    if end == End::Early {
        return Ok(2);
    }
    finish(end)
}

fn a_function_that_lost_its_lock_does_not_look_like_a_success() -> Outcome {
    let shop = Shop::open()?;
    let beside = Lock::new(&shop.locker, "lost", expiring())?;
    for end in [End::Last, End::Early] {
        let outcome = loses(&shop, &beside, end);
        assert!(matches!(outcome, Err(AppError::Lock(Error::Lost { .. }))), "{end:?}: {outcome:?}");
    }
    let outcome = loses(&shop, &beside, End::Error);
    assert!(matches!(outcome, Err(AppError::Own("propagated"))), "its own error goes first: {outcome:?}");
    Ok(())
}

struct Team {
    id: u64,
    name: &'static str,
}

impl Shop {
    #[locked(locker = self.locker, options = expiring(), key = "{self.name}:{kind}")]
    fn renamed(&mut self, mut kind: String) -> Result<Vec<String>, AppError> {
        self.name.push('!');
        kind.clear();
        Ok(self.keys())
    }
}

static URL: OnceLock<String> = OnceLock::new();
static LOCKER: LazyLock<Locker> =
    LazyLock::new(|| opened(URL.get().expect("the test has set it")).expect("the server runs"));

#[locked]
fn close_day(shop: &Shop) -> Result<Vec<String>, AppError> {
    Ok(shop.keys())
}

mod keys {
    use super::{Key, PREFIX, Shop, Team, expiring, locked};

    pub(super) type Seen = Result<Vec<String>, super::AppError>;

    #[locked(locker = shop.locker, options = expiring(), key = "team:{team.id}:{team.name.to_lowercase()}:{shop.name:?}:{PREFIX}")]
    pub(super) fn formatted(shop: &Shop, team: &Team) -> Seen {
        Ok(shop.keys())
    }

    #[locked(locker = shop.locker, options = expiring(), key = "{{{team.id:>04}}}:{[1, 2][1]}:{super::PREFIX:.3}")]
    pub(super) fn with_formats(shop: &Shop, team: &Team) -> Seen {
        Ok(shop.keys())
    }

    #[locked(locker = shop.locker, options = expiring(), key = Key::joined([PREFIX, "7", team.name]))]
    pub(super) fn computed(shop: &Shop, team: &Team) -> Seen {
        Ok(shop.keys())
    }

    #[locked(locker = shop.locker, options = expiring())]
    pub(super) fn r#type(shop: &Shop, _: &Team) -> Seen {
        Ok(shop.keys())
    }
}

fn keys_are_as_they_are_written() -> Outcome {
    let (mut shop, team) = (Shop::open()?, Team { id: 7, name: "Reds" });
    let module = concat!(module_path!(), "::keys");
    for (function, key) in [
        (keys::formatted as fn(&Shop, &Team) -> keys::Seen, "team:7:reds:\"north\":orders".to_owned()),
        (keys::with_formats, "{0007}:2:ord".to_owned()),
        (keys::computed, "orders:7:Reds".to_owned()),
        (keys::r#type, format!("{module}::type")),
    ] {
        assert_eq!(function(&shop, &team).unwrap(), [key]);
    }
    URL.set(shop.server.url()).expect("no other test sets it");
    assert_eq!(close_day(&shop).unwrap(), [concat!(module_path!(), "::close_day")], "by default");
    assert_eq!(shop.renamed("swap".to_owned()).unwrap(), ["north:swap"], "it is made before the body runs");
    Ok(())
}

fn contention_is_an_error_of_the_function() -> Outcome {
    #[locked(locker = shop.locker, options = expiring(), key = "k", timeout = "0s")]
    fn converted(shop: &Shop) -> Result<(), AppError> {
        Err(AppError::Own("ran"))
    }

    #[locked(locker = shop.locker, options = expiring(), key = "k", timeout = "0s", on_contention = AppError::Busy)]
    fn by_a_variant(shop: &Shop) -> Result<(), AppError> {
        Err(AppError::Own("ran"))
    }

    let shop = Shop::open()?;
    let held = shop.hold_elsewhere("k")?;
    assert!(matches!(converted(&shop), Err(AppError::Lock(Error::Contended { .. }))));
    assert!(matches!(by_a_variant(&shop), Err(AppError::Busy(Error::Contended { .. }))));
    held.release()?;
    assert!(matches!(converted(&shop), Err(AppError::Own("ran"))));
    assert!(matches!(by_a_variant(&shop), Err(AppError::Own("ran"))));
    // Another error than contention is converted by `From`.
    shop.locker.shut_down();
    assert!(matches!(by_a_variant(&shop), Err(AppError::Lock(Error::ShutDown { .. }))));
    Ok(())
}

fn a_nested_call_fails_or_joins() -> Outcome {
    const JOINING: LockOptions = LockOptions::expiring_after(HOUR).reentrant();

    #[locked(locker = shop.locker, key = "k", expiration = HOUR, timeout = LONG)]
    fn plain(shop: &Shop, inner: &dyn Fn() -> Result<u8, Error>) -> Result<u8, Error> {
        inner()
    }

    #[locked(locker = shop.locker, key = "k", options = JOINING, timeout = LONG)]
    fn joins(shop: &Shop, inner: &dyn Fn() -> Result<u8, Error>) -> Result<u8, Error> {
        let depth = inner()?;
        assert_eq!(shop.keys(), ["k"], "the outermost call releases");
        Ok(depth + 1)
    }

    let shop = Shop::open()?;
    let lock = Lock::new(&shop.locker, "k", JOINING)?;
    let nothing = || Ok(0);
    assert!(matches!(plain(&shop, &|| plain(&shop, &nothing)), Err(Error::Nested { .. })));
    assert!(matches!(lock.with(|_| plain(&shop, &nothing))?, Err(Error::Nested { .. })));
    assert_eq!(joins(&shop, &|| joins(&shop, &|| joins(&shop, &nothing)))?, 3);
    assert_eq!(lock.with(|_| joins(&shop, &nothing))??, 1);
    assert_eq!(shop.keys(), [""; 0]);
    Ok(())
}

fn options_reach_the_lock() -> Outcome {
    #[locked(locker = shop.locker, key = "leased", expiration = "1h", protocol = "ttl", guard = held, timeout = LONG)]
    fn leased(shop: &Shop) -> Result<(), AppError> {
        assert_eq!(held.protocol(), Protocol::Ttl);
        let remaining = held.remaining().unwrap_or_default();
        assert!(remaining <= HOUR && remaining > HOUR / 2, "{remaining:?}");
        assert_eq!(shop.keys(), ["leased"]);
        Ok(())
    }

    #[locked(locker = shop.locker, key = "job", options = JOB, timeout = LONG)]
    fn job(shop: &Shop) -> Result<(), Error> {
        Ok(())
    }

    #[locked(locker = shop.locker, key = "refined", options = BASE, protocol = Classic, guard = held, timeout = LONG)]
    fn refined(shop: &Shop) -> Result<(Protocol, Option<Duration>), Error> {
        Ok((held.protocol(), held.remaining()))
    }

    #[locked(locker = shop.locker, key = "endless", options = LockOptions::without_expiration(), guard = held, timeout = LONG)]
    fn endless(shop: &Shop) -> Result<Option<Duration>, Error> {
        Ok(held.remaining())
    }

    #[locked(locker = shop.locker, options = expiring().wait_forever().max_attempts(1), key = "busy")]
    fn tried_once(shop: &Shop) -> Result<(), Error> {
        Ok(())
    }

    let shop = Shop::open()?;
    leased(&shop).unwrap();
    job(&shop)?;
    assert!(matches!(Lock::new(&shop.locker, "job", expiring())?.state()?, LockState::Until { .. }));
    let (protocol, remaining) = refined(&shop)?;
    assert_eq!(protocol, Protocol::Classic);
    assert!(remaining.is_some_and(|remaining| remaining > HOUR / 2), "{remaining:?}");
    assert_eq!(endless(&shop)?, None);
    let held = shop.hold_elsewhere("busy")?;
    assert!(matches!(tried_once(&shop), Err(Error::Contended { .. })));
    held.release()?;
    Ok(tried_once(&shop)?)
}

fn the_body_can_use_the_guard() -> Outcome {
    #[locked(locker = shop.locker, key = "k", expiration = HOUR, guard = held, timeout = LONG)]
    fn steps(shop: &Shop, beside: &Lock) -> Result<u64, AppError> {
        let token = held.fencing_token()?;
        held.ensure_held()?;
        beside.clear()?;
        assert!(held.verify().is_err_and(|error| error.is_lost()));
        held.ensure_held()?;
        Ok(token)
    }

    let shop = Shop::open()?;
    let beside = Lock::new(&shop.locker, "k", expiring())?;
    assert!(matches!(steps(&shop, &beside), Err(AppError::Lock(Error::Lost { .. }))));
    Ok(())
}
