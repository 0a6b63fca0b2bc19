//! The command-line tool and the examples: their real programs, built once.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, OnceLock};

use cargo_metadata::Message;

/// Returns a command of the tool, for this server. Nothing of the environment reaches it that would change what it
/// does, and it ignores no signal, even if the tests do, as under nohup or in the background of a script.
pub(crate) fn tool(url: &str) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program());
    command.env("REDIS_URL", url).stdin(Stdio::null());
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// What would change what the tool does.
const VARIABLES: [&str; 8] = [
    "REDISCLI_AUTH",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "SETNX_LOCK_PREFIX",
    "SETNX_LOCK_CONNECT_TIMEOUT",
    "SETNX_LOCK_COMMAND_TIMEOUT",
    "SETNX_LOCK_TOKEN",
];

/// The tool's program: the one that `SETNX_LOCK_TEST_TOOL` names, for example of `make dist`, or as it is built here.
pub(crate) fn program() -> &'static Path {
    static GIVEN: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| env::var_os("SETNX_LOCK_TEST_TOOL").map(PathBuf::from));
    GIVEN.as_deref().unwrap_or_else(|| built("setnx-lock"))
}

/// Builds what tests of these names run, so that no other test runs beside a compiler.
pub(crate) fn build_for<'a>(mut names: impl Iterator<Item = &'a str>) {
    if names.any(|name| ["tool_", "examples::", "leading::"].iter().any(|part| name.starts_with(part))) {
        program();
    }
}

/// The program of an example.
pub(crate) fn example(name: &str) -> &'static Path {
    built(name)
}

fn built(name: &str) -> &'static Path {
    static BUILT: OnceLock<Programs> = OnceLock::new();
    &BUILT.get_or_init(build)[name]
}

/// Programs by the names of their targets.
type Programs = BTreeMap<String, PathBuf>;

/// Builds them, of the same packages and with the same features
/// as the tests, so that the library is not compiled again.
fn build() -> Programs {
    let features = if cfg!(feature = "tls-rustls") { "tls-rustls,macros" } else { "macros" };
    // The variables of this test's package: build scripts that look at them, such as ring's, would run again, and all
    // above be compiled again.
    let of_package = env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|beginning| name.starts_with(beginning))
    });
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    of_package.for_each(|name| {
        cargo.env_remove(name);
    });
    let output = cargo
        .args(["build", "--quiet", "--locked", "--message-format", "json-render-diagnostics"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")])
        .args(["--bins", "--examples", "--features", features])
        .stdin(Stdio::null())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = Message::parse_stream(output.stdout.as_slice());
    let programs = messages.filter_map(|message| match message {
        Ok(Message::CompilerArtifact(artifact)) => Some((artifact.target.name, artifact.executable?.into())),
        _ => None,
    });
    programs.collect()
}
