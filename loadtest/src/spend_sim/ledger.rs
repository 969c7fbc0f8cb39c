//! Accounts for tokens by the history alone: each issued token is spent, held or lost, and each loss has a reason.

use super::claim::Claim;
use super::fault::Micros;
use super::history::{Event, Happening, STRANGERS, Sums, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum duration of a presentation: a gateway gives a verdict earlier.
const VERDICT: Micros = 20_000_000;

/// A contradiction of the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A token was admitted twice, which the claim excludes.
    Twice,
    /// A gateway admitted nothing after all faults were over.
    Stuck,
    /// The number of issued tokens is not the sum of spent, held and lost ones.
    Sums,
    /// A token was lost for a reason that the run does not explain.
    Unexplained,
    /// A fresh token was not admitted, although the claim requires it.
    Unserved,
    /// A gateway requested tokens that could not be spent.
    AskedInVain,
    /// An agent sent a token to a gateway that had answered 503 and had not requested tokens since.
    SentInVain,
    /// An agent had no token signed for longer than the longest pause before a new mark.
    Starved,
}

/// The longest pause of an agent before it has a token signed for another new mark is four minutes.
const LONGEST_PAUSE: Micros = 241_000_000;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tokens: BTreeMap<usize, Account>,
    /// Unanswered presentations of tokens by their holders: token by attempt.
    under_way: BTreeMap<usize, usize>,
    /// Sums that agents reported.
    counted: BTreeMap<usize, Sums>,
    /// (agent, gateway) pairs: the gateway has requested tokens from the agent since its last 503 to the agent.
    ready: BTreeSet<(usize, usize)>,
    /// The moment since which an agent has had no token signed.
    refrains: BTreeMap<usize, Micros>,
    claim: Option<Claim>,
    findings: Vec<Finding>,
}

#[derive(Debug)]
struct Account {
    holder: usize,
    ends: Micros,
    /// `true` if another caller has presented it.
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
            Happening::Refrains { holder } => {
                let since = *self.refrains.entry(*holder).or_insert(event.at);
                if event.at - since > LONGEST_PAUSE {
                    self.find(Kind::Starved, event.to_string());
                }
            }
            Happening::Issued { token, holder, ends } => {
                self.refrains.remove(holder);
                let account = Account { holder: *holder, ends: *ends, is_seen: false, fate: Fate::Unused };
                if self.tokens.insert(*token, account).is_some() {
                    self.find(Kind::Sums, format!("{event}, a second time"));
                }
            }
            Happening::Presented { attempt, token, gateway, holder } => {
                self.presented(event, *attempt, (*token, *gateway), *holder);
            }
            Happening::Ended { attempt, token, gateway, verdict } => {
                self.ended(event, *attempt, (*token, *gateway), *verdict);
            }
            Happening::Kept { token } => self.unused(event, *token, Fate::Held),
            Happening::GivenUp { token, reason } => self.unused(event, *token, Fate::Lost(reason)),
            Happening::Counted { holder, sums } => drop(self.counted.insert(*holder, sums.clone())),
            _ => {}
        }
    }

    fn presented(
        &mut self,
        event: &Event,
        attempt: usize,
        (token, gateway): (usize, usize),
        by: Option<usize>,
    ) {
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
            self.find(
                Kind::SentInVain,
                format!("{event}, which has not asked for tokens since it served nothing"),
            );
        }
    }

    /// Records an answer to a holder. Answers to other callers are ignored.
    fn ended(&mut self, event: &Event, attempt: usize, (token, gateway): (usize, usize), verdict: Verdict) {
        let is_holders = self.under_way.remove(&attempt).is_some();
        let (Some(account), Some(claim), true) = (self.tokens.get_mut(&token), self.claim, is_holders) else {
            return;
        };
        let (fate, is_explained) = match verdict {
            Verdict::Admitted => (Fate::Spent, true),
            Verdict::Spent => (Fate::Lost("spent"), account.is_seen),
            Verdict::Dropped | Verdict::Refused("stopped") => (Fate::Lost("connection lost"), true),
            Verdict::Refused("void") => (Fate::Lost("void"), claim.may_void),
            Verdict::Refused(reason @ ("key_retired" | "epoch_retired")) => {
                (Fate::Lost(reason), claim.is_skewed || event.at >= account.ends)
            }
            Verdict::Refused(reason) => {
                // A 503: the agent must not send more tokens there before the gateway requests tokens again.
                self.ready.remove(&(account.holder, gateway));
                (Fate::Lost(reason), true)
            }
        };
        account.fate = fate;
        let is_served = matches!(verdict, Verdict::Admitted | Verdict::Dropped | Verdict::Spent);
        if claim.serves && !is_served && event.at < account.ends {
            self.find(Kind::Unserved, event.to_string());
        }
        if !is_explained {
            self.find(Kind::Unexplained, event.to_string());
        }
    }

    /// Records the fate of a token that was not sent.
    fn unused(&mut self, event: &Event, token: usize, fate: Fate) {
        match self.tokens.get_mut(&token) {
            Some(account) if account.fate == Fate::Unused && !account.is_seen => account.fate = fate,
            _ => self.find(Kind::Sums, format!("{event}, though it was sent, or never issued")),
        }
    }

    fn find(&mut self, kind: Kind, text: String) {
        self.findings.push(Finding { kind, text: text.trim().to_owned() });
    }

    /// Returns the sums of all tokens, and the findings. `now` is the end of the history.
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
            self.find(
                Kind::Sums,
                format!("token {token} of holder {holder} is neither spent nor held nor lost"),
            );
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

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim = Claim::BARE;
    const ADMITTED: Verdict = Verdict::Admitted;
    const AGENT: usize = 1;

    fn asked(cannot: Option<&'static str>) -> Happening {
        Happening::Asked { holder: AGENT, gateway: 0, key: 0, cannot }
    }

    fn issued(token: usize) -> Happening {
        Happening::Issued { token, holder: AGENT, ends: 1_000_000 }
    }

    fn presented(attempt: usize, token: usize, holder: Option<usize>) -> Happening {
        Happening::Presented { attempt, token, gateway: 0, holder }
    }

    fn ended(attempt: usize, token: usize, verdict: Verdict) -> Happening {
        Happening::Ended { attempt, token, gateway: 0, verdict }
    }

    fn counted(issued: u64, spent: u64, held: u64, lost: &[&'static str]) -> Happening {
        let mut sums = Sums { issued, spent, held, ..Sums::default() };
        lost.iter().for_each(|reason| sums.lose(reason));
        Happening::Counted { holder: AGENT, sums }
    }

    fn books(happenings: Vec<Happening>, claim: Claim) -> (Sums, Vec<Kind>) {
        let mut ledger = Ledger::new(claim);
        let events = happenings.into_iter().enumerate();
        let last = events.map(|(at, happening)| ledger.read(&Event { at: at as u64, happening })).count();
        let (sums, findings) = ledger.end(last as u64);
        (sums, findings.into_iter().map(|finding| finding.kind).collect())
    }

    fn kinds(happenings: Vec<Happening>) -> Vec<Kind> {
        books(happenings, CLAIM).1
    }

    /// Returns a history in which the agent presents token 7 and gets this answer, and then `counts`.
    fn one(verdict: Verdict, counts: Happening) -> Vec<Happening> {
        vec![asked(None), issued(7), presented(1, 7, Some(AGENT)), ended(1, 7, verdict), counts]
    }

    #[test]
    fn what_is_issued_is_spent_held_or_lost() {
        let mut history = one(ADMITTED, issued(8));
        history.extend([presented(2, 8, Some(AGENT)), ended(2, 8, Verdict::Refused("timed_out")), issued(9)]);
        history.extend([Happening::Kept { token: 9 }, counted(3, 1, 1, &["timed_out"])]);
        let (sums, kinds) = books(history, CLAIM);
        assert_eq!((sums.issued, sums.spent, sums.held, sums.all_lost(), kinds), (3, 1, 1, 1, vec![]));
        assert_eq!(kinds_of_sums(vec![asked(None), issued(7), counted(1, 0, 0, &[])]), 2, "it is nowhere");
        assert_eq!(kinds_of_sums(one(ADMITTED, counted(1, 0, 1, &[]))), 1, "the agent counts otherwise");
        assert_eq!(kinds_of_sums(one(ADMITTED, Happening::Kept { token: 7 })), 2, "it was sent");
        let again = [presented(2, 7, Some(AGENT)), ended(2, 7, ADMITTED), counted(1, 1, 0, &[])];
        assert_eq!(kinds_of_sums(one(ADMITTED, asked(None)).into_iter().chain(again).collect()), 1);
        assert_eq!(kinds_of_sums(vec![presented(1, 7, None)]), 1, "it was never issued");
    }

    fn kinds_of_sums(history: Vec<Happening>) -> usize {
        let kinds = kinds(history);
        assert!(kinds.iter().all(|kind| *kind == Kind::Sums), "{kinds:?}");
        kinds.len()
    }

    #[test]
    fn a_loss_needs_a_reason() {
        let void = |claim| books(one(Verdict::Refused("void"), counted(1, 0, 0, &["void"])), claim).1;
        assert_eq!(void(CLAIM), [Kind::Unexplained]);
        assert_eq!(void(Claim { may_void: true, ..CLAIM }), []);
        assert_eq!(
            void(Claim { may_void: true, serves: true, ..CLAIM }),
            [Kind::Unserved],
            "every token is admitted there"
        );
        let spent = one(Verdict::Spent, counted(1, 0, 0, &["spent"]));
        assert_eq!(kinds(spent.clone()), [Kind::Unexplained], "by no other caller");
        let mut seen = spent;
        seen.insert(3, presented(2, 7, None));
        assert_eq!(kinds(seen), []);
        let retired = one(Verdict::Refused("key_retired"), counted(1, 0, 0, &["key_retired"]));
        assert_eq!(kinds(retired), [Kind::Unexplained], "before its end");
    }

    #[test]
    fn an_agent_waits_no_longer_than_its_longest_pause() {
        let refrains = |minutes: u64| Event {
            at: minutes * 60_000_000,
            happening: Happening::Refrains { holder: AGENT },
        };
        let issued = |minutes: u64| Event { at: minutes * 60_000_000, happening: issued(minutes as usize) };
        let starved = |events: &[Event]| {
            let mut ledger = Ledger::new(CLAIM);
            events.iter().for_each(|event| ledger.read(event));
            ledger.findings.iter().filter(|finding| finding.kind == Kind::Starved).count()
        };
        assert_eq!(starved(&[refrains(1), refrains(3), refrains(5)]), 0);
        assert_eq!(starved(&[refrains(1), issued(2), refrains(3), refrains(6)]), 0);
        assert_eq!(starved(&[refrains(1), refrains(6), refrains(7)]), 2);
    }

    #[test]
    fn nothing_is_asked_for_or_sent_in_vain() {
        assert_eq!(kinds(vec![asked(Some("timed_out"))]), [Kind::AskedInVain]);
        let another = [issued(8), presented(2, 8, Some(AGENT)), ended(2, 8, ADMITTED)];
        let refused = one(Verdict::Refused("timed_out"), counted(2, 1, 0, &["timed_out"]));
        let history: Vec<_> = refused.iter().cloned().chain(another.clone()).collect();
        assert_eq!(kinds(history), [Kind::SentInVain], "not asked for since the 503");
        let history = refused.into_iter().chain([asked(None)]).chain(another).collect();
        assert_eq!(kinds(history), []);
    }
}
