//! Measures what one authenticated tunnel costs a proxy process in CPU time: connect, CONNECT with credentials, one
//! byte there and back, close. It drives any HTTP proxy, so that several can be compared in one run.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Drives authenticated tunnels through a proxy and prints what each cost the proxy's process.
#[derive(Debug, Parser)]
struct Arguments {
    /// The proxy
    #[arg(long, value_name = "ADDR")]
    proxy: SocketAddr,
    /// The process to measure (its threads' time on a CPU, from /proc/PID/task/*/schedstat); may be given repeatedly
    #[arg(long, value_name = "PID", required = true)]
    pid: Vec<u32>,
    /// One Proxy-Authorization value a line, each used for one tunnel
    #[arg(long, value_name = "FILE", conflicts_with = "authorization")]
    tokens: Option<PathBuf>,
    /// One Proxy-Authorization value for all tunnels
    #[arg(long, value_name = "VALUE")]
    authorization: Option<String>,
    /// Skip so many lines of the tokens: earlier runs used them
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// How many tunnels
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// How many clients at once
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// What to call the proxy in the output
    #[arg(long, default_value = "proxy")]
    name: String,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let credentials = credentials(&arguments)?;
    let target = echo()?;
    let next = AtomicUsize::new(0);
    let (before, started) = (cpu_time(&arguments.pid)?, Instant::now());
    thread::scope(|scope| {
        let clients: Vec<_> = (0..arguments.clients)
            .map(|_| scope.spawn(|| client(&arguments, target, &credentials, &next)))
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
    })?;
    let (elapsed, spent) = (started.elapsed(), cpu_time(&arguments.pid)? - before);
    let each = spent.as_secs_f64() * 1e6 / arguments.count as f64;
    let rate = arguments.count as f64 / elapsed.as_secs_f64();
    println!(
        "{}\tcpu_us_per_tunnel={each:.1}\ttunnels_per_s={rate:.0}\tcount={}",
        arguments.name, arguments.count
    );
    Ok(())
}

/// The credentials of each tunnel.
fn credentials(arguments: &Arguments) -> Result<Vec<String>> {
    if let Some(path) = &arguments.tokens {
        let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let lines = BufReader::new(file).lines().skip(arguments.skip).take(arguments.count);
        let lines = lines.collect::<Result<Vec<_>, _>>()?;
        ensure!(lines.len() == arguments.count, "{} holds only {} usable lines", path.display(), lines.len());
        return Ok(lines);
    }
    let value = arguments.authorization.clone().context("give --tokens or --authorization")?;
    Ok(vec![value])
}

fn client(
    arguments: &Arguments,
    target: SocketAddr,
    credentials: &[String],
    next: &AtomicUsize,
) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= arguments.count {
            return Ok(());
        }
        tunnel(arguments.proxy, target, &credentials[number % credentials.len()])?;
    }
}

fn tunnel(proxy: SocketAddr, target: SocketAddr, authorization: &str) -> Result<()> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {authorization}\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "the proxy closed the connection");
        head.extend_from_slice(&buffer[..read]);
    }
    if !head.starts_with(b"HTTP/1.1 200") && !head.starts_with(b"HTTP/1.0 200") {
        bail!(
            "the proxy answered {}",
            String::from_utf8_lossy(head.split(|&byte| byte == b'\r').next().unwrap_or(&head))
        );
    }
    stream.write_all(b"x")?;
    let mut echoed = [0];
    stream.read_exact(&mut echoed)?;
    ensure!(echoed == *b"x", "another byte came back");
    Ok(())
}

/// A server that sends back what it gets, on threads of its own.
fn echo() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo_one(stream));
        }
    });
    Ok(address)
}

fn echo_one(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) if stream.write_all(&buffer[..read]).is_err() => return,
            Err(error) if error.kind() != ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

/// The time that all threads of these processes have been on a CPU, user and kernel together.
fn cpu_time(pids: &[u32]) -> Result<Duration> {
    let mut nanoseconds = 0;
    for pid in pids {
        for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("no process {pid}"))? {
            let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
            let first = schedstat.split_whitespace().next().context("an empty schedstat")?;
            nanoseconds += first.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(nanoseconds))
}
