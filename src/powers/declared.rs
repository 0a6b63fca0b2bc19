//! Locks that are declared once by name and then used for many ids, with the keys of the gem redis-objects.

mod lock_id;
mod template;

use proto::values::Key;

use crate::{Error, Lock, LockOptions, Locker};
pub use lock_id::LockId;
use template::{ID, Prefix};

/// A lock that is declared once, usually as a `const`, and then used for many ids.
///
/// It is the counterpart of a declaration such as `lock :trade_players, expiration: 15` with the Ruby gem
/// redis-objects. Its keys are the gem's, byte for byte.
///
/// | Ruby, in `class Team` | key | here |
/// |---|---|---|
/// | `lock :trade_players` | `team:7:trade_players_lock` | `DeclaredLock::in_class("Team", "trade_players", …)`, `.of(&locker, 7)` |
/// | `lock :reorder, global: true` | `team::reorder_lock` | the same, `.global(&locker)` |
/// | `lock :draft, key: 'draft:#{id}'` | `draft:7` | `.key_template("draft:#{id}")`, `.of(&locker, 7)` |
/// | `self.redis_prefix = 'club'` | `club:7:trade_players_lock` | `DeclaredLock::with_prefix("club", "trade_players", …)` |
///
/// ```
/// use setnx_lock::{DeclaredLock, Error, LockOptions, Locker};
/// use std::time::Duration;
///
/// const TRADE_PLAYERS: DeclaredLock =
///     DeclaredLock::in_class("Team", "trade_players", LockOptions::expiring_after(Duration::from_secs(15)));
///
/// fn trade(locker: &Locker, team: u64) -> Result<(), Error> {
///     TRADE_PLAYERS.of(locker, team)?.with(|held| println!("{} is held", held.key()))
/// }
/// assert_eq!(TRADE_PLAYERS.key(7)?.to_string(), "team:7:trade_players_lock");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct DeclaredLock {
    prefix: Prefix,
    name: &'static str,
    options: LockOptions,
    template: Option<&'static str>,
}

impl DeclaredLock {
    /// Declares a lock in a class. Give the class name as Ruby spells it, including modules: `"Team"`,
    /// `"Nested::HTTPServerV2"`.
    ///
    /// The prefix of the keys is made by the rule of gems before 2.0: the part after the last `::`, in lower case
    /// with underscores, such as `team` or `http_server_v2`. For later gems add
    /// [`modern_prefix`](Self::modern_prefix).
    ///
    /// # Panics
    ///
    /// If the class or the lock has no name; at compile time if the declaration is a `const`.
    #[track_caller]
    pub const fn in_class(class: &'static str, name: &'static str, options: LockOptions) -> Self {
        assert!(
            !matches!(class.as_bytes(), [] | [.., b':']),
            "DeclaredLock: the class has no name; give it as Ruby has it, \"Billing::Invoice\""
        );
        Self::declared(Prefix::Class { name: class, modern: false }, name, options)
    }

    /// Declares a lock whose keys have this prefix, as
    /// `self.redis_prefix = …` sets it in Ruby. An empty prefix is kept.
    ///
    /// # Panics
    ///
    /// If the lock has no name; at compile time if the declaration is a `const`.
    #[track_caller]
    pub const fn with_prefix(prefix: &'static str, name: &'static str, options: LockOptions) -> Self {
        Self::declared(Prefix::Given(prefix), name, options)
    }

    #[track_caller]
    const fn declared(prefix: Prefix, name: &'static str, options: LockOptions) -> Self {
        assert!(
            !name.is_empty(),
            "DeclaredLock: the lock has no name; give the one of `lock :name`, without its colon and without `_lock`"
        );
        Self { prefix, name, options, template: None }
    }

    /// Returns the declaration with the prefix made by the rule of gem 2.0: the whole class name, with `__` for
    /// `::`, such as `nested__http_server_v2`.
    ///
    /// Has no effect on a prefix given to [`with_prefix`](Self::with_prefix).
    pub const fn modern_prefix(self) -> Self {
        let prefix = match self.prefix {
            Prefix::Class { name, .. } => Prefix::Class { name, modern: true },
            given @ Prefix::Given(_) => given,
        };
        Self { prefix, ..self }
    }

    /// Returns the declaration with keys made from a template, in which `#{id}` stands for the id. It is the
    /// counterpart of `key:` in Ruby.
    ///
    /// The keys then contain neither the prefix nor the name. Without `#{id}` in the template, all ids share one
    /// lock. For keys that contain other Ruby code, build the key yourself and use [`Lock::new`].
    ///
    /// # Panics
    ///
    /// At compile time if the declaration is a `const`:
    ///
    /// - if the template is empty,
    /// - if Ruby would replace more than `#{id}`: another `#{…}`, `#@…`, `#$…`, or a backslash,
    /// - if its parentheses do not balance: Ruby reads `foo)#{id}` as `foo`, and `foo(#{id}` is a syntax error
    ///   there.
    #[track_caller]
    pub const fn key_template(self, template: &'static str) -> Self {
        assert!(
            !template.is_empty(),
            "DeclaredLock: the template of the key is empty; give the one of `key:`"
        );
        assert!(
            template::has_only_id(template),
            "DeclaredLock: a template is taken as it is, but for #{{id}}; Ruby would make something of a backslash, #@ or another \
             #{{}} in this one, so build the key yourself and use Lock::new"
        );
        assert!(
            template::pairs_parentheses(template),
            "DeclaredLock: the parentheses of the template do not pair, so Ruby reads another key or none; build the key yourself and \
             use Lock::new"
        );
        Self { template: Some(template), ..self }
    }

    /// Returns the options of the locks.
    pub const fn options(&self) -> LockOptions {
        self.options
    }

    /// Returns the lock for an id. Contacts no server.
    ///
    /// A lock with `global: true` in Ruby is returned by [`global`](Self::global).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty id, and for anything that [`Lock::new`] refuses.
    #[doc(alias = "obtain_lock")]
    #[doc(alias = "clear_lock")]
    pub fn of(&self, locker: &Locker, id: impl LockId) -> Result<Lock, Error> {
        Lock::new(locker, self.key(id)?, self.options)
    }

    /// Returns the lock that the whole class shares, `global: true` in Ruby. Contacts no server.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for anything that [`Lock::new`] refuses.
    pub fn global(&self, locker: &Locker) -> Result<Lock, Error> {
        Lock::new(locker, self.global_key(), self.options)
    }

    /// Returns the key for an id: `prefix:id:name_lock`, or the filled-in template.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty id, which would give the key
    /// of the global lock. A template without `#{id}` needs no id.
    pub fn key(&self, id: impl LockId) -> Result<Key, Error> {
        let id = id.to_key_part();
        let needs_id = self.template.is_none_or(|template| template.contains(ID));
        if id.is_empty() && needs_id {
            let problem = "it needs an id, and the id is empty (unsaved record?); give the record's id, or use `global` for the lock of the \
                           whole class";
            Err(Error::invalid(self.filled(ID), problem))
        } else {
            Ok(self.filled(&id))
        }
    }

    /// Returns the key that the whole class shares: `prefix::name_lock`, or the template with nothing in place of
    /// the id (`draft:` for `draft:#{id}`).
    #[must_use]
    pub fn global_key(&self) -> Key {
        self.filled("")
    }

    fn filled(&self, id: &str) -> Key {
        match self.template {
            Some(template) => template.replace(ID, id).into(),
            None => Key::joined([self.prefix.text().as_str(), id, &format!("{}_lock", self.name)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: LockOptions = LockOptions::without_expiration();
    const TRADE: DeclaredLock = DeclaredLock::in_class("Team", "trade_players", OPTIONS);

    fn shown(key: Result<Key, Error>) -> String {
        key.unwrap().to_string()
    }

    #[test]
    fn keys_are_the_gem_s() {
        assert_eq!(shown(TRADE.key(7)), "team:7:trade_players_lock");
        assert_eq!(shown(TRADE.key("a:b")), "team:a:b:trade_players_lock");
        assert_eq!(shown(TRADE.key(7.0)), "team:7.0:trade_players_lock");
        assert_eq!(TRADE.global_key().to_string(), "team::trade_players_lock");
        let nested = DeclaredLock::in_class("Nested::HTTPServerV2", "x", OPTIONS);
        assert_eq!(shown(nested.key(1)), "http_server_v2:1:x_lock");
        assert_eq!(shown(nested.modern_prefix().key(1)), "nested__http_server_v2:1:x_lock");
        let given = DeclaredLock::with_prefix("Club", "x", OPTIONS);
        assert_eq!(shown(given.modern_prefix().key(1)), "Club:1:x_lock");
        assert_eq!(shown(TRADE.key_template("draft:#{id}:#{id}").key(7)), "draft:7:7");
        assert_eq!(shown(TRADE.key_template("fixed").key(7)), "fixed");
        assert_eq!(TRADE.key_template("fixed").global_key().to_string(), "fixed");
    }

    #[test]
    fn an_empty_id_is_an_error_and_never_the_global_lock() {
        for declared in [TRADE, TRADE.key_template("draft:#{id}")] {
            let error = declared.key("").unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        }
        let text = TRADE.key("").unwrap_err().to_string();
        assert_eq!(
            text,
            "lock team:#{id}:trade_players_lock: it needs an id, and the id is empty (unsaved record?); give the record's id, or use \
             `global` for the lock of the whole class"
        );
        assert_eq!(shown(TRADE.key_template("fixed").key("")), "fixed", "which needs none");
        let error = TRADE.key_template("draft:#{id}").key("").unwrap_err();
        assert_eq!(error.key().map(Key::to_string).as_deref(), Some("draft:#{id}"), "{error:?}");
        assert_eq!(TRADE.key_template("gtpl:#{id}").global_key().to_string(), "gtpl:", "as the gem");
    }

    #[test]
    #[should_panic(expected = "the class has no name")]
    fn a_class_without_a_name_is_refused() {
        let _ = DeclaredLock::in_class("Team::", "x", OPTIONS);
    }

    #[test]
    #[should_panic(expected = "parentheses of the template do not pair")]
    fn a_template_whose_parentheses_do_not_pair_is_refused() {
        let _ = TRADE.key_template("foo)#{id}");
    }

    #[test]
    #[should_panic(expected = "a template is taken as it is, but for #{id}")]
    fn a_template_that_contains_more_is_refused() {
        let _ = TRADE.key_template("draft:#{season}");
    }
}
