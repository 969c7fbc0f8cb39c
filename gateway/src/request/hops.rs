//! The list of gateways that a request has passed. A request that comes back is refused, instead of circulating until the
//! gateways have no place left.
//!
//! The list is sent in `CDN-Loop` (RFC 8586), only between gateways: it is read from peers, and sent to next hops over TLS.
//! Each gateway has a pseudonym that is random for each process, so the field contains nothing about a client.

use crate::request::deny::Refusal;
use http::header::{HeaderMap, HeaderName};
use postern_daemon::seldom::Seldom;
use std::time::Duration;

pub(crate) const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Maximum gateways that a request may pass. More indicate a loop of gateways that restart, and so change their pseudonyms.
const MOST: usize = 16;

#[derive(Debug)]
pub(crate) struct Pseudonym(String);

impl Pseudonym {
    pub(crate) fn random() -> Self {
        Self(format!("postern-{:016x}", rand::random::<u64>()))
    }

    /// Returns the list to send with a client's request: this gateway.
    pub(crate) fn first(&self) -> String {
        self.0.clone()
    }

    /// Returns the list to send with a peer's request: the gateways that it has passed, and this one.
    ///
    /// # Errors
    /// [`Refusal::Loop`] if the request has passed this gateway before, or its list is too long or not text.
    pub(crate) fn after(&self, headers: &HeaderMap) -> Result<String, Refusal> {
        let mut hops = Vec::new();
        for value in headers.get_all(CDN_LOOP) {
            let list = value.to_str().map_err(|_| Refusal::Loop)?;
            hops.extend(list.split(',').map(str::trim).filter(|hop| !hop.is_empty()));
            if hops.len() >= MOST {
                return Err(report());
            }
        }
        let name = |hop: &str| hop.split(';').next().unwrap_or_default().trim().to_owned();
        if hops.iter().any(|hop| name(hop).eq_ignore_ascii_case(&self.0)) {
            return Err(report());
        }
        hops.push(&self.0);
        Ok(hops.join(", "))
    }
}

/// Warns the operator, at most once a minute, without the target.
fn report() -> Refusal {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(60));
    if REPORTED.due(std::time::Instant::now()).is_some() {
        tracing::warn!(
            "a tunnel that went on to a next hop came back as a peer's, and was refused (508): the next hops of these gateways lead in a \
             circle. Change [[egress.next_hops]], or the rules that use them, at one of them"
        );
    }
    Refusal::Loop
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (CDN_LOOP, value.parse().unwrap())).collect()
    }

    #[test]
    fn a_gateway_adds_itself_and_refuses_what_it_finds_itself_in() {
        let [one, other] = [Pseudonym::random(), Pseudonym::random()];
        let came = headers(&["cdn.example:80; v=1", one.first().as_str()]);
        let on = other.after(&came).unwrap();
        assert_eq!(on.as_str(), format!("cdn.example:80; v=1, {}, {}", one.0, other.0));
        assert!(matches!(one.after(&headers(&[on.as_str()])), Err(Refusal::Loop)));
        assert!(matches!(one.after(&headers(&[&format!("a, {} ;x=\"y\"", one.0)])), Err(Refusal::Loop)));
        assert_eq!(one.after(&HeaderMap::new()).unwrap().as_str(), one.first().as_str());
    }

    #[test]
    fn too_many_gateways_are_a_loop_too() {
        let mut hops = Pseudonym::random().first();
        for number in 1..=MOST {
            match Pseudonym::random().after(&headers(&[hops.as_str()])) {
                Ok(more) => hops = more,
                Err(_) => return assert_eq!(number, MOST),
            }
        }
        panic!("{} is no loop", hops.as_str());
    }
}
