//! The recipes in `contrib/`: the command lines in them are run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;
use tempfile::TempDir;

use crate::support::tool::{program, tool};
use crate::support::{LONG, Outcome, RedisServer, trials_of};

trials_of! {
    "tool_recipes";
    cron,
    systemd,
    kubernetes,
    a_deployment,
}

const PASSWORD: &str = "correct-horse";

/// A machine on which the recipes are installed: a folder for `/usr/local/bin`, `/var/log` and credentials.
struct Machine {
    server: RedisServer,
    folder: TempDir,
}

impl Machine {
    /// Installs programs of these names, each of which prints a line.
    fn with(programs: &[&str]) -> Result<Self, Failed> {
        let server = RedisServer::start_with(&format!("requirepass {PASSWORD}"))?;
        // Programs must not be started from /tmp everywhere.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        fs::write(folder.path().join("redis"), PASSWORD)?;
        symlink(program(), folder.path().join("setnx-lock"))?;
        // Written by another process: children that other tests fork here would keep the files open for writing.
        let write = "for name; do printf '#!/bin/sh\\necho %s runs\\n' \"$name\" >\"$name\" && chmod +x \"$name\"; done";
        // A worker that leads tells its leader to end.
        let write =
            format!("{write}; if [ -e worker ]; then echo 'kill $PPID; exec sleep 1000' >>worker; fi");
        let mut shell = Command::new("sh");
        let written = shell.current_dir(folder.path()).args(["-c", &write, "sh"]).args(programs).status()?;
        assert!(written.success(), "{written}");
        Ok(Self { server, folder })
    }

    /// Runs a command line of a recipe, and returns what it and its log have printed. It must succeed.
    fn runs(&self, line: &str) -> Result<String, Failed> {
        let folder = self.folder.path().display().to_string();
        let line = ["/usr/local/bin", "/var/log", "/run"]
            .iter()
            .fold(line.to_owned(), |line, place| line.replace(place, &folder));
        // A leader starts its worker again until it is told to end.
        let line = if line.contains("--lead") { format!("{line}; [ $? = 143 ]") } else { line };
        let mut command = Command::new("sh");
        // The tool's environment: the server, and nothing that changes what it does.
        for (name, value) in tool(&self.server.url()).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["-c", &line]).env("CREDENTIALS_DIRECTORY", self.folder.path());
        command.env("REDISCLI_AUTH", PASSWORD).env("PATH", format!("{folder}:{}", std::env::var("PATH")?));
        let output = assert_cmd::Command::from_std(command).timeout(LONG).output()?;
        let printed = format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        assert!(output.status.success(), "{line}: {printed}");
        let log = self.folder.path().join("report.log");
        let logged = fs::read_to_string(&log).unwrap_or_default();
        if !logged.is_empty() {
            fs::remove_file(&log)?;
        }
        Ok(printed + &logged)
    }
}

fn recipe(name: &str) -> Result<String, Failed> {
    Ok(fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(name))?)
}

fn cron() -> Outcome {
    let crontab = recipe("cron/crontab")?;
    let machine = Machine::with(&["report", "send-mail", "import", "draft"])?;
    let jobs: Vec<&str> = crontab.lines().filter(|line| line.contains("setnx-lock run")).collect();
    let expected = ["report runs\n", "send-mail runs\n", "import runs\n", "draft runs\n"];
    assert_eq!(jobs.len(), expected.len());
    for (job, expected) in jobs.into_iter().zip(expected) {
        assert!(!job.contains('%'), "cron ends a line there: {job}");
        let line = job.splitn(6, ' ').last().unwrap_or_default();
        assert_eq!(machine.runs(line)?, expected, "{job}");
        // A host that starts late finds that the job was done: cron has nothing to mail.
        assert_eq!(machine.runs(line)?, "", "{job}");
    }
    Ok(())
}

fn systemd() -> Outcome {
    let machine = Machine::with(&["report", "worker"])?;
    for (unit, expected) in [("report", "report runs\n"), ("leader", "worker runs\n")] {
        let unit = recipe(&format!("systemd/setnx-lock-{unit}.service"))?;
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
        assert_eq!(machine.runs(line.expect("a command"))?, expected, "{unit}");
    }
    Ok(())
}

fn kubernetes() -> Outcome {
    let machine = Machine::with(&["report", "worker"])?;
    for (file, expected) in [("cronjob", "report runs\n"), ("leader", "worker runs\n")] {
        let text = recipe(&format!("kubernetes/{file}.yaml"))?;
        let words = text.lines().find_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']'));
        let line = words.expect("a command").replace(", ", " ");
        assert_eq!(machine.runs(&line)?, expected, "{text}");
    }
    Ok(())
}

/// The unit is started by a shell, as by systemd, which passes on the credentials.
fn a_deployment() -> Outcome {
    let machine = Machine::with(&["install-api", "migrate-api", "api"])?;
    let unit = recipe("systemd/setnx-lock-handover.service")?;
    let value = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
    assert_eq!(value("LoadCredential="), "token:/run/api.token");
    let start = format!("cp /run/api.token $CREDENTIALS_DIRECTORY/token; {}", value("ExecStart="));
    let script = recipe("deploy/deploy.sh")?;
    let script = script.replace("systemctl start setnx-lock-handover.service", &start);
    let script = script.replace("systemctl stop setnx-lock-handover.service\n", "");
    let script = script.replace("export REDIS_URL=redis://10.1.2.3/\n", "");
    assert!(
        script.contains("--resume") && !script.contains("systemctl") && !script.contains("10.1.2.3"),
        "{script}"
    );
    assert_eq!(machine.runs(&script)?, "install-api runs\nmigrate-api runs\napi runs\n");
    // A step fails: the lock is free at once for the next.
    for (end, code) in [("exit 3", 3), ("kill $$; sleep 1", 1)] {
        let failed = script.replace("/usr/local/bin/migrate-api\n", &format!("{end}\n"));
        let failed = format!("sh -s <<'END'\n{failed}\nEND\n[ $? = {code} ]");
        assert_eq!(machine.runs(&failed)?, "install-api runs\n");
    }
    assert_eq!(machine.runs(&script)?, "install-api runs\nmigrate-api runs\napi runs\n");
    Ok(())
}
