//! One agent with a wallet, by the rules of the agent that ships (`client/src/hop/tunnel.rs`, `client/src/hop/gateways.rs`,
//! `client/src/mint/refill.rs`). The gateways' health, the marks and the number of tokens to mint are the shipped code.

use super::chance::Chance;
use super::defect::{Defect, is_put_back};
use super::fault::Millis;
use super::gateway::Gateway;
use super::history::{Happening, Sums, Verdict};
use super::issuer::Issuer;
use super::plan::Plan;
use super::token::{EPOCH, Offer, Token, WireTap};
use super::world::Fabric;
use postern_client::rules::{CurrentChallenge, Health, Marks, OLDER_TOKENS, Outage, PATIENCE, Stock};
use postern_token::{ChallengeDigest, UnixSeconds};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// `Retry-After` of a gateway's 503.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Tokens per signing request of one agent, and the request's duration in milliseconds (shortest, longest).
const AT_ONCE: usize = 16;
const SIGNING: (u64, u64) = (8, 20);
/// Margin before a token's end, as in the agent: clocks are truncated to whole seconds, and a token needs time to reach its
/// gateway.
const LAST_SECOND: Duration = Duration::from_secs(1);

pub(crate) struct Agent {
    number: usize,
    /// Gateways in the order of preference.
    gateways: Vec<Known>,
    wallet: Wallet,
    marks: Marks,
    /// Maximum pause between two tunnels, levels of the wallet, and requests of which one is abandoned, as in [`Plan`].
    pause: Millis,
    waters: (usize, usize),
    leaves: u64,
    chance: Chance,
    fabric: Fabric,
    issuer: Arc<Issuer>,
    tap: Arc<WireTap>,
    counted: Sums,
    /// Challenges for which tokens were signed.
    signed: HashSet<ChallengeDigest>,
}

struct Known {
    gateway: Arc<Gateway>,
    health: Health,
    current: Option<(CurrentChallenge, Offer)>,
}

/// State that all agents share.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) fabric: Fabric,
    pub(crate) gateways: Vec<Arc<Gateway>>,
    pub(crate) issuer: Arc<Issuer>,
    pub(crate) tap: Arc<WireTap>,
}

/// Outcome of one token.
enum Attempt {
    Opened,
    /// The token failed; another one may succeed.
    Failed,
    /// The token was of an older mark.
    Outdated,
}

impl Agent {
    /// Creates an agent. Numbers start at 1.
    pub(crate) fn new(number: usize, plan: &Plan, around: &Surroundings, chance: Chance) -> Self {
        let count = around.gateways.len();
        let known = |index: usize| Known {
            gateway: Arc::clone(&around.gateways[(number + index) % count]),
            health: Health::new(false),
            current: None,
        };
        Self {
            number,
            gateways: (0..count).map(known).collect(),
            wallet: Wallet::default(),
            // Spreads the trials evenly without a random draw, which would change the rest of a seed's run.
            marks: Marks::default().with_longer_trials((number as f64 * 0.618_034).fract()),
            pause: plan.pause,
            waters: plan.waters,
            leaves: plan.leaves,
            chance,
            fabric: around.fabric.clone(),
            issuer: Arc::clone(&around.issuer),
            tap: Arc::clone(&around.tap),
            counted: Sums::default(),
            signed: HashSet::new(),
        }
    }

    /// Opens tunnels until a moment, and then records the tokens left in the wallet.
    pub(crate) async fn live(mut self, until: Instant) {
        loop {
            let pause = self.chance.millis(0, self.pause);
            if Instant::now() + pause >= until {
                break;
            }
            sleep(pause).await;
            self.open().await;
            self.refill(0).await;
        }
        for token in self.wallet.drain() {
            self.counted.held += 1;
            self.fabric.change(|network| network.note(Happening::Kept { token: token.number }));
        }
        let counted = Happening::Counted { holder: self.number, sums: self.counted };
        self.fabric.change(|network| network.note(counted));
    }

    /// Opens one tunnel: presents one token, a second one if the first fails, and before them at most `OLDER_TOKENS` of older
    /// marks.
    async fn open(&mut self) {
        let (mut has_failed, mut outdated) = (false, 0);
        loop {
            match self.attempt(outdated < OLDER_TOKENS).await {
                Some(Attempt::Outdated) => outdated += 1,
                Some(Attempt::Failed) if !has_failed => has_failed = true,
                Some(Attempt::Opened) => return,
                Some(Attempt::Failed) | None => {
                    return self.fabric.change(|network| network.note(Happening::Unserved));
                }
            }
        }
    }

    /// Takes one token and sends it once.
    async fn attempt(&mut self, any: bool) -> Option<Attempt> {
        let (index, digest, token) = self.fund(any).await?;
        let gateway = Arc::clone(&self.gateways[index].gateway);
        self.tap.sent(&token);
        let leaves = self.leaves > 0 && self.chance.one_in(self.leaves);
        let leaves = leaves.then(|| self.chance.millis(0, 60));
        let verdict = gateway.present(&token, leaves, Some(self.number)).await;
        if leaves.is_some() && verdict == Verdict::Dropped {
            self.lose_connection();
            return None;
        }
        if let Verdict::Admitted = verdict {
            self.tap.admitted(&token);
        }
        Some(self.after(index, digest, verdict))
    }

    fn after(&mut self, index: usize, digest: ChallengeDigest, verdict: Verdict) -> Attempt {
        let now = Instant::now();
        match verdict {
            Verdict::Admitted => {
                self.counted.spent += 1;
                self.gateways[index].health.heard(now);
                self.marks.accepted(digest);
                Attempt::Opened
            }
            Verdict::Dropped | Verdict::Refused("stopped") => {
                self.lose_connection();
                self.gateways[index].health.doubt();
                Attempt::Failed
            }
            Verdict::Refused(reason) if is_503(reason) => {
                self.counted.lose(reason);
                self.gateways[index].health.heard(now);
                self.fail(index, false);
                Attempt::Failed
            }
            Verdict::Spent | Verdict::Refused(_) => {
                let is_spent = verdict == Verdict::Spent;
                self.counted.lose(if let Verdict::Refused(reason) = verdict { reason } else { "spent" });
                self.gateways[index].health.heard(now);
                let was_current = self.is_current(index, digest);
                if let Some(offer) = self.gateways[index].gateway.challenge_again(self.number) {
                    self.take_in(index, offer);
                }
                if was_current {
                    return Attempt::Failed;
                }
                if !is_spent && self.marks.refused(digest) {
                    let dropped = self.wallet.drop_challenge(digest);
                    self.give_up(&dropped, "superseded");
                }
                Attempt::Outdated
            }
        }
    }

    /// Returns a serving gateway and a token for it.
    async fn fund(&mut self, any: bool) -> Option<(usize, ChallengeDigest, Arc<Token>)> {
        for _ in 0..4 {
            let index = self.choose().await?;
            if !self.gateways[index].gateway.is_running() {
                self.fail(index, false); // no connection: no token is sent
                continue;
            }
            let dropped = self.wallet.drop_retired(self.now());
            self.give_up(&dropped, "retired");
            match self.take(index, any) {
                Some((digest, token)) => return Some((index, digest, token)),
                None => self.refill(1).await,
            }
        }
        None
    }

    /// Takes a token, if `any` preferably one of an older mark.
    fn take(&mut self, index: usize, any: bool) -> Option<(ChallengeDigest, Arc<Token>)> {
        let current = self.gateways[index].current.as_ref()?.0.digest;
        let older = self.marks.older().into_iter().filter(|digest| any && *digest != current);
        let digests: Vec<_> = older.chain([current]).collect();
        digests.into_iter().find_map(|digest| Some((digest, self.wallet.take(digest)?)))
    }

    /// Mints the required tokens for the gateway in use.
    async fn refill(&mut self, waiting: usize) {
        let index = self.serving().unwrap_or(0);
        let Some((current, _)) = &self.gateways[index].current else { return };
        let is_old = !current.is_fresh() || self.marks.is_to_be_confirmed(current.digest, self.now());
        if is_old && self.stock(current.digest, waiting) > 0 {
            self.probe(index).await;
        }
        let Some((current, offer)) = self.gateways[index].current.clone() else { return };
        let count = self.stock(current.digest, waiting);
        let (Some(key), true) = (current.key, count > 0) else { return };
        let is_one_too_many = is_put_back(Defect::FourMarksADay)
            && self.signed.len() > 4
            && !self.signed.contains(&current.digest);
        if is_one_too_many || self.marks.sign("", current.digest, key, self.now()).is_err() {
            let refrains = Happening::Refrains { holder: self.number };
            self.fabric.change(|network| network.note(refrains));
            return;
        }
        self.signed.insert(current.digest);
        // As in the agent: a mark may be the first one of the key that its challenge claims, but not of the key that signs.
        let mut left = self.stock(current.digest, waiting);
        while left > 0 {
            let some = left.min(AT_ONCE);
            sleep(self.chance.millis(SIGNING.0, SIGNING.1)).await;
            for _ in 0..some {
                let token = self.issuer.sign(self.number, offer, &mut self.chance);
                self.wallet.add(current.digest, token);
            }
            self.counted.issued += some as u64;
            left -= some;
        }
    }

    fn stock(&self, current: ChallengeDigest, waiting: usize) -> usize {
        let older = self.marks.older().into_iter().filter(|digest| *digest != current);
        let stock = Stock {
            level: self.wallet.level(current),
            older: older.map(|digest| self.wallet.level(digest)).sum(),
            waiting,
            low: self.waters.0,
            high: self.waters.1,
        };
        stock.to_mint(self.marks.trial(current, self.now()), true)
    }

    // ---- Gateways ----

    /// Returns the first serving gateway. Probes the gateways before it if a probe is due.
    async fn choose(&mut self) -> Option<usize> {
        let deadline = Instant::now() + PATIENCE;
        for index in 0..self.serving().unwrap_or(0) {
            let next = self.gateways[index].health.next_probe(Instant::now());
            if next.is_some_and(|next| next <= Instant::now()) {
                self.probe(index).await;
            }
        }
        loop {
            if let Some(index) = self.serving() {
                return Some(index);
            }
            let now = Instant::now();
            let next = self.gateways.iter_mut().enumerate().filter_map(|(index, known)| {
                known.health.hurry(now);
                Some((known.health.next_probe(now)?, index))
            });
            let (next, index) = next.min().filter(|(next, _)| *next < deadline)?;
            sleep_until(next).await;
            self.probe(index).await;
        }
    }

    /// Requests a gateway's challenge, without a token.
    async fn probe(&mut self, index: usize) {
        let known = &mut self.gateways[index];
        known.health.begin_probe(Instant::now());
        let travel = self.chance.millis(0, 3);
        sleep(travel).await;
        let asked = known.gateway.challenge(self.number);
        known.health.end_probe();
        match asked {
            Ok(offer) => {
                self.take_in(index, offer);
                self.gateways[index].health.served(Instant::now());
            }
            Err(_) => self.fail(index, true),
        }
    }

    fn fail(&mut self, index: usize, was_probe: bool) {
        if is_put_back(Defect::SendsInVain) && !was_probe {
            return;
        }
        let mut outage = Outage::no_answer("503");
        outage.retry_after = Some(RETRY_AFTER);
        let jitter = self.chance.below(1_001) as f64 / 1_000.0;
        self.gateways[index].health.failed(outage, was_probe, Instant::now(), jitter);
    }

    fn take_in(&mut self, index: usize, offer: Offer) {
        let Some(current) = offer.challenge() else { return };
        if self.marks.offered(&current, self.now()).is_ok() {
            self.gateways[index].current = Some((current, offer));
        }
    }

    fn serving(&self) -> Option<usize> {
        self.gateways.iter().position(|known| known.health.is_serving())
    }

    fn is_current(&self, index: usize, digest: ChallengeDigest) -> bool {
        self.gateways[index].current.as_ref().is_some_and(|(current, _)| current.digest == digest)
    }

    fn lose_connection(&mut self) {
        if !is_put_back(Defect::ForgetsTokens) {
            self.counted.lose("connection lost");
        }
    }

    fn give_up(&mut self, tokens: &[Arc<Token>], reason: &'static str) {
        for token in tokens {
            self.counted.lose(reason);
            let given_up = Happening::GivenUp { token: token.number, reason };
            self.fabric.change(|network| network.note(given_up));
        }
    }

    fn now(&self) -> UnixSeconds {
        UnixSeconds(EPOCH + self.fabric.now() / 1_000_000)
    }
}

/// Tokens with their challenges, oldest first.
#[derive(Debug, Default)]
struct Wallet(Vec<(ChallengeDigest, Arc<Token>)>);

impl Wallet {
    fn add(&mut self, digest: ChallengeDigest, token: Arc<Token>) {
        self.0.push((digest, token));
    }

    /// Removes and returns the oldest token for a challenge.
    fn take(&mut self, digest: ChallengeDigest) -> Option<Arc<Token>> {
        let index = self.0.iter().position(|(known, _)| *known == digest)?;
        Some(self.0.remove(index).1)
    }

    fn level(&self, digest: ChallengeDigest) -> usize {
        self.0.iter().filter(|(known, _)| *known == digest).count()
    }

    /// Removes and returns the tokens for a challenge.
    fn drop_challenge(&mut self, digest: ChallengeDigest) -> Vec<Arc<Token>> {
        self.drop_if(|known, _| known == digest)
    }

    /// Removes and returns the tokens of keys that end.
    fn drop_retired(&mut self, now: UnixSeconds) -> Vec<Arc<Token>> {
        let now = now.saturating_add(LAST_SECOND);
        self.drop_if(|_, token| token.not_after <= now)
    }

    fn drain(&mut self) -> impl Iterator<Item = Arc<Token>> {
        std::mem::take(&mut self.0).into_iter().map(|(_, token)| token)
    }

    fn drop_if(&mut self, drops: impl Fn(ChallengeDigest, &Token) -> bool) -> Vec<Arc<Token>> {
        let dropped = self.0.extract_if(.., |(digest, token)| drops(*digest, token));
        dropped.map(|(_, token)| token).collect()
    }
}

/// `true` if the gateway answers 503 for this reason, by its table in `gateway/src/request/deny.rs`; other reasons are 407.
fn is_503(reason: &str) -> bool {
    !matches!(reason, "void" | "wrong_challenge" | "key_retired" | "epoch_retired")
}
