//! Replies in pieces, deadlines, and replies that never end.

use std::net::TcpListener;
use std::thread;

use super::*;

const SHORT: Longest = Longest { reply: 100, text: 10 };
const LONG: Duration = Duration::from_secs(60);

fn after(limit: Duration) -> Uptime {
    clock::uptime().after(limit)
}

/// A socket, and the stream of its server, with and without spinning.
fn pairs() -> [(Socket, TcpStream); 2] {
    [Looks::never(), Looks::default()].map(|looks| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let address = ConnectionAddr::Tcp(address.ip().to_string(), address.port());
        let looks = Arc::new(looks);
        let socket = Socket::connect(&address, &TcpSettings::default(), after(LONG), &looks);
        (socket.unwrap().unwrap(), listener.accept().unwrap().0)
    })
}

#[test]
fn a_reply_may_come_in_pieces_and_several_in_one() {
    for (mut socket, mut server) in pairs() {
        let writer = thread::spawn(move || {
            for piece in [&b"$3\r"[..], b"\nab", b"c\r\n:1\r\n:2\r\n>1\r\n+x\r\n"] {
                server.write_all(piece).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
            server
        });
        let deadline = after(LONG);
        assert_eq!(socket.receive(deadline, SHORT, Spin::First).unwrap(), Value::BulkString(b"abc".to_vec()));
        assert_eq!(socket.receive(deadline, SHORT, Spin::First).unwrap(), Value::Int(1));
        assert_eq!(socket.receive(deadline, SHORT, Spin::First).unwrap(), Value::Int(2));
        assert!(matches!(socket.receive(deadline, SHORT, Spin::First).unwrap(), Value::Push { .. }));
        drop(writer.join().unwrap());
        assert!(socket.receive(deadline, SHORT, Spin::First).unwrap_err().is_connection_dropped());
    }
}

#[test]
fn the_deadline_is_for_all_pieces_together() {
    for (mut socket, mut server) in pairs() {
        let trickling = thread::spawn(move || {
            // Until the socket is gone.
            while server.write_all(b"+").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let error =
            socket.receive(after(Duration::from_millis(300)), Longest::WHOLE, Spin::First).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        drop(socket);
        trickling.join().unwrap();
    }
}

#[test]
fn what_the_peer_does_not_take_ends_at_the_deadline() {
    let much = vec![b'x'; 64 << 20];
    for (mut socket, _server) in pairs() {
        let error = socket.write(&much, clock::uptime(), after(Duration::from_millis(200))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

#[test]
fn what_has_no_room_at_once_is_sent_when_there_is_some() {
    let much = vec![b'x'; 16 << 20];
    for (mut socket, mut server) in pairs() {
        let reader = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            let mut all = vec![0; 16 << 20];
            server.read_exact(&mut all).map(|()| all)
        });
        socket.write(&much, clock::uptime(), after(LONG)).unwrap();
        assert!(reader.join().unwrap().unwrap() == much);
    }
}

#[test]
fn a_reply_that_is_too_long_is_not_read_to_its_end() {
    for (mut socket, mut server) in pairs() {
        let writer = thread::spawn(move || {
            // Fails once the socket is gone.
            let _ = server.write_all(b"$1000000000\r\n");
            while server.write_all(&[b'x'; 1000]).is_ok() {}
        });
        let error = socket
            .receive(after(LONG), Longest { reply: 100_000, text: usize::MAX }, Spin::First)
            .unwrap_err();
        assert!(error.to_string().contains("longer than a megabyte"), "{error}");
        drop(socket);
        writer.join().unwrap();
    }
}

#[test]
fn the_rest_of_a_long_text_is_dropped_wherever_it_comes() {
    let text = b"abcdefghijklmnopqrstuvwxyz".repeat(1000);
    let head = format!("${}\r\n", text.len());
    let long = [head.as_bytes(), &text, b"\r\n"].concat();
    let stream =
        [&b":1\r\n"[..], &long, b"*2\r\n", &long, b":2\r\n", &long, b"$10\r\n0123456789\r\n"].concat();
    let kept = || Value::BulkString(b"abcdefghij".to_vec());
    let expected = [
        Value::Int(1),
        kept(),
        Value::Array(vec![kept(), Value::Int(2)]),
        kept(),
        Value::BulkString(b"0123456789".to_vec()),
    ];
    for piece in [1_000_000, 26_030, 7000, 4096, 999] {
        for (mut socket, mut server) in pairs() {
            let stream = stream.clone();
            let writer = thread::spawn(move || {
                for piece in stream.chunks(piece) {
                    server.write_all(piece).unwrap();
                    thread::yield_now();
                }
                server
            });
            for expected in &expected {
                assert_eq!(socket.receive(after(LONG), SHORT, Spin::First).unwrap(), *expected, "{piece}");
            }
            assert!(socket.buffer.len() <= 4 * BUFFER, "{}", socket.buffer.len());
            drop(writer.join().unwrap());
        }
    }
}

/// A thread whose own time is up leaves the rest to the next.
#[test]
fn a_long_text_may_be_received_in_turns() {
    for (mut socket, mut server) in pairs() {
        server.write_all(b"$100000\r\n0123456789").unwrap();
        let error = socket.receive(after(Duration::from_millis(50)), SHORT, Spin::First).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        server.write_all(&vec![b'x'; 50_000]).unwrap();
        let error = socket.receive(after(Duration::from_millis(50)), SHORT, Spin::First).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        server.write_all(&vec![b'x'; 49_990]).unwrap();
        server.write_all(b"\r\n:7\r\n").unwrap();
        let kept = Value::BulkString(b"0123456789".to_vec());
        assert_eq!(socket.receive(after(LONG), SHORT, Spin::First).unwrap(), kept);
        assert_eq!(socket.receive(after(LONG), SHORT, Spin::First).unwrap(), Value::Int(7));
    }
}
