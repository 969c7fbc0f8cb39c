//! Checks of the next hops by themselves: whether each URL takes connections and speaks its protocol, so that tunnels are not
//! the first to find out. Their results are readiness and metrics, too.

use super::connections::sharing;
use super::reach::{Dialler, Reached, reach};
use super::{Member, NextHop, NextHops};
use crate::config::HopKind;
use crate::gate::{Condition, LoggedGate};
use crate::health::plural;
use crate::next_hops::health::Finder;
use crate::observe::catalogue::{NEXT_HOP_FAILURES, NEXT_HOP_TUNNELS, NEXT_HOP_UP};
use crate::request::hops::{CDN_LOOP, Hops};
use crate::request::resolve::CurrentResolver;
use crate::state::Core;
use http::StatusCode;
use metrics::{counter, gauge};
use postern_proxy::tunnel::{Connect, Lines, Received, ask};
use postern_telemetry::catalogue::ADDRESS;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

/// How often it is decided which checks are due.
const TICK: Duration = Duration::from_millis(250);
/// How often certificates are read again if their files have changed.
const LOOKS: Duration = Duration::from_secs(60);
/// How long a tunnel may take that shows whether next hops lead in a circle.
const ROUND: Duration = Duration::from_secs(2);
/// Its target, which there is not (RFC 6761, section 6.2). Names below "invalid" go through no next hop.
const NOWHERE: &str = "loop.test:443";

/// The checks of a gateway's next hops.
pub(crate) struct Checks {
    core: Arc<Core>,
    resolver: Arc<CurrentResolver>,
    gate: LoggedGate,
    /// Of which there are metrics.
    published: HashSet<String>,
}

impl Checks {
    pub(crate) fn new(core: Arc<Core>, resolver: CurrentResolver, gate: LoggedGate) -> Self {
        Self { core, resolver: Arc::new(resolver), gate, published: HashSet::new() }
    }

    /// Goes on until it is dropped.
    pub(crate) async fn run(mut self) {
        let (mut ticks, mut looks) = (interval(TICK), interval(LOOKS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.tick(),
                _ = looks.tick() => self.read_certificates(),
            }
        }
    }

    fn tick(&mut self) {
        let policy = self.core.settings.policy.load();
        let now = Instant::now();
        for hop in policy.next_hops().iter() {
            for member in &hop.members {
                if member.begin_check(hop.config.check_every.get(), now) {
                    let (core, resolver) = (Arc::clone(&self.core), Arc::clone(&self.resolver));
                    tokio::spawn(check(core, resolver, Arc::clone(hop), Arc::clone(member)));
                }
            }
        }
        self.publish(policy.next_hops());
        let of_all = policy.via_of_all();
        let (outage, is_circle) =
            (of_all.and_then(|hop| hop.outage()), of_all.is_some_and(|hop| hop.leads_in_a_circle()));
        self.core.next_hop_away.store(outage.is_some(), Ordering::Relaxed);
        self.core.next_hop_circle.store(is_circle, Ordering::Relaxed);
        self.gate.set(condition(policy.next_hops(), outage, is_circle));
    }

    fn publish(&mut self, hops: &NextHops) {
        let before = std::mem::take(&mut self.published);
        for member in hops.iter().flat_map(|hop| &hop.members) {
            let address = member.text();
            let up = if member.down().is_some() { 0.0 } else { 1.0 };
            gauge!(NEXT_HOP_UP, ADDRESS.name => address.to_owned()).set(up);
            gauge!(NEXT_HOP_TUNNELS, ADDRESS.name => address.to_owned()).set(member.tunnels() as f64);
            counter!(NEXT_HOP_FAILURES, ADDRESS.name => address.to_owned()).absolute(member.failures());
            self.published.insert(address.to_owned());
        }
        // A reload took them away: neither up nor down.
        for gone in before.difference(&self.published) {
            gauge!(NEXT_HOP_UP, ADDRESS.name => gone.clone()).set(f64::NAN);
            gauge!(NEXT_HOP_TUNNELS, ADDRESS.name => gone.clone()).set(0.0);
        }
    }

    fn read_certificates(&self) {
        for hop in self.core.settings.policy.load().next_hops().iter() {
            let tls = hop.members.iter().find_map(|member| member.tls()?.as_ref().ok());
            if let Some(own) = tls.and_then(|tls| tls.own.as_ref()) {
                own.read_if_changed();
            }
        }
    }
}

/// Returns the readiness of all next hops. `outage` is why the one that every tunnel goes through is away, and `is_circle` whether it
/// leads in a circle.
fn condition(hops: &NextHops, outage: Option<String>, is_circle: bool) -> Condition {
    if let Some(reason) = outage {
        return Condition::NotReady(format!(
            "the next hop that all tunnels go through (egress.via) is away, so every request is refused with 503, and no token is \
             read: {reason}"
        ));
    }
    if is_circle {
        return Condition::NotReady(
            "the next hop that all tunnels go through (egress.via) leads in a circle: a tunnel through it comes back to a gateway that it \
             has passed, so every request is refused with 508, and no token is read. Change [[egress.next_hops]], or the rules that use \
             them, at one of the gateways"
                .to_owned(),
        );
    }
    let mut found = Vec::new();
    for hop in hops.iter() {
        let name = &hop.config.name;
        found.extend(hop.members.iter().find(|member| member.is_loop()).map(|member| {
            format!(
                "the next hop \"{name}\" leads in a circle: {} refused a tunnel that would come back to a gateway that it had passed (508). \
                 Change [[egress.next_hops]], or the rules that use them, at one of the gateways",
                member.url
            )
        }));
        let down: Vec<_> = hop.members.iter().filter_map(|member| Some((member, member.down()?))).collect();
        let Some((member, reason)) = down.first() else { continue };
        let url = &member.url;
        found.push(if down.len() == hop.members.len() {
            format!("the next hop \"{name}\" is away, and tunnels through it are refused with 502: {url}: {reason}")
        } else {
            let of = plural(hop.members.len(), "URL");
            format!("of {of} of the next hop \"{name}\" {} cannot be used: {url}: {reason}", down.len())
        });
    }
    if found.is_empty() { Condition::Ready } else { Condition::Degraded(found.join("; ")) }
}

async fn check(core: Arc<Core>, resolver: Arc<CurrentResolver>, hop: Arc<NextHop>, member: Arc<Member>) {
    let resolver = resolver.of(&core.settings.resolver.load());
    let policy = core.settings.policy.load_full();
    let dialler = Dialler { resolver: &resolver, sources: policy.source_of_all(), turn: policy.turn() };
    // A connection of its own: one that tunnels share may be good while no new one is taken.
    let lines = Lines::new(sharing(&hop, core.shutdown.clone()));
    match answers(&hop, &member, dialler, &lines).await {
        Ok(()) => {
            if member.may_lead_in_a_circle() {
                let own = core.pseudonym.first();
                member.leads_in_a_circle(leads_in_a_circle(&hop, &member, dialler, &lines, &own).await);
            }
            member.checked();
        }
        Err(reason) => member.found(&reason, Finder::Check),
    }
}

/// Whether a URL takes connections and speaks its protocol, and why not.
pub(super) async fn answers(
    hop: &NextHop,
    member: &Member,
    dialler: Dialler<'_>,
    lines: &Lines,
) -> Result<(), String> {
    let deadline = Instant::now() + hop.config.connect_timeout.get();
    let checking = async {
        match reach(hop, member, dialler, lines, deadline).await? {
            Reached::Shared(_) => Ok(()), // behind its first sign of life
            Reached::Tls(io) => speaks_http(io, member).await.map_err(|error| silent(&error)),
            Reached::Plain(io) if member.url.kind() == HopKind::Socks5 => {
                speaks_socks(io).await.map_err(|error| silent(&error))
            }
            Reached::Plain(io) => speaks_http(io, member).await.map_err(|error| silent(&error)),
        }
    };
    let late = || Err("it took no connection, or gave no answer, in time".to_owned());
    timeout_at(deadline, checking).await.unwrap_or_else(|_| late())
}

fn silent(error: &io::Error) -> String {
    format!("it takes connections, and does not answer: {error}")
}

/// Any proxy has an answer to a request that asks for nothing.
async fn speaks_http(mut io: impl AsyncRead + AsyncWrite + Unpin, member: &Member) -> io::Result<()> {
    let at = member.url.at().authority();
    io.write_all(format!("OPTIONS * HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    io.flush().await?;
    let mut begin = [0; 5];
    io.read_exact(&mut begin).await?;
    if begin == *b"HTTP/" { Ok(()) } else { Err(io::Error::other("its answer is not HTTP")) }
}

/// The first step of RFC 1928, section 3.
async fn speaks_socks(mut io: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    io.write_all(&[5, 2, 0, 2]).await?;
    let mut chosen = [0; 2];
    io.read_exact(&mut chosen).await?;
    if chosen[0] == 5 { Ok(()) } else { Err(io::Error::other("its answer is not SOCKS5")) }
}

/// Whether a tunnel through it comes back to a gateway that it has passed.
pub(super) async fn leads_in_a_circle(
    hop: &NextHop,
    member: &Member,
    dialler: Dialler<'_>,
    lines: &Lines,
    own: &Hops,
) -> bool {
    let connect = Connect { authority: NOWHERE, authorization: None, more: Some((CDN_LOOP, own.as_str())) };
    let deadline = Instant::now() + ROUND;
    let asking = async {
        let head = match reach(hop, member, dialler, lines, deadline).await.ok()? {
            Reached::Shared(seat) => seat.connect(&connect).await.ok()?.0,
            Reached::Tls(io) => ask(io, Received::default(), &connect).await.ok()?.head,
            Reached::Plain(_) => return None, // no gateway
        };
        Some(head.status)
    };
    timeout(ROUND, asking).await.ok().flatten() == Some(StatusCode::LOOP_DETECTED)
}
