//! Replies, and how they are written to a client.

/// A reply to a command, or what a server sends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(&'static str),
    /// A status with text that is not known in advance.
    Text(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    /// Text for people, which RESP3 marks as such.
    Verbatim(String),
    /// A missing value.
    Nil,
    /// A missing array.
    NilArray,
    Array(Vec<Self>),
    Set(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// A message of a channel, or a change of what a client listens to.
    Push(Vec<Self>),
    /// Several replies to one command.
    Several(Vec<Self>),
    /// The reply comes later: the client waits for an element of a list.
    Later,
}

/// Why a command is refused: the text of an error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

pub(crate) type Answer = Result<Reply, Refusal>;

pub(crate) const OK: Reply = Reply::Status("OK");
pub(crate) const QUEUED: Reply = Reply::Status("QUEUED");

impl Reply {
    pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(bytes.into())
    }

    pub(crate) fn bulks<T: Into<Vec<u8>>>(all: impl IntoIterator<Item = T>) -> Self {
        Self::Array(all.into_iter().map(Self::bulk).collect())
    }

    pub(crate) fn bulk_or_nil(bytes: Option<Vec<u8>>) -> Self {
        bytes.map_or(Self::Nil, Self::Bulk)
    }

    pub(crate) fn flag(is_so: bool) -> Self {
        Self::Integer(is_so.into())
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Integer(count.try_into().unwrap_or(i64::MAX))
    }

    /// Appends the reply in the second or third version of the protocol.
    pub(crate) fn write(&self, resp3: bool, out: &mut Vec<u8>) {
        match self {
            Self::Status(text) => line(out, '+', text),
            Self::Text(text) => line(out, '+', text),
            Self::Error(text) => line(out, '-', text),
            Self::Integer(number) => line(out, ':', &number.to_string()),
            Self::Bulk(bytes) => bulk(out, '$', bytes),
            Self::Verbatim(text) if resp3 => bulk(out, '=', format!("txt:{text}").as_bytes()),
            Self::Verbatim(text) => bulk(out, '$', text.as_bytes()),
            Self::Nil | Self::NilArray if resp3 => line(out, '_', ""),
            Self::Nil => line(out, '$', "-1"),
            Self::NilArray => line(out, '*', "-1"),
            Self::Array(all) => many(out, '*', all, resp3),
            Self::Set(all) => many(out, if resp3 { '~' } else { '*' }, all, resp3),
            Self::Push(all) => many(out, if resp3 { '>' } else { '*' }, all, resp3),
            Self::Map(pairs) => {
                let (kind, count) = if resp3 { ('%', pairs.len()) } else { ('*', 2 * pairs.len()) };
                line(out, kind, &count.to_string());
                for (name, value) in pairs {
                    name.write(resp3, out);
                    value.write(resp3, out);
                }
            }
            Self::Several(all) => {
                for reply in all {
                    reply.write(resp3, out);
                }
            }
            Self::Later => {}
        }
    }

    /// The reply as people read it: the text, the number, one line for each element.
    pub(crate) fn for_people(&self) -> String {
        let lines = |all: &[Self]| all.iter().map(Self::for_people).collect::<Vec<_>>().join("\n");
        match self {
            Self::Status(text) => (*text).to_owned(),
            Self::Text(text) | Self::Error(text) | Self::Verbatim(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil | Self::NilArray => "(nil)".to_owned(),
            Self::Array(all) | Self::Set(all) | Self::Push(all) | Self::Several(all) => lines(all),
            Self::Map(pairs) => {
                let line = |(name, value): &(Self, Self)| [name.for_people(), value.for_people()].join("\n");
                pairs.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            Self::Later => String::new(),
        }
    }
}

fn line(out: &mut Vec<u8>, kind: char, text: &str) {
    out.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
}

fn bulk(out: &mut Vec<u8>, kind: char, bytes: &[u8]) {
    line(out, kind, &bytes.len().to_string());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn many(out: &mut Vec<u8>, kind: char, all: &[Reply], resp3: bool) {
    line(out, kind, &all.len().to_string());
    for reply in all {
        reply.write(resp3, out);
    }
}
