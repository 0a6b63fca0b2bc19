//! Lists in old versions as the proxy emulates them.

use libtest_mimic::Trial;

use crate::proxy_versions::every_version;
use crate::servers::Emulated;
use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "proxy_lists",
        tests![
            a_list_with_a_time_to_live_is_deleted_by_a_push_before_2_2,
            a_list_with_a_time_to_live_is_not_popped_before_2_2,
        ],
    )
}

fn a_list_with_a_time_to_live_is_deleted_by_a_push_before_2_2() -> Outcome {
    every_version(|version, wire, server| {
        let deletes = version < Emulated::V2_2;
        for (push, kept) in [("RPUSH list new", "[old new]"), ("LPUSH list new", "[new old]")] {
            for queued in [false, true] {
                if queued && version < Emulated::V2_0 {
                    continue;
                }
                wire.ask("DEL list");
                // 1.2 answers no length.
                let length =
                    |length: &str| if version < Emulated::V2_0 { "+OK".into() } else { format!(":{length}") };
                assert_eq!(wire.ask("RPUSH list old"), length("1"));
                assert_eq!(wire.ask("EXPIRE list 100"), ":1");
                let length = length(if deletes { "1" } else { "2" });
                if queued {
                    assert_eq!((wire.ask("MULTI"), wire.ask(push)), ("+OK".into(), "+QUEUED".into()));
                    assert_eq!(server.say(&["LLEN", "list"]).unwrap(), ":1", "not before EXEC");
                    assert_eq!(wire.ask("EXEC"), format!("[{length}]"), "{version:?}: {push}");
                } else {
                    assert_eq!(wire.ask(push), length, "{version:?}: {push}");
                }
                assert_eq!(wire.ask("LRANGE list 0 -1"), if deletes { "[new]" } else { kept }, "{version:?}");
                assert_eq!(wire.ask("TTL list") == ":-1", deletes, "{version:?}: {push}");
                let again = wire.ask("EXPIRE list 100");
                assert_eq!(
                    again, ":1",
                    "{version:?}: a new list has no time to live, and from 2.2 on a second EXPIRE is accepted"
                );
            }
        }
    })
}

fn a_list_with_a_time_to_live_is_not_popped_before_2_2() -> Outcome {
    every_version(|version, wire, _| {
        for pop in ["LPOP list", "RPOP list"] {
            wire.ask("DEL list");
            wire.ask("RPUSH list item");
            wire.ask("EXPIRE list 100");
            assert_eq!(wire.ask("LLEN list"), ":1", "{version:?}: reading does not delete it");
            assert_eq!(wire.ask("TYPE list"), "+list", "{version:?}");
            let popped = if version < Emulated::V2_2 { "$-1" } else { "item" };
            assert_eq!(wire.ask(pop), popped, "{version:?}: {pop}");
            assert_eq!(wire.ask("EXISTS list"), ":0", "{version:?}: {pop}");
        }
    })
}
