//! Plain `http://` through a proxy, as dialogues of bytes between a client, the proxy and a target: the requirements of RFC 9110
//! (sections 7, 10.1.1 and 15.2) and RFC 9112 (sections 3, 5 and 6), one row per case. Gateway and agent are tested with the same
//! rows.

mod rows;

use Step::{Arrive, Body, Closed, End, Get, Lacks, Say, Send};
pub use rows::{Row, Step, rows};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Timeout of each wait, longer than any working step takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The proxy under test.
#[derive(Clone, Copy, Debug)]
pub struct Proxy {
    /// Address on which it listens.
    pub address: SocketAddr,
    /// Supplier of the fields with which a request is admitted, each with its line end.
    pub admission: fn() -> String,
}

/// Runs `rows` and reports all that fail, so that one failure does not hide the others.
///
/// # Panics
/// Panics if a row fails.
pub async fn hold(proxy: Proxy, rows: Vec<Row>) {
    let mut failed = Vec::new();
    for (name, steps) in rows {
        if let Err(what) = run(proxy, steps).await {
            failed.push(format!("{name}: {what}"));
        }
    }
    assert!(failed.is_empty(), "{} rows fail:\n{}", failed.len(), failed.join("\n"));
}

struct Peer {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Peer {
    async fn fill(&mut self) -> Result<usize, String> {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
        read.map_err(|_| "nothing more came")?.map_err(|error| error.to_string())
    }

    async fn head(&mut self) -> Result<String, String> {
        loop {
            if let Some(end) = self.unread.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = self.unread.drain(..end + 4).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(&head).into_owned());
            }
            if self.fill().await? == 0 {
                return Err(format!("it ended after {:?}", String::from_utf8_lossy(&self.unread)));
            }
        }
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.unread.len() < length {
            if self.fill().await? == 0 {
                return Err(format!("it ended after {:?}", String::from_utf8_lossy(&self.unread)));
            }
        }
        Ok(self.unread.drain(..length).collect())
    }
}

async fn run(proxy: Proxy, steps: Vec<Step>) -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    let filled = |text: &str| {
        text.replace("{target}", &target.to_string()).replace("{admission}", &(proxy.admission)())
    };
    let stream = TcpStream::connect(proxy.address).await.unwrap();
    let (mut client, mut far, mut last) = (Peer { stream, unread: Vec::new() }, None::<Peer>, String::new());
    for step in steps {
        let begun = matches!(step, Arrive(_) | Body(_) | Say(_) | End);
        if begun && far.is_none() {
            let accepted = timeout(PATIENCE, listener.accept()).await;
            let stream = accepted.map_err(|_| "nothing reached the target")?.unwrap().0;
            far = Some(Peer { stream, unread: Vec::new() });
        }
        let said = format!("{step:?}");
        let failed = |what: String| format!("{said}: {what}");
        match (step, &mut far) {
            (Send(text), _) => client.stream.write_all(filled(&text).as_bytes()).await.unwrap(),
            (Get(parts), _) => {
                last = client.head().await.map_err(failed)?;
                if let Some(length) = length_of(&last) {
                    let body = client.take(length).await.map_err(failed)?;
                    last.push_str(&String::from_utf8_lossy(&body));
                }
                let has = |part: &&str| last.to_lowercase().contains(&part.to_lowercase());
                if !last.starts_with(parts[0]) || !parts.iter().all(has) {
                    return Err(failed(format!("{last:?}")));
                }
            }
            (Lacks(part), _) if last.to_lowercase().contains(part) => return Err(failed(last)),
            (Lacks(_), _) => {}
            (Closed, _) => match client.fill().await.map_err(failed)? {
                0 if client.unread.is_empty() => {}
                _ => return Err(failed(format!("{:?}", String::from_utf8_lossy(&client.unread)))),
            },
            (Arrive(head), Some(far)) => {
                let got = far.head().await.map_err(failed)?;
                let expected = filled(head);
                let (found, expected) = (lines(&got), lines(&expected));
                if found != expected {
                    return Err(failed(format!("{found:?}")));
                }
            }
            (Body(bytes), Some(far)) => {
                let got = far.take(bytes.len()).await.map_err(failed)?;
                if got != bytes.as_bytes() {
                    return Err(failed(format!("{:?}", String::from_utf8_lossy(&got))));
                }
            }
            (Say(text), Some(far)) => far.stream.write_all(text.as_bytes()).await.unwrap(),
            (End, far) => *far = None,
            (Arrive(_) | Body(_) | Say(_), None) => unreachable!(),
        }
    }
    Ok(())
}

fn length_of(head: &str) -> Option<usize> {
    let head = head.to_lowercase();
    head.lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|length| length.trim().parse().ok())
}

/// Returns the lines of a head without the `Via` field, which the gateway adds.
fn lines(head: &str) -> Vec<&str> {
    head.lines().filter(|line| !line.starts_with("via: ")).collect()
}
