//! Parsing of the authorizer's answers.

use crate::accounts::configured::Tiers;
use crate::accounts::control::{Terms, is_account_name};
use crate::quota::{Burst, Quota};
use postern_daemon::http::is_invisible;
use serde::Deserialize;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Longest reason that is passed on to the client, in characters.
const MOST_REASON: usize = 200;

/// The authorizer's verdict on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The key belongs to this account.
    Allowed(Arc<Allowed>),
    /// The key gets no tokens, for this reason.
    Denied(Option<Arc<str>>),
    /// The answer is invalid.
    Absurd,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) account: String,
    pub(crate) terms: Terms,
}

/// Parses an answer. An error never quotes the answer, which may contain names and keys.
pub(super) fn read(body: &[u8], tiers: &Tiers) -> Result<Verdict, &'static str> {
    #[derive(Deserialize)]
    struct Wire {
        allow: bool,
        account: Option<String>,
        quota: Option<Quota>,
        rate: Option<NonZeroU32>,
        burst: Option<NonZeroU32>,
        tier: Option<String>,
        reason: Option<String>,
    }
    let wire: Wire = serde_json::from_slice(body)
        .map_err(|_| "one is not JSON with \"allow\", or a value of it is of another kind than expected")?;
    if !wire.allow {
        let clean = |reason: String| {
            reason.chars().filter(|c| !is_invisible(*c)).take(MOST_REASON).collect::<String>()
        };
        let reason = wire.reason.map(clean).filter(|reason| !reason.trim().is_empty());
        return Ok(Verdict::Denied(reason.map(Into::into)));
    }
    let account = wire.account.ok_or("one allows a key and names no account")?;
    if !is_account_name(&account) {
        return Err("one names an account by what is no name for an account");
    }
    let burst = Burst::of(wire.rate, wire.burst);
    let burst = burst.ok_or("one has only one of rate and burst, which need each other")?;
    match (&wire.quota, &wire.tier) {
        (None, None) => return Err("one allows a key and has neither a quota nor a tier"),
        (None, Some(tier)) if !tiers.has(tier) => {
            return Err("one has a tier that is none of [[tiers]], and no quota");
        }
        _ => {}
    }
    let terms = Terms { quota: wire.quota, burst, tier: wire.tier, expires_at: None };
    Ok(Verdict::Allowed(Arc::new(Allowed { account, terms })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Verdict, &'static str> {
        let gold = crate::config::Tier {
            name: "gold".to_owned(),
            quota: "1/1d".parse().unwrap(),
            turns: NonZeroU32::MIN,
            rate: None,
            burst: None,
        };
        super::read(body.as_bytes(), &Tiers::of(&[gold]))
    }

    #[test]
    fn an_answer_has_an_account_with_terms_or_a_reason() {
        let whole =
            r#"{"allow": true, "account": "alice", "quota": "5/1d", "rate": 2, "burst": 3, "more": [1]}"#;
        let Ok(Verdict::Allowed(allowed)) = read(whole) else { panic!("{:?}", read(whole)) };
        assert_eq!((allowed.account.as_str(), allowed.terms.quota), ("alice", "5/1d".parse().ok()));
        assert!(allowed.terms.burst.is_some_and(|burst| burst.burst_tokens.get() == 3));
        assert!(matches!(
            read(r#"{"allow": true, "account": "a", "tier": "gold"}"#),
            Ok(Verdict::Allowed(_))
        ));
        assert_eq!(read(r#"{"allow": false}"#), Ok(Verdict::Denied(None)));
        let long = format!("{{\"allow\": false, \"reason\": \"a\\n\u{202e}b{}\"}}", "c".repeat(400));
        let Ok(Verdict::Denied(Some(reason))) = read(&long) else { panic!("{:?}", read(&long)) };
        assert!(reason.starts_with("abc") && reason.len() == MOST_REASON, "{reason}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_a_word_of_it() {
        for body in [
            "",
            "allowed",
            "[]",
            "{}",
            r#"{"allow": "alice"}"#,
            r#"{"allow": true}"#,
            r#"{"allow": true, "account": "alice"}"#,
            r#"{"allow": true, "account": "=alice", "quota": "1/1d"}"#,
            "{\"allow\": true, \"account\": \"ecila\u{202e}alice\", \"quota\": \"1/1d\"}",
            r#"{"allow": true, "account": "alice", "quota": "alice"}"#,
            r#"{"allow": true, "account": "alice", "quota": "1/1d", "rate": 1}"#,
            r#"{"allow": true, "account": "alice", "quota": "1/1d", "rate": 0, "burst": 0}"#,
            r#"{"allow": true, "account": "alice", "tier": "alice"}"#,
        ] {
            let why = read(body).unwrap_err();
            assert!(!why.contains("alice"), "{body}: {why}");
        }
    }
}
