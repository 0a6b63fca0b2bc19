//! Why a command of the tool failed: one line for people, and an exit code.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use setnx_lock::redis::{Client, ConnectionAddr, RedisError};
use setnx_lock::{Error, Key, Refusal, RefusalKind};

use crate::arguments::{Condition, ExitCodes};
use crate::output;

/// How the library words a setting that it refuses.
const SETTING: &str = "cannot build a locker: ";

/// How a refusal is worded of a key that is on another node.
const ELSEWHERE: &str = "the key is on another node of the cluster; try again if its slot moves, or name the cluster with --url redis+cluster://host:port";

/// Invalid arguments: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// The system refused something: `EX_OSERR`.
const SYSTEM: u8 = 71;

/// Why a command of the tool failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: Code,
    /// None where there is nothing to say.
    text: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Code {
    Fixed(u8),
    Of(Condition),
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: Code::Fixed(USAGE), text: Some(text.into()) }
    }

    pub(crate) fn system(what: impl Display, error: impl Display) -> Self {
        Self { code: Code::Fixed(SYSTEM), text: Some(format!("{what}: {error}")) }
    }

    pub(crate) fn no_lock(text: impl Into<String>) -> Self {
        Self::of(Condition::Stuck, text)
    }

    pub(crate) fn of(condition: Condition, text: impl Into<String>) -> Self {
        Self { code: Code::Of(condition), text: Some(text.into()) }
    }

    /// An exit code of which nothing more is to be said.
    pub(crate) fn silent(code: u8) -> Self {
        Self { code: Code::Fixed(code), text: None }
    }

    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Self {
        Self { code: Code::Fixed(code), text: Some(text.into()) }
    }

    /// Notes that this happened while connecting to the server.
    pub(crate) fn at(self, client: &Client) -> Self {
        Self {
            text: self.text.map(|text| format!("{}: {text}", client.get_connection_info().addr())),
            ..self
        }
    }

    /// That the server cannot be reached.
    pub(crate) fn unconnected(address: &ConnectionAddr, error: &RedisError) -> Self {
        let text = "no connection to the server; check that it is up and the address is right";
        Self::of(Condition::Unreachable, format!("{text}: {address}: {error}"))
    }

    /// That Sentinels do not say where the master is.
    pub(crate) fn not_found(error: &io::Error) -> Self {
        let condition = match error.kind() {
            io::ErrorKind::PermissionDenied => Condition::Refused,
            _ => Condition::Unreachable,
        };
        Self::of(condition, format!("the server was not found: {error}"))
    }

    /// That the server refuses all but INFO for now.
    pub(crate) fn loading(address: &ConnectionAddr) -> Self {
        Self::of(
            Condition::Unreachable,
            format!("{address}: the server is still loading its data; try again later"),
        )
    }

    /// That the server keeps no keys.
    pub(crate) fn sentinel(address: &ConnectionAddr) -> Self {
        let text = "the server cannot be used; lock on its master";
        Self::of(
            Condition::Refused,
            format!(
                "{text}: {address} is a Sentinel, which has no keys; it returns the master's address for \
                 SENTINEL GET-MASTER-ADDR-BY-NAME"
            ),
        )
    }

    /// Notes which lock this is about.
    pub(crate) fn about(self, key: &Key) -> Self {
        Self { text: self.text.map(|text| format!("lock {key}: {text}")), ..self }
    }

    /// Says why, and returns the exit code. A condition whose code is to be 0 is no error, and goes to the log; so does
    /// contention if only errors are wanted.
    pub(crate) fn report(self, codes: &ExitCodes, is_quiet: bool) -> ExitCode {
        let (code, condition) = match self.code {
            Code::Fixed(code) => (code, None),
            Code::Of(condition) => (codes.of(condition), Some(condition)),
        };
        match &self.text {
            Some(_) if is_quiet && condition == Some(Condition::Contended) => {}
            Some(text) if code == 0 => log::info!("{text}"),
            Some(text) => output::failure(text, condition),
            None => {}
        }
        code.into()
    }

    /// Returns true if the server answered, and will go on to refuse.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.code, Code::Of(Condition::Refused))
    }

    /// Returns true if trying again helps, as soon as the server is there or ready.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self.code, Code::Of(Condition::Unreachable))
    }

    /// Returns true if the key is on another node of the cluster, or will be in a moment.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.text().contains(ELSEWHERE)
    }

    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = Some(match &error {
            Error::Invalid { key: Some(key), problem, .. } => format!("lock {key}: {problem}"),
            // In the words of the command line.
            Error::Refused { key, refusal, .. } if login_advice(refusal.kind()).is_some() => {
                format!("lock {key}: {}", refused_words(refusal))
            }
            Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::TooOld => {
                error.chain().to_string().replace("use the protocol Auto or Classic", "use --protocol auto").replace(
                    "use the protocol Auto",
                    "use --protocol auto",
                )
            }
            Error::Invalid { key: None, problem, .. } if problem.starts_with("invalid Redis URL: unknown parameter") => {
                problem.to_string()
            }
            Error::Invalid { key: None, problem, .. } if problem.starts_with(SETTING) => {
                problem[SETTING.len()..].to_owned()
            }
            // It may have a password in it.
            Error::Invalid { key: None, .. } => "invalid Redis URL in --url or REDIS_URL; expected redis://[user@]host[:port][/database], unix:///path, redis+sentinel://[user@]host[:port],…/master or redis+cluster://[user@]host[:port],…; percent-encode special characters in a user or password, such as @ as %40".into(),
            error => error.chain().to_string(),
        });
        let code = match &error {
            Error::Contended { .. } => Code::Of(Condition::Contended),
            Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongType => {
                Code::Of(Condition::Stuck)
            }
            Error::Unavailable { .. } | Error::Refused { .. } => {
                Code::Of(if error.is_transient() { Condition::Unreachable } else { Condition::Refused })
            }
            Error::InDoubt { .. } | Error::Several { .. } => Code::Of(Condition::Unknown),
            Error::Lost { .. } => Code::Of(Condition::Lost),
            _ => Code::Fixed(USAGE),
        };
        Self { code, text }
    }
}

/// A server that is not ready yet is as one that is not reached: trying again helps.
fn refused(refusal: &Refusal) -> Condition {
    if refusal.is_transient() { Condition::Unreachable } else { Condition::Refused }
}

/// How to log in, in the words of the command line: an address with a password is for all to see.
fn login_advice(kind: RefusalKind) -> Option<&'static str> {
    match kind {
        RefusalKind::NoPassword => Some("pass the password in REDISCLI_AUTH or with --password-file"),
        RefusalKind::WrongPassword => Some(
            "check the user in the URL and the password (--password-file, else the URL, else REDISCLI_AUTH)",
        ),
        _ => None,
    }
}

/// The refusal of a lock's command. Where the command line does not matter, the library has the advice.
fn refused_words(refusal: &Refusal) -> String {
    login_advice(refusal.kind()).map_or_else(|| refusal.to_string(), |advice| with_advice(refusal, advice))
}

/// The refusal with other advice than the library's.
fn with_advice(refusal: &Refusal, advice: &str) -> String {
    refusal.to_string().replace(refusal.kind().advice(), advice)
}

/// That the server refused a command that is not a lock's, with advice in the words of the command line.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let words = match refusal.kind() {
            RefusalKind::NotPermitted => with_advice(
                &refusal,
                "allow the command and the keys with ACL SETUSER, or use another user in --url",
            ),
            RefusalKind::OtherNode => with_advice(&refusal, ELSEWHERE),
            _ => refused_words(&refusal),
        };
        Self::of(refused(&refusal), words)
    }
}

/// That no reply came, or none that can be read.
impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        // So does a port that speaks TLS, and one that wants a certificate.
        let tls = if error.is_connection_dropped() {
            ", use rediss:// for TLS, and --cert if the server demands a client certificate"
        } else {
            ""
        };
        let error = if error.is_io_error() {
            error.to_string()
        } else {
            "it does not answer as a Redis server does; a port that speaks TLS needs rediss://".to_owned()
        };
        Self::of(
            Condition::Unreachable,
            format!("no reply from the server; check that it is up and the address is right{tls}: {error}"),
        )
    }
}

impl From<io::Error> for Failure {
    /// The output could not be written: nothing is said of a reader that has seen enough, as `head`.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(0),
            _ => Self::system("cannot write the output", error),
        }
    }
}
