//! What a server knows of one connection.

use super::version::ServerVersion;

/// Names a connection.
pub type ClientId = u64;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what a client has said, each by itself")]
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) name: Vec<u8>,
    pub(crate) database: usize,
    pub(crate) resp3: bool,
    /// The version whose commands it may send and whose replies it gets.
    pub(crate) version: ServerVersion,
    /// Refused nothing: it looks at the server for a test.
    pub(crate) is_privileged: bool,
    /// The user that it has logged in as.
    pub(crate) user: Option<String>,
    /// The commands since MULTI.
    pub(crate) queue: Option<Queue>,
    pub(crate) watched: Vec<(usize, Vec<u8>)>,
    /// A watched key has changed.
    pub(crate) is_dirty: bool,
    /// It has sent ASKING before its next command.
    pub(crate) asks: bool,
    pub(crate) channels: Vec<Vec<u8>>,
    pub(crate) patterns: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) commands: Vec<Vec<Vec<u8>>>,
    /// A command was refused since MULTI.
    pub(crate) is_spoiled: bool,
}

impl Client {
    pub(crate) fn new(address: String, version: ServerVersion, user: Option<String>) -> Self {
        Self {
            address,
            name: Vec::new(),
            database: 0,
            resp3: false,
            version,
            is_privileged: false,
            user,
            queue: None,
            watched: Vec::new(),
            is_dirty: false,
            asks: false,
            channels: Vec::new(),
            patterns: Vec::new(),
        }
    }

    pub(crate) fn privileged() -> Self {
        let new = Self::new(String::new(), ServerVersion::V7, None);
        Self { is_privileged: true, ..new }
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.channels.len() + self.patterns.len() > 0
    }

    pub(crate) fn watches_nothing(&mut self) {
        self.watched.clear();
        self.is_dirty = false;
    }
}
