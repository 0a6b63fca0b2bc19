//! How a version of Redis that the proxy can emulate is typed.

use testkit::servers::Emulated;

pub(crate) fn emulated(text: &str) -> Result<Emulated, String> {
    let names = Emulated::ALL.map(Emulated::name).join(", ");
    Emulated::ALL.into_iter().find(|version| version.name() == text).ok_or(format!("expected one of {names}"))
}
