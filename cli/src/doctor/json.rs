//! A report in JSON: see docs/cli.md.

use serde::Serialize;
use setnx_lock::Protocol;

use super::clock_difference::ClockDifference;
use super::finding::Finding;
use super::report::{PROTOCOLS, Persistence, Role, ServerReport};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: String,
    role: Option<&'static str>,
    master: Option<String>,
    protocols: [ProtocolReport; 3],
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

impl Report {
    pub(super) fn of(report: &ServerReport, findings: Vec<Finding>) -> Self {
        let (role, master) = match &report.role {
            Some(Role::Master) => (Some("master"), None),
            Some(Role::Replica { of }) => (Some("replica"), of.clone()),
            None => (None, None),
        };
        let ahead = report.clock.map(ahead);
        Self {
            version: report.version.to_string(),
            role,
            master,
            protocols: PROTOCOLS.map(|protocol| {
                let reason = report.unsupported_reason(protocol);
                ProtocolReport { name: protocol.name(), works: reason.is_none(), reason }
            }),
            recommended: report.recommended().map(Protocol::name),
            clock_ahead_seconds_min: ahead.map(|(least, _)| least),
            clock_ahead_seconds_max: ahead.map(|(_, most)| most),
            maxmemory_bytes: report.maxmemory,
            maxmemory_policy: report.maxmemory_policy.clone(),
            idle_timeout_seconds: report.idle_timeout.map(|time| time.as_secs()),
            persistence: report.persistence.map(|persistence| match persistence {
                Persistence::None => "none",
                Persistence::Snapshots => "snapshots",
                Persistence::AppendOnly => "append_only",
                Persistence::AppendOnlyUnsynced => "append_only_unsynced",
            }),
            replicas: report.replicas,
            findings,
        }
    }
}

/// How many seconds the server's clock is ahead of ours, at least and at most; negative if it is behind.
fn ahead(clock: ClockDifference) -> (f64, f64) {
    // Microseconds of a century are exact.
    #[expect(clippy::cast_precision_loss)]
    let seconds = |micros: i64| micros as f64 / 1e6;
    (seconds(clock.least), seconds(clock.most))
}
