//! Functions of every shape compile with the attribute, without
//! a warning of the compiler or of clippy in the user's code.

#![deny(warnings, clippy::all, clippy::pedantic)]
#![allow(dead_code, reason = "compiled, never called")]
#![expect(clippy::needless_pass_by_value, reason = "of the functions here, also without the attribute")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use setnx_lock::{Key, LockGuard, LockOptions, Locker, Protocol, locked};

static LOCKER: LazyLock<Locker> = LazyLock::new(|| Locker::open("redis://127.0.0.1/").expect("an address"));

const PREFIX: &str = "orders";
const LEASE: Duration = Duration::from_secs(15);
const BASE: LockOptions = LockOptions::expiring_after(LEASE).protocol(Protocol::Auto);

type Boxed = Box<dyn StdError + Send + Sync>;
type Outcome<T = ()> = Result<T, AppError>;

#[derive(Debug)]
enum AppError {
    Busy(setnx_lock::Error),
    Lock(setnx_lock::Error),
    Other,
}

impl From<setnx_lock::Error> for AppError {
    fn from(error: setnx_lock::Error) -> Self {
        Self::Lock(error)
    }
}

fn locker() -> &'static Locker {
    &LOCKER
}

fn busy(error: setnx_lock::Error) -> AppError {
    AppError::Busy(error)
}

#[derive(Debug)]
struct Team {
    id: u64,
    name: String,
}

mod defaults {
    use super::{AppError, LOCKER, Outcome, locked};

    #[locked]
    pub(super) fn bare() -> Outcome {
        Ok(())
    }

    #[locked()]
    pub(super) fn empty() -> Result<u8, setnx_lock::Error> {
        Ok(1)
    }

    #[locked]
    fn r#type() -> Result<(), AppError> {
        #![allow(unused_variables)]
        let unused = 1;
        Ok(())
    }
}

/// Documented.
#[must_use = "and with attributes"]
#[inline]
#[locked(key = "team:{team.id}:trade", expiration = "15s", timeout = "5s")]
pub(crate) fn documented(team: &Team) -> Result<u64, AppError> {
    Ok(team.id)
}

#[locked(locker = locker(), key = "{team.name}:{id:>05}:{{x}}:{ids[0]}:{PREFIX:?}:{id:width$}", expiration = LEASE)]
fn formatted(team: &Team, id: u8, ids: &[u8], width: usize) -> Outcome<usize> {
    Ok(team.name.len() + usize::from(id) + ids.len() + width)
}

#[locked(key = Key::joined(["a", name.as_str()]))]
fn key_of_an_expression(name: String) -> Outcome<String> {
    Ok(name)
}

#[locked(key = NAMES.lock().unwrap_or_else(PoisonError::into_inner).as_str())]
fn key_that_borrows_for_a_moment() -> Outcome {
    Ok(())
}

static NAMES: Mutex<String> = Mutex::new(String::new());

#[locked(on_contention = AppError::Busy)]
fn early_returns(n: u8) -> Outcome<u8> {
    if n == 0 {
        return Err(AppError::Other);
    }
    let parsed: u8 = "1".parse().map_err(|_| AppError::Other)?;
    for i in 0..n {
        if i == parsed {
            return Ok(i);
        }
    }
    Ok(parsed)
}

#[locked(on_contention = busy)]
fn only_returns() -> Outcome {
    return Err(AppError::Other);
}

#[locked(on_contention = |error| if error.is_transient() { AppError::Busy(error) } else { AppError::Other })]
fn never_returns() -> Outcome {
    loop {
        std::thread::park();
    }
}

#[locked(key = "k")]
fn panics() -> Outcome<u8> {
    panic!("it")
}

#[locked(key = "k")]
fn unfinished() -> Outcome<u8> {
    todo!()
}

#[locked(key = "k")]
fn boxed() -> Result<Box<dyn Debug>, Boxed> {
    Ok(Box::new(1))
}

#[locked(key = "k", guard = held)]
fn with_the_guard() -> Outcome<u64> {
    held.ensure_held()?;
    takes_a_guard(held);
    Ok(held.fencing_token()?)
}

fn takes_a_guard(_held: &LockGuard) {}

#[locked(key = "{id}")]
fn generic<'a, T, const N: usize>(id: &'a str, items: [T; N]) -> Result<(&'a str, [T; N]), AppError>
where
    T: Clone + Debug,
{
    Ok((id, items))
}

#[locked(key = "{items}")]
fn impl_trait<'a>(
    items: &'a str,
    by: impl Fn(&str) -> usize + 'a,
) -> Outcome<impl Iterator<Item = char> + 'a> {
    let n = by(items);
    Ok(items.chars().take(n))
}

#[locked(key = "k")]
fn returns_a_closure() -> Outcome<impl Fn(&str) -> usize> {
    Ok(|text: &str| text.len())
}

#[locked(key = "k")]
fn borrows_at_the_end(numbers: RefCell<Vec<u8>>) -> Outcome<usize> {
    match numbers.borrow().first() {
        Some(first) => Ok(usize::from(*first)),
        None => Err(AppError::Other),
    }
}

#[locked(key = "{first}:{name}")]
fn patterns((first, _): (u8, u8), Team { name, .. }: Team, mut count: u8) -> Outcome<(u8, String)> {
    count += first;
    Ok((count, name))
}

#[locked(key = "k")]
extern "Rust" fn foreign() -> Outcome {
    Ok(())
}

#[locked(options = BASE.reentrant(), key = "k", timeout = LEASE)]
fn refined() -> Outcome {
    const INSIDE: u8 = 1;
    fn inner() -> u8 {
        INSIDE
    }
    if inner() > 0 { Ok(()) } else { Err(AppError::Other) }
}

#[locked(
    locker = locker(),
    key = "k",
    expiration = "15s",
    timeout = "5s",
    protocol = Protocol::Watched,
    auto_extend = "10m",
    on_contention = AppError::Busy,
    guard = _held
)]
fn every_option() -> Outcome {
    Ok(())
}

#[locked(options = LockOptions::without_expiration(), key = "k", protocol = "classic")]
fn without_expiration() -> Outcome {
    Ok(())
}

trait Work {
    fn work(&mut self, by: u8) -> Outcome<u8>;

    #[locked(key = "default")]
    fn provided(&self) -> Outcome<u8> {
        Ok(1)
    }
}

struct Worker {
    locker: Locker,
    name: String,
    done: Cell<u8>,
    found: HashMap<u8, String>,
}

impl Work for Worker {
    #[locked(locker = self.locker, key = "{self.name}:{by}")]
    fn work(&mut self, by: u8) -> Outcome<u8> {
        self.done.set(by);
        let found = self.found.entry(by).or_default();
        found.push('x');
        Ok(self.done.get())
    }
}

impl Worker {
    #[locked(locker = self.locker, key = "{self.name()}")]
    fn shared(&self) -> Outcome<&str> {
        Ok(&self.name)
    }

    #[locked(locker = self.locker, key = "{self.name}")]
    fn consumed(self) -> Outcome<(Locker, String)> {
        Ok((self.locker, self.name))
    }

    #[locked(key = "k")]
    fn associated() -> Outcome<Self> {
        Err(AppError::Other)
    }

    #[locked(locker = self.locker, key = "{self.name}", guard = _held)]
    fn boxed(self: Box<Self>, f: &mut dyn FnMut()) -> Outcome<Box<Self>> {
        f();
        Ok(self)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Its names are not those of the attribute's own variables.
#[locked(key = "{lock}:{scope}:{error}")]
fn names(lock: u8, scope: u8, error: u8) -> Outcome<u8> {
    Ok(lock + scope + error)
}

macro_rules! functions {
    ($($name:ident: $key:literal, $lease:expr, $ret:ty;)*) => {$(
        #[locked(key = $key, expiration = $lease)]
        fn $name(id: u8) -> $ret {
            Ok(id)
        }
    )*};
}

functions! {
    by_a_macro: "macro", "5s", Outcome<u8>;
    by_a_macro_too: "other", LEASE, Result<u8, AppError>;
}

#[test]
fn every_shape_compiles() {
    let _: fn() -> Outcome = defaults::bare;
    let _: fn(&Team) -> Outcome<u64> = documented;
}

mod facade {
    pub(crate) use setnx_lock as locks;
}

#[facade::locks::locked(
    crate = facade::locks,
    key = "a",
    protocol = Auto,
    timeout = "1s",
    guard = held,
    on_contention = AppError::Busy
)]
fn by_another_name() -> Outcome {
    Ok(held.ensure_held()?)
}
