//! One command as it arrived.

/// A command that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Counts the connections, from 0.
    pub connection: usize,
    /// The name, in upper case.
    pub name: String,
    /// What follows the name. Invalid UTF-8 is replaced.
    pub arguments: Vec<String>,
    /// Its position in what the client sent in one piece.
    pub position: Position,
}

/// The position of a command among those that a client sent in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// The first is 1.
    pub place: usize,
    /// How many commands there are.
    pub of: usize,
}
