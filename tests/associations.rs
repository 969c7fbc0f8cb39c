//! Many associations of SOCKS5's UDP (RFC 1928, section 7) at one agent, most of which are not used.

use crate::support::association::{Program, associate, echo, v4};
use crate::support::process::resident;
use crate::support::udp::{Stage, Way};
use crate::support::{eventually, proxy, target};
use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use tokio::io::BufReader;
use tokio::net::TcpStream;

/// Programs with a stream each, which take two places.
const USED: usize = 10;

fn open_files(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Opens `count` associations at an agent with as many places as `connections`. Returns how many are left, and the KiB and
/// descriptors that the agent has taken for them.
async fn open(connections: usize, count: usize) -> (usize, u64, usize) {
    let stage = Stage::with(Way::Http2, "udp = \"any\"\n", &format!("connections = {connections}\n")).await;
    let (agent, echo) = (stage.agent.process.id(), v4(echo().await));
    let mut used: Vec<Program> = Vec::new();
    for _ in 0..USED {
        let mut program = stage.program().await;
        program.echo(&echo, 4).await;
        used.push(program);
    }
    let (memory, files) = (resident(agent), open_files(agent));
    let mut idle = Vec::new();
    for _ in 0..count {
        idle.push(associate(Ipv4Addr::LOCALHOST, 0, stage.agent.address).await.unwrap().0);
    }
    let taken = (resident(agent).saturating_sub(memory), open_files(agent).saturating_sub(files));
    // Those that have sent something keep their places, and there is one for others.
    for program in &mut used {
        program.echo(&echo, 4).await;
    }
    let mut stream = proxy::dial(stage.agent.address).await.unwrap();
    let tcp = target::echo().await;
    assert_eq!(proxy::connect(&mut stream, &tcp.to_string(), None).await.unwrap().status, 200);
    proxy::echoes(&mut stream, b"another program").await.unwrap();
    let is_open = |control: &&BufReader<TcpStream>| {
        control.get_ref().try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let left = idle.iter().filter(is_open).count();
    drop((idle, stream));
    eventually("the descriptors are closed", || async { (open_files(agent) <= files + 8).then_some(()) })
        .await;
    stage.program().await.echo(&echo, 4).await;
    assert_eq!(stage.opened().await, USED as u64 + 2);
    (left, taken.0, taken.1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_limit_the_oldest_unused_association_gives_way() {
    const CONNECTIONS: usize = 60;
    let (left, memory, files) = open(CONNECTIONS, 1_000).await;
    println!("{left} of 1,000 associations are left, with {memory} KiB and {files} descriptors");
    assert!(left <= CONNECTIONS - 2 * USED, "{left}");
    assert!(left >= CONNECTIONS / 2, "{left}");
    assert!(files <= 2 * CONNECTIONS, "{files}");
    assert!(memory < 8 * 1024, "{memory} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement with 10,000 descriptors of its own, and 20,000 of the agent's"]
async fn ten_thousand_associations() {
    let (left, memory, files) = open(12_000, 10_000).await;
    println!("{left} of 10,000 associations are left, with {memory} KiB and {files} descriptors");
    assert!(memory < 10_000 * 128, "{memory} KiB");
}
