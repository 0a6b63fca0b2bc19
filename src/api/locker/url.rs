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
             redis+sentinel://[:password@]host[:port],…/master[/database], redis+cluster://[:password@]host[:port],…, or with this crate's feature tls-rustls or \
             tls-native-tls rediss://…",
            Cut(error.to_string().as_bytes())
        ))
    })
}

/// Reads a URL, or a host or name alone.
fn client_of(text: &str) -> Result<Client, Error> {
    if text.contains("://") { client(text) } else { client(&format!("redis://{text}")) }
}

/// Servers that are one to the user.
#[derive(Clone, Debug)]
pub(super) enum Servers {
    /// Sentinels, and a client that logs in to the master, in place of whose host it has the master's name.
    Sentinels(Vec<Client>, Box<Client>),
    /// Nodes of a cluster.
    Cluster(Vec<Client>),
}

impl Servers {
    pub(super) fn sentinels(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> Result<Self, Error> {
        Ok(Self::Sentinels(clients(sentinels)?, Box::new(client_of(master)?)))
    }

    pub(super) fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        clients(nodes).map(Self::Cluster)
    }

    /// Reads `redis+sentinel://[[user]:password@]host[:port][,…]/name[/database][?sentinel_password=…]` or
    /// `redis+cluster://[[user]:password@]host[:port][,…]`; `None` if it is of another scheme.
    pub(super) fn read(url: &str) -> Option<Result<Self, Error>> {
        let (scheme, rest) = url.split_once("://")?;
        let (scheme, kind) = scheme.split_once('+')?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(login, hosts)| (login, hosts));
        let at = |login: &str| if login.is_empty() { String::new() } else { format!("{login}@") };
        let own = at(login);
        match kind {
            "cluster" if !query.is_empty() => {
                let problem = "invalid Redis URL: a redis+cluster URL has no parameters";
                Some(Err(Error::invalid_locker(problem)))
            }
            "cluster" => {
                Some(Self::cluster(hosts.split(',').map(|host| format!("{scheme}://{own}{host}/{path}"))))
            }
            "sentinel" => {
                let login = match sentinel_login(query) {
                    Ok(login) => at(&login),
                    Err(error) => return Some(Err(error)),
                };
                let of = |host: &str| {
                    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
                    let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
                    format!("{scheme}://{login}{host}{port}")
                };
                Some(Self::sentinels(hosts.split(',').map(of), &format!("{scheme}://{own}{path}")))
            }
            _ => None,
        }
    }
}

fn clients(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Client>, Error> {
    urls.into_iter().map(|url| client_of(url.as_ref())).collect()
}

/// Returns the user and the password of the Sentinels in the query of a URL.
fn sentinel_login(query: &str) -> Result<String, Error> {
    let (mut user, mut password) = ("", "");
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "sentinel_user" => user = value,
            "sentinel_password" => password = value,
            name => {
                return Err(Error::invalid_locker(format!(
                    "invalid Redis URL: unknown parameter {}; a redis+sentinel URL has sentinel_user and sentinel_password",
                    Cut(name.as_bytes())
                )));
            }
        }
    }
    if password.is_empty() && !user.is_empty() {
        return Err(Error::invalid_locker("invalid Redis URL: sentinel_user needs sentinel_password"));
    }
    Ok(if password.is_empty() { String::new() } else { format!("{}:{}", encoded(user), encoded(password)) })
}

/// Encodes what a query may have and the login of a URL may not.
fn encoded(text: &str) -> String {
    text.replace('/', "%2F").replace('?', "%3F").replace('@', "%40").replace(':', "%3A")
}
