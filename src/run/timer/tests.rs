use std::thread;

use super::*;
use std::sync::mpsc::{Sender, channel};

#[expect(clippy::needless_pass_by_value, reason = "it is the timer's")]
fn send(batch: Vec<(u64, Sender<Vec<u64>>)>) {
    let numbers = batch.iter().map(|(number, _)| *number).collect();
    let _ = batch[0].1.send(numbers);
}

const LONG: Duration = Duration::from_secs(30);
const HERE: NodeId = NodeId::ONLY;

#[test]
fn what_is_due_is_done_and_what_is_nearly_due_with_it() {
    let (timer, (sender, done)) = (Timer::new("timer", send), channel());
    let now = clock::uptime();
    timer.add(HERE, now.after(LONG), Duration::ZERO, (2, sender.clone())).unwrap();
    timer.add(HERE, now.after(LONG / 2), LONG, (1, sender.clone())).unwrap();
    timer.add(HERE, now, Duration::ZERO, (0, sender)).unwrap();
    assert_eq!(done.recv_timeout(LONG).unwrap(), [0, 1]);
}

#[test]
fn what_was_taken_out_is_not_done() {
    let (timer, (sender, done)) = (Timer::new("timer", send), channel());
    let soon = clock::uptime().after(Duration::from_millis(20));
    let one = timer.add(HERE, soon, Duration::ZERO, (1, sender.clone())).unwrap();
    timer.add(HERE, soon, Duration::ZERO, (2, sender)).unwrap();
    timer.remove(one);
    assert_eq!(done.recv_timeout(LONG).unwrap(), [2]);
    assert!(done.recv().is_err(), "nothing is left, and the sender is dropped");
}

#[test]
fn everything_is_looked_at_when_the_wall_clock_was_set() {
    let timer = Timer::new("timer", send);
    let mut state = timer.schedule.state.lock();
    let now = clock::now();
    let later = |wall, uptime| Now {
        wall: now.wall.after(Duration::from_millis(wall)),
        uptime: now.uptime.after(Duration::from_millis(uptime)),
    };
    assert!(!state.clock_was_set(now) && !state.clock_was_set(later(1000, 1010)));
    assert!(state.clock_was_set(later(5000, 2000)), "forward");
    assert!(state.clock_was_set(later(0, 3000)), "back");
    assert!(!state.clock_was_set(later(1000, 4000)));
    let (sender, _done) = channel();
    let item = DueItem { node: HERE, work: (1, sender), slack: Duration::ZERO };
    state.insert(now.uptime.after(LONG), item);
    assert!(state.take_due(now.uptime, HERE).is_empty());
    state.make_due(now.uptime);
    assert_eq!(state.take_due(now.uptime, HERE).len(), 1);
    assert!(state.due.is_empty());
}

#[test]
fn work_that_panics_does_not_end_the_thread() {
    fn panic_once(batch: Vec<(u64, Sender<Vec<u64>>)>) {
        if batch[0].0 == 1 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        send(batch);
    }
    let (timer, (sender, done)) = (Timer::new("timer", panic_once), channel());
    let now = clock::uptime();
    for number in 1..=2 {
        let due = now.after(Duration::from_millis(1));
        timer.add(HERE, due, Duration::ZERO, (number, sender.clone())).unwrap();
        // The two are not worked on together.
        while !timer.schedule.state.lock().due.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(done.recv_timeout(LONG).unwrap(), [2]);
}

#[test]
fn a_node_that_hangs_holds_up_no_other() {
    type Asked = (u64, Sender<u64>, Option<Arc<Mutex<()>>>);
    fn wait_and_send(batch: Vec<Asked>) {
        for (n, sender, waits_for) in batch {
            drop(waits_for.as_ref().map(|waits_for| waits_for.lock()));
            sender.send(n).unwrap();
        }
    }
    let (timer, (sender, done)) = (Timer::new("timer", wait_and_send), channel());
    let [hangs, other] = [1, 2].map(NodeId::numbered);
    let hung = Arc::new(Mutex::new(()));
    let hangs_until = hung.lock();
    let add = |node, n, waits_for| {
        let asked = (n, sender.clone(), waits_for);
        timer.add(node, clock::uptime(), Duration::ZERO, asked).unwrap();
    };
    add(hangs, 0, Some(Arc::clone(&hung)));
    for n in 1..=3 {
        add(other, n, None);
        assert_eq!(done.recv_timeout(LONG).unwrap(), n);
    }
    add(hangs, 4, None);
    add(other, 5, None);
    assert_eq!(done.recv_timeout(LONG).unwrap(), 5);
    let threads = timer.schedule.state.lock().threads;
    assert!(threads <= 2, "one works and another sleeps: {threads}");
    drop(hangs_until);
    let rest = [done.recv_timeout(LONG).unwrap(), done.recv_timeout(LONG).unwrap()];
    assert_eq!(rest, [0, 4], "for one node one after the other");
}

#[test]
fn the_thread_ends_with_the_timer() {
    let (timer, (sender, _done)) = (Timer::new("timer", send), channel());
    timer.add(HERE, clock::uptime().after(LONG), Duration::ZERO, (1, sender)).unwrap();
    let schedule = Arc::downgrade(&timer.schedule);
    drop(timer);
    while schedule.strong_count() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}
