use super::*;
use postern_testkit::postgres::Postgres;
use std::net::TcpListener;

fn of(url: &str) -> Result<Arc<Server>, String> {
    let config = AccountsConfig { database: Some(url.to_owned()), password_file: None };
    Server::of(&config).map(Option::unwrap)
}

#[test]
fn only_this_machine_is_reached_without_tls() {
    for hosts in ["localhost", "127.0.0.1", "127.0.0.1,localhost:5433", "%2Frun%2Fpostgresql", "[::1]"] {
        of(&format!("postgres://postern@{hosts}/postern?sslmode=disable")).unwrap();
    }
    for url in ["db.example/postern?", "localhost,10.0.0.1/postern?", "localhost/postern?hostaddr=10.0.0.1&"]
    {
        let refused = of(&format!("postgres://postern@{url}sslmode=disable")).unwrap_err();
        assert!(refused.contains("not this machine"), "{url}: {refused}");
    }
}

#[test]
fn a_host_that_accepts_and_hangs_does_not_keep_the_next_one_from_its_turn() {
    let (postgres, hanging) = (Postgres::start(&[]), TcpListener::bind("127.0.0.1:0").unwrap());
    let first = format!("@{},", hanging.local_addr().unwrap());
    let session = Session::new(of(&postgres.url("").replace('@', &first)).unwrap());
    session.batch("SELECT 1").unwrap();
}

#[test]
fn a_server_that_has_not_taken_the_settings_of_the_session_is_refused() {
    let postgres = Postgres::start(&[]);
    let other = "&options=-c%20idle_in_transaction_session_timeout%3D5s";
    let session = Session::new(of(&postgres.url(other)).unwrap());
    let refused = session.batch("SELECT 1").unwrap_err().to_string();
    assert!(refused.contains("a pooler such as PgBouncer"), "{refused}");
}
