//! The command-line tool: its real program, built once.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use cargo_metadata::Message;

/// Returns a command of the tool, for this server. Nothing of the environment reaches it that would change what it does, and it ignores no
/// signal, even if the tests do, as under nohup or in the background of a script.
pub(crate) fn tool(url: &str) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(program());
    command.env("REDIS_URL", url).stdin(Stdio::null());
    for variable in ["REDISCLI_AUTH", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

/// The tool's program.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PROGRAM.get_or_init(build) {
        Ok(program) => program,
        Err(problem) => panic!("the tool was not built: {problem}"),
    }
}

/// Builds it.
fn build() -> Result<PathBuf, String> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--locked", "--package", "setnx-lock-cli"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let messages = Message::parse_stream(output.stdout.as_slice());
    let programs = messages.filter_map(|message| match message {
        Ok(Message::CompilerArtifact(artifact)) => artifact.executable,
        _ => None,
    });
    programs.last().map(Into::into).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}
