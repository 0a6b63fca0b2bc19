//! How often a call on several keys goes to the server: as often as on one, whatever connection is cut. So it ends within the same time, however
//! slow the server is.

use libtest_mimic::Trial;
use setnx_lock::{MultiLock, MultiLockGuard, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::scenario::patient;
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "trips",
        tests![several_keys_take_no_more_trips_than_one, a_call_goes_on_after_a_connection_that_was_idle],
    )
}

/// What is done with a guard of several keys.
#[derive(Clone, Copy, Debug)]
enum Call {
    Extend,
    Verify,
    Tokens,
    Release,
}

const CALLS: [Call; 4] = [Call::Extend, Call::Verify, Call::Tokens, Call::Release];

impl Call {
    /// Returns true if it succeeds for each key.
    fn make(self, held: MultiLockGuard) -> bool {
        match self {
            Call::Extend => held.extend().is_ok(),
            Call::Verify => held.verify().is_ok(),
            Call::Tokens => held.fencing_tokens().is_ok(),
            Call::Release => held.release().is_ok(),
        }
    }
}

/// Makes the call on so many keys, with a fault at the nth of its commands. Returns how often it went to the server, and whether it succeeded.
fn trips(protocol: Protocol, call: Call, keys: usize, fault: Option<(usize, Fault)>) -> (usize, bool) {
    let server = TestServer::start();
    let locker = patient(&server.url()).unwrap().pool_size(1).build().unwrap();
    let names: Vec<String> = (0..keys).map(|key| format!("k{key}")).collect();
    let options = expiring().protocol(protocol).forget_tokens_after(2 * LONG);
    let held = MultiLock::new(&locker, names, options).unwrap().lock().unwrap();
    if let Call::Extend = call {
        // So the counters are kept with the leases.
        held.fencing_tokens().unwrap();
    }
    server.clear_log();
    if let Some((nth, fault)) = fault {
        server.at(nth, fault);
    }
    let succeeded = call.make(held);
    server.clear_faults();
    (server.batches().len(), succeeded)
}

fn several_keys_take_no_more_trips_than_one() -> Outcome {
    for protocol in PROTOCOLS {
        for call in CALLS {
            let (usual, _) = trips(protocol, call, 1, None);
            for keys in [3, 10] {
                assert_eq!(trips(protocol, call, keys, None), (usual, true), "{protocol:?} {call:?} {keys}");
                // At the first, in the middle and at the last of a trip with one command for each key, and in the next.
                for nth in [1, keys / 2, keys, keys + 1, 2 * keys, 3 * keys] {
                    for fault in [Fault::CutBefore, Fault::CutAfter] {
                        let (made, _) = trips(protocol, call, keys, Some((nth, fault.clone())));
                        // What was lost is read, and at most asked again.
                        assert!(
                            made <= usual + 4,
                            "{protocol:?} {call:?} {keys} keys, {fault:?} at {nth}: {made} trips, {usual} as a rule"
                        );
                    }
                }
            }
        }
        // As many as a keeper extends at a time.
        let many = 512;
        let (usual, _) = trips(protocol, Call::Extend, 1, None);
        for nth in [1, many / 2, many + 1] {
            let (made, _) = trips(protocol, Call::Extend, many, Some((nth, Fault::CutBefore)));
            assert!(made <= usual + 4, "{protocol:?} {many} keys, cut at {nth}: {made} trips");
        }
    }
    Ok(())
}

fn a_call_goes_on_after_a_connection_that_was_idle() -> Outcome {
    for protocol in PROTOCOLS {
        for call in [Call::Extend, Call::Verify, Call::Tokens] {
            let (made, succeeded) = trips(protocol, call, 10, Some((1, Fault::CutBefore)));
            assert!(succeeded, "{protocol:?} {call:?}: {made} trips");
        }
    }
    Ok(())
}
