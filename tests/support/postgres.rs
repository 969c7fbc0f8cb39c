//! Issuers whose accounts and keys are in a PostgreSQL.

pub use postern_testkit::postgres::Postgres;
use std::path::{Path, PathBuf};

/// Writes the configuration of an issuer in `home` with its keys in the database.
pub fn issuer_in(server: &Postgres, home: &Path, name: &str, more: &str) -> PathBuf {
    let folder = home.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let passphrase = home.join("passphrase");
    std::fs::write(&passphrase, "a passphrase of this test\n").unwrap();
    std::fs::set_permissions(&passphrase, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let text =
        format!("passphrase_file = {passphrase:?}\n{more}\n[accounts]\ndatabase = {:?}\n", server.url(""));
    super::daemon::issuer_config(&folder, &text)
}
