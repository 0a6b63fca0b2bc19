//! One command as the proxy records it.

/// A command as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Counts the connections.
    pub(crate) connection: usize,
    /// In upper case.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) position: Position,
}

/// The position of a command in its batch, which is what a client sent in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The first is 1.
    pub(crate) place: usize,
    /// How many commands the batch has.
    pub(crate) of: usize,
}
