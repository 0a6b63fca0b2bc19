//! How the connections of a locker log in, and what the tool needs of that.

use std::io;

use super::LockerBuilder;
use crate::net::Failure;
#[cfg(any(feature = "tls-native-tls", feature = "tls-rustls"))]
use crate::report::error::Error;
use crate::values::credentials::{CredentialSource, Credentials};

impl LockerBuilder {
    /// Sets a function that returns the login, in place of the login in the address. It runs each time a connection is
    /// opened, so that a password can change while the program runs.
    ///
    /// Once the server has accepted a login, a later one that it refuses is about to change here as well: a call that
    /// waits for a lock goes on ([`RefusedForNow`](crate::Event::RefusedForNow)), and so do extensions and releases.
    ///
    /// Connections that are open stay logged in. With Sentinels this is the login to the master. The function runs on a
    /// thread of the library and must return soon: it uses up the time for connecting, and cannot be interrupted. A
    /// panic counts as a failure to connect. Not for [your own pool](crate::Locker::with_pool), whose manager connects.
    ///
    /// ```
    /// use setnx_lock::{Credentials, Locker};
    /// use std::fs;
    ///
    /// let builder = Locker::builder("redis://127.0.0.1/")?.credentials(|| {
    ///     let password = fs::read_to_string("/run/secrets/redis").expect("the password's file");
    ///     Credentials::password(password.trim_end()).user("locks")
    /// });
    /// # Ok::<(), setnx_lock::Error>(())
    /// ```
    pub fn credentials(self, source: impl Fn() -> Credentials + Send + Sync + 'static) -> Self {
        self.set(|deployment| deployment.credentials = Some(CredentialSource::new(source)))
    }

    /// Sets a function that returns the login to the Sentinels, in the way of [`credentials`](Self::credentials).
    pub fn sentinel_credentials(self, source: impl Fn() -> Credentials + Send + Sync + 'static) -> Self {
        self.set(|deployment| deployment.sentinel_credentials = Some(CredentialSource::new(source)))
    }

    /// Sets the certificates of TLS: the private CA that signed the server's (`root_cert`), and the client's own
    /// (`client_tls`), all in PEM. The client's key must be in PKCS #8 (`BEGIN PRIVATE KEY`) with `tls-native-tls`.
    ///
    /// They hold for all servers of the locker: the nodes of a cluster, the Sentinels and the master. Without
    /// `root_cert` the system's certificates count.
    ///
    /// ```no_run
    /// # // Not run: it needs a server with TLS.
    /// # #[cfg(any(feature = "tls-native-tls", feature = "tls-rustls"))] {
    /// use setnx_lock::Locker;
    /// use setnx_lock::redis::{ClientTlsConfig, TlsCertificates};
    /// use std::fs;
    ///
    /// let certificates = TlsCertificates {
    ///     root_cert: Some(fs::read("ca.pem")?),
    ///     client_tls: Some(ClientTlsConfig {
    ///         client_cert: fs::read("client.pem")?,
    ///         client_key: fs::read("client.key")?,
    ///     }),
    /// };
    /// let locker = Locker::builder("rediss://redis.example.com/")?.tls_certificates(&certificates)?.build()?;
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an address does not begin with `rediss`, if a certificate or key cannot be read, and for
    /// [your own pool](crate::Locker::with_pool).
    #[cfg(any(feature = "tls-native-tls", feature = "tls-rustls"))]
    pub fn tls_certificates(mut self, certificates: &redis::TlsCertificates) -> Result<Self, Error> {
        let with = |client: &mut redis::Client| {
            let info = client.get_connection_info().clone();
            if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
                return Err(Error::invalid_locker(
                    "TLS certificates need an address that begins with rediss://",
                ));
            }
            let changed = redis::Client::build_with_tls(info, certificates.clone());
            *client = changed
                .map_err(|error| Error::invalid_locker(format!("invalid TLS certificates: {error}")))?;
            Ok(())
        };
        if self.deployment.borrows() {
            return Err(Error::invalid_locker(
                "a pool of your own has its TLS certificates already; set them there",
            ));
        }
        self.deployment.clients().into_iter().try_for_each(with)?;
        Ok(self)
    }

    /// For the tool: returns true if the login in the address has a password.
    #[doc(hidden)]
    #[must_use]
    pub fn has_password(&self) -> bool {
        let settings = self.deployment.login().map(|client| client.get_connection_info().redis_settings());
        settings.is_some_and(|settings| settings.password().is_some())
    }

    /// For the tool: returns clients of the servers to try in turn; for a cluster, of the named nodes.
    #[doc(hidden)]
    pub fn find_servers(&self) -> io::Result<Vec<redis::Client>> {
        self.deployment.find().map_err(|error| {
            let kind = if matches!(error, Failure::Refused(_)) {
                io::ErrorKind::PermissionDenied
            } else {
                io::ErrorKind::NotConnected
            };
            io::Error::new(kind, error.to_string())
        })
    }
}
