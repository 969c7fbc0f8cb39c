//! An answer that opens nothing, and what is learnt from it.

use crate::mint::error::quoted;
use crate::wallet::challenge::mark_of;
use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, PROXY_AUTHENTICATE};
use postern_daemon::http::one_line;
use postern_token::header::Challenge;
use postern_token::{TokenChallenge, TokenType};

/// An answer that opens nothing.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// At most [`postern_proxy::tunnel::BODY_LIMIT`] bytes.
    pub(crate) body: Bytes,
    /// What a challenge must name.
    pub(crate) origin: Option<String>,
}

impl Refused {
    #[cfg(test)]
    pub(crate) fn of(status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        Self { status, headers, body, origin: None }
    }

    /// The first challenge for a token of a type that can be minted, in the gateway's order of preference. Other schemes, other
    /// types, other gateways' challenges (RFC 9577, section 2.1.3: a gateway that presents such a challenge could spend the
    /// token there) and those that cannot be read are passed over.
    ///
    /// # Errors
    /// A sentence about what was there instead.
    pub(crate) fn challenge(&self) -> Result<Challenge, String> {
        let (mut reasons, mut other_types, mut values) = (Vec::new(), false, 0);
        for value in self.headers.get_all(PROXY_AUTHENTICATE) {
            values += 1;
            match Challenge::parse_all(value.as_bytes()) {
                Err(error) => reasons.push(error.to_string()),
                Ok(challenges) => {
                    for challenge in challenges {
                        match challenge.token_challenge() {
                            Ok(parsed) if !TokenType::ISSUED.contains(&parsed.token_type()) => {
                                other_types = true
                            }
                            Ok(parsed) => match self.foreign(&parsed) {
                                Some(reason) => reasons.push(reason),
                                None => return Ok(challenge),
                            },
                            Err(error) => reasons.push(error.to_string()),
                        }
                    }
                }
            }
        }
        Err(match (values, reasons.first(), other_types) {
            (0, ..) => "its answer has no Proxy-Authenticate field".to_owned(),
            (_, Some(reason), _) => format!("its challenge cannot be used: {reason}"),
            (_, None, true) => "it requires tokens of other types than 1, 2 and 5".to_owned(),
            (_, None, false) => "it requires something other than a PrivateToken".to_owned(),
        })
    }

    /// Whether it says that nothing is served now, whatever is asked for.
    pub(crate) fn is_unavailable(&self) -> bool {
        use StatusCode as S;
        matches!(self.status, S::SERVICE_UNAVAILABLE | S::TOO_MANY_REQUESTS | S::LOOP_DETECTED)
    }

    /// To be read after the name of whoever answered this.
    pub(crate) fn words(&self) -> String {
        format!("answered {}{}", self.status, quoted(&one_line(&self.body)))
    }

    /// Why a challenge is none of this gateway's.
    fn foreign(&self, challenge: &TokenChallenge) -> Option<String> {
        if challenge.redemption_context().is_some() && mark_of(challenge).is_some() {
            return Some(
                "it has a redemption context beside a mark, which could tell clients apart".to_owned(),
            );
        }
        let origin = self.origin.as_ref().filter(|origin| !challenge.names_origin(origin))?;
        let named = challenge.origin_info().join(", ");
        Some(format!(
            "it is for \"{named}\", and the gateway is \"{origin}\": if both are one, set gateway.origin to the former"
        ))
    }

    /// Whether the gateway refused this token itself as spent, and not its key.
    pub(crate) fn says_spent(&self) -> bool {
        let statuses = self.headers.get_all("proxy-status");
        statuses.iter().any(|value| value.as_bytes().windows(13).any(|text| text == b"already spent"))
    }
}
