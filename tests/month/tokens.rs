//! The balance of every account's tokens: issued = spent + held + lost.
//!
//! The issuer counts what was issued to each account, the users count what was spent (every 200 they saw), and the
//! wallet file has what is held. The rest is lost, and the agent has to have reported why. A killed process cannot
//! count its tokens in flight: these, and no more, may be missing in its report.

use crate::support::accounts;
use crate::support::site::{AgentPlan, Site};
use crate::support::tokens::in_wallet;
use crate::support::unit::Unit;
use crate::support::users::Users;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The agent's metric of its tokens.
const FATES: &str = "postern_agent_tokens_total";
/// The most tokens in one request of an agent, which makes one request after the other.
const BATCH: usize = 100;
/// The most programs that use an agent at the same time.
const PROGRAMS: usize = 2;

/// The most tokens of an agent that are being minted, or sent, at one moment: more than its high water it never wants
/// ahead, and one for each program that waits.
pub fn in_flight(plan: &AgentPlan) -> i64 {
    (plan.high.min(BATCH) + PROGRAMS) as i64
}

/// The most that the issuer reserves for an account.
const MOST_RESERVED: i64 = 512;

type Counts = BTreeMap<String, i64>;

/// The sums over all processes that a daemon had.
#[derive(Default)]
pub struct Books {
    /// By account: what the issuer's processes counted that have ended.
    issued: Counts,
    /// By account: the file's counts when the present process began.
    base: Counts,
    /// Tokens that count as used since the issuer was killed, and were not signed: what it had reserved.
    reserved: i64,
    /// By agent, then by fate.
    fates: BTreeMap<String, Counts>,
    /// By agent: tokens whose fate nothing could count.
    unknown: Counts,
    /// Tokens admitted by the gateways' own count, and the most that each end of a process left uncounted.
    admitted: i64,
    unseen: i64,
}

impl Books {
    /// A process of the issuer ended on SIGTERM: its file has every count.
    pub fn issuer_stopped(&mut self, site: &Site) {
        for (account, used) in self.counted(site) {
            *self.issued.entry(account).or_default() += used;
        }
        self.base = usage(site);
    }

    /// One was killed, having signed `signed` tokens in its life: its file is ahead of them, by what it had reserved.
    pub fn issuer_killed(&mut self, site: &Site, signed: i64) {
        let counted = self.counted(site);
        let reserved = counted.values().sum::<i64>() - signed;
        let most = MOST_RESERVED * counted.len() as i64;
        assert!((0..=most).contains(&reserved), "the file is {reserved} ahead of {signed} signed tokens");
        self.reserved += reserved;
        self.issuer_stopped(site);
        for (plan, agent) in site.plan.agents.iter().zip(&site.agents) {
            self.may_miss(&agent.name, in_flight(plan));
        }
    }

    fn counted(&self, site: &Site) -> Counts {
        let since = |(account, used): (String, i64)| {
            let before = self.base.get(&account).copied().unwrap_or(0);
            (account, used - before)
        };
        usage(site).into_iter().map(since).collect()
    }

    /// Adds what a process of an agent reports at its end.
    pub async fn agent_says(&mut self, agent: &Unit) {
        let Some(samples) = agent.metrics().await else { return };
        for (labels, count) in samples.of(FATES) {
            let own = self.fates.entry(agent.name.clone()).or_default();
            *own.entry(labels.to_owned()).or_default() += i64::try_from(count).unwrap();
        }
    }

    /// Adds the final counts of a gateway's process; `unseen` requests may come between that and its end.
    pub async fn gateway_says(&mut self, gateway: &Unit, unseen: i64) {
        let Some(samples) = gateway.metrics().await else { return };
        let opened = samples.sum("postern_requests_total", &["outcome=\"opened\""]);
        self.admitted += i64::try_from(opened).unwrap();
        self.unseen += unseen;
    }

    /// `tokens` of the agent may have a fate that nothing counts.
    pub fn may_miss(&mut self, agent: &str, tokens: i64) {
        *self.unknown.entry(agent.to_owned()).or_default() += tokens;
    }

    /// Judges each account when everything has stopped: what does not add up, and the table.
    pub fn judged(&self, site: &Site, users: &Users) -> (Vec<String>, String) {
        let (mut wrong, mut table) = (Vec::new(), String::new());
        let (mut spent, mut lost) = (0, 0);
        for (plan, agent) in site.plan.agents.iter().zip(&site.agents) {
            let fates = self.fates.get(&agent.name);
            let account = Account {
                issued: self.issued.get(plan.name).copied().unwrap_or(0),
                spent: users.tunnels(&agent.name) as i64,
                held: in_wallet(&site.wallet(plan.name)).len() as i64,
                said: fates.map(Said::of),
                unknown: self.unknown.get(&agent.name).copied().unwrap_or(0),
                reserved: self.reserved,
            };
            writeln!(table, "{}: {account}; {:?}", agent.name, fates.unwrap_or(&Counts::new())).unwrap();
            (spent, lost) = (spent + account.spent, lost + account.lost());
            wrong.extend(account.judged().err().map(|why| format!("{}: {why}", agent.name)));
        }
        let Self { admitted, unseen, .. } = self;
        writeln!(
            table,
            "gateways admitted {admitted}, and {unseen} at most uncounted; users had {spent} tunnels"
        )
        .unwrap();
        // A tunnel that was admitted and whose user never saw it is one of the lost tokens.
        if !(spent - unseen..=spent + lost.max(0) + unseen).contains(admitted) {
            wrong.push(format!(
                "gateways admitted {admitted}, and users had {spent} tunnels, {lost} tokens are lost"
            ));
        }
        (wrong, table)
    }
}

/// The tokens of one account, by the agent's own books.
#[derive(Clone, Copy, Debug)]
struct Said {
    minted: i64,
    opened: i64,
    lost: i64,
}

/// The tokens of one account.
#[derive(Clone, Copy, Debug)]
struct Account {
    issued: i64,
    spent: i64,
    held: i64,
    /// The tokens that the agent reports as minted, as spent on a tunnel, and as lost. `None`: it reports nothing.
    said: Option<Said>,
    /// The most whose fate nothing could count.
    unknown: i64,
    /// The most that count as issued and were not.
    reserved: i64,
}

impl Account {
    fn lost(&self) -> i64 {
        self.issued - self.spent - self.held
    }

    fn judged(&self) -> Result<(), String> {
        let (lost, Self { unknown, reserved, held, .. }) = (self.lost(), self);
        let Some(Said { minted, opened, lost: said }) = self.said else {
            return Err(format!("the agent does not report the fate of its tokens ({FATES})"));
        };
        if lost < 0 {
            return Err(format!("{} more tokens were spent or are held than were issued", -lost));
        }
        let gap = minted - opened - said - held;
        if gap.abs() > *unknown {
            return Err(format!(
                "by the agent's own books {gap} tokens vanished: minted {minted}, opened {opened}, held {held}, lost \
                 {said}; {unknown} may be uncounted"
            ));
        }
        if (said - unknown..=said + unknown + reserved).contains(&lost) {
            return Ok(());
        }
        Err(format!(
            "{lost} tokens are lost, and the agent reports {said}; {unknown} may be uncounted, and {reserved} reserved"
        ))
    }
}

impl Said {
    fn of(fates: &Counts) -> Self {
        let of = |fate: &str| fates.get(&format!("{{fate=\"{fate}\",hop=\"last\"}}")).copied().unwrap_or(0);
        let (minted, opened) = (of("minted"), of("opened"));
        Self { minted, opened, lost: fates.values().sum::<i64>() - minted - opened }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { issued, spent, held, said, unknown, .. } = self;
        let lost = self.lost();
        write!(f, "issued {issued} = spent {spent} + held {held} + lost {lost}; it reports {said:?}, and ")?;
        write!(f, "{unknown} at most could not be counted")
    }
}

/// The counts in the issuer's database.
fn usage(site: &Site) -> Counts {
    accounts::used(&site.keys())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: Said = Said { minted: 100, opened: 60, lost: 10 };
    const WHOLE: Account =
        Account { issued: 100, spent: 60, held: 30, said: Some(SAID), unknown: 0, reserved: 0 };

    #[test]
    fn an_account_that_adds_up_is_good() {
        assert_eq!(WHOLE.judged(), Ok(()));
        // A kill: three were being minted or sent, and nothing counted them.
        let said = Some(Said { lost: 7, ..SAID });
        assert_eq!(Account { said, unknown: 3, ..WHOLE }.judged(), Ok(()));
        // A kill of the issuer: its file was two ahead.
        assert_eq!(Account { issued: 102, reserved: 2, ..WHOLE }.judged(), Ok(()));
    }

    #[test]
    fn tokens_that_vanish_or_come_from_nowhere_are_found() {
        let said = |minted, opened, lost| Some(Said { minted, opened, lost });
        let bad = [
            Account { said: said(100, 60, 9), ..WHOLE },
            Account { said: said(100, 60, 11), ..WHOLE },
            Account { said: said(99, 60, 9), ..WHOLE },
            Account { said: None, ..WHOLE },
            Account { spent: 101, held: 0, said: said(101, 101, 0), unknown: 50, ..WHOLE },
            Account { said: said(100, 60, 6), unknown: 3, ..WHOLE },
            Account { issued: 103, reserved: 2, ..WHOLE },
            Account { issued: 98, reserved: 2, ..WHOLE },
        ];
        for account in bad {
            assert!(account.judged().is_err(), "{account}");
        }
    }
}
