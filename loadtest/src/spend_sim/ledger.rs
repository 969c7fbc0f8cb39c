//! Keeps the books of tokens by the history alone: what was issued is spent, held or lost, each loss with its reason.

use super::checker::{Finding, Kind};
use super::claim::Claim;
use super::history::{Event, Happening, STRANGERS, Sums, Verdict};
use super::network::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// The longest that a presentation may last: a gateway gives a verdict before.
const VERDICT: Micros = 20_000_000;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tokens: BTreeMap<usize, Account>,
    /// Presentations of tokens by their holders, without an answer yet.
    under_way: BTreeMap<usize, usize>,
    /// What agents counted.
    counted: BTreeMap<usize, Sums>,
    /// Agents and gateways: those that asked the agent for tokens since they refused one because they serve nothing.
    ready: BTreeSet<(usize, usize)>,
    claim: Option<Claim>,
    findings: Vec<Finding>,
}

#[derive(Debug)]
struct Account {
    holder: usize,
    ends: Micros,
    /// Another caller has presented it.
    is_seen: bool,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unused,
    Sent { at: Micros },
    Spent,
    Held,
    Lost(&'static str),
}

impl Ledger {
    pub(crate) fn new(claim: Claim) -> Self {
        Self { claim: Some(claim), ..Self::default() }
    }

    pub(crate) fn read(&mut self, event: &Event) {
        match &event.happening {
            Happening::Asked { holder, gateway, cannot, .. } => {
                self.ready.insert((*holder, *gateway));
                if cannot.is_some() {
                    self.find(Kind::AskedInVain, event.to_string());
                }
            }
            Happening::Issued { token, holder, ends } => {
                let account = Account { holder: *holder, ends: *ends, is_seen: false, fate: Fate::Unused };
                if self.tokens.insert(*token, account).is_some() {
                    self.find(Kind::Sums, format!("{event}, a second time"));
                }
            }
            Happening::Presented { attempt, token, gateway, holder } => {
                self.presented(event, *attempt, (*token, *gateway), *holder);
            }
            Happening::Ended { attempt, token, gateway, verdict } => {
                if self.under_way.remove(attempt).is_some() {
                    self.ended(event, (*token, *gateway), *verdict);
                }
            }
            Happening::Kept { token } => self.unused(event, *token, Fate::Held),
            Happening::GivenUp { token, reason } => self.unused(event, *token, Fate::Lost(reason)),
            Happening::Counted { holder, sums } => drop(self.counted.insert(*holder, sums.clone())),
            _ => {}
        }
    }

    fn presented(&mut self, event: &Event, attempt: usize, (token, gateway): (usize, usize), by: Option<usize>) {
        let Some(account) = self.tokens.get_mut(&token) else {
            return self.find(Kind::Sums, format!("{event}, which was not issued"));
        };
        let Some(holder) = by else {
            account.is_seen = true;
            return;
        };
        let is_first = account.fate == Fate::Unused && account.holder == holder;
        account.fate = Fate::Sent { at: event.at };
        self.under_way.insert(attempt, token);
        if !is_first {
            self.find(Kind::Sums, format!("{event}, and not for the first time"));
        }
        if holder != STRANGERS && !self.ready.contains(&(holder, gateway)) {
            self.find(Kind::SentInVain, format!("{event}, which has not asked for tokens since it served nothing"));
        }
    }

    /// The answer to a token's holder.
    fn ended(&mut self, event: &Event, (token, gateway): (usize, usize), verdict: Verdict) {
        let (Some(account), Some(claim)) = (self.tokens.get_mut(&token), self.claim) else { return };
        let (fate, is_explained) = match verdict {
            Verdict::Admitted { .. } => (Fate::Spent, true),
            Verdict::Spent => (Fate::Lost("spent"), account.is_seen),
            Verdict::Dropped | Verdict::Refused("stopped") => (Fate::Lost("connection lost"), true),
            Verdict::Refused("void") => (Fate::Lost("void"), claim.may_void),
            Verdict::Refused("wrong_challenge") => (Fate::Lost("wrong_challenge"), false),
            Verdict::Refused(reason @ ("key_retired" | "epoch_retired")) => {
                (Fate::Lost(reason), claim.is_skewed || event.at >= account.ends)
            }
            Verdict::Refused(reason) => {
                // 503: nothing more is sent there before it asks for tokens again.
                self.ready.remove(&(account.holder, gateway));
                (Fate::Lost(reason), true)
            }
        };
        account.fate = fate;
        let is_served = matches!(verdict, Verdict::Admitted { .. } | Verdict::Dropped | Verdict::Spent);
        if claim.serves && !is_served && event.at < account.ends {
            self.find(Kind::Unserved, event.to_string());
        }
        if !is_explained {
            self.find(Kind::Unexplained, event.to_string());
        }
    }

    /// What becomes of a token that was not sent.
    fn unused(&mut self, event: &Event, token: usize, fate: Fate) {
        match self.tokens.get_mut(&token) {
            Some(account) if account.fate == Fate::Unused && !account.is_seen => account.fate = fate,
            _ => self.find(Kind::Sums, format!("{event}, though it was sent, or never issued")),
        }
    }

    fn find(&mut self, kind: Kind, text: String) {
        self.findings.push(Finding { kind, text: text.trim().to_owned() });
    }

    /// The sums of all tokens, and what contradicts them. `now` is when the history ends.
    pub(crate) fn end(mut self, now: Micros) -> (Sums, Vec<Finding>) {
        let mut holders: BTreeMap<usize, Sums> = BTreeMap::new();
        let mut missing = Vec::new();
        for (token, account) in &self.tokens {
            let sums = holders.entry(account.holder).or_default();
            sums.issued += 1;
            match account.fate {
                Fate::Spent => sums.spent += 1,
                Fate::Held => sums.held += 1,
                Fate::Lost(reason) => sums.lose(reason),
                Fate::Sent { at } if now - at < VERDICT => sums.lose("unanswered"),
                Fate::Sent { .. } | Fate::Unused => missing.push((*token, account.holder)),
            }
        }
        for (token, holder) in missing {
            self.find(Kind::Sums, format!("token {token} of holder {holder} is neither spent nor held nor lost"));
        }
        let mut all = Sums::default();
        for (holder, sums) in holders {
            if !sums.add_up() {
                self.find(Kind::Sums, format!("holder {holder}: {sums:?} does not add up"));
            }
            if holder != STRANGERS && self.counted.get(&holder) != Some(&sums) {
                let counted = self.counted.get(&holder).cloned().unwrap_or_default();
                self.find(Kind::Sums, format!("holder {holder} counts {counted:?}, and it is {sums:?}"));
            }
            all.add(&sums);
        }
        (all, self.findings)
    }
}
