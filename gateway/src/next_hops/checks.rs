//! Periodic checks that each URL of the next hops accepts connections and speaks its protocol, so that tunnels are not the first
//! to notice a failure. The results also determine readiness and metrics.

use super::reach::{Dialler, Leg, sharing};
use super::{Member, NO_METHOD, NextHop, NextHops, WRONG_PASSWORD};
use crate::config::{Egress, HopKind};
use crate::gate::{Condition, LoggedGate, Reason};
use crate::health::plural;
use crate::observe::catalogue::{NEXT_HOP_FAILURES, NEXT_HOP_TUNNELS, NEXT_HOP_UP};
use crate::request::egress::Policy;
use crate::request::hops::{CDN_LOOP, Pseudonym};
use crate::request::resolve::{CurrentResolver, Resolver};
use crate::settings::Settings;
use crate::state::Core;
use http::StatusCode;
use metrics::{counter, gauge};
use postern_daemon::drain::Shutdown;
use postern_daemon::examination::{Examinations, Finding, PATIENCE, written};
use postern_daemon::tls::{self, OwnCertificate};
use postern_proxy::target::{Host, Transport};
use postern_proxy::tunnel::{Connect, Joined, Lines, ask};
use postern_telemetry::catalogue::ADDRESS;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

/// Interval at which due checks are started.
const TICK: Duration = Duration::from_millis(250);
/// Interval at which changed certificate files are read again.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit of the tunnel that detects a circle of next hops.
const CIRCLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Target of that tunnel; it does not exist (RFC 6761, section 6.2). Names below "invalid" go through no next hop.
const NOWHERE: &str = "loop.test:443";

pub(crate) struct Checks {
    core: Arc<Core>,
    resolver: Arc<CurrentResolver>,
    gate: LoggedGate,
    published: HashSet<String>,
}

impl Checks {
    pub(crate) fn new(core: Arc<Core>, resolver: CurrentResolver, gate: LoggedGate) -> Self {
        Self { core, resolver: Arc::new(resolver), gate, published: HashSet::new() }
    }

    pub(crate) async fn run(mut self) {
        let (mut ticks, mut looks) = (interval(TICK), interval(CERTIFICATE_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.tick(),
                _ = looks.tick() => self.read_certificates(),
            }
        }
    }

    fn tick(&mut self) {
        let policy = Arc::clone(&self.core.generation.load().settings.policy);
        let now = Instant::now();
        for hop in &policy.next_hops.0 {
            for member in &hop.members {
                if member.health.lock().begin_check(hop.config.check_every.get(), now) {
                    let (core, resolver) = (Arc::clone(&self.core), Arc::clone(&self.resolver));
                    tokio::spawn(check(core, resolver, Arc::clone(hop), Arc::clone(member)));
                }
            }
        }
        self.publish(&policy.next_hops);
        self.gate.set(condition(&policy));
    }

    fn publish(&mut self, hops: &NextHops) {
        let mut addresses: BTreeMap<&str, (bool, usize)> = BTreeMap::new(); // next hops may share a URL
        for member in hops.0.iter().flat_map(|hop| &hop.members) {
            let (is_up, tunnels) = addresses.entry(&member.url.text).or_insert((true, 0));
            *is_up &= member.down().is_none();
            *tunnels += member.tunnels.load(Ordering::Relaxed);
        }
        let published = addresses.keys().map(|address| (*address).to_owned()).collect();
        let before = std::mem::replace(&mut self.published, published);
        for (address, (is_up, tunnels)) in addresses {
            gauge!(NEXT_HOP_UP, ADDRESS.name => address.to_owned()).set(if is_up { 1.0 } else { 0.0 });
            gauge!(NEXT_HOP_TUNNELS, ADDRESS.name => address.to_owned()).set(tunnels as f64);
            counter!(NEXT_HOP_FAILURES, ADDRESS.name => address.to_owned()).increment(0); // so that it is there
        }
        // A reload removed these URLs: they are neither up nor down.
        for gone in before.difference(&self.published) {
            gauge!(NEXT_HOP_UP, ADDRESS.name => gone.clone()).set(f64::NAN);
            gauge!(NEXT_HOP_TUNNELS, ADDRESS.name => gone.clone()).set(0.0);
        }
    }

    fn read_certificates(&self) {
        for hop in &self.core.generation.load().settings.policy.next_hops.0 {
            let own = hop.members.iter().find_map(|member| member.tls.as_ref()?.own.as_ref());
            own.into_iter().for_each(OwnCertificate::read_if_changed);
        }
    }
}

/// Returns the readiness of all next hops.
fn condition(policy: &Policy) -> Condition {
    let of_all = policy.via_of_all();
    if let Some(reason) = of_all.and_then(|hop| hop.outage(Transport::Tcp)) {
        return Condition::NotReady(format!(
            "the next hop that all tunnels go through (egress.via) is away, so every request is refused with 503, and no token is \
             read: {reason}"
        ));
    }
    if of_all.is_some_and(|hop| hop.leads_in_a_circle(Transport::Tcp)) {
        return Condition::NotReady(
            "the next hop that all tunnels go through (egress.via) leads in a circle: a tunnel through it comes back to a gateway that it \
             has passed, so every request is refused with 508, and no token is read. Change [[egress.next_hops]], or the rules that use \
             them, at one of the gateways"
                .to_owned(),
        );
    }
    let mut found = Vec::new();
    for hop in &policy.next_hops.0 {
        let name = &hop.config.name;
        found.extend(hop.members.iter().find(|member| member.is_loop()).map(|member| {
            let text = format!(
                "the next hop \"{name}\" leads in a circle: {} refused a tunnel that would come back to a gateway that it had passed (508). \
                 Change [[egress.next_hops]], or the rules that use them, at one of the gateways",
                member.url
            );
            Reason::new(format!("{name}: circle"), text)
        }));
        let down: Vec<_> = hop.members.iter().filter_map(|member| Some((member, member.down()?))).collect();
        let Some((member, reason)) = down.first() else { continue };
        let url = &member.url;
        let (kind, text) = if down.len() == hop.members.len() {
            (
                "away",
                format!(
                    "the next hop \"{name}\" is away, and tunnels through it are refused with 502: {url}: {reason}"
                ),
            )
        } else {
            let of = plural(hop.members.len(), "URL");
            (
                "in part",
                format!("{} of {of} of the next hop \"{name}\" cannot be used: {url}: {reason}", down.len()),
            )
        };
        found.push(Reason::new(format!("{name}: {kind}"), text));
    }
    Condition::of(found)
}

async fn check(core: Arc<Core>, resolver: Arc<CurrentResolver>, hop: Arc<NextHop>, member: Arc<Member>) {
    let Settings { resolver: settings, policy, .. } = &core.generation.load_full().settings;
    let resolver = resolver.of(settings);
    let dialler = Dialler { resolver: &resolver, sources: policy.source_of_all(), turn: policy.turn() };
    // A new connection: a shared one may work while the next hop accepts no new one.
    let lines = Lines::new(sharing(&hop, core.shutdown.clone()));
    let leg = Leg { hop: &hop, member: &member, dialler, lines: &lines };
    match answers(leg).await {
        Ok(()) => {
            if member.may_lead_in_a_circle() {
                let own = core.pseudonym.first();
                // Gateways in a circle are those that may be too slow to answer: without an answer the last one stands.
                if let Some(comes_back) = comes_back(leg, &own).await {
                    member.health.lock().is_in_circle = comes_back;
                }
            }
            member.checked();
        }
        Err(reason) => member.found(&reason, true),
    }
}

/// Checks that a URL accepts connections and speaks its protocol; returns the reason if not. Does not examine the credentials for
/// HTTP proxies.
async fn answers(leg: Leg<'_>) -> Result<(), String> {
    let Leg { hop, member, .. } = leg;
    let deadline = Instant::now() + hop.config.connect_timeout.get();
    let checking = async {
        match leg.reach(deadline).await? {
            Joined::Shared(_) => return Ok(()), // a ping was answered
            Joined::Alone(io, _) if member.url.kind == HopKind::Socks5 => {
                speaks_socks(io, hop.config.credentials()).await
            }
            Joined::Alone(io, _) => speaks_http(io, member).await,
        }
        .map_err(|error| format!("it takes connections, and gives no usable answer: {error}"))
    };
    let late = || Err("it took no connection, or gave no answer, in time".to_owned());
    timeout_at(deadline, checking).await.unwrap_or_else(|_| late())
}

/// Sends a request that asks for nothing, to which any proxy has an answer.
async fn speaks_http(mut io: impl AsyncRead + AsyncWrite + Unpin, member: &Member) -> io::Result<()> {
    let at = member.url.at.authority();
    io.write_all(format!("OPTIONS * HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    io.flush().await?;
    let mut begin = [0; 5];
    io.read_exact(&mut begin).await?;
    if begin == *b"HTTP/" { Ok(()) } else { Err(io::Error::other("its answer is not HTTP")) }
}

/// Performs the method negotiation of RFC 1928, section 3, with the method that a tunnel uses, and authenticates (RFC 1929).
async fn speaks_socks(
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    credentials: Option<(&str, &str)>,
) -> io::Result<()> {
    let methods: &[u8] = if credentials.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
    io.write_all(methods).await?;
    let mut reply = [0; 2];
    io.read_exact(&mut reply).await?;
    match (reply, credentials) {
        ([5, 0], _) => return Ok(()),
        ([5, 2], Some((user, password))) => {
            let of_length = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
            io.write_all(&[vec![1], of_length(user), of_length(password)].concat()).await?;
        }
        ([5, _], _) => return Err(io::Error::other(NO_METHOD)),
        _ => return Err(io::Error::other("its answer is not SOCKS5")),
    }
    io.read_exact(&mut reply).await?;
    if reply[1] == 0 { Ok(()) } else { Err(io::Error::other(WRONG_PASSWORD)) }
}

/// Asks for a tunnel, and returns `true` if it comes back to a gateway that it has passed; `None` without an answer.
async fn comes_back(leg: Leg<'_>, own: &str) -> Option<bool> {
    let connect = Connect { authority: NOWHERE, udp: None, authorization: None, more: Some((CDN_LOOP, own)) };
    let deadline = Instant::now() + CIRCLE_TIMEOUT;
    let asking = async {
        let head = match leg.reach(deadline).await.ok()? {
            Joined::Shared(seat) => seat.connect(&connect).await.ok()?.0,
            Joined::Alone(io, received) => ask(io, received, &connect).await.ok()?.head,
        };
        Some(head.status == StatusCode::LOOP_DETECTED)
    };
    timeout_at(deadline, asking).await.ok().flatten()
}

/// Begins the checks of each URL that a running gateway makes, for an operator.
pub(crate) fn examine(egress: &Egress, examinations: &mut Examinations) {
    let Ok(policy) = Policy::new(egress).map(Arc::new) else { return };
    for hop in &policy.next_hops.0 {
        for member in &hop.members {
            let away = away(hop, member);
            let late = Finding {
                seen: format!("{}: no answer within {} s", away.seen, PATIENCE.as_secs()),
                ..away.clone()
            };
            let (policy, settings) = (Arc::clone(&policy), egress.resolver.clone());
            let (hop, member) = (Arc::clone(hop), Arc::clone(member));
            begin_certificate(&member, examinations);
            examinations.begin(late, async move {
                // Made here, because the resolver's background tasks live on this runtime.
                let resolver = match Resolver::new(&settings) {
                    Ok(resolver) => resolver,
                    Err(error) => return vec![Finding { seen: format!("{}: {error}", away.seen), ..away }],
                };
                let dialler =
                    Dialler { resolver: &resolver, sources: policy.source_of_all(), turn: policy.turn() };
                let (began, own) = (Instant::now(), Pseudonym::random().first());
                let lines = Lines::new(sharing(&hop, Shutdown::new()));
                let leg = Leg { hop: &hop, member: &member, dialler, lines: &lines };
                let found = match answers(leg).await {
                    Ok(()) if member.demands_certificate() && comes_back(leg, &own).await == Some(true) => {
                        circle(&hop, &member)
                    }
                    Ok(()) => Finding::well(
                        "next hop",
                        format!("{} answers in {}", member.url, written(began.elapsed())),
                    ),
                    Err(reason) => Finding { seen: format!("{}: {reason}", away.seen), ..away },
                };
                vec![found]
            });
        }
    }
}

fn away(hop: &NextHop, member: &Member) -> Finding {
    let name = &hop.config.name;
    let cost = match hop.members.len() {
        1 => "tunnels through it are refused, with 502, or with 503 where all go through it",
        _ => {
            "tunnels go to its other URLs; while none answers, those through it are refused with 502, or 503 where all go through it"
        }
    };
    Finding::bad(
        "next hop",
        format!("the next hop \"{name}\" cannot be used at {}", member.url),
        cost,
        "check that the proxy runs, and its URL and credentials in [[egress.next_hops]]",
    )
}

fn circle(hop: &NextHop, member: &Member) -> Finding {
    let (name, url) = (&hop.config.name, &member.url);
    let seen = format!(
        "the next hop \"{name}\" leads in a circle: from {url} a tunnel comes back to a gateway that it has passed"
    );
    Finding::bad(
        "next hop",
        seen,
        "tunnels that go round are refused with 508; unless all go through it (egress.via), one token a minute is lost for each target",
        "change [[egress.next_hops]], or the rules that use them, at one of the gateways",
    )
}

fn begin_certificate(member: &Member, examinations: &mut Examinations) {
    let Some(hop_tls) = &member.tls else { return };
    let host = match member.url.at.host() {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    };
    tls::begin_shown(examinations, (&host, member.url.at.port()), &host, hop_tls.config.clone());
}
