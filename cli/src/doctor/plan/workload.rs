//! What a fleet is to carry, and on what machines: the arguments, checked.

use crate::args::{Place, Plan as Arguments};
use crate::failure::Failure;
use postern_config::{ConfigDuration, Size};
use serde::Serialize;

/// Requests of all kinds are spread over these regions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Workload {
    /// Tokens spent a second, over all regions: one a tunnel.
    pub(crate) rate: f64,
    /// How long the record of a spent token is kept at most: the life of its key and the margin.
    pub(crate) lifetime: f64,
    pub(crate) replicas: u32,
    /// The share of each region, together 1.
    pub(crate) regions: Vec<f64>,
    pub(crate) place: Place,
    /// Seconds there and back between regions.
    pub(crate) distance: f64,
    /// Seconds that a tunnel is open.
    pub(crate) length: f64,
    /// Bytes through a tunnel, both ways together.
    pub(crate) bytes: f64,
    /// The share of all tunnels that lead to one and the same address and port.
    pub(crate) same_target: f64,
    /// Tokens signed a second, and how many an agent gets over one connection.
    pub(crate) issued: f64,
    pub(crate) batch: f64,
    /// A machine of each kind.
    pub(crate) cores: f64,
    pub(crate) memory: f64,
    /// Bits a second.
    pub(crate) nic: f64,
    /// The share of cores and link that may be busy.
    pub(crate) busy: f64,
    /// Machines that are there, where they are given.
    pub(crate) gateways: Option<u32>,
    pub(crate) servers: Option<u32>,
    pub(crate) issuers: Option<u32>,
    /// Little's law: how long a command of a pooled connection takes, in seconds. `None` for pipelined.
    pub(crate) pooled: Option<f64>,
}

impl Workload {
    pub(crate) fn new(given: &Arguments) -> Result<Self, Failure> {
        let workload = Self {
            rate: given
                .rate
                .ok_or_else(|| refused("--rate is missing: requests a second, such as --rate 10k"))?,
            lifetime: seconds(given.lifetime),
            replicas: given.replicas,
            regions: shares(&given.regions)?,
            place: given.place,
            distance: seconds(given.distance),
            length: seconds(given.tunnel),
            bytes: bytes(given.bytes),
            same_target: f64::from(given.same_target) / 100.0,
            issued: given.issued.or(given.rate).unwrap_or_default(),
            batch: f64::from(given.batch),
            cores: f64::from(given.cores),
            memory: bytes(given.memory),
            nic: given.nic,
            busy: f64::from(given.busy) / 100.0,
            gateways: given.gateways,
            servers: given.servers,
            issuers: given.issuers,
            pooled: given.pooled.map(seconds),
        };
        workload.check()?;
        Ok(workload)
    }

    fn check(&self) -> Result<(), Failure> {
        if !matches!(self.replicas, 1 | 3) {
            return Err(refused("--replicas is 1 (a pool whose servers own their keys) or 3 (a quorum)"));
        }
        if self.place == Place::Spread && (self.replicas != 3 || self.regions.len() != 3) {
            return Err(refused(
                "--place spread is a replica in each of three regions: --replicas 3 --regions 3",
            ));
        }
        for (name, value) in [("--lifetime", self.lifetime), ("--memory", self.memory)] {
            if value <= 0.0 {
                return Err(refused(&format!("{name} must be more than nothing")));
            }
        }
        Ok(())
    }
}

/// "3" are three equal regions, "50,30,20" are three with these shares.
fn shares(text: &str) -> Result<Vec<f64>, Failure> {
    let wrong = || {
        refused(
            "--regions is a number of equal regions up to 64, such as 3, or their shares, such as 50,30,20",
        )
    };
    let parts: Vec<u32> =
        text.split(',').map(|part| part.trim().parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    match parts[..] {
        [count @ 1..=64] => Ok(vec![1.0 / f64::from(count); count as usize]),
        [_] => Err(wrong()),
        _ if parts.contains(&0) || parts.len() > 64 || parts.iter().any(|part| *part > 1_000_000) => {
            Err(wrong())
        }
        _ => {
            let sum: f64 = parts.iter().copied().map(f64::from).sum();
            Ok(parts.iter().map(|part| f64::from(*part) / sum).collect())
        }
    }
}

fn refused(sentence: &str) -> Failure {
    Failure::usage(sentence)
}

fn seconds(span: ConfigDuration) -> f64 {
    span.get().as_secs_f64()
}

fn bytes(size: Size) -> f64 {
    size.get() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_equal_or_have_shares() {
        assert_eq!(shares("2").unwrap(), [0.5, 0.5]);
        assert_eq!(shares("50,30,20").unwrap(), [0.5, 0.3, 0.2]);
        for text in ["0", "65", "", "1,0", "a", "1,-2", "3,"] {
            assert!(shares(text).is_err(), "{text}");
        }
    }
}
