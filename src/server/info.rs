//! What a server tells of itself in INFO, in the words of every version from 1.2 on.

use crate::version::Version;

/// Whether a server takes orders, or repeats what another does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is written to, and its replicas follow.
    Master,
    /// It follows a master. Locks do not belong here: up to 2.4 a replica takes writes as a master does, and tells nobody.
    Replica {
        /// The master's host and port, where the server tells them.
        of: Option<String>,
    },
}

/// The answer to INFO: lines of `field:value`, from 2.6 on under headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info(String);

impl Info {
    /// Takes the answer, if it is one: it names a version.
    pub(crate) fn read(text: String) -> Option<Self> {
        let info = Self(text);
        info.version().is_some().then_some(info)
    }

    /// Returns what the server says of a field that its version has.
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
    }

    pub(crate) fn version(&self) -> Option<Version> {
        Version::read(self.get("redis_version")?)
    }

    pub(crate) fn role(&self) -> Option<Role> {
        match self.get("role")? {
            "master" => Some(Role::Master),
            "slave" | "replica" => Some(Role::Replica {
                of: self
                    .get("master_host")
                    .map(|host| format!("{host}:{}", self.get("master_port").unwrap_or("?"))),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_forms_are_read() {
        let old = "redis_version:1.2.6\r\narch_bits:64\r\nconnected_slaves:2\r\nrole:master\r\n";
        let info = Info::read(old.into()).unwrap();
        assert_eq!(info.version(), Some(Version::new(1, 2, 6)));
        assert_eq!((info.role(), info.get("connected_slaves")), (Some(Role::Master), Some("2")));
        assert_eq!((info.get("slaves"), info.get("version")), (None, None), "names are whole names");

        let new = "# Server\r\nredis_version:7.0.15\r\n\r\n# Replication\r\nrole:slave\r\nmaster_host:10.1.2.3\r\nmaster_port:6380\r\n";
        let info = Info::read(new.into()).unwrap();
        assert_eq!(info.role(), Some(Role::Replica { of: Some("10.1.2.3:6380".into()) }));
        let without = Info::read("redis_version:2.0.5\nrole:slave\n".into()).unwrap();
        assert_eq!(without.role(), Some(Role::Replica { of: None }));
        assert_eq!(Info::read("redis_version:2.0.5\n".into()).unwrap().role(), None);
        assert_eq!(Info::read("something else".into()), None);
    }
}
