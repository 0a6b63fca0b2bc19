//! The JSON that the commands print is what `docs/cli.schema.json` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

use super::program::{Running, ran};
use super::values::{ending_in, send, set, set_named};
use crate::support::notified::connection;
use crate::support::{LONG, Outcome, PAST, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![each_property_occurs];

/// The objects that the tool prints, as the schema names them.
pub(super) const KEY_REPORT: &str = "key_report";
pub(super) const WATCH_LINE: &str = "watch_line";
pub(super) const DOCTOR_REPORT: &str = "doctor_report";
pub(crate) const RUN_EVENT: &str = "run_event";
const ALL: [&str; 4] = [KEY_REPORT, WATCH_LINE, DOCTOR_REPORT, RUN_EVENT];

struct Compiled {
    text: Value,
    schemas: Schemas,
    indices: BTreeMap<&'static str, SchemaIndex>,
}

fn compiled() -> &'static Compiled {
    static COMPILED: OnceLock<Compiled> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.schema.json");
        let text: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        assert!(ALL.iter().all(|name| text["$defs"][name]["additionalProperties"] == false));
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("cli.schema.json", text.clone()).unwrap();
        let mut compile =
            |name| compiler.compile(&format!("cli.schema.json#/$defs/{name}"), &mut schemas).unwrap();
        let indices = ALL.map(|name| (name, compile(name))).into();
        Compiled { text, schemas, indices }
    })
}

/// Reads a line of JSON, and asserts that it is what the schema says of the object of this name.
#[track_caller]
pub(crate) fn read(name: &str, line: &str) -> Value {
    let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let Compiled { schemas, indices, .. } = compiled();
    schemas.validate(&value, indices[name]).unwrap_or_else(|error| panic!("{value}: {error}"));
    value
}

/// Reads the output of `status` or `list`, a report per line.
#[track_caller]
pub(super) fn reports(out: &str) -> Vec<Value> {
    out.lines().map(|line| read(KEY_REPORT, line)).collect()
}

/// The same by the text of the keys.
#[track_caller]
pub(super) fn reports_by_key(out: &str) -> BTreeMap<String, Value> {
    let keyed = |report: Value| (report["key"].as_str().unwrap().to_owned(), report);
    reports(out).into_iter().map(keyed).collect()
}

/// Each property has a value in some output, and each state and event occurs: what the schema describes is there.
fn each_property_occurs() -> Outcome {
    let server = RedisServer::start_with("maxmemory 100mb\nmaxmemory-policy allkeys-lru")?;
    let url = server.url();
    let mut seen = Seen::default();

    set_named(&server, "named", &ending_in(LONG), "web");
    send(&server, "EXPIRE named 1000");
    set(&server, "named:setnx-lock:fence:{named}", "7");
    set(&server, "expired", PAST);
    set(&server, "endless", "1");
    set(&server, "gem", "");
    set(&server, "text\n", "text");
    let all = ["named", "expired", "endless", "gem", "text\n", "free"];
    for report in reports(&ran(&url, ["status", "--json"].iter().chain(&all)).exits(0).out) {
        seen.add(KEY_REPORT, &report);
    }

    let key = "two\nlines";
    let running = Running::start(&url, &["watch", "--json", "--interval=5ms", key])?;
    let value = |seconds| ending_in(LONG + Duration::from_secs(seconds));
    let mut event = |expected| {
        let line = read(WATCH_LINE, &running.line());
        assert_eq!(line["event"], expected);
        seen.add(WATCH_LINE, &line);
        line
    };
    event("first");
    let mut lease = Duration::from_millis(500);
    let until = loop {
        set(&server, key, ending_in(lease));
        let acquired = event("acquired");
        if acquired["description"].as_str().unwrap().starts_with("held") {
            break acquired["until"].clone();
        }
        // The machine was busy.
        lease *= 2;
        redis::cmd("DEL").arg(key).exec(&mut connection(&server))?;
        event("released");
    };
    let expired = event("expired");
    assert_eq!(expired["until"], until);
    assert!(expired["time"].as_str() >= until.as_str(), "{expired}");
    set_named(&server, key, &value(1), "web");
    event("taken_over");
    set_named(&server, key, &value(2), "web");
    event("extended");
    set_named(&server, key, &value(3), "db");
    event("changed");
    redis::cmd("DEL").arg(key).exec(&mut connection(&server))?;
    event("released");
    drop(running);

    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    for (url, code) in [(&url, 1), (&replica.url(), 2)] {
        seen.add(DOCTOR_REPORT, &read(DOCTOR_REPORT, &ran(url, ["doctor", "--json"]).exits(code).out));
    }
    let schema = &compiled().text["$defs"];
    // Those of a run are tested with it.
    let missing: Vec<_> = ALL
        .iter()
        .filter(|name| **name != RUN_EVENT)
        .flat_map(|name| described(schema, name, &schema[name]))
        .filter(|path| !seen.0.contains(path))
        .collect();
    assert!(missing.is_empty(), "in no output: {missing:?}");
    Ok(())
}

/// The paths of the properties with a value, and of the values of those that have a few ones only.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    fn add(&mut self, path: &str, value: &Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
                    self.0.insert(format!("{path}.{name}"));
                    self.add(&format!("{path}.{name}"), value);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.add(path, value)),
            Value::String(text) => drop(self.0.insert(format!("{path}={text}"))),
            _ => {}
        }
    }
}

/// The same paths, as the schema has them.
fn described(defs: &Value, path: &str, schema: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    let target = schema["$ref"].as_str().and_then(|target| target.strip_prefix("#/$defs/"));
    let schema = target.map_or(schema, |target| &defs[target]);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        paths.extend(described(defs, &path, property));
        paths.push(path);
    }
    if !schema["items"].is_null() {
        paths.extend(described(defs, path, &schema["items"]));
    }
    if [format!("{KEY_REPORT}.state"), format!("{WATCH_LINE}.event")].iter().any(|name| name == path) {
        let values = schema["enum"].as_array().unwrap().iter();
        paths.extend(values.map(|value| format!("{path}={}", value.as_str().unwrap())));
    }
    paths
}
