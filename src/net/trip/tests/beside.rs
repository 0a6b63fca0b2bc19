//! Jobs that share a trip with others, commands with ASKING in front, and a thread that gives up.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::net::request::tests::{COUNT, DEL, SET_NX, TestCommand};

/// Sends a plain command and a change over a connection. Returns what came of each.
fn beside_a_plain_command(plain: TestCommand, answers: Vec<Answer>) -> [String; 2] {
    let script = Arc::new(Mutex::new(answers));
    let connection = FakeConnection::answering(move |_| script.lock().unwrap().remove(0));
    let keys = KEYS.map(Key::from);
    let expected = x(false);
    let trips = [KeyTrip::of(&keys[0], &plain), set(&keys[1], &expected)];
    let entries = begun(&trips);
    exchange(&mut Wire::default(), &mut connection.open(), &entries);
    outcomes(&entries, &trips).map(|sent| {
        let Sent { reply, undecided, .. } = sent;
        if undecided.is_some() { "undecided".into() } else { short(reply) }
    })
}

#[test]
fn what_ends_the_connection_before_a_change_decides_nothing_about_it() {
    let looks = [Value::Okay, bulk(), Value::Okay];
    let replica = refused("READONLY You can't write against a read only replica.");
    let came = beside_a_plain_command(DEL, vec![([&[replica], &looks[..]].concat(), None)]);
    assert_eq!(came, ["ReadOnly", "undecided"]);
}

#[test]
fn a_plain_command_keeps_its_reply_while_a_change_beside_it_is_carried_out() {
    let looks = [Value::Okay, bulk(), Value::Okay];
    let done = vec![queued(), list(&[Value::Okay])];
    let answers = vec![([&[Value::Int(1)], &looks[..]].concat(), None), (done, None)];
    assert_eq!(beside_a_plain_command(DEL, answers), ["Integer(1)", "done"]);
}

#[test]
fn asking_goes_before_each_command_and_each_transaction() {
    let (key, expected) = (Key::from("k0"), x(false));
    let change = KeyTrip { behind: Some(&GET), ..set(&key, &expected) };
    let sent = |trip: KeyTrip<'_>, answers: Vec<Answer>| {
        let script = Arc::new(Mutex::new(answers));
        let connection = FakeConnection::answering(move |_| script.lock().unwrap().remove(0));
        let trip = KeyTrip { asks: true, ..trip };
        let entries: Entries = vec![Entry::new(Jobs::default())];
        entries[0].job().set(&[trip], Protocol::Watched, false);
        exchange(&mut Wire::default(), &mut connection.open(), &entries);
        let sent = entries[0].job().all()[0].take_outcome(&trip);
        let packed = connection.sent.lock().unwrap().iter().map(|packed| words(packed)).collect::<Vec<_>>();
        (packed, short(sent.reply), short(sent.behind))
    };
    let looks = vec![ok(), ok(), ok(), bulk(), ok(), ok()];
    let done = vec![queued(), list(&[ok()]), ok(), bulk()];
    assert_eq!(
        sent(change, vec![(looks, None), (done, None)]),
        (
            vec!["ASKING WATCH k0 ASKING GET k0 ASKING MULTI".into(), "SET k0 y EXEC ASKING GET k0".into()],
            "done".into(),
            "x".into()
        )
    );
    let granted = sent(KeyTrip::of(&key, &SET_NX), vec![(vec![ok(), Value::Int(1)], None)]);
    assert_eq!(granted, (vec!["ASKING SETNX k0 1".to_owned()], "Integer(1)".into(), "-".into()));
}

/// A thread may give up, and take what came of its job, between any two steps of the one that receives.
#[test]
fn a_thread_that_gives_up_takes_no_replies_of_others() {
    let keys = KEYS.map(Key::from);
    let expected = x(false);
    let change = KeyTrip { behind: Some(&COUNT), ..set(&keys[0], &expected) };
    let trips = [change, KeyTrip::of(&keys[1], &SET_NX)];
    let (mut before, mut after) = (0, 0);
    for round in 0..400 {
        let (entries, mut wire) = (begun(&trips), Wire::default());
        wire.pack(&entries[..1], &Known::default(), clock::now());
        wire.replies = vec![ok(), bulk(), ok()];
        assert!(!wire.read(&entries[..1], None).out_of_order && wire.is_watching());
        wire.pack(&entries, &Known::default(), clock::now());
        // The change, EXEC, what goes behind, and the other's command, which another client has been faster with.
        wire.replies = vec![queued(), list(&[ok()]), Value::Int(7), Value::Int(0)];
        let [is_ready, begins] = [(); 2].map(|()| AtomicBool::new(false));
        let sent = thread::scope(|scope| {
            let gives_up = scope.spawn(|| {
                is_ready.store(true, Ordering::Release);
                while !begins.load(Ordering::Acquire) {
                    spin_loop();
                }
                (0..round % 100).for_each(|_| spin_loop());
                entries[0].job().all()[0].take_outcome(&trips[0])
            });
            while !is_ready.load(Ordering::Acquire) {
                thread::yield_now();
            }
            begins.store(true, Ordering::Release);
            assert!(!wire.read(&entries, None).out_of_order, "{round}");
            gives_up.join().unwrap()
        });
        match sent.reply {
            Some(Ok(Reply::Executed(Some(1)))) => after += 1,
            Some(Err(Failure::Lost(_))) => before += 1,
            other => panic!("{round}: {other:?}"),
        }
        let other = entries[1].job().all()[0].take_outcome(&trips[1]).plain();
        assert_eq!(short(Some(other)), "Integer(0)", "{round}");
    }
    println!("given up before {before} and after {after} of the replies came");
}
