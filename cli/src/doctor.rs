//! `doctor`: what a server can do for locks, and what may harm them there.
//!
//! | file | what it does |
//! |---|---|
//! | `inspector` | asks the server |
//! | `report`, `clock_difference` | what its answers mean |
//! | `finding` | what may harm locks |
//! | `text`, `json` | print it |

mod clock_difference;
mod finding;
mod inspector;
mod json;
mod report;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::arguments::{Doctor, Server};
use crate::failure::Failure;
use crate::output::{RED, YELLOW, json_line, styled};
use crate::server::Target;
use finding::{Finding, Severity};
use report::ServerReport;

pub(crate) fn doctor(arguments: &Doctor) -> Result<ExitCode, Failure> {
    let Doctor { address, json, server } = arguments;
    let url = address.as_ref().unwrap_or(&server.url).clone();
    let server = Server { url, ..server.clone() };
    let report = inspector::inspect(&Target::of(&server)?)?;
    let findings = report.findings();
    let gravest = findings.first().map_or(Severity::Note, |finding| finding.severity);
    match write(&report, findings, *json) {
        // A reader that has seen enough does not change what was found.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok((gravest as u8).into()),
    }
}

fn write(report: &ServerReport, findings: Vec<Finding>, json: bool) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if json {
        return json_line(&mut out, &json::Report::of(report, findings));
    }
    write!(out, "{report}")?;
    for Finding { severity, text } in findings {
        let severity = match severity {
            Severity::Note => "note".to_owned(),
            Severity::Warning => styled(YELLOW, "warning"),
            Severity::Error => styled(RED, "error"),
        };
        writeln!(out, "{severity}: {text}")?;
    }
    Ok(())
}
