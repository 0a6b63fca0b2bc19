//! Commands as they go over the wire, and what reply is awaited to each. A layer above writes them, and says which of
//! the replies count.

use std::mem;
use std::ops::Deref;

use redis::Value;

use super::resp::is_queued;

const DIGITS: &[u8; 10] = b"0123456789";

/// The digits of a number, in place.
struct Digits {
    bytes: [u8; 20],
    begin: usize,
}

impl Digits {
    fn of(number: u64) -> Self {
        let (mut digits, mut rest) = (Self { bytes: [0; 20], begin: 20 }, number);
        loop {
            digits.begin -= 1;
            digits.bytes[digits.begin] = DIGITS[usize::try_from(rest % 10).unwrap_or_default()];
            rest /= 10;
            if rest == 0 {
                return digits;
            }
        }
    }
}

impl Deref for Digits {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

/// Commands as they go over the wire. Each begins with the form of its reply, as in
/// `packed.bulk().words(&[b"GET", key])`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packed {
    pub(in crate::net) bytes: Vec<u8>,
    /// Of each command.
    pub(in crate::net) awaited: Vec<AwaitedReply>,
    /// True if ASKING goes before each command: a node refuses others on a slot that it takes over.
    pub(in crate::net) asks: bool,
}

/// What reply a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) struct AwaitedReply {
    pub(in crate::net) form: Form,
    pub(in crate::net) role: Role,
    /// How many a list has; 0 for any number.
    length: u16,
}

/// What form a reply has, unless it is a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) enum Form {
    Integer,
    /// Redis 1.x says of a push that it is done.
    IntegerOrOkay,
    Bulk,
    Okay,
    OkayOrNil,
    Queued,
    List,
    /// To EXEC: nil if it was not carried out.
    ListOrNil,
    /// To ASKING. It is dropped.
    Asked,
    /// Any reply fits.
    Any,
}

/// What a reply says of the commands that were packed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) enum Role {
    /// It is the reply to all of them. If there are several, their list is.
    Counts,
    /// A refusal is one of all. In a transaction before Redis 2.6.5 it may have been carried out although the one that
    /// counts was refused: then it is unknown what came of them.
    MustSucceed,
    /// Nothing, unless a transaction carries them out.
    Ignored,
}

impl Form {
    #[inline]
    pub(in crate::net) fn fits(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Any, _)
            | (_, Value::ServerError(_))
            | (Self::Integer | Self::IntegerOrOkay, Value::Int(_))
            | (Self::Okay | Self::OkayOrNil | Self::IntegerOrOkay | Self::Asked, Value::Okay)
            | (Self::Bulk, Value::BulkString(_))
            | (Self::Bulk | Self::OkayOrNil | Self::ListOrNil, Value::Nil)
            | (Self::List | Self::ListOrNil, Value::Array(_)) => true,
            (Self::Queued, queued) => is_queued(queued),
            _ => false,
        }
    }
}

impl AwaitedReply {
    pub(in crate::net) const fn of(form: Form) -> Self {
        Self { form, role: Role::Counts, length: 0 }
    }

    #[inline]
    pub(in crate::net) fn fits(self, value: &Value) -> bool {
        self.form.fits(value)
            && match value {
                Value::Array(values) => self.length == 0 || values.len() == usize::from(self.length),
                _ => true,
            }
    }
}

/// A command of which the form of its reply is noted, and that has no words yet.
pub(crate) struct NewCommand<'a>(&'a mut Packed);

impl<'a> NewCommand<'a> {
    /// Packs the words of the command.
    pub(crate) fn words(self, words: &[&[u8]]) -> &'a mut Packed {
        let packed = self.begin(words.len());
        for word in words {
            packed.word(word);
        }
        packed
    }

    /// Packs the words of the command, of which the first ones, its name among them, are packed in `begun`.
    #[inline]
    pub(crate) fn begun(self, begun: &[u8], words: &[&[u8]]) -> &'a mut Packed {
        self.0.bytes.extend_from_slice(begun);
        for word in words {
            self.0.word(word);
        }
        self.0
    }

    /// Begins the words of the command, which are so many.
    pub(crate) fn begin(self, words: usize) -> &'a mut Packed {
        self.0.head(b'*', words);
        self.0
    }
}

impl Packed {
    /// Begins a command that is answered by a number.
    #[inline]
    pub(crate) fn integer(&mut self) -> NewCommand<'_> {
        self.awaits(Form::Integer)
    }

    /// Begins a command that pushes, which Redis 1.x answers by OK.
    pub(crate) fn push(&mut self) -> NewCommand<'_> {
        self.awaits(Form::IntegerOrOkay)
    }

    /// Begins a command that is answered by bytes, or that there are none.
    #[inline]
    pub(crate) fn bulk(&mut self) -> NewCommand<'_> {
        self.awaits(Form::Bulk)
    }

    /// Begins a command that is answered by OK.
    pub(crate) fn okay(&mut self) -> NewCommand<'_> {
        self.awaits(Form::Okay)
    }

    /// Begins a command that is answered by OK if it was carried out, and by nil if not.
    pub(crate) fn okay_or_nil(&mut self) -> NewCommand<'_> {
        self.awaits(Form::OkayOrNil)
    }

    /// Begins a command that is answered by a list of bytes: of so many, or of any number.
    pub(crate) fn list(&mut self, length: Option<usize>) -> NewCommand<'_> {
        let command = self.awaits(Form::List);
        if let Some(last) = command.0.awaited.last_mut() {
            last.length = length.and_then(|length| u16::try_from(length).ok()).unwrap_or_default();
        }
        command
    }

    /// Says of the last command that its reply counts only if it is a refusal: then it is one of all commands.
    pub(crate) fn must_succeed(&mut self) {
        self.role(Role::MustSucceed);
    }

    /// Says of the last command that its reply says nothing of the others, not even if it is a refusal.
    pub(crate) fn ignored(&mut self) {
        self.role(Role::Ignored);
    }

    fn role(&mut self, role: Role) {
        if let Some(last) = self.awaited.last_mut() {
            last.role = role;
        }
    }

    pub(crate) fn word(&mut self, word: &[u8]) {
        self.head(b'$', word.len());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Packs a number as a word.
    pub(crate) fn number(&mut self, number: u64) {
        self.word(&Digits::of(number));
    }

    /// Adds the form of a command's reply, which is packed next.
    #[inline]
    pub(in crate::net) fn awaits(&mut self, form: Form) -> NewCommand<'_> {
        if self.asks {
            self.ask();
        }
        self.awaited.push(AwaitedReply::of(form));
        NewCommand(self)
    }

    #[cold]
    fn ask(&mut self) {
        self.awaited.push(AwaitedReply::of(Form::Asked));
        self.bytes.extend_from_slice(b"*1\r\n$6\r\nASKING\r\n");
    }

    /// Adds commands that are packed already, and takes their bytes.
    pub(in crate::net) fn take(&mut self, other: &mut Self) {
        self.awaited.extend_from_slice(&other.awaited);
        if self.bytes.is_empty() {
            mem::swap(&mut self.bytes, &mut other.bytes);
        } else {
            self.bytes.append(&mut other.bytes);
        }
    }

    pub(in crate::net) fn clear(&mut self) {
        self.bytes.clear();
        self.awaited.clear();
    }

    /// Returns what is awaited of the replies that are read.
    pub(in crate::net) fn read(&mut self) -> &[AwaitedReply] {
        if self.asks {
            self.awaited.retain(|awaited| awaited.form != Form::Asked);
        }
        &self.awaited
    }

    /// Writes what a number of words, or of bytes, begins with.
    fn head(&mut self, kind: u8, number: usize) {
        if number < 10 {
            return self.bytes.extend_from_slice(&[kind, DIGITS[number], b'\r', b'\n']);
        }
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&Digits::of(number as u64));
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// For tests of what writes commands.
#[cfg(test)]
impl Packed {
    /// Returns what goes over the wire, and how many replies are awaited.
    pub(crate) fn shown(&self) -> (&str, usize) {
        (str::from_utf8(&self.bytes).unwrap(), self.awaited.len())
    }

    /// Returns what these replies come to.
    pub(crate) fn read_replies(&self, name: &str, mut replies: Vec<Value>) -> super::ReadReply {
        match replies.iter().zip(&self.awaited).find(|(reply, awaited)| !awaited.fits(reply)) {
            Some((reply, _)) => Err(super::replies::unexpected(name, Some(reply))),
            None => super::replies::read(name, &mut replies, &self.awaited),
        }
    }

    /// Returns what these come to if the commands are carried out by a transaction.
    pub(crate) fn read_executed(&self, mut replies: Vec<Value>) -> super::ReadReply {
        super::replies::read_change(&mut replies, &self.awaited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_the_redis_crate_writes_them() {
        let mut packed = Packed::default();
        let long = vec![b'x'; 12_345];
        packed.integer().words(&[b"SETNX", b"", &long]);
        packed.awaits(Form::ListOrNil).words(&[b"EXEC"]);
        let words = packed.okay().begin(3);
        words.word(b"SETEX");
        words.word(b"k");
        words.number(1_234_567_890);
        let mut expected = redis::cmd("SETNX").arg("").arg(&long).get_packed_command();
        expected.extend(redis::cmd("EXEC").get_packed_command());
        expected.extend(redis::cmd("SETEX").arg("k").arg(1_234_567_890).get_packed_command());
        assert_eq!(packed.bytes, expected);
        let forms: Vec<Form> = packed.awaited.iter().map(|awaited| awaited.form).collect();
        assert_eq!(forms, [Form::Integer, Form::ListOrNil, Form::Okay]);
    }
}
