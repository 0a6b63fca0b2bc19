//! One command as the proxy records it.

/// A command as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Counts the connections.
    pub connection: usize,
    /// In upper case.
    pub name: String,
    pub arguments: Vec<String>,
    pub position: Position,
}

/// The position of a command in its batch, which is what a client sent in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The first is 1.
    pub place: usize,
    /// How many commands the batch has.
    pub of: usize,
}
