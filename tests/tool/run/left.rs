//! What the command leaves behind in its process group: it runs
//! as long as the kernel says so, whatever `/proc` shows of it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use libtest_mimic::Failed;
use rustix::process::Signal;
use setnx_lock_testing::TestServer;
use tempfile::TempDir;

use super::running::{Running, finished, run, shell};
use super::wishes::copy;
use crate::support::notified::{connection, until};
use crate::support::tool::program;
use crate::support::{AnyServer, Outcome, millis, trials_of};

trials_of! {
    "tool_run::left";
    it_keeps_the_lock_if_wanted,
    it_ends_with_the_lock,
    it_keeps_the_lock_whatever_it_is,
    it_ends_when_the_time_is_over_whatever_it_is,
    it_ends_with_the_tool_whatever_it_is,
    it_keeps_the_lock_where_it_is_hidden,
    it_goes_on_if_it_was_stopped,
    what_has_ended_is_not_waited_for,
}

/// A program that lingers, a file that ends it, and names under which it is started.
struct Lingers {
    folder: TempDir,
}

impl Lingers {
    fn compiled() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let source = folder.path().join("lingers.c");
        fs::write(&source, include_str!("left/lingers.c"))?;
        let program = folder.path().join("lingers");
        let status = Command::new("cc").arg("-pthread").arg(source).arg("-o").arg(program).status()?;
        assert!(status.success(), "cc links Rust programs, too");
        Ok(Self { folder })
    }

    fn flag(&self) -> PathBuf {
        self.folder.path().join("flag")
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("lingers")
    }

    /// Ends what lingers.
    fn end(&self) -> io::Result<()> {
        fs::write(self.flag(), "")
    }

    /// Shell scripts that leave a process behind, each of another kind.
    fn scripts(&self) -> Result<Vec<OsString>, Failed> {
        // The kernel knows 15 bytes of a name: of the first, half of the last letter.
        let names = ["aaaaaaaaaaaaaaé".as_bytes(), b"a) Z 1 1 1", b"(\n) Z", b"\xff\xfe"];
        let mut scripts = Vec::new();
        for name in names.map(OsStr::from_bytes) {
            let program = self.folder.path().join(name);
            copy(&self.program(), &program)?;
            scripts.push(self.script(&program, ""));
        }
        scripts.push(self.script(&self.program(), "threads"));
        Ok(scripts)
    }

    fn script(&self, program: &Path, more: &str) -> OsString {
        let quoted = |path: &Path| {
            [OsStr::new("'"), path.as_os_str(), OsStr::new("' ")].map(OsStr::to_owned).into_iter()
        };
        let words =
            quoted(program).chain(quoted(&self.flag())).chain([format!("{more} & echo started").into()]);
        words.collect::<Vec<_>>().join(OsStr::new(""))
    }
}

fn it_keeps_the_lock_if_wanted() -> Outcome {
    let server = TestServer::start();
    let folder = tempfile::tempdir()?;
    let flag = folder.path().join("flag");
    let script = format!("(while ! test -e {}; do sleep 0.05; done) & echo started; exit 6", flag.display());
    let words = shell(&script);
    let options = ["-e", "3s", "--wait-group", "k", "--"];
    let mut running = Running::started(run(&server.url()).args(options).args(&words))?;
    // Longer than the lease: it is extended.
    thread::sleep(millis(4500));
    assert!(!running.has_ended());
    assert_eq!(server.say(&["EXISTS", "k"])?, ":1");
    fs::write(&flag, "")?;
    running.ends()?.with_code(6).says_nothing();
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    // Without the option the lock goes with the command.
    fs::remove_file(&flag)?;
    let mut running = Running::started(run(&server.url()).args(["k", "--"]).args(&words))?;
    until("it has ended", || running.has_ended());
    fs::write(&flag, "")?;
    running.ends()?.with_code(6);
    Ok(())
}

fn it_ends_with_the_lock() -> Outcome {
    let server = TestServer::start();
    let words = shell("sleep 1000 & echo started; exit 0");
    let options = ["-e", "3s", "--kill-after", "200ms", "--wait-group", "k", "--"];
    let running = Running::started(run(&server.url()).args(options).args(words))?;
    thread::sleep(millis(300));
    let mut connection = connection(&server);
    let deleted: u64 = redis::cmd("DEL").arg("k").query(&mut connection)?;
    assert_eq!(deleted, 1);
    running.ends()?.with_code(70);
    Ok(())
}

fn it_keeps_the_lock_whatever_it_is() -> Outcome {
    let (server, lingers) = (TestServer::start(), Lingers::compiled()?);
    for script in lingers.scripts()? {
        let mut command = run(&server.url());
        let mut running =
            Running::started(command.args(["--wait-group", "k", "--", "sh", "-c"]).arg(&script))?;
        thread::sleep(millis(1000));
        assert!(!running.has_ended(), "{}", script.display());
        finished(run(&server.url()).args(["-n", "k", "--", "true"]))?.with_code(75);
        lingers.end()?;
        running.ends()?.with_code(0).says_nothing();
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
        fs::remove_file(lingers.flag())?;
    }
    Ok(())
}

/// The end of the output is the end of all that have it.
fn it_ends_when_the_time_is_over_whatever_it_is() -> Outcome {
    let (server, lingers) = (TestServer::start(), Lingers::compiled()?);
    for mut script in lingers.scripts()? {
        script.push("; wait");
        let options = ["--max-runtime", "300ms", "--kill-after", "300ms", "k", "--", "sh", "-c"];
        let running = Running::started(run(&server.url()).args(options).arg(&script))?;
        running.ends()?.with_code(124);
    }
    Ok(())
}

fn it_ends_with_the_tool_whatever_it_is() -> Outcome {
    let (server, lingers) = (TestServer::start(), Lingers::compiled()?);
    for (n, script) in lingers.scripts()?.into_iter().enumerate() {
        let options = ["--wait-group", "--kill-after", "300ms", &n.to_string(), "--", "sh", "-c"];
        let running = Running::started(run(&server.url()).args(options).arg(&script))?;
        thread::sleep(millis(300));
        running.send(Signal::KILL)?;
        running.ends()?.by_signal(Signal::KILL);
    }
    Ok(())
}

/// It runs as another user, and `/proc` shows only a user's own. Only root can set that up.
fn it_keeps_the_lock_where_it_is_hidden() -> Outcome {
    let hides = "mount -t proc -o hidepid=2 proc /proc";
    let may = |shell: &str| Command::new("unshare").args(["--mount", "sh", "-c", shell]).output();
    if !rustix::process::geteuid().is_root() || !may(hides).is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let (server, lingers) = (TestServer::start(), Lingers::compiled()?);
    let tool = lingers.folder.path().join("setnx-lock");
    copy(program(), &tool)?;
    let raised = lingers.folder.path().join("raised");
    copy(Path::new("/usr/bin/setpriv"), &raised)?;
    fs::set_permissions(&raised, Permissions::from_mode(0o4755))?;
    let (flag, lingering) = (lingers.flag(), lingers.program());
    let left = format!(
        "{} --reuid 0 --regid 0 --clear-groups {} {} & echo started",
        raised.display(),
        lingering.display(),
        flag.display()
    );
    let script = format!("{hides} && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"");
    let mut command = Command::new("unshare");
    command.env("REDIS_URL", server.url()).args(["--mount", "sh", "-c", &script, "sh"]).arg(&tool);
    let mut running = Running::started(command.args(["run", "--wait-group", "k", "--", "sh", "-c", &left]))?;
    thread::sleep(millis(1000));
    assert!(!running.has_ended());
    assert_eq!(server.say(&["EXISTS", "k"])?, ":1");
    lingers.end()?;
    running.ends()?.with_code(0).says_nothing();
    Ok(())
}

/// No shell can resume it: before the command ended, and after.
fn it_goes_on_if_it_was_stopped() -> Outcome {
    let server = TestServer::start();
    let options = ["--wait-group", "k", "--"];
    for (first, then) in
        [("sleep 0.1; kill -TSTP $BASHPID", "sleep 0.5"), ("sleep 0.5; kill -TSTP $BASHPID", "true")]
    {
        // It is a child of the tool at once.
        let words = shell(&format!("(({first}; echo went on) &); echo started; {then}; exit 6"));
        let running = Running::started(run(&server.url()).args(options).args(words))?;
        running.ends()?.with_code(6).prints("went on\n").says_nothing();
    }
    Ok(())
}

/// Whoever gets the children of processes that have ended may never wait for them.
fn what_has_ended_is_not_waited_for() -> Outcome {
    let (server, lingers) = (TestServer::start(), Lingers::compiled()?);
    let tool = run(&server.url());
    let mut command = Command::new(lingers.program());
    command.arg(program()).envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["run", "--wait-group", "k", "--", "sh", "-c", "(sleep 0.3) & echo started; exit 6"]);
    let mut running = Running::started(&mut command)?;
    until("it has ended", || running.has_ended());
    running.ends()?.with_code(6).says_nothing();
    Ok(())
}
