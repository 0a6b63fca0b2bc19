//! The arguments of `man` and `completions`.

use clap::Args;
use clap_complete::Shell;

/// Print a man page
///
/// `setnx-lock man run | man -l -` shows it.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The command [default: the tool itself]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// Print shell completions
///
/// For bash, save them as ~/.local/share/bash-completion/completions/setnx-lock.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: Shell,
}
