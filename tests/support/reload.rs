//! A daemon's configuration file, changed while it runs.

use super::site::write;
use super::unit::Unit;

const IN_FORCE: &str = "is in force from now on";

/// Its text.
pub fn file(unit: &Unit) -> String {
    std::fs::read_to_string(&unit.config).unwrap()
}

/// Writes the file, and waits until the log reports that it is in force, and that this has changed.
pub async fn reloaded(unit: &Unit, text: &str, changed: &str) -> String {
    let from = reload(unit, text);
    unit.logs(from, &[IN_FORCE, changed]).await
}

/// Writes the file, and waits until the log reports which changes wait for a restart.
pub async fn waiting(unit: &Unit, text: &str) -> String {
    let from = reload(unit, text);
    unit.logs(from, &["these changes wait for a restart"]).await
}

/// Writes the file and has it read. Returns the log's length before.
pub fn reload(unit: &Unit, text: &str) -> usize {
    let from = unit.log().len();
    write(unit, text);
    unit.signal("HUP");
    from
}
