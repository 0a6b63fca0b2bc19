//! Writes the tool's man pages and shell completions, made of its command line, into a folder: `man/` and `completions/`.
//!
//! `make manual`, or `cargo run -p setnx-lock-manual -- FOLDER`.

#[allow(dead_code, unused_imports, reason = "the tool's own, of which only the command line is used")]
#[path = "../../src/bin/setnx-lock/arguments/mod.rs"]
mod arguments;

use std::path::PathBuf;
use std::{fs, io};

use clap::{CommandFactory as _, Parser, ValueEnum as _};
use clap_complete::Shell;

/// Writes the man pages and shell completions of setnx-lock.
#[derive(Debug, Parser)]
#[command(name = "manual")]
struct Options {
    /// The folder to write `man/` and `completions/` into
    #[arg(value_name = "FOLDER", default_value = "target")]
    folder: PathBuf,
}

fn main() -> io::Result<()> {
    let folder = Options::parse().folder;
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let mut command = arguments::Arguments::command();
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut command, "setnx-lock", &completions)?;
    }
    // Its script for bash looks for functions by two different names if a program's name has a hyphen.
    let bash = completions.join("setnx-lock.bash");
    let script = fs::read_to_string(&bash)?;
    fs::write(&bash, script.replace("setnx__subcmd__lock", "setnx__lock"))?;
    // A page for each command will do, without one for the help of each.
    clap_mangen::generate_to(arguments::Arguments::command().disable_help_subcommand(true), &man)?;
    println!("wrote {} and {}", man.display(), completions.display());
    Ok(())
}
