//! What a client of the redis crate says of its server: where it is, and who logs in.

use std::any::Any;
use std::borrow::Cow;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proto::values::Cut;
use redis::{Client, ConnectionAddr};

use crate::net::errors::{Failure, TransportError};
use crate::values::credentials::{CredentialSource, Credentials};

/// Host and port of a server.
pub(crate) type Address = (String, u16);

/// Returns host and port that a client connects to; `None` of a socket on this machine.
pub(crate) fn address_of(client: &Client) -> Option<Address> {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

/// Returns a client that logs in as this one does, at this address.
pub(super) fn at(client: &Client, (host, port): &Address) -> Client {
    let (info, host, port) = (client.get_connection_info(), host.clone(), *port);
    let address = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    let client = Client::open(info.clone().set_addr(address));
    client.unwrap_or_else(|_| unreachable!("it differs in the address from one that was opened"))
}

/// Returns the client with the login of the moment. A panic of the program's function is a failure to connect.
pub(crate) fn logging_in<'a>(
    client: &'a Client,
    credentials: Option<&CredentialSource>,
) -> Result<Cow<'a, Client>, Failure> {
    let Some(source) = credentials else { return Ok(Cow::Borrowed(client)) };
    let asked = catch_unwind(AssertUnwindSafe(|| source.now()));
    let Credentials { user, password } = asked.map_err(|panic| {
        let what = format!("the function given for the login panicked: {}", words_of(panic.as_ref()));
        Failure::unreachable(TransportError::here(io::ErrorKind::Other, &what))
    })?;
    let info = client.get_connection_info();
    let settings = info.redis_settings().clone().set_password(password);
    let settings = match user {
        Some(user) => settings.set_username(user),
        None => settings,
    };
    let changed = Client::open(info.clone().set_redis_settings(settings));
    Ok(Cow::Owned(
        changed.unwrap_or_else(|_| unreachable!("it differs in the login from one that was opened")),
    ))
}

/// Notes whether a login was accepted. Where one was before, a refusal
/// passes: the server's password has changed, and that here is about to.
pub(super) fn logged_in<T>(
    credentials: Option<&CredentialSource>,
    outcome: Result<T, Failure>,
) -> Result<T, Failure> {
    match (credentials, outcome) {
        (Some(source), Ok(done)) => {
            source.is_right();
            Ok(done)
        }
        (Some(source), Err(Failure::Refused(refusal))) if refusal.is_of_login() && source.was_right() => {
            Err(Failure::Refused(refusal.passing()))
        }
        (_, outcome) => outcome,
    }
}

/// Returns the error of a panic while connecting.
pub(in crate::net) fn panicked(panic: &(dyn Any + Send)) -> Failure {
    Failure::Panicked(words_of(panic))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let words = text.unwrap_or("no reason given").split_whitespace().collect::<Vec<_>>().join(" ");
    Cut(words.as_bytes()).to_string()
}
