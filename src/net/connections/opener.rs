//! What opens the connections of a locker to its server.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use proto::fencing::Epoch;
use proto::values::Key;

use super::client::{self, Address, logged_in, logging_in, panicked};
use super::handshake::{self, Checks, Opened};
use super::health::Health;
use super::lender::Lender;
use super::sentinels::Sentinels;
use super::server_info::Settling;
use super::socket::in_steps;
use super::subscription::{self, Heard};
use super::transport::Transport;
use crate::net::errors::{Failure, Refusal, TransportError};
use crate::net::patience::Looks;
use crate::system::clock;
use crate::values::credentials::CredentialSource;
use redis::Client;

/// How long connecting may take unless set.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one command may take unless set.
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// After how long without use a connection is closed unless set.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an idle connection is assumed to be open. Below any `timeout` that a server may sensibly have.
const TRUSTED_WHILE_IDLE: Duration = Duration::from_secs(10);
/// How long it is assumed to be open with Sentinels or in a cluster:
/// shorter than a failover takes, during which nothing is sent.
const TRUSTED_IN_FAILOVERS: Duration = Duration::from_secs(1);

/// Opens the connections of a locker: with timeouts, without `CLIENT SETINFO`, which old
/// servers refuse, and with one INFO for the role and the version of the server. Where
/// INFO is refused, or a proxy hangs up on it, the connection is used without the check.
#[derive(Clone)]
pub(crate) struct Opener {
    target: Target,
    /// Who logs in to the server now, if that is not the client's login.
    pub(crate) credentials: Option<CredentialSource>,
    /// Limits connecting, password and database number included.
    pub(crate) connect_timeout: Duration,
    /// Limits each reply of the server.
    pub(crate) command_timeout: Duration,
    /// After how long without use a connection is closed that is not the last one.
    pub(crate) idle_timeout: Duration,
    /// How old a connection may be that is used.
    pub(crate) max_connection_age: Option<Duration>,
    /// True if they lead to a node of a cluster.
    in_cluster: bool,
    /// True if INFO is sent on new connections.
    pub(crate) checks_server: bool,
    /// What is read on a connection without INFO.
    pub(crate) probe_key: Key,
    /// How long after its restart a server grants no locks.
    pub(crate) settles: Duration,
    /// How long after a failover the new master grants no locks.
    pub(crate) settles_after_failover: Duration,
    pub(in crate::net) looks: Arc<Looks>,
    pub(in crate::net) health: Arc<Health>,
}

/// After how many connections in a row that are closed on a command a proxy is assumed to do that: fewer can be the
/// network's doing, and then `Auto` would decide by clocks that it need not know.
pub(in crate::net) const HANG_UPS: u32 = 4;

/// The key that is read on a connection without INFO. There need be none.
pub(crate) const PROBE: &str = "setnx-lock:probe";

/// Where connections lead.
#[derive(Clone)]
enum Target {
    Server(Client),
    /// The master that Sentinels know. The client's address is none.
    Master(Client, Arc<Sentinels>),
    /// Where those of a pool of the user's do.
    Pool(Arc<dyn Lender>),
}

impl Opener {
    /// Returns what opens connections as `client` does, to the server that these Sentinels know if there are any.
    pub(crate) fn new(client: Client, sentinels: Option<Sentinels>) -> Self {
        Self::to(match sentinels {
            Some(sentinels) => Target::Master(client, Arc::new(sentinels)),
            None => Target::Server(client),
        })
    }

    /// Returns what borrows the connections of a pool of the user's.
    pub(crate) fn borrowing(lender: Arc<dyn Lender>) -> Self {
        Self::to(Target::Pool(lender))
    }

    fn to(target: Target) -> Self {
        Self {
            target,
            credentials: None,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            max_connection_age: None,
            in_cluster: false,
            checks_server: true,
            probe_key: Key::from(PROBE),
            settles: Duration::ZERO,
            settles_after_failover: Duration::ZERO,
            health: Arc::default(),
            looks: Arc::default(),
        }
    }

    /// From now on threads sleep at once, instead of looking for the reply first.
    pub(crate) fn never_spin(&mut self) {
        self.looks = Arc::new(Looks::never());
    }

    /// Opens a connection within the time for connecting. A panic is an error.
    pub(super) fn open(&self) -> Result<Opened, Failure> {
        let closures = self.health.closures();
        let opened = catch_unwind(AssertUnwindSafe(|| match &self.target {
            Target::Master(client, sentinels) => self.open_to_master(client, sentinels),
            Target::Server(client) => {
                self.open_to(client, self.connect_timeout).map(|opened| (opened, false))
            }
            Target::Pool(pool) => self.borrow(&**pool).map(|lent| (lent, false)),
        }))
        .unwrap_or_else(|panic| {
            Err(match panicked(panic.as_ref()) {
                Failure::Panicked(words) if self.lends() => {
                    let text = format!("the pool panicked: {words}");
                    Failure::unreachable(TransportError::new(io::ErrorKind::Other, &text))
                }
                panicked => panicked,
            })
        })
        .map(|(opened, is_other)| {
            let is_other = opened.epoch.is_some_and(|epoch| self.health.changes_epoch(epoch)) || is_other;
            if is_other {
                // The others lead to a server that is no master any more, or was a replica meanwhile.
                self.health.found_closed();
            }
            Opened { closures_before: closures + u64::from(is_other), ..opened }
        })?;
        self.health.note_version(opened.version);
        if opened.version.is_some() {
            self.health.note_compares(opened.compares);
        }
        Ok(opened)
    }

    /// Opens one to where the Sentinels say the master is. Returns with it whether the master was elsewhere before.
    fn open_to_master(&self, client: &Client, sentinels: &Sentinels) -> Result<(Opened, bool), Failure> {
        let deadline = clock::uptime().after(self.connect_timeout);
        let settles = self.settles_after_failover;
        let master = sentinels.master(deadline, &self.looks)?;
        let left = in_steps(deadline.since(clock::uptime()));
        let opened = self.open_to(&client::at(client, &master.address), left);
        let mut opened = opened.map_err(|error| sentinels.was_wrong(&master, error))?;
        if clock::uptime() > deadline {
            // The Sentinel's answer may be outdated.
            return Err(self.connecting());
        }
        opened.epoch = master.epoch.map(Epoch::from);
        let is_other = sentinels.was_right(&master);
        let left = settles.saturating_sub(master.since.unwrap_or_default());
        if !left.is_zero() {
            let refusal = Refusal::settling_after_failover(&self.address(), master.since, settles);
            if master.since.is_none() {
                return Err(Failure::Refused(refusal));
            }
            if opened.settling.as_ref().is_none_or(|settling| settling.left < left) {
                opened.settling = Some(Settling { left, refusal });
            }
        }
        Ok((opened, is_other))
    }

    fn borrow(&self, pool: &dyn Lender) -> Result<Opened, Failure> {
        let lent = pool.lend_within(self.connect_timeout, self.command_timeout / 2);
        lent.map(|lent| self.borrowed(lent)).map_err(|words| match words {
            Some(words) => Failure::unreachable(TransportError::new(io::ErrorKind::NotConnected, &words)),
            None => Failure::all_in_use(None),
        })
    }

    /// Borrows a connection that is free, if a pool lends them. A
    /// panic of the program's code there is as if none were free.
    pub(super) fn borrow_at_once(&self) -> Option<Opened> {
        let Target::Pool(pool) = &self.target else { return None };
        let lent = catch_unwind(AssertUnwindSafe(|| pool.lend_at_once())).ok()?;
        lent.map(|lent| self.borrowed(lent))
    }

    fn borrowed(&self, transport: Transport) -> Opened {
        let closures_before = self.health.closures();
        let has_answered = true;
        Opened {
            transport,
            version: None,
            compares: None,
            settling: None,
            epoch: None,
            has_answered,
            closures_before,
        }
    }

    /// Some proxies hang up on commands that they do not forward, INFO among
    /// them. After [`HANG_UPS`] the connection is opened without INFO.
    fn open_to(&self, client: &Client, limit: Duration) -> Result<Opened, Failure> {
        let deadline = clock::uptime().after(limit);
        let client = logging_in(client, self.credentials.as_ref())?;
        if self.credentials.is_some() && clock::uptime() >= deadline {
            return Err(Failure::login_took_too_long());
        }
        let open = |checks| {
            let limit = if self.credentials.is_some() { deadline.since(clock::uptime()) } else { limit };
            logged_in(self.credentials.as_ref(), handshake::open(&client, limit, checks, &self.looks))
        };
        let checks = Checks { info: true, probes: None, settles: self.settles, in_cluster: self.in_cluster };
        for _ in 0..if self.checks_server { HANG_UPS } else { 0 } {
            match open(checks) {
                Err(Failure::Unreachable { cause, .. })
                    if cause.is_disconnect() && self.settles.is_zero() => {}
                outcome => return outcome,
            }
        }
        let probes = self.checks_server.then_some(&self.probe_key);
        open(Checks { info: false, probes, ..checks })
    }

    /// Opens a connection outside the pool, subscribes to a channel, and gives `heard` what is published there, until
    /// that returns `false` or the connection fails.
    pub(in crate::net) fn listen(
        &self,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        let outside = self.outside_the_pool();
        let health = &self.health;
        loop {
            let began = clock::uptime();
            let opened = outside.open();
            let opened = opened.map_err(|failure| failure.after(clock::uptime().since(began)))?;
            let closures = opened.closures_before;
            let mut goes_on = true;
            let hear = |received: Heard<'_>| {
                goes_on = heard(received);
                // The address may lead to another server now.
                goes_on && !(matches!(received, Heard::Silence) && health.closures() > closures)
            };
            subscription::listen(opened, channel, outside.command_timeout, &outside.address(), hear)?;
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Returns what opens connections to the same server that wait for seconds.
    fn outside_the_pool(&self) -> Self {
        Self { looks: Arc::new(Looks::never()), ..self.clone() }
    }

    /// Returns the client that says how connections log in.
    fn client(&self) -> &Client {
        match &self.target {
            Target::Server(client) | Target::Master(client, _) => client,
            Target::Pool(_) => unreachable!("the connections of a user's pool are logged in"),
        }
    }

    /// Returns true if its connections are lent by a pool of the user's.
    pub(in crate::net) fn lends(&self) -> bool {
        matches!(self.target, Target::Pool(_))
    }

    /// Returns true if the server has connections of it open.
    pub(in crate::net) fn is_connected(&self) -> bool {
        match &self.target {
            Target::Pool(pool) => pool.open() > 0,
            _ => self.health.open() > 0,
        }
    }

    /// Why there is no connection yet.
    pub(in crate::net) fn connecting(&self) -> Failure {
        if self.asks_for_login() {
            Failure::login_took_too_long()
        } else {
            Failure::connecting(&self.address())
        }
    }

    /// Returns true while the program has not said how to log in. That alone may take longer than the time for
    /// connecting.
    pub(in crate::net) fn asks_for_login(&self) -> bool {
        let of_sentinels = match &self.target {
            Target::Master(_, sentinels) => sentinels.credentials.as_ref(),
            Target::Server(_) | Target::Pool(_) => None,
        };
        self.credentials.iter().chain(of_sentinels).any(CredentialSource::is_asked)
    }

    /// Host and port of the server.
    pub(crate) fn address(&self) -> String {
        match &self.target {
            Target::Server(client) => client.get_connection_info().addr().to_string(),
            Target::Master(_, sentinels) => sentinels.address(),
            Target::Pool(_) => "the pool's server".to_owned(),
        }
    }

    /// Returns a client that logs in as these connections do, at this address.
    pub(in crate::net) fn client_at(&self, address: &Address) -> Client {
        client::at(self.client(), address)
    }

    /// Returns a client of the server to which a connection would be opened now.
    pub(crate) fn find_server(&self) -> Result<Client, Failure> {
        let client = match &self.target {
            Target::Master(client, sentinels) => {
                let deadline = clock::uptime().after(self.connect_timeout);
                client::at(client, &sentinels.master(deadline, &self.looks)?.address)
            }
            _ => self.client().clone(),
        };
        Ok(logging_in(&client, self.credentials.as_ref())?.into_owned())
    }

    /// Returns what opens connections as this does, to the node of a cluster at this address.
    pub(in crate::net) fn at(&self, address: &Address) -> Self {
        let target = Target::Server(self.client_at(address));
        Self { target, health: Arc::default(), in_cluster: true, ..self.clone() }
    }

    /// How long an idle connection to a server of this epoch is assumed to lead to an open connection of the master.
    pub(super) fn trusted_while_idle(&self, epoch: Option<Epoch>) -> Duration {
        let may_fail_over = self.finds_master() || epoch.is_some();
        if may_fail_over { TRUSTED_IN_FAILOVERS } else { TRUSTED_WHILE_IDLE }
    }

    /// Returns true if a new connection may lead to another server than the one before.
    pub(in crate::net) fn finds_master(&self) -> bool {
        matches!(self.target, Target::Master(..))
    }
}
