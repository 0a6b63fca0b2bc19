//! ASKING before each command, without which a node refuses those on a slot that it takes over.

const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// Whether ASKING goes before each command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    Never,
    BeforeEach,
}

/// Adds ASKING to packed commands, of which a transaction has one in front. `in_transaction`: the first of them are in
/// one. Returns with them which of the replies are to the others.
pub(super) fn with_asking(packed: &[u8], mut in_transaction: bool) -> (Vec<u8>, Vec<bool>) {
    let (mut bytes, mut are_replies) = (Vec::new(), Vec::new());
    for command in commands(packed) {
        if !in_transaction {
            bytes.extend_from_slice(ASKING);
            are_replies.push(false);
        }
        let is = |name: &[u8]| command.windows(name.len()).take(16).any(|word| word == name);
        in_transaction =
            if in_transaction { !is(b"EXEC\r\n") && !is(b"DISCARD\r\n") } else { is(b"MULTI\r\n") };
        bytes.extend_from_slice(command);
        are_replies.push(true);
    }
    (bytes, are_replies)
}

/// Splits packed commands, each of which is a list of texts with their lengths in front.
fn commands(mut packed: &[u8]) -> Vec<&[u8]> {
    let mut commands = Vec::new();
    while let Some((count, mut at)) = number(packed) {
        for _ in 0..count {
            let Some((length, head)) = number(&packed[at..]) else { return commands };
            at += head + length + 2;
        }
        let (command, rest) = packed.split_at(at.min(packed.len()));
        commands.push(command);
        packed = rest;
    }
    commands
}

/// Reads the number of a line, behind its first character. Returns with it how long the line is.
fn number(line: &[u8]) -> Option<(usize, usize)> {
    let end = line.iter().position(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(line.get(1..end.checked_sub(1)?)?).ok()?;
    Some((text.parse().ok()?, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_goes_before_each_command_and_each_transaction() {
        let pack = |commands: &[&str]| -> Vec<u8> {
            let pack = |command: &&str| {
                let mut words = command.split(' ');
                redis::cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>()).get_packed_command()
            };
            commands.iter().flat_map(pack).collect()
        };
        let sent = |commands: &[&str], in_transaction| with_asking(&pack(commands), in_transaction).0;
        assert_eq!(sent(&["SETNX MULTI EXEC"], false), pack(&["ASKING", "SETNX MULTI EXEC"]));
        assert_eq!(
            sent(&["WATCH k", "GET k", "MULTI"], false),
            pack(&["ASKING", "WATCH k", "ASKING", "GET k", "ASKING", "MULTI"])
        );
        assert_eq!(sent(&["DEL k", "EXEC", "LPOP k"], true), pack(&["DEL k", "EXEC", "ASKING", "LPOP k"]));
        assert_eq!(with_asking(&pack(&["GET k"]), false).1, [false, true]);
    }
}
