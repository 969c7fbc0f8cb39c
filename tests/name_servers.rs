//! Names, while name servers are down, answer one family of addresses alone, or are not there at all.

mod server;

use crate::support::daemon::{
    Daemon, apply, client_config, declared, gateway_config, issuer_config, with_memcacheds,
};
use crate::support::memcached::Memcached;
use crate::support::postgres::{Postgres, issuer_in};
use crate::support::process::Postern;
use crate::support::router::Router;
use crate::support::tokens::mint;
use crate::support::{admin, edit, eventually, proxy, target};
use postern_testkit::ports;
use server::{Does, Family, LATE, NameServer};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinSet;

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// An address without a listener.
const CLOSED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// An address that the policy denies.
const DENIED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// An address of IPv6 that leads to one of IPv4, so that both have one listener.
fn v6(address: Ipv4Addr) -> IpAddr {
    address.to_ipv6_mapped().into()
}

/// Answers each family with an address of this machine.
fn answer_both(_: &str, family: Family) -> Does {
    Does::Answer(if family == Family::V6 { v6(HERE) } else { HERE.into() })
}

/// The status of a tunnel, and how long it took.
async fn opened(proxy: SocketAddr, target: &str, token: Option<&str>) -> (u16, Duration) {
    let began = Instant::now();
    let mut stream = proxy::dial(proxy).await.unwrap();
    let status = proxy::connect(&mut stream, target, token).await.unwrap().status;
    if status == 200 {
        proxy::echoes(&mut stream, b"through").await.unwrap();
    }
    (status, began.elapsed())
}

/// The outcome of a row of the table below.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// This status, without waiting for an answer that is late or never comes.
    Soon(u16),
    /// This status, after an answer that is late, or at the end of the time for a dial.
    Late(u16),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_for_one_family_is_used_whatever_becomes_of_the_other() {
    use Comes::{Late, Soon};
    use Does::{
        Answer, AnswerLate, CutOff, Drop, Fail, MistakeName, MistakeNumber, SayNoName, SayNone, SendNoise,
    };
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await);
    let denied = TcpListener::bind((DENIED, echo.port())).unwrap();
    denied.set_nonblocking(true).unwrap();
    let v4 = IpAddr::from;
    let rows: Vec<(Does, Does, Comes)> = vec![
        (Answer(v6(HERE)), Answer(v4(HERE)), Soon(200)),
        (Drop, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), Drop, Soon(200)),
        (AnswerLate(v6(HERE)), Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), AnswerLate(v4(HERE)), Soon(200)),
        (SayNone, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), SayNone, Soon(200)),
        (SayNoName, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), SayNoName, Soon(200)),
        (Fail, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), Fail, Soon(200)),
        (SendNoise, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), SendNoise, Soon(200)),
        (MistakeNumber, Answer(v4(HERE)), Soon(200)),
        (MistakeName, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), MistakeName, Soon(200)),
        (CutOff, Answer(v4(HERE)), Soon(200)),
        (Answer(v6(HERE)), CutOff, Soon(200)),
        (Answer(v6(CLOSED)), Answer(v4(HERE)), Soon(200)),
        (SayNone, SayNone, Soon(502)),
        (SayNoName, SayNoName, Soon(502)),
        (Fail, SayNone, Soon(502)),
        (Answer(v6(CLOSED)), Answer(v4(CLOSED)), Soon(502)),
        (Answer(v6(DENIED)), Answer(v4(HERE)), Soon(200)),
        (Answer(v6(DENIED)), Answer(v4(DENIED)), Soon(403)),
        // The first addresses are of no use, or lead nowhere: late ones are judged, and tried.
        (AnswerLate(v6(HERE)), Answer(v4(CLOSED)), Late(200)),
        (AnswerLate(v6(HERE)), Answer(v4(DENIED)), Late(200)),
        (AnswerLate(v6(DENIED)), Answer(v4(CLOSED)), Late(502)),
        (AnswerLate(v6(DENIED)), SayNone, Late(403)),
        (Drop, AnswerLate(v4(HERE)), Late(200)),
        // The reason is that of the addresses that came.
        (Drop, Answer(v4(CLOSED)), Late(502)),
        (Drop, Answer(v4(DENIED)), Late(403)),
        (Drop, SayNone, Late(504)),
        (Drop, Drop, Late(504)),
    ];
    let does: Vec<_> = rows.iter().map(|(v6, v4, _)| (*v6, *v4)).collect();
    let server = NameServer::start((HERE, 0), move |name, family| {
        let (v6, v4) = does[name.strip_suffix(".test").unwrap().parse::<usize>().unwrap()];
        if family == Family::V6 { v6 } else { v4 }
    });
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let more = format!(
        "deny = [\"{DENIED}/32\"]\n[egress.resolver]\nkind = \"udp\"\nservers = [\"{}\"]\n\
         timeout = \"8s\"\n[limits]\ndial_timeout = \"8s\"\n",
        server.address
    );
    let gateway =
        Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", &more)).await;
    let mut tunnels = JoinSet::new();
    for (row, token) in mint(&issuer.http(), &gateway.http(), rows.len()).into_iter().enumerate() {
        let (proxy, target) = (gateway.address, format!("{row}.test:{}", echo.port()));
        tunnels.spawn(async move { (row, opened(proxy, &target, Some(&token)).await) });
    }
    for (row, (status, took)) in tunnels.join_all().await {
        match rows[row].2 {
            Soon(expected) => {
                assert!(status == expected && took < LATE, "{:?}: {status} {took:?}", rows[row])
            }
            Late(expected) => assert!(status == expected, "{:?}: {status} {took:?}", rows[row]),
        }
    }
    assert!(denied.accept().is_err(), "a late address is judged before it is dialled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_name_that_can_be_sent_is_sent_and_what_cannot_be_is_refused_without_a_token() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await);
    let server = NameServer::start((HERE, 0), answer_both);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let more = format!("[egress.resolver]\nkind = \"udp\"\nservers = [\"{}\"]\n", server.address);
    let gateway =
        Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", &more)).await;
    let label = |length| "a".repeat(length);
    let longest = [label(63), label(63), label(63), label(61)].join(".");
    let names = [
        "my_bucket.s3.test",
        "my_app",
        "a_._b.test",
        "_dmarc.test",
        "-a-.test",
        "a!b.test",
        "*.test",
        "a'b~$&()+,;=.test",
        &longest,
    ];
    for (name, token) in names.iter().zip(mint(&issuer.http(), &gateway.http(), names.len())) {
        let (status, _) = opened(gateway.address, &format!("{name}:{}", echo.port()), Some(&token)).await;
        assert_eq!(status, 200, "{name}");
        // Of either family: the answer to one question may come before the other is there.
        assert!(server.asked().iter().any(|(asked, _)| asked == name), "{name}");
    }
    for name in ["a..test", ".test", "..", &label(64), &format!("a.{longest}"), "a%5fb.test", "a.1"] {
        let (status, _) = opened(gateway.address, &format!("{name}:443"), None).await;
        assert_eq!(status, 400, "{name}");
    }
    assert!(server.asked().iter().all(|(asked, _)| names.contains(&asked.as_str())), "{:?}", server.asked());
}

/// Docker compose calls a service as its file does, which is no name of a host by the rules of old. And its name server answers one
/// family alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_hop_may_have_any_name_that_can_be_sent() {
    let (home, echo, port) = (TempDir::new().unwrap(), target::echo().await, ports::free());
    let file = home.path().join("tinyproxy.conf");
    std::fs::write(&file, format!("Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nTimeout 600\n")).unwrap();
    let mut command = Command::new("tinyproxy");
    command.args(["-d", "-c"]).arg(file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let _proxy = Postern::start(command);
    let server = NameServer::start((HERE, 0), |name, family| match family {
        Family::V6 => Does::Drop,
        Family::V4 => answer_both(name, family),
    });
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let more = format!(
        "via = \"squid\"\n[[egress.next_hops]]\nname = \"squid\"\nurls = [\"http://my_squid:{port}\"]\n\
         [egress.resolver]\nkind = \"udp\"\nservers = [\"{}\"]\n",
        server.address
    );
    let gateway =
        Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", &more)).await;
    let token = mint(&issuer.http(), &gateway.http(), 1).remove(0);
    let (status, took) = opened(gateway.address, &format!("127.0.0.1:{}", echo.port()), Some(&token)).await;
    assert!(status == 200 && took < LATE, "{status} {took:?}");
    for family in [Family::V4, Family::V6] {
        assert!(server.asked().contains(&("my_squid".to_owned(), family)), "{:?}", server.asked());
    }
}

/// Starts a daemon to which this is the system's resolv.conf(5), none without a text, and hosts(5).
fn started(kind: &str, config: &Path, resolv_conf: Option<&str>, hosts: &str) -> Daemon {
    let home = config.parent().unwrap();
    let etc = home.join(format!("etc-{kind}"));
    std::fs::create_dir(&etc).unwrap();
    std::fs::write(home.join("hosts"), hosts).unwrap();
    std::fs::write(home.join("resolv.conf"), resolv_conf.unwrap_or_default()).unwrap();
    let resolv_conf = if resolv_conf.is_some() { "cp \"$2/resolv.conf\" \"$1\"" } else { "true" };
    let mounts = format!(
        "cp -a /etc/. \"$1\" && rm -f \"$1/resolv.conf\" \"$1/hosts\" && {resolv_conf} && cp \"$2/hosts\" \"$1\" && \
         mount --bind \"$1\" /etc && shift 2 && exec \"$@\""
    );
    let mut program = Command::new("unshare");
    program.args(["--mount", "sh", "-c", &mounts, "sh"]).arg(&etc).arg(home);
    Daemon::started_by(program, kind, config)
}

/// The same address, of which the host is a name.
fn named(name: &str, address: SocketAddr) -> String {
    format!("{name}.localhost:{}", address.port())
}

/// A system whose parts know each other by name: the agent, and what it needs. The gateway's store is behind a router, which
/// ends connections that ask about its settings, and the issuer's database is a server.
struct System {
    agent: Daemon,
    gateway: Daemon,
    issuer: Daemon,
    _store: (Router, Memcached),
    _database: Postgres,
    home: TempDir,
}

impl System {
    async fn start(resolv_conf: &str) -> Self {
        let (home, memcached, database) = (TempDir::new().unwrap(), Memcached::start(), Postgres::start(&[]));
        let router = Router::twemproxy(home.path(), std::slice::from_ref(&memcached));
        let config = issuer_in(&database, home.path(), "issuer", "");
        edit(&config, "@127.0.0.1:", "@localhost:");
        apply(&config, &declared("agent", "the-agents-key", "1000/1d")).assert_stopped();
        let issuer = started("issuer", &config, Some(resolv_conf), "");
        let config =
            gateway_config(home.path(), &format!("http://{}", named("issuer", issuer.address)), "", "1s", "");
        with_memcacheds(&config, &[format!("store.localhost:{}", router.port())]);
        let gateway = started("gateway", &config, Some(resolv_conf), "");
        let urls = [("gateway", gateway.address), ("issuer", issuer.address)]
            .map(|(name, address)| format!("http://{}", named(name, address)));
        let config = client_config(home.path(), &urls[0], &urls[1], None);
        edit(&config, "[wallet]", "api_key = \"the-agents-key\"\n[wallet]");
        let agent = started("client", &config, Some(resolv_conf), "");
        let (store, database) = ((router, memcached), database);
        let system = Self { agent, gateway, issuer, _store: store, _database: database, home };
        system.until_ready().await;
        system
    }

    async fn until_ready(&self) {
        self.issuer.until_ready("issuer").await;
        self.gateway.until_ready("gateway").await;
        self.agent.until_ready("agent").await;
    }
}

/// The system's resolver waits for a name server that is down, each time, longer than an attempt to connect may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root, for port 53 and mounts"]
async fn everything_is_reached_by_name_while_the_first_of_two_name_servers_is_down() {
    let (answers, echo) = (Arc::new(AtomicBool::new(true)), target::echo().await);
    let down = NameServer::start((Ipv4Addr::new(127, 53, 0, 1), 53), |_, _| Does::Drop);
    let is_up = Arc::clone(&answers);
    let up = NameServer::start((Ipv4Addr::new(127, 53, 0, 2), 53), move |name, family| {
        if is_up.load(SeqCst) { answer_both(name, family) } else { Does::Drop }
    });
    let servers = [&down, &up].map(|server| format!("nameserver {}\n", server.address.ip())).concat();
    // As without a word, but for the second attempt.
    let system = System::start(&(servers + "options timeout:5 attempts:1\n")).await;
    let target = |name: &str| format!("{name}.test:{}", echo.port());
    assert_eq!(opened(system.agent.address, &target("one"), None).await.0, 200);
    assert!(!down.asked().is_empty() && !up.asked().is_empty());

    // Another way to the store is proven before the present one is given up.
    let config = system.home.path().join("gateway.toml");
    edit(&config, "memcached.addresses", "memcached.timeout = \"200ms\"\nmemcached.addresses");
    system.gateway.reread("is in force from now on");

    // Neither answers: a request for a new name is refused, and nothing hangs. When one is back, so are the tunnels.
    answers.store(false, SeqCst);
    let (refused, _) = opened(system.agent.address, &target("two"), None).await;
    assert!(matches!(refused, 502..=504), "{refused}");
    answers.store(true, SeqCst);
    eventually("there are tunnels again", || async {
        (opened(system.agent.address, &target("three"), None).await.0 == 200).then_some(())
    })
    .await;
    system.until_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root, for port 53 and mounts"]
async fn everything_is_reached_by_name_while_one_family_is_not_answered() {
    let echo = target::echo().await;
    for (host, silent) in [(3, Family::V6), (4, Family::V4)] {
        let server = NameServer::start((Ipv4Addr::new(127, 53, 0, host), 53), move |name, family| {
            if family == silent { Does::Drop } else { answer_both(name, family) }
        });
        let system = System::start(&format!("nameserver {}\n", server.address.ip())).await;
        for name in ["one", "two"] {
            let (status, took) =
                opened(system.agent.address, &format!("{name}.test:{}", echo.port()), None).await;
            assert!(status == 200 && took < LATE, "{silent:?}: {status} {took:?}");
        }
        let gateway = "gateway.localhost".to_owned();
        assert!(server.asked().contains(&(gateway, silent)), "{silent:?}: {:?}", server.asked());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root, for port 53 and mounts"]
async fn a_gateway_starts_whatever_resolv_conf_says_and_serves_what_it_can() {
    const HOSTS: &str = "127.0.0.1 localhost my_app my_bucket.s3.example\n";
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let server = NameServer::start((Ipv4Addr::new(127, 53, 0, 5), 53), answer_both);
    let ours = format!("nameserver {}\n", server.address.ip());
    for (row, (text, status)) in [
        (None, 502),
        (Some(String::new()), 502),
        (Some("# Generated by NetworkManager\n".to_owned()), 502),
        (Some("search example.com\n".to_owned()), 502),
        (Some(format!("search .domain\n{ours}")), 200),
        (Some(format!("\u{feff}{ours}")), 200),
        (Some(format!("options timeout:0 attempts:0\n{ours}")), 200),
        (Some(format!("options no-aaaa\n{ours}")), 200),
    ]
    .into_iter()
    .enumerate()
    {
        let home = home.path().join(row.to_string());
        std::fs::create_dir(&home).unwrap();
        let config = gateway_config(&home, &issuer.http(), "", "1s", "");
        let gateway = started("gateway", &config, text.as_deref(), HOSTS);
        gateway.until_ready("gateway").await;
        let before = server.asked().len();
        for ((host, expected), token) in
            [("127.0.0.1", 200), ("my_app", 200), ("my_bucket.s3.example", 200), ("other_app.test", status)]
                .into_iter()
                .zip(mint(&issuer.http(), &gateway.http(), 4))
        {
            let opened = opened(gateway.address, &format!("{host}:{}", echo.port()), Some(&token)).await;
            assert_eq!(opened.0, expected, "{text:?}: {host}");
        }
        let asked = &server.asked()[before..];
        let asks_v6 = asked.contains(&("other_app.test".to_owned(), Family::V6));
        let is_without_v6 = text.as_ref().is_some_and(|text| text.contains("no-aaaa"));
        assert_eq!(asks_v6, status == 200 && !is_without_v6, "{text:?}: {asked:?}");
        assert!(admin::get(gateway.admin, "/readyz").await.is_some_and(|(status, _)| status == 200));
        let (_, log) = gateway.process.written();
        let warnings = log.matches("no name server in /etc/resolv.conf").count();
        assert_eq!(warnings, usize::from(status == 502), "{text:?}: {log}");
    }
}

/// As a laptop that moves to another network, or a container whose network is changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root, for port 53 and mounts"]
async fn a_gateway_follows_changes_of_resolv_conf_and_of_the_hosts_file() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let [first, second] =
        [6, 7].map(|host| NameServer::start((Ipv4Addr::new(127, 53, 0, host), 53), answer_both));
    let conf = |server: &NameServer| format!("nameserver {}\n", server.address.ip());
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = started("gateway", &config, Some(&conf(&first)), "127.0.0.1 localhost\n");
    gateway.until_ready("gateway").await;
    let mut tokens = mint(&issuer.http(), &gateway.http(), 4);
    let mut opens = async |name: &str| {
        let target = format!("{name}:{}", echo.port());
        assert_eq!(opened(gateway.address, &target, tokens.pop().as_deref()).await.0, 200, "{name}");
    };
    opens("one.test").await;
    let etc = home.path().join("etc-gateway");
    std::fs::write(etc.join("resolv.conf"), conf(&second)).unwrap();
    std::fs::write(etc.join("hosts"), "127.0.0.1 localhost my_app\n").unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for name in ["two.test", "my_app", "three.test"] {
        opens(name).await;
    }
    let asked =
        |server: &NameServer| server.asked().into_iter().map(|(name, _)| name).collect::<HashSet<_>>();
    assert_eq!(asked(&first), HashSet::from(["one.test".to_owned()]));
    assert_eq!(asked(&second), HashSet::from(["two.test", "three.test"].map(str::to_owned)));
}
