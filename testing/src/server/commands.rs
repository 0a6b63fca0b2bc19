//! The commands: when each appeared, how many arguments it takes,
//! what it does to keys, and the function that executes it.
//!
//! Versions are those of "Available since" and of the history of each command in the
//! Redis command reference. Where a line says *measured* or *read*, it was run on a
//! server of that age or read in its source, and the reference differs or is silent.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use super::call::{Call, upper, wrong_number};
use super::reply::{Answer, Refusal};
use super::version::ServerVersion;
use super::{
    admin, channels, cluster, connection, expiry, hashes, keys, lists, sentinel, sets, strings, transactions,
    users,
};

use Effect::{Adds, Changes, None as Reads, Serves};
use Keys::{All, First, Lists, No, Pairs, Two};

/// What a command does to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Changes,
    /// It changes keys and may need memory for that: a server over its `maxmemory` refuses it.
    Adds,
    /// It concerns the connection or the server.
    Serves,
}

/// Which arguments are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    No,
    First,
    Two,
    All,
    /// Every other one.
    Pairs,
    /// All but the last, which is a time.
    Lists,
}

#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) arguments: RangeInclusive<usize>,
    pub(crate) effect: Effect,
    pub(crate) keys: Keys,
    pub(crate) run: fn(&mut Call<'_>) -> Answer,
}

impl Spec {
    pub(crate) fn changes_keys(&self) -> bool {
        matches!(self.effect, Changes | Adds)
    }

    /// The keys among the words of a command.
    pub(crate) fn keys<'w>(&self, words: &'w [Vec<u8>]) -> Vec<&'w [u8]> {
        let arguments = words.get(1..).unwrap_or_default().iter().map(Vec::as_slice);
        match self.keys {
            No => Vec::new(),
            First => arguments.take(1).collect(),
            Two => arguments.take(2).collect(),
            All => arguments.collect(),
            Pairs => arguments.step_by(2).collect(),
            Lists => arguments.take(words.len().saturating_sub(2)).collect(),
        }
    }
}

/// At least so many arguments.
const fn from(least: usize) -> RangeInclusive<usize> {
    least..=usize::MAX
}

type Row = (&'static str, &'static str, RangeInclusive<usize>, Effect, Keys, fn(&mut Call<'_>) -> Answer);

/// The command, the version in which it appeared, and how many arguments it takes now.
#[rustfmt::skip]
const COMMANDS: &[Row] = &[
    // Connection and server.
    ("AUTH",         "1.0.0",  1..=2,   Serves,  No,    connection::auth),
    ("ECHO",         "1.0.0",  1..=1,   Serves,  No,    connection::echo),
    ("PING",         "1.0.0",  0..=1,   Serves,  No,    connection::ping),
    ("QUIT",         "1.0.0",  from(0), Serves,  No,    connection::quit),
    ("SELECT",       "1.0.0",  1..=1,   Serves,  No,    connection::select),
    ("INFO",         "1.0.0",  from(0), Serves,  No,    admin::info),
    ("DBSIZE",       "1.0.0",  0..=0,   Reads,   No,    keys::dbsize),
    ("FLUSHALL",     "1.0.0",  0..=1,   Changes, No,    keys::flushall),
    ("FLUSHDB",      "1.0.0",  0..=1,   Changes, No,    keys::flushdb),
    ("SAVE",         "1.0.0",  0..=0,   Serves,  No,    admin::nothing_to_save),
    ("BGSAVE",       "1.0.0",  0..=1,   Serves,  No,    admin::bgsave),
    ("LASTSAVE",     "1.0.0",  0..=0,   Serves,  No,    admin::lastsave),
    ("SLAVEOF",      "1.0.0",  2..=2,   Serves,  No,    admin::replicaof),
    ("REPLICAOF",    "5.0.0",  2..=2,   Serves,  No,    admin::replicaof),
    ("CONFIG",       "2.0.0",  from(1), Serves,  No,    admin::config),
    ("CLIENT",       "2.4.0",  from(1), Serves,  No,    connection::client),
    ("TIME",         "2.6.0",  0..=0,   Serves,  No,    admin::time),
    ("COMMAND",      "2.8.13", from(0), Serves,  No,    admin::command),
    ("ROLE",         "2.8.12", 0..=0,   Serves,  No,    admin::role),
    ("WAIT",         "3.0.0",  2..=2,   Serves,  No,    admin::wait),
    ("HELLO",        "6.0.0",  from(0), Serves,  No,    connection::hello),
    ("RESET",        "6.2.0",  0..=0,   Serves,  No,    connection::reset),
    ("ACL",          "6.0.0",  from(1), Serves,  No,    users::acl),
    ("CLUSTER",      "3.0.0",  from(1), Serves,  No,    cluster::cluster),
    ("ASKING",       "3.0.0",  0..=0,   Serves,  No,    cluster::asking),
    ("SENTINEL",     "2.6.0",  from(1), Serves,  No,    sentinel::sentinel),
    // Keys.
    ("DEL",          "1.0.0",  from(1), Changes, All,   keys::del),
    ("UNLINK",       "4.0.0",  from(1), Changes, All,   keys::del),
    ("EXISTS",       "1.0.0",  from(1), Reads,   All,   keys::exists),
    ("TOUCH",        "3.2.1",  from(1), Reads,   All,   keys::exists),
    ("EXPIRE",       "1.0.0",  2..=3,   Changes, First, expiry::expire),
    ("EXPIREAT",     "1.2.0",  2..=3,   Changes, First, expiry::expireat), // measured: there in 1.1.94
    ("PEXPIRE",      "2.6.0",  2..=3,   Changes, First, expiry::pexpire),
    ("PEXPIREAT",    "2.6.0",  2..=3,   Changes, First, expiry::pexpireat),
    ("TTL",          "1.0.0",  1..=1,   Reads,   First, expiry::ttl),
    ("PTTL",         "2.6.0",  1..=1,   Reads,   First, expiry::pttl),
    ("EXPIRETIME",   "7.0.0",  1..=1,   Reads,   First, expiry::expiretime),
    ("PEXPIRETIME",  "7.0.0",  1..=1,   Reads,   First, expiry::pexpiretime),
    ("PERSIST",      "2.2.0",  1..=1,   Changes, First, expiry::persist),
    ("KEYS",         "1.0.0",  1..=1,   Reads,   No,    keys::keys),
    ("SCAN",         "2.8.0",  from(1), Reads,   No,    keys::scan),
    ("RANDOMKEY",    "1.0.0",  0..=0,   Reads,   No,    keys::randomkey),
    ("RENAME",       "1.0.0",  2..=2,   Changes, Two,   keys::rename),
    ("RENAMENX",     "1.0.0",  2..=2,   Changes, Two,   keys::renamenx),
    ("TYPE",         "1.0.0",  1..=1,   Reads,   First, keys::type_of),
    // Strings.
    ("GET",          "1.0.0",  1..=1,   Reads,   First, strings::get),
    ("SET",          "1.0.0",  from(2), Adds,    First, strings::set),
    ("SETNX",        "1.0.0",  2..=2,   Adds,    First, strings::setnx),
    ("GETSET",       "1.0.0",  2..=2,   Adds,    First, strings::getset),
    ("GETDEL",       "6.2.0",  1..=1,   Changes, First, strings::getdel),
    ("MGET",         "1.0.0",  from(1), Reads,   All,   strings::mget),
    ("MSET",         "1.0.1",  from(2), Adds,    Pairs, strings::mset),
    ("MSETNX",       "1.0.1",  from(2), Adds,    Pairs, strings::msetnx),
    ("INCR",         "1.0.0",  1..=1,   Adds,    First, strings::incr),
    ("DECR",         "1.0.0",  1..=1,   Adds,    First, strings::decr),
    ("INCRBY",       "1.0.0",  2..=2,   Adds,    First, strings::incrby),
    ("DECRBY",       "1.0.0",  2..=2,   Adds,    First, strings::decrby),
    ("APPEND",       "2.0.0",  2..=2,   Adds,    First, strings::append),
    ("SETEX",        "2.0.0",  3..=3,   Adds,    First, strings::setex),
    ("PSETEX",       "2.6.0",  3..=3,   Adds,    First, strings::psetex),
    ("STRLEN",       "2.2.0",  1..=1,   Reads,   First, strings::strlen),
    ("GETRANGE",     "2.4.0",  3..=3,   Reads,   First, strings::getrange),
    ("DELEX",        "8.4.0",  from(1), Changes, First, strings::delex),
    ("DELIFEQ",      "valkey", 2..=2,   Changes, First, strings::delifeq),
    // Lists.
    ("LPUSH",        "1.0.0",  from(2), Adds,    First, lists::lpush),
    ("RPUSH",        "1.0.0",  from(2), Adds,    First, lists::rpush),
    ("LPUSHX",       "2.2.0",  from(2), Adds,    First, lists::lpushx),
    ("RPUSHX",       "2.2.0",  from(2), Adds,    First, lists::rpushx),
    ("LPOP",         "1.0.0",  1..=2,   Changes, First, lists::lpop),
    ("RPOP",         "1.0.0",  1..=2,   Changes, First, lists::rpop),
    ("LLEN",         "1.0.0",  1..=1,   Reads,   First, lists::llen),
    ("LINDEX",       "1.0.0",  2..=2,   Reads,   First, lists::lindex),
    ("LRANGE",       "1.0.0",  3..=3,   Reads,   First, lists::lrange),
    ("LREM",         "1.0.0",  3..=3,   Changes, First, lists::lrem),
    ("LSET",         "1.0.0",  3..=3,   Adds,    First, lists::lset),
    ("LTRIM",        "1.0.0",  3..=3,   Changes, First, lists::ltrim),
    ("RPOPLPUSH",    "1.2.0",  2..=2,   Adds,    Two,   lists::rpoplpush),
    ("BLPOP",        "2.0.0",  from(2), Changes, Lists, lists::blpop),
    ("BRPOP",        "2.0.0",  from(2), Changes, Lists, lists::brpop),
    ("BRPOPLPUSH",   "2.2.0",  3..=3,   Adds,    Two,   lists::brpoplpush),
    // Sets and hashes.
    ("SADD",         "1.0.0",  from(2), Adds,    First, sets::sadd),
    ("SREM",         "1.0.0",  from(2), Changes, First, sets::srem),
    ("SCARD",        "1.0.0",  1..=1,   Reads,   First, sets::scard),
    ("SISMEMBER",    "1.0.0",  2..=2,   Reads,   First, sets::sismember),
    ("SMEMBERS",     "1.0.0",  1..=1,   Reads,   First, sets::smembers),
    ("HSET",         "2.0.0",  from(3), Adds,    First, hashes::hset),
    ("HSETNX",       "2.0.0",  3..=3,   Adds,    First, hashes::hsetnx),
    ("HMSET",        "2.0.0",  from(3), Adds,    First, hashes::hmset),
    ("HGET",         "2.0.0",  2..=2,   Reads,   First, hashes::hget),
    ("HMGET",        "2.0.0",  from(2), Reads,   First, hashes::hmget),
    ("HGETALL",      "2.0.0",  1..=1,   Reads,   First, hashes::hgetall),
    ("HKEYS",        "2.0.0",  1..=1,   Reads,   First, hashes::hkeys),
    ("HLEN",         "2.0.0",  1..=1,   Reads,   First, hashes::hlen),
    ("HEXISTS",      "2.0.0",  2..=2,   Reads,   First, hashes::hexists),
    ("HDEL",         "2.0.0",  from(2), Changes, First, hashes::hdel),
    ("HINCRBY",      "2.0.0",  3..=3,   Adds,    First, hashes::hincrby),
    // Transactions. The reference says 1.2.0 of MULTI and EXEC; measured: not in 1.1.94, there in 1.3.6.
    ("MULTI",        "1.3.6",  0..=0,   Serves,  No,    transactions::multi),
    ("EXEC",         "1.3.6",  0..=0,   Serves,  No,    transactions::exec),
    ("DISCARD",      "2.0.0",  0..=0,   Serves,  No,    transactions::discard),
    ("WATCH",        "2.2.0",  from(1), Serves,  All,   transactions::watch),
    ("UNWATCH",      "2.2.0",  0..=0,   Serves,  No,    transactions::unwatch),
    // Publishing and subscribing.
    ("PUBLISH",      "2.0.0",  2..=2,   Serves,  No,    channels::publish),
    ("SUBSCRIBE",    "2.0.0",  from(1), Serves,  No,    channels::subscribe),
    ("PSUBSCRIBE",   "2.0.0",  from(1), Serves,  No,    channels::psubscribe),
    ("UNSUBSCRIBE",  "2.0.0",  from(0), Serves,  No,    channels::unsubscribe),
    ("PUNSUBSCRIBE", "2.0.0",  from(0), Serves,  No,    channels::punsubscribe),
    ("PUBSUB",       "2.8.0",  from(1), Serves,  No,    channels::pubsub),
];

/// The command, the version from which the next line or the table
/// above applies, and the arguments before; the oldest first.
const ARGUMENTS_BEFORE: &[(&str, &str, RangeInclusive<usize>)] = &[
    ("AUTH", "6.0.0", 1..=1),
    ("PING", "2.8.0", 0..=0),
    ("INFO", "2.6.0", 0..=0),
    ("INFO", "7.0.0", 0..=1),
    ("FLUSHALL", "4.0.0", 0..=0),
    ("FLUSHDB", "4.0.0", 0..=0),
    ("BGSAVE", "3.2.2", 0..=0),
    ("EXISTS", "3.0.3", 1..=1),
    ("EXPIRE", "7.0.0", 2..=2),
    ("EXPIREAT", "7.0.0", 2..=2),
    ("PEXPIRE", "7.0.0", 2..=2),
    ("PEXPIREAT", "7.0.0", 2..=2),
    ("SET", "2.6.12", 2..=2),
    ("LPUSH", "2.4.0", 2..=2),
    ("RPUSH", "2.4.0", 2..=2),
    ("LPUSHX", "4.0.0", 2..=2),
    ("RPUSHX", "4.0.0", 2..=2),
    ("LPOP", "6.2.0", 1..=1),
    ("RPOP", "6.2.0", 1..=1),
    ("SADD", "2.4.0", 2..=2),
    ("SREM", "2.4.0", 2..=2),
    ("HDEL", "2.4.0", 2..=2),
    ("HSET", "4.0.0", 3..=3),
];

type Table = HashMap<&'static str, Spec>;

/// The commands of a version, by their names in upper case.
pub(crate) fn of(version: ServerVersion) -> &'static Table {
    static TABLES: OnceLock<HashMap<ServerVersion, Table>> = OnceLock::new();
    &TABLES.get_or_init(|| ServerVersion::ALL.map(|version| (version, table(version))).into())[&version]
}

fn table(version: ServerVersion) -> Table {
    let there = |since: &str| match since {
        "valkey" => version == ServerVersion::Valkey9,
        _ => version.has(since),
    };
    let rows = COMMANDS.iter().filter(|(_, since, ..)| there(since));
    rows.map(|(name, _, now, effect, keys, run)| {
        let before =
            ARGUMENTS_BEFORE.iter().find(|(command, until, _)| command == name && !version.has(until));
        let arguments = before.map_or(now, |(_, _, before)| before).clone();
        (*name, Spec { name, arguments, effect: *effect, keys: *keys, run: *run })
    })
    .collect()
}

/// Its name, and how many arguments it takes.
type Subcommand = (&'static str, RangeInclusive<usize>);

/// The subcommands of those that have any.
#[rustfmt::skip]
const SUBCOMMANDS: &[(&str, &[Subcommand])] = &[
    ("ACL",     &[("DELUSER", from(1)), ("SETUSER", from(1)), ("USERS", 0..=0), ("WHOAMI", 0..=0)]),
    ("CLIENT",  &[("GETNAME", 0..=0), ("ID", 0..=0), ("INFO", 0..=0), ("KILL", from(1)), ("LIST", from(0)), ("SETINFO", 2..=2), ("SETNAME", 1..=1)]),
    ("CLUSTER", &[("INFO", 0..=0), ("KEYSLOT", 1..=1), ("MYID", 0..=0), ("NODES", 0..=0), ("SHARDS", 0..=0), ("SLOTS", 0..=0)]),
    ("COMMAND", &[("COUNT", 0..=0), ("DOCS", from(0)), ("INFO", from(0)), ("LIST", from(0))]),
    ("CONFIG",  &[("GET", from(1)), ("RESETSTAT", 0..=0), ("REWRITE", 0..=0), ("SET", from(2))]),
    ("PUBSUB",  &[("CHANNELS", 0..=1), ("NUMPAT", 0..=0), ("NUMSUB", from(0))]),
];

/// Returns the name of a command in lower case, with its subcommand from 7 on, or why it is refused: before 7 the
/// command itself does that.
pub(crate) fn full_name(version: ServerVersion, spec: &Spec, words: &[Vec<u8>]) -> Result<String, Refusal> {
    let name = spec.name.to_lowercase();
    let subcommands = SUBCOMMANDS.iter().find(|(container, _)| *container == spec.name);
    let (Some((_, subcommands)), [_, typed, rest @ ..], true) =
        (subcommands, words, version >= ServerVersion::V7)
    else {
        return Ok(name);
    };
    let sub = upper(typed);
    // Clients send it when they connect, and expect that 7.0 does not know it.
    let is_there = sub != "SETINFO" || version > ServerVersion::V7;
    let Some((_, arguments)) = subcommands.iter().find(|(known, _)| *known == sub).filter(|_| is_there)
    else {
        let typed = String::from_utf8_lossy(typed);
        return Err(Refusal(format!("ERR unknown subcommand '{typed}'. Try {} HELP.", spec.name)));
    };
    let name = format!("{name}|{}", sub.to_lowercase());
    if arguments.contains(&rest.len()) { Ok(name) } else { Err(wrong_number(&name)) }
}
