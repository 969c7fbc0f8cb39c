//! The queue without a connection: bursts, and the assignment of replies to callers.

use super::*;
use crate::memcached::protocol::{Kind, RecordKey, Reply, VALUE_LEN, Value};
use postern_token::UnixSeconds;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

fn key(number: u8) -> RecordKey {
    RecordKey::new(Kind::Probe, &[number; 32])
}

fn get(number: u8) -> Command {
    Command::Get(key(number))
}

fn add(number: u8) -> Command {
    Command::Add { key: key(number), value: value(number), expires: UnixSeconds(0) }
}

fn value(number: u8) -> Value {
    Value::read(&[b'0' + number; VALUE_LEN])
}

fn block(number: u8) -> String {
    format!("VALUE {} 0 22\r\n{}\r\n", key(number), char::from(b'0' + number).to_string().repeat(VALUE_LEN))
}

fn pipeline() -> Pipeline {
    let pipeline = Pipeline::new(100);
    pipeline.open();
    pipeline
}

fn taken(pipeline: &Pipeline) -> String {
    let mut taken = Vec::new();
    assert!(pipeline.take(&mut taken, None, Waker::noop()));
    String::from_utf8(taken).unwrap()
}

/// Returns the result if it is ready.
fn result_of(waiting: Waiting<'_>) -> Option<Result<Reply, Failure>> {
    match pin!(waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.result.map(|[reply, ..]| reply)),
        Poll::Pending => None,
    }
}

/// Delivers one byte at a time, as a connection may.
fn deliver(pipeline: &Pipeline, replies: &str) -> Result<(), Unknown> {
    let mut held = Vec::new();
    for byte in replies.bytes() {
        held.push(byte);
        let used = pipeline.deliver(&held, (Duration::MAX, &|| None), &mut Vec::new())?;
        held.drain(..used);
    }
    assert!(held.is_empty(), "left over: {:?}", held.escape_ascii());
    Ok(())
}

#[test]
fn the_gets_of_a_burst_are_one_command_behind_its_adds() {
    let pipeline = pipeline();
    let commands = [get(1), add(2), get(3), get(4)];
    let [first, second, third, fourth] =
        commands.map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    let sent = taken(&pipeline);
    assert_eq!(sent.matches("get ").count(), 1);
    assert!(sent.starts_with("add ") && sent.ends_with(&format!("get {} {} {}\r\n", key(1), key(3), key(4))));
    assert_eq!(pipeline.outstanding(), 4);
    // Blocks come in any order.
    deliver(&pipeline, &format!("STORED\r\n{}{}END\r\n", block(4), block(1))).unwrap();
    assert_eq!(result_of(first), Some(Ok(Reply::Hit(value(1)))));
    assert_eq!(result_of(second), Some(Ok(Reply::Stored)));
    assert_eq!(result_of(third), Some(Ok(Reply::Miss)));
    assert_eq!(result_of(fourth), Some(Ok(Reply::Hit(value(4)))));
    assert_eq!(pipeline.outstanding(), 0);
}

#[test]
fn nobody_is_answered_before_the_end() {
    let pipeline = pipeline();
    let waiting = pipeline.submit([&get(1)], Instant::now()).unwrap();
    taken(&pipeline);
    deliver(&pipeline, &block(1)).unwrap();
    assert_eq!(pipeline.outstanding(), 1);
    assert_eq!(deliver(&pipeline, "SERVER_ERROR late\r\n"), Err(Unknown::Garbled));
    pipeline.close(Unknown::Garbled, None);
    assert_eq!(result_of(waiting), Some(Err(Failure::Sent(Unknown::Garbled))));
    // Received blocks are not carried over to the next connection.
    pipeline.open();
    let waiting = pipeline.submit([&get(1)], Instant::now()).unwrap();
    taken(&pipeline);
    deliver(&pipeline, "END\r\n").unwrap();
    assert_eq!(result_of(waiting), Some(Ok(Reply::Miss)));
}

#[test]
fn a_caller_that_went_away_keeps_its_place_among_the_keys() {
    let pipeline = pipeline();
    let mut waiting: Vec<Option<Waiting<'_>>> =
        (0..5).map(|number| Some(pipeline.submit([&get(number)], Instant::now()).unwrap())).collect();
    waiting[1] = None; // before it is sent
    taken(&pipeline);
    waiting[3] = None; // after
    let newcomer = pipeline.submit([&get(9)], Instant::now()).unwrap();
    deliver(&pipeline, &format!("{}{}{}END\r\n", block(1), block(2), block(3))).unwrap();
    for (number, waiting) in (0..).zip(waiting) {
        let expected = if number == 2 { Reply::Hit(value(2)) } else { Reply::Miss };
        if let Some(waiting) = waiting {
            assert_eq!(result_of(waiting), Some(Ok(expected)), "{number}");
        }
    }
    assert_eq!(result_of(newcomer), None);
}

#[test]
fn an_error_behind_some_blocks_is_the_others_reply() {
    let pipeline = pipeline();
    let [first, second] =
        [get(1), get(2)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    taken(&pipeline);
    deliver(&pipeline, &format!("{}SERVER_ERROR unavailable\r\n", block(2))).unwrap();
    assert_eq!(result_of(first), Some(Ok(Reply::ServerError)));
    assert_eq!(result_of(second), Some(Ok(Reply::Hit(value(2)))));
}

#[test]
fn after_an_error_gets_travel_apart_for_a_while() {
    let pipeline = pipeline();
    let burst = || {
        let waiting = [get(1), get(2)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
        (taken(&pipeline).matches("get ").count(), waiting)
    };
    let (commands, _waiting) = burst();
    assert_eq!(commands, 1);
    deliver(&pipeline, "SERVER_ERROR unavailable\r\n").unwrap();
    pipeline.close(Unknown::TimedOut, None); // as twemproxy does
    pipeline.open();
    let (commands, [first, second]) = burst();
    assert_eq!(commands, 2);
    deliver(&pipeline, &format!("SERVER_ERROR unavailable\r\n{}END\r\n", block(2))).unwrap();
    assert_eq!(result_of(first), Some(Ok(Reply::ServerError)));
    assert_eq!(result_of(second), Some(Ok(Reply::Hit(value(2)))));
    pipeline.queue.lock().apart_until = Some(Instant::now());
    assert_eq!(burst().0, 1);
}

/// Counts how often a caller is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_caller_is_woken_once_when_the_last_reply_of_its_exchange_has_come() {
    let pipeline = pipeline();
    let _first = pipeline.submit([&get(1)], Instant::now()).unwrap();
    let mut waiting = pipeline.submit([&add(2), &get(3), &get(4)], Instant::now()).unwrap();
    assert_eq!(pipeline.outstanding(), 4);
    let caller = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&caller));
    let mut poll = || pin!(&mut waiting).poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    taken(&pipeline);
    let mut woken = Vec::new();
    for replies in ["STORED\r\n", &block(3), "END\r\n"] {
        assert!(poll().is_pending());
        let delivered = pipeline.deliver(replies.as_bytes(), (Duration::MAX, &|| None), &mut woken);
        assert_eq!(delivered, Ok(replies.len()));
    }
    woken.into_iter().for_each(Waker::wake);
    assert_eq!(caller.0.load(Ordering::Relaxed), 1);
    let Poll::Ready(answer) = poll() else { panic!("no answer") };
    assert_eq!(answer.result, Ok([Reply::Stored, Reply::Hit(value(3)), Reply::Miss]));
}

/// A place is free again only after the last reply: the next exchange must not read replies of the one before.
#[test]
fn an_exchange_without_its_caller_keeps_its_place_until_the_last_reply() {
    let pipeline = pipeline();
    let waiting = pipeline.submit([&add(1), &get(2), &get(3)], Instant::now()).unwrap();
    taken(&pipeline);
    deliver(&pipeline, "STORED\r\n").unwrap();
    drop(waiting);
    let next = pipeline.submit([&add(4), &get(5)], Instant::now()).unwrap();
    deliver(&pipeline, &format!("{}END\r\n", block(2))).unwrap();
    taken(&pipeline);
    let late = pipeline.submit([&add(6)], Instant::now()).unwrap();
    assert_eq!(pipeline.queue.lock().exchanges.len(), 2);
    deliver(&pipeline, "NOT_STORED\r\nEND\r\n").unwrap();
    assert_eq!(answer(next).result, Ok([Reply::NotStored, Reply::Miss, Reply::ServerError]));
    assert_eq!(result_of(late), None);
}

#[test]
fn an_exchange_answered_in_part_fails_with_its_connection() {
    let pipeline = pipeline();
    let waiting = pipeline.submit([&add(1), &get(2)], Instant::now()).unwrap();
    taken(&pipeline);
    deliver(&pipeline, "STORED\r\n").unwrap();
    pipeline.close(Unknown::TimedOut, None);
    assert_eq!(result_of(waiting), Some(Err(Failure::Sent(Unknown::TimedOut))));
}

#[test]
fn two_callers_with_one_key_are_both_answered() {
    let pipeline = pipeline();
    let [first, second] =
        [get(1), get(1)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    taken(&pipeline);
    deliver(&pipeline, &format!("{}{}END\r\n", block(1), block(1))).unwrap();
    assert_eq!(result_of(first), Some(Ok(Reply::Hit(value(1)))));
    assert_eq!(result_of(second), Some(Ok(Reply::Hit(value(1)))));
    // A third block would belong to no caller.
    let [first, second] =
        [get(1), get(1)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    taken(&pipeline);
    assert_eq!(deliver(&pipeline, &block(1).repeat(3)), Err(Unknown::Garbled));
    drop((first, second));
}

#[test]
fn many_gets_are_several_commands() {
    let pipeline = pipeline();
    let waiting: Vec<Waiting<'_>> =
        (0..70).map(|number| pipeline.submit([&get(number)], Instant::now()).unwrap()).collect();
    assert_eq!(taken(&pipeline).matches("get ").count(), 3);
    deliver(&pipeline, &format!("END\r\n{}END\r\nSERVER_ERROR\r\n", block(40))).unwrap();
    for (number, waiting) in (0..).zip(waiting) {
        let expected = match number {
            40 => Reply::Hit(value(40)),
            64.. => Reply::ServerError,
            _ => Reply::Miss,
        };
        assert_eq!(result_of(waiting), Some(Ok(expected)), "{number}");
    }
}

/// A reply too many, and the last record refused: 32 keys of one `get` have the error, and the reply to that `get` has the keys
/// that the next one asks for, too.
#[test]
fn an_error_before_another_joined_get_is_garbled() {
    let pipeline = Pipeline::new(200);
    pipeline.open();
    let waiting: Vec<Waiting<'_>> = (0..32)
        .map(|number| pipeline.submit([&add(number), &get(60), &get(61)], Instant::now()).unwrap())
        .collect();
    assert_eq!(taken(&pipeline).matches("get ").count(), 2);
    let replies = format!("{}SERVER_ERROR\r\n{}END\r\n", "STORED\r\n".repeat(32), block(60).repeat(16));
    deliver(&pipeline, &replies).unwrap_err();
    for waiting in waiting {
        let answer = pin!(waiting).poll(&mut Context::from_waker(Waker::noop()));
        let is_admitted =
            |answer: &Answer| answer.result == Ok([Reply::Stored, Reply::Hit(value(60)), Reply::Miss]);
        assert!(!matches!(&answer, Poll::Ready(answer) if is_admitted(answer)), "{answer:?}");
    }
}

/// Reports the last burst as written when taking the next one, as the connection's task does.
fn written(pipeline: &Pipeline, at: Instant) {
    pipeline.take(&mut Vec::new(), Some(at), Waker::noop());
}

fn answer(waiting: Waiting<'_>) -> Answer {
    match pin!(waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("no answer"),
    }
}

#[test]
fn each_burst_has_the_stamp_of_its_own_write() {
    let pipeline = pipeline();
    let (now, step) = (Instant::now(), Duration::from_millis(1));
    let [first, second] = [add(1), get(2)].map(|command| pipeline.submit([&command], now).unwrap());
    taken(&pipeline);
    let third = pipeline.submit([&add(3)], now).unwrap();
    let mut out = Vec::new();
    assert!(pipeline.take(&mut out, Some(now + step), Waker::noop()));
    assert_eq!(
        (first.written(), second.written(), third.written()),
        (Some(now + step), Some(now + step), None)
    );
    // The second burst is answered in part before all of it is written.
    let fourth = pipeline.submit([&add(4)], now).unwrap();
    deliver(&pipeline, "STORED\r\nEND\r\nSTORED\r\n").unwrap();
    assert_eq!(answer(first).written, Some(now + step));
    assert_eq!(answer(second).written, Some(now + step));
    let third = answer(third);
    assert_eq!((third.written, third.read.is_some()), (None, true));
    // No written burst is left, so the timestamp belongs to no caller.
    out.clear();
    assert!(pipeline.take(&mut out, Some(now + 2 * step), Waker::noop()));
    assert_eq!(fourth.written(), None);
    written(&pipeline, now + 3 * step);
    pipeline.close(Unknown::TimedOut, None);
    let fourth = answer(fourth);
    assert_eq!((fourth.written, fourth.read), (Some(now + 3 * step), None));
}

#[test]
fn the_connection_is_looked_at_once_a_read_and_only_for_what_was_slow() {
    let looks = std::cell::Cell::new(0);
    let look = || {
        looks.set(looks.get() + 1);
        None
    };
    let pipeline = pipeline();
    let (now, slow) = (Instant::now(), Duration::from_secs(60));
    for (since, expected) in [(now, 0), (now.checked_sub(2 * slow).unwrap(), 1)] {
        let waiting = [add(1), add(2)].map(|command| pipeline.submit([&command], since).unwrap());
        taken(&pipeline);
        pipeline.deliver(b"STORED\r\nSTORED\r\n", (slow, &look), &mut Vec::new()).unwrap();
        assert_eq!(looks.get(), expected);
        drop(waiting);
    }
}

#[test]
fn what_was_not_taken_was_not_sent() {
    let pipeline = pipeline();
    let [sent_get, sent_add] =
        [get(1), add(2)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    taken(&pipeline);
    let [other_get, other_add] =
        [get(3), add(4)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    pipeline.close(Unknown::TimedOut, None);
    for waiting in [sent_get, sent_add] {
        assert_eq!(result_of(waiting), Some(Err(Failure::Sent(Unknown::TimedOut))));
    }
    for waiting in [other_get, other_add] {
        assert_eq!(result_of(waiting), Some(Err(Failure::NotSent(Unknown::TimedOut))));
    }
    assert_eq!((pipeline.outstanding(), pipeline.oldest()), (0, None));
}

#[test]
fn the_limit_counts_what_was_sent_and_what_was_not() {
    let pipeline = Pipeline::new(3);
    pipeline.open();
    let _waiting = [get(1), add(2)].map(|command| pipeline.submit([&command], Instant::now()).unwrap());
    taken(&pipeline);
    let _third = pipeline.submit([&get(3)], Instant::now()).unwrap();
    let refused = pipeline.submit([&add(4)], Instant::now()).err();
    assert_eq!(refused, Some(Failure::NotSent(Unknown::Overloaded)));
    deliver(&pipeline, "STORED\r\n").unwrap();
    assert!(pipeline.submit([&add(4)], Instant::now()).is_ok());
}
