use super::*;
use std::os::unix::fs::PermissionsExt;

fn made() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    drop(open(&path).unwrap());
    (directory, path)
}

/// Returns the error that both [`open`] and [`inspect`] give.
fn refused(path: &Path) -> AccountsError {
    let error = inspect(path).unwrap_err();
    assert_eq!(open(path).unwrap_err().to_string(), error.to_string());
    error
}

#[test]
fn it_is_made_once_at_the_one_version_and_is_private() {
    let (_directory, path) = made();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let connection = open(&path).unwrap();
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, VERSION);
    let synchronous: u32 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!(synchronous, 2, "FULL");
    inspect(&path).unwrap();
    check_pages(&connection, &path).unwrap();
    let strict: i64 = connection
        .query_row("SELECT count(*) FROM pragma_table_list WHERE type = 'table' AND strict = 0 AND name NOT LIKE 'sqlite%'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(strict, 0, "every table is strict");
}

#[test]
fn an_empty_file_of_a_start_that_was_killed_is_filled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE_NAME);
    private_file().write(true).create_new(true).open(&path).unwrap();
    inspect(&path).unwrap();
    open(&path).unwrap();
}

#[test]
fn another_version_is_told_and_left_alone() {
    for other in [0, VERSION + 1] {
        let (_directory, path) = made();
        let connection = connect(&path).unwrap();
        connection.pragma_update(None, "user_version", other).unwrap();
        drop(connection);
        let error = refused(&path);
        assert!(matches!(error, AccountsError::Version { found, .. } if found == other), "{error}");
    }
}

#[test]
fn what_is_not_ours_is_told_and_left_alone() {
    let (directory, path) = made();
    for (bytes, said) in [(&b"usage"[..], "shorter"), (&[7; 200], "does not begin as")] {
        std::fs::write(&path, bytes).unwrap();
        let error = refused(&path).to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    let other = directory.path().join("other");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE a (b); PRAGMA user_version = 1").unwrap();
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(refused(&other).to_string().contains("another program"));
}

#[test]
fn a_damaged_page_is_found() {
    let (_directory, path) = made();
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[4_096..end].fill(0xaa);
    std::fs::write(&path, bytes).unwrap();
    let error = open_to_read(&path).and_then(|connection| check_pages(&connection, &path)).unwrap_err();
    assert!(matches!(error, AccountsError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("restore it from a backup"), "{error}");
}

#[test]
fn a_file_that_others_may_read_is_refused() {
    let (_directory, path) = made();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(refused(&path).to_string().contains("chmod 600"));
}

/// Needs root, who alone may change a file's owner.
#[test]
fn a_file_of_another_user_is_refused_with_both_users() {
    let (_directory, path) = made();
    if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
        return;
    }
    inspect(&path).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("65534") && error.contains("chown"), "{error}");
}

#[test]
fn a_program_that_holds_the_lock_is_told() {
    let (_directory, path) = made();
    let shell = Connection::open(&path).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE").unwrap();
    let connection = open(&path).unwrap();
    connection.busy_timeout(Duration::ZERO).unwrap();
    let error = connection.execute("DELETE FROM usage", []).unwrap_err();
    let error = AccountsError::of(&path, &error).to_string();
    assert!(error.contains("sqlite3") && error.contains("COMMIT"), "{error}");
}
