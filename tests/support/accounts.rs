//! The database of an issuer's accounts, as `sqlite3` reads it.

use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::path::Path;

/// How many tokens each account has used, in all periods; nothing where there is no database.
pub fn used(keys: &Path) -> BTreeMap<String, i64> {
    let path = keys.join("accounts.sqlite");
    if !path.exists() {
        return BTreeMap::new();
    }
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let mut statement = database.prepare("SELECT account, sum(tokens) FROM usage GROUP BY account").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}
