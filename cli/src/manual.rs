//! `man` and `completions`: manual pages and shell completions, made of the command line.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use roff::{Roff, roman};

use crate::arguments::{Arguments, Completions, Man};
use crate::failure::Failure;

/// The sections behind the options, in their order, with the headings that they have in the help.
const SECTIONS: [(&str, &str); 4] = [
    ("EXIT STATUS", "Exit codes"),
    ("ENVIRONMENT", "Environment of the command"),
    ("FILES", "Files"),
    ("EXAMPLES", "Examples"),
];

/// Of each command that asks a server.
const OF_SERVERS: [(&str, &str); 2] = [
    (
        "ENVIRONMENT",
        "  REDIS_URL                 the server, unless --url names it
  REDISCLI_AUTH             the password, unless --password-file or the URL
                            has one
  SETNX_LOCK_PREFIX, SETNX_LOCK_CONNECT_TIMEOUT, SETNX_LOCK_COMMAND_TIMEOUT
                            the defaults of these options
  A variable that is empty counts as not set.",
    ),
    ("FILES", "  --password-file: its first line is the password."),
];

/// Of each command whose help has none.
const EXIT_STATUS: &str = "  0   success
  64  invalid arguments
  69  unreachable: no connection to the server, or the server is not ready
  71  the system refused something
  77  refused by the server";

pub(crate) fn man(arguments: &Man) -> Result<ExitCode, Failure> {
    let mut tool = Arguments::command().disable_help_subcommand(true);
    tool.build();
    let command = match &arguments.command {
        Some(name) => tool.find_subcommand(name).cloned().ok_or_else(|| {
            Failure::usage(format!("there is no command {name:?}; setnx-lock help lists them"))
        })?,
        None => tool,
    };
    // The page explains also what the summary leaves out.
    let command = command.mut_args(|argument| argument.hide_short_help(false));
    let mut page = Vec::new();
    let sections = sections(&command);
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    sections.to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    print(&page)
}

/// The sections behind the options: those of the help, and those of all commands.
fn sections(command: &Command) -> Roff {
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut texts = BTreeMap::<&str, Vec<&str>>::new();
    if command.has_subcommands() || command.get_arguments().any(|argument| argument.get_id() == "url") {
        for (section, text) in OF_SERVERS {
            texts.entry(section).or_default().extend(text.lines());
        }
    }
    let mut section = None;
    for line in help.lines() {
        let heading = SECTIONS.iter().find_map(|(name, heading)| {
            Some((*name, line.strip_prefix(heading)?.strip_prefix(':')?.trim_start()))
        });
        let line = if let Some((name, rest)) = heading {
            section = Some(name);
            rest
        } else {
            line
        };
        if let Some(section) = section.filter(|_| !line.is_empty()) {
            texts.entry(section).or_default().push(line);
        }
    }
    texts.entry("EXIT STATUS").or_insert_with(|| EXIT_STATUS.lines().collect());
    let mut roff = Roff::new();
    for (section, _) in SECTIONS {
        let Some(lines) = texts.get(section) else { continue };
        // As it stands: the columns are aligned.
        roff.control("SH", [section]).control("nf", []);
        for line in lines {
            roff.text([roman(*line)]);
        }
        roff.control("fi", []);
    }
    roff
}

pub(crate) fn completions(arguments: &Completions) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "setnx-lock", &mut script);
    // The script for bash looks for functions by two different names if a program's name has a hyphen.
    let script = String::from_utf8_lossy(&script).replace("setnx__subcmd__lock", "setnx__lock");
    print(script.as_bytes())
}

fn print(text: &[u8]) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
