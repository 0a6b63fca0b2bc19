//! What stands after a program's name: options, or the part that the program plays for itself in a process of its own.

use clap::{Args, Parser, Subcommand};

// No doc comment: `--help` begins with that of the options.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Arguments<O: Args, P: Subcommand> {
    #[command(flatten)]
    pub(crate) options: O,
    #[command(subcommand)]
    pub(crate) part: Option<P>,
}
