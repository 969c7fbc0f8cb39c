//! The challenges of gateways in a file beside the wallet, so that a restart neither forgets what was counted nor takes a
//! known one for a new one.

use super::{KnownChallenge, Marks};
use crate::wallet::beside::FileBeside;
use postern_token::{ChallengeDigest, TokenKeyId, UnixSeconds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The marks of all gateways, by origin name or address.
pub(crate) type Ledger = BTreeMap<String, Marks>;

/// The file of the marks.
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
    /// Reads the file beside `wallet`.
    pub(crate) fn read(wallet: &Path) -> (Self, Ledger) {
        let mut file = FileBeside::of(wallet, ".marks");
        let parse = |text: &str| if text.is_empty() { Ok(Ledger::new()) } else { parse(text) };
        let ledger = file.load(parse, "The challenges of gateways are counted anew");
        (Self(file), ledger)
    }

    pub(crate) async fn save(&mut self, ledger: &Ledger) {
        self.0.save(format(ledger), "after a restart the gateway's challenges are counted anew").await;
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
            challenge: hex(&known.digest.0),
            key: known.key.map(|key| hex(&key.0)),
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

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}
