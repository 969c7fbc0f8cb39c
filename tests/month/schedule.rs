//! The events of a month, drawn from one number.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The month that everyone has.
const SEED: u64 = 10;
const SECONDS: u64 = 102;
/// Least time for an event, recovery and a quiet time included.
pub const EACH: Duration = Duration::from_secs(6);

/// An agent takes four new marks of one gateway in an hour at once, and waits longer and longer for further ones.
const LOSSES: usize = 4;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// SIGTERM, and a drain.
    Asked,
    /// SIGKILL.
    Killed,
}

/// A daemon: gateways and agents are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    Issuer,
    Gateway(usize),
    Agent(usize),
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Restart(Who, End),
    /// The procedure "rotate now".
    RotateNow,
    /// The store answers nothing, and keeps its connections.
    StoreFrozen(Duration),
    /// Connections to the store are cut and refused.
    StoreUnreachable(Duration),
    /// The store has forgotten everything.
    StoreEmptied,
    IssuerAway(Duration),
    /// A gateway is restarted while the issuer is away.
    RestartWithoutIssuer(usize),
    WalletDiskFull(usize, Duration),
    IssuerDiskFull(Duration),
    /// SIGHUP with a changed file.
    Reload(Who),
    /// SIGHUP with a file that cannot be used.
    BadReload(Who),
}

impl Event {
    /// Returns whether gateways offer another mark after it.
    pub fn brings_a_mark(&self) -> bool {
        matches!(self, Self::StoreEmptied | Self::RotateNow)
    }
}

/// A month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub seed: u64,
    pub events: Vec<Event>,
}

impl Schedule {
    pub fn of_the_environment() -> Self {
        let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
        Self::drawn(number("POSTERN_MONTH_SEED", SEED), number("POSTERN_MONTH_SECONDS", SECONDS))
    }

    /// Every kind of event once, in random order, again and again until the time is full.
    pub fn drawn(seed: u64, seconds: u64) -> Self {
        let mut random = SeededRandom { seed, drawn: 0 };
        let mut events = Vec::new();
        let number = usize::try_from(seconds / EACH.as_secs()).unwrap().max(1);
        for round in 0.. {
            if events.len() >= number {
                break;
            }
            let mut deck = random.deck();
            if round >= LOSSES {
                deck.retain(|event| *event != Event::StoreEmptied);
            }
            events.extend(random.shuffled(deck));
        }
        events.truncate(number);
        Self { seed, events }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "POSTERN_MONTH_SEED={}, {} events:", self.seed, self.events.len())?;
        self.events.iter().try_for_each(|event| writeln!(f, "  {event:?}"))
    }
}

/// Numbers that follow from the seed and how many were drawn before.
struct SeededRandom {
    seed: u64,
    drawn: u64,
}

impl SeededRandom {
    fn below(&mut self, bound: usize) -> usize {
        let mut hasher = DefaultHasher::new();
        (self.seed, self.drawn).hash(&mut hasher);
        self.drawn += 1;
        usize::try_from(hasher.finish() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn duration(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(usize::try_from(to - from).unwrap()) as u64)
    }

    fn deck(&mut self) -> Vec<Event> {
        let gateway = |random: &mut Self| random.below(super::life::GATEWAYS);
        let agent = |random: &mut Self| random.below(super::life::AGENTS.len());
        vec![
            Event::Restart(Who::Issuer, End::Asked),
            Event::Restart(Who::Issuer, End::Killed),
            Event::Restart(Who::Gateway(gateway(self)), End::Asked),
            Event::Restart(Who::Gateway(gateway(self)), End::Killed),
            Event::Restart(Who::Agent(agent(self)), End::Asked),
            Event::Restart(Who::Agent(agent(self)), End::Killed),
            Event::RotateNow,
            Event::StoreFrozen(self.duration(2_000, 4_000)),
            Event::StoreUnreachable(self.duration(2_000, 4_000)),
            Event::StoreEmptied,
            Event::IssuerAway(self.duration(2_000, 4_000)),
            Event::RestartWithoutIssuer(gateway(self)),
            Event::WalletDiskFull(agent(self), self.duration(2_000, 4_000)),
            Event::IssuerDiskFull(self.duration(2_000, 4_000)),
            Event::Reload(Who::Issuer),
            Event::Reload(Who::Gateway(gateway(self))),
            Event::BadReload(
                [Who::Issuer, Who::Gateway(gateway(self)), Who::Agent(agent(self))][self.below(3)],
            ),
        ]
    }

    fn shuffled(&mut self, mut events: Vec<Event>) -> Vec<Event> {
        for last in (1..events.len()).rev() {
            events.swap(last, self.below(last + 1));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_one_month() {
        assert_eq!(Schedule::drawn(7, 300), Schedule::drawn(7, 300));
        assert_ne!(Schedule::drawn(7, 300), Schedule::drawn(8, 300));
    }

    #[test]
    fn the_month_that_everyone_has_holds_every_kind_of_event() {
        let kinds = |schedule: &Schedule| {
            let name = |event: &Event| format!("{event:?}").split('(').next().unwrap().to_owned();
            let mut kinds: Vec<_> = schedule.events.iter().map(name).collect();
            kinds.sort();
            kinds.dedup();
            kinds
        };
        assert_eq!(kinds(&Schedule::drawn(SEED, SECONDS)), kinds(&Schedule::drawn(SEED, 1_000)));
    }
}
