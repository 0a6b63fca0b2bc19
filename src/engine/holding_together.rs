//! What a holder does with locks that it has acquired together: extends them, asks for them, takes their fencing tokens, in a trip or two.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Engine;
use super::call::Call;
use super::holding::{begin_counting, begin_verification};
use super::together::Run;
use crate::clock::{self, Now};
use crate::error::Error;
use crate::hold::{Hold, Own};
use crate::protocol::task::Task;
use crate::protocol::{GiveUp, Step};

/// What is under way for one of the locks.
struct Part<'a, T> {
    hold: &'a Arc<Hold>,
    own: MutexGuard<'a, Own>,
    /// `None` if there is nothing to do.
    run: Option<Run<'a, T>>,
}

/// What came of it.
struct Ended<'a, T> {
    hold: &'a Arc<Hold>,
    own: MutexGuard<'a, Own>,
    run: Option<(Result<T, GiveUp>, Call<'a>)>,
}

impl Engine {
    /// Runs the rules of all holds, as far as `begin` begins any.
    fn run_parts<'a, T>(
        &'a self,
        holds: &[&'a Arc<Hold>],
        begin: impl Fn(&'a Hold, &Own, Now) -> Option<(Task<T>, Step<T>)>,
    ) -> Vec<Ended<'a, T>> {
        // In the order of their keys, as each thread that works on several does.
        let owned: Vec<_> = holds.iter().map(|hold| (*hold, hold.own())).collect();
        let now = clock::now();
        let begin = |(hold, own): (&'a Arc<Hold>, MutexGuard<'a, Own>)| {
            let run = begin(hold, &own, now).map(|task| Run::new(&hold.key, task, self.call(hold, now)));
            Part { hold, own, run }
        };
        let mut parts: Vec<Part<'a, T>> = owned.into_iter().map(begin).collect();
        self.run_together(parts.iter_mut().filter_map(|part| part.run.as_mut()).collect());
        self.finish_each(parts.iter_mut().filter_map(|part| part.run.as_mut()));
        let end = |Part { hold, own, run }: Part<'a, T>| Ended { hold, own, run: run.map(Run::end) };
        parts.into_iter().map(end).collect()
    }

    /// Extends the leases of these holds, which expire, to ones of `asked` that begin now, or of the expiration of each.
    pub(crate) fn extend_all(
        self: &Arc<Self>,
        holds: &[&Arc<Hold>],
        asked: Option<Duration>,
    ) -> Vec<Result<(), Error>> {
        let begin = |hold: &Hold, own: &Own, now| {
            let lease = asked.or(hold.options.expiration).filter(|_| Self::check_held(hold).is_ok())?;
            Some(self.begin_extension(hold, &own.lease, lease, now))
        };
        let parts = self.run_parts(holds, begin);
        let mut named = Vec::new();
        let mut extended = Vec::with_capacity(parts.len());
        for Ended { hold, mut own, run } in parts {
            let outcome = match run {
                Some((outcome, call)) => Self::end_extension(hold, &mut own, outcome, call),
                None => Self::not_extended(hold),
            };
            let lease = asked.or(hold.options.expiration);
            let name = self.naming(&own.lease.value, lease);
            if let (Some(name), Ok(_)) = (name, &outcome.result) {
                named.push((hold, name));
            }
            self.reschedule(hold, &own);
            extended.push((hold, outcome));
        }
        let unnamed = self.write_names(named);
        for (hold, outcome) in &extended {
            self.report_extension(hold, outcome);
            hold.report();
        }
        for (hold, error) in &unnamed {
            self.report_unnamed(hold, Some(error));
        }
        extended.into_iter().map(|(_, outcome)| outcome.result.map(drop)).collect()
    }

    /// Asks the server whether these locks are still held.
    pub(crate) fn verify_all(&self, holds: &[&Arc<Hold>]) -> Vec<Result<(), Error>> {
        let begin = |hold: &Hold, own: &Own, now| Some(begin_verification(hold, &own.lease, now));
        let parts = self.run_parts(holds, begin);
        let mut verified = Vec::with_capacity(parts.len());
        for Ended { hold, mut own, run } in parts {
            let Some((outcome, mut call)) = run else { unreachable!("each is asked for") };
            let late_reports = call.take_late_reports();
            verified.push((hold, late_reports, Self::end_verification(hold, &mut own, outcome, call)));
        }
        for (hold, late_reports, _) in &verified {
            self.report_late(&hold.key, late_reports);
            hold.report();
        }
        verified.into_iter().map(|(.., verification)| verification).collect()
    }

    /// Takes a fencing token for each of these holds that has none, and returns all.
    pub(crate) fn fencing_tokens(&self, holds: &[&Arc<Hold>]) -> Vec<Result<u64, Error>> {
        let begin = |hold: &Hold, own: &Own, now| {
            let takes = own.token.is_none() && Self::check_held(hold).is_ok();
            takes.then(|| begin_counting(hold, &own.lease, now))
        };
        let parts = self.run_parts(holds, begin);
        let mut tokens = Vec::with_capacity(parts.len());
        for Ended { hold, mut own, run } in parts {
            let (late_reports, token) = match (run, own.token) {
                (Some((outcome, mut call)), _) => {
                    (call.take_late_reports(), Self::end_fencing(hold, &mut own, outcome, call))
                }
                (None, Some(token)) => (Vec::new(), Ok(token)),
                (None, None) => (Vec::new(), Err(Self::loss_of(hold))),
            };
            tokens.push((hold, late_reports, token));
        }
        for (hold, late_reports, _) in &tokens {
            self.report_late(&hold.key, late_reports);
            hold.report();
        }
        tokens.into_iter().map(|(.., token)| token).collect()
    }
}
