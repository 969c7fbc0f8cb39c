//! The gateways' challenges in a file next to the wallet, so that a restart neither resets the counts nor treats a known
//! challenge as new.

use super::Marks;
use crate::wallet::beside::FileBeside;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The marks of all gateways, by origin name or address.
pub(crate) type Ledger = BTreeMap<String, Marks>;

pub(crate) struct SavedMarks(FileBeside);

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document<T> {
    gateways: T,
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
    let has_something = |(_, marks): &(&String, &Marks)| marks.names.is_some() || !marks.known.is_empty();
    let gateways: BTreeMap<_, _> = ledger.iter().filter(has_something).collect();
    if gateways.is_empty() {
        return String::new();
    }
    // Strings and numbers only, which JSON can always represent.
    serde_json::to_string_pretty(&Document { gateways }).unwrap_or_default()
}

fn parse(text: &str) -> Result<Ledger, String> {
    let document: Document<Ledger> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(document.gateways)
}
