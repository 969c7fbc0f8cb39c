//! A store in this process that answers `STORED` to some repeated `add`s of spent tokens.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Default)]
struct Store {
    records: HashMap<String, String>,
    /// Number of spent tokens that were added again.
    repeated: usize,
}

/// Starts it; one in `lies` repeated `add`s is answered `STORED`. Returns its address.
pub fn start(lies: usize) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let store = Arc::new(Mutex::new(Store::default()));
    tokio::spawn(async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let _ = serve(stream, &store, lies).await; // gateways go away
            });
        }
    });
    address
}

async fn serve(stream: TcpStream, store: &Mutex<Store>, lies: usize) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let reply = match words[..] {
            ["get", ref keys @ ..] => {
                let store = store.lock().unwrap();
                let found = keys.iter().filter_map(|key| Some((key, store.records.get(*key)?)));
                let block =
                    |(key, value): (&&str, &String)| format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len());
                found.map(block).collect::<String>() + "END\r\n"
            }
            ["add", key, _, _, length] => {
                let mut value = vec![0; length.parse::<usize>().unwrap() + 2];
                stream.read_exact(&mut value).await?;
                let value = std::str::from_utf8(&value).unwrap().trim_end();
                store.lock().unwrap().add(key, value, lies).to_owned()
            }
            ["stats", "settings"] => "STAT evictions off\r\nEND\r\n".to_owned(),
            _ => "ERROR\r\n".to_owned(),
        };
        stream.write_all(reply.as_bytes()).await?;
    }
}

impl Store {
    fn add(&mut self, key: &str, value: &str, lies: usize) -> &'static str {
        if !self.records.contains_key(key) {
            self.records.insert(key.to_owned(), value.to_owned());
            return "STORED\r\n";
        }
        if key.starts_with('|') {
            self.repeated += 1;
            if self.repeated.is_multiple_of(lies) {
                return "STORED\r\n";
            }
        }
        "NOT_STORED\r\n"
    }
}
