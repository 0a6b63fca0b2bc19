//! What stands after a program's name: options, or the part that the program runs for itself in a process of its own.

use clap::{Args, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Arguments<O: Args, P: Subcommand> {
    #[command(subcommand)]
    pub(crate) part: Option<P>,
    // The last one: `--help` begins with its doc comment, and would with this struct's.
    #[command(flatten)]
    pub(crate) options: O,
}
