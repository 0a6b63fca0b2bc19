//! Passwords, users, and what each may do.

use super::Output;
use super::call::{Call, syntax_error};
use super::commands::{self, Effect, Spec};
use super::glob;
use super::reply::{Answer, OK, Refusal, Reply};
use super::version::ServerVersion;

/// The users of a server; the first is `default`.
#[derive(Debug)]
pub(super) struct Users(Vec<User>);

#[derive(Clone, Debug)]
struct User {
    name: String,
    is_on: bool,
    needs_no_password: bool,
    passwords: Vec<Vec<u8>>,
    /// The last rule that names a command counts; a name beginning with `@` stands for a group of them.
    commands: Vec<(bool, String)>,
    keys: Vec<Vec<u8>>,
    channels: Vec<Vec<u8>>,
}

impl Default for Users {
    fn default() -> Self {
        let default = User {
            is_on: true,
            needs_no_password: true,
            commands: vec![(true, "@all".into())],
            keys: vec![b"*".to_vec()],
            channels: vec![b"*".to_vec()],
            ..User::new("default")
        };
        Self(vec![default])
    }
}

impl Users {
    fn find(&self, name: &str) -> Option<&User> {
        self.0.iter().find(|user| user.name == name)
    }

    /// The user that a new connection has.
    pub(super) fn at_first(&self) -> Option<String> {
        let default = self.find("default")?;
        (default.is_on && default.needs_no_password).then(|| default.name.clone())
    }

    /// Sets the password of the default user; an empty one means none.
    pub(super) fn require(&mut self, password: &[u8]) {
        let Some(default) = self.0.first_mut() else { return };
        default.needs_no_password = password.is_empty();
        default.passwords = Vec::from_iter((!password.is_empty()).then(|| password.to_vec()));
    }

    fn has_password(&self) -> bool {
        self.0.first().is_some_and(|default| !default.needs_no_password)
    }

    fn permits_login(&self, name: &str, password: &[u8]) -> bool {
        self.find(name).is_some_and(|user| {
            user.is_on && (user.needs_no_password || user.passwords.iter().any(|one| one == password))
        })
    }

    /// Changes a user by such rules, or makes one.
    pub(super) fn set(&mut self, name: &[u8], rules: &[Vec<u8>]) -> Result<(), Refusal> {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut user = self.find(&name).cloned().unwrap_or_else(|| User::new(&name));
        rules.iter().try_for_each(|rule| user.change(rule))?;
        self.0.retain(|other| other.name != name);
        let at = if name == "default" { 0 } else { self.0.len() };
        self.0.insert(at, user);
        Ok(())
    }

    /// Refuses what the user has no right to. `name` is that of the command with its subcommand.
    pub(super) fn permit(
        &self,
        user: Option<&str>,
        spec: &Spec,
        name: &str,
        words: &[Vec<u8>],
    ) -> Result<(), Refusal> {
        let Some(name_of_user) = user else { return Ok(()) };
        let Some(user) = self.find(name_of_user) else {
            return Err(Refusal::new("NOAUTH Authentication required."));
        };
        let refused =
            |problem: &str| Err(Refusal(format!("NOPERM this user has no permissions to {problem}")));
        if ["AUTH", "HELLO", "QUIT", "RESET"].contains(&spec.name) {
            return Ok(());
        }
        if !user.may_run(spec, name) {
            return refused(&format!("run the '{name}' command"));
        }
        let has =
            |patterns: &[Vec<u8>], text: &[u8]| patterns.iter().any(|pattern| glob::matches(pattern, text));
        if !spec.keys(words).iter().all(|key| has(&user.keys, key)) {
            return refused("access one of the keys used as arguments");
        }
        let channels: &[Vec<u8>] = match spec.name {
            "PUBLISH" => &words[1..2],
            "SUBSCRIBE" => &words[1..],
            // A pattern has to be permitted literally.
            "PSUBSCRIBE" if !user.channels.contains(&b"*".to_vec()) => {
                let is_there = |pattern| user.channels.contains(pattern);
                return if words[1..].iter().all(is_there) {
                    Ok(())
                } else {
                    refused("access one of the channels used as arguments")
                };
            }
            _ => &[],
        };
        if !channels.iter().all(|channel| has(&user.channels, channel)) {
            return refused("access one of the channels used as arguments");
        }
        Ok(())
    }
}

impl User {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_on: false,
            needs_no_password: false,
            passwords: Vec::new(),
            commands: Vec::new(),
            keys: Vec::new(),
            channels: Vec::new(),
        }
    }

    fn may_run(&self, spec: &Spec, name: &str) -> bool {
        let container = spec.name.to_lowercase();
        let concerns = |rule: &str| match rule.strip_prefix('@') {
            Some(group) => is_in(group, spec),
            None => rule == container || rule == name,
        };
        self.commands.iter().rev().find(|(_, rule)| concerns(rule)).is_some_and(|(may, _)| *may)
    }

    fn change(&mut self, rule: &[u8]) -> Result<(), Refusal> {
        let text = String::from_utf8_lossy(rule).to_lowercase();
        match (text.as_str(), rule.first(), rule.get(1..).unwrap_or_default()) {
            ("on", ..) => self.is_on = true,
            ("off", ..) => self.is_on = false,
            ("nopass", ..) => (self.needs_no_password, self.passwords) = (true, Vec::new()),
            ("resetpass", ..) => (self.needs_no_password, self.passwords) = (false, Vec::new()),
            ("allcommands", ..) => self.commands = vec![(true, "@all".into())],
            ("nocommands", ..) => self.commands.clear(),
            ("allkeys", ..) => self.keys = vec![b"*".to_vec()],
            ("resetkeys", ..) => self.keys.clear(),
            ("allchannels", ..) => self.channels = vec![b"*".to_vec()],
            ("resetchannels", ..) => self.channels.clear(),
            ("reset", ..) => *self = Self::new(&self.name),
            (_, Some(b'>'), password) => {
                self.needs_no_password = false;
                self.passwords.push(password.to_vec());
            }
            (_, Some(b'<'), password) => self.passwords.retain(|one| one != password),
            (_, Some(b'~'), pattern) => self.keys.push(pattern.to_vec()),
            (_, Some(b'&'), pattern) => self.channels.push(pattern.to_vec()),
            (_, Some(sign @ (b'+' | b'-')), _) if is_known(&text[1..]) => {
                self.commands.push((*sign == b'+', text[1..].to_owned()));
            }
            (_, Some(b'+' | b'-'), _) => {
                return Err(unknown_rule(rule, "Unknown command or category name in ACL"));
            }
            _ => return Err(unknown_rule(rule, "Syntax error")),
        }
        Ok(())
    }
}

fn unknown_rule(rule: &[u8], problem: &str) -> Refusal {
    let rule = String::from_utf8_lossy(rule);
    Refusal(format!("ERR Error in ACL SETUSER modifier '{rule}': {problem}"))
}

/// The groups of commands that rules can name. No script can
/// be run here, so that scripting is permitted or not in vain.
const GROUPS: &[&str] = &[
    "all",
    "read",
    "write",
    "connection",
    "transaction",
    "pubsub",
    "dangerous",
    "admin",
    "blocking",
    "scripting",
];

/// Commands of Redis that are not here, and that rules may name all the same.
const OTHERS: &[&str] = &[
    "bitcount", "debug", "dump", "eval", "evalsha", "fcall", "geoadd", "latency", "memory", "migrate",
    "module", "monitor", "move", "replconf", "psync", "restore", "script", "setbit", "shutdown", "slowlog",
    "sort", "sync", "xadd", "xread", "zadd", "zrange", "zrem",
];

fn is_known(rule: &str) -> bool {
    match rule.strip_prefix('@') {
        Some(group) => GROUPS.contains(&group),
        None => {
            let name = rule.split('|').next().unwrap_or_default();
            OTHERS.contains(&name)
                || commands::of(ServerVersion::V8_4).contains_key(name.to_uppercase().as_str())
        }
    }
}

fn is_in(group: &str, spec: &Spec) -> bool {
    match group {
        "all" => true,
        "read" => spec.effect == Effect::None,
        "write" => spec.changes_keys(),
        "connection" => {
            ["AUTH", "CLIENT", "ECHO", "HELLO", "PING", "RESET", "SELECT", "COMMAND"].contains(&spec.name)
        }
        "transaction" => ["MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"].contains(&spec.name),
        "pubsub" => ["PUBLISH", "SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "PUBSUB"]
            .contains(&spec.name),
        "dangerous" => {
            ["CONFIG", "INFO", "KEYS", "FLUSHALL", "FLUSHDB", "ACL", "REPLICAOF", "ROLE"].contains(&spec.name)
        }
        "blocking" => ["BLPOP", "BRPOP", "BRPOPLPUSH"].contains(&spec.name),
        "admin" => ["CONFIG", "ACL", "REPLICAOF", "SAVE", "BGSAVE"].contains(&spec.name),
        _ => false,
    }
}

/// Logs a client in. Before 6 there was one password, and a wrong one took away what a right one had permitted.
pub(super) fn log_in(call: &mut Call<'_>, name: &[u8], password: &[u8]) -> Answer {
    let name = String::from_utf8_lossy(name).into_owned();
    let version = call.version();
    if call.server.users.permits_login(&name, password) {
        call.client().user = Some(name);
        return Ok(OK);
    }
    if version <= ServerVersion::V2_6 {
        call.client().user = None;
    }
    Err(Refusal::new("WRONGPASS invalid username-password pair or user is disabled."))
}

/// AUTH with one argument.
pub(super) fn log_in_as_default(call: &mut Call<'_>, password: &[u8]) -> Answer {
    if call.server.users.has_password() {
        return log_in(call, b"default", password);
    }
    // Measured on 2.2.15: any password is right where none is set. 2.4.18 refuses.
    if call.version() <= ServerVersion::V2_2 {
        return Ok(OK);
    }
    Err(Refusal::new(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
    ))
}

pub(super) fn acl(call: &mut Call<'_>) -> Answer {
    let sub = call.upper(1);
    match sub.as_str() {
        "WHOAMI" => Ok(Reply::bulk(call.client().user.clone().unwrap_or_default())),
        "USERS" => {
            let mut names: Vec<String> = call.server.users.0.iter().map(|user| user.name.clone()).collect();
            names.sort();
            Ok(Reply::bulks(names))
        }
        "SETUSER" => {
            let (name, rules) = (call.word(2), &call.words[3..]);
            call.server.users.set(name, rules).map(|()| OK)
        }
        "DELUSER" => {
            let goes =
                |name: &str| name != "default" && call.words[2..].iter().any(|word| word == name.as_bytes());
            let before = call.server.users.0.len();
            call.server.users.0.retain(|user| !goes(&user.name));
            let gone = before - call.server.users.0.len();
            // Its connections are closed.
            let of_user = |client: &super::client::Client| client.user.as_deref().is_some_and(goes);
            let closed = call.server.clients.iter().filter(|(_, client)| of_user(client));
            let closed: Vec<Output> = closed.map(|(id, _)| Output::Close(*id)).collect();
            call.server.output.extend(closed);
            Ok(Reply::count(gone))
        }
        _ => Err(syntax_error()),
    }
}
