//! Which of several URLs a tunnel takes. No I/O; chance is an argument.

use crate::config::Balance;
use aws_lc_rs::digest::{Context, SHA256};
use postern_proxy::target::Host;
use tokio::time::Instant;

/// What is known of one URL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) url: &'a str,
    pub(super) weight: u16,
    /// Tunnels through it that are open, or being opened.
    pub(super) tunnels: usize,
    /// When it is tried next, where it is down.
    pub(super) down_until: Option<Instant>,
}

impl Choice<'_> {
    /// Whether it has fewer tunnels for its weight than another one.
    fn has_less(&self, other: &Self) -> bool {
        let load = |this: &Self, that: &Self| this.tunnels.saturating_mul(usize::from(that.weight));
        load(self, other) < load(other, self)
    }

    /// The score of weighted rendezvous hashing: of all URLs the highest takes the host. Another list of URLs moves only the hosts
    /// of those that came or went.
    fn score(&self, host: &str) -> f64 {
        let mut digest = Context::new(&SHA256);
        // A prefix of one length and a separator that is in neither: no two pairs are one text.
        for part in ["postern next hop v1\n", self.url, "\n", host] {
            digest.update(part.as_bytes());
        }
        let digest = digest.finish();
        let first = digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        // In (0, 1): the 52 bits that a number between two powers of two can have, and a half.
        let uniform = ((first >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        f64::from(self.weight) / -uniform.ln()
    }
}

/// The indices of `choices` in the order in which they are tried: those that are down last, the one that is tried next first.
pub(super) fn order(
    balance: Balance,
    choices: &[Choice<'_>],
    target: &Host,
    mut random: impl FnMut() -> u32,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    match balance {
        Balance::Load => {
            // Fisher and Yates.
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
    order.sort_by_key(|index| choices[*index].down_until); // stable, and none is the least
    if let (Balance::Load, [first, second, ..]) = (balance, &mut order[..]) {
        let [one, other] = [&choices[*first], &choices[*second]];
        if one.down_until.is_none() && other.down_until.is_none() && other.has_less(one) {
            std::mem::swap(first, second);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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

    /// Gateways of other versions and machines must choose the same.
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
