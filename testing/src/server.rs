//! The server itself: commands in, replies out, without sockets, clock or threads.

mod admin;
mod call;
mod channels;
mod client;
mod cluster;
mod commands;
mod connection;
mod expiry;
mod glob;
mod hashes;
mod info;
mod keys;
mod keyspace;
mod lists;
mod refusals;
mod reply;
mod sentinel;
mod sets;
mod settings;
mod strings;
mod transactions;
mod users;
mod version;
mod waiting;

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

pub use client::ClientId;
pub use cluster::ClusterNode;
pub(crate) use reply::Reply;
pub use sentinel::WatchedMaster;
pub use version::ServerVersion;

use call::{Call, upper};
use client::Client;
use commands::Spec;
use keyspace::Database;
use reply::QUEUED;
use settings::Settings;
use users::Users;
use waiting::Waiting;

/// The client that looks at the server for a test.
const LOOKING: ClientId = ClientId::MAX;

/// What a server sends to a client, or does to its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// These bytes go to the client.
    Send(ClientId, Vec<u8>),
    /// The connection is closed after what was sent on it.
    Close(ClientId),
}

/// All keys of a server at one moment, as [`Server::snapshot`] copies them.
#[derive(Clone, Debug)]
pub struct Snapshot(Vec<Database>);

/// A Redis server without sockets, clock or threads: [`handle`](Self::handle)
/// takes a command and the time, and returns what is sent.
///
/// [`TestServer`](crate::TestServer) puts it behind a port. Use
/// it alone to search many orders of commands in one thread.
///
/// ```
/// use setnx_lock_testing::{Output, Server, ServerVersion};
/// use std::time::Duration;
///
/// let mut server = Server::new(ServerVersion::V2_4);
/// let setnx = ["SETNX", "key", "1"].map(|word| word.as_bytes().to_vec());
/// assert_eq!(server.handle(1, &setnx, Duration::from_secs(1)), [Output::Send(1, b":1\r\n".to_vec())]);
/// assert_eq!(server.handle(2, &setnx, Duration::from_secs(2)), [Output::Send(2, b":0\r\n".to_vec())]);
/// ```
#[derive(Debug)]
pub struct Server {
    version: ServerVersion,
    now: Duration,
    started: Duration,
    /// The numbers of its lives: a run id is made of it.
    run: u64,
    databases: Vec<Database>,
    clients: BTreeMap<ClientId, Client>,
    settings: Settings,
    users: Users,
    waiting: Vec<Waiting>,
    executed: u64,
    connected: u64,
    output: Vec<Output>,
}

impl Server {
    /// Returns an empty server of this version.
    #[must_use]
    pub fn new(version: ServerVersion) -> Self {
        Self {
            version,
            now: Duration::ZERO,
            started: Duration::ZERO,
            run: 1,
            databases: vec![Database::default(); settings::DATABASES],
            clients: BTreeMap::new(),
            settings: Settings::default(),
            users: Users::default(),
            waiting: Vec::new(),
            executed: 0,
            connected: 0,
            output: Vec::new(),
        }
    }

    /// Executes a command of a client, or refuses it. `now` is the time since 1970 by the server's clock.
    ///
    /// Returns what is sent: the reply, and what other clients get
    /// by it, for example an element of a list that they wait for.
    pub fn handle(&mut self, client: ClientId, command: &[Vec<u8>], now: Duration) -> Vec<Output> {
        self.turn_to(now);
        if !command.is_empty() {
            if let Some(reply) = self.answer(client, command) {
                self.send(client, &reply);
            }
            self.serve_waiting();
        }
        mem::take(&mut self.output)
    }

    /// Greets a new connection, and returns what it is sent if it is refused.
    pub fn connect(&mut self, client: ClientId, address: &str, now: Duration) -> Vec<Output> {
        self.turn_to(now);
        self.connected += 1;
        let most = self.settings.number("maxclients");
        if self.ordinary_clients().count() as u64 >= most {
            let mut bytes = Vec::new();
            Reply::Error("ERR max number of clients reached".into()).write(false, &mut bytes);
            return vec![Output::Send(client, bytes), Output::Close(client)];
        }
        let new = Client::new(address.to_owned(), self.version, self.users.at_first());
        self.clients.insert(client, new);
        Vec::new()
    }

    /// Forgets a connection that is closed, with what it watches and has queued.
    pub fn disconnect(&mut self, client: ClientId) {
        self.clients.remove(&client);
        self.stop_waiting(client);
    }

    /// Ends a client's wait for an element of a list. It gets no reply.
    pub fn stop_waiting(&mut self, client: ClientId) {
        self.waiting.retain(|waiting| waiting.client != client);
    }

    /// Returns true if the client waits for an element of a list.
    #[must_use]
    pub fn is_waiting(&self, client: ClientId) -> bool {
        self.waiting.iter().any(|waiting| waiting.client == client)
    }

    /// Returns the time at which the next client stops waiting.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.waiting.iter().filter_map(|waiting| waiting.until).min()
    }

    /// Lets the time pass: clients that have waited for long enough get their replies.
    pub fn pass(&mut self, now: Duration) -> Vec<Output> {
        self.turn_to(now);
        self.end_waits();
        mem::take(&mut self.output)
    }

    /// Executes a command by the rules of Redis 7, whatever the version,
    /// and with every right; returns the reply as people read it.
    pub fn look(&mut self, command: &[Vec<u8>], now: Duration) -> (String, Vec<Output>) {
        let (reply, output) = self.looked(command, now);
        (reply.map_or(String::new(), |reply| reply.for_people()), output)
    }

    /// The same with the reply as it is; none to a command that waits.
    pub(crate) fn looked(&mut self, command: &[Vec<u8>], now: Duration) -> (Option<Reply>, Vec<Output>) {
        self.turn_to(now);
        self.clients.insert(LOOKING, Client::privileged());
        let reply = if command.is_empty() { None } else { self.answer(LOOKING, command) };
        self.disconnect(LOOKING);
        self.serve_waiting();
        (reply, mem::take(&mut self.output))
    }

    /// Has this client execute commands by the rules of Redis 7, whatever the version, and with every right.
    pub fn privilege(&mut self, client: ClientId) {
        self.clients.insert(client, Client::privileged());
    }

    /// Sets a line of the configuration file, for example `maxmemory
    /// 100mb`, `requirepass secret` or `user weak on >pw ~* +@all -multi`.
    ///
    /// # Errors
    ///
    /// The text of the refusal.
    pub fn configure(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<Vec<u8>> = line.split_whitespace().map(|word| word.trim_matches('"').into()).collect();
        let outcome = match words.as_slice() {
            [] => Ok(()),
            [name, user, rules @ ..] if name == b"user" => self.users.set(user, rules),
            [name, value @ ..] => self.set(&upper(name).to_lowercase(), &value.join(&b' ')),
        };
        outcome.map_err(|refusal| refusal.0)
    }

    /// Restarts it as this version: connections are gone, and with them what was watched and queued. Keys stay.
    pub fn restart(&mut self, version: ServerVersion, now: Duration) {
        self.now = now;
        self.started = now;
        self.run += 1;
        self.version = version;
        self.clients.retain(|_, client| client.is_privileged);
        let clients = &self.clients;
        self.waiting.retain(|waiting| clients.contains_key(&waiting.client));
    }

    /// Deletes all keys.
    pub fn clear(&mut self) {
        self.databases.iter_mut().for_each(Database::clear);
    }

    /// Returns its keys as they are now: what a replica has that follows it, or what it writes to its disk.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.databases.clone())
    }

    /// Replaces its keys by these.
    pub fn load(&mut self, snapshot: &Snapshot) {
        self.databases.clone_from(&snapshot.0);
    }

    /// Moves a key to another server with its time to live, as `MIGRATE` does.
    pub fn give(&mut self, to: &mut Self, key: &[u8]) {
        if let Some(entry) = self.databases[0].remove(key) {
            self.touch(0, key);
            to.databases[0].insert(key, entry);
        }
    }

    /// Refuses, from now on or no more, what would add data, as if it were over its `maxmemory`.
    pub fn set_full(&mut self, is_full: bool) {
        self.settings.is_full = is_full;
    }

    /// Has it answer this for now, in the words of a current server: `LOADING …` and `BUSY …` to nearly all commands,
    /// others, `MISCONF …` say, to those that change keys.
    pub fn set_refusing(&mut self, text: Option<&str>) {
        self.settings.refuses = text.map(str::to_owned);
    }

    /// Makes it the replica of a master that does not reply, or a master again. Returns what its clients are sent.
    pub fn set_replica(&mut self, is_replica: bool) -> Vec<Output> {
        self.follow(is_replica.then(|| ("master.invalid".to_owned(), 6379)));
        mem::take(&mut self.output)
    }

    /// A replica lets no client wait for elements of lists.
    fn follow(&mut self, master: Option<(String, u16)>) {
        let waiting = if master.is_some() { mem::take(&mut self.waiting) } else { Vec::new() };
        self.settings.master = master;
        for client in waiting.iter().map(|waiting| waiting.client) {
            let text = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
            self.send(client, &Reply::Error(text.into()));
            self.output.push(Output::Close(client));
        }
    }

    /// Returns the version that it behaves as.
    #[must_use]
    pub fn version(&self) -> ServerVersion {
        self.version
    }

    /// Those that do not look at the server for a test.
    fn ordinary_clients(&self) -> impl Iterator<Item = (&ClientId, &Client)> {
        self.clients.iter().filter(|(_, client)| !client.is_privileged)
    }

    /// Has INFO tell its process and its port, and count its uptime from now on.
    pub(crate) fn listens(&mut self, process: u32, port: u16, now: Duration) {
        (self.settings.process, self.settings.port) = (process, port);
        self.turn_to(now);
    }

    fn turn_to(&mut self, now: Duration) {
        if self.started == Duration::ZERO {
            self.started = now;
        }
        self.now = now;
    }

    fn now_in_millis(&self) -> u64 {
        self.now.as_millis().try_into().unwrap_or(u64::MAX)
    }

    fn client(&mut self, id: ClientId) -> &mut Client {
        let user = self.users.at_first();
        let version = self.version;
        self.clients.entry(id).or_insert_with(|| Client::new(String::new(), version, user))
    }

    fn send(&mut self, client: ClientId, reply: &Reply) {
        let mut bytes = Vec::new();
        reply.write(self.client(client).resp3, &mut bytes);
        if !bytes.is_empty() {
            self.output.push(Output::Send(client, bytes));
        }
    }

    /// The reply to a command, if there is one now.
    fn answer(&mut self, id: ClientId, words: &[Vec<u8>]) -> Option<Reply> {
        let name = upper(&words[0]);
        let version = self.client(id).version;
        let spec = commands::of(version).get(name.as_str());
        let spec = match self.refusal(id, spec, words) {
            Ok(spec) => spec,
            Err(refusal) => {
                let client = self.client(id);
                if name == "EXEC" && version >= ServerVersion::V7 {
                    client.queue = None;
                    client.watches_nothing();
                    if cluster::is_redirection(&refusal) {
                        return Some(Reply::Error(refusal.0));
                    }
                    let why = refusal.0.trim_start_matches("ERR ");
                    return Some(Reply::Error(format!("EXECABORT Transaction discarded because of: {why}")));
                }
                if let Some(queue) = &mut client.queue {
                    queue.is_spoiled = true;
                }
                return Some(Reply::Error(refusal.0));
            }
        };
        let client = self.client(id);
        if let Some(queue) = &mut client.queue
            && !transactions::is_executed_at_once(version, spec.name)
        {
            // What a current server will not execute anyway, it does not keep.
            if version < ServerVersion::V7 || !(queue.is_spoiled || client.is_dirty) {
                queue.commands.push(words.to_vec());
            }
            return Some(QUEUED);
        }
        match self.execute(id, spec, words, false) {
            Reply::Later => None,
            reply => Some(reply),
        }
    }

    fn execute(&mut self, id: ClientId, spec: &Spec, words: &[Vec<u8>], in_exec: bool) -> Reply {
        self.executed += 1;
        let version = self.client(id).version;
        let mut call = Call { server: self, id, words, in_exec };
        (spec.run)(&mut call).unwrap_or_else(|refusal| Reply::Error(refusals::worded(version, refusal.0)))
    }

    /// Removes the key if its time has come. Before 2.6 that was counted in whole seconds. From 6.0.9 on it counts as a
    /// change for those who watch the key.
    fn expire_if_due(&mut self, database: usize, key: &[u8]) {
        let Some(expires) = self.databases[database].get(key).and_then(|entry| entry.expires) else { return };
        let unit = if self.version < ServerVersion::V2_6 { 1000 } else { 1 };
        if self.now_in_millis() / unit > expires / unit {
            self.databases[database].remove(key);
            if self.version >= ServerVersion::V7 {
                self.touch(database, key);
            }
        }
    }

    /// Tells the clients that watch the key.
    fn touch(&mut self, database: usize, key: &[u8]) {
        for client in self.clients.values_mut() {
            client.is_dirty |=
                client.watched.iter().any(|(number, watched)| *number == database && watched == key);
        }
    }
}
