//! What servers of all versions say when they refuse, and what it means.

use super::*;

#[test]
fn a_server_that_is_too_old_for_a_protocol_is_known_by_what_it_refuses() {
    let table = [
        ("WATCH", "ERR unknown command 'WATCH'", Some(Protocol::Watched)),
        ("WATCH", "ERR unknown command", Some(Protocol::Watched)),
        ("EXEC", "ERR unknown command 'MULTI'", Some(Protocol::Watched)),
        ("SET", "ERR wrong number of arguments for 'set' command", Some(Protocol::Ttl)),
        ("SET", "ERR syntax error", Some(Protocol::Ttl)),
        ("SETNX", "ERR unknown command 'SETNX'", None),
        ("SET", "OOM command not allowed when used memory > 'maxmemory'.", None),
        ("WATCH", "NOAUTH Authentication required.", None),
    ];
    for (command, text, protocol) in table {
        assert_eq!(Refusal::new(text).protocol_too_new(command), protocol, "{command}: {text}");
    }
}

#[test]
fn words_of_all_versions_are_understood() {
    use RefusalKind as Kind;
    let table = [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Kind::WrongType),
        ("ERR Operation against a key holding the wrong kind of value", Kind::WrongType),
        ("NOAUTH Authentication required.", Kind::NoPassword),
        ("ERR operation not permitted", Kind::NoPassword),
        ("WRONGPASS invalid username-password pair or user is disabled.", Kind::WrongPassword),
        ("ERR invalid password", Kind::WrongPassword),
        ("ERR Client sent AUTH, but no password is set", Kind::WrongPassword),
        (
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            Kind::WrongPassword,
        ),
        ("NOPERM this user has no permissions to run the 'setnx' command", Kind::NotPermitted),
        ("OOM command not allowed when used memory > 'maxmemory'.", Kind::OverMemory),
        ("ERR command not allowed when used memory > 'maxmemory'", Kind::OverMemory),
        ("LOADING Redis is loading the dataset in memory", Kind::Loading),
        ("ERR max number of clients reached", Kind::TooManyClients),
        ("READONLY You can't write against a read only replica.", Kind::ReadOnly),
        ("READONLY You can't write against a read only slave.", Kind::ReadOnly),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
            Kind::CannotSave,
        ),
        ("ERR unknown command 'SETNX'", Kind::UnknownCommand),
        ("ERR unknown command `SETNX`, with args beginning with: `k`", Kind::UnknownCommand),
        ("ERR invalid DB index", Kind::NoSuchDatabase),
        ("ERR DB index is out of range", Kind::NoSuchDatabase),
        ("NOREPLICAS Not enough good replicas to write.", Kind::NoReplicas),
        ("NOREPLICAS Not enough good slaves to write.", Kind::NoReplicas),
        (
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            Kind::Busy,
        ),
        ("BUSY Redis is busy running a module command.", Kind::Busy),
        (
            "EXECABORT Transaction discarded because of: NOREPLICAS Not enough good replicas to write.",
            Kind::NoReplicas,
        ),
        ("EXECABORT Transaction discarded because of previous errors.", Kind::Other),
        ("BUSYKEY Target key name already exists.", Kind::Other),
        ("NOPROTO unsupported protocol version", Kind::UnknownCommand),
        ("DENIED Redis is running in protected mode", Kind::ProtectedMode),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Kind::NotReady),
        ("CROSSSLOT Keys in request don't hash to the same slot", Kind::CrossSlot),
        ("ERR Connection refused", Kind::NotReady),
        ("ERR Connection timed out", Kind::NotReady),
        ("MOVED 3999 127.0.0.1:6381", Kind::OtherNode),
        ("ASK 3999 127.0.0.1:6381", Kind::OtherNode),
        ("CLUSTERDOWN Hash slot not served", Kind::NotReady),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Kind::NotReady),
        ("ERR unknown command `SETNX`, with args beginning with: `uploading:7`", Kind::UnknownCommand),
        ("ERR something new", Kind::Other),
    ];
    for (text, kind) in table {
        assert_eq!(Refusal::new(text).kind(), kind, "{text}");
        let shown = without_arguments(text).trim_end_matches('.');
        assert!(Refusal::new(text).to_string().contains(shown));
    }
}
