//! The arguments of `man` and `completions`.

use clap::Args;
use clap_complete::Shell;

/// Print a manual page
///
/// `setnx-lock man run | man -l -` shows it.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The command; without one the page of the tool
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// Print the completions for a shell
///
/// The page of the shell says where they belong: for bash a file completions/setnx-lock in ~/.local/share/bash-completion.
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: Shell,
}
