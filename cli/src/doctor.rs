//! `doctor`: what a server can do for locks, and what may harm them there.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Serialize;
use setnx_lock::redis;
use setnx_lock::{ClockDifference, Error, Persistence, Protocol, Role, ServerReport, Warning};

use crate::arguments::{Condition, Doctor, Server};
use crate::failure::Failure;
use crate::output::{RED, YELLOW, json_line, styled};
use crate::server::Target;

/// How grave a finding is; the exit code is that of the gravest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    /// As locks on a single server are; good to know.
    Note,
    /// Something should be changed.
    Warning,
    /// Locks do not work here.
    Error,
}

/// See docs/cli.md.
#[derive(Debug, Serialize)]
struct Report {
    version: String,
    role: Option<&'static str>,
    master: Option<String>,
    protocols: Vec<ProtocolReport>,
    recommended: Option<&'static str>,
    clock_ahead_seconds_min: Option<f64>,
    clock_ahead_seconds_max: Option<f64>,
    maxmemory_bytes: Option<u64>,
    maxmemory_policy: Option<String>,
    idle_timeout_seconds: Option<u64>,
    persistence: Option<&'static str>,
    replicas: Option<u32>,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct ProtocolReport {
    name: &'static str,
    works: bool,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Finding {
    severity: Severity,
    text: String,
}

pub(crate) fn doctor(arguments: &Doctor) -> Result<ExitCode, Failure> {
    let Doctor { address, json, server } = arguments;
    let url = address.as_ref().unwrap_or(&server.url).clone();
    let server = Server { url, password_file: server.password_file.clone() };
    // Without the check of new connections, which refuses replicas: they are reported as well.
    let target = Target::of(&server)?;
    let report = match target.locker().skip_server_check().build()?.inspect() {
        Err(Error::Unavailable { .. }) if answers_get(&target) => {
            return Err(Failure::of(
                Condition::Refused,
                "connections are closed on INFO, as a proxy does; give the address of the server itself",
            ));
        }
        inspected => inspected?,
    };
    let findings = findings(&report);
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Note);
    match write(&report, findings, *json) {
        // A reader that has seen enough does not change what was found.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok((worst as u8).into()),
    }
}

/// Whether it is INFO that is not answered.
fn answers_get(target: &Target) -> bool {
    let get = redis::cmd("GET").arg("setnx-lock:probe").clone();
    target.connect().and_then(|mut raw| raw.ask::<Option<Vec<u8>>>(&get)).is_ok()
}

fn write(report: &ServerReport, findings: Vec<Finding>, json: bool) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    if json {
        return json_line(&mut out, &in_json(report, findings));
    }
    // The findings stand at the end of the report.
    let text = report.to_string();
    writeln!(out, "{}", text.split("\nwarning: ").next().unwrap_or_default())?;
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

fn findings(report: &ServerReport) -> Vec<Finding> {
    let mut findings = Vec::new();
    if report.recommended().is_none() && !matches!(report.role(), Some(Role::Replica { .. })) {
        let why = report.unsupported_reason(Protocol::Classic).unwrap_or_default();
        let text = format!("no protocol works: {why}; {}", report.remedy().unwrap_or_default());
        findings.push(Finding { severity: Severity::Error, text });
    }
    findings.extend(report.warnings().iter().map(|warning| Finding {
        severity: match warning {
            Warning::IsReplica { .. } => Severity::Error,
            Warning::ForgetsLocks { .. }
            | Warning::FailoverLosesLocks { .. }
            | Warning::NotReported { .. } => Severity::Note,
            _ => Severity::Warning,
        },
        text: warning.to_string(),
    }));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn in_json(report: &ServerReport, findings: Vec<Finding>) -> Report {
    let (role, master) = match report.role() {
        Some(Role::Master) => (Some("master"), None),
        Some(Role::Replica { of, .. }) => (Some("replica"), of.clone()),
        _ => (None, None),
    };
    let protocols = [Protocol::Classic, Protocol::Watched, Protocol::Ttl].map(|protocol| {
        let reason = report.unsupported_reason(protocol);
        ProtocolReport { name: protocol.name(), works: reason.is_none(), reason }
    });
    let ahead = report.clock().map(ahead);
    Report {
        version: report.version().to_string(),
        role,
        master,
        protocols: protocols.into(),
        recommended: report.recommended().map(Protocol::name),
        clock_ahead_seconds_min: ahead.map(|(least, _)| least),
        clock_ahead_seconds_max: ahead.map(|(_, most)| most),
        maxmemory_bytes: report.maxmemory(),
        maxmemory_policy: report.maxmemory_policy().map(str::to_owned),
        idle_timeout_seconds: report.idle_timeout().map(|time| time.as_secs()),
        persistence: report.persistence().map(|persistence| match persistence {
            Persistence::None => "none",
            Persistence::Snapshots => "snapshots",
            Persistence::AppendOnly => "append_only",
            Persistence::AppendOnlyUnsynced => "append_only_unsynced",
            _ => "other",
        }),
        replicas: report.replicas(),
        findings,
    }
}

/// How many seconds the server's clock is ahead of ours, at least and at most; negative if it is behind.
fn ahead(clock: ClockDifference) -> (f64, f64) {
    let (least, most) = (clock.at_least().as_secs_f64(), clock.at_most().as_secs_f64());
    match clock.server_is_ahead() {
        Some(true) => (least, most),
        Some(false) => (-most, -least),
        None => (-most, most),
    }
}
