//! Sentinels: they know which server is the master, and since when. They are asked one after the other, until one
//! answers, as nodes of a cluster are.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proto::values::Uptime;

use super::client::{Address, logged_in, logging_in};
use super::handshake::{self, Handshake};
use super::socket::in_steps;
use crate::net::errors::{Failure, Refusal, RefusalKind, TransportError};
use crate::net::patience::Looks;
use crate::system::clock;
use crate::system::random::HashMap;
use crate::system::sync::Mutex;
use crate::values::credentials::CredentialSource;
use redis::{Client, ConnectionAddr, RedisError, cmd};

/// How long after a failover a Sentinel may not have heard of it: they tell each other every two seconds.
const HEARD_WITHIN: Duration = Duration::from_secs(4);

/// What goes before the address of one in its errors: its login is not the master's.
const SENTINEL: &str = "Sentinel ";

/// The Sentinels of one master.
pub(crate) struct Sentinels {
    clients: Vec<Client>,
    /// Who logs in to them now, if that is not their clients' login.
    pub(crate) credentials: Option<CredentialSource>,
    /// The master's, as the Sentinels know it.
    name: String,
    /// Which is asked first: the one that was right last, or the next after one that was wrong.
    first: AtomicUsize,
    state: Mutex<Followed>,
}

/// What the Sentinels have told so far, and which master was followed.
#[derive(Default)]
struct Followed {
    /// The highest epoch of the configuration that one has told, and when: those with a lower one have not heard of a
    /// failover, or were set up anew.
    epoch: u64,
    raised: Option<Uptime>,
    /// Where a master was found last.
    found: Option<Address>,
    /// Which Sentinel named a master that was none, and which.
    wrong: Option<(usize, Address)>,
    /// When a majority led back to a server that another was the master after.
    moved_back: Option<Uptime>,
}

/// The fields of a master, as a Sentinel tells them.
type Described = HashMap<String, String>;

/// How often a Sentinel is asked at most until its configuration has the same epoch before and after the address.
const AGREES_WITHIN: usize = 8;

/// What a Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    /// Which Sentinel.
    asked: usize,
    master: Address,
    /// For how long it has been the master, if the Sentinel knows.
    since: Option<Duration>,
    /// That of the configuration in which this address is the master; `None` before 2.8.
    epoch: Option<u64>,
}

/// A server that a Sentinel calls the master.
pub(super) struct Master {
    pub(super) address: Address,
    /// For how long, if it knows.
    pub(super) since: Option<Duration>,
    /// In which epoch of the configuration, if it knows.
    pub(super) epoch: Option<u64>,
    /// Which Sentinel says so.
    asked: usize,
}

impl Sentinels {
    pub(crate) fn new(mut clients: Vec<Client>, name: String) -> Self {
        // Each has one vote.
        let mut addresses = BTreeSet::new();
        clients.retain(|client| addresses.insert(client.get_connection_info().addr().to_string()));
        Self { clients, credentials: None, name, first: AtomicUsize::default(), state: Mutex::default() }
    }

    /// Returns the view of the first Sentinel with an epoch not lower than any before, else that of a majority.
    pub(super) fn master(&self, deadline: Uptime, looks: &Arc<Looks>) -> Result<Master, Failure> {
        let all = format!("the Sentinels of \"{}\"", self.name);
        let first = self.first.load(Ordering::Relaxed);
        let passed_over = RefCell::new(Vec::new());
        let ask = |client: &Client, at, session: Handshake<'_>| {
            let view = self.ask(client, at, session)?;
            self.take(&view).map_err(|why| {
                let address = client.get_connection_info().addr().to_string();
                passed_over.borrow_mut().push(view.clone());
                Failure::unreachable(TransportError::at(&address, io::ErrorKind::NotConnected, &why))
            })?;
            Ok(view)
        };
        let credentials = self.credentials.as_ref();
        let group = Group { clients: &self.clients, credentials, name: &all, one: SENTINEL };
        let asked = ask_in_turn(group, first, deadline, looks, ask);
        let view = match asked {
            Ok(view) => view,
            Err(error) => self.outvoted(passed_over.into_inner()).ok_or(error)?,
        };
        self.first.store(view.asked, Ordering::Relaxed);
        // It may have been the master for long, but not for this locker.
        let moved_back = self.state.lock().moved_back.map(|at| clock::uptime().since(at));
        let since = view.since.map(|since| moved_back.map_or(since, |time| since.min(time)));
        Ok(Master { address: view.master, since, epoch: view.epoch, asked: view.asked })
    }

    /// Notes the epoch of a view. Returns why it is not taken, if so.
    fn take(&self, view: &View) -> Result<(), String> {
        let View { asked, master: (host, port), epoch, .. } = view;
        let mut known = self.state.lock();
        if let Some(epoch) = *epoch {
            if epoch < known.epoch {
                let before = known.epoch;
                return Err(format!(
                    " calls {host}:{port} the master in epoch {epoch}, before epoch {before} that another has told: it has not heard of the \
                     last failover yet, or was set up anew, which counts once a majority of the {} listed Sentinels agrees",
                    self.clients.len()
                ));
            }
            if epoch > known.epoch {
                (known.epoch, known.raised, known.moved_back) = (epoch, Some(clock::uptime()), None);
            }
        }
        if known.wrong.as_ref().is_some_and(|(from, master)| (from, master) == (asked, &view.master)) {
            return Err(format!(" still calls {host}:{port} the master, which was none a moment ago"));
        }
        Ok(())
    }

    /// Returns the view of the majority if that counts from now on, of views that were not taken; else one that no
    /// newer view stands against.
    fn outvoted(&self, views: Vec<View>) -> Option<View> {
        let mut known = self.state.lock();
        let time = known.raised.map(|raised| clock::uptime().since(raised));
        if let Some(view) = majority(&views, self.clients.len(), time) {
            let now = Some(clock::uptime());
            (known.epoch, known.raised, known.wrong) = (view.epoch?, now, None);
            if known.found.as_ref().is_some_and(|found| *found != view.master) {
                known.moved_back = now;
            }
            return Some(view.clone());
        }
        let is_new = |view: &View| view.epoch.is_none_or(|epoch| epoch >= known.epoch);
        views.into_iter().find(is_new)
    }

    /// Returns what one Sentinel says.
    fn ask(&self, client: &Client, asked: usize, mut session: Handshake<'_>) -> Result<View, Failure> {
        let address = || client.get_connection_info().addr().to_string();
        let failed =
            |error: &RedisError| Failure::unreachable(TransportError::on(&address(), Duration::ZERO, error));
        let mut before = self.described(&mut session, failed)?;
        for _ in 0..AGREES_WITHIN {
            let master = self.master_by(&mut session, &address, failed)?;
            let told = self.described(&mut session, failed)?;
            let epoch_of = |told: &Option<Described>| told.as_ref()?.get("config-epoch")?.parse().ok();
            let epoch = epoch_of(&told);
            // In a failover it calls the new master so before its epoch counts, or the other way round.
            if epoch_of(&before) == epoch {
                let since = told.as_ref().and_then(|told| since_when(told, &master));
                return Ok(View { asked, master, since, epoch });
            }
            before = told;
        }
        let what = " changes the epoch of its configuration again and again";
        Err(Failure::unreachable(TransportError::at(&address(), io::ErrorKind::NotConnected, what)))
    }

    /// Returns the address that a Sentinel calls the master's.
    fn master_by(
        &self,
        session: &mut Handshake<'_>,
        address: &dyn Fn() -> String,
        failed: impl Fn(&RedisError) -> Failure,
    ) -> Result<Address, Failure> {
        let reply = session.ask(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name));
        let reply = reply.map_err(|error| match error {
            Failure::Refused(refusal) if refusal.kind() == RefusalKind::UnknownCommand => {
                Failure::Refused(Refusal::of_no_sentinel(&address()))
            }
            error => error,
        })?;
        let found = redis::from_redis_value::<Option<Address>>(reply);
        let ignorant = || Failure::Refused(Refusal::of_ignorant(&address(), &self.name));
        found.map_err(|error| failed(&error.into()))?.ok_or_else(ignorant)
    }

    /// Returns what a Sentinel tells of the master; `None` before 2.8,
    /// and if it knows none. Its address there may be the old one.
    fn described(
        &self,
        session: &mut Handshake<'_>,
        failed: impl Fn(&RedisError) -> Failure,
    ) -> Result<Option<Described>, Failure> {
        let told = session.send_optional(cmd("SENTINEL").arg("MASTER").arg(&self.name), |_| false)?;
        told.map(|told| redis::from_redis_value(told).map_err(|error| failed(&error.into()))).transpose()
    }

    /// Describes why the server is no master, or cannot be reached, and has another Sentinel asked next.
    pub(super) fn was_wrong(&self, master: &Master, failure: Failure) -> Failure {
        self.first.store(master.asked + 1, Ordering::Relaxed);
        let refusal = if let Failure::Refused(refusal) = &failure { Some(refusal) } else { None };
        let is_replica = refusal.is_some_and(Refusal::is_of_replica);
        // Any other server that refuses is a master.
        if refusal.is_none_or(|refusal| is_replica || refusal.kind() == RefusalKind::Sentinel) {
            self.state.lock().wrong = Some((master.asked, master.address.clone()));
        }
        if !is_replica {
            return failure;
        }
        // A failover is under way, which passes.
        let (host, port) = &master.address;
        let what = " is a replica, although a Sentinel calls it the master, as in a failover";
        Failure::unreachable(TransportError::at(&format!("{host}:{port}"), io::ErrorKind::NotConnected, what))
    }

    /// Notes where the master is. Returns true if another server was, before.
    pub(super) fn was_right(&self, master: &Master) -> bool {
        let mut known = self.state.lock();
        known.wrong = None;
        let before = known.found.replace(master.address.clone());
        before.is_some_and(|before| before != master.address)
    }

    /// Returns where the master was found last, or its name.
    pub(super) fn address(&self) -> String {
        match &self.state.lock().found {
            Some((host, port)) => ConnectionAddr::Tcp(host.clone(), *port).to_string(),
            None => format!("the master \"{}\"", self.name),
        }
    }
}

/// Returns the view of a majority of the listed Sentinels. It counts only `time` after a higher epoch was told: before,
/// they may not have heard of a failover.
fn majority(views: &[View], listed: usize, time: Option<Duration>) -> Option<&View> {
    let agrees = |one: &View, other: &View| (&one.master, one.epoch) == (&other.master, other.epoch);
    let votes = |view: &&View| views.iter().filter(|other| agrees(view, other)).count();
    let have_heard = time.is_none_or(|time| time >= HEARD_WITHIN);
    let with_epoch = views.iter().filter(|view| view.epoch.is_some() && have_heard);
    with_epoch.into_iter().find(|view| 2 * votes(view) > listed)
}

/// Returns for how long the server at this address has been the master, as a Sentinel describes it.
fn since_when(told: &Described, address: &Address) -> Option<Duration> {
    let is_other = (told.get("ip")?, told.get("port")?) != (&address.0, &address.1.to_string());
    if is_other {
        return Some(Duration::ZERO);
    }
    // Counted from the switch to this address, or from the Sentinel's own start.
    Some(Duration::from_millis(told.get("role-reported-time")?.parse().ok()?))
}

/// Servers that know the same.
#[derive(Clone, Copy)]
pub(in crate::net) struct Group<'a> {
    pub(in crate::net) clients: &'a [Client],
    /// Who logs in to them now, if that is not their clients' login.
    pub(in crate::net) credentials: Option<&'a CredentialSource>,
    /// Their name, for the error if none answers.
    pub(in crate::net) name: &'a str,
    /// What goes before the address of one, in its errors.
    pub(in crate::net) one: &'a str,
}

/// Returns what one of these has answered, beginning at this
/// place, counted on without end. `ask` is told the place of each.
///
/// # Errors
///
/// A refusal if all refuse, and that does not pass.
pub(in crate::net) fn ask_in_turn<T>(
    Group { clients, credentials, name, one }: Group<'_>,
    first: usize,
    deadline: Uptime,
    looks: &Arc<Looks>,
    ask: impl Fn(&Client, usize, Handshake<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (mut refusal, mut passes, mut failures) = (None, false, Vec::new());
    for (remaining, at) in (1..=clients.len()).rev().zip(first..) {
        let at = at % clients.len();
        let client = &logging_in(&clients[at], credentials)?;
        let address = format!("{one}{}", client.get_connection_info().addr());
        // One that hangs leaves time for the others, and for what is done with the answer.
        let share = u32::try_from(remaining + 1).unwrap_or(u32::MAX);
        let limit = in_steps(deadline.since(clock::uptime()) / share);
        let answer =
            handshake::log_in(client, &address, limit, looks).and_then(|session| ask(client, at, session));
        match logged_in(credentials, answer) {
            Ok(answer) => return Ok(answer),
            Err(error) => {
                failures.push(error.to_string());
                match error {
                    Failure::Refused(refused) if !refused.is_transient() => refusal = Some(refused),
                    _ => passes = true,
                }
            }
        }
    }
    Err(match refusal {
        Some(refusal) if !passes => Failure::Refused(refusal),
        _ => {
            let text = format!("none of {name} answers: {}", failures.join("; "));
            Failure::unreachable(TransportError::new(io::ErrorKind::NotConnected, &text))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(port: u16, epoch: u64) -> View {
        View { asked: 0, master: ("a".to_owned(), port), since: None, epoch: Some(epoch) }
    }

    #[test]
    fn a_majority_of_all_that_are_listed_counts_once_each_may_have_heard() {
        let long = Some(HEARD_WITHIN);
        let chosen = |views: &[View], time| majority(views, 3, time).map(|view| view.master.1);
        assert_eq!(chosen(&[view(1, 0), view(1, 0)], long), Some(1));
        assert_eq!(chosen(&[view(2, 9), view(1, 0), view(1, 0)], long), Some(1), "one is outvoted");
        assert_eq!(chosen(&[view(1, 0), view(1, 0)], Some(HEARD_WITHIN / 2)), None);
        for minority in [&[view(1, 0)][..], &[view(1, 0), view(2, 0)], &[view(1, 0), view(1, 1), view(2, 1)]]
        {
            assert_eq!(chosen(minority, long), None, "{minority:?}");
        }
    }
}
