//! Cost of a connection that has presented no token and no account: memory and CPU, in every state that it can be held in, at
//! the gateway's, the issuer's and the admin listener, plain and over TLS. A new state belongs into the table here.

use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::process::{cpu, wants_processor};
use crate::support::tls::Authority;
use postern_testkit::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, HELLO, SETTINGS, fields, frame};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// The most memory of the process that one connection may hold, in bytes: plain, and over TLS. rustls keeps a record that is not
/// complete (18 KiB), and what is decrypted until it is read (16 KiB).
const MOST_MEMORY: u64 = 64 << 10;
const MOST_MEMORY_TLS: u64 = 96 << 10;
/// The most CPU that a connection, a handshake, a request or 64 KiB of a body may cost.
const MOST_CPU: Duration = Duration::from_millis(1);
/// Connections in each of [`BATCHES`]. With the first one the process gets what it needs once; noise can only add to the CPU that
/// the others need, and what the process gets once later than that, to the memory of one, which does not count. Of the others the
/// mean counts, because a batch may get memory that one before gave back. The admin listener has 64 places.
const BATCH: usize = 10;
const BATCHES: usize = 6;
/// As much as is sent where nothing ends by itself: several times what a connection may hold.
const FLOOD: usize = 512 << 10;

/// The bytes sent on a connection before it is left alone.
struct State {
    name: &'static str,
    /// Sent as it is, below TLS.
    raw: Vec<u8>,
    /// Sent as HTTP, over TLS where the listener has it.
    http: Vec<u8>,
    /// True if the answer to it is read.
    reads: bool,
    /// Complete requests in `http`.
    requests: usize,
    /// Places that it takes of `[limits] connections`.
    places: usize,
}

impl State {
    fn new(name: &'static str, http: impl Into<Vec<u8>>) -> Self {
        Self { name, raw: Vec::new(), http: http.into(), reads: false, requests: 0, places: 1 }
    }

    fn raw(name: &'static str, raw: impl Into<Vec<u8>>) -> Self {
        Self { raw: raw.into(), ..Self::new(name, "") }
    }
}

/// States of HTTP, with a request that is refused and one that has a body.
fn states(refused: &str, with_body: &str) -> Vec<State> {
    let header = &refused[..refused.len() - 2];
    let long = format!("{header}X-Long: {}", "a".repeat(16_000 - header.len()));
    let flood = refused.repeat(FLOOD / refused.len());
    vec![
        State::new("a byte of a request", "G"),
        State::new("a header of 16 kB without an end", long.clone()),
        State { reads: true, requests: 1, ..State::new("between requests", refused) },
        State {
            requests: 1,
            reads: true,
            ..State::new("between requests of 15 kB", long[..15_000].to_owned() + "\r\n\r\n")
        },
        State {
            requests: FLOOD / refused.len(),
            ..State::new("requests without end, answers not read", flood)
        },
        State { requests: 1, ..State::new("a body that stops", format!("{with_body}{}", "b".repeat(100))) },
        State {
            requests: 1,
            ..State::new("a body without end", format!("{with_body}{}", "b".repeat(FLOOD)))
        },
    ]
}

/// States of HTTP/2, with a request that is refused and how many answers a client may leave unread. Each of its streams takes a
/// place, too.
fn states_of_http2(refused: &[(&str, &str)], unread: usize) -> Vec<State> {
    let long = fields(&[refused, &[("x", &"a".repeat(15_000))]].concat());
    let refused = fields(refused);
    let streams = |count: usize| (0..count).map(|number| 2 * number as u32 + 1);
    let requests = |count, flags| -> Vec<u8> {
        streams(count).flat_map(|stream| frame(HEADERS, END_HEADERS | flags, stream, &refused)).collect()
    };
    let ahead = |stream| frame(DATA, 0, stream, &[7; 16 << 10]);
    let flood = FLOOD / frame(HEADERS, 0, 1, &refused).len();
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    vec![
        State { reads: true, ..State::new("HTTP/2: the preface", HELLO) },
        State::new(
            "HTTP/2: a header of 15 kB without an end",
            [HELLO, &frame(HEADERS, 0, 1, &long)].concat(),
        ),
        State {
            requests: unread,
            places: 1 + unread,
            ..State::new(
                "HTTP/2: answers without a window",
                [HELLO, &no_window, &requests(unread, END_STREAM)].concat(),
            )
        },
        State {
            requests: flood,
            ..State::new(
                "HTTP/2: requests without end, answers not read",
                [HELLO, &requests(flood, END_STREAM)].concat(),
            )
        },
        State {
            requests: unread,
            places: 1 + unread,
            ..State::new(
                "HTTP/2: answers without a window, 16 KiB ahead of each",
                [
                    HELLO,
                    &no_window,
                    &requests(unread, 0),
                    &streams(unread).flat_map(ahead).collect::<Vec<_>>(),
                ]
                .concat(),
            )
        },
    ]
}

/// States before the first byte of HTTP.
fn before(tls: bool) -> Vec<State> {
    let mut states = vec![State::raw("nothing sent", "")];
    if tls {
        states.push(State::raw("a byte of a ClientHello", [22]));
        let record =
            |begin: &[u8]| [&[22, 3, 1, 0x40, 0][..], begin, &vec![0; 0x4000 - begin.len()]].concat();
        let hello = record(&[1, 0, 0xff, 0xf0, 3, 3]);
        states.push(State::raw("a record of a ClientHello without an end", &hello[..16_000]));
        let records = [hello, record(&[]), record(&[]), record(&[])];
        states.push(State::raw("a ClientHello of 64 KiB without an end", &records.concat()[..65_500]));
    }
    states
}

/// States over TLS that HTTP does not have.
fn after_the_handshake() -> Vec<State> {
    let record = [&[23, 3, 3, 0x41, 0][..], &[0; 16_500]].concat();
    vec![
        State::new("a handshake, and nothing sent", ""),
        State { raw: record.clone(), ..State::new("a record without an end", "") },
        State {
            raw: record,
            ..State::new(
                "and a header of 16 kB before it",
                format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(15_900)),
            )
        },
    ]
}

/// A refused CONNECT would end the connection.
const GET: &str = "GET http://target.example/ HTTP/1.1\r\nHost: target.example\r\n\r\n";
const FORWARD: &str =
    "POST http://target.example/ HTTP/1.1\r\nHost: target.example\r\nContent-Length: 2000000\r\n\r\n";
const DIRECTORY: &str = "GET /.well-known/private-token-issuer-directory HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
const REQUEST: &str = "POST /token-request HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer none\r\nContent-Type: \
                       application/private-token-request\r\nContent-Length: 2000000\r\n\r\n";
const LIVEZ: &str = "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
const METRICS: &str = "POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000000\r\n\r\n";

/// A state at one of the listeners.
struct Row<'a> {
    listener: &'static str,
    /// Of a client that trusts the listener's authority; `None` for plain HTTP.
    tls: Option<&'a Arc<ClientConfig>>,
    /// True if the state comes after the handshake.
    shaken: bool,
    state: State,
}

impl Row<'_> {
    fn name(&self) -> String {
        format!("{}{}: {}", self.listener, if self.tls.is_some() { ", TLS" } else { "" }, self.state.name)
    }

    /// Measures the state at a new daemon.
    async fn cost(&self, authority: &Authority, keys: &Daemon) -> Cost {
        let tls_section = self.tls.map_or(String::new(), |_| authority.section());
        let more = format!("[limits]\nheader_timeout = \"60s\"\n{tls_section}");
        let home = TempDir::new().unwrap();
        let (kind, config) = match self.listener {
            "issuer" => ("issuer", issuer_config(home.path(), &more)),
            _ => ("gateway", gateway_config(home.path(), &keys.http(), "", "1s", &more)),
        };
        // Of eight workers, two on average have none of the first ten connections, and get what a worker needs once with a later one.
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("workers = 8\n", "workers = 1\n")).unwrap();
        let daemon = Daemon::ready(kind, &config).await;
        let address = if self.listener == "admin" { daemon.admin } else { daemon.address };
        cost(daemon.process.id(), address, &self.state, self.tls.filter(|_| self.shaken))
    }
}

fn rows(trusting: &Arc<ClientConfig>) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for (listener, tls) in [
        ("gateway", None),
        ("gateway", Some(trusting)),
        ("issuer", None),
        ("issuer", Some(trusting)),
        ("admin", None),
    ] {
        let mut shaken = if tls.is_some() { after_the_handshake() } else { Vec::new() };
        shaken.extend(match listener {
            "gateway" => {
                // With another refusal unread its connection ends.
                let http2 =
                    states_of_http2(&[(":method", "CONNECT"), (":authority", "target.example:443")], 8);
                states(GET, FORWARD).into_iter().chain(http2).collect()
            }
            "issuer" => {
                let refused = [
                    (":method", "POST"),
                    (":scheme", "https"),
                    (":path", "/token-request"),
                    (":authority", "127.0.0.1"),
                ];
                states(DIRECTORY, REQUEST).into_iter().chain(states_of_http2(&refused, 50)).collect()
            }
            _ => states(LIVEZ, METRICS),
        });
        let row = |shaken| move |state| Row { listener, tls, shaken, state };
        rows.extend(before(tls.is_some()).into_iter().map(row(false)));
        rows.extend(shaken.into_iter().map(row(true)));
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_state_of_a_connection_costs_much() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let trusting = authority.client();
    let keys = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let rows = rows(&trusting);
    let (next, runtime) = (AtomicUsize::new(0), Handle::current());
    // Four at a time: most of the time passes until a daemon has started, or is quiet again.
    let measure = || {
        let rest = std::iter::from_fn(|| rows.get(next.fetch_add(1, Ordering::Relaxed)));
        rest.map(|row| (row.name(), row.tls.is_some(), runtime.block_on(row.cost(&authority, &keys))))
            .collect::<Vec<_>>()
    };
    let mut measured = block_in_place(|| {
        std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(measure));
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    });
    assert_eq!(measured.len(), rows.len());
    measured.sort_by(|(name, ..), (other, ..)| name.cmp(other));
    let (mut table, mut dear) = (String::new(), String::new());
    for (name, tls, cost) in measured {
        let line = format!(
            "{:>6.1} KiB {:>7.1} us  {name}\n",
            cost.memory as f64 / 1024.0,
            cost.cpu.as_secs_f64() * 1e6
        );
        table += &line;
        let most = if tls { MOST_MEMORY_TLS } else { MOST_MEMORY };
        if cost.memory > most || cost.cpu > MOST_CPU {
            dear += &line;
        }
    }
    println!("{table}");
    let page = include_str!("../docs/operate/capacity.md");
    for (row, most) in
        [("| connections without a tunnel, plain |", MOST_MEMORY), ("| the same over TLS |", MOST_MEMORY_TLS)]
    {
        let row = page.lines().find(|line| line.starts_with(row)).expect("the page has a row for it");
        assert!(row.contains(&format!("| {} KiB. ", most >> 10)), "the page promises something else: {row}");
    }
    assert!(dear.is_empty(), "dearer than a connection may be:\n{dear}");
}

#[derive(Clone)]
struct Cost {
    /// For each connection, or stream of one.
    memory: u64,
    /// For each connection, handshake, request and 64 KiB.
    cpu: Duration,
}

fn cost(pid: u32, address: SocketAddr, state: &State, tls: Option<&Arc<ClientConfig>>) -> Cost {
    let (mut held, mut levels) = (Vec::new(), vec![(settled(pid), resident(pid))]);
    for _ in 0..BATCHES {
        held.extend((0..BATCH).map(|_| hold(address, state, tls)));
        levels.push((settled(pid), resident(pid)));
    }
    drop(held);
    let cpu = levels.windows(2).map(|pair| pair[1].0 - pair[0].0).min().unwrap_or_default();
    let mut grown: Vec<_> = levels[1..].windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1)).collect();
    grown.sort_unstable();
    grown.pop();
    let units = 1 + usize::from(tls.is_some()) + state.requests + state.http.len() / (64 << 10);
    let memory = grown.iter().sum::<u64>() / (grown.len() * BATCH * state.places) as u64;
    Cost { memory, cpu: cpu / (BATCH * units) as u32 }
}

/// A connection in this state, and what keeps it there.
fn hold(address: SocketAddr, state: &State, tls: Option<&Arc<ClientConfig>>) -> Box<dyn Send> {
    let mut stream = TcpStream::connect(address).unwrap();
    // Else the last segment may wait for 40 ms, and what it costs is counted for the next batch.
    stream.set_nodelay(true).unwrap();
    let wait = Some(Duration::from_secs(20));
    stream.set_read_timeout(wait).unwrap();
    let below = stream.try_clone().unwrap();
    let Some(config) = tls else {
        send(&mut stream, &below, &state.http, state.reads);
        return stream.write_all(&state.raw).map(|()| Box::new(stream)).unwrap();
    };
    let mut config = Arc::clone(config);
    if state.http.starts_with(HELLO) {
        Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec()];
    }
    let mut connection = ClientConnection::new(config, address.ip().into()).unwrap();
    connection.set_buffer_limit(None);
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    let mut stream = StreamOwned::new(connection, stream);
    send(&mut stream, &below, &state.http, state.reads);
    let _ = stream.get_mut().write_all(&state.raw);
    Box::new(stream)
}

/// Sends as much as the other side takes, and reads an answer if that is wanted.
fn send(stream: &mut (impl Read + Write), below: &TcpStream, bytes: &[u8], reads: bool) {
    below.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    match stream.write_all(bytes).and_then(|()| stream.flush()) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
        Err(error) if bytes.len() >= FLOOD => _ = error, // it was refused
        Err(error) => panic!("{error}"),
    }
    if reads {
        assert!(stream.read(&mut [0; 16 << 10]).unwrap() > 0);
    }
}

/// Waits until the process does nothing more; its CPU time. A thread that waits for a processor, because other programs have them,
/// has not done its work yet: what it will hold would be counted for the next batch, and in the first one that is more.
fn settled(pid: u32) -> Duration {
    let (mut last, mut quiet, deadline) = (cpu(pid), 0, Instant::now() + Duration::from_secs(20));
    while quiet < 2 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(15));
        let now = cpu(pid);
        let rests = now - last < Duration::from_micros(500) && !wants_processor(pid);
        quiet = if rests { quiet + 1 } else { 0 };
        last = now;
    }
    last
}

/// Resident memory that is the process's own, in bytes.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let private = text.lines().filter(|line| line.starts_with("Private_Dirty:"));
    private.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024).sum()
}
