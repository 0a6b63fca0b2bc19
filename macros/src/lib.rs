//! The attribute [`macro@locked`] of the crate setnx-lock. Depend on that crate with its feature `macros`, and
//! write `#[setnx_lock::locked(…)]`; the expansion refers to that crate, or to the one that the argument `crate` names.

mod arguments;
mod duration;
mod expand;
mod function;
mod key;
mod options;
mod syntax;

use proc_macro::TokenStream;

/// Runs a function or method while a lock is held. The lock is released afterwards, even after `?`, an early
/// `return` or a panic.
///
/// If the lock was lost meanwhile, the function returns `Error::Lost`, unless the body itself failed.
///
#[doc = include_str!("example.md")]
///
/// # Arguments
///
/// The braces of a key can hold any expression: `"team:{team.id}"`, `"{self.name()}"`, `"{id:>05}"`.
///
/// A duration is a string with units, such as `"15s"`, `"500ms"` or `"2m 30s"`, which is checked at compile time,
/// or an expression of type `Duration`. Arguments that contradict each other do not compile.
///
/// | argument | effect | default |
/// |---|---|---|
/// | `locker = EXPR` | a static, `self.locker`, or a call that returns a reference to a locker | the static `LOCKER` |
/// | `key = "…"` | the key, in the syntax of `format!` | module path and function name |
/// | `key = EXPR` | the key, as an expression that converts into a `Key` | |
/// | `expiration = "15s"` | the length of the lease; work that may take longer needs a longer one | 30 s |
/// | `timeout = "5s"` | how long a call waits for the lock | 5 s |
/// | `protocol = Auto` | `Classic`, `Watched`, `Ttl` or `Auto` | `Classic` |
/// | `auto_extend = "10m"` | extends the lease while the body runs, for at most this long in total | off |
/// | `options = EXPR` | the `LockOptions`, instead of `expiration`; the other arguments refine them | |
/// | `on_contention = PATH` | a function, variant or closure that converts a contention error | `From<setnx_lock::Error>` |
/// | `guard = NAME` | the name of the `&LockGuard` in the body | |
/// | `crate = PATH` | the library, where the dependency has another name | `::setnx_lock` |
///
/// # The default key
///
/// Without `key` the key is the path of the module and the name of the function: `my_crate::orders::close_day`. The
/// attribute does not see the type that a method belongs to, so **methods with the same name in one module share
/// that key**: give each method a key.
///
/// If a function is renamed or moved, its default key changes, and older versions that still run do not exclude it.
///
/// The key is computed before the wait for the lock and before the body runs.
///
/// # Errors
///
/// The function must return a `Result` or an alias of one; otherwise it does not compile. `From<setnx_lock::Error>`
/// converts an error of the lock into the function's error type. During contention (`Error::is_contention`),
/// `on_contention` converts it, if given. A failed release is an error only if the lock was lost; any other failure
/// goes to the log and the observer.
///
/// # Nested calls
///
/// A call inside another one, or inside `Lock::with`, on the same key by the same
/// thread and through the same locker fails with `Error::Nested`. If the options of
/// both are `reentrant()`, it joins the enclosing call, which releases the lock.
///
/// # Limits
///
/// An `async fn` is refused, because waiting for a lock blocks the thread. Put the attribute on a blocking
/// function, and call that on a thread for blocking work. For a part of a function use `Lock::with`; for a lock
/// that moves to another thread, use `Lock::lock`.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), &item.into()).into()
}
