//! Calls on several keys that a server interrupts: it stops answering, or carries out a command late or in part.

use std::thread::{self, JoinHandle};

use setnx_lock::{CancelToken, Error, LockOptions, MultiLock, Protocol};
use setnx_lock_testing::{Fault, Received};

use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, Scenario, patient};
use crate::support::sent::probed;
use crate::support::{Outcome, TestKey, expiring, trials_of};

trials_of! {
    "several_faults";
    what_lost_commands_acquire_late_is_released,
    what_its_own_command_acquires_late_does_not_keep_a_call_waiting,
}

type Failure = Box<dyn std::error::Error>;

struct Stage {
    scenario: Scenario,
    keys: Vec<TestKey>,
    locks: MultiLock,
}

impl Stage {
    fn set(options: LockOptions) -> Result<Self, Failure> {
        let scenario = Scenario::set();
        let keys = scenario.target.keys("interrupted", 3);
        let locker = scenario.open(patient(&scenario.server.url())?.pool_size(1));
        probed(&locker, Protocol::Ttl)?;
        scenario.server.clear_log();
        let locks = MultiLock::new(&locker, keys.iter().map(|key| key.key.clone()), options)?;
        Ok(Self { scenario, keys, locks })
    }

    /// Has the first lock held by another client, cuts the connection
    /// before the command for the second, and waits on another thread.
    fn lose_the_second(&self, token: &CancelToken) -> JoinHandle<Result<(), Error>> {
        self.keys[0].set(FOREIGN);
        self.scenario.server.nth("SETNX", 2, Fault::CutBefore);
        let locks = self.locks.clone().cancelled_by(token);
        thread::spawn(move || locks.lock().map(drop))
    }

    /// Carries out the command for the second after all.
    fn carry_out_late(&self) -> Outcome {
        let second = self.keys[1].key.to_string();
        let is_it = |asked: &Received| asked.name == "SETNX" && asked.arguments[0] == second;
        let Received { arguments, .. } =
            self.scenario.server.log().into_iter().find(is_it).expect("each was asked for");
        let late: bool = redis::cmd("SETNX").arg(arguments).query(&mut self.scenario.target.connection())?;
        assert!(late, "it comes before another command");
        Ok(())
    }

    /// The wait was cancelled. The second and the third command were lost, and may yet come.
    fn is_cancelled(&self, error: &Error) {
        let Error::Several { cause, others, .. } = error else { panic!("{error:?}") };
        assert!(matches!(**cause, Error::Cancelled { .. }), "{error:?}");
        assert!(others.iter().all(Error::may_hold_lock), "{error:?}");
        let named: Vec<_> = others.iter().filter_map(Error::key).collect();
        assert_eq!(named, [&self.keys[1].key, &self.keys[2].key]);
    }

    fn has_looked_at(&self, n: usize) -> bool {
        let name = self.keys[n].key.to_string();
        self.scenario.server.log().iter().any(|asked| asked.name == "GET" && asked.arguments[0] == name)
    }
}

fn what_lost_commands_acquire_late_is_released() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let stage = Stage::set(expiring().protocol(protocol))?;
        let (keys, token) = (&stage.keys, CancelToken::new());
        let waiting = stage.lose_the_second(&token);
        until("it waits", || stage.has_looked_at(0));
        stage.carry_out_late()?;
        token.cancel();
        let error = waiting.join().unwrap().expect_err("the wait was cancelled");
        stage.is_cancelled(&error);
        assert_eq!(error.key(), Some(&keys[0].key));
        assert_eq!(keys[0].value().as_deref(), Some(FOREIGN));
        until("what came late is released", || keys[1..].iter().all(|key| key.value().is_none()));
    }
    Ok(())
}

/// The call waits for its first key, and then for the second, which its own command has acquired.
fn what_its_own_command_acquires_late_does_not_keep_a_call_waiting() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let stage = Stage::set(expiring().protocol(protocol))?;
        let waiting = stage.lose_the_second(&CancelToken::new());
        until("it waits", || stage.has_looked_at(0));
        stage.carry_out_late()?;
        stage.keys[0].delete();
        waiting.join().unwrap()?;
        until("all are released", || stage.keys.iter().all(|key| key.value().is_none()));
    }
    Ok(())
}
