//! The URLs of a locker's servers.

use proto::values::Cut;
use redis::Client;

use crate::net::Deployment;
use crate::report::error::Error;

/// The port of a Sentinel that names none.
const SENTINEL_PORT: u16 = 26379;

/// Returns the error of the first parameter in a query that is
/// not known. What may be a part of a password is not shown.
fn unknown_parameter(
    query: &str,
    known: &[&str],
    instead: impl FnOnce(&str) -> &'static str,
) -> Result<(), Error> {
    let names = query.split('&').filter(|pair| !pair.is_empty());
    let mut names = names.map(|pair| pair.split('=').next().unwrap_or_default());
    let Some(unknown) = names.find(|name| !known.contains(name)) else { return Ok(()) };
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let problem = if query.contains('@') || !is_name(unknown) {
        "unknown parameter; in a user or password write ? as %3F".to_owned()
    } else {
        format!("unknown parameter {}; {}", Cut(unknown.as_bytes()), instead(unknown))
    };
    Err(Error::invalid_locker(format!("invalid Redis URL: {problem}")))
}

/// Fails for a parameter that the redis crate would leave out without a word.
fn check_parameters(url: &str) -> Result<(), Error> {
    let before_fragment = url.split('#').next().unwrap_or_default();
    let Some((rest, query)) = before_fragment.split_once('?') else { return Ok(()) };
    let is_unix = rest.split(':').next().is_some_and(|scheme| scheme.ends_with("unix"));
    let known: &[&str] = if is_unix { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
    unknown_parameter(query, known, |name| match name {
        _ if is_unix => "a unix URL has db, user, pass and protocol",
        "db" | "database" => "write the database as redis://host:port/2",
        "password" | "pass" | "user" | "username" => "write the login as redis://user:password@host",
        "ssl" | "tls" | "ssl_cert_reqs" => "write rediss:// for TLS",
        "timeout" | "socket_timeout" | "connect_timeout" | "socket_connect_timeout" => {
            "a URL has no times, which are options"
        }
        _ => "a redis URL has only protocol",
    })
}

/// What a user or a password with special characters needs.
const ENCODE: &str =
    "; in a user or password write @ as %40, / as %2F, : as %3A, # as %23, ? as %3F and % as %25";

/// Reads the URL of a server.
pub(super) fn client(url: &str) -> Result<Client, Error> {
    check_parameters(url)?;
    Client::open(url).map_err(|error| {
        Error::invalid_locker(format!(
            "invalid Redis URL: {}; expected redis://[:password@]host[:port][/database], unix:///path, \
             redis+sentinel://[:password@]host[:port],…/master[/database], redis+cluster://[:password@]host[:port],…, or with this crate's feature tls-rustls or \
             tls-native-tls rediss://…{}",
            Cut(error.to_string().as_bytes()),
            if url.contains('@') { ENCODE } else { "" }
        ))
    })
}

/// Reads a URL, or a host or name alone.
fn client_of(text: &str) -> Result<Client, Error> {
    if text.contains("://") { client(text) } else { client(&format!("redis://{text}")) }
}

/// Returns the master that Sentinels at these addresses know.
pub(super) fn sentinels(
    sentinels: impl IntoIterator<Item = impl AsRef<str>>,
    master: &str,
) -> Result<Deployment, Error> {
    Ok(Deployment::sentinels(clients(sentinels)?, client_of(master)?))
}

/// Returns the cluster of nodes at these addresses.
pub(super) fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Deployment, Error> {
    clients(nodes).map(Deployment::cluster)
}

/// Reads `redis+sentinel://[[user]:password@]host[:port][,…]/name[/database][?sentinel_password=…]` or
/// `redis+cluster://[[user]:password@]host[:port][,…]`; `None` if it is of another scheme.
pub(super) fn read(url: &str) -> Option<Result<Deployment, Error>> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, kind) = scheme.split_once('+')?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(login, hosts)| (login, hosts));
    let at = |login: &str| if login.is_empty() { String::new() } else { format!("{login}@") };
    let own = at(login);
    match kind {
        "cluster" if !query.is_empty() => {
            unknown_parameter(query, &[], |_| "a redis+cluster URL has no parameters").err().map(Err)
        }
        "cluster" => Some(cluster(hosts.split(',').map(|host| format!("{scheme}://{own}{host}/{path}")))),
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
            Some(sentinels(hosts.split(',').map(of), &format!("{scheme}://{own}{path}")))
        }
        _ => None,
    }
}

fn clients(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Client>, Error> {
    urls.into_iter().map(|url| client_of(url.as_ref())).collect()
}

/// Returns the user and the password of the Sentinels in the query of a URL.
fn sentinel_login(query: &str) -> Result<String, Error> {
    let known = ["sentinel_user", "sentinel_password"];
    unknown_parameter(query, &known, |_| "a redis+sentinel URL has sentinel_user and sentinel_password")?;
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(found, _)| *found == name).map(|(_, value)| value).next_back().unwrap_or_default()
    };
    let (user, password) = (value("sentinel_user"), value("sentinel_password"));
    if password.is_empty() && !user.is_empty() {
        return Err(Error::invalid_locker("invalid Redis URL: sentinel_user needs sentinel_password"));
    }
    Ok(if password.is_empty() { String::new() } else { format!("{}:{}", encoded(user), encoded(password)) })
}

/// Encodes what a query may have and the login of a URL may not.
fn encoded(text: &str) -> String {
    text.replace('/', "%2F").replace('?', "%3F").replace('@', "%40").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_has_no_effect_is_refused() {
        for (url, problem) in [
            ("redis://h/?db=2", "unknown parameter db; write the database as redis://host:port/2"),
            ("redis://h/1?protocol=resp3&ssl=true", "unknown parameter ssl; write rediss:// for TLS"),
            ("redis://h?password=secret", "unknown parameter password; write the login as"),
            ("redis://h?timeout=5", "unknown parameter timeout; a URL has no times"),
            ("redis://h?db", "unknown parameter db"),
            ("unix:///s?database=2", "unknown parameter database; a unix URL has db"),
            ("redis+cluster://h?db=2", "unknown parameter db; a redis+cluster URL has no parameters"),
        ] {
            let came = read(url).map_or_else(|| client(url).map(drop), |servers| servers.map(drop));
            let error = came.expect_err(url).to_string();
            assert!(error.contains(problem) && !error.contains("secret"), "{url}: {error}");
        }
        for url in [
            "redis://h/2",
            "valkey+unix:///s?db=2&user=u&pass=p",
            "redis://h?protocol=resp3",
            "redis://h/?",
            "unix:///s?db=2&user=u&pass=p&protocol=resp3",
        ] {
            assert!(client(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_password_with_a_question_mark_is_in_no_error() {
        for url in [
            "redis://:p?zzy@h",
            "redis://u:p?zzy=1@h/",
            "redis://:p?zz%y",
            "redis+cluster://:p?zzy@h",
            "redis+sentinel://:p?zzy@h/m",
        ] {
            let came = read(url).map_or_else(|| client(url).map(drop), |servers| servers.map(drop));
            let error = came.expect_err(url).to_string();
            assert!(error.contains("%3F") && !error.contains("zz"), "{url}: {error}");
        }
    }
}
