//! A gateway for its clients and its operator while something is missing: room on the disk, file descriptors, servers of
//! the shared store, the issuer, the right time. One real binary, real servers.

use crate::support::admin::{self, Metrics};
use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::memcached::Memcached;
use crate::support::proxy::{self, Response};
use crate::support::router::Router;
use crate::support::tokens::mint;
use crate::support::{eventually, faketime, target};
use postern_daemon::exit;
use postern_testkit::ports;
use std::io::Write;
use std::net::TcpStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The answer to a CONNECT with this token, its body too where it is refused.
async fn present(gateway: &Daemon, target: &str, token: &str) -> Response {
    let mut stream = proxy::dial(gateway.address).await.unwrap();
    let head = proxy::connect(&mut stream, target, Some(token)).await.unwrap();
    let length = head.value("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; if head.status == 200 { 0 } else { length }];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut body).await.unwrap();
    Response { status: head.status, head, body: String::from_utf8(body).unwrap() }
}

fn unread(response: &Response) -> bool {
    response.status == 503 && response.body.ends_with("No token was read, so none is lost.\n")
}

/// Fills a filesystem to the last byte.
fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for size in [4096, 1] {
        let block = vec![1; size];
        while file.write_all(&block).is_ok() {}
    }
}

/// Clients that hold connections without a token leave descriptors to clients with tokens, and to their tunnels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_is_lost_for_want_of_a_descriptor() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await.to_string());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let mut program = Command::new("sh");
    program.args(["-c", "ulimit -Sn 128 && ulimit -Hn 256 && exec \"$@\"", "sh"]);
    let gateway = Daemon::started_by(program, "gateway", &config);
    gateway.readyz(200, &[]).await;
    let pid = gateway.process.id();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().collect::<Vec<_>>()[3..5], ["256", "256"]);
    gateway.process.wait_for("the limit that it keeps to", |_, log| {
        let says = "[limits] connections is 10000, and with at most 256 open files there can be ";
        log.contains(says).then_some(())
    });

    let tokens = mint(&issuer.http(), &gateway.http(), 60);
    let silent: Vec<_> = (0..400).map(|_| StdStream::connect(gateway.address).unwrap()).collect();
    let mut tunnels = Vec::new();
    for token in &tokens {
        let mut stream = proxy::dial(gateway.address).await.unwrap();
        let head = proxy::connect(&mut stream, &echo, Some(token)).await.unwrap();
        assert_eq!(head.status, 200, "after {} tunnels: {head:?}", tunnels.len());
        tunnels.push(stream);
    }
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    println!("{} tunnels and {} silent connections: {open} descriptors of 256", tunnels.len(), silent.len());
    let (_, log) = gateway.process.written();
    assert!(!log.contains("cannot accept"), "{log}");
}

/// A disk of half a megabyte, in a mount namespace of the gateway's own, which ends with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_costs_one_token_and_one_line_and_ends_by_itself() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await.to_string());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let text = std::fs::read_to_string(&config).unwrap();
    let (old, new) = (format!("{:?}", home.path().join("spent")), format!("{:?}", data.join("spent")));
    std::fs::write(&config, text.replace(&old, &new)).unwrap();
    let mut program = Command::new("unshare");
    program.args([
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        "mount -t tmpfs -o size=512k,mode=700 none \"$0\" && exec \"$@\"",
    ]);
    program.arg(&data);
    let gateway = Daemon::started_by(program, "gateway", &config);
    gateway.readyz(200, &[]).await;
    let inside =
        PathBuf::from(format!("/proc/{}/root{}", gateway.process.id(), data.join("filler").display()));
    let tokens = mint(&issuer.http(), &gateway.http(), 300);
    let mut tokens = tokens.iter();

    // The first record of the key needs a file, and there is no room for one.
    fill(&inside);
    let lost = present(&gateway, &echo, tokens.next().unwrap()).await;
    assert!(lost.status == 503 && lost.body.contains("no room left"), "{lost:?}");
    gateway.readyz(503, &["store: ", "no room left", "Free disk space"]).await;
    let kept: Vec<&String> = tokens.by_ref().take(20).collect();
    for token in &kept {
        let refused = present(&gateway, &echo, token).await;
        assert!(unread(&refused), "{refused:?}");
        assert_eq!(refused.head.value("retry-after"), Some("1"));
    }
    std::fs::remove_file(&inside).unwrap();
    gateway.readyz(200, &[]).await;
    for token in kept {
        assert_eq!(present(&gateway, &echo, token).await.status, 200);
    }

    // The last block of the file has room for some records more, and the disk has none for another block.
    fill(&inside);
    let mut spent = 0;
    while present(&gateway, &echo, tokens.next().unwrap()).await.status == 200 {
        spent += 1;
    }
    println!("{spent} records went into the last block");
    gateway.readyz(503, &["no room left"]).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        let (status, body) = admin::get(gateway.admin, "/readyz").await.unwrap();
        assert_eq!(status, 503, "a trial found room where there is none for a block: {body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    std::fs::remove_file(&inside).unwrap();
    gateway.readyz(200, &[]).await;
    assert_eq!(present(&gateway, &echo, tokens.next().unwrap()).await.status, 200);
    let metrics = Metrics::of(gateway.admin).await;
    assert_eq!((metrics.requests("store_unknown"), metrics.requests("store_down")), (2, 20));
    let ended = gateway.process.terminate();
    ended.assert_stopped();
    let errors = ended.stderr.lines().filter(|line| line.contains("ERROR")).count();
    assert_eq!(errors, 1, "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_behind_a_router_is_reported_with_the_share_that_it_costs() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await.to_string());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let mut servers = [(); 3].map(|()| Memcached::start());
    let router = Router::twemproxy(home.path(), &servers);
    let store =
        format!("[store.memcached]\naddresses = [\"127.0.0.1:{}\"]\ntimeout = \"1s\"\n", router.port());
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", &store);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("[store]\n", "[store]\nkind = \"memcached\"\n")).unwrap();
    let gateway = Daemon::ready("gateway", &config).await;
    let tokens = mint(&issuer.http(), &gateway.http(), 130);
    let mut tokens = tokens.iter();
    assert_eq!(present(&gateway, &echo, tokens.next().unwrap()).await.status, 200);

    servers[0].kill();
    let idle = gateway.readyz(200, &["degraded: store: ", "records cannot be read, so about"]).await;
    println!("{idle}");
    let mut refused = 0;
    for token in tokens.by_ref().take(60) {
        refused += u32::from(present(&gateway, &echo, token).await.status == 503);
    }
    assert!((5..45).contains(&refused), "{refused} of 60");
    let busy = gateway
        .readyz(200, &["degraded: store: ", "of the checks of the last 10 s", "Start the server"])
        .await;
    println!("{busy}");

    servers[0].launch();
    servers[1..].iter().for_each(Memcached::freeze);
    servers[0].freeze();
    gateway.readyz(503, &["store: "]).await;
    let kept: Vec<&String> = tokens.take(20).collect();
    for token in &kept {
        let refused = present(&gateway, &echo, token).await;
        assert!(unread(&refused), "{refused:?}");
    }
    servers.iter().for_each(Memcached::thaw);
    gateway.readyz(200, &[]).await;
    // Those of the server that came back empty are void, and no other is lost.
    let mut void = 0;
    for token in kept {
        let status = present(&gateway, &echo, token).await.status;
        assert!(matches!(status, 200 | 407), "{status}");
        void += u32::from(status == 407);
    }
    assert!(void < 15, "{void} of 20 were void");
    assert!(gateway.process.terminate().stderr.contains("degraded: store: "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_cannot_serve_yet_takes_no_clients_and_its_drain_waits_for_nothing() {
    let home = TempDir::new().unwrap();
    let issuer = format!("http://{}", ports::closed());
    let config = gateway_config(home.path(), &issuer, "", "1s", "");
    let gateway = Daemon::start("gateway", &config);
    gateway.readyz(503, &["keys: ", "listen: the gateway takes no clients before"]).await;
    let refused = StdStream::connect(gateway.address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let began = Instant::now();
    gateway.process.terminate().assert_stopped();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    // After its patience it takes them, and states why they are refused.
    let impatient =
        std::fs::read_to_string(&config).unwrap().replace("[listen]\n", "[listen]\npatience = \"1s\"\n");
    std::fs::write(&config, impatient).unwrap();
    let gateway = Daemon::start("gateway", &config);
    gateway.process.wait_for("why", |_, stderr| {
        let line = stderr.lines().find(|line| line.contains("although it cannot serve them"))?;
        (line.contains("keys: ") && line.contains("cannot be fetched")).then_some(())
    });
    let mut stream = proxy::dial(gateway.address).await.unwrap();
    let head = proxy::connect(&mut stream, "a.example:443", None).await.unwrap();
    assert_eq!(head.status, 503);
    // Its port is taken from the start on.
    let taken = std::fs::read_to_string(&config).unwrap();
    let other = home.path().join("other.toml");
    let address = format!("address = \"{}\"", gateway.address);
    std::fs::write(
        &other,
        taken.replacen("address = \"127.0.0.1:0\"", &address, 1).replace("/spent", "/other"),
    )
    .unwrap();
    let ended = crate::support::process::run(["gateway".as_ref(), "--config".as_ref(), other.as_os_str()]);
    assert_eq!(ended.code, Some(i32::from(exit::RUNTIME)), "{ended:#?}");
    assert!(ended.stderr.contains("another program listens there"), "{ended:#?}");
    gateway.process.terminate().assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_does_not_need_the_issuer() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await.to_string());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    let tokens = mint(&issuer.http(), &gateway.http(), 2);
    gateway.process.terminate().assert_stopped();
    issuer.process.terminate().assert_stopped();
    let saved = home.path().join("issuer-keys.json");
    let gateway = Daemon::ready("gateway", &config).await;
    assert_eq!(present(&gateway, &echo, &tokens[0]).await.status, 200);
    // It is ready before its first fetch fails.
    let failed = "the known keys stay in use";
    gateway.process.wait_for(failed, |_, stderr| stderr.contains(failed).then_some(()));
    let ended = gateway.process.terminate();
    assert!(ended.stderr.contains("1 token key of the last run"), "{}", ended.stderr);
    std::fs::write(&saved, "{ half a fi").unwrap();
    let gateway = Daemon::start("gateway", &config);
    gateway.readyz(503, &["keys: ", "cannot be fetched"]).await;
    let ended = gateway.process.terminate();
    assert!(ended.stderr.contains("it is damaged") && !ended.stderr.contains(failed), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_differ_are_reported_with_the_difference() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    for (offset, status, says) in [
        ("-1h", 503, ["1 token key of the issuer: none is in use yet", "60 min behind the issuer's"]),
        ("+60d", 503, ["1 token key of the issuer: all have retired", "60 days ahead of the issuer's"]),
        ("+5m", 200, ["degraded: keys: ", "5 min ahead of the issuer's"]),
    ] {
        let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
        let mut program = Command::new("env");
        program.args([format!("LD_PRELOAD={}", faketime::library().display()), format!("FAKETIME={offset}")]);
        program.arg("FAKETIME_DONT_FAKE_MONOTONIC=1");
        let gateway = Daemon::started_by(program, "gateway", &config);
        let body = gateway.readyz(status, &says).await;
        assert!(body.contains("NTP") && !body.contains("has to publish"), "{offset}: {body}");
        let ended = gateway.process.terminate();
        assert_eq!(
            ended.stderr.matches("WARN postern_gateway::keys::source: this machine's clock is ").count(),
            1,
            "{}",
            ended.stderr
        );
        std::fs::remove_dir_all(home.path().join("spent")).unwrap();
        std::fs::remove_file(home.path().join("issuer-keys.json")).unwrap();
    }
}

/// A target that sends thirty lines of an answer without a length, slowly, and what curl makes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_the_drain_cuts_is_an_error_to_curl() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "[drain]\ndeadline = \"1s\"\n");
    let slow = target::lines(30, Duration::from_millis(200)).await;
    for extra in [&["--proxytunnel"][..], &["--http1.0"]] {
        let gateway = Daemon::ready("gateway", &config).await;
        let token = &mint(&issuer.http(), &gateway.http(), 1)[0];
        let out = home.path().join("out");
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "-N",
            "-x",
            &gateway.http(),
            "--proxy-header",
            &format!("Proxy-Authorization: {token}"),
        ]);
        curl.args(extra).arg("-o").arg(&out).arg(format!("http://{slow}/"));
        let mut curl = curl.spawn().unwrap();
        eventually("some lines", || async {
            std::fs::read_to_string(&out).ok().filter(|text| text.contains("line 3\n"))
        })
        .await;
        gateway.process.terminate().assert_stopped();
        let ended = curl.wait().unwrap();
        let lines = std::fs::read_to_string(&out).unwrap().lines().count();
        assert!(!ended.success() && lines < 30, "{extra:?}: {lines} of 30 lines, {ended}");
        std::fs::remove_file(&out).unwrap();
    }
}
