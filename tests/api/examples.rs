//! The programs in `examples/`, on real servers.

use std::process::Command;

use libtest_mimic::Failed;
use setnx_lock::Lock;
use setnx_lock_testing::TestServer;

use crate::support::scenario::{closed_port, opened};
use crate::support::tool::example;
use crate::support::{AnyServer, LONG, Outcome, expiring, trials_of};

trials_of! {
    "examples";
    guard,
    cron,
    fencing,
    from_ruby,
    metrics,
    quorum,
    each_example_has_a_test,
}

/// Runs an example to its end, and returns what it printed.
fn ran(name: &str, urls: &[String]) -> Result<String, Failed> {
    let mut command = Command::new(example(name));
    command.args(urls);
    let output = assert_cmd::Command::from_std(command).timeout(LONG).output()?;
    let printed = format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(output.status.success(), "{name}: {printed}");
    Ok(printed)
}

fn guard() -> Outcome {
    let server = TestServer::start();
    let urls = [server.url()];
    assert!(ran("guard", &urls)?.ends_with("importing c.csv\nimported\n"));
    let other = Lock::new(&opened(&server.url())?, "example:import", expiring())?.lock()?;
    let printed = ran("guard", &urls)?;
    assert!(printed.starts_with("another worker imports: "), "{printed}");
    other.release()?;
    Ok(())
}

fn cron() -> Outcome {
    let server = TestServer::start();
    let urls = [server.url()];
    assert_eq!(ran("cron", &urls)?, "writing the report\n");
    assert_eq!(ran("cron", &urls)?, "another machine runs the job\n", "a start that is late");
    Ok(())
}

fn fencing() -> Outcome {
    let server = TestServer::start();
    let printed = ran("fencing", &[server.url()])?;
    assert!(printed.contains("token 2: Ok(())\n"), "{printed}");
    assert!(printed.contains("token 1: Err(\"token 1 is outdated, 2 was seen\")\n"), "{printed}");
    assert!(printed.contains("the total is 42\n"), "{printed}");
    Ok(())
}

fn from_ruby() -> Outcome {
    let server = TestServer::start();
    let urls = [server.url()];
    assert_eq!(ran("from_ruby", &urls)?, "round 1\nround 2\nround 3\ndrafted\n");
    // Held by a Ruby program, for longer than the worker waits.
    server.say(&["SET", "team:7:draft_lock", "", "PX", "100000"])?;
    let printed = ran("from_ruby", &urls)?;
    assert!(
        printed.starts_with("another worker has the lock: Timeout on lock team:7:draft_lock"),
        "{printed}"
    );
    let printed = ran("from_ruby", &[format!("redis://127.0.0.1:{}/", closed_port()?)])?;
    assert!(printed.starts_with("no server: "), "{printed}");
    Ok(())
}

fn metrics() -> Outcome {
    let server = TestServer::start();
    let printed = ran("metrics", &[server.url()])?;
    for line in [
        "setnx_lock_acquires_total{outcome=\"acquired\"} 6",
        "setnx_lock_acquires_total{outcome=\"contention\"} 1",
        "setnx_lock_acquires_total{outcome=\"stopped\"} 1",
        "setnx_lock_releases_total{outcome=\"in_time\"} 6",
    ] {
        assert!(printed.contains(line), "{line} is not in {printed}");
    }
    Ok(())
}

fn quorum() -> Outcome {
    let servers = [TestServer::start(), TestServer::start(), TestServer::start()];
    let mut urls = servers.each_ref().map(AnyServer::url);
    assert!(ran("quorum", &urls)?.starts_with("held on a majority for "));
    // Ports on which nothing listens.
    for url in &mut urls[1..] {
        *url = format!("redis://127.0.0.1:{}/", closed_port()?);
    }
    let printed = ran("quorum", &urls)?;
    assert!(printed.starts_with("too few servers: "), "{printed}");
    Ok(())
}

fn each_example_has_a_test() -> Outcome {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().trim_end_matches(".rs").to_owned());
    }
    names.sort();
    assert_eq!(names, ["cron", "fencing", "from_ruby", "guard", "leader", "metrics", "quorum", "worker"]);
    Ok(())
}
