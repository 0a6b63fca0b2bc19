//! The URLs of a locker's servers.

use redis::Client;

use crate::report::error::Error;
use crate::values::key::Cut;

/// The port of a Sentinel that names none.
const SENTINEL_PORT: u16 = 26379;

/// Reads the URL of a server.
pub(super) fn client(url: &str) -> Result<Client, Error> {
    Client::open(url).map_err(|error| {
        Error::invalid_locker(format!(
            "invalid Redis URL: {}; expected redis://[:password@]host[:port][/database], unix:///path, \
             redis+sentinel://[:password@]host[:port],…/master[/database], or with this crate's feature tls-rustls or \
             tls-native-tls rediss://…",
            Cut(error.to_string().as_bytes())
        ))
    })
}

/// Reads a URL, or a host or name alone.
fn client_of(text: &str) -> Result<Client, Error> {
    if text.contains("://") { client(text) } else { client(&format!("redis://{text}")) }
}

/// Sentinels, and a client that logs in to the master, in place of whose host it has the master's name.
pub(super) struct Sentinels {
    pub(super) clients: Vec<Client>,
    pub(super) master: Client,
}

impl Sentinels {
    pub(super) fn of(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> Result<Self, Error> {
        let clients = sentinels.into_iter().map(|url| client_of(url.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { clients, master: client_of(master)? })
    }

    /// Reads `redis+sentinel://[[user]:password@]host[:port][,…]/name[/database][?sentinel_password=…]`; `None` if it is of another scheme.
    pub(super) fn read(url: &str) -> Option<Result<Self, Error>> {
        let (scheme, rest) = url.split_once("+sentinel://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(login, hosts)| (login, hosts));
        let at = |login: &str| if login.is_empty() { String::new() } else { format!("{login}@") };
        let (mut user, mut password) = ("", "");
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "sentinel_user" => user = value,
                "sentinel_password" => password = value,
                _ => return Some(Err(unknown(name))),
            }
        }
        let sentinel_login =
            if password.is_empty() { String::new() } else { at(&format!("{user}:{password}")) };
        let of = |host: &str| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
            format!("{scheme}://{sentinel_login}{host}{port}")
        };
        let master = format!("{scheme}://{}{path}", at(login));
        Some(Self::of(hosts.split(',').map(of), &master))
    }
}

fn unknown(name: &str) -> Error {
    Error::invalid_locker(format!(
        "invalid Redis URL: unknown parameter {}; a redis+sentinel URL has sentinel_user and sentinel_password",
        Cut(name.as_bytes())
    ))
}
