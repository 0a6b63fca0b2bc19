//! How a version of Redis that the proxy can play is typed.

use crate::servers::Played;

pub(crate) fn played(text: &str) -> Result<Played, String> {
    let names = Played::ALL.map(Played::name).join(", ");
    Played::ALL.into_iter().find(|version| version.name() == text).ok_or(format!("expected one of {names}"))
}
