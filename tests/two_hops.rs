//! Agent, first hop, second hop, target: each gateway of another party, with its own issuer and tokens.

use crate::support::admin::{self, Metrics};
use crate::support::association::{self, Program};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::needles::Needles;
use crate::support::proxy::{self, Head};
use crate::support::tls::Authority;
use crate::support::up::{Ports, Up, up};
use crate::support::{eventually, target, tokens};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, io};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// An issuer and a gateway of one operator.
struct Party {
    issuer: Daemon,
    gateway: Daemon,
    home: TempDir,
}

impl Party {
    /// One whose gateway has these lines in `[listen]` and at its end.
    async fn new(authority: &Authority, listen: &str, more: &str) -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let more = authority.section() + more;
        let config = gateway_config(home.path(), &issuer.http(), "", "1s", &more);
        let text = fs::read_to_string(&config).unwrap();
        let text = text.replacen("workers = 8", listen, 1);
        fs::write(&config, text.replacen("[egress]", "[egress]\nudp = \"any\"", 1)).unwrap();
        let gateway = Daemon::ready("gateway", &config).await;
        Self { issuer, gateway, home }
    }

    /// Starts one more gateway of this operator, with its own store.
    async fn another_gateway(&self, name: &str, authority: &Authority) -> Daemon {
        let home = self.home.path().join(name);
        fs::create_dir(&home).unwrap();
        let config = gateway_config(&home, &self.issuer.http(), "", "1s", &authority.section());
        Daemon::ready("gateway", &config).await
    }

    async fn opened(&self) -> u64 {
        Metrics::of(self.gateway.admin).await.requests("opened")
    }
}

struct Stage {
    home: TempDir,
    authority: Authority,
    first: Party,
    second: Party,
}

impl Stage {
    async fn start() -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let first = Party::new(&authority, "", "").await;
        let second = Party::new(&authority, "", "").await;
        Self { home, authority, first, second }
    }

    /// An agent with new wallets that knows the gateways under these addresses, with lines for each of them.
    fn agent(&self, first: (&str, &str), second: (&str, &str)) -> Daemon {
        let wallets = TempDir::new_in(self.home.path()).unwrap().keep();
        let (first_issuer, issuer) = (self.first.issuer.http(), self.second.issuer.http());
        let config = client_config(&wallets, second.0, &issuer, Some(&self.authority.ca));
        let mut text = fs::read_to_string(&config).unwrap();
        text = text.replacen("[gateway]", &format!("[gateway]\n{}", second.1), 1);
        let (ca, wallet) = (&self.authority.ca, wallets.join("first"));
        write!(
            text,
            "[first_hop.gateway]\nurl = [\"{}\"]\nca = {ca:?}\n{}\n[first_hop.issuer]\nurl = {first_issuer:?}\n\
             [first_hop.wallet]\npath = {wallet:?}\n",
            first.0, first.1
        )
        .unwrap();
        fs::write(&config, text).unwrap();
        Daemon::start("client", &config)
    }
}

/// An agent's deadline for a drain, unless it is set.
const DRAIN: Duration = Duration::from_secs(30);

/// A tunnel that carries some bytes both ways, or the refusal.
async fn connect(agent: SocketAddr, target: &str) -> Head {
    carry(agent, target, 10_000).await
}

/// The same with this number of bytes.
async fn carry(agent: SocketAddr, target: &str, bytes: usize) -> Head {
    let mut stream = proxy::dial(agent).await.unwrap();
    let head = proxy::connect(&mut stream, target, None).await.unwrap();
    if head.status == 200 {
        proxy::echoes(&mut stream, &vec![7; bytes]).await.unwrap();
    }
    head
}

async fn is_ready(daemon: &Daemon) {
    eventually("the agent is ready", || async {
        admin::get(daemon.admin, "/readyz").await.filter(|(status, _)| *status == 200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hop_has_a_token_for_each_of_its_tunnels() {
    const TUNNELS: u64 = 6;
    let (stage, echo) = (Stage::start().await, target::echo().await);
    let (first, second) = (stage.first.gateway.https(), stage.second.gateway.https());
    let alone = "tunnels = 1\n";
    // On a connection that the second hop's tunnels share, one token of the first hop's serves them all.
    for (of_first, of_second, ways) in
        [("", "", 0), (alone, "", 0), ("", alone, TUNNELS), (alone, alone, TUNNELS)]
    {
        let case = format!("first: {of_first:?}, second: {of_second:?}");
        let before = (stage.first.opened().await, stage.second.opened().await);
        let agent = stage.agent((&first, of_first), (&second, of_second));
        is_ready(&agent).await;
        let challenge = stage.first.opened().await - before.0; // the second hop's came through the first
        let mut tunnels = JoinSet::new();
        for _ in 0..TUNNELS {
            let (agent, echo) = (agent.address, echo.to_string());
            tunnels.spawn(async move { carry(agent, &echo, 300_000).await });
        }
        let heads = tunnels.join_all().await;
        assert!(heads.iter().all(|head| head.status == 200), "{case}: {heads:?}");
        let opened = (stage.first.opened().await - before.0, stage.second.opened().await - before.1);
        assert_eq!(opened, (challenge + ways, TUNNELS), "{case}");
        let metrics = Metrics::of(agent.admin).await;
        let paid =
            |hop| metrics.value(&format!("postern_agent_tokens_total{{fate=\"opened\",hop=\"{hop}\"}}"));
        assert_eq!((paid("first"), paid("last")), opened, "{case}");
        let began = Instant::now();
        agent.process.terminate().assert_stopped();
        assert!(began.elapsed() < DRAIN, "{case}: without a tunnel there is nothing to wait for");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_of_udp_costs_one_token_of_the_second_hop() {
    let (stage, target) = (Stage::start().await, association::echo().await);
    let agent = stage.agent((&stage.first.gateway.https(), ""), (&stage.second.gateway.https(), ""));
    is_ready(&agent).await;
    let mut program = Program::of(agent.address).await;
    for size in [4, 1200, 9000] {
        program.echo(&association::v4(target), size).await;
    }
    assert_eq!(stage.second.opened().await, 1);
    assert!(stage.first.opened().await > 0, "the connection to the second hop cost a token of the first");
    assert_eq!(Metrics::of(stage.first.gateway.admin).await.value("postern_udp_tunnels_open"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_which_hop_it_is_from() {
    let stage = Stage::start().await;
    // With a connection for each tunnel, so that each request opens one through the first hop.
    let agent =
        stage.agent((&stage.first.gateway.https(), ""), (&stage.second.gateway.https(), "tunnels = 1\n"));
    is_ready(&agent).await;
    let refused = connect(agent.address, "nowhere.invalid:443").await;
    assert_eq!(refused.status, 502, "{refused:?}");
    assert!(refused.fields.contains("postern; error=dns_error"), "the second hop's own words: {refused:?}");

    // Each cause in turn, with the wallets as they are.
    let until = async |sentence: &str| {
        let refused = eventually(sentence, || async {
            let refused = connect(agent.address, "127.0.0.1:1").await;
            refused.fields.contains(sentence).then_some(refused)
        });
        refused.await
    };
    let (first, second) = (&stage.first.gateway, &stage.second.gateway);
    let config = stage.first.home.path().join("gateway.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replacen("[egress]", "[egress]\ndeny = [\"127.0.0.0/8\"]", 1)).unwrap();
    first.process.signal("HUP");
    let refused = until("the first hop answered 403").await;
    assert!(refused.status == 502 && refused.fields.contains(&second.https()), "{refused:?}");

    fs::write(&config, text).unwrap();
    first.process.signal("HUP");
    second.process.signal("KILL");
    let refused = until("the first hop answered 502").await;
    assert!(refused.fields.contains(&second.https()), "{refused:?}");

    first.process.signal("KILL");
    let refused = until("the first hop opens no way to the second").await;
    assert!(refused.fields.contains(&first.https()), "{refused:?}");
    let metrics = Metrics::of(agent.admin).await;
    let lost = metrics.value("postern_agent_tokens_total{fate=\"unanswered\",hop=\"last\"}");
    assert!(lost <= 1, "{lost} tokens were sent to a second hop that was gone");
}

/// A connection to the second hop is only as good as the one that carries it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_hop_that_drains_gets_no_more_tunnels_and_keeps_those_it_has() {
    let (stage, echo) = (Stage::start().await, target::echo().await.to_string());
    let successor = stage.first.another_gateway("successor", &stage.authority).await;
    let urls = format!("{}\", \"{}", stage.first.gateway.https(), successor.https());
    let agent = stage.agent((&urls, ""), (&stage.second.gateway.https(), ""));
    is_ready(&agent).await;
    let mut tunnel = proxy::dial(agent.address).await.unwrap();
    assert_eq!(proxy::connect(&mut tunnel, &echo, None).await.unwrap().status, 200);
    stage.first.gateway.process.signal("TERM");
    eventually("tunnels lead through the successor", || async {
        assert_eq!(connect(agent.address, &echo).await.status, 200);
        (Metrics::of(successor.admin).await.requests("opened") > 0).then_some(())
    })
    .await;
    proxy::echoes(&mut tunnel, b"through the one that drains").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hops_can_be_tried_with_one_command() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await);
    let mut command = up(&home.path().join("data"), Ports::any());
    command.args(["--open-egress", "--two-hops", "--first-hop", "127.0.0.1:0"]);
    let system = Up::of(command);
    let first = system.process.wait_for_address("    first    ");
    assert_eq!(connect(system.ports.client, &echo.to_string()).await.status, 200);
    let metrics = Metrics::of(system.ports.admin).await;
    for hop in ["first", "last"] {
        let opened = format!("postern_agent_tokens_total{{fate=\"opened\",hop=\"{hop}\"}}");
        assert_eq!(metrics.value(&opened), 1, "{hop}");
    }
    // A daemon is on the page from its first second's end on.
    eventually("the page has a section for each hop, at the agent and at its gateway", || async {
        let page: serde_json::Value =
            serde_json::from_str(&admin::page(system.ports.admin, "/live.json").await).unwrap();
        let shown = page["sections"].as_array().unwrap();
        let has = |section: &&str| shown.iter().any(|shown| shown["id"] == **section);
        ["checks", "first-hop-checks", "agent", "first-hop"].iter().all(has).then_some(())
    })
    .await;
    let mut stream = proxy::dial(first).await.unwrap();
    let refused = proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap();
    assert_eq!(refused.status, 403, "it opens tunnels to the second hop alone: {refused:?}");
    system.terminate().assert_stopped();
}

/// With everything in the logs that an operator can switch on. The first hop knows the client, the second the target, and what
/// passes between them holds neither a target nor a token in the clear.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_hop_knows_who_and_where() {
    const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 66, 55, 44);
    const TARGET: Ipv4Addr = Ipv4Addr::new(127, 77, 88, 99);
    const NAME: &str = "hidden-target-7f3a.localhost";
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let knows = "[log]\naccess = \"full\"\n";
    let first = Party::new(&authority, "proxy_protocol = [\"127.0.0.1/32\"]", knows).await;
    let second = Party::new(&authority, "", knows).await;
    let stage = Stage { home, authority, first, second };
    let (far, near) = (target::echo_at(TARGET).await, target::echo().await);

    let header = format!("PROXY TCP4 {CLIENT} 127.0.0.1 4444 443\r\n");
    let to_first = Recorder::to(stage.first.gateway.address, header.as_bytes()).await;
    let between = Recorder::to(stage.second.gateway.address, b"").await;
    let (first_url, second_url) = (to_first.https(), between.https());
    let agent = stage.agent((&first_url, ""), (&second_url, ""));
    is_ready(&agent).await;
    let wallets = fs::read_dir(stage.home.path()).unwrap().map(|entry| entry.unwrap().path());
    let wallets = wallets.filter(|path| path.is_dir()).collect::<Vec<_>>();
    let held =
        |name: &str| wallets.iter().flat_map(|path| tokens::in_wallet(&path.join(name))).collect::<Vec<_>>();
    let (firsts, seconds) = (held("first"), held("wallet"));
    assert!(!firsts.is_empty() && !seconds.is_empty());
    for target in [far.to_string(), format!("{NAME}:{}", near.port()), format!("{NAME}:1")] {
        connect(agent.address, &target).await;
    }
    let mut outputs = Vec::new();
    for party in [&stage.first, &stage.second] {
        let mut output = Vec::new();
        for path in ["/metrics", "/live.json", "/status.json", "/readyz"] {
            output.extend(admin::page(party.gateway.admin, path).await.into_bytes());
        }
        outputs.push(output);
    }
    agent.process.terminate().assert_stopped();
    let Stage { first, second, .. } = stage;
    for (party, output) in [first, second].into_iter().zip(&mut outputs) {
        let ended = party.gateway.process.terminate();
        output.extend([ended.stdout, ended.stderr].concat().into_bytes());
    }
    let [first, second] = outputs.try_into().unwrap();

    let mut who = Needles::default();
    who.address("the client's address", CLIENT);
    let mut place = Needles::default();
    place.address("the target's address", TARGET);
    place.text("the target's name", NAME);
    let mut paid = Needles::default();
    for token in &seconds {
        paid.secret("a token of the second hop", &token.nonce().0);
    }
    assert_ne!(who.search(&first), Vec::<String>::new(), "the first hop serves this client");
    assert_ne!(place.search(&second), Vec::<String>::new(), "the second hop opens these tunnels");
    assert_eq!(who.search(&second), Vec::<String>::new());
    let passed = between.bytes();
    assert!(passed.len() > 40_000, "{} bytes passed between the hops", passed.len());
    for (what, seen) in [("the first hop's outputs", &first), ("what passes the first hop", &passed)] {
        assert_eq!(place.search(seen), Vec::<String>::new(), "{what}");
        assert_eq!(paid.search(seen), Vec::<String>::new(), "{what}");
    }
    assert_eq!(who.search(&passed), Vec::<String>::new(), "what the second hop gets");
}

/// A relay that keeps what passes it.
struct Recorder {
    address: SocketAddr,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    /// Starts a relay that sends `header` ahead on each connection.
    async fn to(server: SocketAddr, header: &[u8]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (address, bytes) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let (kept, header) = (Arc::clone(&bytes), header.to_vec());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (kept, header) = (Arc::clone(&kept), header.clone());
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await?;
                    far.write_all(&header).await?;
                    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                    let there = tokio::spawn(pass(from_near, to_far, Arc::clone(&kept)));
                    pass(from_far, to_near, kept).await?;
                    there.await?
                });
            }
        });
        Self { address, bytes }
    }

    fn https(&self) -> String {
        format!("https://{}", self.address)
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, kept: Arc<Mutex<Vec<u8>>>) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        kept.lock().unwrap().extend(&buffer[..read]);
        to.write_all(&buffer[..read]).await?;
    }
}
