//! Next hops, the proxies through which tunnels continue: their URLs, the choice among several, and their health.
//!
//! All workers share this state. The HTTP/2 connections that tunnels share belong to one worker each ([`Connections`]), so a
//! tunnel stays on its thread.

mod checks;
mod member;
mod reach;

pub(crate) use checks::{Checks, examine};
pub(crate) use member::Member;
pub(crate) use reach::{Connections, Dialler, Leg};

use crate::config::{Balance, NextHop as Config};
use crate::error::StartError;
use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;
use postern_proxy::target::{Host, Target, Transport};
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) const NO_METHOD: &str =
    "it takes none of our ways to authenticate: set user and password, or remove them";
pub(crate) const WRONG_PASSWORD: &str = "it does not accept the user and the password";

#[derive(Clone, Default)]
pub(crate) struct NextHops(pub(crate) Vec<Arc<NextHop>>);

impl NextHops {
    /// Builds the next hops of a configuration. A next hop that is unchanged since `before` keeps its connections and its
    /// health.
    pub(crate) fn new(configured: &[Config], before: &Self) -> Result<Self, StartError> {
        let next_hop = |config: &Config| match before.0.iter().find(|hop| hop.config == *config) {
            Some(unchanged) => Ok(Arc::clone(unchanged)),
            None => NextHop::new(config).map(Arc::new),
        };
        Ok(Self(configured.iter().map(next_hop).collect::<Result<_, _>>()?))
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<NextHop>> {
        self.0.iter().find(|hop| hop.config.name == name)
    }
}

/// One or several proxies through which tunnels continue.
pub(crate) struct NextHop {
    pub(crate) config: Config,
    members: Vec<Arc<Member>>,
}

impl NextHop {
    pub(crate) fn new(config: &Config) -> Result<Self, StartError> {
        let place = format!("the next hop \"{}\"", config.name);
        let tls = config.client_tls().map_err(StartError::tls(place))?;
        let weights = config.weights.iter().copied().map(Some).chain(std::iter::repeat(None));
        let members = config.urls.iter().zip(weights);
        let member = |(url, weight)| Arc::new(Member::new(url, weight, tls.as_ref(), config.udp));
        let members = members.map(member).collect();
        Ok(Self { config: config.clone(), members })
    }

    /// Returns the URLs in the order in which a tunnel to `target` tries them: those that are down come last, and for UDP those that
    /// lack it are left out.
    pub(crate) fn order(&self, target: &Target, now: Instant) -> Vec<Arc<Member>> {
        let is_fit = |member: &&Arc<Member>| target.transport() == Transport::Tcp || member.may_carry_udp();
        let fit: Vec<&Arc<Member>> = self.members.iter().filter(is_fit).collect();
        if let [only] = fit[..] {
            return vec![Arc::clone(only)];
        }
        let choices: Vec<Choice<'_>> = fit.iter().map(|member| member.choice(now)).collect();
        let order = order(self.config.balance, &choices, target.host(), rand::random);
        order.into_iter().filter_map(|index| fit.get(index).map(|member| Arc::clone(member))).collect()
    }

    /// Returns `false` if no URL carries UDP, as far as is known.
    pub(crate) fn may_carry_udp(&self) -> bool {
        self.members.iter().any(|member| member.may_carry_udp())
    }

    /// Returns `true` if a URL is up, and every URL that is up leads in a circle.
    pub(crate) fn leads_in_a_circle(&self) -> bool {
        let mut up = self.members.iter().filter(|member| member.down().is_none()).peekable();
        up.peek().is_some() && up.all(|member| member.health.lock().is_in_circle)
    }

    /// Returns the reason for the outage of one URL if every URL is down.
    pub(crate) fn outage(&self) -> Option<String> {
        let reasons: Option<Vec<String>> = self.members.iter().map(|member| member.down()).collect();
        reasons?.into_iter().next()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) url: &'a str,
    pub(super) weight: u16,
    /// Tunnels that are open or being opened.
    pub(super) tunnels: usize,
    /// Time of the next attempt; `None` if the URL is up.
    pub(super) down_until: Option<Instant>,
}

impl Choice<'_> {
    /// Returns the score of weighted rendezvous hashing: the URL with the highest score takes the host. A change of the list
    /// moves only the hosts of added or removed URLs.
    fn score(&self, host: &str) -> f64 {
        let mut digest = Context::new(&SHA256);
        // A prefix of fixed length, and a separator that neither part contains, make the text unambiguous.
        for part in ["postern next hop v1\n", self.url, "\n", host] {
            digest.update(part.as_bytes());
        }
        let digest = digest.finish();
        let first = digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        // A number in (0, 1): 52 bits, as many as an f64 has between two powers of two, plus one half.
        let uniform = ((first >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        f64::from(self.weight) / -uniform.ln()
    }
}

/// Returns the indices of `choices` in the order of attempts. URLs that are down come last, the one with the earliest next
/// attempt first.
fn order(
    balance: Balance,
    choices: &[Choice<'_>],
    target: &Host,
    mut random: impl FnMut() -> u32,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    match balance {
        Balance::Load => {
            // Fisher-Yates shuffle.
            for last in (1..order.len()).rev() {
                let chosen = random() as usize % (last + 1);
                order.swap(last, chosen);
            }
        }
        Balance::Target => {
            let host = match target {
                Host::Name(name) => name.to_ascii_lowercase(),
                Host::Address(address) => address.to_canonical().to_string(),
            };
            let scores: Vec<f64> = choices.iter().map(|choice| choice.score(&host)).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        }
    }
    order.sort_by_key(|index| choices[*index].down_until); // stable, and `None` sorts first
    if let (Balance::Load, [first, second, ..]) = (balance, &mut order[..]) {
        let [one, other] = [&choices[*first], &choices[*second]];
        let load = |of: &Choice<'_>, to: &Choice<'_>| of.tunnels.saturating_mul(usize::from(to.weight));
        let has_less = load(other, one) < load(one, other); // tunnels for its weight
        if one.down_until.is_none() && other.down_until.is_none() && has_less {
            std::mem::swap(first, second);
        }
    }
    order
}

/// Time for which such a target is refused. The next request then spends a token again, and shows if the circle persists.
const STANDS: Duration = Duration::from_secs(60);
/// Maximum number of targets; a new one displaces the oldest.
const MOST: usize = 256;

/// Targets whose tunnels came back from a next hop, as hashes with a key of this process. Rules of several gateways can form a
/// circle for some targets only, which no check detects before a tunnel does. The next request for such a target is refused before
/// its token is read.
#[derive(Default)]
pub(crate) struct Returned {
    hasher: RandomState,
    known: Mutex<VecDeque<(u64, Instant)>>,
    /// `true` once a target was recorded: until then no request takes the lock.
    is_any: AtomicBool,
}

impl Returned {
    pub(crate) fn note(&self, target: &Target, now: Instant) {
        let mut known = self.known.lock();
        known.retain(|(_, since)| now < *since + STANDS);
        if known.len() == MOST {
            known.pop_front();
        }
        known.push_back((self.hasher.hash_one(target), now));
        self.is_any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has(&self, target: &Target, now: Instant) -> bool {
        let is_it = |of: u64| move |(hash, since): &(u64, Instant)| *hash == of && now < *since + STANDS;
        self.is_any.load(Ordering::Relaxed)
            && self.known.lock().iter().any(is_it(self.hasher.hash_one(target)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_came_back_is_known_for_a_minute_and_among_many() {
        let (returned, now) = (Returned::default(), Instant::now());
        let target = |port: usize| Target::parse(&format!("a.example:{port}"), None).unwrap();
        assert!(!returned.has(&target(1), now));
        returned.note(&target(1), now);
        assert!(returned.has(&target(1), now + STANDS - Duration::from_nanos(1)));
        assert!(!returned.has(&target(1), now + STANDS) && !returned.has(&target(2), now));
        for port in 2..=MOST + 1 {
            returned.note(&target(port), now);
        }
        assert!(!returned.has(&target(1), now) && returned.has(&target(2), now));
        returned.note(&target(1), now + STANDS);
        assert_eq!(returned.known.lock().len(), 1);
    }

    fn choice(url: &str) -> Choice<'_> {
        Choice { url, weight: 1, tunnels: 0, down_until: None }
    }

    fn host(number: usize) -> Host {
        Host::Name(format!("host-{number}.example").into())
    }

    #[test]
    fn of_two_the_one_with_less_for_its_weight_takes_the_tunnel() {
        let first = |choices: &[Choice<'_>]| {
            let mut counts = vec![0_usize; choices.len()];
            for seed in 0..6_000_u32 {
                let mut state = seed.wrapping_mul(2_654_435_761);
                let random = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 8
                };
                counts[order(Balance::Load, choices, &host(0), random)[0]] += 1;
            }
            counts
        };
        let busy = Choice { tunnels: 9, ..choice("b") };
        let counts = first(&[choice("a"), busy, choice("c")]);
        assert_eq!(counts[1], 0, "with two others the busiest is never the less loaded of two");
        assert!(counts[0].abs_diff(counts[2]) < 600, "{counts:?}");
        let heavy = Choice { tunnels: 9, weight: 10, ..choice("b") };
        assert_eq!(first(&[Choice { tunnels: 1, ..choice("a") }, heavy]), [0, 6_000]);
    }

    #[test]
    fn each_host_has_its_url_and_keeps_it_when_others_come_and_go() {
        let urls = ["https://a:1", "https://b:1", "https://c:1"];
        let all: Vec<_> = urls.map(choice).to_vec();
        let takes = |choices: &[Choice<'_>], number| {
            let first = order(Balance::Target, choices, &host(number), || panic!("no chance in it"))[0];
            choices[first].url.to_owned()
        };
        let of_all: Vec<String> = (0..3_000).map(|number| takes(&all, number)).collect();
        for url in urls {
            let share = of_all.iter().filter(|taken| *taken == url).count();
            assert!((850..1_150).contains(&share), "{url} {share}");
        }
        let without_b = [all[0], all[2]];
        for (number, before) in of_all.iter().enumerate().filter(|(_, before)| *before != "https://b:1") {
            assert_eq!(takes(&without_b, number), *before);
        }
        let weighted = [all[0], Choice { weight: 3, ..all[1] }];
        let share = (0..4_000).filter(|number| takes(&weighted, *number) == "https://b:1").count();
        assert!((2_850..3_150).contains(&share), "{share}");
        let upper = Host::Name("HOST-7.example".into());
        let of_upper = order(Balance::Target, &all, &upper, || 0);
        assert_eq!(of_upper, order(Balance::Target, &all, &host(7), || 0));
    }

    /// Gateways of other versions and machines must make the same choice.
    #[test]
    fn the_choice_is_a_fixed_one() {
        let all = ["https://a:1", "https://b:1", "https://c:1"].map(choice);
        let taken: Vec<usize> =
            (0..12).map(|number| order(Balance::Target, &all, &host(number), || 0)[0]).collect();
        assert_eq!(taken, [0, 1, 1, 1, 0, 0, 0, 1, 2, 0, 2, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_down_comes_last_and_the_next_to_be_tried_before_the_others() {
        let now = Instant::now();
        let down = |url, seconds| {
            let down_until = Some(now + Duration::from_secs(seconds));
            Choice { down_until, ..choice(url) }
        };
        let choices = [down("a", 5), down("b", 1), choice("c"), Choice { tunnels: 100, ..choice("d") }];
        for balance in [Balance::Load, Balance::Target] {
            let order = order(balance, &choices, &host(1), || 7);
            assert_eq!(order[2..], [1, 0], "{balance:?}");
        }
    }
}
