//! Processes that wait for one lock by the waiting list on a server, each command
//! of which is one step. The checker is stateright: it visits every state that can
//! be reached. No process polls here, so one that misses a release sleeps for ever.

mod process;

use libtest_mimic::{Failed, Trial};
use stateright::{Checker as _, Model, Property};

use process::{Process, Step};

/// What a process does.
#[derive(Clone, Copy, Debug)]
struct Behavior {
    holds: u8,
    behind: u8,
    gives_up: bool,
}

impl Behavior {
    /// One thread acquires the lock so often.
    fn holds(holds: u8) -> Self {
        Self { holds, behind: 0, gives_up: false }
    }

    /// So many other threads wait behind it, once each.
    fn with_threads(self, behind: u8) -> Self {
        Self { behind, ..self }
    }

    /// A thread that waits gives up at any moment.
    fn gives_up(self) -> Self {
        Self { gives_up: true, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// A thread comes, and the head start of another process has passed, or not.
    Comes {
        head_start: bool,
    },
    Head,
    /// A head start is over.
    TimeIsOver,
    GivesUp,
    Releases,
    /// This one of the threads that release goes on.
    Releaser(usize),
    /// The holder passes the lock to the next thread of its process.
    PassesWithin,
    Receives,
    Listener,
    Leaver,
}

/// What all processes share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    /// Which process has the lock.
    holder: Option<usize>,
    list: Vec<usize>,
    /// How many notifications are on their way to each process.
    messages: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    server: Server,
    processes: Vec<Process>,
}

/// Processes with their numbers of threads.
#[derive(Clone, Debug)]
struct Scenario(Vec<Behavior>);

impl Model for Scenario {
    type State = State;
    type Action = (usize, Action);

    fn init_states(&self) -> Vec<State> {
        let server = Server { messages: vec![0; self.0.len()], ..Server::default() };
        let processes = self.0.iter().enumerate().map(|(n, behavior)| Process::of(n, *behavior)).collect();
        vec![State { server, processes }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Self::Action>) {
        for (n, process) in state.processes.iter().enumerate() {
            actions.extend(process.actions(&state.server).into_iter().map(|action| (n, action)));
        }
    }

    fn next_state(&self, state: &State, (n, action): Self::Action) -> Option<State> {
        let mut state = state.clone();
        state.processes[n].act(action, &mut state.server);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no process sleeps while nothing will wake it", |_, state: &State| {
                let is_optional = |action: &Action| matches!(action, Action::GivesUp);
                let is_over = |process: &Process| process.actions(&state.server).iter().all(is_optional);
                let nothing_happens = state.processes.iter().all(is_over);
                !nothing_happens || state.processes.iter().all(|process| process.step != Step::Asleep)
            }),
            Property::always("a lock that is released is not held", |_, state: &State| {
                let holds =
                    |(n, process): (usize, &Process)| process.is_holding == (state.server.holder == Some(n));
                state.processes.iter().enumerate().all(holds)
            }),
            Property::sometimes("all have had it", |_, state: &State| {
                let is_done = |process: &Process| process.left == 0 && process.step == Step::Idle;
                state.processes.iter().all(is_done)
            }),
        ]
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let holds = Behavior::holds;
    // Some minutes.
    let thorough = crate::setting("SETNX_LOCK_MODEL_ITERATIONS", 100) >= 1000;
    let more = u8::from(thorough);
    vec![
        trial("two_processes", vec![holds(2 + more), holds(2 + more)]),
        trial("four_processes", vec![holds(1), holds(1), holds(1), holds(1)]),
        trial("two_of_three_give_up", vec![holds(1), holds(1).gives_up(), holds(1).gives_up()]),
        trial("all_give_up", vec![holds(2).gives_up(), holds(2).gives_up()]),
        trial("threads_behind_the_first_in_both", vec![holds(2).with_threads(1), holds(1).with_threads(1)]),
        trial("threads_behind_one_that_gives_up", vec![holds(1).with_threads(1).gives_up(), holds(2)]),
    ]
}

fn trial(name: &'static str, processes: Vec<Behavior>) -> Trial {
    Trial::test(format!("waiting_list::{name}"), move || {
        let checker = Scenario(processes).checker().spawn_bfs().join();
        let found = checker.discoveries();
        if let Some((property, path)) = found.into_iter().find(|(property, _)| *property != "all have had it")
        {
            return Err(Failed::from(format!("not so: {property}, after {:?}", path.into_vec())));
        }
        checker.assert_any_discovery("all have had it");
        Ok(())
    })
}
