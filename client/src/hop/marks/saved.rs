//! The gateways' challenges in a file next to the wallet, so that a restart neither resets the counts nor treats a known
//! challenge as new.

use super::{KnownChallenge, Marks};
use crate::wallet::beside::FileBeside;
use postern_token::{ChallengeDigest, TokenKeyId, UnixSeconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The marks of all gateways, by origin name or address.
pub(crate) type Ledger = BTreeMap<String, Marks>;

pub(crate) struct SavedMarks(FileBeside);

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    gateways: BTreeMap<String, SavedGateway>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SavedGateway {
    /// Present if the gateway uses marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<String>,
    /// Oldest first.
    known: Vec<SavedChallenge>,
}

/// One challenge; digests and ids are in hexadecimal.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SavedChallenge {
    challenge: String,
    key: Option<String>,
    since: UnixSeconds,
    seen: UnixSeconds,
    counted: Option<UnixSeconds>,
    given_up: bool,
}

impl SavedMarks {
    pub(crate) fn read(wallet: &Path) -> (Self, Ledger) {
        let losses = [
            "The challenges of gateways are counted anew",
            "after a restart the gateway's challenges are counted anew",
        ];
        let parse = |text: &str| if text.is_empty() { Ok(Ledger::new()) } else { parse(text) };
        let (file, ledger) = FileBeside::read(wallet, ".marks", losses, parse);
        (Self(file), ledger)
    }

    pub(crate) async fn save(&mut self, ledger: &Ledger) {
        self.0.save(format(ledger)).await;
    }
}

fn format(ledger: &Ledger) -> String {
    let entry = |(gateway, marks): (&String, &Marks)| {
        let known = marks.known.iter().map(SavedChallenge::of).collect();
        (gateway.clone(), SavedGateway { names: marks.names.clone(), known })
    };
    let has_something = |(_, marks): &(&String, &Marks)| marks.names.is_some() || !marks.known.is_empty();
    let gateways: BTreeMap<_, _> = ledger.iter().filter(has_something).map(entry).collect();
    if gateways.is_empty() {
        return String::new();
    }
    // Strings and numbers only, which JSON can always represent.
    serde_json::to_string_pretty(&Document { gateways }).unwrap_or_default()
}

fn parse(text: &str) -> Result<Ledger, String> {
    let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let marks = |(gateway, entry): (String, SavedGateway)| {
        let known = entry.known.iter().map(SavedChallenge::known).collect::<Option<_>>();
        let known = known.ok_or("a challenge or key in it is not 64 hexadecimal digits")?;
        Ok((gateway, Marks { names: entry.names, known, ..Marks::default() }))
    };
    document.gateways.into_iter().map(marks).collect()
}

impl SavedChallenge {
    fn of(known: &KnownChallenge) -> Self {
        Self {
            challenge: hex::encode(known.digest.0),
            key: known.key.map(|key| hex::encode(key.0)),
            since: known.since,
            seen: known.seen,
            counted: known.counted,
            given_up: known.is_given_up,
        }
    }

    fn known(&self) -> Option<KnownChallenge> {
        let key = match &self.key {
            Some(text) => Some(TokenKeyId(bytes(text)?)),
            None => None,
        };
        Some(KnownChallenge {
            seen: self.seen,
            counted: self.counted,
            is_given_up: self.given_up,
            ..KnownChallenge::new(ChallengeDigest(bytes(&self.challenge)?), key, self.since)
        })
    }
}

fn bytes(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(digits, &mut bytes).ok()?;
    Some(bytes)
}
