use super::string::{PREFIX, VERSION, checksum};
use super::*;
use crate::config::Listen;
use postern_config::Secret;
use postern_token::encode_base64url;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIU\nBm8=\n-----END CERTIFICATE-----\n";

fn join() -> Join {
    Join {
        gateways: vec!["https://proxy.example".to_owned(), "https://192.0.2.7:8443".to_owned()],
        origin: Some("proxy.example".to_owned()),
        gateway_ca: None,
        issuers: vec!["https://issuer.example".to_owned(), "https://issuer.example:8443".to_owned()],
        issuer_ca: None,
        api_key: Some(Secret::new("postern_TOPSECRET")),
    }
}

fn least() -> Join {
    let gateways = vec!["http://127.0.0.1:8080".to_owned()];
    let issuers = vec!["http://127.0.0.1:8081".to_owned()];
    Join { gateways, origin: None, gateway_ca: None, issuers, issuer_ca: None, api_key: None }
}

/// Returns a join string around any JSON.
fn around(json: &str) -> String {
    let body = format!("{PREFIX}{VERSION}.{}", encode_base64url(json.as_bytes()).trim_end_matches('='));
    format!("{body}.{}", checksum(&body))
}

#[test]
fn a_join_string_is_read_as_it_was_written() {
    let full = Join { gateway_ca: Some(PEM.to_owned()), issuer_ca: Some(PEM.repeat(2)), ..join() };
    let same = Join { gateway_ca: Some(PEM.to_owned()), issuer_ca: Some(PEM.to_owned()), ..join() };
    let one = Join { issuer_ca: None, ..same.clone() };
    let length = |join: &Join| join.format().unwrap().expose().len();
    assert!(length(&same) < length(&one), "a certificate that both trust stands in it once");
    for join in [least(), join(), full, same, one] {
        let text = join.format().unwrap();
        assert_eq!(Join::find(text.expose()), Ok(join.clone()));
        let printed = format!("API key: x\nJoin string:\n  {}\nKeep it secret.\n", text.expose());
        assert_eq!(Join::find(&printed), Ok(join));
    }
}

#[test]
fn a_copy_with_a_fault_is_refused_by_what_is_wrong() {
    let whole = join().format().unwrap().expose().to_owned();
    for end in PREFIX.len()..whole.len() {
        let cut = Join::find(&whole[..end]).unwrap_err();
        assert_eq!(cut, JoinError::Truncated, "cut after {end}");
    }
    for (index, byte) in whole.char_indices().skip(PREFIX.len() + 2) {
        let mut mistyped = whole.clone();
        mistyped.replace_range(index..=index, if byte == 'x' { "y" } else { "x" });
        let error = Join::find(&mistyped).unwrap_err();
        assert!(matches!(error, JoinError::Checksum | JoinError::Truncated), "{index}: {error}");
    }
    assert_eq!(Join::find(&format!("{whole}\"")), Err(JoinError::Character(whole.len() + 1)));
    assert_eq!(Join::find(&whole.replace("-1.", "-2.")), Err(JoinError::Version(2)));
    assert_eq!(Join::find("https://proxy.example"), Err(JoinError::Missing));
    assert_eq!(Join::find(&format!("{PREFIX}1.{}", "A".repeat(JOIN_LIMIT))), Err(JoinError::TooLong));
}

#[test]
fn what_a_newer_version_adds_is_named_and_values_never_are() {
    let newer = around(
        r#"{"gateways":["http://a:1"],"issuers":["http://b:2"],"api_key":"TOPSECRET","device":"TOPSECRET"}"#,
    );
    assert_eq!(Join::find(&newer), Err(JoinError::UnknownField("device".to_owned())));
    assert_eq!(Join::find(&around(r#"{"gateways":[]}"#)), Err(JoinError::NoField("issuers")));
    for wrong in [
        r#"{"gateways":["http://a:1"],"issuers":["http://b:2"],"api_key":["TOPSECRET"]}"#,
        r#"{"gateways":["http://a:1"],"issuers":["http://b:2"],"api_key":"TOPSECRET\nmore"}"#,
        r#"{"gateways":["http://u:TOPSECRET@a:1"],"issuers":["http://b:2"]}"#,
        r#"{"gateways":["ftp://TOPSECRET"],"issuers":["http://b:2"]}"#,
        r#"{"gateways":[],"issuers":["http://TOPSECRET"]}"#,
        r#"{"gateways":["http://TOPSECRET:1","http://TOPSECRET:1/"],"issuers":["http://b:2"]}"#,
        r#"{"gateways":["http://a:1"],"issuers":["http://b:2"],"issuer_ca":"-----BEGIN PRIVATE KEY-----\nTOPSECRET\n"}"#,
        r#"["TOPSECRET"]"#,
        "TOPSECRET",
    ] {
        let error = Join::find(&around(wrong)).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("TOPSECRET"), "{error}");
    }
    assert!(!format!("{:?}", join()).contains("TOPSECRET"));
}

#[test]
fn only_the_certificates_of_a_file_travel() {
    let file = format!(
        "subject=/CN=Our authority\n{PEM}-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\n"
    );
    assert_eq!(certificates(&file).as_deref(), Some(PEM));
    for none in ["", "text", "-----BEGIN CERTIFICATE-----\nMIIB\n"] {
        assert_eq!(certificates(none), None);
    }
}

fn place(home: &Path, replaces: bool) -> JoinPlace {
    JoinPlace {
        config: home.join("deep/client.toml"),
        data: home.join("data"),
        listen: Listen::default(),
        replaces,
    }
}

#[test]
fn a_configuration_is_written_once_and_is_the_owners_alone() {
    let home = tempfile::tempdir().unwrap();
    let config = write_join(&join(), &place(home.path(), false)).unwrap();
    assert_eq!(config.gateway.url.list(), join().gateways);
    let data = home.path().join("data");
    assert_eq!(std::fs::read_to_string(data.join("api-key")).unwrap(), "postern_TOPSECRET\n");
    let written = std::fs::read_to_string(home.path().join("deep/client.toml")).unwrap();
    assert!(!written.contains("TOPSECRET") && written.contains("origin = \"proxy.example\""), "{written}");
    for path in [home.path().join("deep/client.toml"), data.join("api-key")] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let refused = write_join(&least(), &place(home.path(), false)).unwrap_err();
    assert!(refused.to_string().contains("client.toml is there already"), "{refused}");
    let replaced = write_join(&least(), &place(home.path(), true)).unwrap();
    assert!(replaced.issuer.api_key_file.is_none());
    assert_eq!(replaced.check(), Ok(()));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}", json in ".{0,200}") {
        let _ = Join::find(&text);
        let _ = Join::find(&format!("{PREFIX}{text}"));
        let _ = Join::find(&format!("{PREFIX}{VERSION}.{text}"));
        let _ = Join::find(&around(&json));
        let _ = certificates(&text);
    }

    #[test]
    fn whatever_can_be_formatted_is_read_back(
        hosts in prop::collection::btree_set("[a-z]{1,20}", 1..8),
        key in prop::option::of("[!-~]{1,80}"),
        origin in prop::option::of("[!-~]{1,40}"),
    ) {
        let gateways = hosts.iter().map(|host| format!("https://{host}.example")).collect();
        let join = Join { gateways, origin, api_key: key.map(Secret::new), ..least() };
        let text = join.format().unwrap();
        prop_assert_eq!(Join::find(text.expose()), Ok(join.clone()));
        let home = tempfile::tempdir().unwrap();
        prop_assert!(write_join(&join, &place(home.path(), false)).is_ok());
    }
}
