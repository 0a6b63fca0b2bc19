//! How a version of Redis that can be emulated is typed.

use setnx_lock_testing::ServerVersion;

pub(crate) fn emulated(text: &str) -> Result<ServerVersion, String> {
    let names = ServerVersion::OLD.map(ServerVersion::name).join(", ");
    ServerVersion::OLD
        .into_iter()
        .find(|version| version.name() == text)
        .ok_or(format!("expected one of {names}"))
}
